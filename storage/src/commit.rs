//! Sealing a round: its changed entries become the operations of a journal record.

use crate::encoding::{Delta, ElementRows, OpWriter, RowKey, SourcePosition};
use crate::slot::KeyHash;
use crate::store::big::measure;
use crate::store::{DirtyKey, Store, Versions};
use crate::value::string::CHUNK;
use crate::value::{Entry, JournaledState, Str, Value, encode_meta, row_units};
use std::collections::{BTreeMap, HashSet};

/// Bytes before a shard's operations in a record's body: its number and their length.
const HEAD: usize = 2 + 8;

/// A sealed round: the operations for the journal, and the keys that changed.
#[derive(Debug, Default)]
pub struct Sealed {
    /// The round's number.
    pub round: u64,
    /// Operations by shard.
    pub ops: BTreeMap<u16, OpWriter>,
    pub(crate) keys: Vec<DirtyKey>,
    /// Position in the stream of another server that the round has reached.
    pub source: Option<SourcePosition>,
    /// Words of the round for replicas; see `words.rs`.
    pub words: Vec<u8>,
}

impl Sealed {
    /// Returns true if no record is needed.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.words.is_empty()
    }

    /// Returns the shards with operations, ascending.
    pub fn shards(&self) -> Vec<u16> {
        self.ops.keys().copied().collect()
    }

    /// Returns the heads of the shards' parts of the record's body; see [`Sealed::parts`].
    pub(crate) fn heads(&self) -> Vec<[u8; HEAD]> {
        let head = |(shard, writer): (&u16, &OpWriter)| {
            let mut head = [0; HEAD];
            head[..2].copy_from_slice(&shard.to_be_bytes());
            head[2..].copy_from_slice(&(writer.len() as u64).to_be_bytes());
            head
        };
        self.ops.iter().map(head).collect()
    }

    /// Returns the parts of the record's body: for each shard its number (u16), the length (u64) of
    /// its operations, and the operations.
    pub(crate) fn parts<'a>(&'a self, heads: &'a [[u8; HEAD]]) -> Vec<&'a [u8]> {
        let mut parts = Vec::with_capacity(2 * heads.len());
        for (head, (pieces, last)) in heads.iter().zip(self.ops.values().map(OpWriter::pieces)) {
            parts.push(&head[..]);
            parts.extend(pieces.iter().map(|piece| &piece[..]));
            parts.push(last);
        }
        parts
    }

    /// Returns the body in one piece.
    pub fn body(&self) -> Vec<u8> {
        self.parts(&self.heads()).concat()
    }

    /// Returns the keys that changed.
    pub fn keys(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.keys.iter().map(|k| (k.db, &*k.key))
    }
}

/// Number of entries of a round that are brought into the processor's caches together: so it waits
/// for the memory of many at once.
const WARMED: usize = 16;

/// Splits a record's body into shards and their operations; `None` if it is damaged.
pub fn split_body(mut body: &[u8]) -> Option<Vec<(u16, &[u8])>> {
    let mut out = Vec::new();
    while !body.is_empty() {
        let (shard, rest) = body.split_first_chunk::<2>()?;
        let (len, rest) = rest.split_first_chunk::<8>()?;
        let len = usize::try_from(u64::from_be_bytes(*len)).ok()?;
        let (ops, rest) = rest.split_at_checked(len)?;
        out.push((u16::from_be_bytes(*shard), ops));
        body = rest;
    }
    Some(out)
}

/// Splits a record's body that arrives in pieces.
#[derive(Debug, Default)]
pub struct BodyReader {
    /// Bytes of an operation, or of a head, that is not complete yet.
    carried: Vec<u8>,
    /// The shard whose operations arrive, and how many bytes of them are left.
    shard: Option<(u16, usize)>,
}

