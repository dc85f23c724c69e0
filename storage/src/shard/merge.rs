//! Merging the operations of a record into the pending rows and the counters of a shard.

use super::Cut;
use super::first_times::FirstTimes;
use super::unresolved::{BlindState, state_in};
use crate::control::Generations;
use crate::counters::Counters;
use crate::encoding::{Delta, Op, Row, SharedValue, row};
use crate::journal::Lsn;
use crate::pending::Pending;
use crate::presence::Presence;
use crate::resolved::Replaced;
use crate::value::{JournaledState, row_units};
use bytes::Bytes;

/// Returns the time of a row of the expiry index.
fn time_of(key: &[u8]) -> Option<u64> {
    let (kind, rest) = key.split_first()?;
    let at_ms = rest.first_chunk().filter(|_| *kind == row::TIME)?;
    Some(u64::from_be_bytes(*at_ms))
}

/// Bytes from which on a value stays in the buffer that it arrived in, if it may.
const KEPT: usize = 8 << 10;

/// Memory in which the values of some operations lie, and which rows may keep.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ValueMemory<'a> {
    /// The operations, if rows may keep their buffer.
    pub(super) buffer: Option<&'a Bytes>,
    /// Where the operations begin.
    pub(super) ops: &'a [u8],
    /// Values in memory of their own, in the order of the operations.
    pub(super) shared: &'a [SharedValue],
}

impl ValueMemory<'_> {
    /// Returns the value of the next put in the memory that its row keeps, if there is one.
    fn of(&mut self, value: &[u8]) -> Option<Bytes> {
        if let Some((next, rest)) = self.shared.split_first()
            && next.at == value.as_ptr().addr() - self.ops.as_ptr().addr()
        {
            self.shared = rest;
            return Some(next.value.clone());
        }
        self.buffer.filter(|_| value.len() >= KEPT).map(|buffer| buffer.slice_ref(value))
    }
}

/// Destination of a record's operations.
pub(super) struct MergeTarget<'a> {
    pub(super) lsn: Lsn,
    pub(super) blind: &'a mut BlindState,
    /// The maps before the one that takes the operations, newest first.
    pub(super) older: [Option<&'a Pending>; 2],
    /// False if a row in the maps is damaged.
    pub(super) is_whole: bool,
    pub(super) generations: &'a mut Generations,
    pub(super) counters: &'a mut Counters,
    pub(super) current: &'a mut Pending,
    pub(super) late: Option<&'a mut Cut>,
    /// True if a new row leaves no trace when it is deleted.
    pub(super) trusts_new: bool,
    pub(super) memory: ValueMemory<'a>,
    pub(super) presence: Option<&'a Presence>,
    pub(super) making: Option<&'a Presence>,
    pub(super) due_from_ms: &'a mut u64,
    pub(super) first_times: Option<&'a mut FirstTimes>,
}

