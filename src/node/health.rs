//! Whether the node may write, answer, and take more memory.

use super::limits;
use crate::config::Settings;
use crate::process;
use crate::stalls::Stalls;
use flagstone_storage::clock::Clock;
use flagstone_storage::lease::{Lease, Unconfirmed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long writers wait for room while no engine takes rows, before their writes are refused.
pub(super) const PRESSURE_LIMIT_MS: u64 = 5000;

/// Why writes are refused while there is no room for them.
pub(super) const CHOKED: &str = "OOM the engine has taken no rows for seconds, or its disk is full: there is \
    no memory left for writes";

/// Why writes are refused while the journal's store is away.
pub(super) const CUT_OFF: &str = "MISCONF The store of the journal does not answer, so that no write can be \
    stored. Commands that may modify the data set are refused until it does. The log says more.";

/// Why nothing that shows data is answered while another server may own it.
pub(super) const DISOWNED: &str = "MASTERDOWN The store of the journal does not answer, so that another server \
    may have taken over, and serve-stale-data is set to 'no'.";

/// Why nothing that shows data is answered any more.
const TAKEN_OVER: &str = "MASTERDOWN This server is shutting down: it has released the data, or another \
    server has taken it over.";

/// The state on which it depends whether commands are refused.
pub struct Health {
    clock: Clock,
    /// The journal's lease, if other servers may take it over.
    lease: Option<Arc<Lease>>,
    /// The last time at which an engine took rows while more are pending than the budget allows, or
    /// the journal's store took records while many wait, so that writers wait: ms since the Unix
    /// epoch, 0 when there is room.
    pub pressure_since_ms: AtomicU64,
    /// Shards that cannot store rows.
    pub stalls: Stalls,
    /// True if more memory is in use than `maxmemory` allows.
    over_maxmemory: AtomicBool,
    /// True if the journal's store does not answer.
    cut_off: AtomicBool,
}

impl Health {
    /// The health of a node that has so many shards and just starts.
    pub(super) fn new(lease: Option<Arc<Lease>>, clock: Clock, shards: u16) -> Self {
        Self {
            clock,
            lease,
            pressure_since_ms: AtomicU64::new(0),
            stalls: Stalls::new(shards),
            over_maxmemory: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
        }
    }

    /// Whether writers have to wait until rows are handed over.
    pub fn is_pressed(&self) -> bool {
        self.pressure_since_ms.load(Ordering::Relaxed) != 0
    }

    /// Whether the engines have not taken rows for so long that writes are refused.
    pub fn is_choked(&self) -> bool {
        let since_ms = self.pressure_since_ms.load(Ordering::Relaxed);
        since_ms != 0 && self.clock.now_ms().saturating_sub(since_ms) > PRESSURE_LIMIT_MS
    }

    /// Whether more memory is in use than `maxmemory` allows.
    pub fn is_over_maxmemory(&self) -> bool {
        self.over_maxmemory.load(Ordering::Relaxed)
    }

    /// Whether the journal's store is away, so that no write can be stored.
    pub fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    pub fn set_cut_off(&self, cut_off: bool) {
        self.cut_off.store(cut_off, Ordering::Relaxed);
    }

    /// Whether it is certain that no other server has taken the data over.
    pub fn is_owner(&self) -> bool {
        self.lease.as_ref().is_none_or(|lease| lease.holds())
    }

    /// Waits until that is certain.
    ///
    /// # Errors
    /// Why the client gets no reply that shows data: another server has it, or may have it.
    pub async fn confirm_owner(&self, settings: &Settings) -> Result<(), &'static str> {
        let Some(lease) = &self.lease else { return Ok(()) };
        // The same command may have waited for the store already, as long as commands may.
        let limit = match self.is_cut_off() {
            true => Duration::ZERO,
            false => Duration::from_millis(settings.store_timeout_ms),
        };
        match lease.confirm(limit).await {
            Err(Unconfirmed::Away) if settings.serve_stale_data => Ok(()),
            Err(Unconfirmed::Away) => Err(DISOWNED),
            Err(Unconfirmed::Lost) => Err(TAKEN_OVER),
            Ok(()) => Ok(()),
        }
    }

    /// Whether commands need not wait for that, as others have waited in vain.
    pub fn is_disowned(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.is_away() && !lease.holds())
    }

    /// How long it is certain without an answer from the store, in ms; `None`: a local journal.
    pub fn lease_left_ms(&self) -> Option<u64> {
        self.lease.as_ref().map(|lease| u64::try_from(lease.left().as_millis()).unwrap_or(u64::MAX))
    }

    /// Compares the memory in use with `maxmemory`: by the clock, and when that is set.
    pub fn look_at_memory(&self, settings: &Settings) {
        let is_over = limits::watches_memory(settings) && process::resident() > settings.maxmemory;
        self.over_maxmemory.store(is_over, Ordering::Relaxed);
    }
}
