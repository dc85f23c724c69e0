use super::*;

#[test]
fn appended_records_come_back_in_order() {
    runtime().block_on(async {
        let sim = Sim::new(1);
        let client = sim.client(0);
        let journal = Running::open(&client, SyncMode::Always).await;
        let large: Vec<u8> = (0..11 << 20).map(|n: u32| (n / 7) as u8).collect();
        let written = [&b"one"[..], b"two", &large, b"", b"five"];
        for (lsn, body) in (1..).zip(written) {
            assert_eq!(journal.append(&[0, 3], body).unwrap(), lsn);
        }
        journal.until_durable(5).await;
        journal.kill();
        let recovery = recover(&sim.client(0)).await.unwrap();
        assert_eq!((recovery.end(), recovery.max_time_ms(), recovery.max_epoch()), (5, 1, 1));
        let records = replayed(&recovery, 0).await;
        assert_eq!(records.iter().map(|r| r.lsn).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert!(records.iter().zip(written).all(|(record, body)| record.body == body));
        assert!(records.iter().all(|record| record.shards == [0, 3] && record.epoch == 1));
        // The commit begins in an object whose last whole commit is older.
        assert_eq!(replayed(&recovery, 3).await[..], records[2..]);
        // The next epoch goes on behind it.
        let journal = Running::start(recovery).await.unwrap();
        assert_eq!(journal.append(&[0], b"six").unwrap(), 6);
        journal.until_durable(6).await;
        journal.kill();
        let recovery = recover(&client).await.unwrap();
        let records = replayed(&recovery, 6).await;
        assert_eq!((records.len(), records[0].epoch, &*records[0].body), (1, 2, &b"six"[..]));
    });
}

#[test]
fn the_next_epoch_and_lsn_are_as_great_as_asked_for() {
    runtime().block_on(async {
        let sim = Sim::new(2);
        let client = sim.client(0);
        let recovery = recover(&client).await.unwrap();
        let shared = recovery.begin(9, 100).await.unwrap();
        assert_eq!((shared.epoch, shared.end.load(Ordering::SeqCst)), (9, 99));
        let task = tokio::spawn({
            let shared = shared.clone();
            async move { shared.run().await }
        });
        let journal = Running { shared, task };
        assert_eq!(journal.append(&[0], b"x").unwrap(), 100);
        journal.until_durable(100).await;
        journal.kill();
        let recovery = recover(&client).await.unwrap();
        assert_eq!((recovery.end(), recovery.max_epoch()), (100, 9));
    });
}

#[test]
fn unneeded_objects_are_deleted_and_their_floors_remembered() {
    runtime().block_on(async {
        let sim = Sim::new(3);
        let client = sim.client(0);
        let journal = Running::open(&client, SyncMode::Always).await;
        for lsn in 1..=6 {
            journal.append(&[(lsn % 2) as u16], b"x").unwrap();
            journal.until_durable(lsn).await;
        }
        // Shard 0 has 2, 4 and 6; shard 1 has 1, 3 and 5.
        journal.flushed(&[0], 6);
        journal.flushed(&[1], 3);
        journal.append(&[0], b"seven").unwrap();
        journal.until_durable(7).await;
        let mut names = sim.names().await;
        for _ in 0..1000 {
            // They go in any order.
            if names.len() <= 4 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            names = sim.names().await;
        }
        assert_eq!(names.len(), 4, "the first fence, and 5, 6 and 7: {names:?}");
        journal.kill();
        let recovery = recover(&client).await.unwrap();
        assert_eq!((recovery.floor(0), recovery.floor(1), recovery.floor(2)), (4, 3, 0));
        let found = bodies(&recovery).await;
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [5, 6, 7]);
    });
}

