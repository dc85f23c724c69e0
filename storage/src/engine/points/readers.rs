//! Threads that read rows from the disk, for all engines of a directory. Reads that come together
//! are sorted by their places, and spread over the threads, so that the disk has several of them to
//! do at a time.

use super::file::Access;
use super::view::Sought;
use super::{DiskRow, DiskRows, OnDisk, with_buffer};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use tokio::sync::oneshot;

/// Maximum number of threads. They are started when they are needed.
const MAX_READERS: usize = 16;

/// Maximum number of rows that a thread reads in one job: a caller gives up when none of its jobs
/// ends for a while.
const JOB_READS: usize = 32;

/// Size of their stacks in bytes.
const STACK: usize = 256 << 10;

/// Reads for one thread: the number of each row among those that were asked for together, and its
/// key.
struct ReadJob {
    reads: Vec<(usize, Vec<u8>, OnDisk)>,
    to: oneshot::Sender<Vec<(usize, DiskRow)>>,
}

#[derive(Default)]
struct ReadQueue {
    jobs: VecDeque<ReadJob>,
    threads: usize,
    idle: usize,
    ended: bool,
}

#[derive(Default)]
struct ReaderShared {
    queue: Mutex<ReadQueue>,
    due: Condvar,
}

/// See the module's description. The threads end when this is dropped.
#[derive(Default)]
pub(crate) struct DiskReaders(Arc<ReaderShared>);

impl std::fmt::Debug for DiskReaders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DiskReaders")
    }
}

impl DiskReaders {
    /// Reads rows. Each receiver gets some of them, or an error if no thread could be started.
    pub(super) fn read(&self, mut reads: Vec<(usize, Vec<u8>, OnDisk)>) -> Vec<DiskRows> {
        reads.sort_unstable_by_key(|(_, _, row)| row.spot);
        let each = reads.len().div_ceil(MAX_READERS).clamp(1, JOB_READS);
        let mut receivers = Vec::with_capacity(reads.len().div_ceil(each));
        let mut reads = reads.into_iter().peekable();
        while reads.peek().is_some() {
            let (to, receiver) = oneshot::channel();
            self.push(ReadJob { reads: reads.by_ref().take(each).collect(), to });
            receivers.push(receiver);
        }
        receivers
    }

    fn push(&self, job: ReadJob) {
        let mut queue = self.0.queue();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() || queue.threads == MAX_READERS {
            drop(queue);
            self.0.due.notify_one();
            return;
        }
        let shared = self.0.clone();
        let thread = thread::Builder::new().name("reader".into()).stack_size(STACK);
        match thread.spawn(move || shared.run()) {
            Ok(_) => queue.threads += 1,
            // No thread would take it.
            Err(_) if queue.threads == 0 => drop(queue.jobs.pop_back()),
            Err(_) => {}
        }
    }
}

impl Drop for DiskReaders {
    fn drop(&mut self) {
        self.0.queue().ended = true;
        self.0.due.notify_all();
    }
}

impl ReaderShared {
    fn queue(&self) -> MutexGuard<'_, ReadQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes jobs until the end.
    fn run(&self) {
        let mut queue = self.queue();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job.run();
                queue = self.queue();
            } else if queue.ended {
                return;
            } else {
                queue.idle += 1;
                queue = self.due.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }
}

impl ReadJob {
    fn run(self) {
        let Self { reads, to } = self;
        let mut rows = Vec::with_capacity(reads.len());
        for (number, key, place) in reads {
            if to.is_closed() {
                // The caller has given up.
                return;
            }
            let row = with_buffer(|buffer| match place.snapshot.find(&key, Access::Disk, buffer) {
                Sought::Value(place) => Some(Some(Bytes::copy_from_slice(&buffer[place]))),
                Sought::Absent => Some(None),
                Sought::OnDisk(_) | Sought::Elsewhere => None,
            });
            rows.push((number, row));
        }
        // The caller may have given up.
        let _ = to.send(rows);
    }
}
