//! The log of slow commands (SLOWLOG).

use crate::config::Settings;
use crate::secrets;
use flagstone_wire::resp::Args;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of arguments that an entry keeps; the last one gives the number of the others.
const MAX_ARGS: usize = 32;
/// Maximum number of bytes that an entry keeps of an argument.
const MAX_ARG: usize = 128;

/// An entry of the log.
#[derive(Clone, Debug)]
pub struct SlowCommand {
    pub id: u64,
    /// Time of its end, seconds since the Unix epoch.
    pub time_s: u64,
    pub duration_us: u64,
    /// Its arguments, shortened.
    pub args: Vec<Vec<u8>>,
    /// Address and name of the connection.
    pub addr: String,
    pub name: String,
}

/// The latest slow commands, up to `slowlog-max-len`.
#[derive(Debug, Default)]
pub struct SlowLog {
    next_id: AtomicU64,
    /// Entries, latest first.
    entries: Mutex<VecDeque<SlowCommand>>,
}

impl SlowLog {
    fn entries(&self) -> MutexGuard<'_, VecDeque<SlowCommand>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a command, sets its id, and drops the oldest entries beyond `max`.
    pub fn push(&self, mut command: SlowCommand, max: usize) {
        let mut entries = self.entries();
        command.id = self.next_id.fetch_add(1, Ordering::Relaxed);
        entries.push_front(command);
        entries.truncate(max);
    }

    /// Returns the latest `count` entries.
    pub fn latest(&self, count: usize) -> Vec<SlowCommand> {
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

/// Returns true if a command belongs in the log.
pub(crate) fn is_slow(settings: &Settings, time_ns: u64) -> bool {
    u64::try_from(settings.slowlog_log_slower_than_us).is_ok_and(|us| time_ns / 1000 >= us)
}
