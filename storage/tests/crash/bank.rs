//! Transfers between accounts, each one record that touches all shards. After every change of the
//! journal, on its disk or in its bucket, and of the engines' stores, the process may be killed or
//! the power lost. A power loss takes the unsynced bytes of a journal on a disk; for a journal in a
//! bucket it is like a kill.

use crate::bucket::Bucket;
use crate::image::Probe;
use crate::model::{Model, V};
use crate::store::Watched;
use crate::world::{SHARDS, World, fresh, options};
use flagstone_storage::journal::{Disk, File};
use flagstone_storage::place::Place;
use flagstone_storage::slot::slot_of;
use flagstone_storage::value::{Str, Value};
use object_store::memory::InMemory;
use sim_disk::{Handle, Rng, SimDisk};
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[allow(dead_code, reason = "the journal's own tests use the rest")]
#[path = "../../src/journal/tests/sim_disk.rs"]
mod sim_disk;

const ACCOUNTS_OF_A_SHARD: usize = 3;
const INITIAL: i64 = 1000;
const TRANSFERS: usize = 40;
const NOW: u64 = 1_800_000_000_000;

type Stores = BTreeMap<PathBuf, Arc<InMemory>>;

/// State of the media before a change, and the numbers of transfers begun and acknowledged by then.
struct Point {
    number: u64,
    disk: Arc<SimDisk>,
    stores: Stores,
    begun: usize,
    appended: usize,
    durable: usize,
}

/// The journal's disk or bucket and the engines' stores.
#[derive(Default)]
struct Media {
    in_bucket: bool,
    disk: Arc<SimDisk>,
    stores: Mutex<Stores>,
    /// Locked while a point is taken, so that the disk does not change.
    changing: Mutex<()>,
    recording: AtomicBool,
    points: Mutex<Vec<Point>>,
    begun: AtomicUsize,
    appended: AtomicUsize,
    durable: AtomicUsize,
}

fn forks(stores: &Stores) -> Stores {
    stores.iter().map(|(name, store)| (name.clone(), Arc::new(store.fork()))).collect()
}

impl Media {
    fn of(in_bucket: bool, disk: Arc<SimDisk>, stores: Stores) -> Arc<Self> {
        Arc::new(Self { in_bucket, disk, stores: Mutex::new(stores), ..Self::default() })
    }

    fn take_point(&self, number: u64) {
        if !self.recording.load(Ordering::SeqCst) {
            return;
        }
        let _still = self.changing.lock().unwrap();
        let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
        let point = Point {
            number,
            appended: count(&self.appended),
            durable: count(&self.durable),
            disk: self.disk.copy(),
            stores: forks(&self.stores.lock().unwrap()),
            begun: count(&self.begun),
        };
        self.points.lock().unwrap().push(point);
    }

    /// Opens a world on the media; `dir` has the manifest only.
    fn open(self: &Arc<Self>, dir: &Path, model: Model) -> World {
        let media = self.clone();
        let pick = move |number| {
            media.take_point(number);
            false
        };
        let probe = Arc::new(Probe::new(dir, model.clone(), Box::new(pick)));
        let (media, watch) = (self.clone(), probe.clone());
        let store = move |place: &Place| -> anyhow::Result<Place> {
            let name = PathBuf::from(place.dir().unwrap().file_name().unwrap());
            let store = media.stores.lock().unwrap().entry(name).or_default().clone();
            let watched = Arc::new(Watched::new(store, watch.clone()));
            Ok(place.through(watched))
        };
        let disk = Watching { media: self.clone(), probe: probe.clone() };
        // Segments are short, and large records have parts.
        let options = flagstone_storage::directory::OpenOptions {
            segment_bytes: 8192,
            // A busy machine may take long.
            store_timeout: Duration::from_secs(10),
            journal: self.in_bucket.then(|| self.bucket(&probe)),
            ..options(dir, model.dbs.len() as u32)
        };
        World::open_on(options, model, probe, Arc::new(disk), Arc::new(store)).unwrap()
    }
}

impl Media {
    /// Returns the bucket of the journal; each change of it is a point.
    fn bucket(self: &Arc<Self>, probe: &Arc<Probe>) -> Place {
        let objects = self.stores.lock().unwrap().entry("journal".into()).or_default().clone();
        let (media, probe) = (self.clone(), probe.clone());
        let change = move |what: &str, make: &mut dyn FnMut()| {
            probe.point(|| format!("before {what}"));
            let _one = media.changing.lock().unwrap();
            make();
        };
        let bucket = Bucket { objects, change: Arc::new(change) };
        Place::within(Arc::new(bucket), "journal".into(), "memory")
    }
}

/// The simulated disk; each change of it is a point.
#[derive(Clone)]
struct Watching {
    media: Arc<Media>,
    probe: Arc<Probe>,
}

struct WatchedFile {
    file: Arc<dyn File>,
    watching: Watching,
}

impl Watching {
    fn change<R>(&self, what: &str, change: impl FnOnce(&Handle) -> R) -> R {
        self.probe.point(|| format!("before {what}"));
        let _one = self.media.changing.lock().unwrap();
        change(&Handle(self.media.disk.clone()))
    }

