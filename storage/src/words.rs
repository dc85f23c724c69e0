//! The words of a round: the commands that make its changes on a replica, in the order in which they
//! ran (RFC 15). They are gathered only while somebody follows this server.
//!
//! Commands form *groups*: all that one command or unit has done, with the keys that were found to
//! be expired meanwhile. A replica applies a group as one.
//!
//! ```text
//! group:   items u32 | items
//! item:    what u8 | db varint | n varint | n × bytes
//! what:    0 a command: its words · 1 a key that has expired or was evicted: its name (if it is
//!          not to be sent as DEL: that is a command)
//!          2 fields of a hash that have expired: the key, then their names
//!          3 the next command selects its database, whatever is selected: n is 0
//! ```

use crate::encoding::{get_bytes, get_varint, put_bytes, put_varint};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const COMMAND: u8 = 0;
const REMOVAL: u8 = 1;
const FIELDS: u8 = 2;
const RESELECT: u8 = 3;

/// Length of the head of a group.
const HEAD: usize = 4;

/// Maximum number of members or fields that a command names which no client has sent: servers limit the
/// arguments of a command.
pub const NAMES_AT_ONCE: usize = 1024;

/// Memory in bytes that an idle round keeps for its words.
const KEEP: usize = 64 << 10;

/// Reasons for which a server removes a key by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalCause {
    Expired,
    Evicted,
    /// A command that makes a key absent in another way than its words say.
    Command,
}

/// Causes of the removals that replicas get as DEL. They get the others as UNLINK, which makes the
/// same change, and on servers with slow deletions spares the thread of the stream.
#[derive(Debug, Default)]
pub struct PlainRemovals(AtomicU8);

