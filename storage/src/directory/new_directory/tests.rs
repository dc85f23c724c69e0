//! Makers of data directories in one place, in sequence and at the same time.

use super::*;
use crate::place::sim::Sim;
use crate::simulated;
use object_store::memory::InMemory;
use std::sync::Arc;

fn bucket() -> Place {
    Place::within(Arc::new(InMemory::new()), "a/prefix".into(), "memory")
}

async fn put(place: &Place, name: &str) {
    place.store().put(&place.path(name), "content".into()).await.unwrap();
}

/// Returns the objects below a place.
async fn found(place: &Place) -> Vec<String> {
    crate::place::sizes(place).await.unwrap().into_keys().collect()
}

#[tokio::test(start_paused = true)]
async fn an_unfinished_directory_in_a_bucket_is_taken_over_once_it_stands_still() {
    let place = bucket();
    let first = NewDirectory::begin(&place).await.unwrap();
    put(&place, "shard-0/db/compacted/x.sst").await;
    put(&place, "shared.json").await;
    // While a process is at work, others are refused.
    let error = NewDirectory::begin(&place).await.unwrap_err();
    assert!(error.to_string().contains("another process is making"), "{error}");
    first.prove().await.unwrap();
    // Simulates a kill.
    drop(first);
    let second = NewDirectory::begin(&place).await.unwrap();
    assert_eq!(found(&place).await, ["unfinished/mark"]);
    put(&place, "shard-0/db/compacted/y.sst").await;
    second.end(anyhow::Ok(())).await.unwrap();
    assert_eq!(found(&place).await, ["shard-0/db/compacted/y.sst"]);
}

#[tokio::test(start_paused = true)]
async fn a_process_taken_for_dead_writes_no_manifest_and_removes_nothing() {
    let place = bucket();
    let slow = NewDirectory::begin(&place).await.unwrap();
    slow.mark.as_ref().unwrap().renewing.abort();
    let other = NewDirectory::begin(&place).await.unwrap();
    put(&place, "shard-0/of-the-other").await;
    let error = slow.prove().await.unwrap_err();
    assert!(error.to_string().contains("another process makes"), "{error}");
    slow.end::<()>(Err(error)).await.unwrap_err();
    assert_eq!(found(&place).await, ["shard-0/of-the-other", "unfinished/mark"]);
    other.prove().await.unwrap();
}

#[test]
fn who_slept_while_another_process_made_the_directory_writes_nothing() {
    simulated::run(1, || async {
        let place = bucket();
        let slow = NewDirectory::begin(&place).await.unwrap();
        // As long as it is awake it may take its time.
        tokio::time::sleep(10 * STANDSTILL).await;
        put(slow.place(), "shard-0/a").await;
        slow.mark.as_ref().unwrap().renewing.abort();
        tokio::time::sleep(CLAIM + RENEWAL).await;
        let other = NewDirectory::begin(&place).await.unwrap();
        put(other.place(), "shard-0/of-the-other").await;
        other.end(anyhow::Ok(())).await.unwrap();
        let (store, at) = (slow.place().store(), place.path("shard-0/of-the-other"));
        store.put(&at, "late".into()).await.unwrap_err();
        slow.claimed(&place).store().copy(&at, &place.path("copy")).await.unwrap_err();
        slow.place().join("shard-1").store().delete(&at).await.unwrap_err();
        slow.end::<()>(Err(anyhow::anyhow!("late"))).await.unwrap_err();
        assert_eq!(found(&place).await, ["shard-0/of-the-other"]);
    });
}

#[test]
fn who_slept_alone_goes_on() {
    simulated::run(2, || async {
        let client = Sim::new(2).client(0);
        let place = Place::within(client.clone(), "a/prefix".into(), "sim");
        let maker = NewDirectory::begin(&place).await.unwrap();
        for _ in 0..3 {
            client.paused.shut(true);
            tokio::time::sleep(CLAIM + RENEWAL).await;
            client.paused.shut(false);
            put(maker.place(), "shard-0/a").await;
        }
        maker.end::<()>(Err(anyhow::anyhow!("it failed"))).await.unwrap_err();
        assert!(found(&place).await.is_empty());
    });
}

#[tokio::test]
async fn the_second_of_two_that_have_found_an_empty_place_is_refused() {
    let place = bucket();
    let fast = NewDirectory::begin(&place).await.unwrap();
    put(&place, "flagstone.json").await;
    fast.end(anyhow::Ok(())).await.unwrap();
    let mut slow = NewDirectory { mark: None, ..NewDirectory::begin(&bucket()).await.unwrap() };
    // It has looked before the other one began.
    let claim = slow.claim.clone().unwrap();
    slow.place = place.claimed(claim.clone());
    let error = slow.mark_as_own(&place, claim).await.unwrap_err();
    assert!(error.to_string().contains("is not empty"), "{error}");
    assert_eq!(found(&place).await, ["flagstone.json"]);
}

/// An upload that was cut off leaves a file there that is no object.
#[tokio::test(start_paused = true)]
async fn directories_without_objects_count_as_absent() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("new");
    let place = Place::parse(&format!("bucket+file://{}", dir.display())).unwrap();
    for is_unfinished in [true, false] {
        let upload = dir.join("shard-2/db/compacted");
        fs::create_dir_all(&upload).unwrap();
        fs::write(upload.join("x.sst#1"), "half").unwrap();
        if is_unfinished {
            put(&place, "unfinished/mark").await;
            put(&place, "shard-2/db/manifest/1.manifest").await;
        }
        let new = NewDirectory::begin(&place).await.unwrap();
        assert_eq!(found(&place).await, ["unfinished/mark"]);
        put(&place, "shard-2/db/compacted/y.sst").await;
        new.end::<()>(Err(anyhow::anyhow!("it failed"))).await.unwrap_err();
        assert!(found(&place).await.is_empty());
    }
}

#[tokio::test]
async fn a_failed_attempt_in_a_bucket_leaves_nothing() {
    let place = bucket();
    let new = NewDirectory::begin(&place).await.unwrap();
    put(&place, "shard-0/db/compacted/x.sst").await;
    put(&place, "shared.json").await;
    new.end::<()>(Err(anyhow::anyhow!("it failed"))).await.unwrap_err();
    assert!(found(&place).await.is_empty());
}

#[tokio::test]
async fn places_with_anything_else_are_refused_and_left_alone() {
    for others in [&["x"][..], &["flagstone.json"], &["shard-0/x"], &["unfinished/mark", "x/y"]] {
        let place = bucket();
        for name in others {
            put(&place, name).await;
        }
        let error = NewDirectory::begin(&place).await.unwrap_err();
        assert!(error.to_string().contains("is not empty"), "{error}");
        assert_eq!(found(&place).await, others);
    }
}

#[tokio::test]
async fn a_whole_data_directory_is_never_taken_for_an_unfinished_one() {
    let root = tempfile::tempdir().unwrap();
    let place = Place::local(root.path()).unwrap();
    for name in ["unfinished", "shard-0", "journal"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    fs::write(root.path().join("flagstone.json"), "{}").unwrap();
    NewDirectory::begin(&place).await.unwrap_err();
    fs::remove_file(root.path().join("flagstone.json")).unwrap();
    let new = NewDirectory::begin(&place).await.unwrap();
    assert!(!root.path().join("shard-0").exists());
    // Only one process at a time.
    let error = NewDirectory::begin(&place).await.unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    new.end::<()>(Err(anyhow::anyhow!("it failed"))).await.unwrap_err();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}
