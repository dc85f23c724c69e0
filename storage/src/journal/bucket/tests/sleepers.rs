//! Starters that sleep during the takeover, while the journal goes on without them.

use super::super::BucketState;
use super::super::object::{ObjectFloor, ObjectHeader, Position};
use super::*;
use object_store::ObjectStoreExt;

type Starting = JoinHandle<Result<BucketRecovery, JournalError>>;

/// Begins a takeover that sleeps right before it puts its fence.
async fn sleeper(client: &Arc<Client>) -> Starting {
    client.puts_wait.shut(true);
    let starter = client.clone();
    let starting = tokio::spawn(async move { recover(&starter).await });
    eventually("a fence", || client.puts.load(Ordering::SeqCst) > 0).await;
    starting
}

async fn wake(client: &Client, starting: Starting) -> Result<BucketRecovery, JournalError> {
    client.puts_wait.shut(false);
    starting.await.unwrap()
}

async fn write(journal: &Running, commits: usize) {
    for _ in 0..commits {
        let lsn = journal.append(&[0], b"x").unwrap();
        journal.until_durable(lsn).await;
    }
}

/// Writes, flushes all of it, and writes on, until the objects before `to` are deleted.
async fn pass(journal: &Running, to: Position) {
    write(journal, 4).await;
    journal.flushed(&[0], journal.durable());
    write(journal, 2).await;
    eventually("old objects are deleted", || {
        let state = journal.shared.state.lock().unwrap();
        state.floor.first > to && state.doomed.is_empty() && !state.deleting
    })
    .await;
}

/// Asserts that an owner is fenced, and that the takeover has found all that it has published.
async fn assert_ended(owner: Running, recovery: &BucketRecovery) {
    let found = recovery.end();
    assert!(found >= owner.durable(), "{found} < {}", owner.durable());
    // A renewal may have met the fence already.
    let late = owner.append(&[0], b"too late").unwrap_or(Lsn::MAX);
    eventually("the owner has failed", || owner.shared.failed.get().is_some()).await;
    assert!(owner.durable() < late, "the owner has stored a write behind the fence");
    assert!(found >= owner.durable(), "{found} < {}", owner.durable());
    assert!(owner.shared.taken_over.load(Ordering::SeqCst));
    owner.kill();
}

/// Asserts that the successor serves, and that the next start finds its writes.
async fn assert_serves(client: &Arc<Client>, recovery: BucketRecovery) {
    let end = recovery.end();
    let successor = Running::start(recovery).await.unwrap();
    let lsn = successor.append(&[0], b"new").unwrap();
    assert_eq!(lsn, end + 1);
    successor.until_durable(lsn).await;
    successor.kill();
    assert_eq!(bodies(&recover(client).await.unwrap()).await[&lsn], b"new");
}

#[test]
fn a_fence_at_a_number_that_the_owner_has_used_and_deleted_does_not_count() {
    for seed in 300..310 {
        runtime().block_on(async {
            let sim = Sim::new(seed);
            let (old, new) = (sim.client(0), sim.client(0));
            let owner = Running::open(&old, SyncMode::Always).await;
            write(&owner, 3).await;
            let starting = sleeper(&new).await;
            let fence = owner.shared.state.lock().unwrap().next;
            pass(&owner, fence).await;
            let path = fence.path(place(&old).root());
            assert!(!sim.names().await.contains(&path.to_string()));
            let recovery = wake(&new, starting).await.unwrap();
            assert!(sim.objects.get(&path).await.is_ok(), "the fence did land there");
            assert_ended(owner, &recovery).await;
            assert_serves(&new, recovery).await;
        });
    }
}

#[test]
fn a_fence_at_a_number_that_a_successor_has_deleted_does_not_count() {
    for seed in 310..320 {
        runtime().block_on(async {
            let sim = Sim::new(seed);
            let (old, new) = (sim.client(0), sim.client(0));
            let first = Running::open(&old, SyncMode::Always).await;
            write(&first, 3).await;
            let starting = sleeper(&new).await;
            write(&first, 3).await;
            // The objects of the first one have a floor below the fence, and so has this fence.
            let recovery = recover(&sim.client(0)).await.unwrap();
            first.kill();
            let second = Running::start(recovery).await.unwrap();
            pass(&second, Position { epoch: second.shared.epoch, number: 1 }).await;
            let recovery = wake(&new, starting).await.unwrap();
            assert_ended(second, &recovery).await;
            assert_serves(&new, recovery).await;
        });
    }
}

#[test]
fn objects_that_are_deleted_before_they_are_read_are_no_end_of_the_journal() {
    for seed in 320..330 {
        runtime().block_on(async {
            let sim = Sim::new(seed);
            let (old, new) = (sim.client(0), sim.client(0));
            let owner = Running::open(&old, SyncMode::Always).await;
            write(&owner, 3).await;
            new.gets_wait.shut(true);
            let starter = new.clone();
            let starting = tokio::spawn(async move { recover(&starter).await });
            eventually("a read", || new.gets.load(Ordering::SeqCst) > 0).await;
            let to = owner.shared.state.lock().unwrap().next;
            pass(&owner, to).await;
            new.gets_wait.shut(false);
            let recovery = starting.await.unwrap().unwrap();
            assert_ended(owner, &recovery).await;
            assert_serves(&new, recovery).await;
        });
    }
}

