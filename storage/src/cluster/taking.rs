//! Taking shards: from other lives, which have ended or have given them away, or new ones.
//!
//! The order is that of RFC 16. The engine's writer epoch is read first, then the map must still
//! name this life as the owner, then the engine is opened, if no other process has opened it
//! meanwhile. So a process that was asleep closes no engine of a later owner. The records of all
//! listed journals are merged, in their order, and an *adoption* is appended to the own journal: its
//! lsn, and so that of each later record, is above all lsns of the shard so far.

use super::lives::SealedLife;
use super::map::MapShard;
use super::member::Life;
use crate::clock::Clock;
use crate::commit::Sealed;
use crate::control::Control;
use crate::directory::{
    EngineOpener, Manifest, OpenOptions, ShardHome, StartReplay, outdated, share,
};
use crate::encoding::{prefix_range, row};
use crate::engine::{Claim, Engine};
use crate::journal::{BucketJournal, Journal, Lsn, Recovered};
use crate::place::Place;
use crate::shard::Shard;
use anyhow::{Context, Result, bail};
use futures::future::{join_all, try_join_all};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Time limit of the first look at an engine's epoch, which doubles, and the number of looks.
const EPOCH: Duration = Duration::from_secs(2);
const EPOCH_TRIES: usize = 5;

/// A shard that the map gives to this life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenShard {
    pub id: u16,
    /// The other lives whose journals may have records of it that its engine lacks, in order.
    pub journals: Vec<Life>,
    /// True if an owner has stored something in its engine, so that this must exist.
    pub is_begun: bool,
    /// The lsn up to which its engine has stored everything, at least.
    pub stored: Lsn,
    /// Its entry, which says where its files are.
    entry: MapShard,
}

impl GivenShard {
    /// Returns a shard as its entry in the map gives it to `life`, and the number of the map that did so.
    pub fn of(entry: &MapShard, life: Life) -> (Self, u64) {
        let others = entry.journals.iter().copied().filter(|journal| *journal != life);
        let (id, journals) = (entry.id, others.collect());
        let (is_begun, stored) = (entry.is_begun, entry.stored);
        (Self { id, journals, is_begun, stored, entry: entry.clone() }, entry.since)
    }
}

/// A shard that was taken, and may be served once its adoption is durable and the lives before this
/// one answer no more.
#[derive(Debug)]
pub struct TakenShard {
    pub shard: Shard,
    /// The lsn of its adoption: once the engine has flushed up to there, it needs no journal of
    /// another life.
    pub adopted: Lsn,
}

/// Takes shards for one life of this process.
pub(super) struct ShardTaker {
    pub(super) store: Place,
    pub(super) manifest: Manifest,
    pub(super) opener: EngineOpener,
    journal: Arc<BucketJournal>,
    pub(super) clock: Clock,
    databases: u32,
    /// Bytes of the filters of keys of a server that has all slots.
    presence_bytes: usize,
    /// Bytes of replayed rows from which on the engines get them.
    replay_bytes: usize,
}

/// A shard whose engine is open.
pub(super) struct OpenedShard {
    pub(super) id: u16,
    pub(super) engine: Engine,
    pub(super) control: Control,
    /// The slots whose rows count; `None`: all.
    pub(super) slots: Option<Range<u16>>,
}

impl ShardTaker {
    pub(crate) fn new(
        options: &OpenOptions,
        manifest: Manifest,
        journal: Arc<BucketJournal>,
        clock: Clock,
    ) -> Self {
        Self {
            store: options.store.clone(),
            opener: EngineOpener::new(options, &manifest, &clock),
            presence_bytes: options.presence_bytes,
            replay_bytes: options.replay_bytes,
            databases: options.databases,
            manifest,
            journal,
            clock,
        }
    }