#[test]
fn the_end_is_known_when_everything_was_dropped() {
    runtime().block_on(async {
        let sim = Sim::new(4);
        let client = sim.client(0);
        let journal = Running::open(&client, SyncMode::Always).await;
        journal.append(&[0], b"one").unwrap();
        journal.until_durable(1).await;
        journal.flushed(&[0], 1);
        // The object that records this is lost, and the one behind it is not.
        *client.refused.lock().unwrap() = Some("2".to_owned());
        journal.append(&[0], b"two").unwrap();
        eventually("a put", || client.puts.load(Ordering::SeqCst) > 4).await;
        journal.append(&[0], b"three").unwrap();
        eventually("an object behind the gap", || {
            journal
                .shared
                .state
                .lock()
                .unwrap()
                .flights
                .iter()
                .any(|flight| flight.stored.is_some())
        })
        .await;
        assert_eq!(journal.durable(), 1);
        journal.kill();
        *client.refused.lock().unwrap() = None;
        for life in 0..3 {
            let recovery = recover(&client).await.unwrap();
            assert_eq!(recovery.end(), 1 + life, "what was not published does not count");
            let journal = Running::start(recovery).await.unwrap();
            assert_eq!(journal.append(&[0], b"again").unwrap(), 2 + life);
            journal.until_durable(2 + life).await;
            journal.kill();
        }
    });
}

#[test]
fn damage_and_gaps_are_refused() {
    runtime().block_on(async {
        let sim = Sim::new(5);
        let client = sim.client(0);
        let journal = Running::open(&client, SyncMode::Always).await;
        for lsn in 1..=4 {
            journal.append(&[0], b"body").unwrap();
            journal.until_durable(lsn).await;
        }
        journal.kill();
        let names = sim.names().await;
        let mut records = names.iter().filter(|name| !name.contains("/00000000000000000000/"));
        let second = records.nth(1).unwrap().clone();
        let refused = |error: Result<BucketRecovery, JournalError>| match error {
            Err(JournalError::Corrupt { path, .. }) => path.to_string_lossy().into_owned(),
            other => panic!("{other:?}"),
        };
        sim.damage(&second, |bytes| bytes[140] ^= 1).await;
        assert_eq!(refused(recover(&client).await), second);
        sim.damage(&second, |bytes| bytes[140] ^= 1).await;
        let other = BucketOptions { salt: 1, ..options(SyncMode::Always) };
        refused(BucketJournal::recover(place(&client), other).await);
        assert_eq!(recover(&client).await.unwrap().end(), 4);
        sim.remove(&second).await;
        assert_eq!(refused(recover(&client).await), second);
    });
}

