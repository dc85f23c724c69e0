//! Checks the rows of one shard, slot by slot: meta rows with the elements that they name, the
//! expiry index, the counters.

use super::Findings;
use super::rows::EngineRows;
use super::tally::Tally;
use crate::control::{Control, Generations};
use crate::encoding::{Row, RowKey, prefix_range, row};
use crate::engine::Engine;
use crate::slot::{Layout, slot_of};
use crate::value::{Entry, decode_entry};
use anyhow::{Context, Result};
use bytes::Bytes;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_128;

/// Maximum number of big values of one slot that are checked together.
const MAX_OWNERS: usize = 1 << 20;

/// See the module's description.
pub(super) struct ShardCheck<'a> {
    pub(super) id: u16,
    pub(super) layout: &'a Layout,
    pub(super) engine: &'a Engine,
    pub(super) findings: &'a Findings<'a>,
}

/// A big value and its meta row.
struct Owner {
    entry: Entry,
    is_live: bool,
}

/// Versions in the rows of a slot.
#[derive(Default)]
struct SlotVersions {
    owners: BTreeMap<u64, Owner>,
    /// Dead versions, with the prefixes of their dead elements.
    dead: BTreeMap<u64, Vec<Bytes>>,
    /// True if the slot has more big values than are checked together.
    is_crowded: bool,
}

/// Totals of the meta rows read so far.
#[derive(Default)]
struct Seen {
    /// Number of keys, of keys with an expiry, and their size, by generation and slot.
    counts: BTreeMap<(u32, u16), (u32, u32, i64)>,
    /// Digest of the expiry rows that must exist.
    times: u128,
}

