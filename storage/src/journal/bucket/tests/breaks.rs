//! Journals that have lost objects, and what a user can do then.

use super::*;
use crate::journal::JournalCondition;

/// Options of a journal that other servers take over soon.
fn hasty() -> BucketOptions {
    let lease = Duration::from_millis(40);
    BucketOptions { contested: true, lease, ..options(SyncMode::Always) }
}

async fn owner(client: &Arc<Client>) -> Running {
    let recovery = BucketJournal::recover(place(client), hasty()).await.unwrap();
    Running::start(recovery).await.unwrap()
}

async fn condition(client: &Arc<Client>) -> JournalCondition {
    BucketJournal::condition(&place(client), &hasty()).await.unwrap()
}

async fn cut_off(client: &Arc<Client>) -> Result<(), JournalError> {
    BucketJournal::cut_off(&place(client), &hasty()).await
}

/// Writes some commits, each in an object of its own.
async fn write(journal: &Running, commits: usize) {
    for _ in 0..commits {
        let lsn = journal.append(&[0], &[journal.durable() as u8 + 1]).unwrap();
        journal.until_durable(lsn).await;
    }
}

/// Returns the lsns of the commits that a successor finds.
async fn found(client: &Arc<Client>) -> Vec<Lsn> {
    let recovery = BucketJournal::recover(place(client), hasty()).await.unwrap();
    let bodies = bodies(&recovery).await;
    assert!(bodies.iter().all(|(lsn, body)| body[..] == [*lsn as u8]), "{bodies:?}");
    assert_eq!(bodies.keys().max().copied().unwrap_or(0), recovery.end());
    bodies.into_keys().collect()
}

/// Asserts that an owner whose lease is over can store nothing more.
async fn assert_stopped(owner: Running) {
    eventually("its lease is over", || owner.shared.lease.left().is_zero()).await;
    let late = owner.append(&[0], b"late").unwrap_or(Lsn::MAX);
    eventually("it has failed", || owner.shared.failed.get().is_some()).await;
    assert!(owner.durable() < late && owner.shared.taken_over.load(Ordering::SeqCst));
    assert!(owner.shared.lease.left().is_zero());
    owner.kill();
}

/// Returns the name of the object of a commit in the first epoch.
async fn object_of(sim: &Sim, lsn: Lsn) -> String {
    let names = sim.names().await;
    let name = format!("{:020}/{lsn:020}", 1);
    names.into_iter().find(|it| it.ends_with(&name)).unwrap()
}

#[test]
fn a_journal_that_breaks_ends_there_once_a_user_accepts_it() {
    for damage in 0..3 {
        runtime().block_on(async {
            let sim = Sim::new(1);
            let client = sim.client(0);
            assert_eq!(condition(&client).await, JournalCondition::Missing);
            let owner = owner(&client).await;
            write(&owner, 6).await;
            assert_eq!(condition(&client).await, JournalCondition::Whole);
            let lost = object_of(&sim, 4).await;
            match damage {
                0 => sim.remove(&lost).await,
                1 => sim.damage(&lost, |bytes| bytes.truncate(50)).await,
                _ => sim.damage(&lost, |bytes| *bytes.last_mut().unwrap() ^= 1).await,
            }
            let JournalCondition::Broken { why, end, objects } = condition(&client).await else {
                panic!("it is broken");
            };
            let left = if damage == 0 { 2 } else { 3 };
            assert!(why.contains(&lost) && (end, objects) == (3, left), "{why} {end} {objects}");
            let refused = BucketJournal::recover(place(&client), hasty()).await.unwrap_err();
            assert!(matches!(refused, JournalError::Corrupt { .. }), "{refused}");
            cut_off(&client).await.unwrap();
            assert_eq!(condition(&client).await, JournalCondition::Whole);
            assert_eq!(found(&client).await, [1, 2, 3]);
            assert_stopped(owner).await;
            assert_eq!(found(&client).await, [1, 2, 3]);
        });
    }
}

/// Only objects behind the break say which objects before it are needed.
#[test]
fn what_is_needed_before_a_break_stays() {
    runtime().block_on(async {
        let sim = Sim::new(2);
        let client = sim.client(0);
        let owner = owner(&client).await;
        write(&owner, 4).await;
        let first = object_of(&sim, 1).await;
        owner.flushed(&[0], 2);
        write(&owner, 2).await;
        while sim.names().await.contains(&first) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        sim.remove(&object_of(&sim, 5).await).await;
        cut_off(&client).await.unwrap();
        assert_eq!(found(&client).await, [3, 4]);
        assert_stopped(owner).await;
    });
}

#[test]
fn a_cut_that_is_killed_leaves_a_broken_journal_or_one_that_ends_at_the_break() {
    runtime().block_on(async {
        let mut ended = 0;
        for requests in 0.. {
            let sim = Sim::new(requests);
            let client = sim.client(0);
            let owner = owner(&client).await;
            write(&owner, 5).await;
            owner.kill();
            sim.remove(&object_of(&sim, 3).await).await;
            let dying = sim.client(0);
            dying.die_after(requests);
            let death = async {
                while !dying.is_dead() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            let is_done = tokio::select! {
                done = cut_off(&dying) => done.is_ok(),
                () = death => false,
            };
            match condition(&client).await {
                JournalCondition::Whole => ended += 1,
                JournalCondition::Broken { end: 2, .. } if !is_done => {}
                other => panic!("{other:?} after {requests} requests"),
            }
            let second = sim.client(0);
            let (one, other) = tokio::join!(cut_off(&client), cut_off(&second));
            assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
            assert_eq!(found(&client).await, [1, 2], "after {requests} requests");
            if is_done {
                break;
            }
        }
        assert!(ended > 0);
    });
}

/// No fence could be put where it would meet it.
#[test]
fn an_owner_whose_journal_was_deleted_stores_nothing_behind_its_lease() {
    runtime().block_on(async {
        let sim = Sim::new(3);
        let client = sim.client(0);
        let owner = owner(&client).await;
        write(&owner, 2).await;
        for _ in 0..2 {
            eventually("its lease is over", || owner.shared.lease.left().is_zero()).await;
            write(&owner, 1).await;
        }
        for name in sim.names().await {
            sim.remove(&name).await;
        }
        assert_eq!(condition(&client).await, JournalCondition::Missing);
        assert_stopped(owner).await;
    });
}

#[test]
fn the_journal_of_other_data_is_not_cut() {
    runtime().block_on(async {
        let sim = Sim::new(4);
        let client = sim.client(0);
        let owner = owner(&client).await;
        write(&owner, 3).await;
        owner.kill();
        let names = sim.names().await;
        let others = BucketOptions { salt: 1, ..hasty() };
        let refused = BucketJournal::cut_off(&place(&client), &others).await.unwrap_err();
        assert!(refused.to_string().contains("another data directory"), "{refused}");
        assert_eq!(sim.names().await, names);
    });
}
