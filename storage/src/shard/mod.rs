//! One shard: its engine, and the maps of pending rows on their way to it.
//!
//! Rows gather in the current map. When a hand-over is due the map is *cut* at an lsn and a new one
//! begins: records committed up to the cut belong to the old map, even if they arrive late (a
//! coordinator that was granted entries before the cut may apply its record after it). Once all
//! such grants have ended the map is handed over by [`crate::materialise`], and lives until its
//! rows are in the engine.

mod blind;
mod first_times;
mod merge;
mod mirrored;
mod reopening;
mod unresolved;
pub use reopening::{Reopen, Reopened};

use crate::control::{Control, Generations};
use crate::counters::Counters;
use crate::encoding::{Library, OpReader, OpWriter, SourcePosition};
use crate::engine::Engine;
use crate::journal::Lsn;
use crate::pending::{Lookup, Pending, TOGETHER};
use crate::presence::Presence;
use crate::slot::KeyHash;
use first_times::FirstTimes;
use merge::{MergeTarget, ValueMemory};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use unresolved::BlindState;
pub use unresolved::{OldRows, PassStates};

/// A map that was cut off, with the control data for the engine that takes it.
#[derive(Debug)]
pub struct Cut {
    pub pending: Pending,
    /// Every record of this shard up to this lsn is in the engine or in `pending`.
    pub lsn: Lsn,
    /// With the rows of `pending`, the engine has no row of a later record than this.
    pub reaches: Lsn,
    pub epoch: u64,
    pub generations: Generations,
    pub counters: Counters,
}

/// A cut to which late records may still be added.
#[derive(Debug)]
struct Closing {
    cut: Cut,
    /// Holds up to this one may bring records from before the cut.
    until_hold: u64,
}

/// A map that was handed over to the engine.
#[derive(Debug)]
struct HandedOver {
    /// Every record up to this lsn is in the engine.
    applied: Lsn,
    /// The engine's sequence number of the last batch.
    seq: u64,
    /// Number of operations that a start replays until they are flushed.
    ops: u64,
    at: Instant,
}

/// A filter of keys that is not complete yet.
#[derive(Debug)]
struct PartialPresence {
    presence: Arc<Presence>,
    /// Records up to this lsn are known to the engine only.
    since: Lsn,
    scanning: bool,
}

/// See the module's description.
pub struct Shard {
    pub id: u16,
    /// Number of its stay in a partition, which attaches it.
    pub(crate) stay: u64,
    /// True if another process owns it.
    is_mirrored: bool,
    engine: Engine,
    epoch: u64,
    current: Pending,
    /// Time at which the oldest row of `current` was merged.
    since: Option<Instant>,
    closing: Option<Closing>,
    handing: Option<Arc<Cut>>,
    generations: Generations,
    counters: Counters,
    /// Maps that were handed over and are not known to be flushed.
    unflushed: VecDeque<HandedOver>,
    /// The lsn of a record that could not be merged: the rows in memory are incomplete.
    broken: Option<Lsn>,
    /// True while the engine is being reopened: its flushed lsn is unknown.
    reopening: bool,
    /// Greatest applied lsn that is flushed.
    flushed: Lsn,
    /// Records up to this lsn may be in journals of other lives: until they are flushed, the own
    /// journal cannot give them to another engine.
    inherited: Lsn,
    /// Greatest lsn that was merged, and that of the last cut that was handed over.
    merged: Lsn,
    handed: Lsn,
    /// The filter of all keys, once it is complete.
    presence: Option<Arc<Presence>>,
    making: Option<PartialPresence>,
    /// Maximum size of a filter of keys in bytes.
    presence_bytes: usize,
    /// Lower bound of the times in the expiry index, except rows that a pass is deleting.
    due_from_ms: u64,
    /// The first rows of the expiry index, once they were asked for.
    pub(crate) first_times: Option<FirstTimes>,
    blind: BlindState,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard")
            .field("id", &self.id)
            .field("flushed", &self.flushed)
            .finish_non_exhaustive()
    }
}

/// Returns a stored filter of keys that takes at most `max_bytes`; if that is 0, it stays as it is. `None`: one
/// that fits is made from the rows, which are at hand on a disk.
fn fitting(kept: Presence, max_bytes: usize, is_remote: bool) -> Option<Presence> {
    match max_bytes == 0 || kept.is_within_bound() {
        true => Some(kept),
        false => is_remote.then(|| kept.shrunk()),
    }
}

