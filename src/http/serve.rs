//! Accepts connections of the HTTP port, and bounds them: their number, the time of a request and of
//! a connection, the size of headers.

use super::access::{self, Ends};
use super::{ENDING, Site, answer, health, metrics, pages, profile, rest, watch};
use crate::config::{HttpTls, Settings};
use anyhow::{Context, Result, bail};
use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{any, get, post};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Maximum number of connections; a further one takes the place of one that runs no commands, or is
/// closed.
const MAX_CONNECTIONS: usize = 128;

/// Maximum number of connections of an address beyond loopback, so that one machine cannot keep the
/// health checks of others out.
const MAX_OF_ADDRESS: usize = 32;

/// Number of connections of an address that wrong passwords do not keep: clients behind a proxy share it, and
/// some of them ask for health without a password.
const SPARE_OF_ADDRESS: usize = 4;

/// Maximum number of header lines of a request, and of bytes of its headers.
const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 16 << 10;

/// Time in which the headers of a request have to arrive, also on a connection that was idle.
const HEADER_TIME: Duration = Duration::from_secs(10);

/// Time for the answer to a request, with the time in which its body arrives.
const REQUEST_TIME: Duration = Duration::from_secs(30);

/// Time after which a connection ends, behind the answer to its last request. A client that does
/// not read is closed [`REQUEST_TIME`] later.
const CONNECTION_TIME: Duration = Duration::from_secs(300);

/// Number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listens on the addresses of the settings.
///
/// # Errors
/// One of them does not exist or is in use.
pub(super) fn listen(settings: &Settings) -> Result<Vec<StdListener>> {
    let mut listeners = Vec::new();
    for bind in &settings.http_bind {
        let (host, optional) = match bind.strip_prefix('-') {
            Some(host) => (host, true),
            None => (&**bind, false),
        };
        let host = match host {
            "*" => "0.0.0.0",
            "::*" => "::",
            host => host,
        };
        let found = match (host, settings.http_port).to_socket_addrs() {
            Ok(found) => found,
            Err(_) if optional => continue,
            Err(error) => bail!("http-bind {host}: {error}"),
        };
        for address in found {
            match listen_on(address) {
                Ok(listener) => listeners.push(listener),
                Err(error) if optional => {
                    tracing::info!(%address, %error, "no HTTP on an optional address");
                }
                Err(error) => return Err(error).with_context(|| format!("listening on {address}")),
            }
        }
    }
    if listeners.is_empty() {
        bail!("http-bind: there is nothing to listen on");
    }
    Ok(listeners)
}

fn listen_on(address: SocketAddr) -> std::io::Result<StdListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Serves the port until it is told to stop; open connections may end then.
pub(super) async fn run(site: Arc<Site>, listeners: Vec<StdListener>, stop: CancellationToken) {
    let (router, connections) = (router(&site), TaskTracker::new());
    let places = Arc::new(Places::default());
    for listener in listeners {
        let listener = match TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "a listener of the HTTP port cannot be taken over");
                continue;
            }
        };
        let accepting = Accepting {
            site: site.clone(),
            router: router.clone(),
            connections: connections.clone(),
            places: places.clone(),
            stop: stop.clone(),
        };
        tokio::spawn(accepting.run(listener));
    }
    tokio::spawn(watch::run(site.clone()));
    stop.cancelled().await;
    connections.close();
    // Connections that do not end in time end with the runtime.
    let _ = tokio::time::timeout(ENDING, connections.wait()).await;
}

fn router(site: &Arc<Site>) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(metrics::metrics))
        .route("/profile", get(profile::profile))
        .route("/pipeline", post(rest::pipeline))
        .route("/multi-exec", post(rest::multi_exec))
        .route("/status", get(pages::status))
        .route("/dashboard.css", get(pages::style))
        .route("/dashboard.js", get(pages::script))
        .route("/", any(rest::root))
        .fallback(rest::path)
        .layer(middleware::from_fn_with_state(site.clone(), access::admit))
        .layer(middleware::from_fn(within_time))
        .layer(middleware::map_response(answer::harden))
        .with_state(site.clone())
}

/// Answers in time, or with an error.
async fn within_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(REQUEST_TIME, next.run(request)).await {
        Ok(response) => response,
        Err(_) => answer::Denial::late(REQUEST_TIME).into(),
    }
}

/// Parts of the task that accepts connections.
struct Accepting {
    site: Arc<Site>,
    router: Router,
    connections: TaskTracker,
    places: Arc<Places>,
    stop: CancellationToken,
}

