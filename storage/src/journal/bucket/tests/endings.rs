//! A journal that is ended for good: nobody starts it again, and nobody who owned it writes on.

use super::*;
use crate::journal::JournalLook;
use futures::future::join_all;
use std::sync::atomic::AtomicU64;

async fn look(client: &Arc<Client>) -> JournalLook {
    BucketJournal::look(&place(client), &options(SyncMode::Always)).await.unwrap()
}

async fn end(client: &Arc<Client>, epoch: u64) -> Result<(), JournalError> {
    BucketJournal::end_for_good(&place(client), &options(SyncMode::Always), epoch).await
}

/// Opens a journal, appends a record that is flushed, and closes it; returns its epoch.
async fn own_and_close(client: &Arc<Client>) -> Result<u64, JournalError> {
    let owner = Running::start(recover(client).await?).await?;
    let lsn = owner.append(&[0], b"x")?;
    eventually("stored or lost", || owner.durable() >= lsn || owner.shared.failed.get().is_some())
        .await;
    owner.flushed(&[0], owner.durable());
    let closing = owner.shared.clone();
    tokio::task::spawn_blocking(move || closing.close()).await.unwrap()?;
    let epoch = owner.shared.epoch;
    owner.kill();
    Ok(epoch)
}

#[test]
fn nobody_starts_a_journal_that_has_ended_even_without_its_objects() {
    runtime().block_on(async {
        let sim = Sim::new(1);
        let client = sim.client(0);
        assert_eq!(look(&client).await, JournalLook { epoch: 0, is_ended: false });
        let zombie = Running::open(&sim.client(0), SyncMode::Always).await;
        zombie.append(&[0], b"x").unwrap();
        zombie.until_durable(1).await;
        let epoch = own_and_close(&client).await.unwrap();
        assert_eq!(look(&client).await, JournalLook { epoch, is_ended: false });
        end(&client, epoch).await.unwrap();
        for has_objects in [true, false] {
            assert_eq!(look(&client).await, JournalLook { epoch, is_ended: true }, "{has_objects}");
            let refused = recover(&client).await.unwrap_err();
            assert!(matches!(refused, JournalError::Ended { .. }), "{refused}");
            let view = BucketJournal::view(&place(&client), &options(SyncMode::Always)).await;
            assert!(matches!(view, Err(JournalError::Ended { .. })), "{view:?}");
            let again = end(&client, epoch).await.unwrap_err();
            assert!(matches!(again, JournalError::Ended { .. }), "{again}");
            let options = &zombie.shared.options;
            BucketJournal::remove_records(&place(&client), options).await.unwrap();
        }
        // Its owner from long ago meets the fence that ended it.
        let lsn = zombie.append(&[0], b"late").unwrap();
        eventually("lost", || zombie.shared.failed.get().is_some()).await;
        assert!(zombie.durable() < lsn);
    });
}

#[test]
fn a_program_that_does_not_know_the_end_of_a_journal_refuses_it() {
    runtime().block_on(async {
        let sim = Sim::new(2);
        let client = sim.client(0);
        let epoch = own_and_close(&client).await.unwrap();
        let version_of_last = || async {
            let last = sim.names().await.pop().unwrap();
            u32::from_le_bytes(sim.first_content(&last).unwrap()[8..12].try_into().unwrap())
        };
        assert_eq!(version_of_last().await, 4);
        end(&client, epoch).await.unwrap();
        assert_eq!(version_of_last().await, 5);
    });
}

#[test]
fn a_journal_that_somebody_else_has_taken_over_is_not_ended() {
    runtime().block_on(async {
        for is_begun in [false, true] {
            let sim = Sim::new(3);
            let client = sim.client(0);
            let epoch = own_and_close(&client).await.unwrap();
            let rival = recover(&sim.client(0)).await.unwrap();
            let refused = if is_begun {
                let rival = Running::start(rival).await.unwrap();
                let lsn = rival.append(&[0], b"y").unwrap();
                rival.until_durable(lsn).await;
                let refused = end(&client, epoch).await.unwrap_err();
                let lsn = rival.append(&[0], b"z").unwrap();
                rival.until_durable(lsn).await;
                rival.kill();
                refused
            } else {
                end(&client, epoch).await.unwrap_err()
            };
            assert!(refused.to_string().contains("has taken over"), "{refused}");
            assert!(!look(&client).await.is_ended);
        }
    });
}

/// Several processes open the journal at the same time, write, close it, and try to end it.
#[test]
fn behind_the_end_of_a_journal_nothing_is_ever_stored() {
    runtime().block_on(join_all((0..40).map(|seed| async move {
        let sim = Sim::new(seed);
        let ended = Arc::new(AtomicU64::new(0));
        let all = (0..4).map(|_| {
            let (sim, ended) = (sim.clone(), ended.clone());
            async move {
                tokio::time::sleep(Duration::from_micros(sim.below(40_000))).await;
                let client = sim.client([0, 10, 30][sim.below(3) as usize]);
                for _ in 0..6 {
                    let was_ended = ended.load(Ordering::SeqCst) > 0;
                    let Ok(epoch) = own_and_close(&client).await else { continue };
                    assert!(!was_ended, "seed {seed}: started behind the end");
                    if end(&client, epoch).await.is_ok() {
                        let before = ended.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(before, 0, "seed {seed}: ended twice");
                    }
                }
            }
        });
        join_all(all).await;
        let client = sim.client(0);
        let is_ended = look(&client).await.is_ended;
        assert_eq!(recover(&client).await.is_err(), is_ended, "seed {seed}");
        assert!(is_ended || ended.load(Ordering::SeqCst) == 0, "seed {seed}");
    })));
}
