//! The rules of the protocol. Each can be left out, and then some scene breaks an invariant: that is
//! what shows that the rule is needed, and that the model can see its absence.

/// A rule of RFC 16, in its words and its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A map counts if a listing that began after it was read or put shows it among the newest that
    /// are kept. Without this rule a writer looks for the map on which its change is based.
    BelieveNewest,
    /// … and compares the nonce of that map. Without both rules any map of that number will do.
    CompareBase,
    /// A map that is read counts if it is among the newest still after it was read.
    ListAgain,
    /// A change that had no answer is decided once its number is taken: until then it may be stored
    /// any time.
    FateKnown,
    /// An epoch is that of a change that counts, not of one that was put.
    EpochFromMap,
    /// A change that takes shards from an owner is based on the seal of its journal.
    SealFirst,
    /// A seal counts if no object behind it says that its number was stored before.
    SealConfirmed,
    /// The seal of a journal stays when its objects are deleted.
    SealStays,
    /// A shard's list keeps the former owners' journals when it gets a new owner by a failover.
    ListKeeps,
    /// A replay reads all journals of the list, not only that of the last owner.
    ReplayAll,
    /// The lsn of the adopt record is above all lsns of the shard before it.
    LsnJump,
    /// A successor waits for the lease of the owner before it.
    Wait,
    /// … and for those of all owners whose journals are listed, not only of the last one.
    WaitForAll,
    /// A lease lasts from the moment at which the put began, not from its answer.
    LeaseFromBegin,
    /// Replies need a lease.
    LeaseChecked,
    /// (b) before (c): the writer epoch is read before the map is looked at.
    ManifestBeforeMap,
    /// (c) The newest map is looked at before the engine is opened.
    MapBeforeOpen,
    /// (d) The engine is opened only if its writer epoch is the one that was read.
    ExpectedEpoch,
    /// (g) A shard is served once its adopt record is stored.
    AdoptStored,
    /// The owner takes no commands from before it gives a shard away until it knows the outcome.
    HoldToGive,
    /// The owner has flushed a shard whole when it gives it away.
    FlushToGive,
    /// A shard is given away, or its journal released, only if the owner's own waits are over.
    WaitToGive,
    /// An owner that lost a shard and got it back takes it again.
    SinceCompared,
    /// Only durable writes are flushed.
    FlushDurable,
    /// A journal leaves a list once all its records of the shard are flushed.
    FlushToUnlist,
    /// Objects of a journal are deleted once no list names it.
    DeleteUnlisted,
    /// … in a map that says that it is sealed: an older one may not list it yet.
    DeleteSealed,
    /// An owner that has released its journal answers nothing any more.
    ReleaseStops,
}

/// A set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules(u64);

impl Rules {
    pub fn all() -> Self {
        Self(u64::MAX)
    }

    #[must_use]
    pub fn without(self, rule: Rule) -> Self {
        Self(self.0 & !(1 << rule as u64))
    }

    pub fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u64) != 0
    }
}