impl PlainRemovals {
    /// Sets whether removals of a cause are sent as DEL.
    pub fn set(&self, cause: RemovalCause, is_plain: bool) {
        let bit = 1 << cause as u8;
        if is_plain {
            self.0.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    fn has(&self, cause: RemovalCause) -> bool {
        self.0.load(Ordering::Relaxed) & 1 << cause as u8 != 0
    }
}

/// One item of the words of a round.
#[derive(Debug, PartialEq, Eq)]
pub enum Said<'a> {
    /// A command, with the database that is selected for it.
    Command { db: u32, words: Vec<&'a [u8]> },
    /// A key that has expired, or was evicted.
    Removal { db: u32, key: &'a [u8] },
    /// Fields of a hash that have expired.
    Fields { db: u32, key: &'a [u8], names: Vec<&'a [u8]> },
    /// The next command selects its database, whatever is selected.
    Reselect,
}

impl Said<'_> {
    /// Returns the database that the item is of, if it is of one.
    pub fn db(&self) -> Option<u32> {
        match self {
            Self::Command { db, .. } | Self::Removal { db, .. } | Self::Fields { db, .. } => {
                Some(*db)
            }
            Self::Reselect => None,
        }
    }
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct RoundWords {
    wanted: bool,
    bytes: Vec<u8>,
    /// True between the begin and the end of a command or unit.
    is_grouping: bool,
    /// Position of the head of the open group, if it has items.
    group: Option<usize>,
    /// Number of changes of the store before the running command, and those that were said since.
    changes: u64,
    /// True if the running command has said what it did.
    told: bool,
    /// Database, name and expiry of a key that replicas lose for a moment of the running command.
    lost: Option<(u32, Box<[u8]>, u64)>,
    plain: Option<Arc<PlainRemovals>>,
}

impl RoundWords {
    /// Shares the causes of the removals that are said as DEL.
    pub fn share_plain(&mut self, plain: &Arc<PlainRemovals>) {
        if self.plain.as_ref().is_none_or(|shared| !Arc::ptr_eq(shared, plain)) {
            self.plain = Some(plain.clone());
        }
    }

    /// Sets whether words are gathered.
    #[inline]
    pub fn want(&mut self, wanted: bool) {
        self.wanted = wanted;
    }

    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the memory of what was said in bytes, without what is kept for later words.
    pub fn memory(&self) -> usize {
        self.bytes.len()
    }

    /// Begins a group: what is said until its end is one.
    pub fn begin_group(&mut self) {
        (self.is_grouping, self.group) = (true, None);
    }

    /// Ends the group.
    pub fn end_group(&mut self) {
        (self.is_grouping, self.group) = (false, None);
    }

    /// Returns the position of what is said next.
    pub(crate) fn position(&self) -> usize {
        self.bytes.len()
    }

    /// Takes back the group and everything else behind a position.
    pub(crate) fn take_back(&mut self, position: usize) {
        self.bytes.truncate(position);
        self.end_group();
    }

    /// Begins a command, of a group or alone; `changes` counts those of the store so far.
    #[inline]
    pub fn begin_command(&mut self, changes: u64) {
        (self.changes, self.told, self.lost) = (changes, false, None);
    }

    /// Notes that replicas delete a key by what the running command has said, although its own words
    /// make it again: they do not have its expiry then.
    pub(crate) fn loses(&mut self, db: u32, key: &[u8], expire_at_ms: u64) {
        self.lost = Some((db, key.into(), expire_at_ms));
    }

    /// Ends a command whose words are said: replicas get the expiry of the key that they have lost.
    #[inline]
    pub fn end_command(&mut self) {
        if let Some((db, key, expire_at_ms)) = self.lost.take() {
            let at_ms = expire_at_ms.to_string();
            self.command(db, [&b"PEXPIREAT"[..], &key, at_ms.as_bytes()].into_iter());
        }
    }

    /// Returns true if the running command has made changes that nobody has said yet.
    #[inline]
    pub fn is_unsaid(&self, changes: u64) -> bool {
        !self.told && changes > self.changes
    }

    /// Marks the running command as having said what it did: not its own words are sent.
    pub fn tell(&mut self) {
        self.told = true;
    }

    fn item(&mut self, what: u8, db: u32, count: usize) {
        let group = match self.group {
            Some(group) => group,
            None => {
                let group = self.bytes.len();
                self.bytes.extend_from_slice(&[0; HEAD]);
                self.group = self.is_grouping.then_some(group);
                group
            }
        };
        if let Some(head) = self.bytes.get_mut(group..).and_then(<[u8]>::first_chunk_mut::<HEAD>) {
            *head = (u32::from_be_bytes(*head) + 1).to_be_bytes();
        }
        self.bytes.push(what);
        put_varint(&mut self.bytes, u64::from(db));
        put_varint(&mut self.bytes, count as u64);
    }

    /// Says a command.
    pub fn command<'w>(&mut self, db: u32, words: impl ExactSizeIterator<Item = &'w [u8]>) {
        if self.wanted {
            self.item(COMMAND, db, words.len());
            words.for_each(|word| put_bytes(&mut self.bytes, word));
        }
    }

    /// Makes the next command select its database, for a reader that begins here.
    pub fn reselect(&mut self) {
        if self.wanted {
            self.item(RESELECT, 0, 0);
        }
    }

    /// Notes that a change of the store was none of the running command: an expiry that it has found.
    #[inline]
    pub fn excuse(&mut self) {
        self.changes += 1;
    }

    /// Says that keys were deleted.
    pub fn deletion(&mut self, db: u32, keys: &[&[u8]]) {
        let words = [&[&b"DEL"[..]], keys].concat();
        self.command(db, words.into_iter());
    }

    /// Says that the server itself has removed a key.
    pub fn removal(&mut self, db: u32, key: &[u8], cause: RemovalCause) {
        if self.plain.as_ref().is_some_and(|plain| plain.has(cause)) {
            self.deletion(db, &[key]);
        } else if self.wanted {
            self.item(REMOVAL, db, 1);
            put_bytes(&mut self.bytes, key);
        }
    }

    /// Says that fields of a hash have expired.
    pub fn fields<'n>(
        &mut self,
        db: u32,
        key: &[u8],
        mut names: impl ExactSizeIterator<Item = &'n [u8]>,
    ) {
        while self.wanted && names.len() > 0 {
            let count = names.len().min(NAMES_AT_ONCE);
            self.item(FIELDS, db, count + 1);
            put_bytes(&mut self.bytes, key);
            names.by_ref().take(count).for_each(|name| put_bytes(&mut self.bytes, name));
        }
    }

    /// Returns what was said.
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.take()
    }

    /// Takes the words of the round. No group is open.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.group = None;
        if self.bytes.is_empty() { Vec::new() } else { std::mem::take(&mut self.bytes) }
    }

    /// Reuses the memory of words that were taken.
    pub(crate) fn reuse(&mut self, mut words: Vec<u8>) {
        if self.bytes.capacity() == 0 && words.capacity() <= KEEP {
            words.clear();
            self.bytes = words;
        }
    }
}

