use super::*;
use futures::future::join_all;
use std::sync::Mutex;

#[test]
fn a_writer_that_wakes_up_after_a_takeover_publishes_nothing() {
    for seed in 0..40 {
        runtime().block_on(async {
            let sim = Sim::new(seed);
            let (old, new) = (sim.client(0), sim.client(0));
            let journal = Running::open(&old, SyncMode::Always).await;
            for _ in 0..sim.below(8) {
                journal.append(&[0], b"old").unwrap();
                tokio::time::sleep(Duration::from_micros(sim.below(800))).await;
            }
            old.paused.shut(true);
            for _ in 0..sim.below(3) {
                journal.append(&[0], b"too late").unwrap();
            }
            let published = journal.durable();
            let recovery = recover(&new).await.unwrap();
            let end = recovery.end();
            assert!(end >= published, "seed {seed}");
            let successor = Running::start(recovery).await.unwrap();
            old.paused.shut(false);
            let lsn = successor.append(&[0], b"new").unwrap();
            successor.until_durable(lsn).await;
            // It notices at its next commit at the latest.
            let _ = journal.append(&[0], b"too late");
            eventually("the old one has failed", || journal.shared.failed.get().is_some()).await;
            assert!(journal.durable() <= end, "seed {seed}: {} > {end}", journal.durable());
            let reason = journal.shared.failed.get().unwrap();
            assert!(reason.contains("another server has taken over"), "{reason}");
            assert!(matches!(journal.append(&[0], b"x"), Err(JournalError::Failed(_))));
            successor.kill();
            let recovery = recover(&new).await.unwrap();
            assert_eq!(bodies(&recovery).await[&lsn], b"new");
        });
    }
}

#[test]
fn a_writer_in_full_run_is_fenced() {
    runtime().block_on(async {
        let sim = Sim::new(9);
        let journal = Running::open(&sim.client(0), SyncMode::Always).await;
        let writer = async {
            while journal.append(&[0], b"more").is_ok() {
                tokio::time::sleep(Duration::from_micros(50)).await;
            }
        };
        let successor = async {
            tokio::time::sleep(Duration::from_millis(30)).await;
            recover(&sim.client(0)).await.unwrap()
        };
        let both = futures::future::join(writer, successor);
        let ((), recovery) = tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
        assert_eq!(recovery.end(), journal.durable().max(recovery.end()));
        assert_eq!(bodies(&recovery).await.len() as u64, recovery.end());
    });
}

/// Acknowledged commits by lsn, each with its epoch and body.
type Acked = Arc<Mutex<BTreeMap<Lsn, (u64, Vec<u8>)>>>;

/// A process that takes the journal over, writes for a while, and dies or goes on unaware.
async fn contender(sim: Sim, number: u64, acked: Acked) {
    tokio::time::sleep(Duration::from_micros(sim.below(20_000))).await;
    let client = sim.client([0, 10, 30][sim.below(3) as usize]);
    let recovery = match recover(&client).await {
        Ok(recovery) => recovery,
        Err(JournalError::Away { .. }) => return,
        Err(error) => panic!("contender {number}: {error}"),
    };
    let Ok(journal) = Running::start(recovery).await else { return };
    let mut appended = Vec::new();
    for _ in 0..sim.below(40) {
        let body = format!("{number}-{}", appended.len()).into_bytes();
        let Ok(lsn) = journal.append(&[0], &body) else { break };
        appended.push((lsn, body));
        tokio::time::sleep(Duration::from_micros(sim.below(1500))).await;
        if sim.below(30) == 0 {
            client.paused.shut(true);
            tokio::time::sleep(Duration::from_millis(sim.below(30))).await;
            client.paused.shut(false);
        }
        let durable = journal.durable();
        for (lsn, body) in appended.iter().filter(|(lsn, _)| *lsn <= durable) {
            let value = (journal.shared.epoch, body.clone());
            let before = acked.lock().unwrap().insert(*lsn, value.clone());
            assert!(before.is_none_or(|b| b == value), "two have published lsn {lsn}");
        }
    }
    client.die();
    journal.kill();
}

#[test]
fn of_several_simultaneous_takeovers_only_one_publishes() {
    for seed in 100..160 {
        runtime().block_on(async {
            let sim = Sim::new(seed);
            let acked = Acked::default();
            let all = (0..6).map(|number| contender(sim.clone(), number, acked.clone()));
            join_all(all).await;
            // Late requests may still arrive.
            let recovery = recover(&sim.client(0)).await.unwrap();
            let found = bodies(&recovery).await;
            for (lsn, (epoch, body)) in &*acked.lock().unwrap() {
                assert_eq!(found.get(lsn), Some(body), "seed {seed}, lsn {lsn}, epoch {epoch}");
            }
        });
    }
}
