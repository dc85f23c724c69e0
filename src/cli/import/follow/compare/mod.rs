//! Compares all keys of the source and the target.
//!
//! A pass over the source's keys compares them in batches; one over the target's looks for keys that
//! only it has. Keys that differ are suspects: they are read again, since writers, the lag of the stream,
//! or an expiry may be the reason. While writers run, a key that the source changes between all looks is
//! `unsettled`; it is compared when they are held.

mod suspects;
mod values;
mod verdict;

pub(super) use verdict::Verdict;

use super::side::{Pair, words};
use crate::cli::connection::Reply;
use crate::cli::progress;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use std::collections::BTreeSet;
use suspects::Suspects;
use values::{Probe, ValueKind, parts};

/// Number of keys that one SCAN asks for.
const SCAN_COUNT: &[u8] = b"512";
/// Maximum number of keys of a batch, and of bytes of their names.
const BATCH_KEYS: usize = 512;
const BATCH_BYTES: usize = 32 << 10;
/// Bytes of values, as MEMORY USAGE has them, that are asked for at once. Larger ones are compared in
/// pieces.
const WHOLE_BYTES: u64 = 1 << 20;
/// Milliseconds by which expiries may differ: old servers tell their replicas how long a key lives on.
const EXPIRY_TOLERANCE_MS: u64 = 2000;
/// Number of differences from which on the rest is not compared.
const DIFFERENCES_MAX: u64 = 1000;

/// Circumstances of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompareMode {
    /// Writers run.
    WithWriters,
    /// No client writes.
    Still,
}

/// Called between batches: renews holds, and ends the work by an error.
pub(super) type Pulse<'a> = dyn FnMut(&mut Pair) -> Result<()> + 'a;

/// Type, remaining life and size of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KeyFacts {
    kind: ValueKind,
    /// A moment or a time in ms, as the servers tell it; negative if the key does not expire.
    expiry: i64,
    bytes: u64,
}

/// The difference between the two servers' keys of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Difference {
    /// The target does not have it.
    Missing,
    /// The source does not have it.
    Extra,
    Kind,
    Expiry,
    Value,
}

/// A comparison that is under way.
struct Comparison<'a, 'b> {
    pair: &'a mut Pair,
    mode: CompareMode,
    pulse: &'a mut Pulse<'b>,
    probe: Probe,
    bar: ProgressBar,
    suspects: Suspects,
    verdict: Verdict,
}

/// Compares all keys of all databases, and the libraries of functions.
///
/// # Errors
/// If a server cannot be reached, refuses a command, or `pulse` fails.
pub(super) fn run(
    pair: &mut Pair,
    mode: CompareMode,
    quiet: bool,
    pulse: &mut Pulse<'_>,
) -> Result<Verdict> {
    let here = pair.source.info("keyspace")?.databases()?;
    let there = pair.target.info("keyspace")?.databases()?;
    let all: BTreeSet<u64> = here.iter().chain(&there).map(|(number, _)| *number).collect();
    let total = here.iter().map(|(_, keys)| keys).sum();
    let mut comparison = Comparison {
        probe: Probe::of(pair)?,
        pair,
        mode,
        pulse,
        bar: progress::keys(total, quiet),
        suspects: Suspects::default(),
        verdict: Verdict::default(),
    };
    let done = all.into_iter().try_for_each(|database| comparison.compare_database(database));
    let done = done.and_then(|()| comparison.settle()).and_then(|()| comparison.libraries());
    comparison.bar.finish_and_clear();
    done.context("comparing").map(|()| comparison.verdict)
}

impl Comparison<'_, '_> {
    fn is_enough(&self) -> bool {
        self.verdict.differences() >= DIFFERENCES_MAX
    }

    fn compare_database(&mut self, database: u64) -> Result<()> {
        self.pair.select(database)?;
        let mut cursor = b"0".to_vec();
        loop {
            let keys = self.page(false, &mut cursor)?;
            for batch in batches(&keys) {
                (self.pulse)(self.pair)?;
                self.compare_batch(database, batch)?;
                self.bar.set_position(self.verdict.keys);
            }
            self.settle_many(database)?;
            if cursor == b"0" || self.is_enough() {
                break;
            }
        }
        loop {
            let keys = self.page(true, &mut cursor)?;
            for batch in batches(&keys) {
                (self.pulse)(self.pair)?;
                self.look_for_extra(database, batch)?;
            }
            self.settle_many(database)?;
            if cursor == b"0" || self.is_enough() {
                self.verdict.is_cut |= self.is_enough();
                return Ok(());
            }
        }
    }

