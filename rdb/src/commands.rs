//! Commands that build a value which is too large for one RESTORE, piece by piece.

use crate::file::Key;
use crate::{EntriesRead, EntryId, Kind, Part, Sink, StreamGroup, StreamHead, StreamNode};
use flagstone_wire::num::format_f64;
use std::collections::BTreeMap;

/// Maximum number of elements of one command, and of their bytes.
const PIECE_ELEMENTS: usize = 1024;
const PIECE_BYTES: usize = 256 << 10;

/// The expected reply to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Anything but an error, or an array with one.
    Any,
    /// This integer.
    Integer(i64),
    /// A reply that confirms the command, which counts as done. With `may_exist`, an error that the
    /// key or library exists counts as skipped.
    Done { may_exist: bool },
    /// An array; an empty one counts as skipped.
    Some,
    /// Any reply: the sender examines it.
    Asked,
}

/// Calls `send` with the words of the RESTORE of a key. `expire_at_ms`: its expiry; `replaces`: true if
/// an existing key gives way.
pub fn with_restore<T>(
    key: &Key,
    expire_at_ms: Option<i64>,
    payload: &[u8],
    replaces: bool,
    send: impl FnOnce(&[&[u8]]) -> T,
) -> T {
    let expire_at = expire_at_ms.unwrap_or(0).to_string();
    let mut words = vec![&b"RESTORE"[..], &key.name, expire_at.as_bytes(), payload, b"ABSTTL"];
    if replaces {
        words.push(b"REPLACE");
    }
    let rank = match (key.idle_s, key.freq) {
        (Some(idle_s), _) => Some((&b"IDLETIME"[..], idle_s.min(i64::MAX as u64))),
        (None, Some(freq)) => Some((&b"FREQ"[..], freq.into())),
        (None, None) => None,
    };
    let number = rank.map(|(_, number)| number.to_string()).unwrap_or_default();
    if let Some((name, _)) = rank {
        words.extend([name, number.as_bytes()]);
    }
    send(&words)
}

/// Receiver of commands.
pub trait CommandSink {
    type Error;

    /// Takes a command and the reply that it should get.
    ///
    /// # Errors
    /// The reason why no more commands are accepted.
    fn command(&mut self, words: &[&[u8]], expect: Expect) -> Result<(), Self::Error>;
}

/// Writer of the commands that build one value from its parts.
#[derive(Debug)]
pub struct LargeValue<'a, S> {
    sink: &'a mut S,
    key: &'a [u8],
    kind: Kind,
    /// Time before which expiring fields are left out.
    drop_before_ms: i64,
    /// Words of the next command, and their bytes.
    words: Vec<Vec<u8>>,
    bytes: usize,
    /// Number of elements in it, and in the commands before it.
    elements: usize,
    sent: u64,
    /// Fields in the next command, by their expiry.
    expiring: BTreeMap<u64, Vec<Vec<u8>>>,
    head: Option<StreamHead>,
}

impl<'a, S: CommandSink> LargeValue<'a, S> {
    /// Creates the writer of the value of a key. `drop_before_ms`: fields that expire before this
    /// time are left out.
    pub fn new(sink: &'a mut S, key: &'a [u8], kind: Kind, drop_before_ms: i64) -> Self {
        LargeValue {
            sink,
            key,
            kind,
            drop_before_ms,
            words: Vec::new(),
            bytes: 0,
            elements: 0,
            sent: 0,
            expiring: BTreeMap::new(),
            head: None,
        }
    }

    /// Sends a command on the key.
    fn send(&mut self, name: &[u8], words: &[&[u8]], expect: Expect) -> Result<(), S::Error> {
        let mut command = vec![name, self.key];
        command.extend(words);
        self.sink.command(&command, expect)
    }