impl Shard {
    /// Creates a shard from its engine's control rows. Its filter of keys takes at most
    /// `presence_bytes`; 0: a stored one is kept as it is.
    pub fn new(
        id: u16,
        engine: Engine,
        epoch: u64,
        control: Control,
        presence_bytes: usize,
    ) -> Self {
        let mut counters = control.counters;
        counters.keep_only(&control.generations.live);
        let kept = control
            .complete
            .and_then(|_| Presence::from_pieces(&control.presence, presence_bytes))
            .and_then(|kept| fitting(kept, presence_bytes, engine.is_remote()));
        let mut shard = Self {
            id,
            stay: 0,
            is_mirrored: false,
            engine,
            epoch,
            current: Pending::default(),
            since: None,
            closing: None,
            handing: None,
            generations: control.generations,
            counters,
            unflushed: VecDeque::new(),
            broken: None,
            reopening: false,
            flushed: control.applied,
            inherited: 0,
            merged: 0,
            handed: control.applied,
            presence: kept.map(Arc::new),
            making: None,
            presence_bytes,
            due_from_ms: 0,
            first_times: None,
            blind: BlindState::new(control.resolved, control.applied),
        };
        shard.refresh_presence();
        shard
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    pub fn generations(&self) -> &Generations {
        &self.generations
    }

    /// Returns the number of keys of a generation in a slot.
    pub(crate) fn slot_keys(&self, generation: u32, slot: u16) -> u32 {
        self.counters.of(generation, slot).0
    }

    /// Returns the number of keys, and of keys with an expiry, of a generation.
    pub fn totals(&self, generation: u32) -> (u64, u64) {
        self.counters.totals(generation)
    }

    /// Returns false if a shard that is new has no keys of a generation. If others have had it, their journals may
    /// have been given up, and the counters be too low.
    pub(crate) fn may_have_keys(&self, generation: u32) -> bool {
        self.inherited > 0 || self.flushed > 0 || self.totals(generation).0 > 0
    }

    /// Returns the number of keys, and of keys with an expiry, of all generations.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.counters.all()
    }

    /// Returns the size of all keys, in units of [`SIZE_UNIT`](crate::value::SIZE_UNIT).
    pub fn units(&self) -> u64 {
        self.counters.units()
    }

    /// Returns the greatest lsn up to which everything is flushed in the engine.
    pub fn flushed(&self) -> Lsn {
        self.flushed
    }

    /// Returns the approximate memory use of pending rows in bytes.
    pub fn pending_bytes(&self) -> usize {
        self.maps().map(Pending::bytes).sum()
    }

    /// Returns the number of operations that a start would replay.
    pub fn unflushed_ops(&self) -> u64 {
        if self.is_mirrored {
            return 0;
        }
        let handed = self.unflushed.iter().map(|handed| handed.ops).sum::<u64>();
        handed + self.maps().map(Pending::ops).sum::<u64>()
    }

    /// Returns the number of pending rows that are not being handed over yet.
    pub fn pending_rows(&self) -> usize {
        self.current.rows()
    }

    /// Notes that records up to an lsn were merged from the journals of other lives.
    pub(crate) fn inherit(&mut self, up_to: Lsn) {
        self.inherited = up_to;
    }

    // ---- merging -----------------------------------------------------------------------------

    /// Merges the rows of the journal record at `lsn`.
    pub fn merge(&mut self, lsn: Lsn, ops: &[u8]) {
        if self.merge_rows(lsn, ops, ValueMemory::default(), true) != ops.len() {
            self.fail(lsn);
        }
    }

    /// Like [`merge`](Self::merge), for the operations of a round. If they are large, rows share
    /// their memory.
    pub fn merge_sealed(&mut self, lsn: Lsn, ops: &OpWriter) {
        let (full, last) = ops.pieces();
        let pieces = full.iter().map(|piece| (&piece[..], Some(piece))).chain([(last, None)]);
        let is_whole = pieces.enumerate().all(|(n, (piece, buffer))| {
            let memory = ValueMemory { buffer, ops: piece, shared: ops.shared(n) };
            self.merge_rows(lsn, piece, memory, true) == piece.len()
        });
        if !is_whole {
            self.fail(lsn);
        }
    }

    /// Notes that a journal record cannot be decoded. No hand-over follows, so that the journal
    /// keeps the record, and a start that cannot decode it either refuses.
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

    /// Returns the record that could not be merged, if there is one.
    pub fn broken(&self) -> Option<Lsn> {
        self.broken
    }

    /// Like [`merge`](Self::merge), for some operations of a record that is replayed at the start.
    /// Returns how many of their bytes were decoded. Its rows, and those of later records, may be
    /// in the engine already: none counts as new.
    pub fn replay(&mut self, lsn: Lsn, ops: &[u8]) -> usize {
        self.merge_rows(lsn, ops, ValueMemory::default(), false)
    }

