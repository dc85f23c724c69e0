//! Tests of the journal in a bucket, on a store in memory with faults of all kinds.

mod basic;
mod breaks;
mod endings;
mod history;
mod lives;
mod owners;
mod reading;
mod rivals;
mod sleepers;
mod windows;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::{BucketJournal, BucketOptions, BucketRecovery, BucketShared};
use crate::journal::{Journal, JournalError, Lsn, Record, SyncMode};
use crate::place::Place;
use crate::place::sim::{Client, Sim};

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn options(mode: SyncMode) -> BucketOptions {
    BucketOptions {
        mode,
        everysec_bound: Duration::from_millis(20),
        wait_limit: Duration::from_secs(20),
        salt: 0x5A17,
        attempt: Duration::from_millis(200),
        request: Duration::from_millis(600),
        pause: Duration::from_micros(200),
        ..BucketOptions::default()
    }
}

fn place(client: &Arc<Client>) -> Place {
    Place::within(client.clone(), "node/journal".into(), "sim")
}

async fn recover(client: &Arc<Client>) -> Result<BucketRecovery, JournalError> {
    let contested = client.sim.is_odd;
    let options = BucketOptions { contested, ..options(SyncMode::Always) };
    BucketJournal::recover(place(client), options).await
}

/// A journal that runs on the test's runtime.
struct Running {
    shared: Arc<BucketShared>,
    task: JoinHandle<()>,
}

impl Running {
    async fn start(recovery: BucketRecovery) -> Result<Self, JournalError> {
        let shared = recovery.begin(0, 0).await?;
        let running = shared.clone();
        Ok(Self { shared, task: tokio::spawn(async move { running.run().await }) })
    }

    async fn open(client: &Arc<Client>, mode: SyncMode) -> Self {
        let recovery = BucketJournal::recover(place(client), options(mode)).await.unwrap();
        Self::start(recovery).await.unwrap()
    }

    fn append(&self, shards: &[u16], body: &[u8]) -> Result<Lsn, JournalError> {
        self.shared.append(1, shards, &[body])
    }

    fn durable(&self) -> Lsn {
        self.shared.durable.load(Ordering::SeqCst)
    }

    fn flushed(&self, shards: &[u16], lsn: Lsn) {
        let mut state = self.shared.state.lock().unwrap();
        for &shard in shards {
            let at = usize::from(shard);
            let shards = state.flushed.len().max(at + 1);
            state.flushed.resize(shards, 0);
            state.flushed[at] = state.flushed[at].max(lsn);
        }
    }

    async fn until_durable(&self, lsn: Lsn) {
        eventually("durable", || self.durable() >= lsn).await;
    }

    fn kill(self) {
        self.task.abort();
    }
}

async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "not in time: {what}");
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}

async fn replayed(recovery: &BucketRecovery, from: Lsn) -> Vec<Record> {
    let mut records = Vec::new();
    let collect = |record: &Record| {
        records.push(record.clone());
        Ok::<(), JournalError>(())
    };
    recovery.replay(from, collect).await.unwrap();
    records
}

async fn bodies(recovery: &BucketRecovery) -> BTreeMap<Lsn, Vec<u8>> {
    let records = replayed(recovery, 0).await;
    let bodies: BTreeMap<_, _> = records.iter().map(|r| (r.lsn, r.body.to_vec())).collect();
    assert_eq!(bodies.len(), records.len(), "an lsn is there twice");
    bodies
}
