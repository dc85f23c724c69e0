//! A disk in memory that loses writes that were not synced, and fails on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::{Disk, File};

const SECTOR: usize = 512;

/// A small generator of pseudo-random numbers (xorshift64*).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

#[derive(Clone, Default)]
struct Content {
    now: Vec<u8>,
    /// Contents after a power loss.
    safe: Vec<u8>,
    /// Sectors that the next sync writes. A failed sync, of any file, forgets them, as kernels do.
    dirty: BTreeSet<usize>,
}

#[derive(Clone)]
enum NameChange {
    Create(PathBuf, usize),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

#[derive(Clone, Default)]
struct State {
    contents: Vec<Content>,
    names: BTreeMap<PathBuf, usize>,
    safe_names: BTreeMap<PathBuf, usize>,
    /// Changes that lead from `safe_names` to `names`.
    changes: Vec<NameChange>,
    /// Number of changing operations that still succeed.
    lives: Option<u64>,
    /// Maximum total size of the files in bytes.
    capacity: Option<usize>,
    /// Bytes that it says are free.
    free: Option<u64>,
    /// Writes that succeed before those that fail.
    passing_writes: usize,
    /// The next writes that fail, after this many bytes have been written.
    failing_writes: Vec<(io::ErrorKind, usize)>,
    failing_sync: bool,
    /// The content that cannot be read.
    unreadable: Option<usize>,
}

#[derive(Default)]
pub(super) struct SimDisk {
    state: Mutex<State>,
    /// True while syncs wait.
    pub(super) hold_syncs: AtomicBool,
    /// True once a sync has waited.
    pub(super) sync_held: AtomicBool,
}

struct SimFile {
    disk: Arc<SimDisk>,
    id: usize,
}

/// The disk as the journal uses it.
pub(super) struct Handle(pub(super) Arc<SimDisk>);

impl SimDisk {
    fn with(state: State) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(state), ..Self::default() })
    }

    pub(super) fn copy(&self) -> Arc<Self> {
        Self::with(self.state.lock().unwrap().clone())
    }

    /// Returns the disk after a power loss: any of each file's unsynced sectors, and any prefix of
    /// the unsynced changes of names.
    pub(super) fn after_power_loss(&self, rng: &mut Rng) -> Arc<Self> {
        let mut state = self.state.lock().unwrap().clone();
        let kept = rng.below(state.changes.len() as u64 + 1) as usize;
        let mut names = state.safe_names.clone();
        for change in &state.changes[..kept] {
            apply(&mut names, change);
        }
        for content in &mut state.contents {
            let mut left = content.safe.clone();
            if content.now.len() != left.len() && rng.below(2) == 0 {
                left.resize(content.now.len(), 0);
            }
            let odds = 1 + rng.below(4);
            for at in content.dirty.iter().map(|sector| sector * SECTOR) {
                let end = (at + SECTOR).min(left.len());
                if at < end && rng.below(odds) == 0 {
                    left[at..end].copy_from_slice(&content.now[at..end]);
                }
            }
            *content = Content { now: left.clone(), safe: left, dirty: BTreeSet::new() };
        }
        let contents = state.contents;
        Self::with(State { contents, safe_names: names.clone(), names, ..State::default() })
    }

    pub(super) fn die_after(&self, changes: u64) {
        self.state.lock().unwrap().lives = Some(changes);
    }

    pub(super) fn revive(&self) {
        self.state.lock().unwrap().lives = None;
    }

    pub(super) fn fail_write(&self, kind: io::ErrorKind, written: usize) {
        self.state.lock().unwrap().failing_writes.push((kind, written));
    }

    /// Lets some writes succeed before the failing ones.
    pub(super) fn pass_writes(&self, writes: usize) {
        self.state.lock().unwrap().passing_writes = writes;
    }

    pub(super) fn fail_sync(&self) {
        self.state.lock().unwrap().failing_sync = true;
    }

    pub(super) fn set_capacity(&self, capacity: Option<usize>) {
        self.state.lock().unwrap().capacity = capacity;
    }

    pub(super) fn set_free(&self, free: u64) {
        self.state.lock().unwrap().free = Some(free);
    }

    pub(super) fn used(&self) -> usize {
        let state = self.state.lock().unwrap();
        state.names.values().map(|&id| state.contents[id].now.len()).sum()
    }

    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.state.lock().unwrap().names.keys().cloned().collect()
    }

    pub(super) fn delete(&self, path: &Path) {
        let mut state = self.state.lock().unwrap();
        state.names.remove(path);
        state.safe_names.remove(path);
    }

    pub(super) fn read(&self, path: &Path) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        state.contents[state.names[path]].now.clone()
    }

    /// Fails every read of a file from now on.
    pub(super) fn fail_reads(&self, path: &Path) {
        let mut state = self.state.lock().unwrap();
        state.unreadable = Some(state.names[path]);
    }

    /// Changes a file's bytes without the journal noticing.
    pub(super) fn edit(&self, path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state.lock().unwrap();
        let id = state.names[path];
        edit(&mut state.contents[id].now);
        state.contents[id].safe = state.contents[id].now.clone();
    }
}