/// Connections, by number: the oldest come first.
type Seats = BTreeMap<u64, Arc<Seat>>;

/// The open connections.
#[derive(Debug, Default)]
struct Places {
    seats: Mutex<Seats>,
    last: AtomicU64,
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the maximum number of connections of an address.
    fn most_of(address: IpAddr) -> usize {
        if address.is_loopback() { MAX_CONNECTIONS } else { MAX_OF_ADDRESS }
    }

    /// Returns true if wrong passwords keep as many places of an address as they may.
    fn are_kept(seats: &Seats, address: IpAddr) -> bool {
        let of_address = seats.values().filter(|seat| seat.address == address);
        let kept = of_address.filter(|seat| seat.kept_until().is_some()).count();
        kept >= Self::most_of(address) - SPARE_OF_ADDRESS
    }
}

/// The part of a connection that a new one sees when it needs its place.
#[derive(Debug)]
pub(super) struct Seat {
    address: IpAddr,
    /// True once one of its requests was allowed to run commands.
    is_trusted: AtomicBool,
    /// Number of its requests that run commands now.
    working: AtomicUsize,
    /// Time until which the answer to a wrong password is kept back.
    kept_until: Mutex<Option<Instant>>,
    /// Tells it to end: another connection has its place.
    leave: CancellationToken,
    /// The connections that it is one of.
    places: Weak<Places>,
}

impl Seat {
    fn new(places: &Arc<Places>, address: IpAddr) -> Self {
        Self {
            address,
            places: Arc::downgrade(places),
            is_trusted: AtomicBool::new(false),
            working: AtomicUsize::new(0),
            kept_until: Mutex::new(None),
            leave: CancellationToken::new(),
        }
    }

    /// Begins a request that is allowed to run commands: its connection stays until it has ended.
    pub(super) fn begin_work(self: &Arc<Self>) -> SeatedWork {
        self.is_trusted.store(true, Ordering::Relaxed);
        self.working.fetch_add(1, Ordering::Relaxed);
        SeatedWork(self.clone())
    }

    /// Returns false if so many wrong passwords of its address wait for their answers that no further password
    /// is to be looked at.
    pub(super) fn may_log_in(&self) -> bool {
        self.places.upgrade().is_none_or(|places| !Places::are_kept(&places.lock(), self.address))
    }

    /// Keeps the place until the answer to a wrong password is due: connections of its own address do
    /// not get it before. It is trusted no more than before. The last places of an address are not kept: that
    /// bounds its guesses only by those that were looked at when the others were kept.
    pub(super) fn keep_until(&self, end: Instant) {
        let places = self.places.upgrade();
        let seats = places.as_ref().map(|places| places.lock());
        if seats.as_ref().is_some_and(|seats| Places::are_kept(seats, self.address)) {
            return;
        }
        *self.kept_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    /// Returns the time until which the place is kept, if that is still to come.
    fn kept_until(&self) -> Option<Instant> {
        let until = *self.kept_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.filter(|until| *until > Instant::now())
    }

    fn is_trusted(&self) -> bool {
        self.is_trusted.load(Ordering::Relaxed)
    }
}

/// A request that runs commands, until this is dropped.
#[derive(Debug)]
pub(super) struct SeatedWork(Arc<Seat>);

impl Drop for SeatedWork {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The place of a connection, until this is dropped.
#[derive(Debug)]
struct ConnectionPlace {
    places: Arc<Places>,
    number: u64,
    seat: Arc<Seat>,
}

impl ConnectionPlace {
    /// Takes a place. When there is none for this address, or at all, a connection ends that runs
    /// no commands: rather one without a password than one that has given it, rather one of an
    /// address with many connections, and rather an old one. So nobody keeps a health check out. A
    /// connection whose wrong password is not answered yet leaves last of those without one, and only
    /// for another address.
    fn take(places: &Arc<Places>, address: IpAddr) -> Option<Self> {
        let address = address.to_canonical();
        let most = Places::most_of(address);
        let mut seats = places.lock();
        let mut of_each: HashMap<IpAddr, usize> = HashMap::new();
        seats.values().for_each(|seat| *of_each.entry(seat.address).or_default() += 1);
        let is_crowded = of_each.get(&address).is_some_and(|own| *own >= most);
        if is_crowded || seats.len() >= MAX_CONNECTIONS {
            let may_leave = |seat: &Seat| {
                let is_near = !is_crowded || seat.address == address;
                let is_kept = seat.address == address && seat.kept_until().is_some();
                is_near && !is_kept && seat.working.load(Ordering::Relaxed) == 0
            };
            let leaving = seats.iter().filter(|(_, seat)| may_leave(seat));
            let leaving = leaving.min_by_key(|(number, seat)| {
                let is_kept = seat.kept_until().is_some();
                (seat.is_trusted(), is_kept, Reverse(of_each.get(&seat.address)), **number)
            });
            let number = leaving.map(|(number, _)| *number)?;
            seats.remove(&number)?.leave.cancel();
        }
        let number = places.last.fetch_add(1, Ordering::Relaxed);
        let seat = Arc::new(Seat::new(places, address));
        seats.insert(number, seat.clone());
        Some(Self { places: places.clone(), number, seat })
    }

