//! The lease: at no time do two processes believe that they own the data.

use super::*;
use crate::journal::bucket::object::Position;
use crate::journal::{JournalCondition, JournalSight};
use crate::lease::{Lease, Unconfirmed};
use futures::future::join_all;
use object_store::ObjectStoreExt;
use std::sync::Mutex;

/// Longer than a takeover takes.
const SHORT: Duration = Duration::from_millis(250);
const LONG: Duration = Duration::from_secs(20);

async fn take_over(client: &Arc<Client>) -> Result<BucketRecovery, JournalError> {
    let options = BucketOptions { lease: SHORT, ..options(SyncMode::Always) };
    BucketJournal::recover(place(client), options).await
}

/// Takes over like a server: waits, starts, and proves that it owns the data.
async fn own(client: &Arc<Client>) -> Result<Running, JournalError> {
    let recovery = take_over(client).await?;
    recovery.wait_out_lease().await?;
    let running = Running::start(recovery).await?;
    match running.shared.lease.confirm(LONG).await {
        Ok(()) => Ok(running),
        Err(_) => Err(JournalError::Closed),
    }
}

#[test]
fn a_paused_owner_has_lost_its_lease_before_its_successor_serves() {
    // Most of the time is waiting, so all run at the same time.
    runtime().block_on(join_all((0..20).map(|seed| async move {
        let sim = Sim::new(seed);
        let (old, new) = (sim.client(0), sim.client(0));
        let owner = own(&old).await.unwrap();
        let lease = owner.shared.lease.clone();
        if sim.below(2) == 0 {
            owner.append(&[0], b"x").unwrap();
        }
        tokio::time::sleep(Duration::from_micros(sim.below(50_000))).await;
        old.paused.shut(true);
        let successor = own(&new).await.unwrap();
        assert!(!lease.holds(), "seed {seed}");
        old.paused.shut(false);
        // Its next confirmation reports the loss, without any write.
        assert_eq!(lease.confirm(LONG).await, Err(Unconfirmed::Lost));
        assert!(owner.shared.taken_over.load(Ordering::SeqCst));
        assert_eq!(successor.shared.lease.confirm(LONG).await, Ok(()));
    })));
}

#[test]
fn at_no_time_two_own_the_data() {
    runtime().block_on(join_all((200..230).map(|seed| async move {
        let sim = Sim::new(seed);
        let leases = Arc::new(Mutex::new(Vec::<Arc<Lease>>::new()));
        let all = (0..5).map(|_| {
            let (sim, leases) = (sim.clone(), leases.clone());
            async move {
                tokio::time::sleep(Duration::from_micros(sim.below(600_000))).await;
                let client = sim.client([0, 10, 30][sim.below(3) as usize]);
                client.puts_wait.shut(sim.below(3) == 0);
                let waking = client.clone();
                let sleep = Duration::from_micros(sim.below(400_000));
                tokio::spawn(async move {
                    tokio::time::sleep(sleep).await;
                    waking.puts_wait.shut(false);
                });
                let Ok(running) = own(&client).await else { return };
                leases.lock().unwrap().push(running.shared.lease.clone());
                for _ in 0..sim.below(60) {
                    // Newest first: an older lease may end while they are checked.
                    let holding = leases.lock().unwrap().iter().rev().filter(|l| l.holds()).count();
                    assert!(holding <= 1, "seed {seed}: {holding} own it");
                    if sim.below(3) == 0 {
                        let _ = running.append(&[0], b"x");
                    }
                    if sim.below(6) == 0 {
                        // Other objects are deleted at once then.
                        running.flushed(&[0], running.durable());
                    }
                    if sim.below(20) == 0 {
                        let paused = client.paused.is_shut();
                        client.paused.shut(!paused);
                        tokio::time::sleep(SHORT * u32::from(paused)).await;
                    }
                    tokio::time::sleep(Duration::from_micros(sim.below(10_000))).await;
                }
                if sim.below(2) == 0 {
                    client.die();
                    running.kill();
                } else {
                    // The owner runs on, cut off or not, and asks no more.
                    tokio::time::sleep(2 * SHORT).await;
                }
            }
        });
        join_all(all).await;
        assert!(!leases.lock().unwrap().is_empty(), "seed {seed}: nobody ever owned it");
    })));
}

