//! All connections of the node: admits clients, and closes them if they take too much memory.

use super::arrivals::{Arrival, Arrivals, MAX_ARRIVALS};
use super::farewell::Farewells;
use super::{Client, ClientState, Refusals};
use flagstone_wire::client_memory::{self, Limit};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum time that a client may take to authenticate.
pub const STRANGER_TIME: Duration = Duration::from_secs(10);

/// Divisor of `maxclients` that limits the clients which have yet to authenticate.
const STRANGERS_SHARE: usize = 2;

/// Number of clients that have quit which are looked at when there are too many clients.
const QUITTERS: usize = 64;

/// Time in ms that the memory of closed clients takes to be freed, before others are closed.
const EVICTION_PAUSE_MS: u64 = 10;

/// All connections of the node, by id.
#[derive(Debug, Default)]
pub struct Clients {
    next_id: AtomicU64,
    map: Mutex<BTreeMap<u64, Arc<Client>>>,
    /// Those of them that have quit; locked while all are.
    quitters: Mutex<BTreeMap<u64, Arc<Client>>>,
    /// Number of clients that have yet to authenticate.
    strangers: AtomicUsize,
    /// Number of sockets whose clients took too much memory, and which are about to be closed.
    leaving: AtomicUsize,
    /// Bytes that these clients took.
    left_bytes: AtomicU64,
    arrivals: Arc<Arrivals>,
    farewells: Farewells,
    /// Time of the last eviction of clients.
    evicted_at_ms: AtomicU64,
    pub accepted: AtomicU64,
    pub rejected: AtomicU64,
    /// Number of completed TLS handshakes.
    pub handshakes: AtomicU64,
    /// Number of TLS handshakes that failed.
    pub failed_handshakes: AtomicU64,
    /// Number of clients closed because they did not read their replies.
    pub too_slow: AtomicU64,
    /// Number of clients closed because all together took too much memory.
    pub evicted: AtomicU64,
    /// Refusals, for the log.
    pub refusals: Refusals,
}

