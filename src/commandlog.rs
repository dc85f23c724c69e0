//! The logs of commands that took long, or whose requests or replies were large (COMMANDLOG,
//! SLOWLOG).

use crate::command::Command;
use crate::config::Settings;
use crate::secrets;
use flagstone_commands::flag;
use flagstone_wire::resp::Args;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of arguments that an entry keeps; the last one gives the number of the others.
const MAX_ARGS: usize = 32;
/// Maximum number of bytes that an entry keeps of an argument.
const MAX_ARG: usize = 128;

/// Maximum number of bytes of a request beside an argument's own: its length line and line ends.
const FRAMING: usize = 32;

/// A log, by the property that brings a command into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// Commands that took long, in microseconds.
    Slow,
    /// Commands with large requests, in bytes.
    LargeRequest,
    /// Commands with large replies, in bytes.
    LargeReply,
}

impl LogKind {
    pub const ALL: [Self; 3] = [Self::Slow, Self::LargeRequest, Self::LargeReply];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::LargeRequest => "large-request",
            Self::LargeReply => "large-reply",
        }
    }
}

/// The time that a command took, and the bytes of its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandCost {
    pub(crate) took: Duration,
    pub(crate) reply_bytes: usize,
}

/// An entry for one of the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    pub(crate) kind: LogKind,
    /// In the unit of its kind.
    pub(crate) value: u64,
    /// Maximum number of entries of this log.
    pub(crate) max: usize,
}

/// An entry of a log.
#[derive(Clone, Debug)]
pub struct LoggedCommand {
    pub id: u64,
    /// Time of its end, seconds since the Unix epoch.
    pub time_s: u64,
    /// In the unit of the log's kind.
    pub value: u64,
    /// Its arguments, shortened.
    pub args: Vec<Vec<u8>>,
    /// Address and name of the connection.
    pub addr: String,
    pub name: String,
}

/// The latest entries of one log.
#[derive(Debug, Default)]
pub struct CommandLog {
    next_id: AtomicU64,
    /// Entries, latest first.
    entries: Mutex<VecDeque<LoggedCommand>>,
}

impl CommandLog {
    fn entries(&self) -> MutexGuard<'_, VecDeque<LoggedCommand>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a command, sets its id, and drops the oldest entries beyond `max`.
    fn push(&self, mut command: LoggedCommand, max: usize) {
        let mut entries = self.entries();
        command.id = self.next_id.fetch_add(1, Ordering::Relaxed);
        entries.push_front(command);
        entries.truncate(max);
    }

    /// Returns the latest `count` entries.
    pub fn latest(&self, count: usize) -> Vec<LoggedCommand> {
        self.entries().iter().take(count).cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.entries().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all entries; ids continue.
    pub fn clear(&self) {
        self.entries().clear();
    }
}

/// The three logs.
#[derive(Debug, Default)]
pub struct CommandLogs([CommandLog; LogKind::ALL.len()]);

impl CommandLogs {
    pub fn of(&self, kind: LogKind) -> &CommandLog {
        &self.0[kind as usize]
    }