    /// Takes shards that all have the same list of journals. `sealed`: the journals of other lives;
    /// `is_mine` looks at the newest map. Must run on the background runtime.
    ///
    /// # Errors
    /// If one of the shards belongs to another life by now; then none is taken.
    pub(super) async fn take<F>(
        &self,
        given: &[GivenShard],
        sealed: &BTreeMap<Life, Arc<SealedLife>>,
        is_mine: impl Fn() -> F,
    ) -> Result<Vec<TakenShard>>
    where
        F: Future<Output = Result<bool>>,
    {
        let Some(first) = given.first() else { return Ok(Vec::new()) };
        let mut journals = Vec::with_capacity(first.journals.len());
        for life in &first.journals {
            let journal = sealed.get(life).with_context(|| format!("life {life} is not sealed"))?;
            self.clock.at_least(journal.recovered().max_time_ms());
            journals.push(journal);
        }
        let opened = self.open(given, is_mine).await?;
        let engines: Vec<Engine> = opened.iter().map(|one| one.engine.clone()).collect();
        let taken = self.take_opened(given, opened, &journals).await;
        Engine::or_close_all(&engines, taken).await
    }

    /// Takes the shards of these engines. `journals`: those of other lives that may have records of them.
    async fn take_opened(
        &self,
        given: &[GivenShard],
        opened: Vec<OpenedShard>,
        journals: &[&Arc<SealedLife>],
    ) -> Result<Vec<TakenShard>> {
        for (one, given) in opened.iter().zip(given) {
            let recovered = journals.iter().map(|journal| journal.recovered());
            one.check_age(&self.store, given.stored, recovered)?;
        }
        let created = self.manifest.layout().shards();
        let stale = opened.iter().zip(given).map(|(one, given)| {
            let home = given.entry.home(created);
            (one.engine.clone(), outdated(&one.control, &home, &self.manifest))
        });
        let mut replay = StartReplay::new(stale.collect(), self.replay_bytes, None);
        let ends = journals.iter().map(|journal| journal.end());
        let above = opened.iter().map(|one| one.end()).chain(ends).max().unwrap_or(0);
        let mut applied: Vec<Lsn> = opened.iter().map(|one| one.applied()).collect();
        let mut shards: Vec<Shard> = opened.into_iter().map(|one| self.shard(one)).collect();
        for shard in shards.iter_mut().filter(|_| !journals.is_empty()) {
            shard.inherit(above);
        }
        for journal in journals {
            let records = replay.run(journal.recovered(), &mut shards, &applied).await?;
            tracing::info!(
                life = journal.life().0,
                records,
                "the journal of another life was read"
            );
            applied.iter_mut().for_each(|lsn| *lsn = (*lsn).max(journal.end()));
        }
        shards.iter_mut().for_each(Shard::end_replay);
        let adopted = self.adopt(&mut shards, above)?;
        self.journal.request_sync(adopted);
        replay.write_stale().await?;
        shards.iter().for_each(|shard| self.journal.flushed(shard.id, shard.flushed()));
        Ok(shards.into_iter().map(|shard| TakenShard { shard, adopted }).collect())
    }

    /// Opens the engines, if all the shards belong to this life.
    async fn open<F>(
        &self,
        given: &[GivenShard],
        is_mine: impl Fn() -> F,
    ) -> Result<Vec<OpenedShard>>
    where
        F: Future<Output = Result<bool>>,
    {
        let created = self.manifest.layout().shards();
        let homes: Vec<ShardHome> = given.iter().map(|one| one.entry.home(created)).collect();
        let places: Vec<Place> = homes.iter().map(|home| home.engine_place(&self.store)).collect();
        let epochs = try_join_all(places.iter().map(epoch_of)).await?;
        for (one, epoch) in given.iter().zip(&epochs) {
            if one.is_begun && *epoch == 0 {
                bail!("the files of shard {} are missing in {}", one.id, self.store);
            }
        }
        if !is_mine().await? {
            bail!("the shards belong to another server by now");
        }
        let opening = given.iter().zip(&homes).zip(epochs);
        let opening = opening.map(|((one, home), epoch)| self.open_one(&one.entry, home, epoch));
        // All are opened to the end: of one that is given up half-way, nobody could close the engine.
        let opened = join_all(opening).await;
        let engines: Vec<Engine> = opened.iter().flatten().map(|one| one.engine.clone()).collect();
        Engine::or_close_all(&engines, opened.into_iter().collect()).await
    }

