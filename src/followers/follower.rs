//! One replica, as INFO, ROLE and WAIT see it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Wish of a connection to be sent the stream (PSYNC, SYNC).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncWish {
    /// From a position on: the id of the stream, and the number of bytes that are there. `None`: the
    /// data set, then the stream.
    Psync(Option<(Box<[u8]>, u64)>),
    /// The data set, then the stream, without a line before it.
    Sync,
}

/// Facts that a replica has told before it asks for the stream (REPLCONF).
#[derive(Clone, Debug, Default)]
pub struct ReplicaWish {
    pub port: u16,
    pub ip: String,
    /// True if it reads data sets that end with a mark.
    pub takes_marks: bool,
    /// True if it wants the data set only.
    pub data_set_only: bool,
}

/// Address of a replica, as it is shown.
#[derive(Clone, Debug, Default)]
pub struct FollowerFacts {
    pub ip: String,
    pub port: u16,
    /// True if it wants the data set only.
    pub data_set_only: bool,
}

/// State of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowerState {
    /// A checkpoint is taken for it.
    WaitsForData,
    /// It is sent the data set.
    ReceivesData,
    /// It is sent the stream.
    Online,
}

impl FollowerState {
    /// All states, each at the place of its number.
    pub const ALL: [Self; 3] = [Self::WaitsForData, Self::ReceivesData, Self::Online];

    /// Returns the name in INFO.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WaitsForData => "wait_bgsave",
            Self::ReceivesData => "send_bulk",
            Self::Online => "online",
        }
    }
}

/// One replica. Its own connection writes it.
#[derive(Debug)]
pub struct Follower {
    /// Number of its connection.
    pub client: u64,
    pub facts: FollowerFacts,
    state: AtomicU8,
    /// Offset from which on the stream must stay in memory.
    needs: AtomicU64,
    /// Number of bytes that it has applied, and that it has stored.
    applied: AtomicU64,
    stored: AtomicU64,
    /// Number of the last question of `repl-ack` that it has answered; 0: none.
    answered: AtomicU64,
    /// Time of its last message, in ms since the Unix epoch.
    heard_ms: AtomicU64,
    /// Time since which it has been too slow; 0 if it is not.
    pub slow_since_ms: AtomicU64,
}

impl Follower {
    pub fn new(client: u64, facts: FollowerFacts, now_ms: u64) -> Self {
        Self {
            client,
            facts,
            state: AtomicU8::new(0),
            needs: AtomicU64::new(u64::MAX),
            applied: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            heard_ms: AtomicU64::new(now_ms),
            slow_since_ms: AtomicU64::new(0),
        }
    }

    pub fn state(&self) -> FollowerState {
        FollowerState::ALL[usize::from(self.state.load(Ordering::Relaxed))]
    }

    pub fn set_state(&self, state: FollowerState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Returns the offset from which on the stream must stay in memory.
    pub fn needs(&self) -> u64 {
        self.needs.load(Ordering::Relaxed)
    }

    pub fn set_needs(&self, offset: u64) {
        self.needs.store(offset, Ordering::Relaxed);
    }

    /// Returns the number of bytes that it has applied.
    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Relaxed)
    }

    /// Notes a message: the bytes that it has applied, and stored, if it tells.
    pub fn heard(&self, applied: Option<u64>, stored: Option<u64>, now_ms: u64) {
        self.heard_ms.store(now_ms, Ordering::Relaxed);
        if let Some(applied) = applied {
            self.applied.fetch_max(applied, Ordering::Relaxed);
        }
        if let Some(stored) = stored {
            self.stored.fetch_max(stored, Ordering::Relaxed);
        }
    }

    /// Notes that it has answered a question of `repl-ack`.
    pub fn answers(&self, question: u64) {
        self.answered.fetch_max(question, Ordering::Relaxed);
    }

    /// Returns the number of the last question that it has answered. If there is one, it is of our
    /// kind, and tells by itself how far it is.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    pub fn heard_ms(&self) -> u64 {
        self.heard_ms.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that it has applied, or stored.
    pub fn reached(&self, is_stored: bool) -> u64 {
        let reached = if is_stored { &self.stored } else { &self.applied };
        reached.load(Ordering::Relaxed)
    }

    /// Returns true if it follows and has applied, or stored, so many bytes.
    pub fn has(&self, offset: u64, is_stored: bool) -> bool {
        self.state() == FollowerState::Online && self.reached(is_stored) >= offset
    }

    /// Returns true if it follows and was heard of in the last seconds.
    pub fn is_good(&self, max_lag_s: u64, now_ms: u64) -> bool {
        self.state() == FollowerState::Online && self.lag_s(now_ms) <= max_lag_s
    }

    /// Returns the seconds since its last message.
    pub fn lag_s(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.heard_ms()) / 1000
    }
}
