//! The new owner of a shard has all keys, whatever becomes of the rows that its former owner has left at the end.

use super::seat_tests::{KEYS, TestServer};
use crate::control::incomplete_row;
use crate::engine::Closed;
use crate::place::Place;
use crate::place::sim::{Client, Sim};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;

/// The shard of which keys are created.
const SHARD: u16 = 1;

/// Bytes of a value that is not read together with other rows.
const LARGE: usize = 64 << 10;

fn store(client: &Arc<Client>) -> Place {
    Place::within(client.clone(), "data".into(), "memory:")
}

/// Returns keys of the shard that nobody has created.
fn new_keys(server: &TestServer) -> Vec<u64> {
    (KEYS..).filter(|n| server.shard_of(*n) == SHARD).take(3).collect()
}

/// A server has all shards, and gives them to another one, which takes them.
async fn given(sim: &Sim) -> (Arc<Client>, TestServer, TestServer) {
    let client = sim.client(0);
    let mut former = TestServer::join(&store(&sim.client(0)), 0).await;
    former.take().await;
    for n in 0..KEYS {
        former.put(n, n + 1).await.unwrap();
    }
    assert!(former.sync().await);
    let mut owner = TestServer::join(&store(&client), 1).await;
    for id in former.map().await.owned_by(former.seat.life()).map(|it| it.id) {
        former.give(id, Some(owner.seat.life())).await;
    }
    owner.take().await;
    (client, former, owner)
}

/// Ends a server by kill, and has another one take its shards over.
async fn taken_over(by: &mut TestServer, ended: &TestServer) {
    by.take_over(ended.seat.life(), &[by.seat.life()]).await;
    by.take().await;
}

async fn check(server: &mut TestServer, new: &[u64], at: &str) {
    for n in (0..KEYS).chain(new.iter().copied()) {
        assert_eq!(server.get(n).await, n + 1, "{at}: key {n}");
    }
}

/// Has the engine of the shard close itself: its rows are lost.
async fn break_engine(client: &Client, server: &TestServer) {
    let engine = server.partition.shards[&SHARD].engine().clone();
    engine.write(vec![incomplete_row()]).await.unwrap();
    client.breaks.store(true, Ordering::SeqCst);
    assert!(engine.flush().await.is_err());
    assert_eq!(engine.closed(), Some(Closed::Failed));
    client.breaks.store(false, Ordering::SeqCst);
}

/// What says that the filter of keys is whole is deleted before a key is created that it lacks.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_filter_that_a_former_owner_has_stored_hides_no_later_key() {
    for flushes in [false, true] {
        let sim = Sim::new(7);
        let (client, mut former, mut owner) = given(&sim).await;
        let new = new_keys(&owner);
        for n in &new {
            owner.put(*n, n + 1).await.unwrap();
        }
        assert!(owner.sync().await);
        if flushes {
            owner.flush(SHARD).await;
        }
        client.die();
        taken_over(&mut former, &owner).await;
        check(&mut former, &new, &format!("flushed: {flushes}")).await;
    }
}

/// The engine closes itself before that delete is stored, and is opened again.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nor_does_it_if_the_engine_was_opened_again() {
    let sim = Sim::new(8);
    let (client, mut former, mut owner) = given(&sim).await;
    let new = new_keys(&owner);
    for n in &new {
        owner.put(*n, n + 1).await.unwrap();
    }
    assert!(owner.sync().await);
    for n in &new {
        break_engine(&client, &owner).await;
        let plan = owner.partition.reopen(SHARD).unwrap();
        let reopened = plan.run().await.unwrap();
        owner.partition.reopened(SHARD, reopened);
        owner.put(*n, n + 1).await.unwrap();
        assert!(owner.sync().await);
    }
    owner.flush(SHARD).await;
    check(&mut owner, &new, "opened again").await;
    client.die();
    taken_over(&mut former, &owner).await;
    check(&mut former, &new, "taken over").await;
}

/// Its engine belongs to the successor by now, who goes on with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_was_taken_over_opens_no_engine_again() {
    let sim = Sim::new(9);
    let (client, mut former, mut owner) = given(&sim).await;
    break_engine(&client, &owner).await;
    taken_over(&mut former, &owner).await;
    let plan = owner.partition.reopen(SHARD).unwrap();
    let refused = plan.run().await.unwrap_err();
    assert!(format!("{refused:#}").contains("another process may have the data"), "{refused:#}");
    let new = new_keys(&former);
    for n in &new {
        former.put(*n, n + 1).await.unwrap();
    }
    assert!(former.sync().await);
    former.flush(SHARD).await;
    check(&mut former, &new, "by the successor").await;
}

/// The flush of a move that takes too long is dropped, and the shard stays: no pass may be left behind that
/// nobody ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_flush_that_is_dropped_while_it_reads_old_rows_is_repeated() {
    let sim = Sim::new(10);
    let client = sim.client(0);
    let mut former = TestServer::join(&store(&sim.client(0)), 0).await;
    former.take().await;
    for n in 0..KEYS {
        former.put_text(n, vec![b'x'; LARGE]).await.unwrap();
    }
    assert!(former.sync().await);
    let mut owner = TestServer::join(&store(&client), 1).await;
    former.give(SHARD, Some(owner.seat.life())).await;
    owner.take().await;
    let own: Vec<u64> = (0..KEYS).filter(|n| owner.shard_of(*n) == SHARD).collect();
    for n in &own {
        owner.put_blind(*n, (n + 1).to_string().as_bytes());
    }
    assert!(owner.sync().await);
    assert_eq!(owner.partition.unresolved(), own.len());
    let journal = owner.journal.clone();
    client.gets_wait.shut(true);
    let mut detached = owner.partition.detach(SHARD).unwrap();
    let flushed = timeout(Duration::from_millis(50), detached.flush(&journal)).await;
    assert!(flushed.is_err(), "the old rows are in memory");
    client.gets_wait.shut(false);
    owner.partition.attach(detached.into_shard()).unwrap();
    assert_eq!(owner.partition.unresolved(), own.len());
    let rows = owner.partition.begin_pass(SHARD, true).expect("nothing is being read");
    let read = rows.read().await;
    owner.partition.end_pass(SHARD, read).unwrap();
    assert_eq!(owner.partition.unresolved(), 0);
    owner.flush(SHARD).await;
    for n in own {
        assert_eq!(owner.get(n).await, n + 1, "key {n}");
    }
}
