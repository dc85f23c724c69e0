//! Counters of a worker, which other threads read. Only the worker itself writes them.

use super::histogram::{Histogram, Recorded};
use crate::clients::count;
use crate::command::{Answer, Command, Outcome, RoundError, registry};
use flagstone_storage::need::PointReads;
use flagstone_wire::resp::Reply;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Maximum number of different error codes that are counted.
pub(crate) const MAX_ERRORS: usize = 128;

/// Code under which further codes are counted.
pub(crate) const OTHER_ERRORS: &str = "ERRORSTATS_OVERFLOW";

/// Codes of errors of the server, which are counted beyond that number, too: only scripts make up
/// others.
const OWN_CODES: &str = "BUSY BUSYGROUP BUSYKEY CROSSSLOT ERR EXECABORT INVALIDOBJ IOERR LOADING \
                         MASTERDOWN MISCONF NOAUTH NOGROUP NOPERM NOPROTO NOREPLICAS NOSCRIPT \
                         NOTBUSY OOM READONLY UNBLOCKED UNKILLABLE WRONGPASS WRONGTYPE";

/// Maximum length of an error code in bytes.
const MAX_CODE: usize = 30;

/// Returns the code under which an error is counted.
pub(crate) fn error_code(text: &[u8]) -> Cow<'_, str> {
    let start = &text[..text.len().min(MAX_CODE + 1)];
    match memchr::memchr3(b' ', b'\r', b'\n', start) {
        Some(end) => String::from_utf8_lossy(&start[..end]),
        None => Cow::Borrowed("ERR"),
    }
}

/// Counters of a command on one worker.
#[derive(Debug, Default)]
pub struct Counters {
    pub calls: AtomicU64,
    /// Time in nanoseconds.
    pub time_ns: AtomicU64,
    /// Number of calls that were refused before they ran.
    pub rejected: AtomicU64,
    /// Number of calls that were answered with an error.
    pub failed: AtomicU64,
    /// Times of the calls (`latency-tracking`).
    pub times: Histogram,
}

/// Counts of a command that ran as part of a unit.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: u64,
    pub(crate) time_ns: u64,
    pub(crate) failed: u64,
    /// Number of calls that were refused before they ran.
    pub(crate) rejected: u64,
    /// Times of the calls (`latency-tracking`).
    pub(crate) times: Recorded,
}

/// The counters of all commands, by [`Command::id`].
#[derive(Debug)]
pub struct ByCommand(Vec<Counters>);

impl Default for ByCommand {
    fn default() -> Self {
        Self((0..registry::count()).map(|_| Counters::default()).collect())
    }
}

impl Deref for ByCommand {
    type Target = [Counters];

    fn deref(&self) -> &[Counters] {
        &self.0
    }
}

/// A value with cache lines of its own, which other cores read often.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct OwnLine<T>(T);

impl<T> Deref for OwnLine<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// All counters of a worker.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerStats {
    pub by_command: ByCommand,
    /// Number of error replies by code.
    errors: Mutex<BTreeMap<String, u64>>,
    /// Number of error replies.
    pub error_replies: AtomicU64,
    pub commands: AtomicU64,
    /// Commands that ran in place for a connection of the same worker.
    pub local: AtomicU64,
    /// Commands that came from other workers' connections.
    pub remote: AtomicU64,
    /// Messages that brought them.
    pub remote_batches: AtomicU64,
    pub parked: AtomicU64,
    /// Approximate number of bytes of the commands that are parked now.
    pub parked_bytes: OwnLine<AtomicU64>,
    pub connections: AtomicU64,
    /// Part of the time in which the thread waits for a CPU, in permille.
    pub cpu_wait_permille: AtomicU64,
    pub turns: LoopStats,
    /// Time of the commands that ran as parts of units, in nanoseconds: their units' has it, too.
    pub parts_ns: AtomicU64,
    pub commits: AtomicU64,
    pub failed_commits: AtomicU64,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    /// Connections closed because of `client-query-buffer-limit`.
    pub query_limit_closes: AtomicU64,
    pub store: StoreStats,
    pub engine: EngineStats,
    pub audience: AudienceStats,
}

