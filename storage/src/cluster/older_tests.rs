//! Older copies of a shard's files, put back in the place of the newer ones while nobody had them open.

use super::Life;
use super::seat_tests::{KEYS, TestServer};
use crate::directory::ShardHome;
use crate::place::Place;
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;

/// Returns the objects of a shard.
async fn copied(store: &Place) -> Vec<(Path, Bytes)> {
    let place = ShardHome::at_creation(0).place(store);
    let listed: Vec<_> = place.store().list(Some(place.root())).try_collect().await.unwrap();
    let mut objects = Vec::new();
    for meta in listed {
        let bytes = place.store().get(&meta.location).await.unwrap().bytes().await.unwrap();
        objects.push((meta.location, bytes));
    }
    objects
}

/// Replaces the objects of a shard.
async fn replace(store: &Place, objects: &[(Path, Bytes)]) {
    for (path, _) in copied(store).await {
        store.store().delete(&path).await.unwrap();
    }
    for (path, bytes) in objects {
        store.store().put(path, bytes.clone().into()).await.unwrap();
    }
}

/// Writes a number to all keys, flushes them, and ends: in order, with all shards parked, or not.
async fn live(store: &Place, number: u64, in_order: bool) {
    let mut server = TestServer::join(store, 0).await;
    server.try_take_parked().await.unwrap();
    server.take().await;
    for n in 0..KEYS {
        server.put(n, number).await.unwrap();
    }
    assert!(server.sync().await);
    let shards: Vec<u16> = server.partition.shards.keys().copied().collect();
    for id in shards {
        match in_order {
            true => server.try_give(id, None).await.unwrap(),
            false => server.try_flush(id).await.unwrap(),
        }
    }
}

async fn an_older_copy_is_refused(in_order: bool) {
    let store = Place::within(Arc::new(InMemory::new()), "data".into(), "memory:");
    live(&store, 1, true).await;
    let older = copied(&store).await;
    live(&store, 2, true).await;
    live(&store, 3, in_order).await;
    let newer = copied(&store).await;
    replace(&store, &older).await;
    let mut next = TestServer::join(&store, 1).await;
    let ended = next.map().await.owned_by(Life(3)).next().map(|_| Life(3));
    if let Some(ended) = ended {
        next.try_take_over(ended, &[next.seat.life()]).await.unwrap();
    }
    let refused = match next.try_take_parked().await {
        Ok(()) => next.try_take().await,
        refused => refused,
    };
    let why = format!("{:#}", refused.unwrap_err());
    assert!(
        why.contains("shard-0 is an older copy") || why.contains("shard 0 is an older"),
        "{why}"
    );
    replace(&store, &newer).await;
    next.take().await;
    for n in 0..KEYS {
        assert_eq!(next.get(n).await, 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn behind_an_end_in_order() {
    an_older_copy_is_refused(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn behind_a_crash() {
    an_older_copy_is_refused(false).await;
}
