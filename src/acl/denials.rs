//! The log of denied accesses (ACL LOG), and their number by reason.

use super::selector::{DenialReason, Denied};
use crate::command::Command;
use flagstone_wire::resp::Args;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Time in ms within which equal denials make one entry.
const GROUPED_MS: u64 = 60_000;

/// Maximum number of the latest entries that a denial is compared with.
const COMPARED: usize = 10;

/// Maximum number of bytes that an entry keeps of a key, a channel, a user's name, or the
/// description of a client.
const MAX_KEPT: usize = 1024;

/// Place of a denied command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialContext {
    TopLevel,
    Multi,
    Script,
}

impl DenialContext {
    pub fn name(self) -> &'static str {
        match self {
            Self::TopLevel => "toplevel",
            Self::Multi => "multi",
            Self::Script => "lua",
        }
    }
}

impl DenialReason {
    pub fn name(self) -> &'static str {
        match self {
            Self::Command => "command",
            Self::Key => "key",
            Self::Channel => "channel",
            Self::Auth => "auth",
        }
    }
}

/// An access that was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedAccess {
    pub reason: DenialReason,
    pub context: DenialContext,
    /// The command, key or channel.
    object: Vec<u8>,
    user: Vec<u8>,
}

impl DeniedAccess {
    /// Creates the record of a command that a user was denied.
    pub fn of(
        denied: Denied,
        (command, args): (&Command, Args<'_>),
        context: DenialContext,
        user: &[u8],
    ) -> Self {
        let object = match denied.reason {
            DenialReason::Command => command.full_name.as_bytes(),
            _ => args.get(denied.index).unwrap_or_default(),
        };
        Self::new(denied.reason, context, object, user)
    }

    pub fn new(reason: DenialReason, context: DenialContext, object: &[u8], user: &[u8]) -> Self {
        Self { reason, context, object: kept(object), user: kept(user) }
    }
}

fn kept(text: &[u8]) -> Vec<u8> {
    if text.len() <= MAX_KEPT {
        return text.to_vec();
    }
    let mut kept = text[..MAX_KEPT].to_vec();
    kept.extend_from_slice(format!("... ({} more bytes)", text.len() - MAX_KEPT).as_bytes());
    kept
}

/// An entry of the log: equal denials within a minute.
#[derive(Clone, Debug)]
pub struct DenialEntry {
    pub access: DeniedAccess,
    pub count: u64,
    /// Description of the last client.
    pub client: Vec<u8>,
    pub id: u64,
    /// Times of the first and the last denial, ms since the Unix epoch.
    pub created_ms: u64,
    pub updated_ms: u64,
}

impl DenialEntry {
    pub fn object(&self) -> &[u8] {
        &self.access.object
    }

    pub fn user(&self) -> &[u8] {
        &self.access.user
    }
}

#[derive(Debug, Default)]
struct DenialEntries {
    /// Latest first.
    list: VecDeque<DenialEntry>,
    next_id: u64,
}

/// The latest denials, up to `acllog-max-len`, and the number of all.
#[derive(Debug, Default)]
pub struct DenialLog {
    entries: Mutex<DenialEntries>,
    counts: [AtomicU64; 4],
}

impl DenialLog {
    fn entries(&self) -> MutexGuard<'_, DenialEntries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts denials without an entry.
    pub fn count(&self, reason: DenialReason, times: u64) {
        self.counts[reason as usize].fetch_add(times, Ordering::Relaxed);
    }

    /// Adds `times` equal denials of a client, whose description `client` returns. `max`: maximum
    /// number of entries.
    pub fn add(
        &self,
        access: DeniedAccess,
        times: u64,
        client: impl FnOnce() -> String,
        now_ms: u64,
        max: usize,
    ) {
        self.count(access.reason, times);
        if max == 0 {
            self.entries().list.clear();
            return;
        }
        let client = kept(client().trim_end().as_bytes());
        let mut entries = self.entries();
        let is_same = |entry: &DenialEntry| {
            entry.updated_ms.abs_diff(now_ms) <= GROUPED_MS && entry.access == access
        };
        let found = entries.list.iter().take(COMPARED).position(is_same);
        let entry = match found.and_then(|at| entries.list.remove(at)) {
            Some(known) => {
                DenialEntry { count: known.count + times, client, updated_ms: now_ms, ..known }
            }
            None => {
                let id = entries.next_id;
                entries.next_id += 1;
                let (created_ms, updated_ms) = (now_ms, now_ms);
                DenialEntry { access, count: times, client, id, created_ms, updated_ms }
            }
        };
        entries.list.push_front(entry);
        entries.list.truncate(max);
    }

    /// Returns the latest `count` entries.
    pub fn latest(&self, count: usize) -> Vec<DenialEntry> {
        self.entries().list.iter().take(count).cloned().collect()
    }

    /// Removes all entries; ids and counts continue.
    pub fn clear(&self) {
        self.entries().list.clear();
    }

    /// Returns the number of denials for a reason.
    pub fn denied(&self, reason: DenialReason) -> u64 {
        self.counts[reason as usize].load(Ordering::Relaxed)
    }

    /// Resets the numbers of denials.
    pub fn reset_counts(&self) {
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(log: &DenialLog, object: &str, now_ms: u64, max: usize) {
        let context = DenialContext::TopLevel;
        let access = DeniedAccess::new(DenialReason::Key, context, object.as_bytes(), b"ann");
        log.add(access, 1, || format!("id={now_ms}\n"), now_ms, max);
    }

    fn shown(log: &DenialLog) -> Vec<(String, u64, u64)> {
        let text = |entry: &DenialEntry| String::from_utf8_lossy(entry.object()).into_owned();
        log.latest(100).iter().map(|entry| (text(entry), entry.count, entry.id)).collect()
    }

    #[test]
    fn equal_denials_of_a_minute_make_one_entry() {
        let log = DenialLog::default();
        add(&log, "a", 1000, 10);
        add(&log, "b", 2000, 10);
        add(&log, "a", 61_000, 10);
        assert_eq!(shown(&log), [("a".to_owned(), 2, 0), ("b".to_owned(), 1, 1)]);
        assert_eq!(log.latest(1)[0].client, b"id=61000");
        assert_eq!((log.latest(1)[0].created_ms, log.latest(1)[0].updated_ms), (1000, 61_000));
        add(&log, "a", 121_001, 10);
        assert_eq!(shown(&log)[0], ("a".to_owned(), 1, 2));
        assert_eq!(log.denied(DenialReason::Key), 4);
        log.clear();
        add(&log, "a", 121_001, 10);
        assert_eq!(shown(&log), [("a".to_owned(), 1, 3)]);
    }

    #[test]
    fn a_flood_keeps_to_the_maximum() {
        let log = DenialLog::default();
        for n in 0..500 {
            add(&log, &format!("{n}"), 1000, 128);
        }
        assert_eq!(log.latest(1000).len(), 128);
        assert_eq!(log.denied(DenialReason::Key), 500);
        add(&log, &"x".repeat(10_000), 1000, 2);
        assert_eq!(log.latest(1000).len(), 2);
        assert_eq!(log.latest(1)[0].object().len(), MAX_KEPT + "... (8976 more bytes)".len());
        add(&log, "y", 1000, 0);
        assert_eq!(log.latest(1000).len(), 0);
        assert_eq!(log.denied(DenialReason::Key), 502);
    }
}
