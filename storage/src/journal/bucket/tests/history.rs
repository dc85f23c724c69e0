//! Reads a journal and its archive by their objects.

use super::super::object::{ObjectHeader, Position};
use super::*;
use crate::journal::HistoryEnd;
use crate::journal::record::RecordHeader;
use object_store::ObjectStoreExt;

fn archive(client: &Arc<Client>) -> Place {
    Place::within(client.clone(), "node/journal-archive".into(), "sim")
}

fn archiving(client: &Arc<Client>) -> BucketOptions {
    BucketOptions { archive: Some(archive(client)), ..options(SyncMode::Always) }
}

/// Returns the records behind `after`, and their end, if none is missing.
async fn history(client: &Arc<Client>, after: Lsn) -> Option<(Vec<Lsn>, Lsn)> {
    let (found, end) = history_end(client, after).await;
    assert!(end.broken.is_some() || end.last.is_some());
    Some((found, end.last.filter(|_| end.broken.is_none())?))
}

/// Returns the records behind `after`, and how they end.
async fn history_end(client: &Arc<Client>, after: Lsn) -> (Vec<Lsn>, HistoryEnd) {
    let mut found = Vec::new();
    let mut collect = |record: Record| {
        found.push(record.lsn);
        Ok(())
    };
    let options = options(SyncMode::Always);
    let (journal, archive) = (place(client), archive(client));
    let range = (after, Lsn::MAX);
    let read = BucketJournal::read_history(&journal, &archive, &options, range, &mut collect);
    let end = read.await.unwrap();
    (found, end)
}

/// Returns what a check of the archive tells, and how many objects it has.
async fn checked(client: &Arc<Client>) -> (Vec<String>, u64) {
    let mut told = Vec::new();
    let (journal, archive, options) = (place(client), archive(client), options(SyncMode::Always));
    let mut tell = |what| told.push(what);
    let read = BucketJournal::check_archive(&journal, &archive, &options, &mut tell).await;
    let count = read.unwrap();
    (told, count)
}

/// Writes commits of one shard, one of which has several objects, and has most of them dropped.
async fn write(journal: &Running, commits: u64, flushed: Lsn) {
    for n in 0..commits {
        let body = vec![n as u8; if n == 7 { 9 << 20 } else { 100 }];
        let lsn = journal.append(&[0], &body).unwrap();
        journal.until_durable(lsn).await;
    }
    journal.flushed(&[0], flushed);
    let lsn = journal.append(&[0], b"says so").unwrap();
    journal.until_durable(lsn).await;
    eventually("what was dropped is in the archive", || {
        let state = journal.shared.state.lock().unwrap();
        state.doomed.is_empty() && !state.deleting
    })
    .await;
}

/// Runs several lives of a journal; the last one is still running.
async fn lives(client: &Arc<Client>) -> Running {
    for life in 0..3 {
        let recovery = BucketJournal::recover(place(client), archiving(client)).await.unwrap();
        let journal = Running::start(recovery).await.unwrap();
        let end = 20 * (life + 1);
        write(&journal, 19, end - 8).await;
        if life == 2 {
            return journal;
        }
        journal.kill();
    }
    unreachable!("the last life is returned");
}

#[test]
fn dropped_objects_are_read_from_the_archive_with_the_rest() {
    runtime().block_on(async {
        let sim = Sim::new(30);
        let client = sim.client(0);
        let journal = lives(&client).await;
        let there = journal.shared.state.lock().unwrap().stored.front().unwrap().before;
        assert!(there >= 50, "{there} were dropped");
        for after in [0, 1, 6, 7, 8, 12, 19, 20, 27, 31, 40, 52, 59, 60] {
            let found = history(&client, after).await;
            assert_eq!(found, Some(((after + 1..=60).collect(), 60)), "behind {after}");
        }
        // It goes on meanwhile.
        journal.append(&[0], b"more").unwrap();
        journal.until_durable(61).await;
        assert_eq!(history(&client, 60).await, Some((vec![61], 61)));
        journal.kill();
    });
}

