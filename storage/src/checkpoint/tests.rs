//! Tests that need no data.

use super::*;
use crate::place::Place;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[test]
fn moments_are_read() {
    for (text, moment) in [
        ("2026-11-22T04:03:12.123", AsOf::Time(1_795_320_192_123)),
        ("2026-11-22 04:03:12Z", AsOf::Time(1_795_320_192_000)),
        ("1795320192", AsOf::Time(1_795_320_192_000)),
        ("1795320192.1235", AsOf::Time(1_795_320_192_124)),
        ("lsn:17", AsOf::Lsn(17)),
    ] {
        assert_eq!(text.parse::<AsOf>().unwrap(), moment, "{text}");
    }
    for text in ["", "yesterday", "-5", "lsn:", "lsn:x", "2026-11-22", "nan", "inf"] {
        assert!(text.parse::<AsOf>().is_err(), "{text}");
    }
}

#[test]
fn ids_tell_the_time() {
    assert_eq!(take::format_id(1_795_320_192_123), "20261122-040312.123");
}

#[test]
fn descriptions_of_other_formats_are_refused() {
    let read = |text: &str| read_description::<Checkpoint>("it", text.as_bytes());
    let error = format!("{:#}", read(r#"{"format": 3}"#).unwrap_err());
    assert!(error.contains("format 3"), "{error}");
    let error = format!("{:#}", read(r#"{"format": 1}"#).unwrap_err());
    assert!(error.contains("damaged"), "{error}");
}

#[test]
fn a_description_with_slots_that_are_no_division_is_refused() {
    let read = |slots: &str| {
        let text = format!(
            r#"{{"format": 2, "id": "x", "created_ms": 0, "lsn": 1, "after": 0, "epoch": 1,
            "record_bytes": 0, "origin": 1, "seed": 7, "division": {{"created": 1, "slots": {slots}}},
            "shards": [{{"id": "", "manifest": 1, "applied": 0, "reaches": 0}},
            {{"id": "", "manifest": 1, "applied": 0, "reaches": 0}}]}}"#
        );
        read_description::<Checkpoint>("it", text.as_bytes()).unwrap().layout()
    };
    let layout = read("[[0, 99], [100, 16383]]").unwrap();
    assert_eq!((layout.shards(), layout.created(), layout.slots_of(1)), (2, 1, 100..16384));
    for slots in ["[[0, 99], [101, 16383]]", "[[0, 16383]]", "[[0, 99], [100, 200], [201, 16383]]"]
    {
        assert!(read(slots).is_err(), "{slots}");
    }
}

#[test]
fn a_description_without_the_time_of_its_last_record_counts_by_what_its_records_know() {
    let root = tempfile::tempdir().unwrap();
    let reaches = |name: &str, after: Lsn, last_ms: Option<u64>, ms: u64| {
        let dir = root.path().join(format!("{name}-{ms}"));
        let disk = std::sync::Arc::new(crate::journal::RealDisk);
        let mut extract = crate::journal::Extract::create(disk, &dir, 7, after).unwrap();
        // The shards have rows of up to then.
        extract.at_least(50);
        let (shards, body) = (vec![0], bytes::Bytes::from_static(b"x"));
        let record = crate::journal::Record { lsn: 4, epoch: 1, time_ms: 30, shards, body };
        extract.push(&record).unwrap();
        extract.finish(1, 4).unwrap();
        let text = r#"{"format": 1, "id": "x", "created_ms": 20, "lsn": 4, "after": 0, "epoch": 1,
            "record_bytes": 0, "origin": 1, "seed": 7, "shards": []}"#;
        let read = read_description::<Checkpoint>("it", text.as_bytes()).unwrap();
        let checkpoint = Checkpoint { after, last_ms, ..read };
        restore::reaches_in(&[dir], &checkpoint, AsOf::Time(ms)).unwrap()
    };
    for (ms, handed_over, pending, described) in [
        (19, false, false, false),
        (25, false, false, false),
        (30, false, true, true),
        (50, true, true, true),
    ] {
        assert_eq!(reaches("handed-over", 4, None, ms), handed_over, "{ms}");
        assert_eq!(reaches("pending", 3, None, ms), pending, "{ms}");
        assert_eq!(reaches("described", 4, Some(30), ms), described, "{ms}");
    }
}

/// Writes records of one byte, by lsn and epoch, as a journal in a new directory.
fn records_in(dir: &Path, after: Lsn, records: &[(Lsn, u64)]) -> PathBuf {
    let disk = std::sync::Arc::new(crate::journal::RealDisk);
    let mut extract = crate::journal::Extract::create(disk, dir, 7, after).unwrap();
    for &(lsn, epoch) in records {
        let (shards, body) = (vec![0], bytes::Bytes::from_static(b"x"));
        extract.push(&crate::journal::Record { lsn, epoch, time_ms: 1, shards, body }).unwrap();
    }
    let (lsn, epoch) = *records.last().unwrap();
    extract.finish(epoch, lsn).unwrap();
    dir.to_path_buf()
}

#[test]
fn a_gap_between_the_records_of_two_backups_ends_a_replay() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    let one = records_in(&at("1"), 0, &[(1, 1), (2, 1), (3, 1), (4, 1)]);
    // A backup was once made so when the journal had the end of record 5 only.
    let with_gap = records_in(&at("2"), 4, &[(6, 1), (7, 1)]);
    // Between two lives there are lsns without a record.
    let of_another_life = records_in(&at("3"), 4, &[(9, 2), (10, 2)]);
    let replayed = |second: &PathBuf| {
        let (mut lsns, dirs) = (Vec::new(), [one.clone(), second.clone()]);
        let last = history::replay(&dirs, 0, &mut |record| {
            lsns.push(record.lsn);
            Ok(())
        });
        (lsns, last.unwrap())
    };
    assert_eq!(replayed(&with_gap), (vec![1, 2, 3, 4], 4));
    assert_eq!(replayed(&of_another_life), (vec![1, 2, 3, 4, 9, 10], 10));
}

