//! Accepts connections of the HTTP port, and bounds them: their number, the time of a request and of
//! a connection, the size of headers.

use super::access::{self, Ends};
use super::{ENDING, Site, answer, health, metrics, pages, rest, watch};
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
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Maximum number of connections; further ones are closed at once.
const MAX_CONNECTIONS: usize = 128;

/// Maximum number of connections of an address beyond loopback, so that one machine cannot keep the
/// health checks of others out.
const MAX_OF_ADDRESS: usize = 32;

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
    // Those that do not end in time end with the runtime.
    let _ = tokio::time::timeout(ENDING, connections.wait()).await;
}

fn router(site: &Arc<Site>) -> Router {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(metrics::metrics))
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

/// Number of connections of each address.
#[derive(Debug, Default)]
struct Places(Mutex<HashMap<IpAddr, usize>>);

impl Places {
    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a connection, until this is dropped.
#[derive(Debug)]
struct AddressPlace {
    places: Arc<Places>,
    address: IpAddr,
}

impl AddressPlace {
    /// Takes a place, if there is one for this address.
    fn take(places: &Arc<Places>, address: IpAddr) -> Option<Self> {
        let address = address.to_canonical();
        let most = if address.is_loopback() { MAX_CONNECTIONS } else { MAX_OF_ADDRESS };
        let mut taken = places.lock();
        let own = taken.get(&address).copied().unwrap_or(0);
        if own >= most || taken.values().sum::<usize>() >= MAX_CONNECTIONS {
            return None;
        }
        taken.insert(address, own + 1);
        Some(Self { places: places.clone(), address })
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        if let Some(own) = taken.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.address);
            }
        }
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
            let Some(place) = AddressPlace::take(&self.places, peer.ip()) else {
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
                begin(stream, ends, &site, (router, stop)).await;
                connections.fetch_sub(1, Ordering::Relaxed);
                drop(place);
            });
        }
    }
}

/// Serves a connection, after its TLS handshake if there has to be one.
async fn begin(
    stream: TcpStream,
    ends: Ends,
    site: &Site,
    (router, stop): (Router, CancellationToken),
) {
    let Some(tls) = site.tls.get().http else {
        if site.config.settings().http_tls == HttpTls::No {
            serve(stream, ends, router, stop).await;
        }
        return;
    };
    let accepting = TlsAcceptor::from(tls).accept(stream);
    match tokio::time::timeout(HEADER_TIME, accepting).await {
        Ok(Ok(stream)) => serve(stream, ends, router, stop).await,
        _ => _ = site.counters.refused.fetch_add(1, Ordering::Relaxed),
    }
}

/// Serves a connection until it ends, is too old, or the port closes.
async fn serve<S>(stream: S, ends: Ends, router: Router, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(ends);
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

    #[test]
    fn one_machine_does_not_get_all_places() {
        let places = Arc::new(Places::default());
        let from = |last: u8| IpAddr::from([10, 0, 0, last]);
        let own: Vec<AddressPlace> =
            (0..200).filter_map(|_| AddressPlace::take(&places, from(1))).collect();
        assert_eq!(own.len(), MAX_OF_ADDRESS);
        let mut all = own;
        all.extend(
            (0..200).filter_map(|_| AddressPlace::take(&places, IpAddr::from([127, 0, 0, 1]))),
        );
        assert_eq!(all.len(), MAX_CONNECTIONS);
        assert!(AddressPlace::take(&places, from(2)).is_none());
        drop(all.pop());
        assert!(AddressPlace::take(&places, from(2)).is_some());
        drop(all);
        assert!(places.lock().is_empty());
    }
}