/// Reading takes long, and commands wait for the fence.
#[test]
fn a_contested_journal_gets_its_fence_before_all_objects_are_read() {
    runtime().block_on(async {
        let sim = Sim::new(341);
        let owner = Running::open(&sim.client(0), SyncMode::Always).await;
        write(&owner, 20).await;
        let first = sim.client(0);
        let starting = sleeper(&first).await;
        assert_eq!(first.gets.load(Ordering::SeqCst), 1, "the newest object");
        let recovery = wake(&first, starting).await.unwrap();
        assert_eq!((recovery.end(), bodies(&recovery).await.len()), (20, 20));
        // The next one finds that fence, and puts its own behind it.
        let second = sim.client(0);
        let starting = sleeper(&second).await;
        assert_eq!(second.gets.load(Ordering::SeqCst), 2, "the newest records and the fence");
        let recovery = wake(&second, starting).await.unwrap();
        assert_eq!(bodies(&recovery).await.len(), 20);
        assert_ended(owner, &recovery).await;
        assert_serves(&second, recovery).await;
    });
}

#[test]
fn a_takeover_lists_twice() {
    runtime().block_on(async {
        let sim = Sim::new(330);
        let owner = Running::open(&sim.client(0), SyncMode::Always).await;
        write(&owner, 3).await;
        let new = sim.client(0);
        let recovery = recover(&new).await.unwrap();
        assert_eq!(new.lists.load(Ordering::SeqCst), 2);
        assert_ended(owner, &recovery).await;
    });
}

/// Objects without records leave nothing in the engines by which the start could be refused.
#[test]
fn a_fence_at_the_number_of_a_deleted_renewal_does_not_count() {
    runtime().block_on(async {
        let sim = Sim::new(331);
        let (old, new) = (sim.client(0), sim.client(0));
        let options =
            BucketOptions { lease: Duration::from_millis(3), ..options(SyncMode::Always) };
        let recovery = BucketJournal::recover(place(&old), options).await.unwrap();
        let owner = Running::start(recovery).await.unwrap();
        write(&owner, 3).await;
        let starting = sleeper(&new).await;
        let fence = owner.shared.state.lock().unwrap().next;
        let renew = async |until: &dyn Fn(&BucketState) -> bool| {
            let shared = &owner.shared;
            while !until(&shared.state.lock().unwrap()) {
                shared.lease.confirm(Duration::from_secs(20)).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        renew(&|state| state.published > fence.number).await;
        owner.flushed(&[0], 3);
        renew(&|state| {
            state.floor.first > fence && state.stored.front().is_none_or(|first| first.at > fence)
        })
        .await;
        eventually("old objects are deleted", || {
            let state = owner.shared.state.lock().unwrap();
            !state.doomed_records && !state.deleting
        })
        .await;
        let path = fence.path(place(&old).root());
        assert!(!sim.names().await.contains(&path.to_string()));
        assert_eq!(owner.durable(), 3);
        let recovery = wake(&new, starting).await.unwrap();
        assert_eq!(recovery.end(), 3);
        assert_ended(owner, &recovery).await;
        assert_serves(&new, recovery).await;
    });
}

/// A starter has listed an object; when it reads it, it finds the fence of another sleeper, which was
/// put at the number after the object was deleted.
#[test]
fn a_fence_in_the_place_of_an_object_that_was_listed_does_not_count() {
    // In a takeover that is contested, one that is not, and a view.
    for contested in [Some(true), Some(false), None] {
        runtime().block_on(async {
            let sim = Sim::new(332);
            let (old, new) = (sim.client(0), sim.client(0));
            let owner = Running::open(&old, SyncMode::Always).await;
            write(&owner, 1).await;
            new.gets_wait.shut(true);
            let place = place(&new);
            let starting = tokio::spawn(async move {
                let options = options(SyncMode::Always);
                if let Some(contested) = contested {
                    let options = BucketOptions { contested, ..options };
                    return BucketJournal::recover(place, options).await;
                }
                let mut view = BucketRecovery::new(place, options);
                view.read_unfenced().await.map(|()| view)
            });
            eventually("it has listed", || new.gets.load(Ordering::SeqCst) > 0).await;
            let listed = owner.shared.state.lock().unwrap().stored[0].at;
            pass(&owner, listed).await;
            put_fence(&sim, listed, &owner).await;
            new.gets_wait.shut(false);
            let recovery = starting.await.unwrap().unwrap();
            assert_eq!(recovery.end(), owner.durable(), "contested: {contested:?}");
            if contested.is_some() {
                assert_ended(owner, &recovery).await;
                assert_serves(&new, recovery).await;
            }
        });
    }
}

/// Puts the fence of a starter that has slept.
async fn put_fence(sim: &Sim, at: Position, owner: &Running) {
    let header = ObjectHeader {
        salt: owner.shared.options.salt,
        at,
        nonce: 1,
        opens: at.epoch + 1,
        released: false,
        last: 0,
        durable: 0,
        published: 0,
        time_ms: 0,
        prev_crc: 0,
        records_crc: 0,
        records_len: 0,
        floor: ObjectFloor::default(),
    };
    let path = at.path(owner.shared.place.root());
    sim.objects.put(&path, header.encode().into()).await.unwrap();
}
