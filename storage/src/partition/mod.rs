//! The shards of one worker: their hot tier, and the rounds on their way to the journal.

mod attach;
mod detached;
mod following;
#[cfg(test)]
mod tests;

use crate::commit::{Sealed, split_body};
use crate::encoding::{Delta, Library, SourcePosition};
use crate::engine::Engine;
use crate::feed::Feed;
use crate::journal::{Journal, JournalError, Lsn};
use crate::need::PointReads;
use crate::presence::Presence;
use crate::shard::{Cut, OldRows, PassStates, Reopen, Reopened, Shard};
use crate::slot::Layout;
use crate::store::{DirtyKey, Store, Versions};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use attach::{RefusedShard, ShardRefusal, Stay};
pub use detached::DetachedShard;

/// The shard that stores the libraries of functions.
pub const LIBRARIES_SHARD: u16 = 0;

/// A round whose record could not be appended; no reply may show it.
#[derive(Debug)]
pub struct FailedRound {
    pub error: JournalError,
    /// Number of keys that it had evicted, which are there again.
    pub evictions: u64,
    keys: Vec<DirtyKey>,
}

impl FailedRound {
    /// Returns the keys that the round had changed, which have reverted.
    pub fn keys(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.keys.iter().map(|key| (key.db, &*key.key))
    }
}

/// See the module's description.
pub struct Partition {
    pub store: Store,
    pub shards: BTreeMap<u16, Shard>,
    /// Number of shards that were attached so far.
    stays: u64,
    journal: Arc<dyn Journal>,
    feed: Arc<Feed>,
    /// Rounds in the journal that are not yet known to be durable, with their lsn.
    rounds: VecDeque<(u64, Lsn)>,
    closed_round: u64,
    durable: u64,
    /// The greatest lsn this worker knows to be in the journal.
    last_lsn: Lsn,
    /// The same lsn at the time when the last round was closed.
    closed_lsn: Lsn,
    /// Open holds of coordinators, by number.
    holds: BTreeSet<u64>,
    /// Rows that were read for commands.
    pub(crate) reads: PointReads,
    /// Number of callers that wait for exact counters: no put is blind meanwhile.
    counting: Arc<AtomicUsize>,
    /// Position in the stream of another server that was appended, until it is taken.
    reached: Option<SourcePosition>,
}

