//! Chooses the data directory whose backups reach a moment.
//!
//! A place may have backups of several directories, and some of them may have been made of another
//! one: restored as of an earlier moment, branched, or with another number of shards. The first
//! backup of such a directory has records of the other one, up to where it was made, and nothing says
//! when that was. So a moment before a directory's first backup is looked for in others first.

use super::restore::AsOf;
use super::{Backup, Checkpoint};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;

/// First and last checkpoint of each directory's backups, by the salt of its journal.
type Ranges<'a> = BTreeMap<u32, (&'a Checkpoint, &'a Checkpoint)>;

/// Returns the salt of the directory whose backups, the oldest first, reach a moment; `None`: the
/// newest moment of all.
///
/// # Errors
/// If there are no backups, or those of several directories reach the moment.
pub(super) fn origin_reaching(backups: &[Backup], as_of: Option<AsOf>) -> Result<u32> {
    let newest = backups.last().context("there are no backups")?.checkpoint.origin;
    let Some(as_of) = as_of else { return Ok(newest) };
    let mut ranges = Ranges::new();
    for Backup { checkpoint, .. } in backups {
        ranges.entry(checkpoint.origin).or_insert((checkpoint, checkpoint)).1 = checkpoint;
    }
    // A moment behind all backups of a directory is not known there.
    if ranges.len() > 1 {
        ranges.retain(|_, (_, last)| !as_of.is_later_than(last));
    }
    if ranges.values().any(|(first, _)| as_of.is_behind(first)) {
        ranges.retain(|_, (first, _)| as_of.is_behind(first));
    }
    let mut left = ranges.iter();
    match (left.next(), left.next()) {
        (None, _) => Ok(newest),
        (Some((origin, _)), None) => Ok(*origin),
        (Some((_, (_, one))), Some((_, (_, other)))) => bail!(
            "backups of {} directories reach that moment: choose one by naming a backup of it, \
             such as {} or {}",
            ranges.len(),
            one.id,
            other.id
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backup of a directory, made at a moment.
    fn backup(origin: u32, created_ms: u64, lsn: u64) -> Backup {
        let id = format!("{origin}-{created_ms}");
        let checkpoint = Checkpoint {
            format: 1,
            id,
            created_ms,
            lsn,
            last_ms: None,
            after: 0,
            epoch: 1,
            record_bytes: 0,
            origin,
            seed: 0,
            shards: Vec::new(),
            division: None,
        };
        Backup { format: 1, checkpoint, files: vec![], records: vec![], history: vec![] }
    }

    #[test]
    fn a_moment_is_looked_for_in_the_directory_that_existed_then() {
        // 2 was made of 1 as of moment 50, some time before 400.
        let drill = [backup(1, 100, 10), backup(1, 300, 30), backup(2, 400, 6), backup(1, 500, 50)];
        let origin = |ms| origin_reaching(&drill, Some(AsOf::Time(ms))).map_err(|e| e.to_string());
        for ms in [100, 250, 350] {
            assert_eq!(origin(ms), Ok(1), "{ms}");
        }
        // Both existed, or neither has a backup of before.
        for ms in [50, 400] {
            assert!(origin(ms).unwrap_err().contains("of 2 directories"), "{ms}");
        }
        assert_eq!(origin(450), Ok(1));
        assert_eq!(origin(600), Ok(1), "the newest one says that it is not known");
        assert_eq!(origin_reaching(&drill, None).unwrap(), 1);
        assert_eq!(origin_reaching(&drill, Some(AsOf::Lsn(40))).unwrap(), 1);
        assert!(origin_reaching(&drill, Some(AsOf::Lsn(5))).is_err());
        assert!(origin_reaching(&[], None).is_err());
    }

    #[test]
    fn a_directory_that_replaced_another_one_is_restored_from_where_it_began() {
        let resharded =
            [backup(1, 100, 10), backup(1, 200, 20), backup(2, 300, 25), backup(2, 400, 40)];
        let origin = |ms| origin_reaching(&resharded, Some(AsOf::Time(ms))).unwrap();
        assert_eq!([100, 150, 200].map(origin), [1, 1, 1]);
        assert_eq!([250, 300, 350, 400, 500].map(origin), [2, 2, 2, 2, 2]);
    }
}