#[test]
fn a_gap_in_the_archive_is_noticed() {
    runtime().block_on(async {
        let sim = Sim::new(31);
        let client = sim.client(0);
        lives(&client).await.kill();
        let archived = |name: &&String| name.starts_with("node/journal-archive/");
        let names = sim.names().await;
        // The first object of the second life.
        let second =
            names.iter().filter(archived).find(|name| name.contains("/00000000000000000002/"));
        sim.remove(second.unwrap()).await;
        for after in [0, 12, 19] {
            assert_eq!(history(&client, after).await, None, "behind {after}");
        }
        // The next commit could begin in the object that ends with 23, and in no earlier one.
        let found = history(&client, 23).await;
        assert_eq!(found, Some(((24..=60).collect(), 60)));
        for name in sim.names().await.iter().filter(archived) {
            sim.remove(name).await;
        }
        assert_eq!(history(&client, 23).await, None);
        assert_eq!(history(&client, 58).await, Some((vec![59, 60], 60)));
    });
}

#[test]
fn damage_in_the_archive_hides_only_moments_that_need_it() {
    runtime().block_on(async {
        let sim = Sim::new(39);
        let client = sim.client(0);
        lives(&client).await.kill();
        client.pace.store(1, Ordering::SeqCst);
        let (root, mut parts) = (archive(&client).root().clone(), 0);
        for number in 2..=12 {
            let path = Position { epoch: 2, number }.path(&root);
            let object = client.get(&path).await.unwrap().bytes().await.unwrap();
            let (_, records) = ObjectHeader::decode(&object).unwrap();
            let record = RecordHeader::decode(&records, options(SyncMode::Always).salt).unwrap();
            assert!(record.lsn > 20);
            parts += u32::from(record.parts > 1);
            for kind in ["damaged", "missing"] {
                if kind == "damaged" {
                    let mut damaged = object.to_vec();
                    damaged[20] ^= 1;
                    client.put(&path, damaged.into()).await.unwrap();
                } else {
                    sim.remove(path.as_ref()).await;
                }
                let at = format!("{kind} {number}");
                for after in [record.lsn, record.lsn + 1] {
                    let all = Some(((after + 1..=60).collect(), 60));
                    assert_eq!(history(&client, after).await, all, "{at}, behind {after}");
                }
                for after in [0, record.lsn - 2, record.lsn - 1] {
                    let (found, end) = history_end(&client, after).await;
                    assert!(end.broken.is_some(), "{at}, behind {after}");
                    if kind == "damaged" {
                        assert_eq!(end.last, Some(record.lsn - 1), "{at}, behind {after}");
                        assert_eq!(found, (after + 1..record.lsn).collect::<Vec<_>>(), "{at}");
                    }
                }
            }
            client.put(&path, object.into()).await.unwrap();
        }
        assert!(parts > 1, "a commit has several objects");
    });
}

#[test]
fn damage_in_the_archive_is_named_and_what_is_before_it_is_read() {
    runtime().block_on(async {
        let sim = Sim::new(37);
        let client = sim.client(0);
        lives(&client).await.kill();
        let names = sim.names().await;
        let root = archive(&client).root().clone();
        let of = |name: &String| Position::of(&name.as_str().into(), &root);
        let archived: BTreeMap<Position, String> =
            names.iter().filter_map(|name| Some((of(name)?, name.clone()))).collect();
        assert_eq!(checked(&client).await, (Vec::new(), archived.len() as u64));
        let (at, name) = archived.iter().filter(|(at, _)| at.epoch == 2).nth(3).unwrap();
        let path = at.path(&root);
        let object = client.get(&path).await.unwrap().bytes().await.unwrap();
        let mut damaged = object.to_vec();
        *damaged.last_mut().unwrap() ^= 1;
        client.put(&path, damaged.into()).await.unwrap();
        let (told, _) = checked(&client).await;
        assert!(told.len() == 1 && told[0].contains(name.as_str()), "{told:?}");
        let (found, end) = history_end(&client, 0).await;
        let last = end.last.unwrap();
        assert_eq!(found, (1..=last).collect::<Vec<_>>());
        assert!((20..60).contains(&last), "{end:?}");
        assert!(end.broken.unwrap().to_string().contains(name.as_str()));
        // Moments behind the damage are there for who begins behind it.
        assert_eq!(history(&client, 50).await, Some(((51..=60).collect(), 60)));
        sim.remove(name).await;
        let (told, _) = checked(&client).await;
        assert!(told.len() == 1 && told[0].contains(name.as_str()), "{told:?}");
        let (_, end) = history_end(&client, 0).await;
        assert!(end.broken.unwrap().to_string().contains(name.as_str()));
        // The oldest ones may have grown too old.
        for (_, name) in archived.range(..=*at) {
            if sim.names().await.contains(name) {
                sim.remove(name).await;
            }
        }
        assert_eq!(checked(&client).await.0, Vec::<String>::new());
    });
}

