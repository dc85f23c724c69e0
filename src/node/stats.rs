//! Counters of a worker that others read.

use crate::clients::count;
use crate::command::{Command, registry};
use flagstone_wire::resp::Reply;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Different error codes that are counted at most.
pub(crate) const MAX_ERRORS: usize = 128;

/// What the others are counted as.
pub(crate) const OTHER_ERRORS: &str = "ERRORSTATS_OVERFLOW";

/// Bytes that an error code has at most.
const MAX_CODE: usize = 30;

/// The code that an error is counted under.
pub(crate) fn error_code(text: &[u8]) -> Cow<'_, str> {
    let start = &text[..text.len().min(MAX_CODE + 1)];
    match memchr::memchr3(b' ', b'\r', b'\n', start) {
        Some(end) => String::from_utf8_lossy(&start[..end]),
        None => Cow::Borrowed("ERR"),
    }
}

/// What a command came to. Only the worker it ran on writes them.
#[derive(Debug, Default)]
pub struct Counters {
    pub calls: AtomicU64,
    /// Nanoseconds.
    pub time_ns: AtomicU64,
    /// Refused before they ran.
    pub rejected: AtomicU64,
    /// Answered by an error.
    pub failed: AtomicU64,
}

/// What a command came to that ran as a part.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: u64,
    pub(crate) time_ns: u64,
    pub(crate) failed: u64,
    /// Refused before it ran.
    pub(crate) rejected: u64,
}

/// See the module's description.
#[derive(Debug)]
pub struct WorkerStats {
    /// By [`Command::id`].
    pub by_command: Vec<Counters>,
    /// Error replies by their code.
    errors: Mutex<BTreeMap<String, u64>>,
    /// Error replies.
    pub error_replies: AtomicU64,
    pub commands: AtomicU64,
    /// Commands run in place for a connection of the same worker.
    pub local: AtomicU64,
    /// Commands that came from other workers' connections.
    pub remote: AtomicU64,
    pub parked: AtomicU64,
    /// Bytes that commands take which are parked now, about.
    pub parked_bytes: AtomicU64,
    pub connections: AtomicU64,
    pub commits: AtomicU64,
    pub failed_commits: AtomicU64,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    /// Connections closed because of `client-query-buffer-limit`.
    pub query_limit_closes: AtomicU64,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub expired: AtomicU64,
    pub expired_fields: AtomicU64,
    /// Entries dropped from memory: they are on disk.
    pub dropped: AtomicU64,
    /// Keys changed, counted once per command.
    pub changes: AtomicU64,
    pub hot_bytes: AtomicU64,
    pub pending_bytes: AtomicU64,
    /// Of the budget for decoded values, what pending rows may have.
    pub loan_bytes: AtomicU64,
    /// Operations that a start would replay.
    pub unflushed_ops: AtomicU64,
    /// The lsn up to which its shards have handed all rows over.
    pub handed: AtomicU64,
    /// Of the filters of keys.
    pub filter_bytes: AtomicU64,
    /// Keys that clients wait for.
    pub awaited_keys: AtomicU64,
    /// Keys of which clients wait to hear that they are gone, too.
    pub awaited_absent_keys: AtomicU64,
    /// Keys that clients have read which want to hear of their changes, and how many have read
    /// them.
    pub tracked_keys: AtomicU64,
    pub tracked_reads: AtomicU64,
}

impl Default for WorkerStats {
    fn default() -> Self {
        Self {
            by_command: (0..registry::count()).map(|_| Counters::default()).collect(),
            errors: Mutex::default(),
            error_replies: AtomicU64::default(),
            commands: AtomicU64::default(),
            local: AtomicU64::default(),
            remote: AtomicU64::default(),
            parked_bytes: AtomicU64::default(),
            parked: AtomicU64::default(),
            connections: AtomicU64::default(),
            changes: AtomicU64::default(),
            commits: AtomicU64::default(),
            failed_commits: AtomicU64::default(),
            reads: AtomicU64::default(),
            writes: AtomicU64::default(),
            bytes_in: AtomicU64::default(),
            bytes_out: AtomicU64::default(),
            query_limit_closes: AtomicU64::default(),
            hits: AtomicU64::default(),
            misses: AtomicU64::default(),
            expired: AtomicU64::default(),
            expired_fields: AtomicU64::default(),
            dropped: AtomicU64::default(),
            hot_bytes: AtomicU64::default(),
            pending_bytes: AtomicU64::default(),
            loan_bytes: AtomicU64::default(),
            unflushed_ops: AtomicU64::default(),
            handed: AtomicU64::new(u64::MAX),
            filter_bytes: AtomicU64::default(),
            awaited_keys: AtomicU64::default(),
            awaited_absent_keys: AtomicU64::default(),
            tracked_keys: AtomicU64::default(),
            tracked_reads: AtomicU64::default(),
        }
    }
}

