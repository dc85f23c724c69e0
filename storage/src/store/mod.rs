//! The hot tier of one worker: the decoded values of its keys, and their changes that are not in
//! the journal yet.
//!
//! Commands are synchronous functions over a `Store`. They report data that is not in memory as
//! [`Fault::Miss`]; the caller loads it and runs the command again from its start, so a command
//! must ask for all it needs before it changes anything.
//!
//! Changes gather in *rounds*: [`Store::seal`](crate::commit) turns the entries that became dirty
//! into the body of one journal record. Rounds count up per store; an entry carries the round of
//! its last write, and a reply waits for the greatest round it has seen.
//!
//! Rounds have odd numbers. The even number below a round is closed together with it, but cannot
//! fail: it marks data that the journal has already, such as entries that a coordinator returns.
//! Only staged entries carry the number of the round itself, and they are forgotten if its record
//! cannot be appended. So only readers of the open round can hold the number of a round that fails.

pub(crate) mod big;
mod blind;
mod copies;
mod databases;
mod entry_mut;
mod fields;
mod lending;
mod own;
mod read;
mod rounds;
mod sample;
pub(crate) mod scope;
mod stats;
mod tables;
mod unit;
mod versions;
mod warm;

use crate::attached::AttachedShards;
use crate::encoding::SourcePosition;
pub use crate::need::{Fault, Need, OrLoad, Part};
use crate::notes::{NoteKind, Notes};
use crate::notify::NotifyFlags;
use crate::presence::Presence;
use crate::slot::{KeyHash, Layout, NotOwned};
use crate::value::{AccessCounting, Entry, Hash, KeyBuf, Str, Typed, Value};
use crate::words::{RemovalCause, RoundWords};
pub use big::{BigKey, MAX_BIG};
pub use entry_mut::EntryMut;
pub use own::RemovedEntries;
pub use sample::{Evictable, Rank, SampledKey};
pub use scope::Scope;
pub use stats::StoreStats;
use std::collections::VecDeque;
use std::sync::Arc;
use tables::Db;
pub use versions::Versions;

/// A key that changed in the open round.
#[derive(Clone, Debug)]
pub(crate) struct DirtyKey {
    pub(crate) db: u32,
    pub(crate) at: KeyHash,
    pub(crate) key: KeyBuf,
}

/// Number of the first round. The number below it marks entries that coordinators store before that
/// round is closed, so it is not 0: replies do not wait for 0.
const FIRST_ROUND: u64 = 3;

/// See the module's description.
#[derive(Debug)]
pub struct Store {
    pub(crate) layout: Arc<Layout>,
    pub(crate) versions: Arc<Versions>,
    pub(crate) dbs: Vec<Db>,
    pub(crate) dirty: Vec<DirtyKey>,
    /// Versions whose element rows changed hands in the open round, with their slot.
    pub(crate) moved: Vec<(u16, u64)>,
    /// In a workspace, the entries of emptied databases, by the databases' generations.
    pub(crate) flushed: Vec<(u32, Entry)>,
    /// Writers of earlier rounds, for reuse.
    pub(crate) spare: Vec<crate::encoding::OpWriter>,
    /// Keys that became absent, with their rounds, in the order of rounds. Their entries are
    /// removed once the round is durable.
    tombstones: VecDeque<(u64, DirtyKey)>,
    round: u64,
    /// Greatest round whose writes were shown by entries that were dropped.
    forgotten: u64,
    /// Round with which whole databases were emptied or exchanged, until it is durable: every command
    /// shows that. 0: none.
    arranged: u64,
    seen: u64,
    now_ms: u64,
    /// Time by which keys have expired.
    due_ms: u64,
    /// True if the command is one of a primary's stream.
    obeys: bool,
    touch: bool,
    /// How accesses are counted; `None`: they are not.
    counting: Option<AccessCounting>,
    /// True if expired keys are hidden but deleted only by a command that writes them.
    keeps_expired: bool,
    /// Address, length and hash of a key; the address is only compared.
    hint: Option<(usize, usize, KeyHash)>,
    /// Keys that the command may ask for.
    pub(crate) scope: Scope,
    unit: unit::Unit,
    copies: copies::Copies,
    own: own::OwnShards,
    attached: Arc<AttachedShards>,
    /// Filter of the keys on disk, by shard, where it is known.
    presence: Vec<Option<Arc<Presence>>>,
    /// Number of keys that may be replaced unseen from now on.
    may_replace: usize,
    pub(crate) memory: usize,
    pub(crate) hand: (usize, usize, usize),
    /// Keys whose values may be dropped from memory in part.
    pub(crate) large: VecDeque<DirtyKey>,
    /// The biggest keys.
    big: big::BigKeys,
    pub stats: StoreStats,
    /// Keys that the open round has evicted: they count once it is stored.
    pub(crate) evictions: u64,
    pub notes: Notes,
    /// Position in the stream of another server, to be stored with the changes of the round.
    pub(crate) source: Option<SourcePosition>,
    /// Words of the open round for replicas.
    pub words: RoundWords,
}

