//! Requests to the journal's store, with retries for a bounded time.

use bytes::Bytes;
use object_store::{Error, ObjectStoreExt};

use super::super::JournalError;
use super::BucketOptions;
use super::object::Position;
use crate::place::{Place, cause};

/// Maximum number of attempts of a request.
const ATTEMPTS: u32 = 8;

/// Retries a request to the store until it succeeds or has failed too often.
pub(super) async fn ask<T, F: Future<Output = Result<T, Error>>>(
    place: &Place,
    options: &BucketOptions,
    mut request: impl FnMut() -> F,
) -> Result<T, JournalError> {
    let mut pause = options.pause;
    let mut reason = String::new();
    for _ in 0..ATTEMPTS {
        match tokio::time::timeout(options.request, request()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => reason = cause(&error),
            Err(_) => "it does not answer".clone_into(&mut reason),
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    Err(JournalError::Away { place: place.to_string(), reason })
}

/// Reads an object; `None`: it does not exist.
pub(super) async fn read_object(
    place: &Place,
    options: &BucketOptions,
    at: Position,
) -> Result<Option<Bytes>, JournalError> {
    let path = at.path(place.root());
    let store = place.store();
    let get = || async {
        match store.get(&path).await {
            Ok(got) => got.bytes().await.map(Some),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    };
    ask(place, options, get).await
}