/// Forbids further blind operations as long as it lives.
#[derive(Debug)]
pub struct Counting(Arc<AtomicUsize>);

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Partition {
    /// Creates a partition that has no shard yet.
    pub fn new(mut store: Store, journal: Arc<dyn Journal>) -> Self {
        let last_lsn = journal.end();
        store.own_none();
        Self {
            store,
            shards: BTreeMap::new(),
            stays: 0,
            journal,
            feed: Arc::default(),
            rounds: VecDeque::new(),
            closed_round: 0,
            durable: 0,
            last_lsn,
            closed_lsn: last_lsn,
            holds: BTreeSet::new(),
            reads: PointReads::default(),
            counting: Arc::default(),
            reached: None,
        }
    }

    /// Makes its records part of a feed.
    #[must_use]
    pub(crate) fn with_feed(mut self, feed: &Arc<Feed>) -> Self {
        self.feed = feed.clone();
        self.store.words.want(feed.is_on());
        self.store.words.share_plain(&feed.plain_removals);
        self
    }

    /// Returns the greatest round that is closed: in the journal, or failed.
    pub fn closed(&self) -> u64 {
        self.closed_round
    }

    /// Returns true if the open round is to be closed soon: it has changes, or the last command has
    /// seen it, whose reply waits. It may have seen it without changes: a key that coordinators made
    /// and deleted again is of the open round, and so is one that was rolled back.
    pub fn has_to_close(&self) -> bool {
        self.store.has_to_commit() || self.store.seen() > self.closed_round
    }

    /// Returns the greatest round that is durable.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns the greatest lsn that this worker has written or was told of.
    pub fn last_lsn(&self) -> Lsn {
        self.last_lsn
    }

    /// Returns the greatest lsn that this worker has written or was told of, unless it is durable and,
    /// with replicas that have to, confirmed: then 0.
    pub fn undurable(&self) -> Lsn {
        let is_settled = self.last_lsn <= self.feed.settled(self.journal.durable());
        if is_settled { 0 } else { self.last_lsn }
    }

    /// Closes the open round: its changes become one journal record and, once that is appended,
    /// pending rows. Returns `Ok(false)` if there were no changes.
    pub fn commit(&mut self, now_ms: u64) -> Result<bool, FailedRound> {
        let mut sealed = self.store.seal();
        self.store.seal_source(&mut sealed);
        if sealed.is_empty() {
            self.close_round(sealed.round, self.last_lsn);
            return Ok(false);
        }
        match self.append(now_ms, &sealed) {
            Ok(lsn) => {
                for (shard, ops) in &sealed.ops {
                    if let Some(shard) = self.shards.get_mut(shard) {
                        shard.merge_sealed(lsn, ops);
                    }
                }
                self.close_round(sealed.round, lsn);
                self.reached = sealed.source.take().or(self.reached.take());
                self.store.recycle(sealed);
                self.allow_blind();
                Ok(true)
            }
            Err(error) => {
                let evictions = std::mem::take(&mut self.store.evictions);
                self.fail(&sealed);
                Err(FailedRound { error, evictions, keys: sealed.keys })
            }
        }
    }

    fn append(&self, now_ms: u64, sealed: &Sealed) -> Result<Lsn, JournalError> {
        self.check_own(sealed.ops.keys().copied())?;
        let heads = sealed.heads();
        self.feed.append(&*self.journal, now_ms, sealed, &sealed.parts(&heads))
    }

    /// Discards a sealed round. The earlier values of its keys are loaded again, and may belong to
    /// rounds that are not durable yet.
    fn fail(&mut self, sealed: &Sealed) {
        self.store.unseal(sealed);
        // Rows that its changes made obsolete are valid again.
        self.forget_first_times();
        self.close_round(sealed.round, self.last_lsn);
        self.store.load_as_of(self.journaled_round());
    }

    /// Drops an entry that does not count; the row that is read instead may not be durable yet.
    pub fn forget(&mut self, db: u32, key: &[u8]) {
        self.store.forget(db, key);
        self.store.load_as_of(self.journaled_round());
    }

    /// Rolls the open unit back.
    pub fn roll_back(&mut self) {
        let known = self.journaled_round();
        self.store.roll_back(known);
    }

    /// Returns the round number that shows everything in the journal, and no more. Records that
    /// coordinators stored since the last round was closed show with the open round.
    fn journaled_round(&self) -> u64 {
        if self.last_lsn > self.closed_lsn {
            self.store.stored_round()
        } else {
            self.closed_round.saturating_sub(1)
        }
    }

    fn close_round(&mut self, round: u64, lsn: Lsn) {
        self.store.stats.evicted += std::mem::take(&mut self.store.evictions);
        self.closed_round = round;
        self.last_lsn = self.last_lsn.max(lsn);
        self.closed_lsn = self.last_lsn;
        self.rounds.push_back((round, self.last_lsn));
        self.observe_durable();
    }

    /// Merges a record's rows into the pending rows of the shards of this partition.
    pub fn merge(&mut self, lsn: Lsn, body: &[u8]) {
        let Some(parts) = split_body(body) else {
            // The record may have rows for any of them.
            self.shards.values_mut().for_each(|shard| shard.fail(lsn));
            return;
        };
        for (shard, ops) in parts {
            if let Some(shard) = self.shards.get_mut(&shard) {
                shard.merge(lsn, ops);
            }
        }
    }

    /// Puts (`Some`) and deletes libraries of functions in one record. `words`: the command that does
    /// so.
    ///
    /// # Errors
    /// [`JournalError::NotOwned`] if the partition has not the shard of the libraries; those of an
    /// append.
    pub fn put_libraries(
        &mut self,
        now_ms: u64,
        changes: &[(&[u8], Option<&Library>)],
        words: Vec<u8>,
    ) -> Result<Lsn, JournalError> {
        let mut record = Sealed { words, ..Sealed::default() };
        let ops = record.ops.entry(LIBRARIES_SHARD).or_default();
        for (name, library) in changes {
            let key = Library::row_key(name);
            match library {
                Some(library) => ops.put(&key, &library.encode(), false),
                None => ops.delete(&key, Delta::default()),
            }
        }
        self.put_control(now_ms, &record)
    }

    /// Takes the position in the stream of another server that was appended since the last call.
    pub fn take_reached(&mut self) -> Option<SourcePosition> {
        self.reached.take()
    }

    /// Stores a position in the stream of another server, in a record of its own, in the first shard
    /// of this partition.
    ///
    /// # Errors
    /// [`JournalError::NotOwned`] if the partition has no shard; those of an append.
    pub fn put_source(
        &mut self,
        now_ms: u64,
        source: &SourcePosition,
    ) -> Result<Lsn, JournalError> {
        let mut record = Sealed::default();
        let shard = self.shards.keys().next().copied().unwrap_or_default();
        let ops = record.ops.entry(shard).or_default();
        ops.put(&SourcePosition::row_key(), &source.encode(), false);
        let lsn = self.put_control(now_ms, &record)?;
        // One of the open round is older, and its record comes behind this one.
        self.store.source = None;
        Ok(lsn)
    }

    /// Appends a record of control rows, and merges it.
    fn put_control(&mut self, now_ms: u64, record: &Sealed) -> Result<Lsn, JournalError> {
        self.check_own(record.ops.keys().copied())?;
        let body = record.body();
        let lsn = self.feed.append(&*self.journal, now_ms, record, &[&body])?;
        self.merge(lsn, &body);
        self.note_lsn(lsn);
        Ok(lsn)
    }

    /// Notes that a record of another coordinator at `lsn` was applied here: the open round shows
    /// it from now on.
    pub fn note_lsn(&mut self, lsn: Lsn) {
        self.last_lsn = self.last_lsn.max(lsn);
    }

    /// Updates the durable round from the journal's durable lsn, and returns it. While replies wait
    /// for replicas, a record counts as durable once these have confirmed it, too.
    pub fn observe_durable(&mut self) -> u64 {
        let durable = self.feed.settled(self.journal.durable());
        while self.rounds.front().is_some_and(|&(_, lsn)| lsn <= durable) {
            if let Some((round, _)) = self.rounds.pop_front() {
                self.durable = round;
            }
        }
        self.store.settle(self.durable);
        self.durable
    }
}

