//! Shards of a single server in a bucket that are split while the storage is in use, and while another server
//! takes the data over.

use crate::checkpoints::{open, open_with_lease, watched_place};
use crate::histories::DATABASES;
use crate::model::Model;
use crate::splits::set_all;
use crate::world::World;
use flagstone_storage::check::{Listener, check};
use flagstone_storage::directory::{Location, SplitError};
use flagstone_storage::place::Place;
use flagstone_storage::slot::SplitPlan;
use futures::TryStreamExt;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

fn model() -> Model {
    let mut model = Model { now_ms: 1_800_000_000_000, ..Model::default() };
    model.dbs.resize_with(DATABASES, Default::default);
    model
}

fn bucket() -> Location {
    Location::from(Place::within(Arc::new(InMemory::new()), "data".into(), "memory"))
}

/// Returns the directories of shards.
fn shard_dirs(world: &World, place: &Place) -> BTreeSet<String> {
    let store = place.store();
    let listing = async { store.list(Some(place.root())).try_collect::<Vec<_>>().await };
    let listed = world.block_on(listing).unwrap();
    let dir = |meta: &object_store::ObjectMeta| {
        let mut parts = meta.location.prefix_match(place.root())?;
        let name = parts.next()?.as_ref().to_owned();
        name.starts_with("shard-").then_some(name)
    };
    listed.iter().filter_map(dir).collect()
}

impl World {
    /// Splits a shard, which a server does that may have been taken over.
    fn try_split(&mut self, id: u16) -> Result<u16, SplitError> {
        let plan = SplitPlan::new(self.partition.store.layout(), id, None).unwrap();
        let engine = self.partition.shards[&id].engine().clone();
        let splitter = self.splitter.clone().unwrap();
        self.block_on(splitter.split(&engine, &plan)).map(|_| plan.into)
    }
}

/// After any request of a split a start finds one shard or two, and removes what nobody needs.
#[test]
fn a_split_in_a_bucket_may_be_cut_off_after_any_request() {
    for shard in [0, 1] {
        let (place, points) = watched_place();
        let location = Location::from(place);
        let mut world = open(&location, model());
        set_all(&mut world, 1);
        world.settle();
        set_all(&mut world, 2);
        world.journal.sync_now().unwrap();
        let before = world.model.clone();
        points.lock().unwrap().clear();
        world.split(shard, None);
        let images = std::mem::take(&mut *points.lock().unwrap());
        world.verify("behind the split");
        set_all(&mut world, 3);
        world.verify("behind further writes");
        world.journal.sync_now().unwrap();
        let (kept, later) = (images.len(), world.model.clone());
        assert!(kept > 15, "{kept} requests");
        points.lock().unwrap().clear();
        world.close();
        let last = points.lock().unwrap().first().cloned().unwrap();
        let mut found = BTreeSet::new();
        for (n, image) in images.into_iter().chain([last]).enumerate() {
            let at = format!("shard {shard}, request {n}");
            let place = Place::within(image, "".into(), "memory");
            let expected = if n == kept { later.clone() } else { before.clone() };
            let mut again = open(&place.clone().into(), expected.clone());
            found.insert(again.shards());
            again.verify(&at);
            assert_eq!(shard_dirs(&again, &place).len(), usize::from(again.shards()), "{at}");
            // The same one once more, or its lower half.
            again.split(shard, None);
            again.verify(&at);
            again.settle();
            again.verify_no_garbage(&at);
            again.close();
            let mut again = open(&place.into(), expected);
            again.verify(&at);
            again.close();
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [3, 4]);
    }
}

/// The former owner of the data goes on with a split: it fails, whichever shard it is of.
#[test]
fn a_server_that_was_taken_over_splits_nothing() {
    for shard in [0, 1] {
        let location = bucket();
        let mut former = open(&location, model());
        set_all(&mut former, 1);
        former.settle();
        former.hand_over(shard, None);
        former.flush(shard);
        let mut later = open(&location, former.model.clone());
        let refused = former.try_split(shard);
        assert!(refused.is_err(), "shard {shard}");
        later.verify("taken over");
        assert_eq!(later.shards(), 3);
        later.split(shard, None);
        set_all(&mut later, 2);
        let refused = former.try_split(shard);
        assert!(refused.is_err(), "shard {shard}, again");
        later.verify("split by the owner");
        let expected = later.model.clone();
        later.close();
        drop(former);
        let mut last = open(&location, expected);
        last.verify("at the end");
        assert_eq!((last.shards(), shard_dirs(&last, &location.store).len()), (4, 4));
        last.close();
    }
}

/// The owner splits a shard while its successor waits for its lease: the successor finds two.
#[test]
fn a_successor_finds_what_was_split_before_it_opened_the_engines() {
    for shard in [0, 2] {
        let location = bucket();
        let mut former = open(&location, model());
        set_all(&mut former, 1);
        former.settle();
        let (at, expected) = (location.clone(), former.model.clone());
        let journal = location.store.join("journal");
        let objects = |world: &World| {
            let store = journal.store();
            let all = async { store.list(Some(journal.root())).try_collect::<Vec<_>>().await };
            world.block_on(all).unwrap().len()
        };
        let before = objects(&former);
        let lease = Duration::from_secs(2);
        let waiting = std::thread::spawn(move || {
            let mut later = open_with_lease(&at, expected, lease);
            later.verify("behind the wait");
            (later.shards(), later.close())
        });
        // Its fence is in the journal, and it waits.
        while objects(&former) <= before {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(former.try_split(shard).unwrap(), 3);
        let (shards, ()) = waiting.join().unwrap();
        assert_eq!(shards, 4);
    }
}

/// Hears of no problem.
struct Nothing;

impl Listener for Nothing {
    fn problem(&self, what: &str) {
        panic!("{what}");
    }

    fn rows(&self, _: u64) {}
}

/// `flagstone.json` is a note: an older one, which a process wrote late, changes nothing.
#[test]
fn an_older_note_of_the_shards_changes_nothing() {
    let location = bucket();
    let mut world = open(&location, model());
    set_all(&mut world, 1);
    world.settle();
    let (store, note) = (location.store.store(), location.store.path("flagstone.json"));
    let read = async { store.get_opts(&note, Default::default()).await.unwrap().bytes().await };
    let older = world.block_on(read).unwrap();
    world.split(1, None);
    set_all(&mut world, 2);
    world.split(0, None);
    let expected = world.model.clone();
    world.close();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let put = store.put_opts(&note, older.into(), Default::default());
    runtime.block_on(put).unwrap();
    let report = runtime.block_on(check(&location, &Nothing)).unwrap();
    assert_eq!((report.shards, report.keys, report.problems), (5, 60, 0));
    let mut again = open(&location, expected);
    again.verify("with an older note");
    assert_eq!(again.shards(), 5);
    again.close();
}
