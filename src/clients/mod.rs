//! The registry of connections: their state as CLIENT LIST shows it, their limits, and their
//! closing.
//!
//! A [`Client`] is the part of a connection that other threads may see. The room also has the state
//! of a client that connections and workers share: the [`Turn`] of a blocked command, the [`Watch`]
//! of a transaction, and the count of refused clients.

mod activity;
mod arrivals;
mod ending;
mod farewell;
mod refusals;
mod roll;
mod subscribed;
mod turn;
mod watch;

pub use arrivals::Arrival;
pub use refusals::Refusals;
pub use roll::{Clients, STRANGER_TIME};
pub use subscribed::ShardChannels;
pub use turn::{Cancel, Ended, Turn};
pub use watch::Watch;

use crate::acl::Account;
use crate::command::registry;
use crate::config::OutputBufferLimits;
use crate::outbox::{Allowed, Outbox, TooSlow};
use crate::transport::PeerAddr;
use arc_swap::ArcSwapOption;
use bitflags::bitflags;
use bytes::Bytes;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use tokio::sync::Notify;

/// Texts that a client has set for itself.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    /// Name given by CLIENT SETNAME.
    pub name: String,
    /// Library name given by CLIENT SETINFO LIB-NAME.
    pub lib_name: String,
    /// Library version given by CLIENT SETINFO LIB-VER.
    pub lib_ver: String,
}

impl Labels {
    fn bytes(&self) -> usize {
        self.name.len() + self.lib_name.len() + self.lib_ver.len()
    }
}

bitflags! {
    /// States of a connection; CLIENT LIST shows most of them as letters.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ClientState: u32 {
        const MONITOR = 1;
        const PUBSUB = 1 << 1;
        const MULTI = 1 << 2;
        const BLOCKED = 1 << 3;
        const TRACKING = 1 << 4;
        const BROKEN_REDIRECT = 1 << 5;
        const BROADCAST = 1 << 6;
        /// True if a watched key has changed; derived from the watch alone.
        const DIRTY = 1 << 7;
        const UNIX = 1 << 8;
        const NO_EVICT = 1 << 9;
        const NO_TOUCH = 1 << 10;
        const IMPORT = 1 << 11;
        /// CLIENT CAPA REDIRECT; it is shown in a field of its own.
        const CAPA_REDIRECT = 1 << 12;
        /// CLIENT TRACKING … NOLOOP.
        const NOLOOP = 1 << 13;
        /// The client is blocked with a timeout; it is not shown.
        const TIMED = 1 << 14;
        /// The connection uses TLS; it is not shown.
        const SECURED = 1 << 15;
        /// The connection is that of a replica.
        const REPLICA = 1 << 16;
        /// READONLY: the client reads from a replica without being sent to its primary.
        const READONLY = 1 << 17;
        /// The connection is that of another server of the cluster; it is not shown.
        const SERVER = 1 << 18;
        /// Its next command, which is not counted yet, waits for the end of a pause.
        const PAUSED = 1 << 19;
        /// Its commands come by the HTTP port, which counts their replies; it is not shown.
        const HTTP = 1 << 20;
        /// The client has quit: it gets the replies that are left, and nothing else; it is not shown.
        const QUIT = 1 << 21;
    }
}

/// Letters of the states, in the order in which they are shown.
const LETTERS: &[(ClientState, char)] = &[
    (ClientState::REPLICA, 'S'),
    (ClientState::MONITOR, 'O'),
    (ClientState::PUBSUB, 'P'),
    (ClientState::MULTI, 'x'),
    (ClientState::BLOCKED, 'b'),
    (ClientState::TRACKING, 't'),
    (ClientState::BROKEN_REDIRECT, 'R'),
    (ClientState::BROADCAST, 'B'),
    (ClientState::DIRTY, 'd'),
    (ClientState::UNIX, 'U'),
    (ClientState::READONLY, 'r'),
    (ClientState::NO_EVICT, 'e'),
    (ClientState::NO_TOUCH, 'T'),
    (ClientState::IMPORT, 'I'),
];

