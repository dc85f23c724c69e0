//! One shard: its engine, and the maps of pending rows on their way there.
//!
//! Rows gather in the current map. When a hand-over is due the map is *cut* at an lsn and a new
//! one begins: what was committed up to the cut belongs to the old map, even if it arrives late
//! (a coordinator that was granted entries before the cut may apply its record after it). Once all
//! such grants have ended the map is handed over by [`crate::materialise`], and lives until its
//! rows are in the engine.

use crate::control::{Control, Generations};
use crate::counters::Counters;
use crate::encoding::{Delta, Library, Op, OpReader, OpWriter, Row, row};
use crate::engine::Engine;
use crate::journal::{Journal, Lsn};
use crate::pending::{Lookup, Pending, TOGETHER};
use crate::presence::Presence;
use crate::reopen::{Reopen, Reopened};
use crate::slot::KeyHash;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// A map that was cut off, with what the engine must know once it has its rows.
#[derive(Debug)]
pub struct Cut {
    pub pending: Pending,
    /// Every record of this shard up to here is in the engine or in `pending`.
    pub lsn: Lsn,
    /// None of the engine's rows is of a later record once it has those of `pending`.
    pub reaches: Lsn,
    pub epoch: u64,
    pub generations: Generations,
    pub counters: Counters,
}

/// A cut that late records may still belong to.
#[derive(Debug)]
struct Closing {
    cut: Cut,
    /// Holds up to this one may bring records of before the cut.
    until_hold: u64,
}

/// A map that the engine has.
#[derive(Debug)]
struct HandedOver {
    /// Every record up to here is in the engine.
    applied: Lsn,
    /// The engine's sequence number of the last batch.
    seq: u64,
    /// What a start replays as long as it is not flushed.
    ops: u64,
    at: Instant,
}

/// A filter of keys that does not have all of them yet.
#[derive(Debug)]
struct Making {
    presence: Arc<Presence>,
    /// Of what was merged up to here, only the engine can tell.
    since: Lsn,
    scanning: bool,
}

/// See the module's description.
pub struct Shard {
    pub id: u16,
    engine: Engine,
    epoch: u64,
    current: Pending,
    /// When the oldest row of `current` came.
    since: Option<Instant>,
    closing: Option<Closing>,
    handing: Option<Arc<Cut>>,
    generations: Generations,
    counters: Counters,
    /// Handed over and not known to be flushed.
    unflushed: VecDeque<HandedOver>,
    /// A record that could not be merged: what is in memory is not all that was committed.
    broken: Option<Lsn>,
    /// The engine is being opened again: what it has flushed is not known.
    reopening: bool,
    /// Greatest applied lsn that is flushed.
    flushed: Lsn,
    /// Greatest lsn that was merged, and that of the last cut that was handed over.
    merged: Lsn,
    handed: Lsn,
    /// All keys, once they are known.
    presence: Option<Arc<Presence>>,
    making: Option<Making>,
    /// Bytes that a filter of keys may take.
    presence_bytes: usize,
    /// No row of the expiry index is earlier, but for those that somebody is deleting.
    due_from_ms: u64,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard")
            .field("id", &self.id)
            .field("flushed", &self.flushed)
            .finish_non_exhaustive()
    }
}

