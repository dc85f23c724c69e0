//! Control rows: a shard's progress, generations and counters, stored in its engine.
//!
//! ```text
//! C reaches         lsn u64                      written with the first batch of a hand-over
//! C applied         lsn u64 | epoch u64          with the last
//! C resolved        of blind operations, see `resolved.rs`      before the meta rows of a hand-over
//! C complete        lsn u64 | epoch u64          while the shard is closed with all applied
//! C identity        id u128 | shard u16 | shards u16 | hash of the seed u64     at the first start
//! C slots           first u16 | last u16         while the shard has other slots than at its creation
//! C division        slots and places of all shards, see `division.rs`     in shard 0 in a bucket, once one was split
//! C generations     next u32 | n | n × u32 | dead | dead × u32      (varints)
//! C garbage         bytes u64                    with every batch that deletes rows
//! C p | layer u8 | piece u16 → of the filter of keys, see `presence.rs`    while it is complete
//! C f name          a library of functions       by commits; see `encoding/library.rs`
//! C s               a position in the stream of another server      by commits; see `encoding/source.rs`
//! C n | generation u32 | block u16 → 64 × (keys, expires) | guessed | 64 × size     (varints)
//! ```

use crate::counters::Counters;
use crate::division::Division;
use crate::encoding::{Library, Row, SourcePosition, get_varint, put_varint, row};
use crate::journal::Lsn;
use crate::resolved::Resolved;
use crate::slot::Layout;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64;

const REACHES: &[u8] = b"reaches";
const APPLIED: &[u8] = b"applied";
const RESOLVED: &[u8] = b"resolved";
const COMPLETE: &[u8] = b"complete";
const IDENTITY: &[u8] = b"identity";
const SLOTS: &[u8] = b"slots";
const DIVISION: &[u8] = b"division";
const GENERATIONS: &[u8] = b"generations";
const GARBAGE: &[u8] = b"garbage";
const COUNTERS: u8 = b'n';
const PRESENCE: u8 = b'p';

/// A piece of a filter: layer, piece, value.
///
/// ```text
/// version u8 | layers u8 | capacity | keys | words of the layer (varints) | words, little-endian
/// ```
pub(crate) type FilterPiece = (u8, u16, Vec<u8>);

/// The generation of each database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generations {
    /// A number greater than any generation ever used.
    pub next: u32,
    /// The generation of each database.
    pub live: Vec<u32>,
    /// Generations of flushed databases whose rows are not swept yet.
    pub dead: BTreeSet<u32>,
}

impl Generations {
    /// Sets the generation of a database, and notes `dead` for the sweep, unless it is 0.
    pub fn set(&mut self, db: u32, generation: u32, dead: u32) {
        let db = db as usize;
        if self.live.len() <= db {
            self.live.resize(db + 1, 0);
        }
        self.live[db] = generation;
        self.next = self.next.max(generation.saturating_add(1));
        if dead != 0 {
            self.dead.insert(dead);
        }
    }

    /// Returns the database that has a generation; a dead one has none.
    pub(crate) fn db_of(&self, generation: u32) -> Option<u32> {
        let db = self.live.iter().position(|&live| live == generation)?;
        u32::try_from(db).ok()
    }

    /// Returns the databases below `databases` that have no generation yet, with a new one for
    /// each. These count once the journal has them: another start must find the same ones.
    pub fn missing(&self, databases: u32) -> Vec<(u32, u32)> {
        (self.live.len() as u32..databases).zip(self.next.max(1)..).collect()
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, u64::from(self.next));
        put_varint(&mut out, self.live.len() as u64);
        self.live.iter().for_each(|g| put_varint(&mut out, u64::from(*g)));
        put_varint(&mut out, self.dead.len() as u64);
        self.dead.iter().for_each(|g| put_varint(&mut out, u64::from(*g)));
        out
    }

    /// Reads the control row; `None` if it is damaged.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let input = &mut bytes;
        let mut number = || u32::try_from(get_varint(input)?).ok();
        let next = number()?;
        let live = (0..number()?).map(|_| number()).collect::<Option<_>>()?;
        let dead = (0..number()?).map(|_| number()).collect::<Option<_>>()?;
        Some(Self { next, live, dead })
    }
}

/// A shard's identity: the data directory that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Id of the directory.
    pub id: u128,
    pub shard: u16,
    /// Number of shards of the directory.
    pub shards: u16,
    /// XXH3-64 of the seed of the key hashes in its rows.
    pub seed_hash: u64,
}

impl Identity {
    pub(crate) fn new(id: u128, shard: u16, layout: &Layout) -> Self {
        let seed_hash = xxh3_64(&layout.seed.to_be_bytes());
        Self { id, shard, shards: layout.shards(), seed_hash }
    }

