//! CLIENT PAUSE: the pause of a node, which delays commands and stops active expiry.

use flagstone_storage::clock::Clock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Time in ms after which a command that waits looks at the pause again.
const LOOK_MS: u64 = 60_000;

/// Reason of a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PauseReason {
    /// CLIENT PAUSE.
    #[default]
    Client,
    /// A stop that waits for replicas.
    Shutdown,
    /// A failover that waits for its replica.
    Failover,
}

impl PauseReason {
    /// Returns the name that INFO shows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client_pause",
            Self::Shutdown => "shutdown_in_progress",
            Self::Failover => "failover_in_progress",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A pause of commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientPause {
    pub reason: PauseReason,
    /// End of the pause in ms since the Unix epoch; 0 if clients are not paused.
    pub until_ms: u64,
    /// True if only commands that may write wait.
    pub writes_only: bool,
}

/// Pause of a node, and the tasks that wait for its end.
pub struct Pauses {
    clock: Clock,
    /// True if `pause` may be in force, so that one load usually shows that there is none.
    paused: AtomicBool,
    pause: Mutex<ClientPause>,
    /// Bits of the reasons for which writes wait, beside the pause of clients.
    holds: AtomicU8,
    unpaused: Notify,
    /// Number of transactions whose commands on the server run: a pause may be among them.
    transactions: AtomicUsize,
}

/// Keeps keys from being evicted until it is dropped.
pub struct EvictionHold<'a>(&'a Pauses);

impl Drop for EvictionHold<'_> {
    fn drop(&mut self) {
        self.0.transactions.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pauses {
    /// Creates the state without a pause.
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            paused: AtomicBool::new(false),
            pause: Mutex::default(),
            holds: AtomicU8::new(0),
            unpaused: Notify::new(),
            transactions: AtomicUsize::new(0),
        }
    }

    /// Keeps keys from being evicted between the commands of a transaction, as a pause does.
    pub fn hold_evictions(&self) -> EvictionHold<'_> {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        EvictionHold(self)
    }

    /// Returns true if no key is to be evicted now.
    pub fn forbids_evictions(&self) -> bool {
        self.transactions.load(Ordering::Relaxed) > 0 || self.now().is_some()
    }

    /// Returns the pause that is in force, if any.
    #[inline]
    pub fn now(&self) -> Option<ClientPause> {
        let may_be = self.paused.load(Ordering::Relaxed) || self.holds.load(Ordering::Relaxed) != 0;
        if may_be { self.in_force() } else { None }
    }

    #[cold]
    fn in_force(&self) -> Option<ClientPause> {
        let of_clients = self.of_clients();
        let holds = self.holds.load(Ordering::Relaxed);
        if holds == 0 || of_clients.is_some_and(|pause| !pause.writes_only) {
            return of_clients;
        }
        let is_stop = holds & PauseReason::Shutdown.bit() != 0;
        let reason = if is_stop { PauseReason::Shutdown } else { PauseReason::Failover };
        Some(ClientPause { reason, until_ms: i64::MAX.cast_unsigned(), writes_only: true })
    }

    /// Makes commands that may write wait for a reason, beside the pause of clients.
    pub fn hold_writes(&self, reason: PauseReason) {
        self.holds.fetch_or(reason.bit(), Ordering::SeqCst);
        self.unpaused.notify_waiters();
    }

    /// Ends [`hold_writes`](Self::hold_writes) for this reason.
    pub fn release_writes(&self, reason: PauseReason) {
        self.holds.fetch_and(!reason.bit(), Ordering::SeqCst);
        self.unpaused.notify_waiters();
    }

    /// Returns the pause that a client has asked for and is in force, if any.
    pub fn of_clients(&self) -> Option<ClientPause> {
        if !self.paused.load(Ordering::Relaxed) {
            return None;
        }
        let pause = *self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        (pause.until_ms > self.clock.now_ms()).then_some(pause)
    }

    /// Begins, changes or (with `until_ms` 0) ends a pause. Returns the one before.
    pub fn replace(&self, pause: ClientPause) -> ClientPause {
        let mut held = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        self.put(&mut held, pause)
    }

    /// Puts a pause in the place of the one that is held, and returns that.
    fn put(&self, held: &mut ClientPause, pause: ClientPause) -> ClientPause {
        self.paused.store(pause.until_ms != 0, Ordering::Relaxed);
        self.unpaused.notify_waiters();
        std::mem::replace(held, pause)
    }

    /// Ends the pause that clients have asked for.
    pub fn end(&self) {
        self.replace(ClientPause::default());
    }

    /// Puts the pause back that was before another one, unless that was changed meanwhile.
    pub fn take_back(&self, pause: ClientPause, before: ClientPause) {
        let mut held = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        if *held == pause {
            self.put(&mut held, before);
        }
    }

    /// Waits until no pause is in force that a client has asked for.
    pub async fn end_of_clients(&self) {
        loop {
            // Created before the look: a change from then on is not missed.
            let changed = self.unpaused.notified();
            let Some(pause) = self.of_clients() else { return };
            self.until(pause, changed).await;
        }
    }

    /// Waits until no pause delays a command. `may_write`: the command may change data.
    pub async fn wait(&self, may_write: bool) {
        loop {
            let changed = self.unpaused.notified();
            match self.now() {
                Some(pause) if may_write || !pause.writes_only => self.until(pause, changed).await,
                _ => return,
            }
        }
    }

    /// Waits until a pause has ended or changed.
    async fn until(&self, pause: ClientPause, changed: Notified<'_>) {
        let left = pause.until_ms.saturating_sub(self.clock.now_ms()).clamp(1, LOOK_MS);
        let _ = tokio::time::timeout(Duration::from_millis(left), changed).await;
    }
}