    /// Returns some keys of a server, and moves the cursor.
    fn page(&mut self, of_target: bool, cursor: &mut Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let side = if of_target { &mut self.pair.target } else { &mut self.pair.source };
        let page = side.call(&[b"SCAN", cursor, b"COUNT", SCAN_COUNT])?.into_array()?;
        let Ok([next, keys]) = <[Reply; 2]>::try_from(page) else {
            bail!("a malformed reply to SCAN")
        };
        *cursor = next.into_bulk()?;
        keys.into_array()?.into_iter().map(Reply::into_bulk).collect()
    }

    /// Compares keys of the source's.
    fn compare_batch(&mut self, database: u64, keys: &[Vec<u8>]) -> Result<()> {
        let facts = self.facts(keys)?;
        let (mut whole, mut bytes) = (Vec::new(), 0);
        for (key, (here, there)) in keys.iter().zip(&facts) {
            self.verdict.keys += u64::from(here.kind != ValueKind::None);
            if let Some(difference) = self.probe.compare_facts(here, there) {
                self.suspects.add(database, key, difference);
                continue;
            }
            if here.kind == ValueKind::None {
                continue;
            }
            let size = here.bytes.max(there.bytes);
            if !here.kind.is_read_whole() || size > WHOLE_BYTES {
                (self.pulse)(self.pair)?;
                if !self.compare_large(key, here)? {
                    self.suspects.add(database, key, Difference::Value);
                }
                continue;
            }
            if bytes + size > WHOLE_BYTES {
                self.compare_whole(database, &std::mem::take(&mut whole))?;
                bytes = 0;
            }
            bytes += size;
            whole.push((key.as_slice(), here.kind));
        }
        self.compare_whole(database, &whole)
    }

    /// Asks both servers for the facts of keys.
    fn facts(&mut self, keys: &[Vec<u8>]) -> Result<Vec<(KeyFacts, KeyFacts)>> {
        let none = KeyFacts { kind: ValueKind::None, expiry: -1, bytes: 0 };
        let mut facts = vec![(none.clone(), none); keys.len()];
        let mut questions = Vec::new();
        for key in keys {
            questions.push(words(&[b"TYPE", key]));
            questions.push(words(&[self.probe.expiry_command(), key]));
            questions.push(words(&[b"MEMORY", b"USAGE", key]));
        }
        self.pair.ask_both(&questions, |number, here, there| {
            let both = &mut facts[number / 3];
            for (facts, reply) in [(&mut both.0, here), (&mut both.1, there)] {
                match (number % 3, reply) {
                    (_, Reply::Error(error)) => bail!("a key cannot be looked at: {error}"),
                    (0, Reply::Status(kind)) => facts.kind = ValueKind::of(&kind),
                    (1, Reply::Integer(expiry)) => facts.expiry = expiry,
                    (2, Reply::Integer(bytes)) => facts.bytes = bytes.unsigned_abs(),
                    _ => {}
                }
            }
            Ok(())
        })?;
        Ok(facts)
    }

    /// Compares values that are small, and notes those that differ.
    fn compare_whole(&mut self, database: u64, keys: &[(&[u8], ValueKind)]) -> Result<()> {
        for number in self.differing(keys)? {
            self.suspects.add(database, keys[number].0, Difference::Value);
        }
        Ok(())
    }

    /// Compares values that are small. Returns the numbers of those that differ.
    fn differing(&mut self, keys: &[(&[u8], ValueKind)]) -> Result<Vec<usize>> {
        let questions: Vec<_> = keys.iter().map(|(key, kind)| kind.whole(key)).collect();
        let (mut hashes, mut times, mut differing) = (Vec::new(), Vec::new(), Vec::new());
        let has_times = self.probe.has_field_times;
        self.pair.ask_both(&questions, |number, here, there| {
            let (key, kind) = keys[number];
            let (here, there) = (parts(kind, here)?, parts(kind, there)?);
            if here != there {
                differing.push(number);
            } else if kind == ValueKind::Hash && has_times && !here.is_empty() {
                let fields: Vec<&[u8]> = here.iter().map(|(field, _)| field.as_slice()).collect();
                times.push(values::times(key, &fields));
                hashes.push(number);
            }
            Ok(())
        })?;
        self.pair.ask_both(&times, |number, here, there| {
            if !values::are_close(&here, &there) {
                differing.push(hashes[number]);
            }
            Ok(())
        })?;
        Ok(differing)
    }

