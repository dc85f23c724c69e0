//! Access to the HTTP port: addresses, the Host and Origin headers, credentials, and slow answers to
//! wrong ones.
//!
//! Without a password, only clients of this machine may ask, and their Host header must be a name of
//! loopback: a page of another site whose name was made to resolve to 127.0.0.1 sends its own name
//! (DNS rebinding). Requests that a browser makes for another site are refused by Origin and
//! Sec-Fetch-Site. Credentials are checked by AUTH, in the session that runs the command, or as AUTH
//! does for pages that run none (`rights`).

use super::Site;
use super::answer::Denial;
use super::serve::Seat;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Paths that need no password.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// Paths of the dashboard's page.
const PAGE_PATHS: [&str; 3] = ["/", "/dashboard.css", "/dashboard.js"];

/// Maximum length of a user name and a password together, in bytes.
const MAX_CREDENTIALS: usize = 4096;

/// Maximum number of addresses whose wrong passwords are remembered.
const MAX_GUESSERS: usize = 1024;

/// Time after which the wrong passwords of an address are forgotten.
const FORGET: Duration = Duration::from_secs(60);

/// Delay of the answer to an address that has given a wrong password before, and the maximum.
const FIRST_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(3);

/// Both ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
}

/// User and password of a request.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: Vec<u8>,
    pub(super) password: Vec<u8>,
}

/// The sender of a request that was admitted.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) ends: Ends,
    pub(super) seat: Arc<Seat>,
    pub(super) credentials: Option<Credentials>,
}

/// Admits or refuses a request, before anything of it is done.
pub(super) async fn admit(
    State(site): State<Arc<Site>>,
    mut request: Request,
    next: Next,
) -> Response {
    site.counters.requests.fetch_add(1, Ordering::Relaxed);
    if OPEN_PATHS.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let found = request.extensions();
    let (Some(&ends), Some(seat)) = (found.get::<Ends>(), found.get::<Arc<Seat>>().cloned()) else {
        return Denial::forbidden("ERR the connection is not known").into();
    };
    match look(&request, ends, site.accounts.needs_password()) {
        Ok(credentials) => {
            request.extensions_mut().insert(Caller { ends, seat, credentials });
            let response = next.run(request).await;
            let denied = [StatusCode::UNAUTHORIZED, StatusCode::TOO_MANY_REQUESTS];
            if denied.contains(&response.status()) {
                site.counters.denied.fetch_add(1, Ordering::Relaxed);
            }
            response
        }
        Err(denial) => {
            site.counters.denied.fetch_add(1, Ordering::Relaxed);
            denial.into_response()
        }
    }
}

/// Checks the addresses and headers of a request, and returns its credentials, which are unchecked.
/// `needs_password`: a session has to log in before it may do anything.
fn look(
    request: &Request,
    ends: Ends,
    needs_password: bool,
) -> Result<Option<Credentials>, Denial> {
    let headers = request.headers();
    let host = match text(headers, &header::HOST) {
        Some(host) => host,
        // With an absolute address, that counts.
        None => request.uri().authority().map_or("", |authority| authority.as_str()),
    };
    if !needs_password {
        if !ends.peer.ip().to_canonical().is_loopback() {
            return Err(Denial::forbidden(
                "DENIED the HTTP port serves this machine only: no password is set (requirepass)",
            ));
        }
        if !is_loopback_name(host) {
            return Err(Denial::forbidden(
                "DENIED without a password (requirepass), the Host header must be localhost or a \
                loopback address",
            ));
        }
    }
    refuse_other_sites(request, host)?;
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        if needs_password && !request_is_page(request) {
            return Err(Denial::unauthorized("NOAUTH Authentication required."));
        }
        return Ok(None);
    };
    let wrong = || Denial::unauthorized("ERR the Authorization header is neither Basic nor Bearer");
    credentials(value.as_bytes()).map(Some).ok_or_else(wrong)
}