/// Writes an archive with a segment for each of these times.
fn archive_of(dir: &Path, times_ms: &[u64]) -> Place {
    let disk = std::sync::Arc::new(crate::journal::RealDisk);
    let mut extract = crate::journal::Extract::create(disk, dir, 7, 0).unwrap();
    for (lsn, &time_ms) in (1..).zip(times_ms) {
        let (shards, body) = (vec![0], bytes::Bytes::from_static(b"x"));
        let record = crate::journal::Record { lsn, epoch: lsn, time_ms, shards, body };
        extract.push(&record).unwrap();
    }
    extract.finish(times_ms.len() as u64, times_ms.len() as u64).unwrap();
    std::fs::remove_file(dir.join("floor")).unwrap();
    Place::local(dir).unwrap()
}

#[tokio::test]
async fn archived_segments_are_kept_for_their_time_whatever_the_clock_does() {
    const NOW_MS: u64 = 1_800_000_000_000;
    const YEAR_MS: u64 = 365 * 86_400_000;
    let (root, begun, kept_ms) = (tempfile::tempdir().unwrap(), Instant::now(), 10_000);
    let dir = root.path().join("archive");
    let archive = archive_of(&dir, &[NOW_MS - 9000, NOW_MS - 5000, NOW_MS]);
    let oldest_ms = oldest_archived_ms(&archive).await.unwrap();
    assert_eq!(oldest_ms, Some(NOW_MS - 9000));
    let mut restarted = Ageing::begin((begun, NOW_MS + YEAR_MS), oldest_ms, kept_ms);
    let mut ageing = Ageing::begin((begun, NOW_MS), oldest_ms, kept_ms);
    let limits = |now_ms| ArchiveLimits { now_ms, kept_ms, max_bytes: u64::MAX };
    let count = || std::fs::read_dir(&dir).unwrap().count();
    let now_ms = restarted.now_ms((begun, NOW_MS + YEAR_MS), kept_ms);
    prune_archive(&archive, limits(now_ms)).await.unwrap();
    assert_eq!(count(), 3, "after a restart");
    for (ms, step_ms, left) in
        [(0, 0, 3), (1000, YEAR_MS, 3), (2000, YEAR_MS, 2), (10_000, YEAR_MS, 1)]
    {
        let at = begun + Duration::from_millis(ms);
        let now_ms = ageing.now_ms((at, NOW_MS + ms + step_ms), kept_ms);
        prune_archive(&archive, limits(now_ms)).await.unwrap();
        assert_eq!(count(), left, "after {ms} ms");
    }
    let none = ArchiveLimits { kept_ms: 0, ..limits(NOW_MS) };
    prune_archive(&archive, none).await.unwrap();
    assert!(!dir.exists());
}

