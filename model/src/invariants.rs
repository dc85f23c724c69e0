//! The invariants, numbered as in RFC 16.

use std::fmt;

/// An invariant that the model checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invariant {
    OneSequence = 1,
    OneLifePerEpoch = 2,
    OwnerChanges = 3,
    LsnsGrow = 5,
    FlushedBeforeUnlisted = 6,
    NoLateOpening = 7,
    EngineBehindJournal = 8,
    NoStaleReply = 9,
    NothingLost = 10,
    DeletedUnlisted = 12,
    OneServes = 15,
}

impl Invariant {
    pub const ALL: [Self; 11] = [
        Self::OneSequence,
        Self::OneLifePerEpoch,
        Self::OwnerChanges,
        Self::LsnsGrow,
        Self::FlushedBeforeUnlisted,
        Self::NoLateOpening,
        Self::EngineBehindJournal,
        Self::NoStaleReply,
        Self::NothingLost,
        Self::DeletedUnlisted,
        Self::OneServes,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Self::OneSequence => "a map that a life believes is in the sequence",
            Self::OneLifePerEpoch => "an epoch has one life",
            Self::OwnerChanges => {
                "only an owner gives its shard away, unless its journal is sealed"
            }
            Self::LsnsGrow => "the lsns of a shard grow from journal to journal",
            Self::FlushedBeforeUnlisted => "a journal leaves a list when it is flushed",
            Self::NoLateOpening => "no engine is opened after a later owner has opened it",
            Self::EngineBehindJournal => "an engine has nothing that was not stored in a journal",
            Self::NoStaleReply => "nobody answers who is no longer the owner",
            Self::NothingLost => "an owner shows every write that a client knows of",
            Self::DeletedUnlisted => "objects go only when no list names their journal",
            Self::OneServes => "at most one life serves a shard",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", *self as u8, self.text())
    }
}