    fn file(&self, file: io::Result<Arc<dyn File>>) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(WatchedFile { file: file?, watching: self.clone() }))
    }
}

/// The directory's location does not matter.
fn place(path: &Path) -> PathBuf {
    Path::new("/journal").join(path.file_name().unwrap())
}

impl Disk for Watching {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, _dir: &Path) -> io::Result<Vec<String>> {
        Handle(self.media.disk.clone()).list(Path::new("/journal"))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.file(Handle(self.media.disk.clone()).open(&place(path)))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn File>> {
        self.file(self.change("create", |disk| disk.create(&place(path))))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change("rename", |disk| disk.rename(&place(from), &place(to)))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.change("remove", |disk| disk.remove(&place(path)))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.change("sync of names", |disk| disk.sync_dir(dir))
    }
}

impl File for WatchedFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn write_all_at(&self, slices: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.watching.change("write", |_| self.file.write_all_at(slices, offset))
    }

    fn sync(&self) -> io::Result<()> {
        self.watching.change("sync", |_| self.file.sync())
    }
}

/// The bank: an open world, and the model after each number of transfers.
struct Bank {
    world: World,
    media: Arc<Media>,
    accounts: Vec<Vec<Vec<u8>>>,
    models: Vec<Model>,
    rng: Rng,
}

/// Returns a name on a shard that begins with `head`.
fn name_on(world: &World, shard: u16, head: &str, mut skip: usize) -> Vec<u8> {
    let layout = world.partition.store.layout();
    let names = (0u32..).map(|n| format!("{head}:{n}").into_bytes());
    let mut names = names.filter(|name| layout.shard_of(slot_of(name)) == shard);
    loop {
        let name = names.next().unwrap();
        if skip == 0 {
            return name;
        }
        skip -= 1;
    }
}

fn balance(model: &Model, account: &[u8]) -> i64 {
    String::from_utf8(model.string(0, account)).unwrap().parse().unwrap()
}

impl Bank {
    fn open(dir: &Path, in_bucket: bool) -> Self {
        let media = Media::of(in_bucket, Arc::default(), Stores::new());
        let mut model = Model { now_ms: NOW, ..Model::default() };
        model.dbs.resize_with(1, Default::default);
        let mut world = media.open(dir, model);
        let accounts: Vec<Vec<_>> = (0..SHARDS)
            .map(|shard| {
                (0..ACCOUNTS_OF_A_SHARD).map(|n| name_on(&world, shard, "account", n)).collect()
            })
            .collect();
        for account in accounts.iter().flatten() {
            world.set(0, account, INITIAL.to_string().as_bytes(), 0);
        }
        world.partition.commit(NOW).unwrap();
        world.journal.sync_now().unwrap();
        media.recording.store(true, Ordering::SeqCst);
        let models = vec![world.model.clone()];
        Self { world, media, accounts, models, rng: Rng::new(7) }
    }

    fn account(&mut self, shard: usize) -> Vec<u8> {
        self.accounts[shard][self.rng.below(ACCOUNTS_OF_A_SHARD as u64) as usize].clone()
    }

    /// Transfers an amount; source, target and receipt are on three shards.
    fn transfer(&mut self) {
        let number = self.models.len();
        let first = self.rng.below(u64::from(SHARDS)) as usize;
        let shard = |n: usize| (first + n) % usize::from(SHARDS);
        let (source, target) = (self.account(shard(0)), self.account(shard(1)));
        let receipt = receipt(&self.world, number, shard(2) as u16);
        let amount = 1 + self.rng.below(90) as i64;
        let model = &self.world.model;
        let padding = if number.is_multiple_of(5) { 5000 } else { self.rng.below(300) as usize };
        let writes = [
            (receipt, format!("{amount} {}", "x".repeat(padding))),
            (source.clone(), (balance(model, &source) - amount).to_string()),
            (target.clone(), (balance(model, &target) + amount).to_string()),
        ];
        self.media.begun.store(number, Ordering::SeqCst);
        if number.is_multiple_of(2) {
            self.by_round(&writes)
        } else {
            self.by_coordinator(&writes)
        }
        self.media.appended.store(number, Ordering::SeqCst);
        self.models.push(self.world.model.clone());
    }

    fn by_round(&mut self, writes: &[(Vec<u8>, String)]) {
        for (key, value) in writes {
            self.world.set(0, key, value.as_bytes(), 0);
        }
        assert!(self.world.partition.commit(NOW).unwrap());
    }

