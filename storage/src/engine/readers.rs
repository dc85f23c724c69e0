//! The running reads of an engine, and the files that they keep.
//!
//! A merge replaces files, and reads that began before still use them. On a local disk nothing else
//! uses them: a backup, a branch and a checkpoint have a checkpoint of SlateDB, which names its
//! files. So a file is deleted as soon as the engine knows that it is replaced, and each read that
//! had begun by then has ended. SlateDB's collector asks here before it deletes.

use slatedb::{DbStatus, ObjectMetadata};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::watch;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Readers {
    state: Mutex<State>,
    /// The manifest that reads begin with; unknown while the engine is being opened.
    status: OnceLock<watch::Receiver<DbStatus>>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of reads that have begun.
    begun: u64,
    /// Running reads, by their numbers.
    running: BTreeSet<u64>,
    /// Replaced files by path: the number of reads that had begun when the engine knew of it.
    replaced: HashMap<String, u64>,
}

/// A running read.
#[derive(Debug)]
pub(super) struct EngineRead {
    readers: Arc<Readers>,
    number: u64,
}

impl Drop for EngineRead {
    fn drop(&mut self) {
        self.readers.state().running.remove(&self.number);
    }
}

impl Readers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns where the current manifest is found.
    pub(super) fn know(&self, status: watch::Receiver<DbStatus>) {
        // An engine is opened once.
        let _ = self.status.set(status);
    }

    /// Begins a read. It must look at the manifest after that.
    pub(super) fn begin(self: &Arc<Self>) -> EngineRead {
        let mut state = self.state();
        let number = state.begun;
        state.begun += 1;
        state.running.insert(number);
        EngineRead { readers: self.clone(), number }
    }

    /// Returns those of `files`, which are all files that are replaced, that no read needs.
    pub(super) fn unneeded(&self, files: HashSet<ObjectMetadata>) -> HashSet<ObjectMetadata> {
        let Some(status) = self.status.get() else { return HashSet::new() };
        let used = {
            let status = status.borrow();
            let views = status.current_manifest.all_sst_views();
            views.map(|view| format!("{}.sst", view.sst.id.value())).collect()
        };
        self.unneeded_beside(files, &used)
    }

    /// Like [`unneeded`](Self::unneeded). `used`: the names of the files that the current manifest names.
    fn unneeded_beside(
        &self,
        files: HashSet<ObjectMetadata>,
        used: &HashSet<String>,
    ) -> HashSet<ObjectMetadata> {
        let mut state = self.state();
        let now = state.begun;
        let oldest = state.running.first().copied().unwrap_or(now);
        let known = std::mem::take(&mut state.replaced);
        let mut unneeded = HashSet::new();
        for file in files {
            let path = file.location.as_ref();
            if file.location.filename().is_some_and(|name| used.contains(name)) {
                continue;
            }
            let since = known.get(path).copied().unwrap_or(now);
            if oldest >= since {
                unneeded.insert(file);
            } else {
                state.replaced.insert(path.to_owned(), since);
            }
        }
        unneeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::path::Path;

    fn file(name: &str) -> ObjectMetadata {
        ObjectMetadata {
            location: Path::from(format!("db/{name}")),
            last_modified: chrono::DateTime::UNIX_EPOCH,
            size: 1,
            e_tag: None,
            version: None,
        }
    }

    /// Returns the names of the files that may be deleted, of these replaced ones.
    fn deleted(readers: &Readers, replaced: &[&str], used: &[&str]) -> Vec<String> {
        let used = used.iter().map(|name| format!("{name}.sst")).collect();
        let files = replaced.iter().map(|name| file(name)).collect();
        let unneeded = readers.unneeded_beside(files, &used);
        let mut names: Vec<_> =
            unneeded.iter().map(|f| f.location.filename().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_replaced_file_stays_until_the_reads_that_began_before_have_ended() {
        let readers = Arc::new(Readers::default());
        let one = readers.begin();
        let two = readers.begin();
        assert!(deleted(&readers, &["a.sst"], &[]).is_empty());
        let three = readers.begin();
        // A later read does not keep it, but keeps files that are replaced after its beginning.
        drop(one);
        assert!(deleted(&readers, &["a.sst", "b.sst"], &[]).is_empty());
        drop(two);
        assert_eq!(deleted(&readers, &["a.sst", "b.sst"], &[]), ["a.sst"]);
        drop(three);
        assert_eq!(deleted(&readers, &["b.sst"], &[]), ["b.sst"]);
        assert!(readers.state().replaced.is_empty());
    }

    #[test]
    fn a_file_stays_while_reads_still_begin_with_it() {
        let readers = Arc::new(Readers::default());
        assert!(deleted(&readers, &["a.sst"], &["a"]).is_empty());
        let reading = readers.begin();
        assert!(deleted(&readers, &["a.sst"], &["a"]).is_empty());
        // The engine knows now that it is replaced, but the read began with it.
        assert!(deleted(&readers, &["a.sst"], &[]).is_empty());
        drop(reading);
        assert_eq!(deleted(&readers, &["a.sst"], &[]), ["a.sst"]);
    }
}
