//! Damage to files of every kind: within seconds a start is refused, a read returns an error, or
//! everything is right. `scripts/damage` does the same to a server.

use super::identity_tests::{NOW, at, copy, exchange, live, open, value, write};
use super::*;
use crate::checkpoint::{Catalog, CheckpointSource, Quiet, restore, take};
use crate::store::{Fault, OrLoad};
use crate::value::Value;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Instant;
use tempfile::TempDir;

/// Time limit for a start with all reads.
const DEADLINE: Duration = Duration::from_secs(30);

/// Numbers of keys: after the first life, at a checkpoint, and in the end.
const FIRST: u32 = 20;
const TAKEN: u32 = 30;
const ALL: u32 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Damage {
    Flip,
    Cut,
    Delete,
    Swap,
    Older,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Refused,
    Error,
    Right,
}

/// Result of reading a directory: refused, or errors and wrong values.
struct Found {
    outcome: Outcome,
    wrong: Vec<String>,
}

/// Returns a directory of three lives, `data`, and its state after the first one, `older`.
fn made(is_clean: bool) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    write(&at(&data), 0..FIRST, true);
    copy(&data, &root.path().join("older"));
    write(&at(&data), FIRST..TAKEN, true);
    live(async {
        let opened = open(&at(&data)).await.unwrap();
        let source = CheckpointSource {
            store: opened.store.clone(),
            scratch: root.path().join("scratch"),
            layout: opened.layout.clone(),
            origin: opened.origin,
            journal: opened.journal.clone(),
            engines: opened.engines().into(),
            clock: Clock::default(),
        };
        take(&source, u64::MAX).await.unwrap();
        opened.close().await.unwrap();
    });
    write(&at(&data), TAKEN..ALL, is_clean);
    root
}

/// Opens a directory and reads all keys up to `keys`.
fn read(location: &Location, keys: u32) -> Found {
    live(async {
        let reading = read_all(location, keys);
        tokio::time::timeout(DEADLINE, reading).await.expect("an answer in time")
    })
}

async fn read_all(location: &Location, keys: u32) -> Found {
    let refused = Found { outcome: Outcome::Refused, wrong: Vec::new() };
    let Ok(opened) = open(location).await else { return refused };
    let (mut partitions, _locks) = opened.into_partitions(1, 1);
    let mut partition = partitions.remove(0);
    let mut found = Found { outcome: Outcome::Right, wrong: Vec::new() };
    let mut there = 0;
    for n in 0..keys {
        match get(&mut partition, format!("key{n}").as_bytes()).await {
            Ok(Some(read)) if read == value(n) => there += 1,
            Ok(read) => found.wrong.push(format!("key{n} has {:?} bytes", read.map(|v| v.len()))),
            Err(_) => found.outcome = Outcome::Error,
        }
    }
    let counted = partition.totals(0).0;
    if found.outcome == Outcome::Right && (counted, there) != (u64::from(keys), keys) {
        found.wrong.push(format!("{counted} keys are counted"));
    }
    found
}

async fn get(partition: &mut Partition, key: &[u8]) -> Result<Option<Vec<u8>>> {
    loop {
        partition.store.begin(NOW, true);
        let missed = match partition.store.peek(0, key) {
            Ok(Some(entry)) => match &entry.value {
                Value::Str(text) => match text.whole().or_load(0, key) {
                    Ok(text) => return Ok(Some(text.into_owned())),
                    Err(fault) => fault,
                },
                _ => return Ok(None),
            },
            Ok(None) => return Ok(None),
            Err(fault) => fault,
        };
        let Fault::Miss(need) = missed else { bail!("{missed:?}") };
        let plan = partition.plan_load(vec![*need])?;
        let loaded = plan.run(&tokio::runtime::Handle::current()).await;
        partition.finish_load(loaded)?;
    }
}

