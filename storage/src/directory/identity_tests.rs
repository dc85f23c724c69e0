//! Files of other directories, of other shards and of earlier times are refused.

use super::*;
use crate::check::{Listener, check};
use crate::checkpoint::{branch, offline_options, take_stopped};
use crate::value::{Str, Value};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use tempfile::TempDir;

pub(super) const NOW: u64 = 1_800_000_000_000;

/// Runs one life of a directory on a runtime of its own: all its tasks end with it.
pub(super) fn live<T>(life: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
        .block_on(life)
}

pub(super) fn at(dir: &Path) -> Location {
    Place::local(dir).unwrap().into()
}

pub(super) async fn open(location: &Location) -> Result<Directory> {
    let mut options = offline_options(location).await?;
    (options.databases, options.default_shards) = (1, 2);
    options.segment_bytes = 64 << 10;
    (options.lease, options.presence_bytes) = (Duration::from_millis(20), 1 << 20);
    Directory::open(options, Clock::default()).await
}

/// Returns the value of a key: some values have rows of their own.
pub(super) fn value(n: u32) -> Vec<u8> {
    let mut value = format!("value{n}").into_bytes();
    if n % 20 == 7 {
        value.resize(20_000, b'x');
    }
    value
}

/// Writes `keys` keys and stops, by a kill or cleanly.
pub(super) fn write(location: &Location, keys: std::ops::Range<u32>, is_clean: bool) {
    live(async {
        let opened = open(location).await.unwrap();
        let journal = opened.journal.clone();
        let (mut partitions, _locks) = opened.into_partitions(1, 1);
        let mut partition = partitions.remove(0);
        for n in keys {
            partition.store.begin(NOW, true);
            let key = format!("key{n}");
            partition.store.entry_mut(0, key.as_bytes()).unwrap().value =
                Value::Str(Str::new(&value(n)));
            partition.commit(NOW).unwrap();
            // The next record marks this one as durable.
            journal.sync_now().unwrap();
        }
        if is_clean {
            partition.close().await.unwrap();
            journal.close().unwrap();
        }
    });
}

/// Returns the number of keys, or why the start is refused.
fn keys(location: &Location) -> Result<u64, String> {
    live(async {
        let opened = open(location).await.map_err(|error| format!("{error:#}"))?;
        let journal = opened.journal.clone();
        let (mut partitions, _locks) = opened.into_partitions(1, 1);
        let partition = partitions.remove(0);
        let keys = partition.totals(0).0;
        partition.close().await.unwrap();
        journal.close().unwrap();
        Ok(keys)
    })
}

fn refused(location: &Location) -> String {
    keys(location).expect_err("it is not what it was")
}

#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Listener for Told {
    fn problem(&self, what: &str) {
        self.0.lock().unwrap().push(what.to_owned());
    }

    fn rows(&self, _: u64) {}
}

/// Returns the problems that `flagstone check` reports.
fn problems(location: &Location) -> Vec<String> {
    let told = Told::default();
    match live(check(location, &told)) {
        Ok(_) => told.0.into_inner().unwrap(),
        Err(error) => vec![format!("{error:#}")],
    }
}

/// Asserts that a start and a check refuse the directory with the same words.
fn assert_refused(location: &Location, what: &str) {
    let found = problems(location);
    assert!(found.iter().any(|problem| problem.contains(what)), "{what}: {found:?}");
    let error = refused(location);
    assert!(error.contains(what), "{what}: {error}");
}

pub(super) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        match path.is_dir() {
            true => copy(&path, &to.join(name)),
            false => drop(fs::copy(&path, to.join(name)).unwrap()),
        }
    }
}

fn replace(target: &Path, by: &Path) {
    fs::remove_dir_all(target).unwrap();
    copy(by, target);
}

pub(super) fn exchange(a: &Path, b: &Path) {
    let aside = a.with_extension("aside");
    fs::rename(a, &aside).unwrap();
    fs::rename(b, a).unwrap();
    fs::rename(&aside, b).unwrap();
}