impl BodyReader {
    /// Takes the next piece. `each` gets some operations of a shard and returns how many bytes it
    /// has decoded: the last operation may be incomplete. `None`: the body is damaged, or `each`
    /// returned `None`.
    pub fn take(
        &mut self,
        piece: &[u8],
        each: &mut dyn FnMut(u16, &[u8]) -> Option<usize>,
    ) -> Option<()> {
        let mut carried = std::mem::take(&mut self.carried);
        if carried.is_empty() {
            let used = self.read(piece, each)?;
            self.carried.extend_from_slice(&piece[used..]);
        } else {
            carried.extend_from_slice(piece);
            let used = self.read(&carried, each)?;
            carried.drain(..used);
            self.carried = carried;
        }
        Some(())
    }

    /// Returns how many of these bytes were decoded.
    fn read(
        &mut self,
        bytes: &[u8],
        each: &mut dyn FnMut(u16, &[u8]) -> Option<usize>,
    ) -> Option<usize> {
        let mut at = 0;
        loop {
            let rest = &bytes[at..];
            let Some((shard, left)) = self.shard else {
                let Some((head, _)) = rest.split_first_chunk::<HEAD>() else { return Some(at) };
                let (shard, len) = head.split_first_chunk::<2>()?;
                let len = u64::from_be_bytes(*len.first_chunk()?);
                let head = (u16::from_be_bytes(*shard), usize::try_from(len).ok()?);
                self.shard = (head.1 > 0).then_some(head);
                at += HEAD;
                continue;
            };
            let ops = &rest[..left.min(rest.len())];
            let used = if ops.is_empty() { 0 } else { each(shard, ops)? };
            if used == 0 {
                // All operations are there, but not even one is complete.
                return (ops.len() < left).then_some(at);
            }
            at += used;
            self.shard = (used < left).then(|| (shard, left - used));
        }
    }

    /// Returns true if the body may end here.
    pub fn is_done(&self) -> bool {
        self.carried.is_empty() && self.shard.is_none()
    }
}

impl Entry {
    /// Returns the state to store in the journal.
    pub(crate) fn state(&self) -> JournaledState {
        if !self.is_live() {
            return JournaledState::default();
        }
        let value = &self.value;
        JournaledState::new(self.expire_at_ms, value.version(), value.fields_expire_at_ms())
    }
}

impl Store {
    /// Seals the open round and opens the next. Its entries count as clean from then on: if the
    /// record cannot be appended, [`Store::unseal`] drops them.
    pub fn seal(&mut self) -> Sealed {
        let keys = std::mem::take(&mut self.dirty);
        let mut sealed = Sealed { round: self.round(), ..Sealed::default() };
        let versions = self.versions.clone();
        let layout = self.layout.clone();
        let moved = std::mem::take(&mut self.moved);
        let mut alive = HashSet::new();
        let mut spare = std::mem::take(&mut self.spare);
        for (n, key) in keys.iter().enumerate() {
            if n % WARMED == 0 {
                self.warm(keys[n..].iter().take(WARMED).map(|key| (key.db, key.at)));
            }
            let (generation, shard) = (self.generation(key.db), layout.shard_of(key.at.slot));
            let rows = self.attached().row_generation(generation, shard);
            let Some(entry) = self.get_mut(key.db, key.at, &key.key) else { continue };
            let ops = sealed.ops.entry(shard).or_insert_with(|| spare.pop().unwrap_or_default());
            seal_entry(entry, rows, key.at, ops, &versions, &|name| layout.hash(name));
            let live = entry.is_live();
            if !moved.is_empty() {
                alive.insert(entry.value.version());
            }
            let (counted, measured) = (entry.count(), measure(&entry.value));
            self.counted(key, counted);
            self.see_size(generation, key.at, &key.key, measured);
            if !live {
                self.add_tombstone(key.clone());
            }
        }
        // Keys that were deleted, or moved, before their database was emptied.
        for (generation, mut entry) in self.take_flushed() {
            if entry.dirty {
                let at = layout.key_hash(entry.key());
                let shard = layout.shard_of(at.slot);
                let rows = self.attached().row_generation(generation, shard);
                let ops = sealed.ops.entry(shard).or_default();
                entry.clear();
                seal_entry(&mut entry, rows, at, ops, &versions, &|name| layout.hash(name));
            }
        }
        for (slot, version) in moved.into_iter().filter(|(_, version)| !alive.contains(version)) {
            let ops = sealed.ops.entry(layout.shard_of(slot)).or_default();
            ops.put(&RowKey::dead(slot, version), b"", true);
        }
        self.spare = spare;
        sealed.ops.retain(|_, ops| !ops.is_empty());
        sealed.keys = keys;
        sealed.words = self.words.take();
        self.next_round();
        sealed
    }