    /// Adds a complete element to the next command.
    fn count_element(&mut self, words: impl IntoIterator<Item = Vec<u8>>) -> Result<(), S::Error> {
        for word in words {
            self.bytes += word.len();
            self.words.push(word);
        }
        self.elements += 1;
        if self.elements >= PIECE_ELEMENTS || self.bytes >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// Sends the complete elements.
    fn flush(&mut self) -> Result<(), S::Error> {
        let words = std::mem::take(&mut self.words);
        let elements = std::mem::take(&mut self.elements) as u64;
        self.bytes = 0;
        if elements == 0 {
            return Ok(());
        }
        self.sent += elements;
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let count = |count: u64| Expect::Integer(count.cast_signed());
        match self.kind {
            // RPUSH replies with the length, the others with the number of new elements.
            Kind::List => self.send(b"RPUSH", &words, count(self.sent)),
            Kind::Set(_) => self.send(b"SADD", &words, count(elements)),
            Kind::Zset(_) => self.send(b"ZADD", &words, count(elements)),
            Kind::Hash => {
                self.send(b"HSET", &words, count(elements))?;
                self.expire_fields()
            }
            Kind::String | Kind::Stream => Ok(()),
        }
    }

    fn expire_fields(&mut self) -> Result<(), S::Error> {
        for (expire_at_ms, names) in std::mem::take(&mut self.expiring) {
            let (at, count) = (expire_at_ms.to_string(), names.len().to_string());
            let mut words = vec![at.as_bytes(), b"FIELDS", count.as_bytes()];
            words.extend(names.iter().map(Vec::as_slice));
            self.send(b"HPEXPIREAT", &words, Expect::Any)?;
        }
        Ok(())
    }

    fn text(&mut self, text: &[u8]) -> Result<(), S::Error> {
        self.sent += text.len() as u64;
        self.send(b"APPEND", &[text], Expect::Integer(self.sent.cast_signed()))
    }

    fn node(&mut self, node: &StreamNode) -> Result<(), S::Error> {
        for (id, fields, is_deleted) in &node.entries {
            if *is_deleted {
                continue;
            }
            let id = format_id(*id);
            let mut words = vec![id.as_bytes()];
            for ((name, value), at) in fields.iter().zip(0..) {
                let name = name.as_ref().or(node.names.get(at));
                words.push(name.map_or(&b""[..], Vec::as_slice));
                words.push(value);
            }
            self.sent += 1;
            self.send(b"XADD", &words, Expect::Any)?;
        }
        Ok(())
    }

    fn head(&mut self, head: StreamHead) -> Result<(), S::Error> {
        self.head = Some(head);
        if self.sent == 0 {
            // There is no other way to create a stream without entries and groups.
            self.send(b"XADD", &[b"MAXLEN", b"0", b"0-1", b"x", b"y"], Expect::Any)?;
        }
        let last_id = format_id(head.last_id);
        let added = head.entries_added.to_string();
        let max_deleted_id = format_id(head.max_deleted_id);
        let words: [&[u8]; 5] = [
            last_id.as_bytes(),
            b"ENTRIESADDED",
            added.as_bytes(),
            b"MAXDELETEDID",
            max_deleted_id.as_bytes(),
        ];
        self.send(b"XSETID", &words, Expect::Any)
    }

    fn group(&mut self, group: &StreamGroup) -> Result<(), S::Error> {
        let last_id = format_id(group.last_id);
        let read = self.entries_read(group).map(|read| read.to_string());
        let mut command = vec![&b"XGROUP"[..], b"CREATE", self.key, &group.name];
        command.push(last_id.as_bytes());
        if let Some(read) = &read {
            command.extend([&b"ENTRIESREAD"[..], read.as_bytes()]);
        }
        self.sink.command(&command, Expect::Any)?;
        for consumer in &group.consumers {
            let command =
                [b"XGROUP", &b"CREATECONSUMER"[..], self.key, &group.name, &consumer.name];
            self.sink.command(&command, Expect::Integer(1))?;
        }
        for entry in &group.pending {
            let Some(consumer) = group.consumers.get(entry.consumer) else { continue };
            let (id, time) = (format_id(entry.id), entry.delivered_ms.to_string());
            let deliveries = entry.deliveries.to_string();
            let words: [&[u8]; 10] = [
                &group.name,
                &consumer.name,
                b"0",
                id.as_bytes(),
                b"TIME",
                time.as_bytes(),
                b"RETRYCOUNT",
                deliveries.as_bytes(),
                b"FORCE",
                b"JUSTID",
            ];
            self.send(b"XCLAIM", &words, Expect::Some)?;
        }
        Ok(())
    }

    /// Returns how many entries a group has read, if that is known; files of old versions do not
    /// have it.
    fn entries_read(&self, group: &StreamGroup) -> Option<i64> {
        match (group.entries_read, self.head) {
            (EntriesRead::Known(read), _) => Some(read),
            (EntriesRead::Missing, _) if group.last_id == (0, 0) => Some(0),
            (EntriesRead::Missing, Some(head)) if group.last_id >= head.last_id => {
                i64::try_from(head.entries_added).ok()
            }
            _ => None,
        }
    }

    /// Writes the commands for the remaining elements, and for the key's expiry.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn finish(&mut self, expire_at_ms: Option<i64>) -> Result<(), S::Error> {
        self.flush()?;
        if let Some(at_ms) = expire_at_ms {
            let at = at_ms.to_string();
            self.send(b"PEXPIREAT", &[at.as_bytes()], Expect::Any)?;
        }
        Ok(())
    }
}

impl<S: CommandSink> Sink for LargeValue<'_, S> {
    type Error = S::Error;

    fn part(&mut self, part: Part<'_>) -> Result<(), S::Error> {
        match part {
            Part::Text(text) => self.text(text),
            Part::Element(element) => self.count_element([element.into_owned()]),
            Part::Scored(member, score) => {
                let score = format_f64(score).as_bytes().to_vec();
                self.count_element([score, member.into_owned()])
            }
            Part::Field(name, value, expire_at_ms) => {
                if let Some(at_ms) = expire_at_ms {
                    if at_ms < self.drop_before_ms.unsigned_abs() {
                        return Ok(());
                    }
                    self.expiring.entry(at_ms).or_default().push(name.to_vec());
                }
                self.count_element([name.into_owned(), value.into_owned()])
            }
            Part::Node(node) => self.node(&node),
            Part::Head(head) => self.head(head),
            Part::Group(group) => self.group(&group),
        }
    }
}

fn format_id((ms, seq): EntryId) -> String {
    format!("{ms}-{seq}")
}
