//! Journals of lives that have lost objects.
//!
//! Servers go on without no part of a journal that a map lists: its shards wait until the objects are back.
//! If they never come back, a user can accept the loss.
//!
//! - A journal without any records is *missing*. The map notes no more that the life has begun it, so that
//!   servers take it for the empty one of a process that died while it joined.
//! - One that breaks in the middle is cut off there. That is a matter of its objects alone.
//!
//! The life must have ended. If it goes on all the same, because it sleeps, it finds that its objects are gone
//! when it has stored another one behind the end of its lease, and answers nothing. A life that answers within
//! its lease has stored an object in the time for which the journal is watched here, and is found: an object
//! that was begun within a lease before it is stored, behind one that was begun within a lease before that.

use super::draft::MapRefusal;
use super::lives::{journal_of, journal_options};
use super::map::{ClusterMap, MapShard};
use super::member::{Life, MapMember, MemberState};
use super::store::{AmendError, MapStore};
use crate::directory::{Manifest, OpenOptions, peek_control};
use crate::journal::{BucketJournal, BucketOptions, JournalCondition, Lsn};
use crate::lease::Lease;
use crate::place::Place;
use anyhow::{Context, Result, bail};
use std::sync::Arc;
use std::time::Duration;

/// Times that the rows of a shard are read, as its owner may delete files meanwhile.
const LOOKS: usize = 3;

/// Waits for a lease for which a journal must have no new object.
const WATCHED: u32 = 2;

/// A shard that may lose something: the map lists the journal for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossyShard {
    pub id: u16,
    /// The lsn up to which its engine has everything; `None`: it has no files.
    pub stored: Option<Lsn>,
    /// True if it may have parts of values whose other parts are lost: a hand-over to its engine was cut off, or
    /// a later owner has changed them.
    pub is_torn: bool,
}

/// A journal, and what would be lost without it.
#[derive(Clone, Debug)]
pub struct JournalLoss {
    pub member: MapMember,
    pub condition: JournalCondition,
    /// The shards for which the map lists it, in order.
    pub shards: Vec<LossyShard>,
}

/// The outcome of [`LossStore::give_up`].
#[derive(Clone, Debug)]
pub enum GivenUp {
    /// The map notes that the journal is given up; it is the newest one.
    Whole(Arc<ClusterMap>),
    /// The journal ends where it broke.
    Rest,
    /// It had been done before.
    Nothing,
}

/// The journals of a cluster's lives, for a user who has lost some of their objects.
#[derive(Debug)]
pub struct LossStore {
    store: Place,
    maps: MapStore,
    options: BucketOptions,
    lease: Duration,
    /// Number of shards at the creation of the cluster.
    created: u16,
}

impl LossStore {
    /// Opens the journals of the cluster in a place. `options`: those to open its data.
    ///
    /// # Errors
    /// If there is no cluster, and if the store does not answer.
    pub async fn open(options: OpenOptions) -> Result<Self> {
        let store = options.store.clone();
        let no_cluster = || format!("there is no cluster in {store}");
        let manifest = Manifest::read_any(&store).await?;
        let manifest = manifest.filter(Manifest::is_of_cluster).with_context(no_cluster)?;
        let maps = MapStore::new(&store);
        let lease = maps.newest().await?.with_context(no_cluster)?.lease();
        let options = journal_options(&options, manifest.salt(), lease);
        let created = manifest.layout().shards();
        Ok(Self { store, maps, options, lease, created })
    }

    /// Looks at the journal of a life, and at the shards that need it. Changes nothing.
    ///
    /// # Errors
    /// If the newest map does not have the life, or needs nothing of it; if the store does not answer.
    pub async fn look(&self, life: Life) -> Result<JournalLoss> {
        let map = self.maps.newest().await?.context("the cluster's map is gone")?;
        let member = map.member(life).with_context(|| {
            format!("the map {} has no life {life}: nothing is needed of it", map.number())
        })?;
        if member.state != MemberState::Open && !map.lists(life) {
            bail!("no shard needs the journal of life {life}: the servers are about to forget it");
        }
        let place = journal_of(&self.store, life);
        let condition = BucketJournal::condition(&place, &self.options).await?;
        let read_up_to = match &condition {
            JournalCondition::Whole => Lsn::MAX,
            JournalCondition::Missing => 0,
            JournalCondition::Broken { end, .. } => *end,
        };
        let mut shards = Vec::new();
        for shard in map.shards().iter().filter(|shard| shard.journals.contains(&life)) {
            let later = shard.journals.iter().skip_while(|it| **it != life).skip(1);
            let later = later.filter(|it| shard.owner != Some(**it));
            let mut found = self.look_at_shard(shard, read_up_to).await?;
            found.is_torn |= later.count() > 0;
            shards.push(found);
        }
        Ok(JournalLoss { member: member.clone(), condition, shards })
    }

    /// Returns what a shard has without the records behind an lsn.
    async fn look_at_shard(&self, entry: &MapShard, read_up_to: Lsn) -> Result<LossyShard> {
        let (id, home, mut looks) = (entry.id, entry.home(self.created), 1);
        let control = loop {
            match peek_control(&self.store, &home).await {
                Err(_) if looks < LOOKS => looks += 1,
                read => break read?,
            }
        };
        let stored = control.applied.max(control.complete.unwrap_or(0));
        let is_torn = control.reaches > stored.max(read_up_to);
        Ok(LossyShard { id, stored: control.identity.map(|_| stored), is_torn })
    }

    /// Accepts the loss of a life's journal, or of what is behind its break, after [`look`](Self::look). Watches it
    /// for some leases before. It may be cut off and repeated, and several may do it at once.
    ///
    /// # Errors
    /// If nothing is lost, or if the life goes on; if the store does not answer.
    pub async fn give_up(&self, life: Life) -> Result<GivenUp> {
        let loss = self.look(life).await?;
        let place = journal_of(&self.store, life);
        match loss.condition {
            JournalCondition::Whole => bail!("{place} can be read to its end: nothing is lost"),
            JournalCondition::Missing if !loss.member.begun => return Ok(GivenUp::Nothing),
            _ => {}
        }
        let before = BucketJournal::newest_record(&place, &self.options).await?;
        tokio::time::sleep(WATCHED * Lease::successor_wait(self.lease)).await;
        // Another one may be giving it up at the same time: then there are fewer.
        if BucketJournal::newest_record(&place, &self.options).await? > before {
            bail!("life {life} goes on: its journal {place} has newer objects than a moment ago");
        }
        if before.is_some() {
            BucketJournal::cut_off(&place, &self.options).await?;
        }
        match BucketJournal::condition(&place, &self.options).await? {
            JournalCondition::Whole => Ok(GivenUp::Rest),
            JournalCondition::Missing => self.note(life).await,
            JournalCondition::Broken { why, .. } => bail!("{place} is broken still: {why}"),
        }
    }

    /// Notes in the map that a journal is given up.
    async fn note(&self, life: Life) -> Result<GivenUp> {
        match self.maps.amend(|draft| draft.give_up(life)).await {
            Ok(map) => Ok(GivenUp::Whole(map)),
            Err(AmendError::Refused(MapRefusal::NoChange)) => Ok(GivenUp::Nothing),
            Err(AmendError::Unknown { error, .. }) => {
                bail!(
                    "{error}. The change may count all the same: repeat the command, it does no harm"
                )
            }
            Err(error) => Err(error.into()),
        }
    }
}