/// Refuses requests that a browser sends because of a page of another site. Such a page may show a link to
/// the dashboard.
fn refuse_other_sites(request: &Request, host: &str) -> Result<(), Denial> {
    let headers = request.headers();
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let named = origin.split_once("://").map_or(origin, |(_, name)| name);
        if host.is_empty() || !named.eq_ignore_ascii_case(host) {
            return Err(Denial::forbidden("DENIED the request is of a page of another origin"));
        }
    }
    let fetch = |name| text(headers, &HeaderName::from_static(name));
    let is_own = matches!(fetch("sec-fetch-site"), None | Some("same-origin" | "none"));
    let is_link = request.uri().path() == "/"
        && request.method() == Method::GET
        && fetch("sec-fetch-mode") == Some("navigate");
    if is_own || is_link {
        return Ok(());
    }
    Err(Denial::forbidden("DENIED the request is of a page of another site"))
}

/// Returns true if a request is for the dashboard's page and its parts, which have no data.
fn request_is_page(request: &Request) -> bool {
    request.method() == Method::GET && PAGE_PATHS.contains(&request.uri().path())
}

/// Returns a header that is text.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns true if a Host header names loopback.
fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(address, _)| address),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Parses an Authorization header. Bearer: the password of the default user, or `user:password`.
fn credentials(value: &[u8]) -> Option<Credentials> {
    if value.len() > MAX_CREDENTIALS {
        return None;
    }
    let at = value.iter().position(|byte| *byte == b' ')?;
    let (scheme, rest) = (&value[..at], value[at..].trim_ascii());
    let split = |pair: &[u8]| {
        let at = pair.iter().position(|byte| *byte == b':')?;
        Some(Credentials { user: pair[..at].to_vec(), password: pair[at + 1..].to_vec() })
    };
    if scheme.eq_ignore_ascii_case(b"basic") {
        let mut found = split(&STANDARD.decode(rest).ok()?)?;
        if found.user.is_empty() {
            found.user = b"default".to_vec();
        }
        return Some(found);
    }
    if !scheme.eq_ignore_ascii_case(b"bearer") || rest.is_empty() {
        return None;
    }
    let alone = || Credentials { user: b"default".to_vec(), password: rest.to_vec() };
    Some(split(rest).unwrap_or_else(alone))
}

/// The wrong passwords of an address.
#[derive(Debug)]
struct Guesses {
    times: u32,
    last: Instant,
}

/// Slows addresses that give wrong passwords: each request is a session of its own, so the delay of
/// AUTH, which grows with the wrong passwords of a session, would stay the shortest.
#[derive(Debug, Default)]
pub(super) struct Guard(Mutex<HashMap<IpAddr, Guesses>>);

impl Guard {
    /// Counts a wrong password, and returns the delay of the answer.
    pub(super) fn wrong(&self, from: IpAddr, now: Instant) -> Duration {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_GUESSERS && !all.contains_key(&from) {
            all.retain(|_, guesses| now.saturating_duration_since(guesses.last) < FORGET);
            if all.len() >= MAX_GUESSERS {
                return MAX_DELAY;
            }
        }
        let guesses = all.entry(from).or_insert(Guesses { times: 0, last: now });
        if now.saturating_duration_since(guesses.last) >= FORGET {
            guesses.times = 0;
        }
        guesses.last = now;
        guesses.times = guesses.times.saturating_add(1);
        (FIRST_DELAY * 2_u32.pow((guesses.times - 1).min(10))).min(MAX_DELAY)
    }

