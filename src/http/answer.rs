//! Answers that refuse a request, and headers that all answers have.

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderValue};
use axum::response::{IntoResponse, Response};
use flagstone_wire::client_memory::Taken;
use std::borrow::Cow;
use std::time::Duration;

/// The policy of the page: scripts, styles and requests of this server alone, and no frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A request that is refused, or could not be carried out. The body is `{"error": text}`.
#[derive(Debug)]
pub(super) struct Denial {
    status: StatusCode,
    text: Cow<'static, str>,
}

impl Denial {
    pub(super) fn new(status: StatusCode, text: impl Into<Cow<'static, str>>) -> Self {
        Self { status, text: text.into() }
    }

    /// The credentials are missing or wrong.
    pub(super) fn unauthorized(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, text)
    }

    /// The caller may not do that.
    pub(super) fn forbidden(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::FORBIDDEN, text)
    }

    /// The request is malformed, or a command failed.
    pub(super) fn bad(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, text)
    }

    /// The server cannot do that now.
    pub(super) fn unavailable(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, text)
    }

    /// All clients together take too much memory.
    pub(super) fn no_memory() -> Self {
        Self::unavailable("ERR the request takes more memory than there is for clients")
    }

    /// There was no answer within a limit.
    pub(super) fn late(limit: Duration) -> Self {
        let text = format!("ERR no answer within {} s", limit.as_secs());
        Self::new(StatusCode::GATEWAY_TIMEOUT, text)
    }
}

impl From<Denial> for Response {
    fn from(denial: Denial) -> Self {
        let body = serde_json::json!({ "error": denial.text }).to_string();
        let mut response = (denial.status, json(body)).into_response();
        if denial.status == StatusCode::UNAUTHORIZED {
            // Not Basic: browsers would ask for a password, and from then on send it with requests
            // that other sites make them send.
            let challenge = HeaderValue::from_static("Bearer realm=\"flagstone\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

impl IntoResponse for Denial {
    fn into_response(self) -> Response {
        self.into()
    }
}

/// Returns an answer of JSON.
pub(super) fn json(body: impl Into<Body>) -> Response {
    typed("application/json", body)
}

/// Bytes that count as the clients' memory as long as they are kept.
struct Charged<T> {
    bytes: T,
    _taken: Taken,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Charged<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

/// Returns bytes that keep their charge until the last part of them is dropped.
pub(super) fn charged(bytes: impl AsRef<[u8]> + Send + 'static, taken: Taken) -> Bytes {
    Bytes::from_owner(Charged { bytes, _taken: taken })
}

/// Returns an answer of JSON that may be large.
///
/// # Errors
/// There is no memory for it.
pub(super) fn large_json(bytes: Vec<u8>) -> Result<Response, Denial> {
    let mut taken = Taken::default();
    if !taken.try_set(bytes.capacity()) {
        return Err(Denial::no_memory());
    }
    Ok(json(charged(bytes, taken)))
}

/// Returns an answer of a type.
pub(super) fn typed(content_type: &'static str, body: impl Into<Body>) -> Response {
    let value = HeaderValue::from_static(content_type);
    let mut response = Response::new(body.into());
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}

/// Adds the headers that every answer has.
pub(super) async fn harden(mut response: Response) -> Response {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