    /// Notes the keys that the source does not have.
    fn look_for_extra(&mut self, database: u64, keys: &[Vec<u8>]) -> Result<()> {
        let mut question: Vec<&[u8]> = vec![b"EXISTS"];
        question.extend(keys.iter().map(Vec::as_slice));
        let found = self.pair.source.call(&question)?.integer()?;
        if usize::try_from(found) == Ok(keys.len()) {
            return Ok(());
        }
        for (key, (here, there)) in keys.iter().zip(self.facts(keys)?) {
            if here.kind == ValueKind::None && there.kind != ValueKind::None {
                self.suspects.add(database, key, Difference::Extra);
            }
        }
        Ok(())
    }

    /// Compares the libraries of functions.
    fn libraries(&mut self) -> Result<()> {
        if !self.probe.has_libraries {
            return Ok(());
        }
        let question = words(&[b"FUNCTION", b"LIST", b"WITHCODE"]);
        let (here, there) = self.pair.ask_one(question)?;
        self.verdict.libraries_differ = values::libraries(here)? != values::libraries(there)?;
        Ok(())
    }
}

impl Probe {
    /// Returns the difference that the facts of a key show.
    fn compare_facts(&self, here: &KeyFacts, there: &KeyFacts) -> Option<Difference> {
        match (here.kind, there.kind) {
            (ValueKind::None, ValueKind::None) => None,
            (ValueKind::None, _) => Some(Difference::Extra),
            (_, ValueKind::None) => Some(Difference::Missing),
            (one, other) if one != other || one == ValueKind::Other => Some(Difference::Kind),
            _ => {
                let do_expire = [here, there].map(|facts| facts.expiry >= 0);
                let are_close = here.expiry.abs_diff(there.expiry) <= EXPIRY_TOLERANCE_MS;
                let is_same = do_expire[0] == do_expire[1] && (!do_expire[0] || are_close);
                (!is_same).then_some(Difference::Expiry)
            }
        }
    }
}

/// Divides keys into batches.
fn batches(keys: &[Vec<u8>]) -> impl Iterator<Item = &[Vec<u8>]> {
    let mut rest = keys;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |key: &&Vec<u8>| {
            bytes += key.len();
            bytes <= BATCH_BYTES
        };
        let count = rest.iter().take(BATCH_KEYS).take_while(fits).count().max(1).min(rest.len());
        let (batch, later) = rest.split_at(count);
        rest = later;
        (!batch.is_empty()).then_some(batch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_all_keys_in_order() {
        let keys: Vec<Vec<u8>> =
            [10, BATCH_BYTES - 10, 1, BATCH_BYTES * 2, 5, 5].map(|len| vec![7; len]).into();
        let sizes: Vec<usize> = batches(&keys).map(<[Vec<u8>]>::len).collect();
        assert_eq!(sizes, [2, 1, 1, 2]);
        assert_eq!(batches(&keys).flatten().count(), keys.len());
        assert_eq!(batches(&[]).count(), 0);
    }

    #[test]
    fn facts_tell_differences() {
        let facts = |kind, expiry| KeyFacts { kind, expiry, bytes: 0 };
        let probe = Probe::default();
        for (here, there, expected) in [
            (facts(ValueKind::String, -1), facts(ValueKind::String, -1), None),
            (facts(ValueKind::None, -2), facts(ValueKind::None, -2), None),
            (facts(ValueKind::List, -1), facts(ValueKind::None, -2), Some(Difference::Missing)),
            (facts(ValueKind::None, -2), facts(ValueKind::List, -1), Some(Difference::Extra)),
            (facts(ValueKind::List, -1), facts(ValueKind::Set, -1), Some(Difference::Kind)),
            (facts(ValueKind::Other, -1), facts(ValueKind::Other, -1), Some(Difference::Kind)),
            (facts(ValueKind::Set, 90_000), facts(ValueKind::Set, 91_999), None),
            (
                facts(ValueKind::Set, 90_000),
                facts(ValueKind::Set, 93_000),
                Some(Difference::Expiry),
            ),
            (facts(ValueKind::Set, 1), facts(ValueKind::Set, -1), Some(Difference::Expiry)),
        ] {
            assert_eq!(probe.compare_facts(&here, &there), expected, "{here:?} {there:?}");
        }
    }
}