    /// Returns the row that stores it.
    pub(crate) fn row(&self) -> (Bytes, Option<Bytes>) {
        let mut value = self.id.to_be_bytes().to_vec();
        value.extend(self.shard.to_be_bytes());
        value.extend(self.shards.to_be_bytes());
        value.extend(self.seed_hash.to_be_bytes());
        (key(IDENTITY), Some(value.into()))
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let (id, rest) = value.split_first_chunk()?;
        let (shard, rest) = rest.split_first_chunk()?;
        let (shards, rest) = rest.split_first_chunk()?;
        Some(Self {
            id: u128::from_be_bytes(*id),
            shard: u16::from_be_bytes(*shard),
            shards: u16::from_be_bytes(*shards),
            seed_hash: u64::from_be_bytes(rest.try_into().ok()?),
        })
    }
}

/// The decoded control rows of an engine.
#[derive(Debug, Default)]
pub struct Control {
    pub reaches: Lsn,
    pub applied: Lsn,
    /// The blind operations that are resolved, if a hand-over was cut off.
    pub resolved: Option<Resolved>,
    /// The journal's end at which the shard was closed with everything applied.
    pub complete: Option<Lsn>,
    /// The journal's epoch at that time; 0 if an earlier version has closed it.
    pub closed_in: u64,
    pub identity: Option<Identity>,
    /// The slots whose rows count; `None`: all.
    pub(crate) slots: Option<Range<u16>>,
    /// The shards of the directory, if this is the first one, in a bucket, and one was split.
    pub(crate) division: Option<Division>,
    /// The greatest journal epoch in which rows were written here.
    pub epoch: u64,
    pub generations: Generations,
    pub counters: Counters,
    /// The filter of keys, if the shard is `complete`.
    pub presence: Vec<FilterPiece>,
    pub libraries: BTreeMap<Box<[u8]>, Library>,
    /// The last position in the stream of another server that was stored here.
    pub source: Option<SourcePosition>,
}

fn key(name: &[u8]) -> Bytes {
    [&[row::CONTROL], name].concat().into()
}

/// Returns the row that says which slots' rows count, or its delete.
pub(crate) fn slots_row(slots: Option<&Range<u16>>) -> (Bytes, Option<Bytes>) {
    let value = slots.map(|slots| {
        let last = slots.end.saturating_sub(1);
        [slots.start.to_be_bytes(), last.to_be_bytes()].concat().into()
    });
    (key(SLOTS), value)
}

/// Returns the row that has the shards of a directory in a bucket.
pub(crate) fn division_row(division: &Division) -> (Bytes, Option<Bytes>) {
    (key(DIVISION), Some(division.encode().into()))
}

/// Returns the row for the first batch of a hand-over.
pub fn reaches_row(lsn: Lsn) -> (Bytes, Option<Bytes>) {
    (key(REACHES), Some(Bytes::copy_from_slice(&lsn.to_be_bytes())))
}

/// Returns the row for a hand-over of blind operations.
pub(crate) fn resolved_row(resolved: &Resolved) -> (Bytes, Bytes) {
    (key(RESOLVED), resolved.encode().into())
}

/// Returns the delete of that row, for the last batch.
pub(crate) fn no_resolved_row() -> (Bytes, Option<Bytes>) {
    (key(RESOLVED), None)
}

/// Returns the row that marks the shard as complete without the journal, up to the journal's end in
/// an epoch.
pub fn complete_row(lsn: Lsn, epoch: u64) -> (Bytes, Option<Bytes>) {
    (key(COMPLETE), Some([lsn.to_be_bytes(), epoch.to_be_bytes()].concat().into()))
}

/// Returns the delete of that row.
pub(crate) fn incomplete_row() -> (Bytes, Option<Bytes>) {
    (key(COMPLETE), None)
}

/// Returns the deletes of the rows that count only until the next record: that the shard is complete, and its filter
/// of keys.
pub(crate) fn unclosed(control: &Control) -> impl Iterator<Item = (Bytes, Option<Bytes>)> + '_ {
    let pieces = control.presence.iter();
    let pieces = pieces.map(|(layer, piece, _)| (presence_key(*layer, *piece), None));
    pieces.chain(control.complete.map(|_| incomplete_row()))
}

/// Returns the key of the row of a piece of the filter of keys.
pub(crate) fn presence_key(layer: u8, piece: u16) -> Bytes {
    let [high, low] = piece.to_be_bytes();
    Bytes::copy_from_slice(&[row::CONTROL, PRESENCE, layer, high, low])
}

/// Returns the rows for the last batch of a hand-over.
pub fn applied_rows(
    lsn: Lsn,
    epoch: u64,
    generations: &Generations,
    counters: &Counters,
) -> Vec<(Bytes, Option<Bytes>)> {
    let applied = [lsn.to_be_bytes(), epoch.to_be_bytes()].concat();
    let mut rows = vec![
        (key(APPLIED), Some(applied.into())),
        (key(GENERATIONS), Some(generations.encode().into())),
    ];
    for (generation, block, value) in counters.dirty_rows() {
        rows.push((counter_key(generation, block), Some(value.into())));
    }
    rows
}