    /// Adds the position in the stream of another server to the record of a sealed round. It is there by
    /// itself if nothing is left of the changes: they were made, and a server that has forgotten that
    /// could be taken to be behind one that has made only the first of them. A position is of its round
    /// alone: in a later one it would replace positions that were stored meanwhile.
    pub fn seal_source(&mut self, sealed: &mut Sealed) {
        let Some(source) = self.source.take() else { return };
        let changed = sealed.keys.first().map(|key| self.layout.shard_of(key.at.slot));
        let Some(shard) = sealed.ops.keys().next().copied().or(changed) else { return };
        let ops = sealed.ops.entry(shard).or_default();
        ops.put(&SourcePosition::row_key(), &source.encode(), false);
        sealed.source = Some(source);
    }

    /// Reuses the memory of a sealed round.
    pub fn recycle(&mut self, sealed: Sealed) {
        self.words.reuse(sealed.words);
        self.spare.extend(sealed.ops.into_values().filter_map(OpWriter::recycled));
        let mut keys = sealed.keys;
        keys.clear();
        if self.dirty.is_empty() && keys.capacity() > self.dirty.capacity() {
            self.dirty = keys;
        }
    }

    /// Drops the entries of a round whose record was not appended, so that the state on disk counts
    /// again.
    pub fn unseal(&mut self, sealed: &Sealed) {
        for key in &sealed.keys {
            self.forget(key.db, &key.key);
        }
    }
}

/// Writes the difference between an entry and its last journaled state.
fn seal_entry(
    entry: &mut Entry,
    generation: u32,
    at: KeyHash,
    ops: &mut OpWriter,
    versions: &Versions,
    hash_of: &dyn Fn(&[u8]) -> u64,
) {
    entry.dirty = false;
    entry.sealed = true;
    if entry.value.is_empty_collection() {
        entry.clear();
    }
    seal_elements(entry, at.slot, ops, versions, hash_of);
    let old = std::mem::take(&mut entry.stored);
    entry.stored = entry.state();
    let new = &entry.stored;
    if !old.live && !new.live && !old.unseen {
        return;
    }
    if old.version() != 0 && old.version() != new.version() {
        ops.put(&RowKey::dead(at.slot, old.version()), b"", true);
    }
    seal_times(&entry.key, generation, at.slot, &old, new, ops);
    let delta = Delta {
        keys: i8::from(new.live) - i8::from(old.live),
        expires: i8::from(new.expire_at_ms != 0) - i8::from(old.expire_at_ms != 0),
    };
    if new.live {
        let row = ops.put_built(
            delta,
            old.unseen,
            |key| RowKey::meta(key, generation, at, &entry.key),
            |row| encode_meta(row, entry),
        );
        let units = row_units(entry.key.len(), row);
        if old.live && units != old.units {
            ops.resize(generation, at.slot, i64::from(units) - i64::from(old.units));
        }
        entry.stored.units = units;
    } else {
        let mut key = Vec::with_capacity(13 + entry.key.len());
        RowKey::meta(&mut key, generation, at, &entry.key);
        match old.unseen {
            true => ops.delete_blindly(&key),
            false => {
                ops.delete(&key, delta);
                ops.resize(generation, at.slot, -i64::from(old.units));
            }
        }
    }
}

