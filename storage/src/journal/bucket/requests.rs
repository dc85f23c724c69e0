//! Requests to the journal's store.

use bytes::Bytes;
use object_store::{Error, ObjectStoreExt};

use super::super::JournalError;
use super::BucketOptions;
use super::object::Position;
use crate::place::{self, AskLimits, Place};

/// Retries a request to the store until it succeeds or has failed too often.
pub(super) async fn ask<T, F: Future<Output = Result<T, Error>>>(
    place: &Place,
    options: &BucketOptions,
    request: impl FnMut() -> F,
) -> Result<T, JournalError> {
    // Commands wait for a takeover: another attempt may be faster than one that hangs.
    let first = if options.contested { options.lease } else { options.request };
    let limits = AskLimits {
        request: first.min(options.request),
        longest: options.request,
        pause: options.pause,
    };
    let asked = place::ask(place, limits, request).await;
    asked.map_err(|away| JournalError::Away { place: away.place, reason: away.reason })
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
