//! Changes the number of shards of a stopped server.
//!
//! All rows are copied into a new data directory, each to the shard of its slot. The old one is not
//! changed, except that it is recovered first as at any start; the new one counts only when it has
//! its `flagstone.json`, which is written last, after the copied rows have been read back. So it
//! may be interrupted at any time. The shards of the new directory are like copies of a stopped
//! server's: complete without a journal.

use super::{
    Directory, Locks, Manifest, NewDirectory, OpenOptions, Place, local_files, lock, manifest_of,
    open_engines, read_manifest,
};
use crate::clock::Clock;
use crate::control::{Control, applied_rows, complete_row, reaches_row};
use crate::counters::Counters;
use crate::encoding::{Library, Row, SourcePosition, prefix_range, row, slot_of_row};
use crate::engine::{BATCH_BYTES, Engine};
use crate::partition::LIBRARIES_SHARD;
use crate::slot::Layout;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The kinds of rows that belong to a slot.
const KINDS: [u8; 4] = [row::DEAD, row::ELEMENT, row::META, row::TIME];

/// Result of resharding; also its progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resharded {
    pub keys: u64,
    pub rows: u64,
    /// Bytes of keys and values of the rows.
    pub bytes: u64,
    /// A sum over the rows that does not depend on their order.
    digest: u64,
}

impl Resharded {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.keys += u64::from(key.first() == Some(&row::META));
        self.rows += 1;
        self.bytes += (key.len() + value.len()) as u64;
        self.digest = self.digest.wrapping_add(xxh3_64_with_seed(value, xxh3_64(key)));
    }
}

/// Copies a data directory to `to`, which must be empty, for `shards` shards. `told` receives
/// progress. Returns also the locks on the old directory: whoever puts the new one in its place keeps
/// them until then, so that no server writes to the old one meanwhile.
///
/// # Errors
/// If the old directory cannot be opened, the new one cannot be written, or the rows read back
/// differ from those read. Then nothing is left at `to`.
pub async fn reshard(
    options: OpenOptions,
    to: Place,
    shards: u16,
    clock: Clock,
    told: &(dyn Fn(Resharded) + Sync),
) -> Result<(Resharded, Locks)> {
    let Some(before) = read_manifest(&options.store).await? else {
        bail!("{} is not a data directory", options.store);
    };
    let manifest = before.with_shards(shards)?;
    let new = NewDirectory::begin(&to).await?;
    let to = new.place().clone();
    let copied = async {
        let copied = copy_shards(options, &to, &manifest, clock, told).await?;
        new.prove().await?;
        manifest.with_all_identified().store(&to).await?;
        Ok(copied)
    };
    let copied = copied.await;
    new.end(copied).await
}

async fn copy_shards(
    options: OpenOptions,
    to: &Place,
    manifest: &Manifest,
    clock: Clock,
    told: &(dyn Fn(Resharded) + Sync),
) -> Result<(Resharded, Locks)> {
    // No other process opens the old directory meanwhile.
    let (old, locks) = stop_cleanly(&options, &clock).await?;
    let new_options = OpenOptions { store: to.clone(), journal: None, ..options };
    let open_store = local_files();
    let new = open_engines(&new_options, manifest, &clock, &open_store).await?;
    let layout = manifest.layout();
    let mut copied = Resharded::default();
    for engine in &old {
        copy_rows(engine, &new, &layout, &mut copied, told).await?;
    }
    copy_control(&old, &new, manifest).await?;
    for engine in old.iter().chain(&new) {
        engine.close().await?;
    }
    let again = open_engines(&new_options, manifest, &clock, &open_store).await?;
    let mut found = Resharded::default();
    for engine in &again {
        each_row(engine, |key, value| found.add(&key, &value)).await?;
        engine.close().await?;
    }
    if found != copied {
        bail!("{to} does not hold what was written there: {found:?}, not {copied:?}");
    }
    Ok((copied, locks))
}

