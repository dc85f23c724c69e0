use super::*;

type Model = Vec<(Lsn, u64, Vec<u8>)>;

/// Appends, syncs and flushes at random; returns the durable lsn.
fn work(journal: &LocalJournal, rng: &mut Rng, model: &mut Model, flushed: &mut Lsn) -> Lsn {
    for _ in 0..rng.below(60) {
        match rng.below(10) {
            0 | 1 => {
                if journal.sync_now().is_err() {
                    break;
                }
            }
            2 => {
                let durable = journal.durable();
                let applied = if rng.below(2) == 0 { durable } else { rng.below(durable + 1) };
                *flushed = applied.max(*flushed);
                journal.flushed(0, *flushed);
                journal.flushed(1, *flushed);
            }
            kind => {
                let most = if kind == 9 { 9000 } else { 500 };
                let length = rng.below(most) as usize;
                let body = rng.bytes(length);
                let time_ms = rng.next();
                let shards: &[u16] = [&[0][..], &[1], &[0, 1]][rng.below(3) as usize];
                match journal.append(time_ms, shards, &[&body]) {
                    Ok(lsn) => model.push((lsn, time_ms, body)),
                    Err(_) => break,
                }
            }
        }
    }
    journal.durable()
}

/// Asserts that everything durable is there, as a prefix of the appended records; drops the rest of
/// the model.
fn check(recovery: &Recovery, model: &mut Model, durable: Lsn, flushed: Lsn) {
    assert!(recovery.end() >= durable, "end {}, durable {durable}", recovery.end());
    model.retain(|(lsn, ..)| *lsn <= recovery.end());
    let found = replayed(recovery, 0);
    let expected = &model[model.len() - found.len()..];
    let dropped = model.len() - found.len();
    assert!(dropped as u64 <= flushed, "only what is flushed is dropped");
    for (record, (lsn, time_ms, body)) in found.iter().zip(expected) {
        assert_eq!((record.lsn, record.time_ms), (*lsn, *time_ms));
        assert!(record.body == *body, "the body of lsn {lsn}");
    }
    assert!(recovery.floor(0).max(recovery.floor(1)) <= flushed);
    assert_eq!(recovery.end(), model.last().map_or(0, |last| last.0));
}

/// Runs several lives of a journal, each ended by a power loss, or by a kill and then a power loss
/// during recovery.
fn lives(seed: u64, mode: SyncMode) {
    let mut rng = Rng::new(seed);
    let mut disk = Arc::new(SimDisk::default());
    let (mut model, mut durable, mut flushed) = (Model::new(), 0, 0);
    for _life in 0..4 {
        // Recovery itself is interrupted some times.
        while rng.below(3) == 0 {
            disk.die_after(rng.below(12));
            let recovery = LocalJournal::recover(dir(), options(&disk, mode)).unwrap();
            check(&recovery, &mut model, durable, flushed);
            let end = recovery.end();
            if let Ok(journal) = recovery.start(0, 0) {
                assert_eq!(journal.durable(), end);
                durable = end;
            }
            if rng.below(2) == 0 {
                disk = disk.after_power_loss(&mut rng);
            }
            disk.revive();
        }
        let recovery = LocalJournal::recover(dir(), options(&disk, mode)).unwrap();
        check(&recovery, &mut model, durable, flushed);
        let journal = recovery.start(0, 0).unwrap();
        if rng.below(3) == 0 {
            disk.die_after(rng.below(80));
        }
        durable = work(&journal, &mut rng, &mut model, &mut flushed);
        match rng.below(6) {
            0 => drop(journal), // killed: the page cache stays
            1 => {
                durable = journal.close().unwrap_or(durable);
                disk = disk.after_power_loss(&mut rng);
            }
            _ => disk = disk.after_power_loss(&mut rng),
        }
        disk.revive();
    }
}

#[test]
fn nothing_durable_is_lost_with_the_power() {
    for seed in 0..300 {
        lives(seed, SyncMode::No);
    }
}

#[test]
fn nothing_durable_is_lost_with_the_power_while_syncing() {
    for seed in 1000..1150 {
        lives(seed, SyncMode::Always);
    }
}

#[test]
fn recovery_can_be_interrupted_anywhere() {
    let mut rng = Rng::new(77);
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    let mut model = Model::new();
    let mut flushed = 0;
    while model.len() < 60 {
        work(&journal, &mut rng, &mut model, &mut flushed);
    }
    drop(journal);
    for lost in 0..20 {
        let crashed = disk.after_power_loss(&mut rng);
        let mut changes = 0;
        loop {
            let dying = crashed.copy();
            let recovery = recover(&dying).unwrap();
            let (end, found) = (recovery.end(), bodies(&recovery));
            dying.die_after(changes);
            let done = recovery.start(0, 0).is_ok();
            let after = dying.after_power_loss(&mut rng);
            dying.revive();
            for disk in [dying, after] {
                let again = recover(&disk).unwrap();
                assert_eq!(again.end(), end, "round {lost}, died after {changes}");
                assert_eq!(bodies(&again), found);
            }
            if done {
                break;
            }
            changes += 1;
        }
        assert!(changes >= 3);
    }
}

#[test]
fn records_that_a_failed_sync_forgot_are_written_again() {
    let mut rng = Rng::new(5);
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    eventually("a spare", || journal.stats().spares >= 1);
    for round in 0..20 {
        journal.append(round, &[0], &[&[1; 700]]).unwrap();
        if round == 4 {
            journal.sync_now().unwrap();
        }
    }
    eventually("a spare", || journal.stats().spares >= 1);
    disk.fail_sync();
    assert!(journal.sync_now().is_err());
    drop(journal);
    // All of it is still in the page cache; a sync alone would not write it.
    let recovery = recover(&disk).unwrap();
    assert_eq!(recovery.end(), 20);
    assert_eq!(recovery.start(0, 0).unwrap().durable(), 20);
    for _ in 0..10 {
        let recovery = recover(&disk.after_power_loss(&mut rng)).unwrap();
        assert_eq!((recovery.end(), bodies(&recovery).len()), (20, 20));
    }
}

#[test]
fn a_segment_stays_until_the_one_after_it_is_durable() {
    let disk = Arc::new(SimDisk::default());
    let journal = start(&disk, SyncMode::No);
    for _ in 0..3 {
        journal.append(0, &[0], &[&[1; 1000]]).unwrap();
    }
    journal.sync_now().unwrap();
    journal.append(0, &[1], &[&[2; 1000]]).unwrap();
    assert_eq!(journal.stats().segments, 2);
    journal.flushed(0, 3);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(journal.oldest(), 1);
    let mut rng = Rng::new(6);
    for _ in 0..20 {
        let recovery = recover(&disk.after_power_loss(&mut rng)).unwrap();
        assert!(recovery.end() >= 3);
    }
    journal.sync_now().unwrap();
    eventually("recycling", || journal.oldest() == 4);
    assert_eq!(recover(&disk.after_power_loss(&mut rng)).unwrap().end(), 4);
}
