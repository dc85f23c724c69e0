//! Requests to a store that may be away, with retries for a bounded time.

use super::{Place, cause};
use object_store::Error;
use std::time::Duration;

/// Maximum number of attempts of a request.
const ATTEMPTS: u32 = 8;

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskLimits {
    /// Time limit for the first attempt, and the longest one: it doubles when there is no answer.
    pub(crate) request: Duration,
    pub(crate) longest: Duration,
    /// The pause after a failed attempt; later pauses grow.
    pub(crate) pause: Duration,
}

/// A store that has not answered any attempt. A change may have arrived, or may arrive yet.
#[derive(Debug)]
pub(crate) struct StoreAway {
    pub(crate) place: String,
    pub(crate) reason: String,
}

/// Retries a request to the store until it succeeds or has failed too often.
pub(crate) async fn ask<T, F: Future<Output = Result<T, Error>>>(
    place: &Place,
    limits: AskLimits,
    mut request: impl FnMut() -> F,
) -> Result<T, StoreAway> {
    let (mut limit, mut pause) = (limits.request, limits.pause);
    let mut reason = String::new();
    for _ in 0..ATTEMPTS {
        match tokio::time::timeout(limit, request()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => reason = cause(&error),
            Err(_) => {
                limit = (2 * limit).min(limits.longest);
                "it does not answer".clone_into(&mut reason);
            }
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(StoreAway { place: place.to_string(), reason })
}
