//! Reads a journal while it is being written.

use super::*;
use crate::journal::{HoldId, JournalTail, TailStep};

impl Running {
    /// Reads on a blocking thread.
    async fn read(&self, hold: HoldId, range: (Lsn, Lsn)) -> Result<Vec<Record>, JournalError> {
        let shared = self.shared.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let mut records = Vec::new();
            let collect = &mut |record| {
                records.push(record);
                Ok(())
            };
            shared.read(hold, range, collect).map(|()| records)
        });
        reading.await.unwrap()
    }

    /// Appends commits of one shard, some of which have several objects, and waits for them.
    async fn write(&self, commits: u64) {
        for n in 0..commits {
            let body = if n % 9 == 4 { vec![n as u8; 6 << 20] } else { vec![n as u8; 700] };
            let lsn = self.append(&[0], &body).unwrap();
            if n % 3 == 0 {
                self.until_durable(lsn).await;
            }
        }
        let end = self.shared.end.load(Ordering::SeqCst);
        self.until_durable(end).await;
    }

    /// Returns the oldest commit that still exists.
    fn oldest(&self) -> Lsn {
        let state = self.shared.state.lock().unwrap();
        state.stored.front().map_or(Lsn::MAX, |stored| stored.before + 1)
    }
}

fn lsns(records: &[Record]) -> Vec<Lsn> {
    records.iter().map(|record| record.lsn).collect()
}

#[test]
fn held_records_are_read_while_the_journal_goes_on() {
    runtime().block_on(async {
        let sim = Sim::new(20);
        let client = sim.client(0);
        let journal = Running::open(&client, SyncMode::Always).await;
        journal.write(20).await;
        let hold = journal.shared.hold(5, u64::MAX);
        journal.flushed(&[0], 20);
        journal.write(20).await;
        journal.flushed(&[0], 40);
        journal.write(1).await;
        assert!((2..=5).contains(&journal.oldest()), "what is before 5 went, and no more");
        let records = journal.read(hold, (5, 33)).await.unwrap();
        assert_eq!(lsns(&records), (5..=33).collect::<Vec<_>>());
        assert!(records.iter().any(|record| record.body.len() == 6 << 20));
        assert_eq!(lsns(&journal.read(hold, (14, 14)).await.unwrap()), [14]);
        journal.shared.release(hold);
        journal.write(1).await;
        journal.write(1).await;
        assert!(journal.oldest() > 33);
        assert!(matches!(journal.read(hold, (5, 33)).await, Err(JournalError::HoldBroken)));
        journal.kill();
    });
}

#[test]
fn waiting_records_are_put_for_a_reader() {
    runtime().block_on(async {
        let sim = Sim::new(21);
        let client = sim.client(0);
        let journal = Running::open(&client, SyncMode::No).await;
        let hold = journal.shared.hold(0, u64::MAX);
        journal.append(&[0], b"one").unwrap();
        assert_eq!(lsns(&journal.read(hold, (1, 1)).await.unwrap()), [1]);
        journal.kill();
    });
}

#[test]
fn lives_are_read_as_one_journal_and_lsns_without_records_too() {
    runtime().block_on(async {
        let sim = Sim::new(22);
        let client = sim.client(0);
        for life in 0..3 {
            let recovery = recover(&client).await.unwrap();
            let shared = recovery.begin(0, 1 + 50 * life).await.unwrap();
            let running = shared.clone();
            let task = tokio::spawn(async move { running.run().await });
            let journal = Running { shared, task };
            let hold = journal.shared.hold(0, u64::MAX);
            let end = 50 * life;
            let written = (1..=end).filter(|lsn| lsn % 50 < 12 && lsn % 50 > 0);
            let found = journal.read(hold, (1, end)).await.unwrap();
            assert_eq!(lsns(&found), written.collect::<Vec<_>>());
            journal.write(11).await;
            let found = journal.read(hold, (end + 3, end + 7)).await.unwrap();
            assert_eq!(lsns(&found), (end + 3..=end + 7).collect::<Vec<_>>());
            assert!(found.iter().all(|record| record.epoch == 1 + life));
            journal.kill();
        }
    });
}

#[test]
fn a_hold_that_keeps_too_much_is_broken() {
    runtime().block_on(async {
        let sim = Sim::new(23);
        let client = sim.client(0);
        let journal = Running::open(&client, SyncMode::Always).await;
        let hold = journal.shared.hold(0, 16 << 10);
        journal.write(3).await;
        assert_eq!(lsns(&journal.read(hold, (1, 3)).await.unwrap()), [1, 2, 3]);
        journal.flushed(&[0], 60);
        journal.write(50).await;
        assert!(journal.oldest() > 1);
        assert!(matches!(journal.read(hold, (1, 3)).await, Err(JournalError::HoldBroken)));
        journal.kill();
    });
}