impl Store {
    /// Creates a store of `generations.len()` databases. `partial`: there may be keys on disk
    /// already.
    pub fn new(
        layout: Arc<Layout>,
        versions: Arc<Versions>,
        generations: &[u32],
        partial: bool,
    ) -> Self {
        let attached = Arc::new(AttachedShards::default());
        Self::sharing((layout, versions, attached), generations, partial)
    }

    /// Like [`new`](Self::new), with the table of the process's shards.
    pub(crate) fn sharing(
        (layout, versions, attached): (Arc<Layout>, Arc<Versions>, Arc<AttachedShards>),
        generations: &[u32],
        partial: bool,
    ) -> Self {
        Self {
            layout,
            versions,
            dbs: generations.iter().map(|&g| Db::new(g, partial)).collect(),
            dirty: Vec::new(),
            moved: Vec::new(),
            flushed: Vec::new(),
            spare: Vec::new(),
            tombstones: VecDeque::new(),
            round: FIRST_ROUND,
            forgotten: 0,
            arranged: 0,
            seen: 0,
            now_ms: 0,
            due_ms: 0,
            obeys: false,
            touch: true,
            counting: None,
            keeps_expired: false,
            hint: None,
            scope: Scope::All,
            unit: unit::Unit::default(),
            copies: copies::Copies::default(),
            own: own::OwnShards::Any,
            attached,
            presence: Vec::new(),
            may_replace: 0,
            memory: 0,
            hand: (0, 0, 0),
            large: VecDeque::new(),
            big: big::BigKeys::default(),
            stats: StoreStats::default(),
            evictions: 0,
            notes: Notes::default(),
            source: None,
            words: RoundWords::default(),
        }
    }

    /// Creates a store for one multi-shard command: it knows only the entries it is lent. The
    /// generations of the databases are those of a lender.
    pub fn workspace(&self, generations: &[u32]) -> Self {
        let shared = (self.layout.clone(), self.versions.clone(), self.attached.clone());
        let mut space = Self::sharing(shared, &[], true);
        space.dbs = generations.iter().map(|&g| Db::small(g, true)).collect();
        space
    }

    // ---- per command -------------------------------------------------------------------------

    /// Begins a command at a time; `touch`: it counts as an access (CLIENT NO-TOUCH).
    #[inline]
    pub fn begin(&mut self, now_ms: u64, touch: bool) {
        self.now_ms = now_ms;
        self.due_ms = now_ms;
        self.obeys = false;
        self.touch = touch;
        self.keeps_expired = false;
        self.seen = self.arranged;
        self.hint = None;
        self.scope = Scope::All;
    }

    /// Makes this command delete no expired key unless it writes that key.
    pub fn keep_expired(&mut self) {
        self.keeps_expired = true;
    }

    /// Makes this command see expired keys as any others.
    pub fn see_expired(&mut self) {
        self.due_ms = 0;
    }

    /// Makes this command one of a primary's stream, whose limits hold.
    pub fn obey(&mut self) {
        self.obeys = true;
    }

    /// Returns true if the command is one of a primary's stream.
    pub fn obeys(&self) -> bool {
        self.obeys
    }

    /// Returns true if expired keys and fields are hidden, but not deleted.
    pub fn keeps_expired(&self) -> bool {
        self.keeps_expired
    }

    /// Passes on the hash of a key that this command will ask for, as the router computed it. The key
    /// is known by its address, so the hash has to be forgotten before other bytes can be there.
    pub fn hint(&mut self, key: &[u8], at: KeyHash) {
        self.hint = Some((key.as_ptr().addr(), key.len(), at));
    }

    /// Forgets the hash, at the end of each command.
    #[inline]
    pub fn forget_hint(&mut self) {
        self.hint = None;
    }