    /// Adds a command to a log.
    pub(crate) fn push(&self, excess: &Excess, mut command: LoggedCommand) {
        command.value = excess.value;
        self.of(excess.kind).push(command, excess.max);
    }
}

/// Returns the logs that a command belongs in.
#[inline]
pub(crate) fn exceeds(
    settings: &Settings,
    command: &Command,
    args: &Args<'_>,
    cost: CommandCost,
) -> SmallVec<[Excess; 1]> {
    let logs = &settings.command_logs;
    let [slow, request, reply] = logs.each_ref().map(|log| log.from);
    let is_slow = cost.took.as_nanos() as u64 / 1000 >= slow;
    if !is_slow && (cost.reply_bytes as u64) < reply && at_most(args) < request {
        return SmallVec::new();
    }
    found(settings, command, *args, cost)
}

/// Returns at least the bytes of a request.
fn at_most(args: &Args<'_>) -> u64 {
    (args.bytes_at_most() + (args.len() + 1) * FRAMING) as u64
}

#[cold]
fn found(
    settings: &Settings,
    command: &Command,
    args: Args<'_>,
    cost: CommandCost,
) -> SmallVec<[Excess; 1]> {
    if command.spec.has(flag!(SKIP_SLOWLOG)) {
        return SmallVec::new();
    }
    let values = [cost.took.as_micros() as u64, request_bytes(args), cost.reply_bytes as u64];
    let all = LogKind::ALL.into_iter().zip(values).zip(&settings.command_logs);
    all.filter(|((_, value), log)| *value >= log.from)
        .map(|((kind, value), log)| Excess { kind, value, max: log.max_len })
        .collect()
}

/// Returns the bytes of a request in the form in which clients send it.
fn request_bytes(args: Args<'_>) -> u64 {
    let line = |number: usize| 3 + number.max(1).ilog10() as usize + 1;
    let all: usize = args.iter().map(|arg| line(arg.len()) + arg.len() + 2).sum();
    (line(args.len()) + all) as u64
}

/// Returns the arguments as an entry keeps them.
pub fn kept_args(args: Args<'_>) -> Vec<Vec<u8>> {
    let shown = if args.len() > MAX_ARGS { MAX_ARGS - 1 } else { args.len() };
    let mut kept: Vec<Vec<u8>> = args.iter().take(shown).map(kept_arg).collect();
    for at in secrets::positions(args) {
        if let Some(arg) = kept.get_mut(at) {
            *arg = secrets::HIDDEN.to_vec();
        }
    }
    if args.len() > shown {
        kept.push(format!("... ({} more arguments)", args.len() - shown).into_bytes());
    }
    kept
}

/// Returns the name of a connection as an entry keeps it.
pub fn kept_name(name: &str) -> String {
    String::from_utf8_lossy(&kept_arg(name.as_bytes())).into_owned()
}

fn kept_arg(arg: &[u8]) -> Vec<u8> {
    if arg.len() <= MAX_ARG {
        return arg.to_vec();
    }
    let mut kept = arg[..MAX_ARG].to_vec();
    kept.extend_from_slice(format!("... ({} more bytes)", arg.len() - MAX_ARG).as_bytes());
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::registry;
    use crate::config::LogLimit;

    fn kinds(
        limits: [u64; 3],
        args: &[&[u8]],
        took_us: u64,
        reply_bytes: usize,
    ) -> Vec<(LogKind, u64)> {
        let settings = Settings {
            command_logs: limits.map(|from| LogLimit { from, max_len: 5 }),
            ..Settings::default()
        };
        let owned: flagstone_wire::resp::OwnedArgs = args.iter().copied().collect();
        let command = registry::resolve(owned.args()).unwrap();
        let cost = CommandCost { took: Duration::from_micros(took_us), reply_bytes };
        let all = exceeds(&settings, command, &owned.args(), cost);
        all.into_iter().map(|excess| (excess.kind, excess.value)).collect()
    }

    #[test]
    fn a_command_is_in_the_logs_whose_limits_it_reaches() {
        const NEVER: u64 = u64::MAX;
        let get: &[&[u8]] = &[b"get", b"key"];
        // *2 $3 get $3 key, with their line ends.
        let bytes = b"*2\r\n$3\r\nget\r\n$3\r\nkey\r\n".len() as u64;
        assert_eq!(kinds([NEVER; 3], get, 1_000_000, 1 << 40), []);
        assert_eq!(kinds([100, NEVER, NEVER], get, 99, 0), []);
        assert_eq!(kinds([100, NEVER, NEVER], get, 100, 0), [(LogKind::Slow, 100)]);
        assert_eq!(kinds([NEVER, bytes, NEVER], get, 0, 0), [(LogKind::LargeRequest, bytes)]);
        assert_eq!(kinds([NEVER, bytes + 1, NEVER], get, 0, 0), []);
        assert_eq!(kinds([NEVER, NEVER, 10], get, 0, 9), []);
        assert_eq!(kinds([NEVER, NEVER, 10], get, 0, 10), [(LogKind::LargeReply, 10)]);
        assert_eq!(kinds([0; 3], get, 0, 0).len(), 3, "zero logs everything");
        assert_eq!(kinds([0; 3], &[b"exec"], 0, 0), [], "its parts are logged");
    }

    #[test]
    fn the_size_of_a_request_counts_its_lines() {
        let value = vec![b'x'; 1000];
        let args: flagstone_wire::resp::OwnedArgs =
            [&b"set"[..], b"", &value].into_iter().collect();
        // The line of the number of arguments, then each with its length.
        let sent = 4 + (4 + 5) + (4 + 2) + (7 + 1002);
        assert_eq!(request_bytes(args.args()), sent);
        assert!(at_most(&args.args()) >= sent);
    }
}
