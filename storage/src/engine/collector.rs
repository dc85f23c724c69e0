//! The files that SlateDB's collector may delete.
//!
//! Manifests and lists of merges have numbers. A writer puts its next one under the number behind the
//! newest that it knows, and the store refuses a number that is taken: so the writer learns that there
//! are newer ones. If those that it does not know were deleted, it would put its own under a free
//! number that no reader looks at, and what it flushed would be lost. So they have to stay for longer
//! than a writer takes to learn of them. SlateDB subtracts the time of a file from the time of its own
//! clock; but that one may be days ahead of the clock of the files, as it does not go back when the
//! system's clock is set back. Hence these files are kept for a while after this process has first
//! found them, by a clock that nobody sets.

use super::readers::Readers;
use super::settings::versions_age;
use super::upkeep::Upkeep;
use async_trait::async_trait;
use slatedb::{GcFilter, ObjectMetadata};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How much older than the newest of them a file in a bucket is that goes at once: an owner may have a shard for
/// a shorter time than the files stay, and the clock that dates them is the store's.
const LONG_PAST: Duration = Duration::from_secs(3600);

/// See the module's description.
#[derive(Debug)]
pub(super) struct CollectorFilter {
    /// Keeps replaced files for the reads that need them; `None`: their age decides alone.
    readers: Option<Arc<Readers>>,
    /// How long a file with a number stays after it was first found.
    versions_age: Duration,
    /// The time at which each of those that stay was first found, by path.
    found: Mutex<HashMap<String, Instant>>,
}

impl CollectorFilter {
    pub(super) fn new(upkeep: &Upkeep, readers: &Arc<Readers>) -> Self {
        let readers = upkeep.keep_files.is_none().then(|| readers.clone());
        Self { readers, versions_age: versions_age(upkeep), found: Mutex::default() }
    }

    /// Returns those of `versions` that this process has known for long enough.
    fn old(&self, versions: HashSet<ObjectMetadata>, now: Instant) -> HashSet<ObjectMetadata> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = versions.iter().map(|version| version.last_modified).max();
        let is_long_past = |version: &ObjectMetadata| {
            let behind = newest.map(|newest| (newest - version.last_modified).to_std());
            self.readers.is_none() && behind.and_then(Result::ok).is_some_and(|it| it > LONG_PAST)
        };
        let is_old = |version: &ObjectMetadata| {
            let path = version.location.as_ref();
            let first = *found.entry(path.to_owned()).or_insert(now);
            let is_old = now.duration_since(first) >= self.versions_age || is_long_past(version);
            if is_old {
                found.remove(path);
            }
            is_old
        };
        versions.into_iter().filter(is_old).collect()
    }
}

#[async_trait]
impl GcFilter for CollectorFilter {
    async fn filter(&self, candidates: HashSet<ObjectMetadata>) -> HashSet<ObjectMetadata> {
        // A call has files of one kind, or none: then it says nothing about replaced files.
        let Some(one) = candidates.iter().next() else { return candidates };
        if one.location.extension() != Some("sst") {
            return self.old(candidates, Instant::now());
        }
        match &self.readers {
            Some(readers) => readers.unneeded(candidates),
            None => candidates,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::path::Path;

    /// Returns a file that is as old as can be by the clock that dates it.
    fn file(name: &str) -> ObjectMetadata {
        ObjectMetadata {
            location: Path::from(format!("db/{name}")),
            last_modified: chrono::DateTime::UNIX_EPOCH,
            size: 1,
            e_tag: None,
            version: None,
        }
    }

    /// Returns the names of those files that may be deleted.
    fn deleted(filter: &CollectorFilter, names: &[&str], now: Instant) -> Vec<String> {
        let old = filter.old(names.iter().map(|name| file(name)).collect(), now);
        let mut names: Vec<_> =
            old.iter().map(|file| file.location.filename().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_manifest_stays_for_a_while_however_old_it_seems() {
        for upkeep in [Upkeep::default(), Upkeep::remote(Duration::from_secs(1))] {
            let filter = CollectorFilter::new(&upkeep, &Arc::default());
            let (age, begun, moment) =
                (filter.versions_age, Instant::now(), Duration::from_millis(1));
            assert!(age >= Duration::from_secs(60));
            assert!(deleted(&filter, &["1.manifest"], begun).is_empty());
            let later = begun + age / 2;
            assert!(deleted(&filter, &["1.manifest", "2.manifest"], later).is_empty());
            assert!(deleted(&filter, &["1.compactions"], later).is_empty());
            let before = begun + age - moment;
            assert!(deleted(&filter, &["1.manifest", "2.manifest"], before).is_empty());
            let then = begun + age;
            assert_eq!(deleted(&filter, &["1.manifest", "2.manifest"], then), ["1.manifest"]);
            let last = later + age;
            assert_eq!(deleted(&filter, &["1.compactions"], last), ["1.compactions"]);
            assert_eq!(deleted(&filter, &["2.manifest"], last), ["2.manifest"]);
            assert!(filter.found.lock().unwrap().is_empty());
        }
    }

    #[test]
    fn in_a_bucket_files_of_long_ago_go_at_once() {
        for (upkeep, expected) in [
            (Upkeep::default(), &[][..]),
            (Upkeep::remote(Duration::from_secs(1)), &["1.manifest"][..]),
        ] {
            let filter = CollectorFilter::new(&upkeep, &Arc::default());
            let mut files = [file("1.manifest"), file("2.manifest"), file("3.manifest")];
            files[1].last_modified += chrono::Duration::seconds(1);
            files[2].last_modified += chrono::Duration::from_std(LONG_PAST).unwrap();
            files[2].last_modified += chrono::Duration::seconds(1);
            let old = filter.old(HashSet::from(files), Instant::now());
            let names: Vec<_> = old.iter().filter_map(|file| file.location.filename()).collect();
            assert_eq!(names, expected);
        }
    }

    #[tokio::test]
    async fn in_a_bucket_the_age_of_replaced_files_decides_alone() {
        let upkeep = Upkeep::remote(Duration::from_secs(1));
        let filter = CollectorFilter::new(&upkeep, &Arc::default());
        let files = HashSet::from([file("a.sst"), file("b.sst")]);
        assert_eq!(filter.filter(files.clone()).await, files);
        assert!(filter.filter(HashSet::from([file("1.manifest")])).await.is_empty());
    }
}
