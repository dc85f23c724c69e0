//! Requests to the journal's store.

use std::collections::BTreeMap;

use bytes::Bytes;
use object_store::{Error, ObjectMeta, ObjectStoreExt};

use super::super::JournalError;
use super::BucketOptions;
use super::object::Position;
use crate::place::{self, AskLimits, Place, StoreAway};

/// Retries a request to the store until it succeeds or has failed too often.
pub(super) async fn ask<T, F: Future<Output = Result<T, Error>>>(
    place: &Place,
    options: &BucketOptions,
    request: impl FnMut() -> F,
) -> Result<T, JournalError> {
    place::ask(place, limits(options), request).await.map_err(away)
}

fn limits(options: &BucketOptions) -> AskLimits {
    // Commands wait for a takeover: another attempt may be faster than one that hangs.
    let first = if options.contested { options.lease } else { options.request };
    AskLimits {
        request: first.min(options.request),
        longest: options.request,
        pause: options.pause,
    }
}

fn away(away: StoreAway) -> JournalError {
    JournalError::Away { place: away.place, reason: away.reason }
}

/// Lists the objects of a journal, or of its archive, with their sizes. However many there are, the listing goes on
/// as long as the store answers.
pub(super) async fn list_objects(
    place: &Place,
    options: &BucketOptions,
) -> Result<BTreeMap<Position, u64>, JournalError> {
    let (store, root) = (place.store(), place.root());
    let list = || store.list(Some(root));
    let listed = place::ask_pages(place, limits(options), list).await.map_err(away)?;
    let position = |meta: ObjectMeta| Some((Position::of(&meta.location, root)?, meta.size));
    Ok(listed.into_iter().filter_map(position).collect())
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
