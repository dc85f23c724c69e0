//! Tests of the journal, most of them on a disk in memory.

mod basic;
mod crash;
mod damage;
mod faults;
mod sim_disk;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sim_disk::{Handle, SimDisk};

use super::{Journal, JournalError, LocalJournal, Lsn, Options, Record, Recovery, SyncMode};

/// A small generator of pseudo-random numbers (xorshift64*).
pub(super) struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

fn dir() -> &'static Path {
    Path::new("/journal")
}

fn options(disk: &Arc<SimDisk>, mode: SyncMode) -> Options {
    Options {
        segment_bytes: 4096,
        mode,
        salt: 0x5A17,
        disk: Arc::new(Handle(Arc::clone(disk))),
        ..Options::default()
    }
}

fn recover(disk: &Arc<SimDisk>) -> Result<Recovery, JournalError> {
    LocalJournal::recover(dir(), options(disk, SyncMode::No))
}

fn start(disk: &Arc<SimDisk>, mode: SyncMode) -> Arc<LocalJournal> {
    LocalJournal::recover(dir(), options(disk, mode)).unwrap().start(0, 0).unwrap()
}

fn replayed(recovery: &Recovery, from: Lsn) -> Vec<Record> {
    let mut records = Vec::new();
    let collect = |record: &Record| {
        records.push(record.clone());
        Ok::<(), JournalError>(())
    };
    recovery.replay(from, collect).unwrap();
    records
}

/// Lsn and body of what is replayed.
fn bodies(recovery: &Recovery) -> Vec<(Lsn, Vec<u8>)> {
    replayed(recovery, 0).into_iter().map(|record| (record.lsn, record.body.to_vec())).collect()
}

/// Waits for what another thread is to do.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "not in time: {what}");
        std::thread::yield_now();
    }
}
