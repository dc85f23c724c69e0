//! The commit window: how long commits gather before an object is put for them.

use super::super::append::OBJECT_BYTES;
use super::*;

/// A window that ends within no test.
const LONG: Duration = Duration::from_secs(9);

/// A window that tests wait for, and a part of it.
const SHORT: Duration = Duration::from_millis(150);
const PART: Duration = Duration::from_millis(50);

/// Opens a journal with a window.
async fn open(client: &Arc<Client>, mode: SyncMode, window: Duration) -> Running {
    let journal = Running::open(client, mode).await;
    journal.shared.set_commit_window(window);
    journal
}

async fn open_with(client: &Arc<Client>, options: BucketOptions, window: Duration) -> Running {
    let recovery = BucketJournal::recover(place(client), options).await.unwrap();
    let journal = Running::start(recovery).await.unwrap();
    journal.shared.set_commit_window(window);
    journal
}

fn puts(client: &Client) -> u64 {
    client.puts.load(Ordering::SeqCst)
}

#[test]
fn commits_of_a_window_share_an_object_whoever_waits_for_them() {
    for mode in [SyncMode::Always, SyncMode::EverySec, SyncMode::No] {
        runtime().block_on(async {
            let client = Sim::new(1).client(0);
            let options = BucketOptions { everysec_bound: LONG, ..options(mode) };
            let journal = open_with(&client, options, SHORT).await;
            let (before, begun) = (puts(&client), Instant::now());
            for lsn in 1..=5 {
                assert_eq!(journal.append(&[0], b"x").unwrap(), lsn);
                journal.shared.request_sync(lsn);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(puts(&client), before, "{mode:?}");
            journal.until_durable(5).await;
            assert!(begun.elapsed() >= SHORT, "{mode:?}: {:?}", begun.elapsed());
            assert_eq!(puts(&client), before + 1, "{mode:?}");
            // The next one waits for a window of its own.
            journal.append(&[0], b"x").unwrap();
            journal.shared.request_sync(6);
            tokio::time::sleep(PART).await;
            assert_eq!((journal.durable(), puts(&client)), (5, before + 1), "{mode:?}");
            journal.until_durable(6).await;
            journal.kill();
        });
    }
}

#[test]
fn a_window_does_not_delay_what_the_bound_of_everysec_puts() {
    runtime().block_on(async {
        let client = Sim::new(2).client(0);
        let journal = open(&client, SyncMode::EverySec, LONG).await;
        let begun = Instant::now();
        let lsn = journal.append(&[0], b"x").unwrap();
        journal.shared.request_sync(lsn);
        journal.until_durable(lsn).await;
        assert!(begun.elapsed() < LONG);
        journal.kill();
    });
}

#[test]
fn a_full_object_does_not_wait_for_its_window() {
    runtime().block_on(async {
        let client = Sim::new(3).client(0);
        let journal = open(&client, SyncMode::Always, LONG).await;
        let first = journal.append(&[0], b"first").unwrap();
        journal.append(&[0], &vec![1; OBJECT_BYTES - 100]).unwrap();
        journal.until_durable(first).await;
        assert_eq!(journal.durable(), first);
        journal.kill();
    });
}

#[test]
fn what_gathers_leaves_room_for_appends() {
    runtime().block_on(async {
        let client = Sim::new(10).client(0);
        let options = BucketOptions { max_waiting: 1 << 20, ..options(SyncMode::Always) };
        let journal = open_with(&client, options, LONG).await;
        let begun = Instant::now();
        for lsn in 1..=9 {
            // An object is put for every three of them.
            journal.append(&[0], &[0; 100 << 10]).unwrap();
            if lsn % 3 == 0 {
                journal.until_durable(lsn).await;
            }
        }
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
        journal.kill();
    });
}

#[test]
fn the_end_of_the_journal_does_not_wait_for_a_window() {
    runtime().block_on(async {
        let sim = Sim::new(4);
        let client = sim.client(0);
        let journal = open(&client, SyncMode::Always, LONG).await;
        journal.append(&[0], b"last").unwrap();
        tokio::time::sleep(PART).await;
        let (closing, begun) = (journal.shared.clone(), Instant::now());
        assert_eq!(tokio::task::spawn_blocking(move || closing.close()).await.unwrap().unwrap(), 1);
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
        journal.kill();
        let recovery = recover(&sim.client(0)).await.unwrap();
        assert_eq!(bodies(&recovery).await[&1], b"last");
    });
}

#[test]
fn a_window_that_is_changed_holds_for_commits_that_wait() {
    runtime().block_on(async {
        let client = Sim::new(5).client(0);
        let journal = open(&client, SyncMode::Always, LONG).await;
        let begun = Instant::now();
        journal.append(&[0], b"x").unwrap();
        tokio::time::sleep(PART).await;
        assert_eq!(journal.durable(), 0);
        // A longer one counts from the same moment.
        journal.shared.set_commit_window(SHORT);
        journal.until_durable(1).await;
        assert!(begun.elapsed() >= SHORT && begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
        journal.shared.set_commit_window(Duration::ZERO);
        journal.append(&[0], b"y").unwrap();
        journal.until_durable(2).await;
        assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
        journal.kill();
    });
}

#[test]
fn commits_that_gather_do_not_make_the_store_seem_away() {
    for (mode, window) in [(SyncMode::Always, LONG), (SyncMode::EverySec, Duration::ZERO)] {
        runtime().block_on(async {
            let client = Sim::new(6).client(0);
            let wait_limit = Duration::from_millis(800);
            let options = BucketOptions { wait_limit, everysec_bound: LONG, ..options(mode) };
            let journal = open_with(&client, options, window).await;
            let begun = Instant::now();
            while begun.elapsed() < 2 * wait_limit {
                journal.append(&[0], b"x").unwrap_or_else(|error| panic!("{mode:?}: {error}"));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(journal.durable() > 0, "{mode:?}");
            journal.kill();
        });
    }
}

#[test]
fn a_window_does_not_let_the_lease_run_out() {
    runtime().block_on(async {
        let client = Sim::new(7).client(0);
        let lease = Duration::from_millis(1500);
        let options = BucketOptions { lease, ..options(SyncMode::Always) };
        let journal = open_with(&client, options, LONG).await;
        let begun = Instant::now();
        assert_eq!(journal.shared.lease.confirm(LONG).await, Ok(()));
        while begun.elapsed() < 2 * lease {
            journal.append(&[0], b"x").unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert!(journal.shared.lease.holds(), "after {:?}", begun.elapsed());
        }
        // What had gathered went with the renewals.
        assert!(journal.durable() > 0);
        journal.kill();
    });
}

#[test]
fn what_gathers_when_another_process_takes_over_is_never_acknowledged() {
    runtime().block_on(async {
        let sim = Sim::new(8);
        let owner = open(&sim.client(0), SyncMode::Always, SHORT).await;
        owner.append(&[0], b"old").unwrap();
        owner.until_durable(1).await;
        let late = owner.append(&[0], b"late").unwrap();
        let recovery = recover(&sim.client(0)).await.unwrap();
        let end = recovery.end();
        if end < late {
            eventually("it is seen", || owner.shared.failed.get().is_some()).await;
            assert_eq!((end, owner.durable()), (1, 1));
        }
        let found = bodies(&recovery).await;
        assert_eq!(found.contains_key(&late), end >= late);
        owner.kill();
    });
}

#[test]
fn two_kills_in_open_windows_lose_only_what_was_never_acknowledged() {
    runtime().block_on(async {
        let sim = Sim::new(9);
        let mut kept = Vec::new();
        for life in 0..3 {
            let client = sim.client(if life == 2 { 20 } else { 0 });
            let journal = open(&client, SyncMode::Always, PART).await;
            let body = format!("kept {life}").into_bytes();
            let lsn = journal.append(&[0], &body).unwrap();
            journal.until_durable(lsn).await;
            kept.push((lsn, body));
            journal.append(&[0], b"lost").unwrap();
            client.die();
            journal.kill();
            let recovery = recover(&sim.client(0)).await.unwrap();
            assert_eq!(bodies(&recovery).await.into_iter().collect::<Vec<_>>(), kept);
        }
    });
}