/// Removes what an interrupted resharding in place has left beside a directory: a copy of it or, if
/// the two were exchanged already, the old one. The directory itself is whole in any case. A
/// directory in the making, without its `flagstone.json`, stays: [`reshard`] removes it.
///
/// # Errors
/// If `beside` is a data directory of its own, or another process is at work in one of them. Then
/// nothing is removed.
pub async fn remove_resharded(beside: &Path, dir: &Path) -> Result<()> {
    let Some(left) = Manifest::read(&Place::local(beside)?).await? else { return Ok(()) };
    let whole = Manifest::read(&Place::local(dir)?).await?;
    if whole.is_none_or(|whole| whole.seed != left.seed) {
        bail!("{} is the directory of other data: move it away", beside.display());
    }
    // Until the exchange, a resharding holds the lock of the directory.
    let _dir_lock = lock(dir)?;
    let _left_lock = lock(beside)?;
    carry_over(beside, dir)?;
    remove_old(beside)
}

/// Names in a data directory that are its own (`docs/format.md`), ...
const OWN: &[&str] = &[
    "addresses",
    "archive",
    "checking",
    "checkpoints",
    "cluster",
    "cluster-node-id",
    "copying",
    "flagstone.json",
    "flagstone.json.new",
    "journal",
    "lives",
    "lock",
    "replica-copy.rdb",
    "shared.json",
    "splitting",
    "unfinished",
];

/// ... and beginnings of names.
const OWN_BEGINNINGS: [&str; 2] = ["replica-sync-", "shard-"];

/// Moves files that are not the server's own (a file of users, backups) from a data directory into the one
/// that takes its place.
///
/// # Errors
/// If something cannot be moved, as there is something of its name, say.
pub fn carry_over(from: &Path, to: &Path) -> Result<()> {
    let is_own = |name: &OsStr| {
        let own =
            |name: &str| OWN.contains(&name) || OWN_BEGINNINGS.iter().any(|b| name.starts_with(b));
        name.to_str().is_some_and(own)
    };
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let name = entry?.file_name();
        if is_own(&name) {
            continue;
        }
        let (old, new) = (from.join(&name), to.join(&name));
        renameat_with(CWD, &old, CWD, &new, RenameFlags::NOREPLACE)
            .with_context(|| format!("moving {} to {}", old.display(), new.display()))?;
    }
    let synced = File::open(to).and_then(|dir| dir.sync_all());
    synced.with_context(|| format!("syncing {}", to.display()))
}

/// Removes a data directory. What identifies it and its lock go last, so that an interrupted removal
/// can go on.
///
/// # Errors
/// If a file cannot be removed.
pub fn remove_old(dir: &Path) -> Result<()> {
    let removing = || format!("removing {}", dir.display());
    let entries = fs::read_dir(dir).with_context(removing)?;
    let mut paths: Vec<_> =
        entries.map(|entry| entry.map(|e| e.path())).collect::<io::Result<_>>()?;
    let rank = |path: &Path| match path.file_name().and_then(OsStr::to_str) {
        Some("flagstone.json") => 1,
        Some("lock") => 2,
        _ => 0,
    };
    paths.sort_by_key(|path| rank(path));
    for path in paths {
        let is_dir = fs::symlink_metadata(&path).with_context(removing)?.is_dir();
        if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
            .with_context(|| format!("removing {}", path.display()))?;
    }
    fs::remove_dir(dir).with_context(removing)
}

/// Recovers a directory, applies its journal to the engines, and returns them.
async fn stop_cleanly(options: &OpenOptions, clock: &Clock) -> Result<(Vec<Engine>, Locks)> {
    let opened = Directory::open(options.clone(), clock.clone()).await?;
    let journal = opened.journal.clone();
    let (partitions, locks) = opened.into_partitions(1, 1);
    for partition in partitions {
        partition.close().await?;
    }
    journal.close()?;
    let store = options.store.with_shared().await?;
    let options = OpenOptions { store, ..options.clone() };
    let manifest = manifest_of(&options.store).await?;
    let engines = open_engines(&options, &manifest, clock, &local_files()).await?;
    Ok((engines, locks))
}