impl Partition {
    /// Creates a partition without shards, to leave in place of one that is taken.
    pub fn empty(layout: &Arc<Layout>, journal: &Arc<dyn Journal>) -> Self {
        let store = Store::new(layout.clone(), Arc::new(Versions::new(0)), &[], false);
        Self::new(store, journal.clone())
    }

    // ---- holds -------------------------------------------------------------------------------

    /// Opens a hold: a coordinator was lent entries, and may bring a record.
    pub fn granted(&mut self, hold: u64) {
        self.holds.insert(hold);
    }

    /// Ends a hold; its record, if any, is merged.
    pub fn released(&mut self, hold: u64) {
        self.holds.remove(&hold);
    }

    // ---- blind operations --------------------------------------------------------------------

    /// Lets the store replace as many keys unseen as may be resolved later.
    fn allow_blind(&mut self) {
        let free = self.shards.values().map(Shard::may_be_blind).min().unwrap_or(0);
        let is_counting = self.counting.load(Ordering::Relaxed) > 0;
        self.store.allow_blind(if is_counting { 0 } else { free });
    }

    /// Returns the number of unresolved blind operations.
    pub fn unresolved(&self) -> usize {
        self.shards.values().map(Shard::unresolved).sum()
    }

    /// Forbids further blind operations: once those before are resolved, the counters are exact.
    pub fn begin_counting(&mut self) -> Counting {
        self.counting.fetch_add(1, Ordering::Relaxed);
        self.allow_blind();
        Counting(self.counting.clone())
    }

    /// Begins a pass that resolves blind operations of a shard, if one is due: returns the rows to
    /// read. `all`: it is due if any is unresolved.
    pub fn begin_pass(&mut self, shard: u16, all: bool) -> Option<OldRows> {
        self.allow_blind();
        self.shards.get_mut(&shard)?.begin_pass(all)
    }

    /// Ends a pass with the rows that were read.
    ///
    /// # Errors
    /// That of the read, or of a row that cannot be read: the operations, or those on such rows, remain
    /// unresolved.
    pub fn end_pass(&mut self, shard: u16, read: Result<PassStates>) -> Result<()> {
        let Some(of) = self.shards.get_mut(&shard) else { return Ok(()) };
        let read = match read {
            Ok(states) => of.end_pass(states),
            Err(error) => {
                of.abort_pass();
                Err(error)
            }
        };
        self.allow_blind();
        read
    }

    // ---- materialising -----------------------------------------------------------------------

    /// Cuts the pending rows of a shard for a hand-over.
    pub fn cut(&mut self, shard: u16) {
        let until_hold = self.holds.last().copied().unwrap_or(0);
        let lsn = self.journal.end();
        if let Some(shard) = self.shards.get_mut(&shard)
            && shard.can_cut()
        {
            shard.cut(lsn, until_hold);
        }
    }

    /// Returns the cut of a shard, once it is complete.
    pub fn take_cut(&mut self, shard: u16) -> Option<Arc<Cut>> {
        let oldest = self.holds.first().copied();
        self.shards.get_mut(&shard)?.take_cut(oldest)
    }