/// Counts of a worker's thread, since the start or CONFIG RESETSTAT.
#[derive(Debug, Default)]
pub struct LoopStats {
    /// Number of times that it had nothing more to do, and slept.
    pub cycles: AtomicU64,
    /// Time in which it ran tasks, in microseconds.
    pub busy_us: AtomicU64,
    /// The longest time between two sleeps, in microseconds.
    pub longest_us: AtomicU64,
    /// Number of commands that connections have sent between two sleeps, at most.
    pub most_commands: AtomicU64,
    /// Time of the periodic work, in microseconds.
    pub cron_us: AtomicU64,
}

/// Counters of a worker's hot tier.
#[derive(Debug, Default)]
pub struct StoreStats {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub expired: AtomicU64,
    pub expired_fields: AtomicU64,
    /// Keys deleted to keep the data set within `maxmemory`.
    pub evicted: AtomicU64,
    /// Entries evicted from memory; they are on disk.
    pub dropped: AtomicU64,
    /// Number of changed keys, counted once per command.
    pub changes: AtomicU64,
    pub hot_bytes: AtomicU64,
}

/// Counters of a worker's rows on their way to the engines, and of its reads from there.
#[derive(Debug)]
pub struct EngineStats {
    pub pending_bytes: AtomicU64,
    /// Part of the budget for decoded values that pending rows may use.
    pub loan_bytes: AtomicU64,
    /// Use of the room for files of level 0, of the engine that uses most of it, in permille.
    pub level0_permille: AtomicU64,
    /// Number of operations that a start would replay.
    pub unflushed_ops: AtomicU64,
    /// Lsn up to which the worker's shards have handed all rows over; the greatest if it has none.
    pub handed: AtomicU64,
    /// Memory of the filters of keys.
    pub filter_bytes: AtomicU64,
    /// Memory of indexes and filters that point reads use.
    pub point_bytes: AtomicU64,
    /// Rows that commands read from files in the system's memory, from the disk, and through the
    /// engine.
    pub point_cached: AtomicU64,
    pub point_disk: AtomicU64,
    pub point_elsewhere: AtomicU64,
    /// Number of writes whose replaced rows are not known yet, and of passes that have read such
    /// rows.
    pub unresolved: AtomicU64,
    pub passes: AtomicU64,
}

impl Default for EngineStats {
    fn default() -> Self {
        Self {
            pending_bytes: AtomicU64::default(),
            loan_bytes: AtomicU64::default(),
            level0_permille: AtomicU64::default(),
            unflushed_ops: AtomicU64::default(),
            handed: AtomicU64::new(u64::MAX),
            filter_bytes: AtomicU64::default(),
            point_bytes: AtomicU64::default(),
            point_cached: AtomicU64::default(),
            point_disk: AtomicU64::default(),
            point_elsewhere: AtomicU64::default(),
            unresolved: AtomicU64::default(),
            passes: AtomicU64::default(),
        }
    }
}

impl EngineStats {
    /// Shows the numbers of rows that commands have read, and the memory that this takes.
    pub(crate) fn publish_reads(&self, reads: PointReads, bytes: usize) {
        self.point_cached.store(reads.cached, Ordering::Relaxed);
        self.point_disk.store(reads.from_disk, Ordering::Relaxed);
        self.point_elsewhere.store(reads.elsewhere, Ordering::Relaxed);
        self.point_bytes.store(bytes as u64, Ordering::Relaxed);
    }
}

/// Numbers of keys that a worker's clients wait for or track.
#[derive(Debug, Default)]
pub struct AudienceStats {
    /// Number of keys that clients wait for.
    pub awaited_keys: AtomicU64,
    /// Number of keys whose deletion unblocks a client, too.
    pub awaited_absent_keys: AtomicU64,
    /// Number of keys that tracking clients have read, and of pairs of a key and a client that has
    /// read it.
    pub tracked_keys: AtomicU64,
    pub tracked_reads: AtomicU64,
}

impl WorkerStats {
    /// Counts a command that has run. `track`: its time is counted in the histogram, too.
    pub(crate) fn ran(&self, command: &Command, time_ns: u64, track: bool) {
        if let Some(counters) = self.by_command.get(command.id) {
            count(&counters.calls, 1);
            count(&counters.time_ns, time_ns);
            if track {
                counters.times.add(time_ns);
            }
        }
    }

    /// Counts the parts of a unit that have run.
    pub(crate) fn ran_parts(
        &self,
        tallies: &BTreeMap<usize, Tally>,
        errors: &BTreeMap<String, u64>,
    ) {
        for (id, tally) in tallies {
            if let Some(counters) = self.by_command.get(*id) {
                count(&counters.calls, tally.calls);
                count(&counters.time_ns, tally.time_ns);
                count(&self.parts_ns, tally.time_ns);
                count(&counters.failed, tally.failed);
                count(&counters.rejected, tally.rejected);
                counters.times.add_all(&tally.times);
            }
        }
        errors.iter().for_each(|(code, n)| self.errors_of(code, *n));
    }