/// Updates the expiry index with the expiries of the key and its fields.
fn seal_times(
    key: &[u8],
    generation: u32,
    slot: u16,
    old: &JournaledState,
    new: &JournaledState,
    ops: &mut OpWriter,
) {
    for (before, after, fields) in [
        (old.expire_at_ms, new.expire_at_ms, false),
        (old.fields_expire_at_ms(), new.fields_expire_at_ms(), true),
    ] {
        if before == after {
            continue;
        }
        if before != 0 {
            ops.delete(&RowKey::time(before, slot, generation, fields, key), Delta::default());
        }
        if after != 0 {
            // A row that is not known may have the same time.
            ops.put(&RowKey::time(after, slot, generation, fields, key), b"", !old.unseen);
        }
    }
}

/// Writes the changed element rows; a value that has outgrown its meta row gets a version, one that
/// fits into it again loses its version.
fn seal_elements(
    entry: &mut Entry,
    slot: u16,
    ops: &mut OpWriter,
    versions: &Versions,
    hash_of: &dyn Fn(&[u8]) -> u64,
) {
    if let Value::Str(Str::Big(big)) = &mut entry.value {
        if big.version == 0 {
            big.version = versions.next();
        }
        let mut rows = ElementRows::new(ops, slot, big.version, hash_of);
        for n in std::mem::take(&mut big.dirty) {
            let chunk = big.chunks.get(&n).map_or(&[][..], |c| c);
            debug_assert!(chunk.len() <= CHUNK, "a chunk has outgrown its size");
            rows.put(&n.to_be_bytes(), chunk, false);
        }
    }
    let Some(collection) = entry.value.collection_mut() else { return };
    if collection.is_small_again() {
        collection.detach();
    }
    if collection.version() == 0 {
        collection.note_rewrite();
        if collection.is_too_big() {
            collection.unpack(versions.next());
        }
    }
    if collection.version() != 0 {
        collection.seal(&mut ElementRows::new(ops, slot, collection.version(), hash_of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::{Op, OpReader, Row};
    use crate::slot::Layout;
    use crate::value::Hash;
    use std::sync::Arc;

    fn store() -> Store {
        let layout = Arc::new(Layout::new(2, 1));
        Store::new(layout, Arc::new(Versions::new(1)), &[1, 2], false)
    }

    fn ops(sealed: &Sealed) -> Vec<(u16, String)> {
        let body = sealed.body();
        let mut out = Vec::new();
        for (shard, bytes) in split_body(&body).unwrap() {
            for op in OpReader::new(bytes) {
                let text = match op {
                    Op::Put { key, delta, .. } => {
                        format!("put {} {delta:?}", char::from(key[0]))
                    }
                    Op::Delete { key, delta, .. } => {
                        format!("del {} {delta:?}", char::from(key[0]))
                    }
                    Op::Generation { .. } => "generation".into(),
                    Op::Resize { .. } => continue,
                };
                out.push((shard, text));
            }
        }
        out
    }

    fn set(store: &mut Store, key: &[u8], value: &[u8]) {
        let mut entry = store.entry_mut(0, key).unwrap();
        entry.value = Value::Str(Str::new(value));
        entry.expire_at_ms = 0;
    }

    #[test]
    fn equal_rows_of_a_round_collapse() {
        let mut store = store();
        for n in 0..10 {
            set(&mut store, b"n", n.to_string().as_bytes());
        }
        let sealed = store.seal();
        assert_eq!(ops(&sealed).len(), 1);
        assert!(ops(&sealed)[0].1.starts_with("put M Delta { keys: 1"));
        set(&mut store, b"n", b"x");
        assert!(ops(&store.seal())[0].1.starts_with("put M Delta { keys: 0"));
        store.remove(0, b"n").unwrap();
        assert!(ops(&store.seal())[0].1.starts_with("del M Delta { keys: -1"));
    }

    #[test]
    fn born_and_gone_in_a_round_leaves_nothing() {
        let mut store = store();
        set(&mut store, b"n", b"1");
        store.remove(0, b"n").unwrap();
        assert!(store.seal().ops.is_empty());
    }

    #[test]
    fn a_replaced_big_value_leaves_a_dead_version() {
        let mut store = store();
        set(&mut store, b"n", &vec![1; 3 * CHUNK]);
        let first = ops(&store.seal());
        assert_eq!(first.iter().filter(|(_, o)| o.starts_with("put E")).count(), 3);
        set(&mut store, b"n", b"small");
        let second = ops(&store.seal());
        assert!(second.iter().any(|(_, o)| o.starts_with("put D")), "{second:?}");
    }

    #[test]
    fn an_expiry_moves_its_index_row() {
        let mut store = store();
        set(&mut store, b"n", b"1");
        store.entry_mut(0, b"n").unwrap().expire_at_ms = 500;
        assert_eq!(ops(&store.seal()).len(), 2);
        store.entry_mut(0, b"n").unwrap().expire_at_ms = 600;
        assert_eq!(ops(&store.seal()).len(), 3);
        store.begin(600, true);
        assert!(!store.exists(0, b"n").unwrap());
        let gone = ops(&store.seal());
        assert_eq!(gone.len(), 2);
        assert!(gone[1].1.contains("keys: -1, expires: -1"), "{gone:?}");
    }

    #[test]
    fn a_renamed_big_hash_keeps_its_rows_in_its_slot() {
        let mut store = store();
        let mut hash = Hash::new();
        for n in 0..600u32 {
            hash.set(&n.to_be_bytes(), b"v", 0);
        }
        store.entry_mut(0, b"{t}a").unwrap().value = Value::Hash(Box::new(hash));
        store.seal();
        store.rename((0, b"{t}a"), (0, b"{t}b")).unwrap();
        let same = ops(&store.seal());
        assert!(!same.iter().any(|(_, o)| o.starts_with("put D") || o.contains(" E ")), "{same:?}");
        store.rename((0, b"{t}b"), (0, b"other")).unwrap();
        let other = ops(&store.seal());
        assert!(other.iter().any(|(_, o)| o.starts_with("put D")));
        assert!(other.iter().any(|(_, o)| o.starts_with("put E")));
    }

    #[test]
    fn a_body_is_split_however_it_is_cut() {
        let mut sealed = Sealed::default();
        for shard in [0, 3] {
            for n in 0..40u32 {
                let value = vec![b'v'; (n * n) as usize];
                let ops = sealed.ops.entry(shard).or_default();
                ops.put(format!("k{shard}.{n}").as_bytes(), &value, false);
                ops.delete(b"gone", Delta { keys: -1, expires: 0 });
            }
        }
        sealed.ops.insert(7, OpWriter::default());
        let body = sealed.body();
        let all = |body: &[u8], size: usize| {
            let mut found = Vec::new();
            let mut reader = BodyReader::default();
            for piece in body.chunks(size) {
                reader.take(piece, &mut |shard, ops| {
                    let mut reader = OpReader::new(ops);
                    found.extend(reader.by_ref().map(|op| format!("{shard} {op:?}")));
                    Some(ops.len() - reader.left())
                })?;
            }
            reader.is_done().then_some(found)
        };
        let whole = all(&body, body.len()).unwrap();
        assert_eq!(whole.len(), 160);
        for size in [1, 2, 7, 100, 5000] {
            assert_eq!(all(&body, size).as_ref(), Some(&whole), "by {size} bytes");
        }
        assert_eq!(all(&body[..body.len() - 1], 100), None);
        // A length that ends within an operation.
        let mut damaged = body;
        damaged[9] -= 1;
        assert_eq!(all(&damaged, 100), None);
    }

    #[test]
    fn an_unsealed_round_is_forgotten() {
        let mut store = store();
        set(&mut store, b"n", b"1");
        let sealed = store.seal();
        store.unseal(&sealed);
        assert!(!store.is_hot(0, b"n"));
        assert!(matches!(
            Row::parse(&RowKey::dead(1, 1)),
            Some(Row::Dead { slot: 1, version: 1, .. })
        ));
    }
}