/// Returns the files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Damages a file; returns false if it cannot be damaged in this way.
fn damage(how: Damage, path: &Path, data: &Path, older: &Path, random: &mut StdRng) -> bool {
    let mut bytes = fs::read(path).unwrap();
    match how {
        Damage::Flip | Damage::Cut if bytes.is_empty() => return false,
        Damage::Flip => {
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(bytes.len(), |at| at + 1);
            let bit = random.random_range(0..8 * used);
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(path, bytes).unwrap();
        }
        Damage::Cut => {
            bytes.truncate(random.random_range(0..bytes.len()));
            fs::write(path, bytes).unwrap();
        }
        Damage::Delete => fs::remove_file(path).unwrap(),
        Damage::Swap => {
            let siblings = files(path.parent().unwrap());
            let other = siblings.iter().filter(|other| *other != path);
            let same = |other: &&PathBuf| other.extension() == path.extension();
            let Some(other) = other.clone().find(same).or(other.clone().next()) else {
                return false;
            };
            exchange(path, other);
        }
        Damage::Older => {
            let Ok(earlier) = fs::read(older.join(path.strip_prefix(data).unwrap())) else {
                return false;
            };
            if earlier == bytes {
                return false;
            }
            fs::write(path, earlier).unwrap();
        }
    }
    true
}

/// Damages each of the files that `is_one` selects in each way, in copies of a directory, and
/// passes the copies to `look`. Returns how often each outcome occurred.
fn damage_each(
    root: &Path,
    seed: u64,
    is_one: impl Fn(&str) -> bool,
    look: impl Fn(&Path) -> Found,
) -> BTreeMap<(Damage, Outcome), u32> {
    let (mut random, mut outcomes) = (StdRng::seed_from_u64(seed), BTreeMap::new());
    let (data, older) = (root.join("data"), root.join("older"));
    let names = files(&data);
    let names = names.iter().map(|path| path.strip_prefix(&data).unwrap().to_owned());
    for name in names.filter(|name| is_one(&name.to_string_lossy())) {
        for how in [Damage::Flip, Damage::Cut, Damage::Delete, Damage::Swap, Damage::Older] {
            let case = tempfile::tempdir().unwrap();
            let copied = case.path().join("data");
            copy(&data, &copied);
            if !damage(how, &copied.join(&name), &copied, &older, &mut random) {
                continue;
            }
            let begun = Instant::now();
            let found = look(&copied);
            assert_eq!(found.wrong, Vec::<String>::new(), "{how:?} of {}", name.display());
            assert!(begun.elapsed() < DEADLINE, "{how:?} of {}", name.display());
            *outcomes.entry((how, found.outcome)).or_insert(0) += 1;
        }
    }
    assert!(!outcomes.is_empty());
    println!("{outcomes:?}");
    outcomes
}

fn read_whole(data: &Path) -> Found {
    read(&at(data), ALL)
}

#[test]
fn damage_to_flagstone_json_and_the_floor_is_never_silent() {
    let root = made(true);
    let is_one = |name: &str| name == "flagstone.json" || name == "journal/floor";
    let outcomes = damage_each(root.path(), 1, is_one, read_whole);
    assert_eq!(outcomes.get(&(Damage::Flip, Outcome::Refused)), Some(&2), "{outcomes:?}");
}

#[test]
fn damage_to_the_journal_of_a_killed_server_is_never_silent() {
    let root = made(false);
    assert_eq!(read_whole_copy(root.path()).outcome, Outcome::Right);
    let is_one = |name: &str| name.ends_with(".seg") && name.starts_with("journal/");
    damage_each(root.path(), 2, is_one, |data| {
        let mut found = read_whole(data);
        // Damage to the last record cannot be told from a torn write.
        let last = format!("key{} has None bytes", ALL - 1);
        if found.wrong.first() == Some(&last) && found.wrong.len() <= 2 {
            found.wrong.clear();
        }
        found
    });
}

fn read_whole_copy(root: &Path) -> Found {
    let case = tempfile::tempdir().unwrap();
    let data = case.path().join("data");
    copy(&root.join("data"), &data);
    read_whole(&data)
}

#[test]
fn damage_to_checkpoints_is_never_silent() {
    let root = made(true);
    let restored = |data: &Path| {
        let to = data.with_file_name("restored");
        let target = Place::local(&to).unwrap();
        let done = live(restore(&at(data), &target, None, None, &Quiet));
        match done {
            Ok(_) => read(&at(&to), TAKEN),
            Err(_) => Found { outcome: Outcome::Refused, wrong: Vec::new() },
        }
    };
    let is_one = |name: &str| name.starts_with("checkpoints/");
    let outcomes = damage_each(root.path(), 3, is_one, restored);
    assert!(outcomes.contains_key(&(Damage::Flip, Outcome::Refused)), "{outcomes:?}");
    let all: BTreeSet<_> =
        live(Catalog::of(&Place::local(root.path().join("data")).unwrap()).list())
            .unwrap()
            .into_iter()
            .map(|taken| taken.id)
            .collect();
    assert_eq!(all.len(), 1);
}