#[test]
fn everysec_puts_once_per_bound_and_always_at_once() {
    runtime().block_on(async {
        let sim = Sim::new(6);
        let client = sim.client(0);
        let journal = Running::open(&client, SyncMode::EverySec).await;
        let before = client.puts.load(Ordering::SeqCst);
        let begun = Instant::now();
        for _ in 0..50 {
            journal.append(&[0], b"x").unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(journal.durable(), 0);
        journal.until_durable(50).await;
        assert!(begun.elapsed() >= Duration::from_millis(20));
        assert_eq!(client.puts.load(Ordering::SeqCst) - before, 1);
        // A caller waits.
        journal.append(&[0], b"x").unwrap();
        let begun = Instant::now();
        journal.shared.request_sync(51);
        journal.until_durable(51).await;
        assert!(begun.elapsed() < Duration::from_millis(15), "{:?}", begun.elapsed());
        journal.kill();
    });
}

#[test]
fn when_the_store_is_away_appends_are_refused_and_go_on_when_it_is_back() {
    let sim = Sim::new(7);
    let client = sim.client(0);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().build().unwrap();
    let options =
        BucketOptions { wait_limit: Duration::from_millis(100), ..options(SyncMode::Always) };
    let journal = runtime.block_on(async {
        let recovery = BucketJournal::recover(place(&client), options).await.unwrap();
        recovery.start(0, 0).await.unwrap()
    });
    assert_eq!(journal.append(1, &[0], &[b"one"]).unwrap(), 1);
    assert_eq!(journal.sync_now().unwrap(), 1);
    client.paused.shut(true);
    assert_eq!(journal.append(1, &[0], &[b"two"]).unwrap(), 2);
    assert!(journal.away().is_none());
    let begun = Instant::now();
    assert!(matches!(journal.sync_now(), Err(JournalError::Away { .. })));
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(matches!(journal.append(1, &[0], &[b"three"]), Err(JournalError::Away { .. })));
    crate::journal::tests::eventually("away", || journal.away().is_some());
    assert_eq!((journal.end(), journal.durable()), (2, 1));
    client.paused.shut(false);
    crate::journal::tests::eventually("back", || journal.durable() == 2);
    crate::journal::tests::eventually("not away", || journal.away().is_none());
    assert_eq!(journal.append(1, &[0], &[b"three"]).unwrap(), 3);
    journal.flushed(0, 3);
    assert_eq!(journal.close().unwrap(), 3);
    let names = runtime.block_on(sim.names());
    assert_eq!(names.len(), 2, "the first fence, and an object that says so: {names:?}");
    assert!(matches!(journal.append(1, &[0], &[b"four"]), Err(JournalError::Closed)));
    drop(journal);
    let found = runtime.block_on(async {
        let recovery = recover(&client).await.unwrap();
        assert_eq!((recovery.end(), recovery.floor(0)), (3, 3));
        bodies(&recovery).await
    });
    assert!(found.is_empty());
}

#[test]
fn records_without_a_waiter_are_put_before_the_store_seems_away() {
    runtime().block_on(async {
        let sim = Sim::new(9);
        let client = sim.client(0);
        let options = BucketOptions { wait_limit: Duration::from_secs(2), ..options(SyncMode::No) };
        let recovery = BucketJournal::recover(place(&client), options).await.unwrap();
        let journal = Running::start(recovery).await.unwrap();
        let begun = Instant::now();
        journal.append(&[0], b"one").unwrap();
        journal.until_durable(1).await;
        assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
        assert!(!journal.shared.away.load(Ordering::SeqCst));
        journal.kill();
    });
}

#[test]
fn no_more_is_taken_than_may_wait() {
    runtime().block_on(async {
        let sim = Sim::new(8);
        let client = sim.client(0);
        let wait_limit = Duration::from_millis(500);
        let options = BucketOptions { max_waiting: 1000, wait_limit, ..options(SyncMode::Always) };
        let recovery = BucketJournal::recover(place(&client), options).await.unwrap();
        let journal = Running::start(recovery).await.unwrap();
        client.paused.shut(true);
        let mut taken = 0;
        let refused = loop {
            match journal.append(&[0], &[7; 200]) {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, JournalError::Away { .. }), "{refused:?}");
        assert!((3..=5).contains(&taken), "{taken}");
        client.paused.shut(false);
        journal.until_durable(taken).await;
        journal.append(&[0], &[7; 200]).unwrap();
        journal.kill();
    });
}

#[test]
fn commits_wait_for_room_while_the_store_takes_them() {
    runtime().block_on(async {
        let sim = Sim::new(9);
        let client = sim.client(0);
        client.pace.store(5_000, Ordering::SeqCst);
        let options = BucketOptions { max_waiting: 1000, ..options(SyncMode::EverySec) };
        let recovery = BucketJournal::recover(place(&client), options).await.unwrap();
        let journal = Running::start(recovery).await.unwrap();
        let shared = journal.shared.clone();
        let appending = tokio::task::spawn_blocking(move || {
            (0..100).map(|ms| shared.append(ms, &[0], &[&[7; 200]])).collect::<Result<Vec<_>, _>>()
        });
        let lsns = appending.await.unwrap().unwrap();
        assert_eq!(lsns, (1..=100).collect::<Vec<_>>());
        journal.until_durable(100).await;
        journal.kill();
    });
}