/// Returns the key of the row of a shard's generations.
pub(crate) fn generations_key() -> Bytes {
    key(GENERATIONS)
}

/// Returns the key of the row that counts the bytes deleted since the shard was created.
pub(crate) fn garbage_key() -> Bytes {
    key(GARBAGE)
}

/// Returns the value of that row.
pub(crate) fn garbage_value(bytes: u64) -> Bytes {
    Bytes::copy_from_slice(&bytes.to_be_bytes())
}

/// Decodes that row; `None` if it is damaged.
pub(crate) fn garbage_bytes(value: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(value.try_into().ok()?))
}

fn counter_key(generation: u32, block: u16) -> Bytes {
    [&[row::CONTROL, COUNTERS][..], &generation.to_be_bytes(), &block.to_be_bytes()].concat().into()
}

/// Returns the common beginning of the keys of a generation's counter rows.
pub fn counter_prefix(generation: u32) -> Vec<u8> {
    [&[row::CONTROL, COUNTERS][..], &generation.to_be_bytes()].concat()
}

impl Control {
    /// Decodes the control rows, or returns the name of a damaged one.
    pub fn read(rows: &[(Bytes, Bytes)]) -> Result<Self, String> {
        let mut control = Self::default();
        for (key, value) in rows {
            let applied = match Row::parse(key) {
                Some(Row::Library { name }) => control.apply_library(name, value),
                Some(Row::Source) => {
                    control.source = SourcePosition::decode(value);
                    control.source.as_ref().map(|_| ())
                }
                Some(Row::Control { name }) => control.apply_row(name, value),
                _ => None,
            };
            applied.ok_or_else(|| {
                format!("the control row {:?} is damaged", String::from_utf8_lossy(&key[1..]))
            })?;
        }
        Ok(control)
    }

    fn apply_library(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        self.libraries.insert(name.into(), Library::decode(name, value)?);
        Some(())
    }

    fn apply_row(&mut self, name: &[u8], value: &[u8]) -> Option<()> {
        let be_u64 = |bytes: &[u8]| Some(u64::from_be_bytes(bytes.try_into().ok()?));
        match name {
            REACHES => self.reaches = be_u64(value)?,
            COMPLETE => {
                self.complete = Some(be_u64(value.get(..8)?)?);
                self.closed_in =
                    value.get(8..).filter(|v| !v.is_empty()).map_or(Some(0), be_u64)?;
            }
            RESOLVED => self.resolved = Some(Resolved::decode(value)?),
            SLOTS => {
                let (first, last) = value.split_first_chunk()?;
                let last = u16::from_be_bytes(last.try_into().ok()?);
                self.slots = Some(u16::from_be_bytes(*first)..last.checked_add(1)?);
            }
            DIVISION => self.division = Some(Division::decode(value)?),
            IDENTITY => self.identity = Some(Identity::decode(value)?),
            APPLIED => {
                self.applied = be_u64(value.get(..8)?)?;
                self.epoch = be_u64(value.get(8..)?)?;
            }
            [PRESENCE, layer, piece @ ..] if piece.len() == 2 => {
                let piece = u16::from_be_bytes(piece.try_into().ok()?);
                self.presence.push((*layer, piece, value.to_vec()));
            }
            GENERATIONS => self.generations = Generations::decode(value)?,
            [COUNTERS, rest @ ..] if rest.len() == 6 => {
                let generation = u32::from_be_bytes(rest[..4].try_into().ok()?);
                let block = u16::from_be_bytes(rest[4..].try_into().ok()?);
                self.counters.apply_row(generation, block, value)?;
            }
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::Delta;

    #[test]
    fn control_rows_roundtrip() {
        let mut generations = Generations::default();
        for (db, generation) in generations.missing(3) {
            generations.set(db, generation, 0);
        }
        generations.set(1, 9, 2);
        let mut counters = Counters::default();
        counters.add(9, 77, Delta { keys: 1, expires: 0 }, 3);
        let mut rows = applied_rows(5, 2, &generations, &counters);
        rows.push(reaches_row(6));
        rows.push(slots_row(Some(&(7..9))));
        let rows: Vec<_> = rows.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
        let control = Control::read(&rows).unwrap();
        assert_eq!((control.applied, control.reaches, control.epoch), (5, 6, 2));
        assert_eq!(control.slots, Some(7..9));
        assert_eq!(control.generations.live, [1, 9, 3]);
        assert_eq!(control.generations.missing(5), [(3, 10), (4, 11)]);
        assert_eq!(control.generations.missing(2), []);
        assert_eq!(control.counters.totals(9), (1, 0));
        assert!(control.generations.dead.contains(&2));
    }
}