impl Shard {
    /// A shard as its engine's control rows tell it. Its filter of keys takes `presence_bytes`.
    pub fn new(
        id: u16,
        engine: Engine,
        epoch: u64,
        control: Control,
        presence_bytes: usize,
    ) -> Self {
        let kept = control
            .complete
            .and_then(|_| Presence::from_pieces(&control.presence, presence_bytes).map(Arc::new));
        let mut shard = Self {
            id,
            engine,
            epoch,
            current: Pending::default(),
            since: None,
            closing: None,
            handing: None,
            generations: control.generations,
            counters: control.counters,
            unflushed: VecDeque::new(),
            broken: None,
            reopening: false,
            flushed: control.applied,
            merged: 0,
            handed: control.applied,
            presence: kept,
            making: None,
            presence_bytes,
            due_from_ms: 0,
        };
        shard.see_to_presence();
        shard
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub fn generations(&self) -> &Generations {
        &self.generations
    }

    /// Keys, and keys with an expiry, of a generation.
    pub fn totals(&self, generation: u32) -> (u64, u64) {
        self.counters.totals(generation)
    }

    /// Greatest lsn up to which everything is flushed in the engine.
    pub fn flushed(&self) -> Lsn {
        self.flushed
    }

    /// Bytes of pending rows in memory, about.
    pub fn pending_bytes(&self) -> usize {
        self.maps().map(Pending::bytes).sum()
    }

    /// Operations of records that a start would replay.
    pub fn unflushed_ops(&self) -> u64 {
        let handed = self.unflushed.iter().map(|handed| handed.ops).sum::<u64>();
        handed + self.maps().map(Pending::ops).sum::<u64>()
    }

    /// Pending rows that are not being handed over yet.
    pub fn pending_rows(&self) -> usize {
        self.current.rows()
    }

    // ---- merging -----------------------------------------------------------------------------

    /// Takes the rows of the journal record at `lsn` in.
    pub fn merge(&mut self, lsn: Lsn, ops: &[u8]) {
        if self.merge_rows(lsn, ops, None, true) != ops.len() {
            self.fail(lsn);
        }
    }

    /// The same for the operations of a round. Where they are many, rows share their memory.
    pub fn merge_sealed(&mut self, lsn: Lsn, ops: &OpWriter) {
        let (pieces, last) = ops.pieces();
        let is_whole = pieces
            .iter()
            .all(|piece| self.merge_rows(lsn, piece, Some(piece), true) == piece.len());
        if is_whole {
            self.merge(lsn, last);
        } else {
            self.fail(lsn);
        }
    }

    /// A record of the journal cannot be understood. Nothing is handed over any more, so that the
    /// journal keeps it, and a start that does not understand it either refuses.
    pub(crate) fn fail(&mut self, lsn: Lsn) {
        if self.broken.is_none() {
            tracing::error!(
                shard = self.id,
                lsn,
                "a record that was just written cannot be understood, which is a defect of this \
                program: its shard is out of order until a restart, and the journal keeps the record"
            );
            self.broken = Some(lsn);
        }
    }

    /// The record that could not be merged, if there is one.
    pub fn broken(&self) -> Option<Lsn> {
        self.broken
    }

    /// The same for some operations of a record that is read from the journal at the start: how many
    /// bytes of them were understood. Its rows, and those of records behind it, may be in the engine
    /// already: none counts as new.
    pub fn replay(&mut self, lsn: Lsn, ops: &[u8]) -> usize {
        self.merge_rows(lsn, ops, None, false)
    }

    /// Takes rows out that were replayed, so that the engine gets them before all is replayed. What
    /// it has then is not `applied`: a start begins where this one did.
    pub(crate) fn take_replayed(&mut self) -> Pending {
        // `since` stays: a hand-over is to follow, be it of counters only.
        std::mem::take(&mut self.current)
    }

    /// `memory`: what `ops` lies in, if rows may keep it.
    fn merge_rows(
        &mut self,
        lsn: Lsn,
        ops: &[u8],
        memory: Option<&Bytes>,
        trusts_new: bool,
    ) -> usize {
        self.merged = self.merged.max(lsn);
        let late = self.closing.as_mut().filter(|closing| lsn <= closing.cut.lsn);
        let late = late.map(|closing| &mut closing.cut);
        if late.is_none() && self.since.is_none() {
            self.since = Some(Instant::now());
        }
        let mut target = Target {
            generations: &mut self.generations,
            counters: &mut self.counters,
            current: &mut self.current,
            late,
            trusts_new,
            memory,
            presence: self.presence.as_deref(),
            making: self.making.as_ref().map(|making| &*making.presence),
            due_from_ms: &mut self.due_from_ms,
        };
        let mut reader = OpReader::new(ops);
        let mut touched = OpReader::new(ops);
        let mut count = 0;
        loop {
            // The rows of some operations, all together.
            target.pending().warm(touched.by_ref().take(TOGETHER).filter_map(|op| op.key()));
            let applied = reader.by_ref().take(TOGETHER).map(|op| target.apply(op)).count();
            count += applied;
            if applied == 0 {
                break;
            }
        }
        target.pending().reached(lsn, count);
        ops.len() - reader.left()
    }

    // ---- reading -----------------------------------------------------------------------------

    /// The maps, newest first.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &Pending> {
        let closing = self.closing.as_ref().map(|c| &c.cut.pending);
        let handing = self.handing.as_ref().map(|c| &c.pending);
        std::iter::once(&self.current).chain(closing).chain(handing)
    }

