//! Another number of shards, and the remains of an interrupted change.

use super::*;

#[test]
fn shards_can_become_more_and_fewer() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut dir = fresh(root.path(), &mut number);
    let mut first = world(&dir, no_images());
    some_of_everything(&mut first, 1);
    (0..SHARDS).for_each(|shard| first.hand_over(shard, None));
    some_of_everything(&mut first, 2);
    rename(&mut first, (0, b"{t}hash"), (1, b"{t}moved"));
    // A dead generation whose rows are not swept, and a journal with a tail.
    first.flush_db(0);
    first.set(0, b"s1", b"again", 0);
    first.commit();
    let model = first.model.clone();
    let image = first.probe.now("killed");
    drop(first);
    image.unpack(&dir);
    let keys: usize = model.dbs.iter().map(|db| db.len()).sum();
    for shards in [7, 1, SHARDS] {
        let to = fresh(root.path(), &mut number);
        let mut old = options(&dir, 3);
        old.shards = None;
        let place = Place::local(&to).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let copy = |old: OpenOptions, place: Place| async move {
            reshard(old, place, shards, Clock::default(), &|_| ()).await
        };
        let (done, locks) = runtime.block_on(copy(old.clone(), place.clone())).unwrap();
        assert!(done.keys >= keys as u64, "{done:?}");
        // Nobody writes to the old one until the caller has exchanged the two.
        assert!(is_open(&dir).unwrap());
        drop(locks);
        assert!(!is_open(&dir).unwrap());
        let again = runtime.block_on(copy(old, place)).unwrap_err();
        assert!(again.to_string().contains("is not empty"), "{again}");
        dir = to;
    }
    let mut last = World::open(&dir, model, no_images());
    last.verify("with other shards");
    last.settle();
    last.verify_no_garbage("with other shards");
}

#[test]
fn shards_in_a_bucket_can_become_others() {
    let root = tempfile::tempdir().unwrap();
    let bucket = Place::within(Arc::new(InMemory::new()), "a/prefix".into(), "memory");
    let dir = fresh(root.path(), &mut 0);
    let at = |store: &Place, journal: Option<&Place>| OpenOptions {
        store: store.clone(),
        journal: journal.cloned(),
        shards: None,
        ..options(&dir, 3)
    };
    let open = |options: OpenOptions, model: Model| {
        let probe = Arc::new(Probe::new(&dir, model.clone(), no_images()));
        let same = |place: &Place| Ok(place.clone());
        World::open_on(options, model, probe, Arc::new(RealDisk), Arc::new(same)).unwrap()
    };
    let log = bucket.join("log");
    let mut old = at(&bucket.join("old"), Some(&log));
    let mut first = open(old.clone(), model(3));
    some_of_everything(&mut first, 1);
    (0..SHARDS).for_each(|shard| first.hand_over(shard, None));
    some_of_everything(&mut first, 2);
    first.set(0, b"s1", b"again", 0);
    first.commit();
    first.journal.sync_now().unwrap();
    let model = first.model.clone();
    // Like a kill: nothing is closed.
    drop(first);
    let mut stores = vec![bucket.join("new"), Place::local(&dir).unwrap(), bucket.join("last")];
    for (to, shards) in stores.iter().zip([7, 1, SHARDS]) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let copy = reshard(old, to.clone(), shards, Clock::default(), &|_| ());
        runtime.block_on(copy).unwrap();
        old = at(to, None);
    }
    let mut last = open(at(&stores.remove(2), None), model);
    last.verify("with other shards");
    last.close();
}

#[test]
fn an_interrupted_reshard_leaves_no_data_directory() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let dir = fresh(root.path(), &mut number);
    let mut first = world(&dir, no_images());
    some_of_everything(&mut first, 1);
    let model = first.model.clone();
    first.close();
    let to = fresh(root.path(), &mut number);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let place = Place::local(&to).unwrap();
    // Interrupts it in the middle of the rows.
    let stop = |done: flagstone_storage::directory::Resharded| assert_eq!(done.rows, 0, "stopped");
    let work = reshard(options(&dir, 3), place, 5, Clock::default(), &stop);
    let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(work)));
    assert!(stopped.is_err());
    drop(runtime);
    assert!(to.join("shard-0").is_dir() && !to.join("flagstone.json").exists());
    assert!(World::try_open(&to, model.clone(), no_images()).is_err(), "it is not whole");
    World::open(&dir, model, no_images()).verify("the old one");
}