impl MergeTarget<'_> {
    pub(super) fn pending(&mut self) -> &mut Pending {
        match &mut self.late {
            Some(cut) => &mut cut.pending,
            None => self.current,
        }
    }

    pub(super) fn apply(&mut self, op: Op<'_>) {
        match op {
            Op::Put { key, value, delta, new, blind } => {
                if blind {
                    self.look_back(key, Some(value));
                }
                self.count(key, delta, Some(value));
                if let Some(at_ms) = time_of(key) {
                    *self.due_from_ms = at_ms.min(*self.due_from_ms);
                    self.note_time(key, true);
                    if self.blind.has_times(self.lsn) {
                        return;
                    }
                }
                let new = new && self.trusts_new;
                let memory = self.memory.of(value);
                self.pending().set_in(key, Some(value), new, memory);
            }
            Op::Delete { key, delta, blind } => {
                if blind {
                    self.look_back(key, None);
                }
                self.count(key, delta, None);
                let is_time = time_of(key).is_some();
                if is_time {
                    self.note_time(key, false);
                }
                if !is_time || !self.blind.has_times(self.lsn) {
                    self.pending().set(key, None, false);
                }
            }
            Op::Generation { db, generation, dead } => {
                self.generations.set(db, generation, dead);
                if let Some(cut) = &mut self.late {
                    cut.generations.set(db, generation, dead);
                    cut.counters.drop_generation(dead);
                }
                self.counters.drop_generation(dead);
                self.pending().drop_generation(dead);
            }
            Op::Resize { generation, slot, units } => self.resize(generation, slot, units),
        }
    }

    /// Notes a change of the expiry index.
    fn note_time(&mut self, key: &[u8], put: bool) {
        if let Some(first) = &mut self.first_times {
            first.apply(key, put);
        }
    }

    /// Looks for the row that a blind operation replaces, before it is replaced.
    fn look_back(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.pending().note_blind();
        if !self.blind.next(self.lsn) {
            return;
        }
        let older = self.older.into_iter().flatten();
        let own = match &self.late {
            Some(cut) => &cut.pending,
            None => &*self.current,
        };
        let found = std::iter::once(own).chain(older).find_map(|map| map.meta_row(key));
        let states = match found {
            // The engine has the old row, if there is one.
            None => return self.pending().add_unresolved([key.into()]),
            Some(None) => return,
            Some(Some(old)) => {
                let new = value.map_or(Ok(JournaledState::default()), |new| state_in(key, new));
                state_in(key, old).and_then(|old| Ok((old, new?)))
            }
        };
        match states {
            Ok((old, new)) => {
                self.pending().correct_pending(key, &old, &new);
                let mut replaced = Replaced::default();
                replaced.add_row(key, &old);
                replaced.take_off(self.counters);
                if let Some(cut) = &mut self.late {
                    replaced.take_off(&mut cut.counters);
                }
            }
            Err(_) => self.is_whole = false,
        }
    }

    fn resize(&mut self, generation: u32, slot: u16, units: i64) {
        self.counters.resize(generation, slot, units);
        if let Some(cut) = &mut self.late {
            cut.counters.resize(generation, slot, units);
        }
    }

    /// Counts a change of keys. A key that is added has the size of its row.
    fn count(&mut self, key: &[u8], delta: Delta, value: Option<&[u8]>) {
        if delta == Delta::default() {
            return;
        }
        if let Some(Row::Meta { generation, slot, hash48, key }) = Row::parse(key) {
            if delta.keys > 0 {
                let filters = self.presence.into_iter().chain(self.making);
                filters.for_each(|filter| filter.insert(generation, hash48));
            }
            let row = value.filter(|_| delta.keys > 0);
            let units = row.map_or(0, |row| i64::from(row_units(key.len(), row)));
            self.counters.add(generation, slot, delta, units);
            if let Some(cut) = &mut self.late {
                cut.counters.add(generation, slot, delta, units);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::{OpReader, OpWriter};

    #[test]
    fn rows_get_the_memory_that_belongs_to_their_values() {
        let mut writer = OpWriter::default();
        let value = |n: usize| match n % 3 {
            0 => vec![n as u8; 2000],
            1 => vec![n as u8; 90],
            _ => vec![n as u8; 3 * KEPT],
        };
        let mut given = Vec::new();
        for n in 0..300 {
            match Bytes::from(value(n)) {
                shared if n % 3 == 0 => {
                    given.push(shared.as_ptr());
                    writer.put_shared(b"node", shared, false);
                }
                own => writer.put(b"other", &own, false),
            }
        }
        let (full, last) = writer.pieces();
        assert!(full.len() > 1);
        let pieces = full.iter().map(|piece| (&piece[..], Some(piece))).chain([(last, None)]);
        let (mut n, mut shared) = (0, Vec::new());
        for (piece, (ops, buffer)) in pieces.enumerate() {
            let mut memory = ValueMemory { buffer, ops, shared: writer.shared(piece) };
            for op in OpReader::new(ops) {
                let Op::Put { value: written, .. } = op else { continue };
                let held = memory.of(written);
                assert!(written == value(n) && held.as_ref().is_none_or(|held| held == written));
                match held {
                    Some(held) if n.is_multiple_of(3) => shared.push(held.as_ptr()),
                    Some(held) => assert!(n % 3 == 2 && held.as_ptr() == written.as_ptr()),
                    None => assert!(n % 3 == 1 || buffer.is_none()),
                }
                n += 1;
            }
        }
        assert_eq!((n, shared), (300, given));
        assert!(writer.recycled().is_some_and(|writer| writer.shared(0).is_empty()));
    }
}