impl Clients {
    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn quitters(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.quitters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn len(&self) -> usize {
        self.map().len()
    }

    /// Returns the number of places that are taken. If they are all, some of the clients that have quit and
    /// have no replies left to read do not count: they know the answer to QUIT already, and may connect again
    /// before their connections are closed.
    fn taken(&self, map: &BTreeMap<u64, Arc<Client>>, max: usize) -> usize {
        let taken = map.len() + self.leaving.load(Ordering::Relaxed);
        if taken < max {
            return taken;
        }
        let quitters = self.quitters();
        let latest = quitters.values().rev().take(QUITTERS);
        taken.saturating_sub(latest.filter(|client| client.has_left()).count())
    }

    /// Notes that a client has quit.
    pub fn note_quit(&self, id: u64) {
        if let Some(client) = self.map().get(&id) {
            self.quitters().insert(id, client.clone());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a place for a connection that becomes a client when its handshake is complete: one of
    /// those for clients that have to authenticate, unless there are `max` clients already. The
    /// oldest of such connections makes room, once it has had its time; until then this waits.
    pub async fn arrive(&self, max: usize) -> Option<Arrival> {
        loop {
            let left = match self.try_arrive(max) {
                Ok(place) => return Some(place),
                Err(left) => left?,
            };
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                () = self.arrivals.freed() => {}
            }
        }
    }

    /// Like [`arrive`](Self::arrive), but does not wait.
    ///
    /// # Errors
    /// The time until the oldest makes room. `None`: there are too many clients.
    fn try_arrive(&self, max: usize) -> Result<Arrival, Option<Duration>> {
        let map = self.map();
        let strangers = self.strangers.load(Ordering::Relaxed);
        let arrivals = self.arrivals.len();
        let is_full = self.taken(&map, max.saturating_sub(arrivals)) + arrivals >= max
            || strangers + arrivals >= max.div_ceil(STRANGERS_SHARE)
            || arrivals >= MAX_ARRIVALS;
        if is_full && let Err(left) = self.arrivals.end_oldest() {
            self.rejected.fetch_add(u64::from(left.is_none()), Ordering::Relaxed);
            return Err(left);
        }
        Ok(self.arrivals.begin())
    }

    /// Registers a connection, unless there are `max` already. `is_stranger`: it has to
    /// authenticate, and the number of such clients is limited.
    pub fn admit(
        &self,
        max: usize,
        is_stranger: bool,
        make: impl FnOnce(u64) -> Client,
    ) -> Option<Arc<Client>> {
        let mut map = self.map();
        let strangers = self.strangers.load(Ordering::Relaxed);
        let too_strange = is_stranger && strangers >= max.div_ceil(STRANGERS_SHARE);
        if too_strange || self.taken(&map, max) >= max {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let client = Arc::new(make(id));
        if is_stranger {
            self.estrange(&client, client.created_ms);
        }
        map.insert(id, client.clone());
        Some(client)
    }

    /// Marks a client that has to authenticate from now on.
    pub fn estrange(&self, client: &Client, now_ms: u64) {
        if client.stranger_since_ms.swap(now_ms.max(1), Ordering::Relaxed) == 0 {
            self.strangers.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Marks a client that has authenticated or disconnected.
    pub fn befriend(&self, client: &Client) {
        if client.stranger_since_ms.swap(0, Ordering::Relaxed) != 0 {
            self.strangers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub fn remove(&self, id: u64) {
        let mut map = self.map();
        map.remove(&id);
        self.quitters().remove(&id);
    }

    /// Closes a connection; it is not listed any more.
    pub fn kill(&self, client: &Client) {
        self.remove(client.id);
        client.kill();
    }

    /// Waits until the socket of a client that took too much memory, `bytes`, may be closed. It
    /// counts as a connection until then.
    pub async fn part(&self, now_ms: u64, bytes: u64) {
        let pause = self.farewells.pause(now_ms, bytes);
        if !pause.is_zero() {
            let _place = Leaving::new(self, bytes);
            tokio::time::sleep(pause).await;
        }
    }

    pub fn get(&self, id: u64) -> Option<Arc<Client>> {
        self.map().get(&id).cloned()
    }

    /// Returns all clients, oldest first.
    pub fn all(&self) -> Vec<Arc<Client>> {
        self.map().values().cloned().collect()
    }

    /// Closes clients that take too long to authenticate.
    pub fn close_strangers(&self, now_ms: u64) {
        if self.strangers.load(Ordering::Relaxed) == 0 {
            return;
        }
        for client in self.all() {
            let since_ms = client.stranger_since_ms.load(Ordering::Relaxed);
            if since_ms != 0 && now_ms.saturating_sub(since_ms) >= STRANGER_TIME.as_millis() as u64
            {
                self.refusals.silent(&client.addr);
                client.kill();
            }
        }
    }

    /// Closes clients if their large buffers together exceed the limit.
    #[inline]
    pub fn relieve(&self, now_ms: u64) {
        if client_memory::CLIENTS.is_over() {
            self.relieve_now(now_ms);
        }
    }

    /// Lets the next [`relieve`](Self::relieve) close clients at once: the limit has changed.
    pub fn look_again(&self) {
        self.evicted_at_ms.store(0, Ordering::Relaxed);
    }

    #[cold]
    fn relieve_now(&self, now_ms: u64) {
        let last_ms = self.evicted_at_ms.load(Ordering::Relaxed);
        if now_ms.saturating_sub(last_ms) >= EVICTION_PAUSE_MS {
            self.evicted_at_ms.store(now_ms, Ordering::Relaxed);
            self.evict(client_memory::CLIENTS.limit());
        }
    }

    /// Closes the clients that take most memory, except those with CLIENT NO-EVICT ON, until all
    /// together are within the limit. A client within the limit of a single one is spared while the
    /// others keep to theirs, unless many commands are queued; those that are closed for their memory count
    /// among the others until their sockets are closed: else of many that take too much, one after the other
    /// would be.
    pub fn evict(&self, limit: Limit) {
        if limit.all == 0 {
            return;
        }
        let mut clients: Vec<_> =
            self.all().into_iter().map(|client| (client.memory(), client)).collect();
        let mut total: u64 = clients.iter().map(|(bytes, _)| bytes).sum();
        if total <= limit.all {
            return;
        }
        clients.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let left = self.left_bytes.load(Ordering::Relaxed);
        for (bytes, client) in clients {
            let is_single = limit.single > limit.all
                && bytes <= limit.single
                && client.queued_beside_a_value() <= limit.all;
            if total <= limit.all || (is_single && total - bytes + left <= limit.all) {
                break;
            }
            if client.is(ClientState::NO_EVICT) {
                continue;
            }
            total -= bytes;
            self.evicted.fetch_add(1, Ordering::Relaxed);
            self.refusals.evicted(&client.addr);
            client.set_greedy();
            self.kill(&client);
        }
    }
}

/// A socket that is about to be closed.
struct Leaving<'a> {
    clients: &'a Clients,
    bytes: u64,
}

impl<'a> Leaving<'a> {
    fn new(clients: &'a Clients, bytes: u64) -> Self {
        clients.leaving.fetch_add(1, Ordering::Relaxed);
        clients.left_bytes.fetch_add(bytes, Ordering::Relaxed);
        Self { clients, bytes }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.clients.leaving.fetch_sub(1, Ordering::Relaxed);
        self.clients.left_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::arrivals::{LEAST_TIME, SILENT_TIME};
    use super::*;
    use crate::transport::PeerAddr;
    use std::net::{Ipv4Addr, SocketAddr};
    use tokio::net::TcpStream;

    fn client(id: u64) -> Client {
        let addr = PeerAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
        Client::new(id, (addr.clone(), addr), 0, 0, 1000)
    }

    #[test]
    fn strangers_get_half_of_the_places_and_ten_seconds() {
        let clients = Clients::default();
        let first = clients.admit(4, true, client).expect("there is room");
        assert!(clients.admit(4, true, client).is_some());
        assert!(clients.admit(4, true, client).is_none());
        clients.befriend(&first);
        clients.befriend(&first);
        assert!(clients.admit(4, true, client).is_some());
        assert!(clients.admit(4, true, client).is_none());
        assert!(clients.admit(4, false, client).is_some());
        clients.close_strangers(10_999);
        assert!(clients.all().iter().all(|client| !client.is_killed()));
        clients.close_strangers(11_000);
        let killed: Vec<_> = clients.all().iter().map(|client| client.is_killed()).collect();
        assert_eq!(killed, [false, true, true, false]);
    }

    #[test]
    fn one_that_has_quit_and_read_its_replies_leaves_its_place() {
        let clients = Clients::default();
        let first = clients.admit(2, false, client).expect("there is room");
        let second = clients.admit(2, false, client).expect("there is room");
        for one in [&first, &second] {
            one.outbox.set_replies(10);
            one.set(ClientState::QUIT, true);
            clients.note_quit(one.id);
        }
        assert!(clients.admit(2, false, client).is_none(), "both have replies to read");
        second.outbox.set_replies(0);
        let third = clients.admit(2, false, client).expect("the second one has left");
        assert_eq!(clients.len(), 3);
        assert!(clients.admit(2, false, client).is_none());
        clients.remove(second.id);
        clients.note_quit(second.id);
        assert!(clients.admit(2, false, client).is_none(), "its place is taken");
        clients.kill(&first);
        clients.kill(&third);
        assert!(clients.is_empty() && clients.quitters().is_empty());
    }

    #[test]
    fn no_more_than_some_that_have_quit_leave_their_places() {
        let clients = Clients::default();
        for _ in 0..2 * QUITTERS {
            let one = clients.admit(2 * QUITTERS, false, client).expect("there is room");
            one.set(ClientState::QUIT, true);
            clients.note_quit(one.id);
        }
        let admitted = || clients.admit(2 * QUITTERS, false, client).is_some();
        assert_eq!((0..3 * QUITTERS).filter(|_| admitted()).count(), QUITTERS);
    }

    fn is_ended(arrival: &Arrival) -> bool {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(arrival.ended()).poll(&mut cx).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn handshakes_take_the_places_of_strangers_and_the_oldest_makes_room() {
        let clients = Clients::default();
        let first = clients.arrive(4).await.expect("there is room");
        let second = clients.arrive(4).await.expect("there is room");
        let third = clients.arrive(4).await.expect("the first makes room");
        assert_eq!(clients.arrivals.len(), 2);
        assert!(is_ended(&first));
        assert!(!is_ended(&second));
        drop((first, second, third));
        assert_eq!(clients.arrivals.len(), 0);
        for _ in 0..2 {
            assert!(clients.admit(4, true, client).is_some());
        }
        assert!(clients.arrive(4).await.is_none(), "strangers have their half");
        assert_eq!(clients.rejected.load(Ordering::Relaxed), 1);
        let mut many = Vec::new();
        for _ in 0..5000 {
            many.push(clients.arrive(100_000).await);
        }
        assert_eq!(clients.arrivals.len(), MAX_ARRIVALS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_has_its_time_and_others_wait_for_its_end() {
        let clients = Arc::new(Clients::default());
        let began = tokio::time::Instant::now();
        let first = clients.arrive(4).await.expect("there is room");
        let second = clients.arrive(4).await.expect("there is room");
        first.proceeds();
        let silent = clients.arrive(4).await.expect("the silent one makes room");
        assert!(is_ended(&second) && !is_ended(&first));
        assert_eq!(began.elapsed(), SILENT_TIME);
        drop(second);
        silent.proceeds();
        let third = clients.arrive(4).await.expect("the first makes room");
        assert_eq!(began.elapsed(), LEAST_TIME);
        assert!(is_ended(&first) && !is_ended(&silent));
        drop((first, silent));
        third.proceeds();
        let waiting = tokio::spawn({
            let clients = clients.clone();
            async move { clients.arrive(2).await.is_some() }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(third);
        assert!(waiting.await.expect("it ends"), "the other has ended before its time");
        assert_eq!(began.elapsed(), LEAST_TIME);
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_is_not_ended_by_those_that_have_sent_something() {
        let clients = Clients::default();
        let began = tokio::time::Instant::now();
        let first = clients.arrive(4).await.expect("there is room");
        first.proceeds();
        tokio::time::sleep(LEAST_TIME - SILENT_TIME / 2).await;
        let newcomer = clients.arrive(4).await.expect("there is room");
        let third = clients.arrive(4).await.expect("the first makes room");
        assert!(is_ended(&first) && !is_ended(&newcomer));
        assert_eq!(began.elapsed(), LEAST_TIME);
        third.proceeds();
        let _fourth = clients.arrive(4).await.expect("the silent one makes room");
        assert!(is_ended(&newcomer) && !is_ended(&third));
        assert_eq!(began.elapsed(), LEAST_TIME + SILENT_TIME / 2);
    }

    #[tokio::test(start_paused = true)]
    async fn one_whose_bytes_are_not_read_yet_is_not_silent() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let connect = async || {
            let client = TcpStream::connect(listener.local_addr().expect("an address"));
            let (client, server) = tokio::join!(client, listener.accept());
            (client.expect("a connection"), Arc::new(server.expect("a connection").0))
        };
        let clients = Clients::default();
        let (early, early_end) = connect().await;
        let (silent, silent_end) = connect().await;
        let first = clients.arrive(4).await.expect("there is room");
        first.waits_at(&early_end);
        let second = clients.arrive(4).await.expect("there is room");
        second.waits_at(&silent_end);
        early.try_write(b"x").expect("sent");
        early_end.peek(&mut [0]).await.expect("it has arrived");
        let third = clients.arrive(4).await.expect("the silent one makes room");
        assert!(is_ended(&second) && !is_ended(&first));
        first.proceeds();
        assert!(Arc::into_inner(early_end).is_some(), "the socket is given back");
        // One that has closed its connection is silent, too.
        drop((second, third, silent));
        let gone = clients.arrive(4).await.expect("there is room");
        gone.waits_at(&silent_end);
        let _fourth = clients.arrive(4).await.expect("the one that is gone makes room");
        assert!(is_ended(&gone) && !is_ended(&first));
    }

    fn strict(all: u64) -> Limit {
        Limit { all, single: all }
    }

    #[test]
    fn one_that_sends_a_large_value_is_spared_and_two_are_not() {
        let clients = Clients::default();
        for bytes in [500_u64, 40_000, 400] {
            let client = clients.admit(10, false, client).expect("there is room");
            client.query_bytes.store(bytes, Ordering::Relaxed);
        }
        let limit = Limit { all: 10_000, single: 100_000 };
        clients.evict(limit);
        assert_eq!(clients.len(), 3);
        let another = clients.admit(10, false, client).expect("there is room");
        another.query_bytes.store(50_000, Ordering::Relaxed);
        clients.evict(limit);
        assert_eq!(clients.len(), 3, "the one that takes most goes");
        assert!(another.is_killed());
        clients.get(2).expect("spared").query_bytes.store(100_001, Ordering::Relaxed);
        clients.evict(limit);
        assert!(clients.get(2).is_none(), "more than a single one may take");
    }

    #[tokio::test(start_paused = true)]
    async fn none_is_spared_while_those_that_took_too_much_are_leaving() {
        let clients = Arc::new(Clients::default());
        let leaving: Vec<_> = (0..40)
            .map(|_| {
                let clients = clients.clone();
                tokio::spawn(async move { clients.part(1000, 20_000).await })
            })
            .collect();
        tokio::task::yield_now().await;
        let large = clients.admit(100, false, client).expect("there is room");
        large.query_bytes.store(50_000, Ordering::Relaxed);
        let limit = Limit { all: 10_000, single: 100_000 };
        clients.evict(limit);
        assert!(large.is_killed(), "others have just been closed for less");
        for one in leaving {
            one.await.expect("it ends");
        }
        let large = clients.admit(100, false, client).expect("there is room");
        large.query_bytes.store(50_000, Ordering::Relaxed);
        clients.evict(limit);
        assert!(!large.is_killed());
    }

    #[test]
    fn those_that_take_most_are_closed_until_there_is_room() {
        let clients = Clients::default();
        for bytes in [100_u64, 900_000, 500_000, 700_000] {
            let client = clients.admit(10, false, client).expect("there is room");
            client.query_bytes.store(bytes, Ordering::Relaxed);
        }
        clients.get(2).expect("there").set(ClientState::NO_EVICT, true);
        clients.evict(strict(0));
        clients.evict(strict(3_000_000));
        assert_eq!(clients.len(), 4);
        clients.evict(strict(1_500_000));
        let left: Vec<u64> = clients.all().iter().map(|client| client.id).collect();
        assert_eq!(left, [1, 2, 3]);
        clients.evict(strict(1000));
        let left: Vec<u64> = clients.all().iter().map(|client| client.id).collect();
        assert_eq!(left, [2], "only the one that is spared");
        assert_eq!(clients.evicted.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn memory_is_that_of_the_buffer_and_of_all_that_a_client_holds() {
        let clients = Clients::default();
        let client = clients.admit(10, false, client).expect("there is room");
        let before = client.memory();
        client.query_bytes.store(600, Ordering::Relaxed);
        client.argument_bytes.store(300, Ordering::Relaxed);
        assert_eq!(client.memory(), before + 900);
        client.buffer_bytes.store(1000, Ordering::Relaxed);
        assert_eq!(client.memory(), before + 1000, "the buffer has them");
        client.hold(50);
        assert_eq!(client.memory(), before + 1050);
        client.release(50);
        assert_eq!(client.memory(), before + 1000);
    }
}