    /// The newest pending meta row of a key.
    pub fn pending_meta(&self, generation: u32, at: KeyHash, key: &[u8]) -> Lookup<'_> {
        self.maps().find_map(|map| map.meta(generation, at, key))
    }

    /// The newest pending row of an element.
    pub fn pending_element(&self, version: u64, element: &[u8]) -> Lookup<'_> {
        self.maps().find_map(|map| map.element(version, element))
    }

    /// What the pending rows make of the libraries of functions.
    pub fn apply_libraries(&self, libraries: &mut BTreeMap<Box<[u8]>, Library>) -> Option<()> {
        let maps: Vec<&Pending> = self.maps().collect();
        for (name, value) in maps.into_iter().rev().flat_map(Pending::libraries) {
            match value {
                Some(value) => libraries.insert(name.into(), Library::decode(name, value)?),
                None => libraries.remove(name),
            };
        }
        Some(())
    }

    // ---- handing over ------------------------------------------------------------------------

    /// The lsn up to which everything was handed over: the greatest there is if nothing is pending.
    pub fn handed(&self) -> Lsn {
        if self.has_pending() { self.handed } else { Lsn::MAX }
    }

    fn has_pending(&self) -> bool {
        self.since.is_some() || self.closing.is_some() || self.handing.is_some()
    }

    /// Age of the oldest row in the current map.
    pub fn age(&self) -> std::time::Duration {
        self.since.map_or_else(Default::default, |since| since.elapsed())
    }

    /// Whether a cut may be made: one hand-over at a time.
    pub fn can_cut(&self) -> bool {
        self.closing.is_none()
            && self.handing.is_none()
            && self.since.is_some()
            && self.broken.is_none()
    }

    /// Cuts the current map at `lsn`: everything of this shard up to there is merged, but for
    /// records of holds up to `until_hold`.
    pub fn cut(&mut self, lsn: Lsn, until_hold: u64) {
        let pending = std::mem::take(&mut self.current);
        self.since = None;
        let cut = Cut {
            pending,
            lsn,
            reaches: lsn,
            epoch: self.epoch,
            generations: self.generations.clone(),
            counters: self.counters.cut(),
        };
        self.closing = Some(Closing { cut, until_hold });
    }

    /// The cut to hand over, once no open hold can add to it: `oldest` is the oldest open one.
    pub fn take_cut(&mut self, oldest: Option<u64>) -> Option<Arc<Cut>> {
        let ready = |closing: &Closing| oldest.is_none_or(|hold| hold > closing.until_hold);
        if self.broken.is_some() || !self.closing.as_ref().is_some_and(ready) {
            return None;
        }
        let closing = self.closing.take()?;
        let cut = Arc::new(closing.cut);
        self.handing = Some(cut.clone());
        Some(cut)
    }

    /// The cut that is being handed over.
    pub fn handing(&self) -> Option<Arc<Cut>> {
        self.handing.clone()
    }

    /// The cut that was taken is in the engine, the last batch under `seq`. What was in memory
    /// comes back, to be dropped elsewhere.
    pub fn handed_over(&mut self, lsn: Lsn, seq: u64) -> Option<Arc<Cut>> {
        self.handed = lsn;
        let cut = self.handing.take();
        let ops = cut.as_ref().map_or(0, |cut| cut.pending.ops());
        self.unflushed.push_back(HandedOver { applied: lsn, seq, ops, at: Instant::now() });
        cut
    }

    /// Follows the engine's flushes; the new flushed lsn when it has grown.
    pub fn observe_flushed(&mut self) -> Option<Lsn> {
        if self.reopening {
            return None;
        }
        let durable = self.engine.durable();
        let before = self.flushed;
        while let Some(handed) = self.unflushed.pop_front_if(|handed| handed.seq <= durable) {
            self.flushed = handed.applied;
        }
        (self.flushed > before).then_some(self.flushed)
    }

    /// Age of the oldest hand-over that is not flushed.
    pub fn unflushed_age(&self) -> Option<std::time::Duration> {
        self.unflushed.front().map(|handed| handed.at.elapsed())
    }

    /// What it takes to open the engine again. Until [`reopened`](Self::reopened), or another try,
    /// nothing counts as flushed.
    pub(crate) fn reopen(&mut self, journal: Arc<dyn Journal>) -> Reopen {
        self.reopening = true;
        Reopen {
            shard: self.id,
            engine: self.engine.clone(),
            journal,
            flushed: self.flushed,
            handed: self.handed,
            epoch: self.epoch,
        }
    }

    /// The engine is open again.
    pub(crate) fn reopened(&mut self, reopened: Reopened) {
        self.reopening = false;
        self.flushed = self.flushed.max(reopened.flushed);
        self.unflushed.clear();
        if let Some((applied, seq)) = reopened.handed {
            let (ops, at) = (reopened.ops, Instant::now());
            self.unflushed.push_back(HandedOver { applied, seq, ops, at });
        }
        // What was swept may be there again.
        self.generations.dead.extend(reopened.generations.dead);
    }

    /// Rows of these generations are gone from the engine.
    pub fn swept(&mut self, generations: &[u32]) {
        for generation in generations {
            self.generations.dead.remove(generation);
        }
    }

    // ---- expiry --------------------------------------------------------------------------------

    /// Somebody is about to delete all that is due up to `until_ms`: where the index begins for them.
    /// What is put meanwhile is for the next one.
    pub(crate) fn begin_due(&mut self, until_ms: u64) -> u64 {
        let from_ms = self.due_from_ms;
        self.due_from_ms = from_ms.max(until_ms.saturating_add(1));
        from_ms
    }

    /// What is due from `from_ms` on may still be there.
    pub(crate) fn left_due(&mut self, from_ms: u64) {
        self.due_from_ms = from_ms.min(self.due_from_ms);
    }

    // ---- which keys there are ------------------------------------------------------------------

    /// The filter of all keys, once they are known.
    pub(crate) fn presence(&self) -> Option<&Arc<Presence>> {
        self.presence.as_ref()
    }

    /// Begins a filter of keys if there is none, or if most of what it holds is gone. Not if that
    /// means to read all of a bucket.
    fn see_to_presence(&mut self) {
        let keys = self.counters.keys();
        let outgrown = self.presence.as_ref().is_none_or(|presence| presence.is_outgrown(keys));
        if !outgrown || self.making.is_some() {
            return;
        }
        let presence = Arc::new(Presence::new(keys, self.presence_bytes));
        if keys == 0 {
            self.presence = Some(presence);
        } else if !self.engine.is_remote() {
            self.making = Some(Making { presence, since: self.merged, scanning: false });
        }
    }

    /// A filter that is to take in the keys of the engine, but for those of dead generations, if
    /// it is time: the engine has all that was merged before it began.
    pub fn begin_scan(&mut self) -> Option<(Arc<Presence>, BTreeSet<u32>)> {
        self.see_to_presence();
        let nothing_pending = !self.has_pending();
        let making = self.making.as_mut()?;
        if making.scanning || !(nothing_pending || self.handed >= making.since) {
            return None;
        }
        making.scanning = true;
        Some((making.presence.clone(), self.generations.dead.clone()))
    }

    /// The scan has ended; false: it failed, and is to be begun again.
    pub fn end_scan(&mut self, whole: bool) {
        if let Some(mut making) = self.making.take() {
            if whole {
                self.presence = Some(making.presence);
            } else {
                making.scanning = false;
                self.making = Some(making);
            }
        }
    }
}