    async fn open_one(
        &self,
        entry: &MapShard,
        home: &ShardHome,
        epoch: u64,
    ) -> Result<OpenedShard> {
        let files = |place: &Place| Ok(place.stamping());
        let engine = self.opener.open(home, &files, Claim::After(epoch)).await?;
        let opened = self.opened(entry, home, engine.clone()).await;
        engine.or_close(opened).await
    }

    /// Reads the control rows of an engine, and checks that it is that of the shard.
    pub(super) async fn opened(
        &self,
        entry: &MapShard,
        home: &ShardHome,
        engine: Engine,
    ) -> Result<OpenedShard> {
        let (id, rows) = (entry.id, engine.scan(prefix_range(&[row::CONTROL]), usize::MAX).await?);
        let control = Control::read(&rows);
        let control = control.map_err(|what| anyhow::anyhow!("shard {id}: {what}"))?;
        let control = home.own(control);
        let slots = home.slots.as_ref().map(|own| own.0.clone());
        // Its first owner replaces the identity of the shard that it was split from.
        let origin = entry.origin.map(|origin| self.manifest.identity(origin.shard));
        let identities = [Some(self.manifest.identity(id)), origin];
        if control.identity.is_some() && !identities.contains(&control.identity) {
            bail!("{}/shard-{id} is a shard of another data directory, or another one", self.store);
        }
        Ok(OpenedShard { id, engine, control, slots })
    }

    fn shard(&self, opened: OpenedShard) -> Shard {
        let presence_bytes = self.presence_bytes(&opened);
        let OpenedShard { id, engine, control, .. } = opened;
        Shard::new(id, engine, self.journal.epoch(), control, presence_bytes)
    }

    /// Returns the bytes of the filter of keys that a shard may have here: a part by its slots, whatever filter
    /// its former owner has stored.
    pub(super) fn presence_bytes(&self, opened: &OpenedShard) -> usize {
        let all = || self.manifest.layout().slots_of(opened.id);
        share(self.presence_bytes, opened.slots.clone().unwrap_or_else(all).len())
    }

    /// Appends the adoption, which also gives new shards their generations. It has those of all shards, as the
    /// journals before it may be given up.
    fn adopt(&self, shards: &mut [Shard], above: Lsn) -> Result<Lsn> {
        let mut record = Sealed::default();
        for shard in shards.iter() {
            let ops = record.ops.entry(shard.id).or_default();
            let known = (0..).zip(shard.generations().live.iter().copied());
            for (db, generation) in known.chain(shard.generations().missing(self.databases)) {
                ops.generation(db, generation, 0);
            }
        }
        let (ids, body) = (record.shards(), record.body());
        let lsn = self.journal.adopt(above, self.clock.now_ms(), &ids, &body)?;
        for shard in shards {
            shard.merge_sealed(lsn, &record.ops[&shard.id]);
        }
        Ok(lsn)
    }
}

/// Returns the writer epoch of an engine. Commands wait for it: a request that hangs is made again.
async fn epoch_of(place: &Place) -> Result<u64> {
    let mut limit = EPOCH;
    for _ in 0..EPOCH_TRIES {
        if let Ok(epoch) = tokio::time::timeout(limit, Engine::writer_epoch(place)).await {
            return epoch;
        }
        limit *= 2;
    }
    bail!("the store of {place} does not answer")
}

impl OpenedShard {
    /// Returns the lsn up to which the engine has all records.
    pub(super) fn applied(&self) -> Lsn {
        self.control.applied.max(self.control.complete.unwrap_or(0))
    }

    /// Checks that the engine is not an older copy: it has stored everything up to the lsn `stored`, as the map
    /// says, and what the owners of these journals have dropped.
    pub(super) fn check_age<'a>(
        &self,
        store: &Place,
        stored: Lsn,
        journals: impl Iterator<Item = &'a Recovered>,
    ) -> Result<()> {
        let (id, applied) = (self.id, self.control.applied);
        if applied < stored {
            bail!(
                "{store}/shard-{id} is an older copy: it holds lsn {applied}, and held {stored} before; put \
                 the newer files back"
            );
        }
        for journal in journals {
            journal.check_shard(id, applied)?;
        }
        Ok(())
    }

    /// Returns the greatest lsn of which the engine may have rows.
    fn end(&self) -> Lsn {
        self.applied().max(self.control.reaches)
    }
}