/// Puts the fence of an epoch at the number of a deleted object, as a sleeper would have done.
async fn put_late_fence(sim: &Sim, client: &Arc<Client>, at: Position) {
    let root = place(client).root().clone();
    let mut copied = None;
    for name in sim.names().await {
        let listed = Position::of(&name.as_str().into(), &root);
        let Some(listed) = listed.filter(|listed| listed.epoch == at.epoch) else { continue };
        let object = client.get(&listed.path(&root)).await.unwrap().bytes().await.unwrap();
        if let Ok((header, _)) = ObjectHeader::decode(&object)
            && header.is_fence()
        {
            copied = Some(ObjectHeader { at, nonce: 1, ..header });
        }
    }
    client.put(&at.path(&root), copied.unwrap().encode().into()).await.unwrap();
}

#[test]
fn a_deletion_that_is_repeated_puts_no_fence_into_the_archive() {
    runtime().block_on(async {
        let sim = Sim::new(35);
        let client = sim.client(0);
        let journal = lives(&client).await;
        let at = Position { epoch: 2, number: 4 };
        put_late_fence(&sim, &client, at).await;
        // The answer to the deletion was lost.
        let doomed = [at.path(place(&client).root())];
        journal.shared.archive(&doomed, &archive(&client)).await.unwrap();
        assert_eq!(history(&client, 0).await, Some(((1..=60).collect(), 60)));
        // An object that is not there yet is copied.
        sim.remove(at.path(archive(&client).root()).as_ref()).await;
        let newest = journal.shared.state.lock().unwrap().stored.back().unwrap().at;
        let doomed = [newest.path(place(&client).root())];
        journal.shared.archive(&doomed, &archive(&client)).await.unwrap();
        assert!(sim.names().await.contains(&newest.path(archive(&client).root()).to_string()));
        journal.kill();
    });
}

#[test]
fn a_late_fence_whose_number_is_gone_from_the_archive_is_passed() {
    runtime().block_on(async {
        let sim = Sim::new(36);
        let client = sim.client(0);
        lives(&client).await.kill();
        let at = Position { epoch: 2, number: 4 };
        let is_pruned = |name: &&String| {
            let archived = Position::of(&name.as_str().into(), archive(&client).root());
            archived.is_some_and(|archived| archived <= at)
        };
        for name in sim.names().await.iter().filter(is_pruned) {
            sim.remove(name).await;
        }
        let mut before = BTreeMap::new();
        for after in 20..60 {
            before.insert(after, history(&client, after).await);
        }
        assert!(before[&20].is_none() && before[&59].is_some());
        assert!(before.values().filter(|found| found.is_some()).count() > 20, "{before:?}");
        put_late_fence(&sim, &client, at).await;
        for (after, found) in before {
            assert_eq!(history(&client, after).await, found, "behind {after}");
        }
    });
}