impl ShardCheck<'_> {
    fn problem(&self, what: impl AsRef<str>) {
        self.findings.problem(format!("shard {}: {}", self.id, what.as_ref()));
    }

    fn rows(&self, prefix: &[u8]) -> EngineRows<'_> {
        EngineRows::new(self.engine, self.findings, prefix)
    }

    pub(super) async fn run(&self, all: &Generations) -> Result<()> {
        let rows = self.engine.scan(prefix_range(&[row::CONTROL]), usize::MAX).await?;
        self.findings.read(rows.len() as u64);
        let control = Control::read(&rows).map_err(anyhow::Error::msg)?;
        if control.generations.live != all.live {
            self.problem("its databases have other generations than those of the other shards");
        }
        let mut generations = Vec::new();
        for generation in self.generations().await? {
            let db = control.generations.db_of(generation);
            if db.is_none() && !control.generations.dead.contains(&generation) {
                self.problem(format!("meta rows of generation {generation}, which is unknown"));
            }
            let head = [&[row::META][..], &generation.to_be_bytes()].concat();
            generations.push((generation, db, self.rows(&head)));
        }
        let mut elements = self.rows(&[row::ELEMENT]);
        let mut dead = self.rows(&[row::DEAD]);
        let mut seen = Seen::default();
        for slot in self.layout.slots_of(self.id) {
            let mut found = SlotVersions::default();
            for (generation, db, rows) in &mut generations {
                self.read_metas(slot, (*generation, *db), rows, &mut found, &mut seen).await?;
            }
            self.read_dead(slot, &mut dead, &mut found).await?;
            self.read_elements(slot, &mut elements, found).await?;
        }
        let mut metas: Vec<&mut EngineRows<'_>> = generations.iter_mut().map(|(.., r)| r).collect();
        for rows in metas.iter_mut().map(|r| &mut **r).chain([&mut elements, &mut dead]) {
            if let Some((key, _)) = rows.peek().await? {
                self.problem(format!("rows of other shards, from {} on", key.escape_ascii()));
            }
        }
        self.compare_counters(&control, &seen);
        self.check_times(&seen).await
    }

    /// Returns the generations that have meta rows.
    async fn generations(&self) -> Result<Vec<u32>> {
        let mut found = Vec::new();
        let mut range = prefix_range(&[row::META]);
        while let Some((key, _)) = self.engine.scan(range.clone(), 1).await?.first() {
            let Some(Row::Meta { generation, .. }) = Row::parse(key) else {
                self.problem(format!("a damaged row key {}", key.escape_ascii()));
                break;
            };
            found.push(generation);
            let Some(next) = generation.checked_add(1) else { break };
            range.start = [&[row::META][..], &next.to_be_bytes()].concat();
        }
        Ok(found)
    }

    /// Reads a generation's meta rows of a slot. A dead generation has no database.
    async fn read_metas(
        &self,
        slot: u16,
        (generation, db): (u32, Option<u32>),
        rows: &mut EngineRows<'_>,
        found: &mut SlotVersions,
        seen: &mut Seen,
    ) -> Result<()> {
        while let Some((key, value)) = rows.peek().await? {
            match Row::parse(key) {
                Some(Row::Meta { slot: of, .. }) if of > slot => return Ok(()),
                Some(Row::Meta { slot: of, hash48, key: name, .. }) => {
                    let at = self.layout.key_hash(name);
                    if of != slot || at.slot != of || at.hash48() != hash48 {
                        self.problem(format!(
                            "the meta row of {name} is out of place",
                            name = shown(name)
                        ));
                    }
                    match decode_entry(name, at.hash, value) {
                        Ok(entry) => self.take_meta(slot, generation, db, entry, found, seen),
                        Err(error) => self.problem(format!("key {}: {error}", shown(name))),
                    }
                }
                _ => self.problem(format!("a damaged row key {}", key.escape_ascii())),
            }
            rows.next().await?;
        }
        Ok(())
    }

    fn take_meta(
        &self,
        slot: u16,
        generation: u32,
        db: Option<u32>,
        entry: Entry,
        found: &mut SlotVersions,
        seen: &mut Seen,
    ) {
        let count = seen.counts.entry((generation, slot)).or_default();
        count.0 += 1;
        count.1 += u32::from(entry.expire_at_ms != 0);
        count.2 += i64::from(entry.stored.units);
        if let Some(db) = db {
            self.findings.key(db, &entry);
        }
        for time in times(&entry, slot, generation) {
            seen.times = seen.times.wrapping_add(xxh3_128(&time));
        }
        let version = entry.value.version();
        if version == 0 {
            return;
        }
        if found.owners.len() >= MAX_OWNERS {
            found.is_crowded = true;
            return;
        }
        let name = shown(&entry.key);
        if found.owners.insert(version, Owner { entry, is_live: db.is_some() }).is_some() {
            self.problem(format!("key {name} has the elements (version {version}) of another key"));
        }
    }

    async fn read_dead(
        &self,
        slot: u16,
        rows: &mut EngineRows<'_>,
        found: &mut SlotVersions,
    ) -> Result<()> {
        while let Some((key, _)) = rows.peek().await? {
            match Row::parse(key) {
                Some(Row::Dead { slot: of, .. }) if of > slot => return Ok(()),
                Some(Row::Dead { version, prefix, .. }) => {
                    if prefix.is_empty()
                        && let Some(owner) = found.owners.get(&version)
                    {
                        let name = shown(&owner.entry.key);
                        self.problem(format!("key {name}: its elements are said to be dead"));
                    }
                    let prefix = key.slice(key.len() - prefix.len()..);
                    found.dead.entry(version).or_default().push(prefix);
                }
                _ => self.problem(format!("a damaged row key {}", key.escape_ascii())),
            }
            rows.next().await?;
        }
        Ok(())
    }

    /// Reads a slot's element rows, and checks each version against its owner.
    async fn read_elements(
        &self,
        slot: u16,
        rows: &mut EngineRows<'_>,
        mut found: SlotVersions,
    ) -> Result<()> {
        let mut current: Option<(u64, Tally)> = None;
        let mut orphans: Option<(u64, u64)> = None;
        while let Some((key, value)) = rows.peek().await? {
            let (version, element) = match Row::parse(key) {
                Some(Row::Element { slot: of, .. }) if of > slot => break,
                Some(Row::Element { version, element, .. }) => (version, element),
                _ => {
                    self.problem(format!("a damaged row key {}", key.escape_ascii()));
                    rows.next().await?;
                    continue;
                }
            };
            let element = key.slice(key.len() - element.len()..);
            let prefixes = found.dead.get(&version).map_or(&[][..], |prefixes| prefixes);
            let is_dead = prefixes.iter().any(|prefix| element.starts_with(prefix));
            if !is_dead {
                if let Some((_, tally)) = current.as_mut().filter(|(of, _)| *of == version) {
                    tally.add(element, value.clone());
                } else if let Some(mut tally) =
                    found.owners.get(&version).map(|o| Tally::of(&o.entry))
                {
                    tally.add(element, value.clone());
                    self.end(current.replace((version, tally)), &mut found.owners);
                } else if !found.is_crowded {
                    let (_, count) =
                        orphans.filter(|(of, _)| *of == version).unwrap_or_else(|| {
                            self.report_orphans(slot, orphans);
                            (version, 0)
                        });
                    orphans = Some((version, count + 1));
                }
            }
            rows.next().await?;
        }
        self.report_orphans(slot, orphans);
        self.end(current, &mut found.owners);
        for (_, owner) in found.owners {
            let tally = Tally::of(&owner.entry);
            self.end_of(owner, tally);
        }
        Ok(())
    }

    fn report_orphans(&self, slot: u16, orphans: Option<(u64, u64)>) {
        if let Some((version, count)) = orphans {
            self.problem(format!(
                "slot {slot}: {count} elements of version {version}, which no key has"
            ));
        }
    }

    fn end(&self, current: Option<(u64, Tally)>, owners: &mut BTreeMap<u64, Owner>) {
        if let Some((version, tally)) = current
            && let Some(owner) = owners.remove(&version)
        {
            self.end_of(owner, tally);
        }
    }

    fn end_of(&self, owner: Owner, tally: Tally) {
        let name = shown(&owner.entry.key);
        // Parts of a flushed database may be swept already.
        if owner.is_live
            && let Err(what) = tally.end(owner.entry)
        {
            self.problem(format!("key {name}: {what}"));
        }
    }

    fn compare_counters(&self, control: &Control, seen: &Seen) {
        for &generation in &control.generations.live {
            for slot in self.layout.slots_of(self.id) {
                let there = seen.counts.get(&(generation, slot)).copied().unwrap_or_default();
                let counters = &control.counters;
                let counted = counters.of(generation, slot);
                let units = counters.units_of(generation, slot);
                if (there.0, there.1) == counted
                    && there.2 != units
                    && counters.knows_size(generation, slot)
                {
                    self.problem(format!(
                        "slot {slot}, generation {generation}: keys of {} units, but a counter of \
                         {units}",
                        there.2
                    ));
                }
                if (there.0, there.1) != counted {
                    self.problem(format!(
                        "slot {slot}, generation {generation}: {} keys, {} with an expiry, but \
                         counters of {} and {}",
                        there.0, there.1, counted.0, counted.1
                    ));
                }
            }
        }
    }

    /// Compares the expiry index with the meta rows: by a digest, then row by row if that differs.
    async fn check_times(&self, seen: &Seen) -> Result<()> {
        let mut rows = self.rows(&[row::TIME]);
        let mut sum = 0u128;
        while let Some((key, _)) = rows.next().await? {
            sum = sum.wrapping_add(xxh3_128(&key));
        }
        if sum == seen.times {
            return Ok(());
        }
        let mut found = false;
        let mut rows = self.rows(&[row::TIME]);
        while let Some((key, _)) = rows.next().await? {
            let Some(Row::Time { at_ms, slot, generation, key: name, .. }) = Row::parse(&key)
            else {
                self.problem(format!("a damaged row key {}", key.escape_ascii()));
                continue;
            };
            let entry = self.entry(generation, name).await?;
            if !entry.is_some_and(|e| times(&e, slot, generation).any(|time| time == key)) {
                found = true;
                self.problem(format!("an expiry row at {at_ms} that key {} has not", shown(name)));
            }
        }
        let mut rows = self.rows(&[row::META]);
        while let Some((key, value)) = rows.next().await? {
            let Some(Row::Meta { generation, slot, key: name, .. }) = Row::parse(&key) else {
                continue;
            };
            let Ok(entry) = decode_entry(name, 0, &value) else { continue };
            for time in times(&entry, slot, generation) {
                if self.engine.get(&time).await?.is_none() {
                    found = true;
                    self.problem(format!("key {} has no expiry row", shown(name)));
                }
            }
        }
        if !found {
            self.problem("the expiry index is not that of the keys");
        }
        Ok(())
    }

    async fn entry(&self, generation: u32, name: &[u8]) -> Result<Option<Entry>> {
        let at = self.layout.key_hash(name);
        let mut key = Vec::new();
        RowKey::meta(&mut key, generation, at, name);
        let row = self.engine.get(&key).await?;
        row.map(|row| decode_entry(name, at.hash, &row)).transpose().context("a meta row")
    }
}

/// Returns the expiry rows that must exist for a key.
fn times(entry: &Entry, slot: u16, generation: u32) -> impl Iterator<Item = Vec<u8>> {
    let times = [(entry.expire_at_ms, false), (entry.value.fields_expire_at_ms(), true)];
    let key = entry.key.clone();
    times
        .into_iter()
        .filter(|(at_ms, _)| *at_ms != 0)
        .map(move |(at_ms, fields)| RowKey::time(at_ms, slot, generation, fields, &key))
}

/// Returns a key for a message: its slot, and its name as far as it fits.
fn shown(name: &[u8]) -> String {
    const SHOWN: usize = 100;
    let more = if name.len() > SHOWN { "…" } else { "" };
    let text = name[..name.len().min(SHOWN)].escape_ascii();
    format!("\"{text}{more}\" (slot {})", slot_of(name))
}