/// Returns the groups of words; `None` if they are damaged.
pub fn groups(mut bytes: &[u8]) -> Option<Vec<Vec<Said<'_>>>> {
    let mut groups = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        bytes = rest;
        let mut items = Vec::new();
        for _ in 0..u32::from_be_bytes(*head) {
            items.push(said(&mut bytes)?);
        }
        groups.push(items);
    }
    Some(groups)
}

fn said<'a>(bytes: &mut &'a [u8]) -> Option<Said<'a>> {
    let (&what, rest) = bytes.split_first()?;
    *bytes = rest;
    let db = u32::try_from(get_varint(bytes)?).ok()?;
    let count = get_varint(bytes)?;
    let mut words = Vec::new();
    for _ in 0..count {
        words.push(get_bytes(bytes)?);
    }
    match what {
        COMMAND => Some(Said::Command { db, words }),
        REMOVAL => Some(Said::Removal { db, key: words.first()? }),
        FIELDS => {
            let names = words.split_off(1.min(words.len()));
            Some(Said::Fields { db, key: words.first()?, names })
        }
        RESELECT => Some(Said::Reselect),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command<'a>(db: u32, words: &[&'a [u8]]) -> Said<'a> {
        Said::Command { db, words: words.to_vec() }
    }

    #[test]
    fn groups_are_read_as_they_were_said() {
        let mut words = RoundWords::default();
        words.command(0, [&b"set"[..]].into_iter());
        assert!(words.is_empty(), "nobody wants them");
        words.want(true);
        words.removal(3, b"gone", RemovalCause::Expired);
        words.begin_group();
        words.begin_command(5);
        words.fields(0, b"h", [&b"f"[..], b"g"].into_iter());
        words.excuse();
        assert!(!words.is_unsaid(6) && words.is_unsaid(7), "an expiry is no change of the command");
        words.command(0, [&b"set"[..], b"k", b""].into_iter());
        words.end_group();
        words.command(1, [&b"incr"[..], b"n"].into_iter());
        words.reselect();
        let memory = words.memory();
        let bytes = words.take();
        assert!(words.is_empty());
        // The same again whatever room there is.
        assert_eq!((memory, words.memory()), (bytes.len(), 0));
        words.reuse(Vec::with_capacity(KEEP));
        assert_eq!(words.memory(), 0);
        let fields = Said::Fields { db: 0, key: b"h", names: vec![b"f", b"g"] };
        assert_eq!(
            groups(&bytes),
            Some(vec![
                vec![Said::Removal { db: 3, key: b"gone" }],
                vec![fields, command(0, &[b"set", b"k", b""])],
                vec![command(1, &[b"incr", b"n"])],
                vec![Said::Reselect],
            ])
        );
        for cut in 1..bytes.len() {
            let left = groups(&bytes[..cut]);
            assert!(left.is_none_or(|left| left.len() < 4), "{cut}");
        }
    }

    #[test]
    fn many_fields_are_said_in_pieces() {
        let names: Vec<String> = (0..2 * NAMES_AT_ONCE + 1).map(|n| n.to_string()).collect();
        let names: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
        let mut words = RoundWords::default();
        words.want(true);
        words.begin_group();
        words.fields(3, b"h", names.iter().copied());
        words.fields(3, b"h", std::iter::empty());
        words.end_group();
        let pieces = names.chunks(NAMES_AT_ONCE);
        let pieces = pieces.map(|names| Said::Fields { db: 3, key: b"h", names: names.to_vec() });
        assert_eq!(groups(&words.take()), Some(vec![pieces.collect::<Vec<_>>()]));
    }

    #[test]
    fn a_group_is_taken_back_whole() {
        let mut words = RoundWords::default();
        words.want(true);
        words.command(0, [&b"a"[..]].into_iter());
        let before = words.position();
        words.begin_group();
        words.command(0, [&b"b"[..]].into_iter());
        words.take_back(before);
        words.command(0, [&b"c"[..]].into_iter());
        let bytes = words.take();
        let groups = groups(&bytes).unwrap();
        assert_eq!(groups, [vec![command(0, &[b"a"])], vec![command(0, &[b"c"])]]);
    }
}
