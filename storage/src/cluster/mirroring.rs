//! Mirroring shards of another life: reading them as they are stored now, without owning them.
//!
//! The engines are pinned first, and the journals are read after that, so these have every record of which
//! an engine has a row. If the owner has flushed and dropped records in between, the floor of its journal
//! says so, and all is read again. From the end of the journal on, the shards follow it record by record.

use super::lives::journal_of;
use super::map::MapShard;
use super::member::Life;
use super::taking::{OpenedShard, ShardTaker};
use crate::directory::StartReplay;
use crate::journal::{BucketJournal, BucketOptions, JournalTail, Lsn, Recovered};
use crate::shard::Shard;
use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use std::collections::BTreeMap;

/// Shards of another life, as they were at the end of its journal.
#[derive(Debug)]
pub struct MirroredShards {
    pub shards: Vec<Shard>,
    /// The rest of the journal.
    pub tail: JournalTail,
    /// The number of the last object whose records they have.
    pub end: u64,
}

impl ShardTaker {
    /// Reads shards that a map gives to the life `owner`. Must run on the background runtime.
    ///
    /// # Errors
    /// If something cannot be read, or has changed meanwhile: the call may be repeated with a newer map.
    pub(super) async fn mirror(
        &self,
        owner: Life,
        entries: &[MapShard],
        options: &BucketOptions,
    ) -> Result<Box<MirroredShards>> {
        let opening = entries.iter().map(|entry| self.pin_one(entry));
        let mut opened = try_join_all(opening).await?;
        let mut journals = BTreeMap::new();
        let listed = entries.iter().flat_map(|entry| &entry.journals);
        for life in listed.chain([&owner]) {
            if !journals.contains_key(life) {
                let view = BucketJournal::view(&journal_of(&self.store, *life), options).await;
                let view = view.with_context(|| format!("reading the journal of life {life}"))?;
                self.clock.at_least(view.max_time_ms());
                let (tail, end) = (view.tail(), view.last_number());
                journals.insert(*life, (tail, end, Recovered::from(view)));
            }
        }
        let mut shards = Vec::with_capacity(entries.len());
        // Those with the same journals are replayed together, so that each is read once.
        let mut groups: BTreeMap<&[Life], Vec<OpenedShard>> = BTreeMap::new();
        for entry in entries.iter().rev() {
            let last = opened.pop().context("a shard was not opened")?;
            let listed = entry.journals.iter().filter_map(|life| Some(&journals.get(life)?.2));
            last.check_age(&self.store, entry.stored, listed)?;
            groups.entry(&entry.journals).or_default().push(last);
        }
        for (lives, group) in groups {
            let of_group: Vec<&Recovered> =
                lives.iter().filter_map(|life| Some(&journals.get(life)?.2)).collect();
            shards.extend(self.replay_mirrored(group, &of_group).await?);
        }
        let (tail, end, _) = journals.remove(&owner).context("the owner has no journal")?;
        Ok(Box::new(MirroredShards { shards, tail, end }))
    }

    async fn pin_one(&self, entry: &MapShard) -> Result<OpenedShard> {
        let home = entry.home(self.manifest.layout().shards());
        let engine = self.opener.pin(&home).await?;
        let opened = self.opened(entry, &home, engine).await?;
        // The engine of a shard that is split leaves rows out in merges, of which this map knows nothing.
        if opened.control.slots != opened.slots {
            bail!("shard {} is being split", entry.id);
        }
        Ok(opened)
    }

    async fn replay_mirrored(
        &self,
        opened: Vec<OpenedShard>,
        journals: &[&Recovered],
    ) -> Result<Vec<Shard>> {
        let end = journals.iter().map(|journal| journal.end()).max().unwrap_or(0);
        for one in &opened {
            let end = end.max(one.applied());
            if one.control.reaches > end {
                bail!("shard {} has rows of records that are in no journal of the map", one.id);
            }
        }
        let mut applied: Vec<Lsn> = opened.iter().map(OpenedShard::applied).collect();
        let mirrored = |one: OpenedShard| {
            let presence_bytes = self.presence_bytes(&one);
            Shard::mirror(one.id, one.engine, one.control, presence_bytes)
        };
        let mut shards: Vec<Shard> = opened.into_iter().map(mirrored).collect();
        // Nothing is given to the engines, however much there is.
        let mut replay = StartReplay::new(Vec::new(), usize::MAX, None);
        for journal in journals {
            replay.run(journal, &mut shards, &applied).await?;
            applied.iter_mut().for_each(|lsn| *lsn = (*lsn).max(journal.end()));
        }
        shards.iter_mut().for_each(Shard::end_replay);
        Ok(shards)
    }
}