/// The time of a row of the expiry index.
fn time_of(key: &[u8]) -> Option<u64> {
    let (kind, rest) = key.split_first()?;
    let at_ms = rest.first_chunk().filter(|_| *kind == row::TIME)?;
    Some(u64::from_be_bytes(*at_ms))
}

/// Where the operations of a record go.
struct Target<'a> {
    generations: &'a mut Generations,
    counters: &'a mut Counters,
    current: &'a mut Pending,
    late: Option<&'a mut Cut>,
    /// Rows that are new leave no trace when they are deleted.
    trusts_new: bool,
    /// What the operations lie in, if rows may keep it.
    memory: Option<&'a Bytes>,
    presence: Option<&'a Presence>,
    making: Option<&'a Presence>,
    due_from_ms: &'a mut u64,
}

impl Target<'_> {
    fn pending(&mut self) -> &mut Pending {
        match &mut self.late {
            Some(cut) => &mut cut.pending,
            None => self.current,
        }
    }

    fn apply(&mut self, op: Op<'_>) {
        match op {
            Op::Put { key, value, delta, new } => {
                self.count(key, delta);
                if let Some(at_ms) = time_of(key) {
                    *self.due_from_ms = at_ms.min(*self.due_from_ms);
                }
                let new = new && self.trusts_new;
                let memory = self.memory;
                self.pending().set_in(key, Some(value), new, memory);
            }
            Op::Delete { key, delta } => {
                self.count(key, delta);
                self.pending().set(key, None, false);
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
        }
    }

    fn count(&mut self, key: &[u8], delta: Delta) {
        if delta == Delta::default() {
            return;
        }
        if let Some(Row::Meta { generation, slot, hash48, .. }) = Row::parse(key) {
            if delta.keys > 0 {
                let filters = self.presence.into_iter().chain(self.making);
                filters.for_each(|filter| filter.insert(generation, hash48));
            }
            self.counters.add(generation, slot, delta);
            if let Some(cut) = &mut self.late {
                cut.counters.add(generation, slot, delta);
            }
        }
    }
}
