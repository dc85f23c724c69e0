//! Lives whose journals have lost objects, and users who accept that.

use super::lives::journal_of;
use super::seat_tests::{KEYS, SHARDS, TestServer};
use super::{GivenUp, Life, LossStore};
use crate::checkpoint::offline_options;
use crate::directory::Location;
use crate::journal::JournalCondition;
use crate::place::Place;
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn memory() -> Place {
    Place::within(Arc::new(InMemory::new()), "data".into(), "memory:")
}

async fn losses(store: &Place) -> LossStore {
    let options = offline_options(&Location::from(store.clone())).await.unwrap();
    LossStore::open(options).await.unwrap()
}

/// Returns the objects of a life's journal, in order.
async fn objects(store: &Place, life: Life) -> Vec<Path> {
    let journal = journal_of(store, life);
    let listed: Vec<_> = journal.store().list(Some(journal.root())).try_collect().await.unwrap();
    let mut paths: Vec<Path> = listed.into_iter().map(|meta| meta.location).collect();
    paths.sort();
    paths
}

async fn remove_all(store: &Place, life: Life) {
    for path in objects(store, life).await {
        let _ = store.store().delete(&path).await;
    }
}

/// Joins as a node that takes all shards, and writes to each key, durably, each in an object of its own.
async fn filled(store: &Place, node: u8) -> TestServer {
    let mut server = TestServer::try_join(store, node).await.unwrap();
    server.take().await;
    for n in 0..KEYS {
        server.put(n, n + 1).await.unwrap();
        assert!(server.sync().await);
    }
    server
}

/// Returns the keys that a server shows as they were written; the others must be absent.
async fn shown(server: &mut TestServer) -> Vec<u64> {
    let mut keys = Vec::new();
    for n in 0..KEYS {
        match server.get(n).await {
            0 => {}
            value => {
                assert_eq!(value, n + 1);
                keys.push(n);
            }
        }
    }
    keys
}

async fn refusal(losses: &LossStore, life: Life) -> String {
    format!("{:#}", losses.give_up(life).await.unwrap_err())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_journal_that_is_missing_can_be_given_up() {
    let store = memory();
    let mut former = filled(&store, 0).await;
    former.try_flush(1).await.unwrap();
    let kept: Vec<u64> = {
        let layout = former.partition.store.layout();
        let shard_of =
            |n: &u64| layout.shard_of(crate::slot::slot_of(format!("key:{n}").as_bytes()));
        (0..KEYS).filter(|n| shard_of(n) == 1).collect()
    };
    let life = former.seat.life();
    drop(former);
    let mut heir = TestServer::try_join(&store, 1).await.unwrap();
    remove_all(&store, life).await;
    let losses = losses(&store).await;
    let loss = losses.look(life).await.unwrap();
    assert_eq!(loss.condition, JournalCondition::Missing);
    let stored: Vec<bool> = loss.shards.iter().map(|it| it.stored > Some(0)).collect();
    assert_eq!(stored, [false, true, false]);
    assert!(loss.shards.iter().all(|it| !it.is_torn));
    assert!(heir.try_take_over(life, &[heir.seat.life()]).await.is_err());
    let (one, other) = tokio::join!(losses.give_up(life), losses.give_up(life));
    let outcomes = [one.unwrap(), other.unwrap()];
    assert!(outcomes.iter().any(|it| matches!(it, GivenUp::Whole(_))), "{outcomes:?}");
    assert!(outcomes.iter().all(|it| !matches!(it, GivenUp::Rest)), "{outcomes:?}");
    assert!(matches!(losses.give_up(life).await, Ok(GivenUp::Nothing)));
    heir.try_take_over(life, &[heir.seat.life()]).await.unwrap();
    heir.take().await;
    assert_eq!(shown(&mut heir).await, kept);
}

/// Its node would never start again otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_node_starts_again_without_the_journal_of_its_former_life() {
    let store = memory();
    let former = filled(&store, 0).await;
    let life = former.seat.life();
    drop(former);
    let last = objects(&store, life).await.pop().unwrap();
    let late = store.store().get(&last).await.unwrap().bytes().await.unwrap();
    remove_all(&store, life).await;
    let refused = TestServer::try_join(&store, 0).await.err().map(|error| format!("{error:#}"));
    let hint = format!("flagstone cluster give-up {life}");
    assert!(refused.as_ref().is_some_and(|why| why.contains(&hint)), "{refused:?}");
    assert!(matches!(losses(&store).await.give_up(life).await, Ok(GivenUp::Whole(_))));
    // Its process has slept, and puts an object behind those that are gone.
    store.store().put(&last, late.into()).await.unwrap();
    let mut again = TestServer::try_join(&store, 0).await.unwrap();
    again.take().await;
    assert_eq!(again.partition.shards.len(), usize::from(SHARDS));
    assert!(shown(&mut again).await.is_empty());
    assert_eq!(again.put(3, 4).await, Some(()));
    assert!(again.sync().await);
}