fn apply(names: &mut BTreeMap<PathBuf, usize>, change: &NameChange) {
    match change {
        NameChange::Create(path, id) => {
            names.insert(path.clone(), *id);
        }
        NameChange::Rename(from, to) => {
            if let Some(id) = names.remove(from) {
                names.insert(to.clone(), id);
            }
        }
        NameChange::Remove(path) => {
            names.remove(path);
        }
    }
}

impl State {
    fn live(&mut self) -> io::Result<()> {
        match &mut self.lives {
            Some(0) => Err(io::Error::other("the disk is dead")),
            Some(lives) => {
                *lives -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn change(&mut self, change: NameChange) -> io::Result<()> {
        self.live()?;
        apply(&mut self.names, &change);
        self.changes.push(change);
        Ok(())
    }
}

impl Disk for Handle {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.0.state.lock().unwrap();
        let inside = state.names.keys().filter(|path| path.parent() == Some(dir));
        let names = inside.filter_map(|path| path.file_name()?.to_str());
        Ok(names.map(str::to_owned).collect())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let state = self.0.state.lock().unwrap();
        let id = *state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(SimFile { disk: Arc::clone(&self.0), id }))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        let mut state = self.0.state.lock().unwrap();
        let id = state.contents.len();
        state.change(NameChange::Create(path.to_path_buf(), id))?;
        state.contents.push(Content::default());
        Ok(Arc::new(SimFile { disk: Arc::clone(&self.0), id }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let change = NameChange::Rename(from.to_path_buf(), to.to_path_buf());
        self.0.state.lock().unwrap().change(change)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.state.lock().unwrap();
        if !state.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change(NameChange::Remove(path.to_path_buf()))
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        let mut state = self.0.state.lock().unwrap();
        state.live()?;
        state.safe_names = state.names.clone();
        state.changes.clear();
        Ok(())
    }

    fn free(&self, _dir: &Path) -> Option<u64> {
        self.0.state.lock().unwrap().free
    }
}

impl File for SimFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.state.lock().unwrap().contents[self.id].now.len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.disk.state.lock().unwrap();
        if state.unreadable == Some(self.id) {
            return Err(io::Error::other("a sector is bad"));
        }
        let from = offset as usize;
        let bytes = state.contents[self.id].now.get(from..from + buffer.len());
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_all_at(&self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        let used = self.disk.used();
        let mut state = self.disk.state.lock().unwrap();
        state.live()?;
        let (mut written, mut result) = (bytes.len(), Ok(()));
        // Filling a new segment does not count.
        let filling = offset == 0 && bytes.len() > SECTOR;
        if state.passing_writes > 0 && !filling {
            state.passing_writes -= 1;
        } else if !filling && !state.failing_writes.is_empty() {
            let (kind, at) = state.failing_writes.remove(0);
            (written, result) = (written.min(at), Err(kind.into()));
        }
        let capacity = state.capacity;
        let Content { now, dirty, .. } = &mut state.contents[self.id];
        let end = offset as usize + written;
        let growth = end.saturating_sub(now.len());
        if growth > 0 && capacity.is_some_and(|capacity| used + growth > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        now.resize(now.len().max(end), 0);
        now[offset as usize..end].copy_from_slice(&bytes[..written]);
        dirty.extend(offset as usize / SECTOR..end.div_ceil(SECTOR));
        result
    }

    fn sync(&self) -> io::Result<()> {
        while self.disk.hold_syncs.load(Ordering::SeqCst) {
            self.disk.sync_held.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        let mut state = self.disk.state.lock().unwrap();
        state.live()?;
        if std::mem::take(&mut state.failing_sync) {
            state.contents.iter_mut().for_each(|content| content.dirty.clear());
            return Err(io::Error::other("a sync failed"));
        }
        let Content { now, safe, dirty } = &mut state.contents[self.id];
        let dirty = std::mem::take(dirty);
        safe.resize(now.len(), 0);
        for at in dirty.into_iter().map(|sector| sector * SECTOR) {
            let end = (at + SECTOR).min(now.len());
            safe[at..end].copy_from_slice(&now[at..end]);
        }
        Ok(())
    }
}