    /// Returns the greatest round that the command has read from or written in: its reply shows it.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Marks the reply as showing the open round.
    pub fn see_open_round(&mut self) {
        self.seen = self.round;
    }

    /// Returns the time of the command, in ms since the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Returns the time by which keys have expired for the command, in ms since the Unix epoch: 0 if
    /// it sees expired keys.
    pub fn due_ms(&self) -> u64 {
        self.due_ms
    }

    /// Returns the number of databases.
    pub fn databases(&self) -> u32 {
        self.dbs.len() as u32
    }

    /// Returns true if the store never held anything.
    pub fn is_untouched(&self) -> bool {
        self.dbs.iter().all(|db| db.tables.is_empty())
    }

    /// Returns the layout of slots and the seed of hashes.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    pub(crate) fn at(&self, key: &[u8]) -> KeyHash {
        match self.hint {
            Some((ptr, len, at)) if ptr == key.as_ptr().addr() && len == key.len() => at,
            _ => self.layout.key_hash(key),
        }
    }

    // ---- reading -----------------------------------------------------------------------------

    /// Returns a key for reading; `None` when it does not exist. Counts as a keyspace hit or miss.
    pub fn entry(&mut self, db: u32, key: &[u8]) -> Result<Option<&Entry>, Fault> {
        let found = self.find_for_read(db, key)?;
        let live = found.as_ref().is_some_and(|f| f.entry(self).is_live());
        if live {
            self.stats.hits += 1;
        } else {
            self.stats.misses += 1;
            self.notes.event(db, key, NotifyFlags::KEY_MISS, "keymiss");
        }
        Ok(found.filter(|_| live).map(|f| f.entry(self)))
    }

    /// Like [`entry`](Self::entry), but counts no hit or miss and leaves the access time alone
    /// (OBJECT, TYPE, TTL).
    pub fn peek(&mut self, db: u32, key: &[u8]) -> Result<Option<&Entry>, Fault> {
        let touch = std::mem::replace(&mut self.touch, false);
        let found = self.find_for_read(db, key);
        self.touch = touch;
        Ok(found?.map(|f| f.entry(self)).filter(|e| e.is_live()))
    }

    /// Returns a value of one type for reading.
    pub fn typed<T: Typed>(&mut self, db: u32, key: &[u8]) -> Result<Option<&T>, Fault> {
        match self.entry(db, key)? {
            None => Ok(None),
            Some(entry) => T::of(&entry.value).map(Some).ok_or(Fault::WrongType),
        }
    }

    /// Returns a string for reading.
    pub fn string(&mut self, db: u32, key: &[u8]) -> Result<Option<&Str>, Fault> {
        self.typed(db, key)
    }

    /// Returns a hash for reading.
    pub fn hash(&mut self, db: u32, key: &[u8]) -> Result<Option<&Hash>, Fault> {
        self.typed(db, key)
    }

    // ---- writing -----------------------------------------------------------------------------

    /// Returns a key for writing, whether it exists or not. The first mutable access marks it
    /// dirty. The caller sets [`Entry::value`] and `expire_at_ms`, or deletes the key with
    /// [`Entry::clear`].
    #[inline]
    pub fn entry_mut(&mut self, db: u32, key: &[u8]) -> Result<EntryMut<'_>, Fault> {
        let found = match self.find(db, key)? {
            Some(found) => found,
            None => self.insert_absent(db, key),
        };
        self.change(found)
    }

    /// Returns a string for writing: `None` when the key does not exist.
    pub fn string_mut(&mut self, db: u32, key: &[u8]) -> Result<Option<EntryMut<'_>>, Fault> {
        let entry = self.entry_mut(db, key)?;
        match entry.value {
            Value::Absent => Ok(None),
            Value::Str(_) => Ok(Some(entry)),
            _ => Err(Fault::WrongType),
        }
    }

    /// Returns a value of one type for writing: `None` when the key does not exist.
    pub fn typed_mut<T: Typed>(
        &mut self,
        db: u32,
        key: &[u8],
    ) -> Result<Option<EntryMut<'_>>, Fault> {
        let Some(found) = self.find(db, key)? else { return Ok(None) };
        let entry = found.entry(self);
        if !entry.is_live() {
            return Ok(None);
        }
        if T::of(&entry.value).is_none() {
            return Err(Fault::WrongType);
        }
        self.change(found).map(Some)
    }

    /// Returns a hash for writing: `None` when the key does not exist.
    pub fn hash_mut(&mut self, db: u32, key: &[u8]) -> Result<Option<EntryMut<'_>>, Fault> {
        self.typed_mut::<Hash>(db, key)
    }

    /// Deletes a key and returns true if it existed.
    pub fn remove(&mut self, db: u32, key: &[u8]) -> Result<bool, Fault> {
        // A key that was absent needs no tombstone.
        let Some(found) = self.find(db, key)?.filter(|found| found.entry(self).is_live()) else {
            return Ok(false);
        };
        self.change(found)?.clear();
        Ok(true)
    }

    /// Moves a live key with its expiry over another one (RENAME, MOVE). Between slots the element
    /// rows are written anew, so all of a big value must be in memory.
    pub fn rename(
        &mut self,
        (from_db, from): (u32, &[u8]),
        (to_db, to): (u32, &[u8]),
    ) -> Result<(), Fault> {
        let slot = self.at(from).slot;
        let same_slot = slot == self.at(to).slot;
        self.entry_mut(to_db, to)?;
        let mut source = self.entry_mut(from_db, from)?;
        if !same_slot {
            source.value.require_whole().or_load(from_db, from)?;
        }
        let expire_at_ms = std::mem::take(&mut source.expire_at_ms);
        let mut value = std::mem::take(&mut source.value);
        let version = value.version();
        // The element rows stay where they are: another key has their version now, so it is not
        // dead.
        if same_slot && source.stored.version() == version {
            source.stored.give_elements_away();
        }
        if !same_slot {
            value.detach();
        }
        if version != 0 {
            // A version that no key holds at the end of the round is dead all the same.
            self.moved.push((slot, version));
        }
        self.note_rename((from_db, from), (to_db, to), value.require_whole().is_err());
        let mut target = self.entry_mut(to_db, to)?;
        target.value = value;
        target.expire_at_ms = expire_at_ms;
        Ok(())
    }

    // ---- finding -----------------------------------------------------------------------------

    /// Finds a key for reading.
    fn find_for_read(&mut self, db: u32, key: &[u8]) -> Result<Option<EntryAddress>, Fault> {
        self.find_key(db, key, !self.keeps_expired)
    }

    /// Finds a key, deleting it if it has expired. `None`: the key is known not to exist.
    fn find(&mut self, db: u32, key: &[u8]) -> Result<Option<EntryAddress>, Fault> {
        self.find_key(db, key, true)
    }

    /// Finds a key. An expired key is deleted, or only hidden if `deletes` is false.
    fn find_key(
        &mut self,
        db: u32,
        key: &[u8],
        deletes: bool,
    ) -> Result<Option<EntryAddress>, Fault> {
        let at = self.at(key);
        if !self.allows(db, at, key) {
            return Err(Fault::Miss(Box::new(Need { db, key: key.into(), part: None })));
        }
        let (now_ms, due_ms) = (self.now_ms, self.due_ms);
        let table = self.dbs[db as usize].table(at.slot);
        let Some(position) = table.entries.find(at.hash, key) else {
            let may_exist = table.may_exist(key);
            if self.lacks(at.slot) {
                return Err(Fault::NotOwned(NotOwned { slot: at.slot }));
            }
            if !may_exist {
                return Ok(None);
            }
            if self.may_be_stored(db, at) {
                return Err(Fault::Miss(Box::new(Need { db, key: key.into(), part: None })));
            }
            // The reply depends on dropped entries, as if this key had been loaded.
            self.seen = self.seen.max(self.forgotten);
            return Ok(None);
        };
        let Some(entry) = table.entries.at_mut(position) else { return Ok(None) };
        if self.touch {
            // A key that does not exist has no accesses: they begin with the next one of its name.
            if let Some(counting) = self.counting.filter(|_| entry.is_live()) {
                entry.count_access(now_ms, counting);
            }
            entry.accessed_s = (now_ms / 1000) as u32;
            entry.freq = entry.freq.saturating_add(u8::from(entry.freq < 5));
        }
        self.seen = self.seen.max(entry.round);
        let found = EntryAddress { db, at, position };
        if entry.has_expired(due_ms) && entry.is_live() {
            if !deletes {
                return Ok(None);
            }
            let mut entry = self.change(found)?;
            entry.note_change(NoteKind::Expired);
            entry.clear();
            entry.event(NotifyFlags::EXPIRED, "expired");
            self.stats.expired += 1;
            self.words.removal(db, key, RemovalCause::Expired);
            self.words.excuse();
        }
        Ok(Some(found))
    }

    fn insert_absent(&mut self, db: u32, key: &[u8]) -> EntryAddress {
        let at = self.at(key);
        let table = self.dbs[db as usize].table(at.slot);
        let mut entry = Entry::absent(key, at.hash);
        entry.accessed_s = (self.now_ms / 1000) as u32;
        let position = table.insert(entry);
        EntryAddress { db, at, position }
    }

    /// Returns true if the key's entry is in memory (or known to be absent, as in a database that
    /// does not exist). No key of a shard that is not attached is.
    pub fn is_hot(&mut self, db: u32, key: &[u8]) -> bool {
        let at = self.at(key);
        let Some(of_db) = self.dbs.get_mut(db as usize) else { return true };
        let table = of_db.table(at.slot);
        if table.get(at.hash, key).is_some() {
            return true;
        }
        let may_exist = table.may_exist(key);
        !self.lacks(at.slot) && (!may_exist || !self.may_be_stored(db, at))
    }

    /// Returns true if the journal or the engine may have a key that is not in memory.
    fn may_be_stored(&self, db: u32, at: KeyHash) -> bool {
        let shard = self.layout.shard_of(at.slot);
        let presence = self.presence.get(usize::from(shard)).and_then(Option::as_ref);
        presence
            .is_none_or(|presence| presence.may_hold(self.row_generation(db, shard), at.hash48()))
    }

    /// Returns the round of a key's last write, if its entry is in memory.
    pub fn round_of(&mut self, db: u32, key: &[u8]) -> Option<u64> {
        let at = self.layout.key_hash(key);
        self.get_mut(db, at, key).map(|entry| entry.round)
    }

    /// Returns the greatest round that a reply shows which shows a key or its absence.
    pub fn round_shown(&mut self, db: u32, key: &[u8]) -> u64 {
        self.round_of(db, key).unwrap_or(self.forgotten).max(self.arranged)
    }

    pub(crate) fn get_mut(&mut self, db: u32, at: KeyHash, key: &[u8]) -> Option<&mut Entry> {
        let db = self.dbs.get_mut(db as usize)?;
        let entries = &mut db.table(at.slot).entries;
        entries.at_mut(entries.find(at.hash, key)?)
    }

    // ---- loading -----------------------------------------------------------------

    /// Returns true if a part that was missed is in memory by now.
    pub fn has_part(&mut self, need: &Need) -> bool {
        let Need { db, key, part: Some(part) } = need else { return false };
        let at = self.at(key);
        let entry = self.get_mut(*db, at, key);
        entry.and_then(|entry| entry.value.collection()).is_some_and(|value| value.has(part))
    }

    /// Inserts an entry read from disk for a key that is not in memory.
    pub fn apply_loaded(&mut self, db: u32, mut entry: Entry) {
        let at = self.layout.key_hash(&entry.key);
        entry.hash = at.hash;
        entry.round = self.forgotten;
        entry.accessed_s = (self.now_ms / 1000) as u32;
        entry.counted = entry.memory();
        let generation = self.generation(db);
        self.see_size(generation, at, &entry.key, big::measure(&entry.value));
        let table = self.dbs[db as usize].table(at.slot);
        table.note_known(&entry.key);
        if table.get(at.hash, &entry.key).is_none() {
            self.stats.loaded += 1;
            self.memory += entry.counted;
            table.insert(entry);
        }
    }

    /// Returns the entry of a key whose part was loaded.
    pub fn entry_for_part(&mut self, db: u32, key: &[u8]) -> Option<&mut Entry> {
        let at = self.layout.key_hash(key);
        self.get_mut(db, at, key)
    }
}

/// Address of an entry; valid until the table changes.
#[derive(Clone, Copy)]
struct EntryAddress {
    db: u32,
    at: KeyHash,
    position: usize,
}

impl EntryAddress {
    #[allow(clippy::expect_used, reason = "a position stays while the table is not changed")]
    fn entry(self, store: &Store) -> &Entry {
        let db = &store.dbs[self.db as usize];
        db.tables[db.table_of(self.at.slot)].entries.at(self.position).expect("found a moment ago")
    }

    #[allow(clippy::expect_used, reason = "a position stays while the table is not changed")]
    fn entry_mut(self, dbs: &mut [Db]) -> &mut Entry {
        dbs[self.db as usize]
            .table(self.at.slot)
            .entries
            .at_mut(self.position)
            .expect("found a moment ago")
    }
}
