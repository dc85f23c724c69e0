//! Engines whose files came without fences, or with some of them.

use super::*;
use crate::clock::Clock;
use crate::engine::{Engine, Upkeep};
use bytes::Bytes;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use slatedb::db_cache::SplitCache;
use std::sync::Arc;

async fn open(place: &Place) -> Engine {
    let cache = Arc::new(SplitCache::new().build());
    Engine::open(place, cache, 1, Clock::default(), &Upkeep::default()).await.unwrap()
}

async fn put_row(engine: &Engine, key: &'static [u8]) {
    let row = (Bytes::from_static(key), Some(Bytes::from_static(b"value")));
    engine.write(vec![row]).await.unwrap();
}

/// Returns an engine with a row, and then so many starts without a flush.
async fn started(starts: u64) -> Place {
    let place = Place::within(Arc::new(InMemory::new()), "db".into(), "memory");
    let engine = open(&place).await;
    put_row(&engine, b"first").await;
    engine.flush().await.unwrap();
    for _ in 0..starts {
        // Opening fences the engine that has the files open, which acts like a kill. A checkpoint
        // writes the manifest.
        open(&place).await.checkpoint("some").await.unwrap();
    }
    place
}

async fn fences(place: &Place) -> BTreeSet<u64> {
    numbers(place, 0).await.unwrap()
}

async fn remove(place: &Place, number: u64) {
    place.store().delete(&place.path(&name(number))).await.unwrap();
}

/// Asserts that the engine flushes, and does so again after it is reopened.
async fn goes_on(place: &Place) {
    for key in [b"second", b"third!"] {
        let engine = open(place).await;
        put_row(&engine, key).await;
        engine.flush().await.unwrap();
        assert_eq!(engine.closed(), None);
        assert_eq!(engine.get(b"first").await.unwrap(), Some(Bytes::from_static(b"value")));
        engine.close().await.unwrap();
    }
}

#[tokio::test]
async fn an_engine_without_its_fences_goes_on() {
    for starts in 0..5 {
        let place = started(starts).await;
        for number in fences(&place).await {
            remove(&place, number).await;
        }
        goes_on(&place).await;
    }
}

#[tokio::test]
async fn so_does_one_with_some_of_them() {
    for missing in [vec![3], vec![3, 4], vec![4, 5], vec![2, 4]] {
        let place = started(4).await;
        assert_eq!(fences(&place).await, (1..=5).collect());
        for number in missing {
            remove(&place, number).await;
        }
        goes_on(&place).await;
    }
}