/// Passes all rows of slots to `each`.
async fn each_row(engine: &Engine, mut each: impl FnMut(Bytes, Bytes)) -> Result<()> {
    for kind in KINDS {
        let mut range = prefix_range(&[kind]);
        let mut take = |key, value| {
            each(key, value);
            true
        };
        while let Some(next) = engine.walk(range.clone(), &mut take).await? {
            range.start = next;
        }
    }
    Ok(())
}

async fn copy_rows(
    from: &Engine,
    to: &[Engine],
    layout: &Layout,
    copied: &mut Resharded,
    told: &(dyn Fn(Resharded) + Sync),
) -> Result<()> {
    for kind in KINDS {
        let mut next = Some(prefix_range(&[kind]));
        while let Some(range) = next.take() {
            let end = range.end.clone();
            let mut batches: Vec<Vec<(Bytes, Option<Bytes>)>> = vec![Vec::new(); to.len()];
            let mut bytes = 0;
            let mut unknown = None;
            let take = |key: Bytes, value: Bytes| {
                copied.add(&key, &value);
                bytes += key.len() + value.len();
                match slot_of_whole_row(&key) {
                    Some(slot) => {
                        batches[usize::from(layout.shard_of(slot))].push((key, Some(value)));
                    }
                    None => unknown = Some(key),
                }
                bytes < BATCH_BYTES
            };
            let rest = from.walk(range, take).await?;
            if let Some(key) = unknown {
                bail!("a row is damaged: its key is {:?}", key.escape_ascii().to_string());
            }
            for (engine, batch) in to.iter().zip(batches).filter(|(_, batch)| !batch.is_empty()) {
                engine.write(batch).await?;
            }
            told(*copied);
            next = rest.map(|start| start..end);
        }
    }
    Ok(())
}

/// Returns the slot of a row that can be parsed.
fn slot_of_whole_row(key: &[u8]) -> Option<u16> {
    Row::parse(key).and_then(|_| slot_of_row(key))
}

/// Writes the control rows of the new shards: each is complete.
async fn copy_control(old: &[Engine], new: &[Engine], manifest: &Manifest) -> Result<()> {
    let layout = manifest.layout();
    let mut controls = Vec::with_capacity(old.len());
    for engine in old {
        let rows = engine.scan(prefix_range(&[row::CONTROL]), usize::MAX).await?;
        let mut control = Control::read(&rows).map_err(anyhow::Error::msg)?;
        if let Some(slots) = engine.slots() {
            control.counters.keep_slots(&slots);
        }
        controls.push(control);
    }
    let first = controls.first().context("a directory has shards")?;
    let end = controls.iter().map(|c| c.complete.unwrap_or(0).max(c.applied).max(c.reaches)).max();
    let (end, epoch) = (end.unwrap_or(0), controls.iter().map(|c| c.epoch).max().unwrap_or(0));
    for (id, engine) in (0u16..).zip(new) {
        let mut counters = Counters::default();
        controls.iter().for_each(|c| counters.take_over(&c.counters, &layout.slots_of(id)));
        let mut rows =
            vec![reaches_row(end), complete_row(end, epoch), manifest.identity(id).row()];
        let mut generations = first.generations.clone();
        generations.next = controls.iter().map(|c| c.generations.next).max().unwrap_or(0);
        for control in &controls {
            generations.dead.extend(&control.generations.dead);
        }
        rows.extend(applied_rows(end, epoch, &generations, &counters));
        if id == 0 {
            let sources = controls.iter().map(|control| control.source.clone());
            let source = sources.fold(SourcePosition::default(), SourcePosition::later);
            if source.serial > 0 {
                let key = Bytes::copy_from_slice(&SourcePosition::row_key());
                rows.push((key, Some(source.encode().into())));
            }
        }
        if id == LIBRARIES_SHARD {
            for library in first.libraries.values() {
                rows.push((Library::row_key(&library.name).into(), Some(library.encode().into())));
            }
        }
        engine.write(rows).await?;
        engine.flush().await?;
    }
    Ok(())
}
