//! Tests of what the engines of a data directory in a bucket keep, for checkpoints and for branches.

use super::*;
use crate::clock::Clock;
use crate::directory::{Directory, Location};
use crate::engine::Engine;
use crate::engine::checkpoint::keep_for_branch;
use crate::place::sim::Sim;
use crate::place::{Place, admin, put, sizes};
use object_store::memory::InMemory;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

async fn open(store: &Place) -> Directory {
    let location = Location { store: store.clone(), journal: None };
    let mut options = offline_options(&location).await.unwrap();
    options.databases = 1;
    Directory::open(options, Clock::default()).await.unwrap()
}

fn source(opened: &Directory, scratch: &Path) -> CheckpointSource {
    CheckpointSource {
        store: opened.store.clone(),
        scratch: scratch.to_owned(),
        layout: opened.layout.clone(),
        origin: opened.origin,
        journal: opened.journal.clone(),
        engines: opened.engines().into(),
        clock: Clock::default(),
    }
}

/// Returns the ids of the checkpoints that engines have for this server's checkpoints and for branches.
async fn kept(engines: &[Engine]) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for engine in engines {
        let admin = admin(engine.place().store(), engine.place().root().as_ref());
        let listed = admin.list_checkpoints(None).await.unwrap();
        let is_own =
            |name: &Option<String>| name.as_ref().is_some_and(|name| name.starts_with("flagstone"));
        let own = listed.into_iter().filter(|checkpoint| is_own(&checkpoint.name));
        ids.extend(own.map(|checkpoint| checkpoint.id.to_string()));
    }
    ids
}

#[tokio::test]
async fn a_branch_that_is_discarded_keeps_no_files_of_its_parent() {
    let scratch = tempfile::tempdir().unwrap();
    let store = Place::within(Arc::new(InMemory::new()), "data".into(), "memory:");
    let opened = open(&store).await;
    let (source, engines) = (source(&opened, scratch.path()), opened.engines());
    let taken = take(&source, u64::MAX).await.unwrap();
    branch(&source.store, &taken.id, &store.beside("-other")).await.unwrap();
    let before = kept(&engines).await;
    assert_eq!(before.len(), 2);
    let copying = store.join(COPYING);
    for is_used in [true, false] {
        branch(&source.store, &taken.id, &copying).await.unwrap();
        if is_used {
            open(&copying).await.close().await.unwrap();
        }
        assert_eq!(kept(&engines).await.len(), 3);
        discard_branch(&engines, &copying).await.unwrap();
        assert_eq!(kept(&engines).await, before);
        assert!(sizes(&copying).await.unwrap().is_empty());
    }
    // A process was killed while it made one, or while it removed one.
    let parent = admin(engines[0].place().store(), engines[0].place().root().as_ref());
    keep_for_branch(&parent, None, copying.root().as_ref()).await.unwrap();
    assert_eq!(kept(&engines).await.len(), 3);
    discard_branch(&engines, &copying).await.unwrap();
    assert_eq!(kept(&engines).await, before);
    opened.close().await.unwrap();
}

#[tokio::test]
async fn what_is_left_of_a_checkpoint_that_was_given_up_goes_with_the_next_one() {
    let scratch = tempfile::tempdir().unwrap();
    let store = Place::within(Arc::new(InMemory::new()), "data".into(), "memory:");
    let opened = open(&store).await;
    let (source, engines) = (source(&opened, scratch.path()), opened.engines());
    let first = take(&source, u64::MAX).await.unwrap();
    // An engine that has waited for its store makes it once nobody waits any more.
    engines[0].checkpoint("given up").await.unwrap();
    let records = Catalog::of(&store).records("given up");
    put(&records.join("1"), vec![1]).await.unwrap();
    assert_eq!(kept(&engines).await.len(), 2);
    let second = take(&source, u64::MAX).await.unwrap();
    let named = [first, second].map(|checkpoint| checkpoint.shards[0].id.clone());
    assert_eq!(kept(&engines).await, named.into());
    assert!(sizes(&records).await.unwrap().is_empty());
    opened.close().await.unwrap();
}

#[tokio::test]
async fn a_checkpoint_that_fails_or_is_cancelled_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let client = Sim::new(61).client(0);
    let store = Place::within(client.clone(), "data".into(), "sim");
    let opened = open(&store).await;
    let (source, engines) = (source(&opened, scratch.path()), opened.engines());
    let left = async || {
        let files = sizes(&store.join(CHECKPOINTS)).await.unwrap();
        (kept(&engines).await, files.into_keys().collect::<Vec<_>>())
    };
    // The description is written, but the answer is lost.
    *client.unanswered.lock().unwrap() = Some(".json".to_owned());
    take(&source, u64::MAX).await.unwrap_err();
    assert_eq!(left().await, (BTreeSet::new(), Vec::new()));
    *client.unanswered.lock().unwrap() = None;
    let cancelled = take_unless(&source, u64::MAX, std::future::ready(())).await;
    assert_eq!(cancelled.unwrap_err().to_string(), CANCELLED);
    assert_eq!(left().await, (BTreeSet::new(), Vec::new()));
    let taken = take(&source, u64::MAX).await.unwrap();
    assert_eq!(kept(&engines).await, [taken.shards[0].id.clone()].into());
    opened.close().await.unwrap();
}