    /// Writes like a worker that was lent the keys of others.
    fn by_coordinator(&mut self, writes: &[(Vec<u8>, String)]) {
        for (key, _) in writes {
            self.world.run(|store| store.entry(0, key).map(|_| ()));
        }
        let world = &mut self.world;
        world.partition.commit(NOW).unwrap();
        world.holds += 1;
        let mut space = world.partition.store.workspace(&world.partition.store.generations());
        for (key, _) in writes {
            space.adopt(0, world.partition.store.lend(0, key).expect("hot"));
        }
        world.partition.granted(world.holds);
        space.begin(NOW, true);
        for (key, value) in writes {
            space.entry_mut(0, key).expect("lent").value = Value::Str(Str::new(value.as_bytes()));
            let item = (Arc::new(V::Str(value.clone().into_bytes())), 0);
            world.model.dbs[0].insert(key.clone(), item);
        }
        let sealed = space.seal();
        assert_eq!(sealed.shards().len(), usize::from(SHARDS), "the record touches all shards");
        let body = sealed.body();
        let lsn = world.journal.append(NOW, &sealed.shards(), &[&body]).unwrap();
        for (db, entry) in space.drain() {
            world.partition.store.give_back(db, entry, true);
        }
        world.partition.merge(lsn, &body);
        world.partition.note_lsn(lsn);
        world.partition.released(world.holds);
    }

    fn sync(&mut self) {
        self.world.journal.sync_now().unwrap();
        let appended = self.media.appended.load(Ordering::SeqCst);
        self.media.durable.store(appended, Ordering::SeqCst);
    }

    fn work(&mut self) {
        for n in 0..TRANSFERS {
            self.transfer();
            if n % 3 == 2 {
                self.sync();
            }
            // Not all of it is synced at that point.
            if n % 6 == 4 {
                let shard = (n / 6) as u16 % SHARDS;
                self.world.hand_over(shard, (n % 12 == 4).then_some(3));
                // Later transfers are in the next flush, or in the journal alone.
                self.transfer();
                self.world.flush(shard);
            }
            if n % 16 == 15 {
                self.world.evict();
            }
        }
    }
}

fn receipt(world: &World, number: usize, shard: u16) -> Vec<u8> {
    name_on(world, shard, &format!("receipt{number}"), 0)
}

/// Returns the number of transfers in a world, by their receipts.
fn transfers_in(world: &mut World, most: usize, at: &str) -> usize {
    let mut found = Vec::new();
    for number in 1..=most {
        let shards: Vec<bool> = (0..SHARDS)
            .map(|shard| {
                let name = receipt(world, number, shard);
                world.get(0, &name).is_some()
            })
            .collect();
        found.push(shards.contains(&true));
    }
    let n = found.iter().filter(|there| **there).count();
    assert!(found[..n].iter().all(|there| *there), "{at}: a transfer is missing before {n}");
    n
}

/// Opens the state of a point. The number of its transfers must be between those acknowledged and
/// those begun, and everything else must follow from it.
fn check(
    point: &Point,
    in_bucket: bool,
    power_lost: bool,
    models: &[Model],
    accounts: &[Vec<u8>],
    dir: &Path,
) {
    let mut rng = Rng::new(point.number);
    let disk = if power_lost { point.disk.after_power_loss(&mut rng) } else { point.disk.copy() };
    let (what, acked) = match power_lost {
        true => ("power lost", point.durable),
        false if in_bucket => ("killed", point.durable),
        false => ("killed", point.appended),
    };
    let at = format!("{what} before change {}, {} begun", point.number, point.begun);
    let media = Media::of(in_bucket, disk, forks(&point.stores));
    let mut world = media.open(dir, models[0].clone());
    let found = transfers_in(&mut world, point.begun, &at);
    assert!(found >= acked, "{at}: {acked} transfers were acknowledged, {found} are there");
    world.model = models[found].clone();
    let held = accounts.iter().map(|account| match world.get(0, account) {
        Some((V::Str(text), _)) => String::from_utf8(text).unwrap().parse::<i64>().unwrap(),
        other => panic!("{at}: an account holds {other:?}"),
    });
    assert_eq!(held.sum::<i64>(), INITIAL * accounts.len() as i64, "{at}: drift");
    world.verify(&at);
}

#[test]
fn no_money_appears_or_goes_wherever_a_transfer_is_cut_off() {
    cut_off_everywhere(false);
}

#[test]
fn nor_does_it_with_the_journal_in_a_bucket() {
    cut_off_everywhere(true);
}

fn cut_off_everywhere(in_bucket: bool) {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let dir = fresh(root.path(), &mut number);
    let mut bank = Bank::open(&dir, in_bucket);
    bank.work();
    bank.media.recording.store(false, Ordering::SeqCst);
    let points = std::mem::take(&mut *bank.media.points.lock().unwrap());
    let accounts = bank.accounts.concat();
    println!("{} points, {} transfers", points.len(), bank.models.len() - 1);
    assert!(points.len() >= 150, "{} points", points.len());
    std::thread::scope(|scope| {
        // Each thread spends more time waiting than working.
        for thread in 0..4 {
            let copy = fresh(root.path(), &mut number);
            let manifest = std::fs::read(dir.join("flagstone.json")).unwrap();
            let (points, models, accounts) = (&points, &bank.models, &accounts);
            scope.spawn(move || {
                for point in points.iter().skip(thread / 2).step_by(2) {
                    // The manifest is on a disk of its own, and each start writes it.
                    std::fs::write(copy.join("flagstone.json"), &manifest).unwrap();
                    check(point, in_bucket, thread % 2 == 0, models, accounts, &copy);
                }
            });
        }
    });
}