#[test]
fn a_taker_waits_for_an_owner_whose_first_successor_stored_nothing() {
    // The third one sees no object that counts: the owner's are dropped up to the fence of the
    // second one, as objects say that the owner has put late, behind the fence.
    runtime().block_on(async {
        let sim = Sim::new(4);
        let old = sim.client(0);
        let owner = own(&old).await.unwrap();
        let durable = owner.append(&[0], b"x").unwrap();
        owner.until_durable(durable).await;
        owner.flushed(&[0], durable);
        old.puts_wait.shut(true);
        for _ in 0..3 {
            owner.append(&[0], b"x").unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let lease = owner.shared.lease.clone();
        drop(take_over(&sim.client(0)).await.unwrap());
        old.puts_wait.shut(false);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let third = take_over(&sim.client(0)).await.unwrap();
        assert!(third.objects().next().is_none(), "objects of the owner are left");
        // Nothing is lost: they are not needed.
        let condition = BucketJournal::condition(&place(&old), &options(SyncMode::Always)).await;
        assert!(third.has_objects() && condition.unwrap() == JournalCondition::Whole);
        assert!(third.outlived.is_some());
        third.wait_out_lease().await.unwrap();
        assert!(!lease.holds());
    });
}

/// Returns how the journal looks.
async fn see(client: &Arc<Client>) -> JournalSight {
    BucketJournal::see(&place(client), &options(SyncMode::Always)).await.unwrap()
}

/// Starts an owner with some objects, whose requests do not arrive any more.
async fn silent_owner(sim: &Sim) -> (Running, Arc<Client>) {
    let old = sim.client(0);
    let owner = own(&old).await.unwrap();
    for _ in 0..3 {
        let durable = owner.append(&[0], b"x").unwrap();
        owner.until_durable(durable).await;
    }
    old.paused.shut(true);
    tokio::time::sleep(Duration::from_millis(20)).await;
    (owner, old)
}

/// Returns how long a successor must wait yet that has just put its fence.
async fn wait_of(client: &Arc<Client>, sight: JournalSight) -> Duration {
    let mut successor = take_over(client).await.unwrap();
    successor.was_seen(&sight);
    successor.silent_from().unwrap().saturating_duration_since(tokio::time::Instant::now())
}

#[test]
fn a_successor_waits_from_the_moment_at_which_it_has_seen_the_last_object() {
    runtime().block_on(async {
        let sim = Sim::new(7);
        let (owner, _old) = silent_owner(&sim).await;
        let new = sim.client(0);
        let sight = see(&new).await;
        // Later looks see nothing new.
        tokio::time::sleep(SHORT / 2).await;
        let sight = see(&new).await.or_earlier(sight);
        tokio::time::sleep(SHORT).await;
        assert_eq!(wait_of(&new, sight).await, Duration::ZERO);
        assert!(!owner.shared.lease.holds());
    });
}

#[test]
fn a_successor_waits_from_its_fence_on_if_objects_came_since_or_one_was_missing() {
    runtime().block_on(async {
        let sim = Sim::new(8);
        let (owner, old) = silent_owner(&sim).await;
        let new = sim.client(0);
        let sight = see(&new).await;
        tokio::time::sleep(SHORT).await;
        // The owner goes on for a moment.
        old.paused.shut(false);
        let durable = owner.append(&[0], b"y").unwrap();
        owner.until_durable(durable).await;
        old.paused.shut(true);
        let later = see(&new).await;
        assert!(
            later.newest() > sight.newest() && later.or_earlier(sight).newest() == later.newest()
        );
        assert!(wait_of(&new, sight).await > SHORT / 2);
        assert!(owner.shared.lease.holds());
    });
    runtime().block_on(async {
        let sim = Sim::new(9);
        let (_owner, _old) = silent_owner(&sim).await;
        let new = sim.client(0);
        // The last but one is not there yet when the last one is: it may have been put after that.
        let newest = see(&new).await.newest();
        let path = Position { epoch: 1, number: newest - 1 }.path(place(&new).root());
        let store = place(&new).store().clone();
        let object = store.get(&path).await.unwrap().bytes().await.unwrap();
        store.delete(&path).await.unwrap();
        let sight = see(&new).await;
        store.put(&path, object.into()).await.unwrap();
        assert_eq!(sight.newest(), newest);
        tokio::time::sleep(SHORT).await;
        assert!(wait_of(&new, sight).await > SHORT / 2);
    });
}

#[test]
fn a_starter_that_sleeps_over_a_whole_life_of_another_one_finds_no_damage() {
    runtime().block_on(async {
        let sim = Sim::new(6);
        let owner = own(&sim.client(0)).await.unwrap();
        for n in 1..=5 {
            owner.append(&[0], b"x").unwrap();
            owner.until_durable(n).await;
        }
        let sleeper = sim.client(0);
        sleeper.gets_wait.shut(true);
        let starting = tokio::spawn({
            let sleeper = sleeper.clone();
            async move { take_over(&sleeper).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        // It has listed the objects. Others delete them meanwhile, and end.
        let other = own(&sim.client(0)).await.unwrap();
        other.append(&[0], b"y").unwrap();
        other.until_durable(6).await;
        other.flushed(&[0], 3);
        let closing = other.shared.clone();
        tokio::task::spawn_blocking(move || closing.close()).await.unwrap().unwrap();
        sleeper.gets_wait.shut(false);
        let recovery = starting.await.unwrap().unwrap();
        assert_eq!((recovery.end(), recovery.outlived.is_some()), (6, false));
        // Who reads without a fence sees the same.
        let mut view = BucketRecovery::new(place(&sim.client(0)), options(SyncMode::Always));
        view.read_unfenced().await.unwrap();
        assert_eq!(view.end(), 6);
    });
}

/// A directory that is used like a bucket is listed while its owner adds files.
#[test]
fn an_object_that_a_listing_overlooks_is_not_taken_for_missing() {
    for is_contested in [false, true] {
        runtime().block_on(async {
            let sim = Sim::new(8);
            let taken = |client: &Arc<Client>| {
                let contested = is_contested;
                let options = BucketOptions { contested, ..options(SyncMode::Always) };
                BucketJournal::recover(place(client), options)
            };
            let owner = own(&sim.client(0)).await.unwrap();
            for n in 1..=5 {
                owner.append(&[0], b"x").unwrap();
                owner.until_durable(n).await;
            }
            let names = sim.names().await;
            for name in &names[names.len() - 5..names.len() - 1] {
                let starter = sim.client(0);
                *starter.overlooked.lock().unwrap() = Some(name.clone());
                let mut view = BucketRecovery::new(place(&starter), options(SyncMode::Always));
                view.read_unfenced().await.unwrap();
                assert_eq!(view.end(), 5);
            }
            let starter = sim.client(0);
            *starter.overlooked.lock().unwrap() = names.get(names.len() - 3).cloned();
            assert_eq!(taken(&starter).await.unwrap().end(), 5);
            // One that is really gone is missed.
            sim.remove(&names[names.len() - 3]).await;
            let error = taken(&sim.client(0)).await.unwrap_err();
            assert!(error.to_string().contains("missing"), "{error}");
        });
    }
}

#[test]
fn a_journal_that_was_released_is_taken_over_at_once() {
    runtime().block_on(async {
        let sim = Sim::new(1);
        let recovery = take_over(&sim.client(0)).await.unwrap();
        assert!(recovery.outlived.is_none(), "nobody has owned it");
        let owner = Running::start(recovery).await.unwrap();
        owner.append(&[0], b"x").unwrap();
        owner.until_durable(1).await;
        let closing = owner.shared.clone();
        assert_eq!(tokio::task::spawn_blocking(move || closing.close()).await.unwrap().unwrap(), 1);
        assert!(!owner.shared.lease.holds());
        assert_eq!(owner.shared.lease.confirm(LONG).await, Err(Unconfirmed::Lost));
        owner.kill();
        // A process that dies before it has owned anything leaves the journal released.
        for _ in 0..2 {
            let recovery = take_over(&sim.client(0)).await.unwrap();
            assert!(recovery.outlived.is_none());
            assert_eq!(bodies(&recovery).await[&1], b"x");
        }
        let owner = own(&sim.client(0)).await.unwrap();
        owner.kill();
        assert!(take_over(&sim.client(0)).await.unwrap().outlived.is_some());
    });
}

#[test]
fn of_two_simultaneous_starts_the_slower_one_opens_nothing() {
    runtime().block_on(async {
        let sim = Sim::new(2);
        let first = take_over(&sim.client(0)).await.unwrap();
        let second = take_over(&sim.client(0)).await.unwrap();
        let error = first.wait_out_lease().await.unwrap_err().to_string();
        assert!(error.contains("another server has taken over"), "{error}");
        second.wait_out_lease().await.unwrap();
        let running = Running::start(second).await.unwrap();
        assert_eq!(running.shared.lease.confirm(LONG).await, Ok(()));
    });
}

#[test]
fn objects_that_only_renew_do_not_pile_up() {
    runtime().block_on(async {
        let sim = Sim::new(3);
        let client = sim.client(0);
        let options =
            BucketOptions { lease: Duration::from_micros(300), ..options(SyncMode::Always) };
        let recovery = BucketJournal::recover(place(&client), options).await.unwrap();
        let owner = Running::start(recovery).await.unwrap();
        owner.append(&[0], b"x").unwrap();
        owner.until_durable(1).await;
        while client.puts.load(Ordering::SeqCst) < 1000 {
            owner.shared.lease.holds();
            tokio::task::yield_now().await;
        }
        assert!(sim.names().await.len() > 900, "a record that is needed keeps those behind it");
        owner.flushed(&[0], 1);
        let mut left = usize::MAX;
        for _ in 0..1000 {
            owner.shared.lease.holds();
            left = sim.names().await.len();
            if left < 250 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(left < 250, "{left} objects");
        owner.kill();
        assert_eq!(recover(&client).await.unwrap().end(), 1);
    });
}