/// The journal of a successor that never flushed is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn of_several_journals_only_the_missing_one_is_lost() {
    let store = memory();
    let first = filled(&store, 0).await;
    let (first_life, mut second) =
        (first.seat.life(), TestServer::try_join(&store, 1).await.unwrap());
    second.try_take_over(first_life, &[second.seat.life()]).await.unwrap();
    second.take().await;
    // One that only it knows.
    second.put(KEYS, KEYS + 1).await.unwrap();
    assert!(second.sync().await);
    let (second_life, mut third) =
        (second.seat.life(), TestServer::try_join(&store, 2).await.unwrap());
    drop((first, second));
    third.try_take_over(second_life, &[third.seat.life()]).await.unwrap();
    remove_all(&store, first_life).await;
    let refused = format!("{:#}", third.try_take().await.unwrap_err());
    assert!(refused.contains("is missing"), "{refused}");
    let losses = losses(&store).await;
    assert!(refusal(&losses, second_life).await.contains("nothing is lost"));
    assert!(losses.look(first_life).await.unwrap().shards.iter().all(|it| it.is_torn));
    assert!(matches!(losses.give_up(first_life).await, Ok(GivenUp::Whole(_))));
    third.take().await;
    assert!(shown(&mut third).await.is_empty());
    assert_eq!(third.get(KEYS).await, KEYS + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_journal_that_breaks_can_be_given_up_from_there_on() {
    let store = memory();
    let former = filled(&store, 0).await;
    let life = former.seat.life();
    drop(former);
    let mut heir = TestServer::try_join(&store, 1).await.unwrap();
    let all = objects(&store, life).await;
    store.store().delete(&all[all.len() - 10]).await.unwrap();
    assert!(heir.try_take_over(life, &[heir.seat.life()]).await.is_err());
    let losses = losses(&store).await;
    let loss = losses.look(life).await.unwrap();
    assert!(matches!(loss.condition, JournalCondition::Broken { objects: 9.., .. }), "{loss:?}");
    assert!(matches!(losses.give_up(life).await, Ok(GivenUp::Rest)));
    assert!(refusal(&losses, life).await.contains("nothing is lost"));
    heir.try_take_over(life, &[heir.seat.life()]).await.unwrap();
    heir.take().await;
    let keys = shown(&mut heir).await;
    let next = keys.len() as u64;
    assert!((20..KEYS).contains(&next) && keys == (0..next).collect::<Vec<_>>(), "{keys:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nothing_is_given_up_that_is_whole_or_goes_on() {
    let store = memory();
    assert!(
        LossStore::open(offline_options(&Location::from(store.clone())).await.unwrap())
            .await
            .is_err()
    );
    let mut former = filled(&store, 0).await;
    let life = former.seat.life();
    let losses = losses(&store).await;
    assert!(refusal(&losses, life).await.contains("nothing is lost"));
    assert!(refusal(&losses, Life(7)).await.contains("has no life 7"));
    let is_ended = std::sync::atomic::AtomicBool::new(false);
    let ended = || is_ended.load(std::sync::atomic::Ordering::SeqCst);
    let going_on = async {
        while !ended() && former.put(1, 2).await.is_some() && former.sync().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let giving_up = async {
        remove_all(&store, life).await;
        let refused = losses.give_up(life).await;
        is_ended.store(true, std::sync::atomic::Ordering::SeqCst);
        refused
    };
    let (refused, ()) = tokio::join!(giving_up, going_on);
    // On a machine that is so slow that its lease has run out, it has ended.
    let why = refused.map_or_else(|error| format!("{error:#}"), |it| format!("{it:?}"));
    assert!(why.contains("goes on") || former.journal.failed().is_some(), "{why}");
}