impl WorkerStats {
    /// A command has run.
    pub(crate) fn ran(&self, command: &Command, time_ns: u64) {
        if let Some(counters) = self.by_command.get(command.id) {
            count(&counters.calls, 1);
            count(&counters.time_ns, time_ns);
        }
    }

    /// Parts of a unit have run.
    pub(crate) fn ran_parts(
        &self,
        tallies: &BTreeMap<usize, Tally>,
        errors: &BTreeMap<String, u64>,
    ) {
        for (id, tally) in tallies {
            if let Some(counters) = self.by_command.get(*id) {
                count(&counters.calls, tally.calls);
                count(&counters.time_ns, tally.time_ns);
                count(&counters.failed, tally.failed);
                count(&counters.rejected, tally.rejected);
            }
        }
        errors.iter().for_each(|(code, n)| self.errors_of(code, *n));
    }

    /// A command was refused before it ran; `None`: it is unknown.
    pub(crate) fn refused(&self, command: Option<&Command>, text: &str) {
        if let Some(counters) = command.and_then(|c| self.by_command.get(c.id)) {
            count(&counters.rejected, 1);
        }
        self.error(text);
    }

    /// A command was answered by an error.
    pub(crate) fn failed(&self, command: &Command, text: &str) {
        if let Some(counters) = self.by_command.get(command.id) {
            count(&counters.failed, 1);
        }
        self.error(text);
    }

    /// Appends a reply, or an error in its place if what it shows could not be stored, which is
    /// counted. Where nothing is to be replied there is no error either.
    pub(crate) fn give(
        &self,
        out: &mut Reply,
        command: Option<&Command>,
        reply: &[u8],
        failure: Option<String>,
    ) {
        let Some(text) = failure.filter(|_| !reply.is_empty()) else {
            return out.append(reply);
        };
        // An error reply in whose place it comes is counted already.
        if let Some(command) = command.filter(|_| !reply.starts_with(b"-")) {
            self.failed(command, &text);
        }
        out.error(text);
    }

    /// A unit has run to its end; `text`: the error that it is answered by. It may have counted
    /// one already.
    pub(crate) fn unit_ended(&self, command: &Command, text: Option<&str>, is_counted: bool) {
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

    /// An error reply.
    pub(crate) fn error(&self, text: &str) {
        self.errors_of(&error_code(text.as_bytes()), 1);
    }

    /// Error replies of a code.
    fn errors_of(&self, code: &str, n: u64) {
        count(&self.error_replies, n);
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = errors.get_mut(code) {
            *count += n;
        } else {
            let code = if errors.len() < MAX_ERRORS { code } else { OTHER_ERRORS };
            *errors.entry(code.to_owned()).or_default() += n;
        }
    }

    /// Error replies by their code.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts the counters back to zero; what is a state stays.
    pub(crate) fn reset(&self) {
        let by_command =
            self.by_command.iter().flat_map(|c| [&c.calls, &c.time_ns, &c.rejected, &c.failed]);
        let own = [
            &self.error_replies,
            &self.commands,
            &self.local,
            &self.remote,
            &self.parked,
            &self.commits,
            &self.failed_commits,
            &self.reads,
            &self.writes,
            &self.bytes_in,
            &self.bytes_out,
            &self.query_limit_closes,
        ];
        for counter in by_command.chain(own) {
            counter.store(0, Ordering::Relaxed);
        }
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