#[tokio::test]
async fn a_damaged_segment_keeps_none_before_it_in_the_archive() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("archive");
    let archive = archive_of(&dir, &[1000, 2000, 3000, 4000, 5000]);
    let segments = || {
        let listed = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        let mut segments: Vec<PathBuf> = listed.collect();
        segments.sort();
        segments
    };
    let all = segments();
    assert_eq!(all.len(), 5);
    for damaged in [&all[1], &all[2]] {
        std::fs::write(damaged, [7; 100]).unwrap();
    }
    // A segment knows the times of those before it.
    for (now_ms, left) in [(13_000, 5), (13_001, 2), (14_001, 1), (99_000, 1)] {
        let limits = ArchiveLimits { now_ms, kept_ms: 10_000, max_bytes: u64::MAX };
        prune_archive(&archive, limits).await.unwrap();
        assert_eq!(segments(), all[5 - left..], "{now_ms}");
    }
}

#[tokio::test]
async fn archived_objects_are_as_old_as_their_store_says() {
    let memory = std::sync::Arc::new(object_store::memory::InMemory::new());
    let archive = Place::within(memory, "archive".into(), "memory");
    for name in ["00000000000000000001/00000000000000000001", "on"] {
        crate::place::put(&archive.join(name), vec![0; 10]).await.unwrap();
    }
    for (kept_ms, max_bytes, removed) in
        [(60_000, u64::MAX, 0), (60_000, 0, 1), (60_000, 0, 0), (0, u64::MAX, 1)]
    {
        // The clock of this machine is ahead.
        let limits = ArchiveLimits { now_ms: u64::MAX, kept_ms, max_bytes };
        assert_eq!(prune_archive(&archive, limits).await.unwrap(), removed, "{kept_ms}");
    }
}

#[tokio::test]
async fn each_backup_of_a_checkpoint_has_its_history_for_itself() {
    let root = tempfile::tempdir().unwrap();
    let catalog = Catalog::of(&Place::local(root.path()).unwrap());
    let text = r#"{"format": 1, "id": "20261122-040312.123", "created_ms": 20, "lsn": 4, "after": 0,
        "epoch": 1, "record_bytes": 0, "origin": 1, "seed": 7, "shards": []}"#;
    let checkpoint = read_description::<Checkpoint>("it", text.as_bytes()).unwrap();
    catalog.publish(&checkpoint).await.unwrap();
    let id = checkpoint.id.as_str();
    let begin = || {
        let scratch = scratch::Scratch::at(catalog.history(id).unwrap()).unwrap();
        std::fs::write(scratch.path().join("floor"), b"records").unwrap();
        scratch
    };
    let (_, in_use) = catalog.open(id).await.unwrap();
    let (one, other) = (begin(), begin());
    drop(one);
    catalog.tidy(&[], None).await.unwrap();
    assert!(other.path().join("floor").exists(), "another backup copies it");
    // That backup is killed, as one of an earlier version was, and one of a checkpoint that is gone.
    let others = ["20261122-040312.123.history", "20261122-040312.122.history-1"];
    let others = others.map(|name| root.path().join(CHECKPOINTS).join(name));
    others.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let killed = other.path().to_owned();
    std::mem::forget(other);
    catalog.tidy(&[], None).await.unwrap();
    assert!(killed.exists() && others[0].exists() && !others[1].exists());
    drop(in_use);
    catalog.tidy(&[], None).await.unwrap();
    assert!(!killed.exists() && !others[0].exists());
    std::mem::forget(begin());
    assert!(catalog.remove(&[], &checkpoint).await.unwrap());
    let left = std::fs::read_dir(root.path().join(CHECKPOINTS)).unwrap().count();
    assert_eq!(left, 0);
}
