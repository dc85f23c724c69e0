//! Shards come to a partition, and leave it, while it runs.
//!
//! Both happen under a barrier of the worker: no command holds locks, nothing is lent, and the open
//! round has no changes. Jobs in the background may go on: what they bring back for a shard that has
//! left, or has come back since, is dropped ([`Stay`]).

use super::{DetachedShard, Partition};
use crate::shard::Shard;
use crate::slot::NotOwned;
use crate::slot::SplitPlan;

/// A shard from the time at which it was attached to a partition until it is detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stay {
    pub shard: u16,
    pub(super) number: u64,
}

/// Reason why a shard cannot be attached, or cannot be detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardRefusal {
    #[error("it is attached already, or the layout has no such shard")]
    NotFree,
    #[error("it is not attached here")]
    NotHere,
    #[error("the open round has changes")]
    RoundOpen,
    #[error("entries are lent")]
    Lent,
    #[error("its engine is being opened again")]
    Reopening,
    #[error("it has rows that its engine has not stored")]
    NotFlushed,
    #[error("its slots are not those that the layout gives it")]
    OtherSlots,
    #[error("it has no generation for a database, or different ones for several")]
    OtherDatabases,
}

/// A shard that was not attached.
#[derive(Debug)]
pub struct RefusedShard {
    pub why: ShardRefusal,
    pub shard: Shard,
}

impl Partition {
    /// Attaches a shard, whose keys may be asked for from now on. No command may run meanwhile, and
    /// the open round must have no changes. Records that are merged into it and not durable show
    /// with the open round, so this is to be closed soon.
    ///
    /// # Errors
    /// If it may not be attached: it is returned.
    pub fn attach(&mut self, mut shard: Shard) -> Result<(), Box<RefusedShard>> {
        let id = shard.id;
        if let Err(why) = self.admit(&shard) {
            return Err(Box::new(RefusedShard { why, shard }));
        }
        self.stays += 1;
        shard.stay = self.stays;
        let is_settled = shard.merged() <= self.journal.durable();
        if !is_settled {
            self.note_lsn(shard.merged().min(self.journal.end()));
            self.store.load_as_of(self.journaled_round());
        }
        let live = self.store.row_generations(id);
        let has_keys = |generation: u32| !is_settled || shard.may_have_keys(generation);
        self.store
            .take_in(id, (0u32..).zip(&live).filter(|(_, g)| has_keys(**g)).map(|(db, _)| db));
        self.store.set_presence(id, shard.presence());
        self.journal.flushed(id, shard.flushed());
        self.shards.insert(id, shard);
        self.allow_blind();
        Ok(())
    }

    /// Notes a shard as attached, if it may be.
    fn admit(&self, shard: &Shard) -> Result<(), ShardRefusal> {
        if self.store.is_dirty() {
            return Err(ShardRefusal::RoundOpen);
        }
        let layout = self.store.layout();
        if shard.id >= layout.shards() {
            return Err(ShardRefusal::NotFree);
        }
        if !layout.has_slots(shard.id, shard.engine().slots().as_ref()) {
            return Err(ShardRefusal::OtherSlots);
        }
        let (memory, rows) = (self.store.generations(), &shard.generations().live);
        if rows.len() < memory.len() || rows.iter().take(memory.len()).any(|rows| *rows == 0) {
            return Err(ShardRefusal::OtherDatabases);
        }
        let differing = match &memory[..] {
            [memory] => Some((*memory, rows[0])).filter(|(memory, rows)| memory != rows),
            all if *all == rows[..all.len()] => None,
            _ => return Err(ShardRefusal::OtherDatabases),
        };
        let attached = self.store.attached().attach(shard.id, differing, shard.is_mirrored());
        attached.then_some(()).ok_or(ShardRefusal::NotFree)
    }

    /// Detaches a shard: its entries leave the memory, and no record may have operations of it any
    /// more. No command may run meanwhile, and the open round must have no changes.
    ///
    /// # Errors
    /// If it may not be detached: it stays.
    pub fn detach(&mut self, id: u16) -> Result<DetachedShard, ShardRefusal> {
        let shard = self.shards.get(&id).ok_or(ShardRefusal::NotHere)?;
        if shard.is_reopening() {
            return Err(ShardRefusal::Reopening);
        }
        if self.store.is_dirty() {
            return Err(ShardRefusal::RoundOpen);
        }
        if !self.holds.is_empty() {
            return Err(ShardRefusal::Lent);
        }
        let mut shard = self.shards.remove(&id).ok_or(ShardRefusal::NotHere)?;
        shard.rest();
        self.store.attached().detach(id);
        let entries = self.store.give_away(id);
        self.allow_blind();
        Ok(DetachedShard::new(shard, entries))
    }

    /// Makes a shard that is attached two: it keeps its lower slots, and `upper`, whose engine has the same rows,
    /// gets the others. Entries stay in memory. No command may run meanwhile, the open round must have no
    /// changes, and all records of the shard must be flushed. Jobs that are under way for it bring nothing
    /// back: it begins another stay.
    ///
    /// # Errors
    /// If that does not hold: the shard stays whole, and the other one is returned.
    pub fn split(&mut self, plan: &SplitPlan, upper: Shard) -> Result<(), Box<RefusedShard>> {
        let refused = |why, shard| Err(Box::new(RefusedShard { why, shard }));
        let Some(whole) = self.shards.get_mut(&plan.shard) else {
            return refused(ShardRefusal::NotHere, upper);
        };
        if !whole.is_flushed() {
            return refused(ShardRefusal::NotFlushed, upper);
        }
        if self.store.is_dirty() {
            return refused(ShardRefusal::RoundOpen, upper);
        }
        whole.narrow(&plan.lower());
        self.stays += 1;
        whole.stay = self.stays;
        self.store.layout().divide(plan.division().to_vec());
        self.attach(upper)
    }

    /// Returns the present stay of a shard.
    pub fn stay(&self, shard: u16) -> Option<Stay> {
        self.shards.get(&shard).map(|of| Stay { shard, number: of.stay })
    }

    /// Returns the present stays of all shards, ascending by shard.
    pub fn stays(&self) -> impl Iterator<Item = Stay> {
        self.shards.iter().map(|(shard, of)| Stay { shard: *shard, number: of.stay })
    }

    /// Returns true if a shard has not left since.
    pub fn is_here(&self, stay: Stay) -> bool {
        self.stay(stay.shard) == Some(stay)
    }

    /// Checks that a record has operations only of own shards that are attached here.
    pub(super) fn check_own(&self, shards: impl IntoIterator<Item = u16>) -> Result<(), NotOwned> {
        let owns = |shard: &u16| self.shards.get(shard).is_some_and(|of| !of.is_mirrored());
        match shards.into_iter().find(|shard| !owns(shard)) {
            None => Ok(()),
            Some(shard) => Err(self.store.layout().not_owned(shard)),
        }
    }
}