    /// Forgets the wrong passwords of an address, which has given a right one.
    pub(super) fn right(&self, from: IpAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use std::net::Ipv4Addr;

    fn ends(peer: Ipv4Addr) -> Ends {
        Ends { peer: (peer, 5000).into(), local: (Ipv4Addr::LOCALHOST, 80).into() }
    }

    fn request(headers: &[(&str, &str)]) -> Request {
        let mut request = Request::get("/get/x");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    #[test]
    fn without_a_password_only_loopback_by_its_name_may_ask() {
        let near = ends(Ipv4Addr::LOCALHOST);
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "127.9.9.9", "[::1]:80"] {
            assert!(look(&request(&[("host", host)]), near, false).is_ok(), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example:80", "10.0.0.1", "[::1", "127.1"] {
            assert!(look(&request(&[("host", host)]), near, false).is_err(), "{host}");
        }
        let far = ends(Ipv4Addr::new(10, 0, 0, 7));
        let asked = request(&[("host", "localhost"), ("authorization", "Bearer x")]);
        assert!(look(&asked, far, false).is_err());
        assert!(look(&asked, far, true).is_ok());
        let asked = request(&[("host", "db.example")]);
        assert!(look(&asked, far, true).is_err(), "no password is given");
        let page = Request::get("/").header("host", "db.example").body(Body::empty()).unwrap();
        assert!(look(&page, far, true).is_ok());
    }

    #[test]
    fn pages_of_other_sites_are_refused_and_links_to_the_page_are_not() {
        let near = ends(Ipv4Addr::LOCALHOST);
        let asks = |more: &[(&str, &str)]| {
            let mut headers = vec![("host", "localhost:80")];
            headers.extend_from_slice(more);
            look(&request(&headers), near, false).is_ok()
        };
        assert!(asks(&[("origin", "http://localhost:80"), ("sec-fetch-site", "same-origin")]));
        assert!(asks(&[("sec-fetch-site", "none")]));
        for origin in ["http://evil.example", "http://localhost:81", "null", "http://localhost"] {
            assert!(!asks(&[("origin", origin)]), "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert!(!asks(&[("sec-fetch-site", site)]), "{site}");
            assert!(!asks(&[("sec-fetch-site", site), ("sec-fetch-mode", "navigate")]), "{site}");
        }
        let link = Request::get("/")
            .header("host", "localhost")
            .header("sec-fetch-site", "cross-site")
            .header("sec-fetch-mode", "navigate");
        assert!(look(&link.body(Body::empty()).unwrap(), near, false).is_ok());
    }

    #[test]
    fn credentials_are_basic_or_bearer() {
        let given = |value: &str| {
            credentials(value.as_bytes()).map(|found| {
                let text = |bytes| String::from_utf8(bytes).unwrap();
                (text(found.user), text(found.password))
            })
        };
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        assert_eq!(given("Basic YW5uOnA6cQ=="), pair("ann", "p:q"));
        assert_eq!(given("basic OnB3"), pair("default", "pw"));
        assert_eq!(given("Bearer secret"), pair("default", "secret"));
        assert_eq!(given("bearer ann:secret"), pair("ann", "secret"));
        for wrong in ["Basic", "Basic !!!", "Basic YW5u", "Bearer ", "Digest x", ""] {
            assert_eq!(given(wrong), None, "{wrong}");
        }
        assert_eq!(given(&format!("Bearer {}", "x".repeat(MAX_CREDENTIALS))), None);
    }

    #[test]
    fn wrong_guesses_wait_longer_each_time_and_other_clients_do_not() {
        let (guard, now) = (Guard::default(), Instant::now());
        let from = |last: u8| IpAddr::from([10, 0, 0, last]);
        let delays: Vec<_> = (0..9).map(|_| guard.wrong(from(1), now).as_millis()).collect();
        assert_eq!(delays, [50, 100, 200, 400, 800, 1600, 3000, 3000, 3000]);
        assert_eq!(guard.wrong(from(2), now), FIRST_DELAY);
        assert_eq!(guard.wrong(from(1), now + FORGET), FIRST_DELAY);
        guard.right(from(2));
        assert_eq!(guard.wrong(from(2), now), FIRST_DELAY);
    }

    #[test]
    fn a_crowd_of_guessers_takes_bounded_memory() {
        let (guard, now) = (Guard::default(), Instant::now());
        for n in 0..MAX_GUESSERS as u32 {
            guard.wrong(IpAddr::from(n.to_be_bytes()), now);
        }
        assert_eq!(guard.wrong(IpAddr::from([200, 0, 0, 1]), now), MAX_DELAY);
        assert_eq!(guard.0.lock().unwrap().len(), MAX_GUESSERS);
        assert_eq!(guard.wrong(IpAddr::from([200, 0, 0, 1]), now + FORGET), FIRST_DELAY);
        assert_eq!(guard.0.lock().unwrap().len(), 1);
    }
}