    /// Merges operations.
    fn merge_rows(
        &mut self,
        lsn: Lsn,
        ops: &[u8],
        memory: ValueMemory<'_>,
        trusts_new: bool,
    ) -> usize {
        self.merged = self.merged.max(lsn);
        let is_late = self.closing.as_ref().is_some_and(|closing| lsn <= closing.cut.lsn);
        let (late, closing) = match &mut self.closing {
            Some(closing) if is_late => (Some(&mut closing.cut), None),
            closing => (None, closing.as_ref().map(|closing| &closing.cut.pending)),
        };
        if !is_late && self.since.is_none() {
            self.since = Some(Instant::now());
        }
        self.blind.count(lsn, &mut self.counters);
        let mut target = MergeTarget {
            lsn,
            blind: &mut self.blind,
            older: [closing, self.handing.as_ref().map(|cut| &cut.pending)],
            is_whole: true,
            generations: &mut self.generations,
            counters: &mut self.counters,
            current: &mut self.current,
            late,
            trusts_new,
            memory,
            presence: self.presence.as_deref(),
            making: self.making.as_ref().map(|making| &*making.presence),
            due_from_ms: &mut self.due_from_ms,
            first_times: self.first_times.as_mut(),
        };
        let mut reader = OpReader::new(ops);
        let mut touched = OpReader::new(ops);
        let mut count = 0;
        loop {
            // Prefetches the rows of some operations together.
            target.pending().warm(touched.by_ref().take(TOGETHER).filter_map(|op| op.key()));
            let applied = reader.by_ref().take(TOGETHER).map(|op| target.apply(op)).count();
            count += applied;
            if applied == 0 {
                break;
            }
        }
        target.pending().note_record(lsn, count);
        if target.is_whole { ops.len() - reader.left() } else { 0 }
    }

    // ---- reading -----------------------------------------------------------------------------