    /// Returns the data needed to reopen a shard's engine that has closed itself.
    pub fn reopen(&mut self, shard: u16) -> Option<Reopen> {
        Some(self.shards.get_mut(&shard)?.reopen(self.journal.clone()))
    }

    /// Takes over a shard's engine that was reopened.
    pub fn reopened(&mut self, shard: u16, reopened: Reopened) {
        if let Some(shard) = self.shards.get_mut(&shard) {
            shard.reopened(reopened);
            self.journal.flushed(shard.id, shard.flushed());
        }
    }

    /// Begins the scan of a shard's keys if one is due: returns the filter, the engine whose keys
    /// go into it, and the dead generations.
    pub fn begin_scan(&mut self, shard: u16) -> Option<(Arc<Presence>, Engine, BTreeSet<u32>)> {
        let shard = self.shards.get_mut(&shard)?;
        let scan = shard.begin_scan();
        let engine = shard.engine().clone();
        self.publish_presence();
        scan.map(|(presence, dead)| (presence, engine, dead))
    }

    /// Ends that scan; `whole` is false if it failed.
    pub fn end_scan(&mut self, shard: u16, whole: bool) {
        if let Some(shard) = self.shards.get_mut(&shard) {
            shard.end_scan(whole);
        }
        self.publish_presence();
    }

    fn publish_presence(&mut self) {
        for (id, shard) in &self.shards {
            self.store.set_presence(*id, shard.presence());
        }
    }

    /// Returns the memory use of the filters of keys in bytes.
    pub fn presence_bytes(&self) -> usize {
        self.shards.values().filter_map(Shard::presence).map(|presence| presence.bytes()).sum()
    }

    /// Returns the memory that the engines hold for point reads, in bytes.
    pub fn point_bytes(&self) -> usize {
        self.shards.values().map(|shard| shard.engine().points().bytes()).sum()
    }

    /// Returns the number of rows that were read for commands.
    pub fn point_reads(&self) -> PointReads {
        self.reads
    }

    /// Reports the flushed lsns of the engines to the journal.
    pub fn observe_flushed(&mut self) {
        for shard in self.shards.values_mut() {
            if let Some(applied) = shard.observe_flushed() {
                self.journal.flushed(shard.id, applied);
            }
        }
    }

    /// Returns the lsn up to which all shards have handed everything over.
    pub fn handed(&self) -> Lsn {
        self.shards.values().map(Shard::handed).min().unwrap_or(Lsn::MAX)
    }

    /// Returns the approximate memory use of pending rows in bytes.
    pub fn pending_bytes(&self) -> usize {
        self.shards.values().map(Shard::pending_bytes).sum()
    }

    /// Returns the number of operations that a start would replay into these shards.
    pub fn unflushed_ops(&self) -> u64 {
        self.shards.values().map(Shard::unflushed_ops).sum()
    }

    /// Returns a number that changes when an engine of these shards takes rows, or flushes or merges
    /// some, so that it will take more.
    pub fn engine_progress(&self) -> u64 {
        self.shards.values().map(|shard| shard.engine().progress()).sum()
    }

    /// Returns the number of keys in a slot of the first database.
    pub fn slot_keys(&self, slot: u16) -> u32 {
        let shard = self.shards.get(&self.store.layout().shard_of(slot));
        shard.map_or(0, |shard| shard.slot_keys(self.store.row_generation(0, shard.id), slot))
    }

    /// Returns the number of keys, and of keys with an expiry, of a database in these shards.
    pub fn totals(&self, db: u32) -> (u64, u64) {
        self.shards.values().fold((0, 0), |(keys, expires), shard| {
            let (k, e) = shard.totals(self.store.row_generation(db, shard.id));
            (keys + k, expires + e)
        })
    }

    /// Stops: hands all pending rows over, flushes and closes the engines. The shard directories
    /// are then complete without the journal; but if a coordinator has not reported the outcome of
    /// its record, possibly older records stay in the journal for the next start to replay.
    pub async fn close(self) -> Result<()> {
        if !self.holds.is_empty() {
            tracing::warn!(holds = self.holds.len(), "closing with commits that were not applied");
        }
        let held = self.holds.first().copied().zip(self.holds.last().copied());
        let mut outcome = Ok(());
        for (id, shard) in self.shards {
            let closed = DetachedShard::at_stop(shard, held).close(&self.journal).await;
            outcome = outcome.and(closed.with_context(|| format!("closing shard {id}")));
        }
        outcome
    }
}
