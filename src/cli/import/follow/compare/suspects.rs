//! Keys that differed when they were read first, and are read again.

use super::super::side::Pair;
use super::values::{ValueKind, fingerprint};
use super::{CompareMode, Comparison, Difference, WHOLE_BYTES};
use crate::cli::connection::Reply;
use anyhow::Result;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Number of suspects, and bytes of their names, at which they are read again before others are looked
/// for.
const SUSPECTS_MAX: usize = 4096;
const SUSPECTS_BYTES: usize = 4 << 20;
/// Number of further looks at a suspect.
const ROUNDS: u32 = 5;
/// Time between two of them: several make up for clocks that differ when a key expires.
const PAUSE: Duration = Duration::from_millis(300);
/// Time in which the target may reach the source's position before a look.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(5);
/// Interval of looks at its position.
const POLL: Duration = Duration::from_millis(10);

/// A key that differed.
struct Suspect {
    database: u64,
    key: Vec<u8>,
    difference: Difference,
    /// The source's value at the first of the further looks.
    first: Option<[u8; 32]>,
    /// True if the source's value was another one at a look, or is too large to tell.
    is_written: bool,
}

/// The keys that differed so far.
#[derive(Default)]
pub(super) struct Suspects {
    all: Vec<Suspect>,
    bytes: usize,
}

impl Suspects {
    pub(super) fn add(&mut self, database: u64, key: &[u8], difference: Difference) {
        let key = key.to_vec();
        self.bytes += key.len();
        self.all.push(Suspect { database, key, difference, first: None, is_written: false });
    }
}

impl Comparison<'_, '_> {
    /// Settles the suspects if they are many, and goes on in a database.
    pub(super) fn settle_many(&mut self, database: u64) -> Result<()> {
        if self.suspects.all.len() >= SUSPECTS_MAX || self.suspects.bytes >= SUSPECTS_BYTES {
            self.settle()?;
        }
        self.pair.select(database)
    }

    /// Reads the suspects again, and counts those that differ still.
    pub(super) fn settle(&mut self) -> Result<()> {
        let mut left = std::mem::take(&mut self.suspects).all;
        for round in 0..ROUNDS {
            if left.is_empty() {
                return Ok(());
            }
            if round > 0 {
                sleep(PAUSE);
            }
            (self.pulse)(self.pair)?;
            catch_up(self.pair)?;
            let mut still = Vec::new();
            for mut suspect in left {
                (self.pulse)(self.pair)?;
                self.pair.select(suspect.database)?;
                if let Some(difference) = self.look_again(&mut suspect)? {
                    suspect.difference = difference;
                    still.push(suspect);
                }
            }
            left = still;
        }
        for suspect in left {
            if suspect.is_written && self.mode == CompareMode::WithWriters {
                self.verdict.unsettled += 1;
            } else {
                self.verdict.count(suspect.database, &suspect.key, suspect.difference);
            }
        }
        Ok(())
    }

    /// Compares a key: the source's value before and after the target's.
    fn look_again(&mut self, suspect: &mut Suspect) -> Result<Option<Difference>> {
        let keys = [suspect.key.clone()];
        let (here, there) = self.facts(&keys)?.remove(0);
        let difference = self.probe.compare_facts(&here, &there);
        let kind = here.kind;
        let is_large = here.bytes.max(there.bytes) > WHOLE_BYTES || !kind.is_read_whole();
        if difference.is_none() && kind != ValueKind::None && is_large {
            suspect.is_written = true;
            let is_same = self.compare_large(&suspect.key, &here)?;
            return Ok((!is_same).then_some(Difference::Value));
        }
        let before = self.fingerprint(suspect, kind)?;
        let is_same = difference.is_none()
            && (kind == ValueKind::None || self.differing(&[(&suspect.key, kind)])?.is_empty());
        let after = self.fingerprint(suspect, kind)?;
        let first = *suspect.first.get_or_insert(before);
        suspect.is_written |= before != after || first != before;
        Ok((!is_same).then_some(difference.unwrap_or(Difference::Value)))
    }

    /// Returns a digest of the source's type and expiry, and value unless that is large.
    fn fingerprint(&mut self, suspect: &Suspect, kind: ValueKind) -> Result<[u8; 32]> {
        let (key, source) = (suspect.key.as_slice(), &mut self.pair.source);
        let mut facts = vec![source.call(&[b"TYPE", key])?];
        if self.probe.has_expiry_times {
            facts.push(source.call(&[self.probe.expiry_command(), key])?);
        }
        let bytes = source.call(&[b"MEMORY", b"USAGE", key])?;
        let is_small = bytes.integer().is_ok_and(|bytes| bytes.unsigned_abs() <= WHOLE_BYTES);
        if is_small && kind.is_read_whole() {
            let question = kind.whole(key);
            let question: Vec<&[u8]> = question.iter().map(Vec::as_slice).collect();
            // An error if it has another type by now.
            let mut value = source.ask(&question)?;
            kind.sort(&mut value);
            facts.push(value);
        }
        Ok(fingerprint(&Reply::Array(facts)))
    }
}

/// Waits until the target has applied what the source has sent, if that does not take long.
fn catch_up(pair: &mut Pair) -> Result<()> {
    let begun = Instant::now();
    let end = pair.source.info("replication")?.number("master_repl_offset");
    loop {
        let target = pair.target.info("replication")?;
        let has_all = target.number("slave_repl_offset") >= end;
        if target.text("role") != "slave" || has_all || begun.elapsed() > CATCH_UP_LIMIT {
            return Ok(());
        }
        sleep(POLL);
    }
}