    /// Gives the place back, but not before the answer to a wrong password was due.
    async fn release(self, stop: &CancellationToken) {
        let Some(until) = self.seat.kept_until() else { return };
        tokio::select! {
            () = tokio::time::sleep_until(until.into()) => {}
            () = self.seat.leave.cancelled() => {}
            () = stop.cancelled() => {}
        }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.places.lock().remove(&self.number);
    }
}

impl Accepting {
    async fn run(self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.stop.cancelled() => return,
            };
            let Ok((stream, peer)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Some(place) = ConnectionPlace::take(&self.places, peer.ip()) else {
                self.site.counters.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            // A socket that cannot be tuned still works.
            let _ = stream.set_nodelay(true);
            let ends = Ends { peer, local: stream.local_addr().unwrap_or(peer) };
            let (router, stop) = (self.router.clone(), self.stop.clone());
            let site = self.site.clone();
            self.connections.spawn(async move {
                let connections = &site.counters.connections;
                connections.fetch_add(1, Ordering::Relaxed);
                let seat = place.seat.clone();
                tokio::select! {
                    () = begin(stream, (ends, seat), &site, (router, stop.clone())) => {}
                    () = place.seat.leave.cancelled() => {
                        site.counters.refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
                connections.fetch_sub(1, Ordering::Relaxed);
                place.release(&stop).await;
            });
        }
    }
}

/// Serves a connection, after its TLS handshake if there has to be one.
async fn begin(
    stream: TcpStream,
    place: (Ends, Arc<Seat>),
    site: &Site,
    (router, stop): (Router, CancellationToken),
) {
    let Some(tls) = site.tls.get().http else {
        if site.config.settings().http_tls == HttpTls::No {
            serve(stream, place, router, stop).await;
        }
        return;
    };
    let accepting = TlsAcceptor::from(tls).accept(stream);
    match tokio::time::timeout(HEADER_TIME, accepting).await {
        Ok(Ok(stream)) => serve(stream, place, router, stop).await,
        _ => _ = site.counters.refused.fetch_add(1, Ordering::Relaxed),
    }
}

/// Serves a connection until it ends, is too old, or the port closes.
async fn serve<S>(
    stream: S,
    (ends, seat): (Ends, Arc<Seat>),
    router: Router,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ends);
        request.extensions_mut().insert(seat.clone());
        service.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        // An error is the client's way to disconnect.
        _ = connection.as_mut() => return,
        () = stop.cancelled() => {}
        () = tokio::time::sleep(CONNECTION_TIME) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(REQUEST_TIME, connection).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    impl Seat {
        /// Makes the answer to a wrong password due.
        fn due(&self) {
            *self.kept_until.lock().unwrap() = None;
        }
    }

    fn left(places: &[ConnectionPlace]) -> usize {
        places.iter().filter(|place| place.seat.leave.is_cancelled()).count()
    }

    #[test]
    fn one_machine_does_not_get_all_places() {
        let places = Arc::new(Places::default());
        let own: Vec<ConnectionPlace> =
            (0..200).filter_map(|_| ConnectionPlace::take(&places, from(1))).collect();
        assert_eq!((own.len(), left(&own), places.lock().len()), (200, 168, MAX_OF_ADDRESS));
        let near = IpAddr::from([127, 0, 0, 1]);
        let local: Vec<ConnectionPlace> =
            (0..200).filter_map(|_| ConnectionPlace::take(&places, near)).collect();
        assert_eq!((local.len(), places.lock().len()), (200, MAX_CONNECTIONS));
        // Those of the address with the most connections make room.
        assert_eq!((left(&own), left(&local)), (168, 200 - (MAX_CONNECTIONS - MAX_OF_ADDRESS)));
        let other = ConnectionPlace::take(&places, from(2)).expect("a place");
        assert_eq!((left(&own), other.seat.leave.is_cancelled()), (168, false));
        drop((own, local, other));
        assert!(places.lock().is_empty());
    }

    #[test]
    fn guesses_keep_their_places_from_their_own_address_only() {
        let places = Arc::new(Places::default());
        let own: Vec<ConnectionPlace> =
            (0..MAX_OF_ADDRESS).filter_map(|_| ConnectionPlace::take(&places, from(1))).collect();
        let soon = Instant::now() + Duration::from_secs(600);
        let most = MAX_OF_ADDRESS - SPARE_OF_ADDRESS;
        own[1..most].iter().for_each(|place| place.seat.keep_until(soon));
        assert!(own[0].seat.may_log_in());
        own[most].seat.keep_until(soon);
        // No further password of this address is looked at. One that is under way keeps nothing.
        assert!(!own[0].seat.may_log_in() && !own[1].seat.may_log_in());
        own[0].seat.keep_until(soon);
        let health: Vec<ConnectionPlace> =
            (0..20).filter_map(|_| ConnectionPlace::take(&places, from(1))).collect();
        assert!(own[0].seat.leave.is_cancelled(), "the oldest that is not kept");
        assert_eq!((health.len(), left(&own), left(&health)), (20, SPARE_OF_ADDRESS, 16));
        assert_eq!(places.lock().len(), MAX_OF_ADDRESS);
        assert!(!health[19].seat.is_trusted() && !health[19].seat.may_log_in());
        // Together, several addresses have all places: one of a further address gets one of them.
        let others: Vec<ConnectionPlace> = (2..5)
            .flat_map(|last| (0..MAX_OF_ADDRESS).map(move |_| last))
            .filter_map(|last| ConnectionPlace::take(&places, from(last)))
            .inspect(|place| place.seat.keep_until(soon))
            .collect();
        assert_eq!((others.len(), left(&others), places.lock().len()), (96, 0, MAX_CONNECTIONS));
        let other = ConnectionPlace::take(&places, from(9)).expect("a place");
        assert_eq!((left(&own), left(&health), left(&others)), (SPARE_OF_ADDRESS, 17, 0));
        assert!(other.seat.may_log_in(), "another address has guessed nothing");
        own.iter().for_each(|place| place.seat.due());
        assert!(health[19].seat.may_log_in(), "the answers were due");
        let next = ConnectionPlace::take(&places, from(1)).expect("a place");
        assert!(next.seat.may_log_in());
        drop(other);
    }

    #[tokio::test]
    async fn a_guess_keeps_its_place_although_the_client_leaves() {
        let (places, stop) = (Arc::new(Places::default()), CancellationToken::new());
        let place = ConnectionPlace::take(&places, from(1)).expect("a place");
        place.release(&stop).await;
        assert!(places.lock().is_empty(), "it has guessed nothing");
        let place = ConnectionPlace::take(&places, from(1)).expect("a place");
        place.seat.keep_until(Instant::now() + Duration::from_secs(600));
        let releasing = tokio::spawn({
            let stop = stop.clone();
            async move { place.release(&stop).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(places.lock().len(), 1);
        stop.cancel();
        releasing.await.expect("it ends");
        assert!(places.lock().is_empty());
    }

    #[test]
    fn who_runs_commands_stays_and_who_has_a_password_leaves_last() {
        let places = Arc::new(Places::default());
        let near = IpAddr::from([127, 0, 0, 1]);
        let all: Vec<ConnectionPlace> =
            (0..MAX_CONNECTIONS).filter_map(|_| ConnectionPlace::take(&places, near)).collect();
        let working: Vec<SeatedWork> =
            all[..MAX_CONNECTIONS - 1].iter().map(|place| place.seat.begin_work()).collect();
        let next = ConnectionPlace::take(&places, near).expect("a place");
        assert!(left(&all) == 1 && all[MAX_CONNECTIONS - 1].seat.leave.is_cancelled());
        let _last = next.seat.begin_work();
        assert!(ConnectionPlace::take(&places, near).is_none(), "all of them run commands");
        drop(working);
        let stranger = ConnectionPlace::take(&places, near).expect("a place");
        assert!(all[0].seat.leave.is_cancelled(), "the oldest that is idle");
        let _another = ConnectionPlace::take(&places, near).expect("a place");
        assert!(stranger.seat.leave.is_cancelled() && left(&all) == 2);
    }
}
