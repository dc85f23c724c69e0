//! Tests of the journal, most of them on a disk in memory.

mod archive;
mod basic;
mod crash;
mod damage;
mod faults;
mod reading;
pub(crate) mod sim_disk;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sim_disk::{Handle, Rng, SimDisk};

use super::{
    Disk, File, Journal, JournalError, LocalJournal, Lsn, Options, Record, Recovered, Recovery,
    SyncMode,
};

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

/// Returns lsn and body of each replayed record.
fn bodies(recovery: &Recovery) -> Vec<(Lsn, Vec<u8>)> {
    replayed(recovery, 0).into_iter().map(|record| (record.lsn, record.body.to_vec())).collect()
}

/// Waits until another thread has made `done` true.
pub(in crate::journal) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "not in time: {what}");
        std::thread::yield_now();
    }
}
