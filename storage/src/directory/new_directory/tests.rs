//! Makers of data directories in one place, in sequence and at the same time.

use super::*;
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