#[test]
fn damage_is_told_from_dropped_objects() {
    runtime().block_on(async {
        let sim = Sim::new(24);
        let client = sim.client(0);
        let journal = Running::open(&client, SyncMode::Always).await;
        let hold = journal.shared.hold(0, u64::MAX);
        for lsn in 1..=4 {
            journal.append(&[0], b"body").unwrap();
            journal.until_durable(lsn).await;
        }
        let names = sim.names().await;
        let second = names.iter().find(|name| name.ends_with("1/00000000000000000002")).unwrap();
        sim.damage(second, |bytes| bytes[140] ^= 1).await;
        let read = journal.read(hold, (1, 4)).await;
        assert!(matches!(read, Err(JournalError::Corrupt { .. })), "{read:?}");
        assert_eq!(lsns(&journal.read(hold, (4, 4)).await.unwrap()), [4]);
        sim.remove(second).await;
        let read = journal.read(hold, (1, 4)).await;
        assert!(matches!(read, Err(JournalError::Corrupt { .. })), "{read:?}");
        journal.shared.release(hold);
        let read = journal.read(hold, (1, 4)).await;
        assert!(matches!(read, Err(JournalError::HoldBroken)), "{read:?}");
        journal.kill();
    });
}

#[test]
fn a_reader_gets_over_faults_of_the_store() {
    runtime().block_on(async {
        let sim = Sim::new(25);
        let journal = Running::open(&sim.client(20), SyncMode::Always).await;
        let hold = journal.shared.hold(0, u64::MAX);
        for n in 1..=40 {
            journal.append(&[0], b"body").unwrap();
            journal.until_durable(n).await;
        }
        let found = journal.read(hold, (1, 40)).await.unwrap();
        assert_eq!(lsns(&found), (1..=40).collect::<Vec<_>>());
        journal.kill();
    });
}

/// Reads what is behind a view, until there is nothing more.
async fn rest_of(tail: &mut JournalTail) -> (Vec<Record>, bool) {
    let mut records = Vec::new();
    loop {
        match tail.next().await.unwrap() {
            TailStep::Records(some) => records.extend(some),
            TailStep::Missing => return (records, false),
            TailStep::Ended => return (records, true),
        }
    }
}

#[test]
fn a_tail_has_what_its_view_lacks_and_ends_with_the_journal() {
    runtime().block_on(async {
        let sim = Sim::new(23);
        let client = sim.client(0);
        let journal = Running::open(&client, SyncMode::Always).await;
        let (mut tails, mut within) = (Vec::new(), 0);
        let length = |n: u64| if n % 5 == 4 { 6 << 20 } else { 700 };
        for n in 0..60_u64 {
            let is_long = length(n) > 700;
            if is_long {
                journal.until_durable(n).await;
            }
            let names = sim.names().await;
            if let Some((_, number)) =
                names.last().filter(|_| is_long).and_then(|it| it.rsplit_once('/'))
            {
                // The second object of the commit does not get there.
                let number = number.parse::<u64>().unwrap() + 2;
                *client.refused.lock().unwrap() = Some(format!("/{number:020}"));
            }
            let body = vec![n as u8; length(n)];
            let lsn = journal.append(&[0], &body).unwrap();
            if n % 4 == 0 && !is_long {
                journal.until_durable(lsn).await;
            }
            if is_long {
                while sim.names().await.len() == names.len() {
                    tokio::time::sleep(Duration::from_micros(100)).await;
                }
            }
            if is_long || n % 7 == 3 {
                let view = BucketJournal::view(&place(&client), &options(SyncMode::Always)).await;
                let view = view.unwrap();
                within += u64::from(is_long && view.end() < lsn);
                tails.push((view.end(), view.tail()));
            }
            *client.refused.lock().unwrap() = None;
        }
        assert_eq!(within, 12, "views that have ended within a commit");
        journal.until_durable(60).await;
        for (end, tail) in &mut tails {
            let (records, ended) = rest_of(tail).await;
            assert_eq!((lsns(&records), ended), ((*end + 1..=60).collect(), false));
            let bodies = records.iter().map(|record| record.body.len());
            assert!(bodies.eq((*end..60).map(length)), "whole bodies");
            assert!(tail.read_up_to() > 0);
        }
        let lsn = journal.append(&[0], b"last").unwrap();
        journal.until_durable(lsn).await;
        let sealed = recover(&sim.client(1)).await.unwrap();
        assert_eq!(sealed.end(), lsn);
        for (_, tail) in &mut tails {
            let (records, ended) = rest_of(tail).await;
            assert_eq!((lsns(&records), ended), (vec![lsn], true));
            assert!(matches!(tail.next().await.unwrap(), TailStep::Ended), "it stays so");
        }
    });
}