/// Returns a directory of 100 keys, stopped cleanly or killed.
fn filled(is_clean: bool) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    write(&at(&root.path().join("data")), 0..100, is_clean);
    root
}

#[test]
fn no_flipped_bit_of_flagstone_json_is_believed() {
    let place = Place::local("/nowhere").unwrap();
    let mut manifest = Manifest::of(&Layout::new(2, 77));
    (manifest.identified, manifest.epoch) = (true, 5);
    let written = live(async {
        let root = tempfile::tempdir().unwrap();
        let store = Place::local(root.path()).unwrap();
        let stored = manifest.store(&store).await.unwrap();
        let text = fs::read(root.path().join("flagstone.json")).unwrap();
        assert_eq!(Manifest::read(&store).await.unwrap(), Some(stored.clone()));
        (stored, text)
    });
    for bit in 0..written.1.len() * 8 {
        let mut text = written.1.clone();
        text[bit / 8] ^= 1 << (bit % 8);
        if let Ok(read) = Manifest::decode(&place, &text) {
            // Blanks between the fields, or the case of a hexadecimal digit.
            assert_eq!(read, written.0, "bit {bit}");
        }
    }
    for length in 0..written.1.len() - 2 {
        assert!(Manifest::decode(&place, &written.1[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn shards_in_the_place_of_others_are_refused() {
    for is_clean in [true, false] {
        let root = filled(is_clean);
        let data = root.path().join("data");
        exchange(&data.join("shard-0"), &data.join("shard-1"));
        assert_refused(&at(&data), "shard-0 is in the place of another one: it is shard 1");
        exchange(&data.join("shard-0"), &data.join("shard-1"));
        assert_eq!(keys(&at(&data)), Ok(100));
        // A missing shard is not created anew.
        fs::rename(data.join("shard-1"), root.path().join("away")).unwrap();
        assert!(problems(&at(&data)).iter().any(|p| p.contains("shard-1 has no identity")));
        assert!(refused(&at(&data)).contains("shard-1/db is missing, or empty"));
        let _ = fs::remove_dir_all(data.join("shard-1"));
        fs::rename(root.path().join("away"), data.join("shard-1")).unwrap();
        assert_eq!(keys(&at(&data)), Ok(100));
    }
}

#[test]
fn shards_of_another_directory_are_refused() {
    let (one, other) = (filled(true), filled(true));
    let data = one.path().join("data");
    replace(&data.join("shard-1"), &other.path().join("data/shard-1"));
    assert_refused(&at(&data), "shard-1 is a shard of another data directory");
    let (one, other) = (filled(false), filled(false));
    let data = one.path().join("data");
    replace(&data.join("journal"), &other.path().join("data/journal"));
    assert_refused(&at(&data), "is the journal of another data directory");
}

#[test]
fn a_changed_flagstone_json_is_refused_even_with_the_right_checksum() {
    let root = filled(true);
    let data = root.path().join("data");
    let store = Place::local(&data).unwrap();
    let change = |change: &dyn Fn(&mut Manifest)| {
        live(async {
            let mut manifest = manifest_of(&store).await.unwrap();
            change(&mut manifest);
            manifest.store(&store).await.unwrap();
        });
    };
    change(&|manifest| manifest.seed ^= 1);
    assert_refused(&at(&data), "has rows of another seed");
    change(&|manifest| manifest.seed ^= 1);
    change(&|manifest| manifest.created = 1);
    assert!(problems(&at(&data)).iter().any(|p| p.contains("but flagstone.json has 1")));
    assert!(refused(&at(&data)).contains("shard-1 is there, but flagstone.json has 1 shards"));
    change(&|manifest| manifest.created = 2);
    change(&|manifest| manifest.id ^= 1);
    assert_refused(&at(&data), "is a shard of another data directory");
    change(&|manifest| manifest.id ^= 1);
    assert_eq!(keys(&at(&data)), Ok(100));
}

/// Removes the identities, as in a directory of an earlier version.
fn forget_identities(data: &Path, shards: &[u16]) {
    let store = Place::local(data).unwrap();
    live(async {
        let opened = open(&at(data)).await.unwrap();
        for id in shards {
            let engine = opened.engines().remove(usize::from(*id));
            let row = opened.shards.iter().map(|s| s.id).find(|n| n == id).unwrap();
            let (key, _) = manifest_of(&store).await.unwrap().identity(row).row();
            engine.write(vec![(key, None)]).await.unwrap();
            engine.flush().await.unwrap();
        }
        opened.close().await.unwrap();
    });
}

#[test]
fn a_directory_of_an_earlier_version_gets_identities_at_its_first_start() {
    let root = filled(true);
    let data = root.path().join("data");
    let json = data.join("flagstone.json");
    let manifest = live(manifest_of(&Place::local(&data).unwrap())).unwrap();
    let earlier = format!(
        "{{\"format\":1,\"shards\":2,\"seed\":{},\"salt\":{}}}",
        manifest.seed, manifest.salt
    );
    forget_identities(&data, &[0, 1]);
    fs::write(&json, &earlier).unwrap();
    assert_eq!(problems(&at(&data)), Vec::<String>::new());
    assert_eq!(keys(&at(&data)), Ok(100));
    assert!(fs::read_to_string(&json).unwrap().contains("\"identified\": true"));
    // The start was interrupted when one shard had its identity, but flagstone.json did not say so.
    forget_identities(&data, &[1]);
    assert!(refused(&at(&data)).contains("shard-1 has no identity"));
    fs::write(&json, &earlier).unwrap();
    assert_eq!(keys(&at(&data)), Ok(100));
    exchange(&data.join("shard-0"), &data.join("shard-1"));
    assert_refused(&at(&data), "shard-0 is in the place of another one");
}

#[test]
fn a_branch_has_an_identity_of_its_own() {
    let root = filled(true);
    let (data, made) = (root.path().join("data"), root.path().join("made"));
    live(async {
        let id = take_stopped(&at(&data)).await.unwrap().id;
        let (from, to) = (Place::local(&data).unwrap(), Place::local(&made).unwrap());
        branch(&from, &id, &to).await.unwrap();
    });
    assert_eq!(problems(&at(&made)), Vec::<String>::new());
    // Before its first start its shards carry the parent's identity, but each with its own number.
    exchange(&made.join("shard-0"), &made.join("shard-1"));
    assert_refused(&at(&made), "shard-0 is in the place of another one");
    exchange(&made.join("shard-0"), &made.join("shard-1"));
    assert_eq!((keys(&at(&made)), keys(&at(&data))), (Ok(100), Ok(100)));
    replace(&made.join("shard-0"), &data.join("shard-0"));
    assert_refused(&at(&made), "shard-0 is a shard of another data directory");
}

#[test]
fn an_older_copy_of_the_journal_is_refused() {
    let root = filled(true);
    let (data, older) = (root.path().join("data"), root.path().join("older"));
    copy(&data.join("journal"), &older);
    write(&at(&data), 100..200, false);
    // The shards have nothing of the second life.
    let newest = root.path().join("newest");
    copy(&data.join("journal"), &newest);
    replace(&data.join("journal"), &older);
    assert_refused(&at(&data), "it ends in epoch 1, but epoch 2 was begun");
    fs::remove_dir_all(data.join("journal")).unwrap();
    assert_refused(&at(&data), "but the journal ends at 0");
    let _ = fs::remove_dir_all(data.join("journal"));
    copy(&newest, &data.join("journal"));
    assert_eq!(keys(&at(&data)), Ok(200));
    // It was stopped cleanly, so the journal may be missing, but must not be an older one.
    replace(&data.join("journal"), &newest);
    assert_refused(&at(&data), "older");
    fs::remove_dir_all(data.join("journal")).unwrap();
    assert_eq!(keys(&at(&data)), Ok(200));
}

#[test]
fn older_copies_of_all_shards_without_a_journal_are_refused() {
    let root = filled(true);
    let (data, older) = (root.path().join("data"), root.path().join("older"));
    copy(&data, &older);
    write(&at(&data), 100..200, true);
    for shard in ["shard-0", "shard-1"] {
        replace(&data.join(shard), &older.join(shard));
    }
    fs::remove_dir_all(data.join("journal")).unwrap();
    assert_refused(&at(&data), "was closed in epoch 1 of the journal, but epoch 2 was begun later");
    // Together with their own flagstone.json they are a backup.
    fs::copy(older.join("flagstone.json"), data.join("flagstone.json")).unwrap();
    let _ = fs::remove_dir_all(data.join("journal"));
    assert_eq!(keys(&at(&data)), Ok(100));
}

#[test]
fn objects_of_the_newest_epoch_are_missed() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let location: Location = Place::within(store.clone(), "data".into(), "memory:").into();
    write(&location, 0..100, true);
    write(&location, 100..200, false);
    let journal = location.journal();
    let newest = live(crate::place::sizes(&journal)).unwrap();
    let epoch = |name: &str| name.split('/').next().unwrap().to_owned();
    let last = newest.keys().map(|name| epoch(name)).max().unwrap();
    live(async {
        for name in newest.keys().filter(|name| epoch(name) == last) {
            store.delete(&journal.path(name)).await.unwrap();
        }
    });
    assert_refused(&location, "was begun");
}

/// A directory in a bucket.
struct InBucket {
    store: Arc<dyn ObjectStore>,
    location: Location,
}

impl InBucket {
    fn filled() -> Self {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let location: Location = Place::within(store.clone(), "data".into(), "memory:").into();
        write(&location, 0..100, true);
        Self { store, location }
    }

    /// Returns the objects below a prefix, by the rest of their names.
    fn below(&self, prefix: &str) -> Vec<(String, Bytes)> {
        live(async {
            let mut found = Vec::new();
            let mut listed = self.store.list(Some(&prefix.into()));
            while let Some(meta) = listed.try_next().await.unwrap() {
                let object = self.store.get(&meta.location).await.unwrap();
                let name = meta.location.as_ref().strip_prefix(prefix).unwrap().to_owned();
                found.push((name, object.bytes().await.unwrap()));
            }
            found
        })
    }

    /// Puts objects below a prefix, in place of those that are there.
    fn replace(&self, prefix: &str, objects: Vec<(String, Bytes)>) {
        let there = self.below(prefix);
        live(async {
            for (name, _) in there {
                self.store.delete(&format!("{prefix}{name}").into()).await.unwrap();
            }
            for (name, object) in objects {
                let at = format!("{prefix}{name}").into();
                self.store.put(&at, object.into()).await.unwrap();
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Manifest)) {
        live(async {
            let place = &self.location.store;
            let mut manifest = manifest_of(place).await.unwrap();
            change(&mut manifest);
            self.store.delete(&place.path("flagstone.json")).await.unwrap();
            manifest.store(place).await.unwrap();
        });
    }
}

#[test]
fn exchanged_and_foreign_prefixes_of_a_bucket_are_refused() {
    let bucket = InBucket::filled();
    let (zero, one) = (bucket.below("data/shard-0"), bucket.below("data/shard-1"));
    bucket.replace("data/shard-0", one.clone());
    bucket.replace("data/shard-1", zero.clone());
    assert_refused(&bucket.location, "shard-0 is in the place of another one: it is shard 1");
    bucket.replace("data/shard-0", zero);
    bucket.replace("data/shard-1", Vec::new());
    assert!(problems(&bucket.location).iter().any(|p| p.contains("shard-1 has no identity")));
    assert!(refused(&bucket.location).contains("shard-1/db is missing, or empty"));
    bucket.replace("data/shard-1", InBucket::filled().below("data/shard-1"));
    assert_refused(&bucket.location, "shard-1 is a shard of another data directory");
    bucket.replace("data/shard-1", one);
    let journal = bucket.below("data/journal");
    bucket.replace("data/journal", InBucket::filled().below("data/journal"));
    assert_refused(&bucket.location, "it is of the journal of another data directory");
    bucket.replace("data/journal", journal);
    assert_eq!(keys(&bucket.location), Ok(100));
}

#[test]
fn a_changed_flagstone_json_in_a_bucket_is_refused() {
    let bucket = InBucket::filled();
    bucket.change(|manifest| manifest.seed ^= 1);
    assert_refused(&bucket.location, "has rows of another seed");
    bucket.change(|manifest| manifest.seed ^= 1);
    bucket.change(|manifest| manifest.created = 1);
    assert_refused(&bucket.location, "is one of 2 shards, but flagstone.json has 1");
    bucket.change(|manifest| manifest.created = 3);
    assert!(problems(&bucket.location).iter().any(|p| p.contains("but flagstone.json has 3")));
    assert!(refused(&bucket.location).contains("shard-2/db is missing, or empty"));
    bucket.change(|manifest| manifest.created = 2);
    let json = bucket.location.store.path("flagstone.json");
    let text = live(async { bucket.store.get(&json).await.unwrap().bytes().await.unwrap() });
    for bit in [3, 200, 8 * text.len() / 2, 8 * text.len() - 30] {
        let mut damaged = text.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        bucket.replace("data/flagstone.json", vec![(String::new(), damaged.into())]);
        assert_refused(&bucket.location, "flagstone.json is damaged");
    }
    bucket.replace("data/flagstone.json", vec![(String::new(), text)]);
    assert_eq!(keys(&bucket.location), Ok(100));
}

#[test]
fn no_flipped_bit_of_a_manifest_in_a_bucket_is_believed() {
    let bucket = InBucket::filled();
    let is_manifest = |(name, _): &(String, Bytes)| name.ends_with(".manifest");
    let manifests = bucket.below("data/shard-0");
    let (name, text) = manifests.into_iter().filter(is_manifest).max().unwrap();
    let at = format!("data/shard-0{name}");
    for bit in [100, 8 * text.len() / 3, 8 * text.len() / 2, 8 * text.len() - 100] {
        let mut damaged = text.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        bucket.replace(&at, vec![(String::new(), damaged.into())]);
        assert_refused(&bucket.location, "its checksum is wrong");
    }
    bucket.replace(&at, vec![(String::new(), text)]);
    assert_eq!(keys(&bucket.location), Ok(100));
}

#[test]
fn a_deleted_lock_file_lets_no_process_in() {
    let root = filled(true);
    let data = root.path().join("data");
    live(async {
        let opened = open(&at(&data)).await.unwrap();
        fs::remove_file(data.join("lock")).unwrap();
        assert!(is_open(&data).unwrap());
        let error = open(&at(&data)).await.err().map(|error| format!("{error:#}"));
        assert!(error.as_ref().is_some_and(|e| e.contains("is in use by another")), "{error:?}");
        let error = check(&at(&data), &Told::default()).await.unwrap_err().to_string();
        assert!(error.contains("is in use by another"), "{error}");
        opened.close().await.unwrap();
        assert!(!is_open(&data).unwrap());
    });
    assert_eq!(keys(&at(&data)), Ok(100));
}

#[test]
fn other_users_may_not_read_a_directory() {
    let root = filled(true);
    let data = root.path().join("data");
    let mode = |name: &str| fs::metadata(data.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("flagstone.json"), mode("journal")), (0o700, 0o600, 0o700));
    // Permissions that the operator has widened stay.
    fs::set_permissions(&data, fs::Permissions::from_mode(0o750)).unwrap();
    assert_eq!(keys(&at(&data)), Ok(100));
    assert_eq!((mode(""), mode("flagstone.json")), (0o750, 0o600));
}
