use super::*;

/// Runs several lives of a journal under faults, each ended by a kill at any request.
async fn lives(seed: u64) {
    let sim = Sim::new(seed);
    let mut model: BTreeMap<Lsn, Vec<u8>> = BTreeMap::new();
    let (mut durable, mut flushed) = (0, 0);
    for life in 0..5 {
        let faults = [0, 5, 20, 40][sim.below(4) as usize];
        let client = sim.client(faults);
        if life < 4 && sim.below(3) > 0 {
            client.die_after(sim.below(60));
        }
        let recovering = tokio::time::timeout(Duration::from_secs(5), recover(&client));
        let Some(recovery) = survives(&client, recovering).await else { continue };
        let recovery = match recovery {
            Ok(Ok(recovery)) => recovery,
            // Several faults in a row.
            Ok(Err(JournalError::Away { .. })) | Err(_) => continue,
            Ok(Err(error)) => panic!("seed {seed}, life {life}: {error}"),
        };
        check(&recovery, &mut model, durable, flushed, seed).await;
        durable = durable.max(recovery.end());
        let Some(Ok(journal)) = survives(&client, Running::start(recovery)).await else { continue };
        journal.shared.set_commit_window(Duration::from_micros(sim.below(3) * sim.below(2000)));
        for _ in 0..sim.below(60) {
            work(&sim, &journal, &mut model, &mut flushed).await;
            durable = durable.max(journal.durable());
            if client.is_dead() {
                break;
            }
        }
        durable = durable.max(journal.durable());
        client.die();
        journal.kill();
    }
    let client = sim.client(0);
    let recovery = recover(&client).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    check(&recovery, &mut model, durable, flushed, seed).await;
}

/// Runs a task; `None`: the process has died meanwhile.
async fn survives<T>(client: &Client, work: impl Future<Output = T>) -> Option<T> {
    let death = async {
        while !client.is_dead() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        done = work => Some(done),
        () = death => None,
    }
}

async fn work(sim: &Sim, journal: &Running, model: &mut BTreeMap<Lsn, Vec<u8>>, flushed: &mut Lsn) {
    match sim.below(10) {
        0 | 1 => tokio::time::sleep(Duration::from_micros(sim.below(3000))).await,
        2 => {
            let durable = journal.durable();
            *flushed = sim.below(durable + 1).max(*flushed);
            journal.flushed(&[0, 1], *flushed);
        }
        kind => {
            let length = if kind == 9 && sim.below(8) == 0 { 6 << 20 } else { sim.below(300) };
            let body = vec![sim.below(256) as u8; length as usize];
            let shards: &[u16] = [&[0][..], &[1], &[0, 1]][sim.below(3) as usize];
            let lsn = journal.append(shards, &body).unwrap();
            model.insert(lsn, body);
            tokio::task::yield_now().await;
        }
    }
}

/// Asserts that everything durable is there, as a prefix of the appended records; drops the rest of
/// the model.
async fn check(
    recovery: &BucketRecovery,
    model: &mut BTreeMap<Lsn, Vec<u8>>,
    durable: Lsn,
    flushed: Lsn,
    seed: u64,
) {
    let end = recovery.end();
    assert!(end >= durable, "seed {seed}: end {end}, durable {durable}");
    model.retain(|lsn, _| *lsn <= end);
    assert_eq!(model.len() as u64, end, "seed {seed}");
    let found = bodies(recovery).await;
    let first = found.keys().next().copied().unwrap_or(end + 1);
    assert!(first <= flushed + 1, "seed {seed}: only what is flushed is dropped");
    assert!(found == model.split_off(&first), "seed {seed}: bodies from {first} on");
    model.extend(found);
    assert!(recovery.floor(0).max(recovery.floor(1)) <= flushed, "seed {seed}");
}

#[test]
fn nothing_durable_is_lost_whenever_it_dies() {
    for seed in 0..120 {
        runtime().block_on(lives(seed));
    }
}

/// Adoptions jump beyond the records of other lives, in the middle of an object and at its begin, and
/// commits go on behind them.
#[test]
fn an_adoption_raises_the_lsns_behind_it() {
    runtime().block_on(async {
        for in_one_object in [false, true] {
            let sim = Sim::new(7);
            let client = sim.client(0);
            let running = Running::open(&client, SyncMode::Always).await;
            let mut lsns = Vec::new();
            for (above, body) in
                [(0, b"a"), (0, b"b"), (90, b"c"), (0, b"d"), (3, b"e"), (1 << 40, b"f")]
            {
                let lsn = match above {
                    0 => running.append(&[1], body),
                    above => running.shared.adopt(above, 1, &[1], body),
                };
                lsns.push(lsn.unwrap());
                if !in_one_object {
                    running.until_durable(lsns[lsns.len() - 1]).await;
                }
            }
            assert_eq!(lsns, [1, 2, 91, 92, 93, (1 << 40) + 1]);
            running.until_durable((1 << 40) + 1).await;
            assert_eq!(running.shared.end.load(Ordering::SeqCst), (1 << 40) + 1);
            running.kill();
            let recovery = recover(&client).await.unwrap();
            assert_eq!(recovery.end(), (1 << 40) + 1);
            let found = bodies(&recovery).await;
            assert_eq!(found.into_keys().collect::<Vec<_>>(), lsns);
        }
    });
}
