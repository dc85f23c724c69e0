//! Requests to a store that may be away, with retries for a bounded time.

use super::{Place, cause};
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::Error;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum number of attempts of a request.
const ATTEMPTS: u32 = 8;

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskLimits {
    /// Time limit for the first attempt, and the longest one: it doubles when there is no answer. That of an answer
    /// in pages is for each of them.
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
    let attempt = |limit| {
        let request = request();
        async move { timeout(limit, request).await.ok() }
    };
    try_often(place, limits, attempt).await
}

/// Like [`ask`], for a request whose answer comes in pages: the limits are those of the next page, however many
/// there are.
pub(crate) async fn ask_pages<T>(
    place: &Place,
    limits: AskLimits,
    mut request: impl FnMut() -> BoxStream<'static, Result<T, Error>>,
) -> Result<Vec<T>, StoreAway> {
    let attempt = |limit| {
        let mut pages = request();
        async move {
            let mut all = Vec::new();
            loop {
                match timeout(limit, pages.next()).await.ok()? {
                    Some(Ok(entry)) => all.push(entry),
                    Some(Err(error)) => return Some(Err(error)),
                    None => return Some(Ok(all)),
                }
            }
        }
    };
    try_often(place, limits, attempt).await
}

/// Makes attempts until one succeeds or too many have failed. An attempt is given its time limit, and returns
/// `None` if there was no answer.
async fn try_often<T, F: Future<Output = Option<Result<T, Error>>>>(
    place: &Place,
    limits: AskLimits,
    mut attempt: impl FnMut(Duration) -> F,
) -> Result<T, StoreAway> {
    let (mut limit, mut pause) = (limits.request, limits.pause);
    let mut reason = String::new();
    for _ in 0..ATTEMPTS {
        match attempt(limit).await {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(error)) => reason = cause(&error),
            None => {
                limit = (2 * limit).min(limits.longest);
                "it does not answer".clone_into(&mut reason);
            }
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(StoreAway { place: place.to_string(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_long_as_long_as_its_pages_come() {
        let place = Place::parse("memory:").unwrap();
        let seconds = Duration::from_secs;
        let limits = AskLimits { request: seconds(1), longest: seconds(4), pause: seconds(1) };
        let pages = |pause: Duration| {
            let page = move |n: u32| async move {
                tokio::time::sleep(pause).await;
                Ok(n)
            };
            stream::iter(0..100).then(page).boxed()
        };
        let mut attempts = 0;
        let mut ask = async |pause| {
            attempts = 0;
            let request = || {
                attempts += 1;
                pages(pause)
            };
            let asked = ask_pages(&place, limits, request).await;
            (asked.map_err(|away| away.reason), attempts)
        };
        let all: Vec<u32> = (0..100).collect();
        assert_eq!(ask(Duration::from_millis(900)).await, (Ok(all.clone()), 1));
        assert_eq!(ask(seconds(3)).await, (Ok(all), 3));
        assert_eq!(ask(seconds(5)).await, (Err("it does not answer".to_owned()), ATTEMPTS));
    }
}