    /// Returns the maps, newest first.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &Pending> {
        let closing = self.closing.as_ref().map(|c| &c.cut.pending);
        let handing = self.handing.as_ref().map(|c| &c.pending);
        std::iter::once(&self.current).chain(closing).chain(handing)
    }

    /// Returns the newest pending meta row of a key.
    pub fn pending_meta(&self, generation: u32, at: KeyHash, key: &[u8]) -> Lookup<'_> {
        self.maps().find_map(|map| map.meta(generation, at, key))
    }

    /// Returns the newest pending row of an element.
    pub fn pending_element(&self, version: u64, element: &[u8]) -> Lookup<'_> {
        self.maps().find_map(|map| map.element(version, element))
    }

    /// Applies pending changes to the libraries of functions; `None` if one is damaged.
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

    /// Applies the pending position in the stream of another server; `None` if it is damaged.
    pub fn apply_source(&self, source: &mut SourcePosition) -> Option<()> {
        if let Some(row) = self.maps().find_map(Pending::source) {
            *source = std::mem::take(source).later(Some(SourcePosition::decode(row)?));
        }
        Some(())
    }

    // ---- handing over ------------------------------------------------------------------------

    /// Returns the lsn up to which everything was handed over: the greatest there is if nothing is
    /// pending.
    pub fn handed(&self) -> Lsn {
        if self.has_pending() { self.handed } else { Lsn::MAX }
    }

    /// Returns true if there are rows that are to be handed over.
    fn has_pending(&self) -> bool {
        let has_some = self.since.is_some() || self.closing.is_some() || self.handing.is_some();
        has_some && !self.is_mirrored
    }

    /// Returns the age of the oldest row in the current map.
    pub fn age(&self) -> std::time::Duration {
        self.since.map_or_else(Default::default, |since| since.elapsed())
    }

    /// Returns true if a cut may be made: one hand-over at a time.
    pub fn can_cut(&self) -> bool {
        self.closing.is_none()
            && self.handing.is_none()
            && self.has_pending()
            && self.broken.is_none()
    }

    /// Cuts the current map at `lsn`: everything of this shard up to there is merged, except
    /// records of holds up to `until_hold`.
    pub fn cut(&mut self, lsn: Lsn, until_hold: u64) {
        let pending = std::mem::take(&mut self.current);
        self.since = None;
        self.blind.count(lsn.saturating_add(1), &mut self.counters);
        let cut = Cut {
            pending,
            lsn,
            reaches: lsn,
            epoch: self.epoch,
            generations: self.generations.clone(),
            counters: self.counters.cut(),
        };
        self.closing = Some(Closing { cut, until_hold });
        self.blind.cut();
    }

    /// Returns the cut to hand over, once no open hold can add to it. `oldest`: the oldest open
    /// hold.
    pub fn take_cut(&mut self, oldest: Option<u64>) -> Option<Arc<Cut>> {
        let ready = |closing: &Closing| oldest.is_none_or(|hold| hold > closing.until_hold);
        let is_broken = self.broken.is_some() || !self.is_closing_resolved();
        if is_broken || !self.closing.as_ref().is_some_and(ready) {
            return None;
        }
        let mut cut = self.closing.take()?.cut;
        self.note_resolved(cut.lsn, true, &mut cut.pending);
        let cut = Arc::new(cut);
        self.handing = Some(cut.clone());
        Some(cut)
    }

    /// Returns the cut that is being handed over.
    pub fn handing(&self) -> Option<Arc<Cut>> {
        self.handing.clone()
    }

    /// Notes that the cut is in the engine, its last batch under `seq`. Returns the cut, to be
    /// dropped elsewhere.
    pub fn handed_over(&mut self, lsn: Lsn, seq: u64) -> Option<Arc<Cut>> {
        debug_assert!(self.handing.as_ref().is_none_or(|cut| cut.lsn == lsn), "of another cut");
        self.handed = lsn;
        self.blind.applied(lsn);
        let cut = self.handing.take();
        let ops = cut.as_ref().map_or(0, |cut| cut.pending.ops());
        self.unflushed.push_back(HandedOver { applied: lsn, seq, ops, at: Instant::now() });
        cut
    }

    /// Updates the flushed lsn from the engine, and returns it if it has grown.
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

    /// Returns the age of the oldest hand-over that is not flushed.
    pub fn unflushed_age(&self) -> Option<std::time::Duration> {
        self.unflushed.front().map(|handed| handed.at.elapsed())
    }

    /// Notes that the rows of these generations are gone from the engine.
    pub fn swept(&mut self, generations: &[u32]) {
        for generation in generations {
            self.generations.dead.remove(generation);
        }
    }

    // ---- moving --------------------------------------------------------------------------------

    /// Returns the greatest lsn that was merged.
    pub(crate) fn merged(&self) -> Lsn {
        self.merged
    }

    /// Returns true while its engine is being opened again.
    pub(crate) fn is_reopening(&self) -> bool {
        self.reopening
    }

    /// Ends what its worker has begun in the background, whose results will not come back: passes
    /// over blind operations and over the expiry index, and reads for the filter of keys.
    pub(crate) fn rest(&mut self) {
        self.abort_pass();
        self.end_scan(false);
        self.due_from_ms = 0;
        self.first_times = None;
    }

    /// Returns true if the engine has stored everything.
    pub fn is_flushed(&self) -> bool {
        let is_empty = self.pending_rows() == 0 && self.closing.is_none() && self.handing.is_none();
        is_empty && self.unflushed.is_empty() && self.unflushed_ops() == 0 && !self.reopening
    }

    /// Keeps some of the slots: the others are in another shard from now on. Everything must be flushed.
    pub(crate) fn narrow(&mut self, slots: &Range<u16>) {
        self.rest();
        self.engine.narrow(slots.clone());
        self.counters.keep_slots(slots);
    }

    // ---- expiry --------------------------------------------------------------------------------

    /// Begins a pass that deletes the rows due up to `until_ms`, and returns a lower bound of the
    /// times in the index. Rows that are put meanwhile are left to the next pass.
    pub(crate) fn begin_due(&mut self, until_ms: u64) -> u64 {
        let from_ms = self.due_from_ms;
        self.due_from_ms = from_ms.max(until_ms.saturating_add(1));
        from_ms
    }

    /// Ends a pass that did not finish: rows due from `from_ms` on may still be in the index.
    pub(crate) fn abort_due(&mut self, from_ms: u64) {
        self.due_from_ms = from_ms.min(self.due_from_ms);
    }

    // ---- which keys there are ------------------------------------------------------------------

    /// Returns the filter of all keys, once they are known.
    pub(crate) fn presence(&self) -> Option<&Arc<Presence>> {
        self.presence.as_ref()
    }

    /// Begins a new filter of keys if there is none, or if most of its keys are gone; not if that
    /// means to read a whole bucket.
    fn refresh_presence(&mut self) {
        let keys = self.counters.keys();
        let outgrown = self.presence.as_ref().is_none_or(|presence| presence.is_outgrown(keys));
        if !outgrown || self.making.is_some() {
            return;
        }
        let presence = Arc::new(Presence::new(keys, self.presence_bytes));
        if keys == 0 {
            self.presence = Some(presence);
        } else if !self.engine.is_remote() {
            self.making = Some(PartialPresence { presence, since: self.merged, scanning: false });
        }
    }

    /// Begins the scan for a new filter if it is due, that is, if the engine has all rows merged
    /// before the filter began. Returns the filter, and the dead generations, whose keys it must
    /// skip.
    pub fn begin_scan(&mut self) -> Option<(Arc<Presence>, BTreeSet<u32>)> {
        self.refresh_presence();
        let nothing_pending = !self.has_pending();
        let making = self.making.as_mut()?;
        if making.scanning || !(nothing_pending || self.handed >= making.since) {
            return None;
        }
        making.scanning = true;
        Some((making.presence.clone(), self.generations.dead.clone()))
    }

    /// Ends the scan; if `whole` is false it failed, and must be begun again.
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