    /// Returns the time that commands took, in microseconds, those of units within their units.
    pub(crate) fn commands_us(&self) -> u64 {
        let all = self.by_command.iter().map(|command| command.time_ns.load(Ordering::Relaxed));
        all.sum::<u64>().saturating_sub(self.parts_ns.load(Ordering::Relaxed)) / 1000
    }

    /// Counts a command that was refused before it ran; `None` if it is unknown.
    pub(crate) fn refused(&self, command: Option<&Command>, text: impl AsRef<[u8]>) {
        if let Some(counters) = command.and_then(|c| self.by_command.get(c.id)) {
            count(&counters.rejected, 1);
        }
        self.error(text);
    }

    /// Counts a command that was answered with an error.
    pub(crate) fn failed(&self, command: &Command, text: impl AsRef<[u8]>) {
        if let Some(counters) = self.by_command.get(command.id) {
            count(&counters.failed, 1);
        }
        self.error(text);
    }

    /// Appends a reply, or `failure` in its place, which is counted. If nothing is to be replied,
    /// no error is either. Returns the outcome to go with it.
    pub(crate) fn give(
        &self,
        out: &mut Reply,
        command: Option<&Command>,
        (reply, outcome): (&[u8], Outcome),
        failure: Option<RoundError>,
    ) -> Outcome {
        let Some(failure) = failure.filter(|_| !reply.is_empty()) else {
            out.append(reply);
            return outcome;
        };
        // An error reply that is replaced is counted already.
        if let Some(command) = command.filter(|_| !outcome.is_error()) {
            self.failed(command, &failure.text);
        }
        out.error(failure.text);
        failure.outcome
    }

    /// Returns a reply, or `failure` in its place, like [`WorkerStats::give`].
    pub(crate) fn replaced(
        &self,
        command: Option<&Command>,
        answer: Answer,
        failure: Option<RoundError>,
    ) -> Answer {
        if failure.is_none() {
            return answer;
        }
        let mut reply = Reply::new(answer.reply.proto());
        let given = (answer.reply.as_bytes(), answer.outcome);
        let outcome = self.give(&mut reply, command, given, failure);
        Answer { reply, outcome }
    }

    /// Counts a unit that has ended. `text`: the error with which it is answered. `is_counted`: an
    /// error of it is counted already.
    pub(crate) fn unit_ended(&self, command: &Command, text: Option<&[u8]>, is_counted: bool) {
        match (is_counted, text) {
            (false, None) => {}
            (false, Some(text)) => self.failed(command, text),
            (true, _) => {
                if let Some(counters) = self.by_command.get(command.id) {
                    count(&counters.failed, 1);
                }
            }
        }
    }

    /// Counts an error reply.
    pub(crate) fn error(&self, text: impl AsRef<[u8]>) {
        self.errors_of(&error_code(text.as_ref()), 1);
    }

    /// Counts `n` error replies with a code.
    fn errors_of(&self, code: &str, n: u64) {
        count(&self.error_replies, n);
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = errors.get_mut(code) {
            *count += n;
        } else {
            let is_kept = errors.len() < MAX_ERRORS || OWN_CODES.split(' ').any(|own| own == code);
            let code = if is_kept { code } else { OTHER_ERRORS };
            *errors.entry(code.to_owned()).or_default() += n;
        }
    }

    /// Returns the number of error replies by code.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Resets the counters; figures of the current state stay.
    pub(crate) fn reset(&self) {
        let by_command =
            self.by_command.iter().flat_map(|c| [&c.calls, &c.time_ns, &c.rejected, &c.failed]);
        let own = [
            &self.error_replies,
            &self.commands,
            &self.local,
            &self.remote,
            &self.remote_batches,
            &self.parked,
            &self.commits,
            &self.failed_commits,
            &self.reads,
            &self.writes,
            &self.bytes_in,
            &self.bytes_out,
            &self.query_limit_closes,
            &self.parts_ns,
        ];
        for counter in by_command.chain(own) {
            counter.store(0, Ordering::Relaxed);
        }
        self.by_command.iter().for_each(|counters| counters.times.reset());
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