#[test]
fn a_fence_that_landed_at_the_number_of_a_deleted_object_is_passed() {
    runtime().block_on(async {
        let sim = Sim::new(34);
        let client = sim.client(0);
        let journal = lives(&client).await;
        let at = Position { epoch: 2, number: 4 };
        assert!(sim.names().await.contains(&at.path(archive(&client).root()).to_string()));
        put_late_fence(&sim, &client, at).await;
        journal.kill();
        for after in [0, 12, 19, 23, 40, 59] {
            let found = history(&client, after).await;
            assert_eq!(found, Some(((after + 1..=60).collect(), 60)), "behind {after}");
        }
        let recovery = BucketJournal::recover(place(&client), archiving(&client)).await.unwrap();
        Running::start(recovery).await.unwrap().kill();
        assert_eq!(history(&client, 0).await, Some(((1..=60).collect(), 60)));
    });
}

#[test]
fn unneeded_objects_that_are_not_dropped_yet_are_read_in_place() {
    runtime().block_on(async {
        let sim = Sim::new(33);
        let client = sim.client(0);
        lives(&client).await.kill();
        let names = sim.names().await;
        let archived = names.iter().filter_map(|name| {
            let object = name.strip_prefix("node/journal-archive/")?;
            Some((Position::of(&name.as_str().into(), archive(&client).root())?, object))
        });
        // Newest first, as a kill leaves them: dropping begins with the oldest.
        let archived = archived.collect::<BTreeMap<_, _>>();
        for (n, (at, object)) in archived.into_iter().rev().enumerate() {
            let (from, to) = (archive(&client), place(&client));
            from.store().copy(&from.path(object), &to.path(object)).await.unwrap();
            // Some objects are in both.
            if n % 3 > 0 {
                sim.remove(from.path(object).as_ref()).await;
            }
            if n % 12 == 0 {
                for after in [0, 23] {
                    let found = history(&client, after).await;
                    assert_eq!(found, Some(((after + 1..=60).collect(), 60)), "{at:?}");
                }
            }
        }
    });
}

#[test]
fn reading_a_history_disturbs_no_owner() {
    runtime().block_on(async {
        let sim = Sim::new(32);
        let client = sim.client(0);
        let journal = lives(&client).await;
        let names = sim.names().await;
        let view = BucketJournal::view(&place(&client), &options(SyncMode::Always)).await.unwrap();
        assert_eq!((view.end(), view.epoch(), view.max_time_ms()), (60, 3, 1));
        let mut found = Vec::new();
        let replay = view.replay(0, |record| {
            found.push(record.lsn);
            Ok(())
        });
        replay.await.unwrap();
        assert_eq!(found, (view.dropped() + 1..=60).collect::<Vec<_>>());
        assert_eq!(sim.names().await, names);
        journal.append(&[0], b"more").unwrap();
        journal.until_durable(61).await;
        journal.kill();
        // An empty place has no journal.
        let nowhere = Place::within(client.clone(), "nowhere".into(), "sim");
        let view = BucketJournal::view(&nowhere, &options(SyncMode::Always)).await.unwrap();
        assert_eq!((view.end(), view.dropped(), view.epoch()), (0, 0, 0));
    });
}

#[tokio::test(start_paused = true)]
async fn objects_that_stay_are_counted_until_the_store_takes_them() {
    let sim = Sim::new(38);
    let client = sim.client(0);
    let recovery = BucketJournal::recover(place(&client), archiving(&client)).await.unwrap();
    let journal = Running::start(recovery).await.unwrap();
    let left = || journal.shared.state.lock().unwrap().left();
    write(&journal, 10, 8).await;
    assert_eq!(left(), 0);
    for refusal in [&client.copies_none, &client.keeps] {
        refusal.store(true, Ordering::SeqCst);
        let mut before = 0;
        for _ in 0..3 {
            journal.flushed(&[0], journal.durable());
            let lsn = journal.append(&[0], b"more").unwrap();
            journal.until_durable(lsn).await;
            eventually("more objects stay", || left() > before).await;
            before = left();
        }
        refusal.store(false, Ordering::SeqCst);
        eventually("they are gone", || left() == 0).await;
        let state = journal.shared.state.lock().unwrap();
        assert!(state.doomed.is_empty() && !state.deleting);
    }
    let end = journal.durable();
    assert_eq!(history(&client, 0).await, Some(((1..=end).collect(), end)));
    journal.kill();
}