/// Approximate memory in bytes of a connection with empty buffers.
const BASE_MEMORY: u64 = 1024;

/// The part of a connection that other threads may see. Only its own task writes the counters.
#[derive(Debug)]
pub struct Client {
    pub id: u64,
    pub addr: PeerAddr,
    pub laddr: PeerAddr,
    /// File descriptor of the socket, to be shown.
    pub fd: i32,
    pub worker: usize,
    pub created_ms: u64,
    last_ms: AtomicU64,
    /// True while its commands run, until their replies are written.
    running: AtomicBool,
    db: AtomicU32,
    /// RESP version: 2 or 3.
    resp: AtomicU32,
    /// Bits of [`ClientState`].
    states: AtomicU32,
    /// Client that receives the invalidations; 0 if it is this one.
    redirect: AtomicU64,
    /// Id of the last command plus one.
    last_command: AtomicU32,
    /// Number of subscriptions to channels, patterns and shard channels.
    pub subscriptions: [AtomicU32; 3],
    shard_channels: ShardChannels,
    /// Number of commands queued in a transaction; -1 without one.
    pub queued: AtomicI32,
    /// Number of watched keys.
    pub watched: AtomicU32,
    /// Number of bytes that were read and not processed.
    pub query_bytes: AtomicU64,
    /// Memory of the connection's own buffer of such bytes, used or not.
    pub buffer_bytes: AtomicU64,
    /// Bytes of the arguments of the running command, or of the one that is being read.
    pub argument_bytes: AtomicU64,
    /// Bytes of the commands queued in a transaction.
    pub queued_bytes: AtomicU64,
    /// Length of the longest argument of its queued commands.
    pub queued_longest: AtomicU64,
    /// Bytes of its watched keys, subscriptions and prefixes.
    held_bytes: AtomicU64,
    pub commands: AtomicU64,
    /// Number of commands that its scripts have run, on any thread.
    scripted: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    /// Pushes that wait to be written.
    pub outbox: Outbox,
    /// Keys that it watches, if any.
    watch: Mutex<Option<Arc<Watch>>>,
    /// True if it was closed because it read its replies or messages too slowly.
    too_slow: AtomicBool,
    /// Bytes that it took if it is closed because that was too much; 0 if it is not.
    greedy_bytes: AtomicU64,
    /// Turn of its blocked command, which CLIENT UNBLOCK ends.
    turn: Mutex<Option<Arc<Turn>>>,
    killed: AtomicBool,
    /// True if it runs no further commands.
    ending: AtomicBool,
    kill: Notify,
    labels: Mutex<Labels>,
    /// Time since which it has to authenticate, ms since the Unix epoch; 0 if it has, or need not.
    stranger_since_ms: AtomicU64,
    /// Account that it is logged in under; `None` until its connection has begun.
    account: ArcSwapOption<Account>,
}

/// Adds to a counter that only one thread writes.
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl Client {
    pub fn new(
        id: u64,
        (addr, laddr): (PeerAddr, PeerAddr),
        fd: i32,
        worker: usize,
        now_ms: u64,
    ) -> Self {
        Self {
            id,
            addr,
            laddr,
            fd,
            worker,
            created_ms: now_ms,
            last_ms: AtomicU64::new(now_ms),
            running: AtomicBool::new(false),
            db: AtomicU32::new(0),
            resp: AtomicU32::new(2),
            states: AtomicU32::new(0),
            redirect: AtomicU64::new(0),
            last_command: AtomicU32::new(0),
            subscriptions: Default::default(),
            shard_channels: ShardChannels::default(),
            queued: AtomicI32::new(-1),
            watched: AtomicU32::new(0),
            query_bytes: AtomicU64::new(0),
            buffer_bytes: AtomicU64::new(0),
            argument_bytes: AtomicU64::new(0),
            queued_bytes: AtomicU64::new(0),
            queued_longest: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            scripted: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            outbox: Outbox::default(),
            watch: Mutex::default(),
            too_slow: AtomicBool::new(false),
            greedy_bytes: AtomicU64::new(0),
            turn: Mutex::default(),
            killed: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            kill: Notify::new(),
            labels: Mutex::default(),
            stranger_since_ms: AtomicU64::new(0),
            account: ArcSwapOption::empty(),
        }
    }

    /// Creates a client of the same connection that is not registered.
    pub(crate) fn double(&self) -> Self {
        let double = Self::new(
            self.id,
            (self.addr.clone(), self.laddr.clone()),
            self.fd,
            self.worker,
            self.created_ms,
        );
        double.account.store(self.account());
        double
    }

    /// Returns the account that it is logged in under; `None` if its connection is about to begin,
    /// with the default account.
    pub fn account(&self) -> Option<Arc<Account>> {
        self.account.load_full()
    }

    /// Logs it in.
    pub(crate) fn set_account(&self, account: &Arc<Account>) {
        self.account.store(Some(account.clone()));
    }

    /// Returns true if it runs on the same machine.
    pub fn is_local(&self) -> bool {
        self.addr.is_local()
    }

    pub fn labels(&self) -> MutexGuard<'_, Labels> {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn db(&self) -> u32 {
        self.db.load(Ordering::Relaxed)
    }

    pub fn set_db(&self, db: u32) {
        self.db.store(db, Ordering::Relaxed);
    }

    pub fn resp(&self) -> u32 {
        self.resp.load(Ordering::Relaxed)
    }

    pub fn set_resp(&self, version: u32) {
        self.resp.store(version, Ordering::Relaxed);
    }

    fn states(&self) -> ClientState {
        ClientState::from_bits_retain(self.states.load(Ordering::Relaxed))
    }

    /// Returns true if one of these states holds.
    pub fn is(&self, states: ClientState) -> bool {
        self.states().intersects(states)
    }

    /// Enters or leaves states.
    pub fn set(&self, states: ClientState, on: bool) {
        if on {
            self.states.fetch_or(states.bits(), Ordering::Relaxed);
        } else {
            self.states.fetch_and(!states.bits(), Ordering::Relaxed);
        }
    }

    /// Returns the client that receives its invalidations; 0 if it is this one.
    pub fn redirect(&self) -> u64 {
        self.redirect.load(Ordering::Relaxed)
    }

    pub fn set_redirect(&self, client: u64) {
        self.redirect.store(client, Ordering::Relaxed);
    }

    /// Counts the start of a command ([`crate::command::Command::id`]).
    pub fn runs(&self, command: usize) {
        self.last_command.store(command as u32 + 1, Ordering::Relaxed);
        count(&self.commands, 1);
    }

    /// Notes a command that is not counted: it is refused, or counted later.
    pub fn asks_for(&self, command: usize) {
        self.last_command.store(command as u32 + 1, Ordering::Relaxed);
    }

    /// Counts queued commands that run.
    pub fn runs_queued(&self, commands: usize) {
        count(&self.commands, commands as u64);
    }

    /// Counts commands that its scripts have run.
    pub(crate) fn scripts_ran(&self, commands: u64) {
        self.scripted.fetch_add(commands, Ordering::Relaxed);
    }

    /// Returns the full name of the last command, such as "client|list".
    pub fn last_command(&self) -> &'static str {
        let last = self.last_command.load(Ordering::Relaxed) as usize;
        last.checked_sub(1).and_then(registry::by_id).map_or("NULL", |c| c.full_name)
    }

    /// Resets the state that RESET resets, except the protocol of its messages.
    pub(crate) fn reset(&self) {
        self.set_db(0);
        self.set(
            ClientState::NO_EVICT
                | ClientState::NO_TOUCH
                | ClientState::IMPORT
                | ClientState::CAPA_REDIRECT
                | ClientState::READONLY,
            false,
        );
        self.labels().name.clear();
    }

    /// Returns the bytes of its queued commands without their longest argument: a buffer that has grown for it has
    /// up to twice its length.
    pub fn queued_beside_a_value(&self) -> u64 {
        let longest = self.queued_longest.load(Ordering::Relaxed);
        self.queued_bytes.load(Ordering::Relaxed).saturating_sub(2 * longest)
    }

    /// Returns its approximate memory in bytes.
    pub fn memory(&self) -> u64 {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // A buffer of the connection's own has what was read, and the arguments among it.
        let input = get(&self.query_bytes) + get(&self.argument_bytes);
        BASE_MEMORY
            + input.max(get(&self.buffer_bytes))
            + get(&self.queued_bytes)
            + get(&self.held_bytes)
            + self.outbox.size().1 as u64
            + self.labels().bytes() as u64
    }

    /// Counts memory of a watched key, a subscription or a prefix.
    pub(crate) fn hold(&self, bytes: usize) {
        self.held_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Ends [`hold`](Self::hold).
    pub(crate) fn release(&self, bytes: usize) {
        self.held_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    /// Returns true if it still has to authenticate.
    pub fn is_stranger(&self) -> bool {
        self.stranger_since_ms.load(Ordering::Relaxed) != 0
    }

    /// Appends its description: one line, as CLIENT LIST has it. `runs`: it runs the command that
    /// asks.
    pub fn describe(&self, now_ms: u64, runs: bool, line: &mut String) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // A command that has not ended is not counted.
        let begun = get(&self.commands) + get(&self.scripted);
        let is_waiting = self.is(ClientState::BLOCKED) && !self.is(ClientState::PAUSED);
        let ended = begun.saturating_sub(u64::from(runs || is_waiting));
        let seconds = |since_ms: u64| now_ms.saturating_sub(since_ms) / 1000;
        let labels = self.labels().clone();
        let account = self.account();
        let user = account.as_ref().map_or("default".into(), |account| account.shown_name());
        let (pieces, unsent) = self.outbox.size();
        let [sub, psub, ssub] = [0, 1, 2].map(|n| self.subscriptions[n].load(Ordering::Relaxed));
        // Writing into a String cannot fail.
        let _ = writeln!(
            line,
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} capa={} db={} sub={sub} \
            psub={psub} ssub={ssub} multi={} watch={} qbuf={} qbuf-free={} argv-mem={} multi-mem={} \
            rbs=0 rbp=0 obl=0 oll={} omem={} tot-mem={} events=r cmd={} user={user} redir={} resp={} \
            lib-name={} lib-ver={} tot-net-in={} tot-net-out={} tot-cmds={}",
            self.id,
            self.addr,
            self.laddr,
            self.fd,
            labels.name,
            seconds(self.created_ms),
            seconds(self.last_ms()),
            self.letters(),
            if self.is(ClientState::CAPA_REDIRECT) { "r" } else { "" },
            self.db(),
            self.queued.load(Ordering::Relaxed),
            self.watched.load(Ordering::Relaxed),
            get(&self.query_bytes),
            get(&self.buffer_bytes)
                .saturating_sub(get(&self.query_bytes) + get(&self.argument_bytes)),
            get(&self.argument_bytes),
            get(&self.queued_bytes),
            pieces,
            unsent,
            self.memory(),
            self.last_command(),
            if self.is(ClientState::TRACKING) { self.redirect().cast_signed() } else { -1 },
            self.resp(),
            labels.lib_name,
            labels.lib_ver,
            get(&self.bytes_in),
            get(&self.bytes_out),
            ended,
        );
    }

    /// Sets the keys that it watches; `None` if it watches none any more.
    pub(crate) fn set_watch(&self, watch: Option<Arc<Watch>>) {
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = watch;
    }

    /// Returns true if a watched key has changed.
    pub fn is_dirty(&self) -> bool {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.as_ref().is_some_and(|watch| watch.is_dirty())
    }

    fn letters(&self) -> String {
        let mut states = self.states();
        states.set(ClientState::DIRTY, self.is_dirty());
        let letters = LETTERS.iter().filter(|(state, _)| states.contains(*state));
        let letters: String = letters.map(|(_, c)| *c).collect();
        if letters.is_empty() { "N".to_owned() } else { letters }
    }

    fn turn(&self) -> MutexGuard<'_, Option<Arc<Turn>>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks the client until [`Client::end_turn`]. `timed`: it has a timeout.
    pub fn set_turn(&self, turn: &Arc<Turn>, timed: bool) {
        *self.turn() = Some(turn.clone());
        self.set(
            if timed { ClientState::BLOCKED | ClientState::TIMED } else { ClientState::BLOCKED },
            true,
        );
        if self.is_ending() {
            turn.cancel(Cancel::Gone);
        }
    }

    /// Ends the blocked state; the client counts as active now.
    pub fn end_turn(&self, now_ms: u64) {
        self.seen_at(now_ms);
        *self.turn() = None;
        self.set(ClientState::BLOCKED | ClientState::TIMED, false);
    }

    /// Ends its wait (CLIENT UNBLOCK), unless it is served before; returns false if it does not
    /// wait.
    pub fn unblock(&self, why: Cancel) -> bool {
        self.turn().as_ref().is_some_and(|turn| turn.cancel(why))
    }

    /// Pushes whole RESP values, rendered in its protocol. A client that does not read them is
    /// closed.
    pub fn push(&self, frame: Bytes, limits: &OutputBufferLimits, now_ms: u64) {
        if let Some(waker) = self.put(&[], &frame, limits, now_ms) {
            waker.wake();
        }
    }

    /// Adds a push in two parts ([`Outbox::push`]), unless the client has quit, and returns the waker of
    /// the connection's task if it has to be woken.
    #[must_use]
    pub fn put(
        &self,
        head: &[u8],
        body: &Bytes,
        limits: &OutputBufferLimits,
        now_ms: u64,
    ) -> Option<Waker> {
        if self.is(ClientState::QUIT) {
            return None;
        }
        self.outbox.push(head, body, self.allowed(limits), now_ms).unwrap_or_else(|TooSlow| {
            self.close_slow();
            None
        })
    }

    /// Closes it if it has not read its pushes for too long.
    pub fn check_outbox(&self, limits: &OutputBufferLimits, now_ms: u64) {
        if self.outbox.check(self.allowed(limits), now_ms).is_err() {
            self.close_slow();
        }
    }

    /// Returns true if so many bytes of replies may wait for it; otherwise it is closed.
    pub fn may_reply(&self, bytes: usize, limits: &OutputBufferLimits) -> bool {
        let limit = if self.is(ClientState::PUBSUB) { &limits.pubsub } else { &limits.normal };
        let may = limit.hard_bytes == 0 || (bytes as u64) < limit.hard_bytes;
        if !may {
            self.close_slow();
        }
        may
    }

    /// Returns its output limits. Pushes always have a limit: if its class has none, that of
    /// subscribers.
    fn allowed<'a>(&self, limits: &'a OutputBufferLimits) -> Allowed<'a> {
        let (normal, pubsub) = (&limits.normal, &limits.pubsub);
        if self.is(ClientState::PUBSUB) {
            Allowed { all: Some(pubsub), unasked: pubsub }
        } else if normal.hard_bytes == 0 {
            Allowed { all: (normal.soft_bytes != 0).then_some(normal), unasked: pubsub }
        } else {
            Allowed { all: Some(normal), unasked: normal }
        }
    }

    fn close_slow(&self) {
        if !self.too_slow.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                client = self.id,
                addr = %self.addr,
                "it does not read what it is sent (client-output-buffer-limit): closing"
            );
            self.set_greedy();
            self.kill();
        }
    }

    /// Returns true if it was closed because it read its replies or messages too slowly.
    pub fn is_too_slow(&self) -> bool {
        self.too_slow.load(Ordering::Relaxed)
    }

    /// Marks it as taking too much memory; it is about to be closed.
    pub fn set_greedy(&self) {
        self.greedy_bytes.store(self.memory(), Ordering::Relaxed);
    }

    /// Returns the bytes that it took if it is closed because that was too much; 0 if it is not.
    pub fn greedy_bytes(&self) -> u64 {
        self.greedy_bytes.load(Ordering::Relaxed)
    }
}
