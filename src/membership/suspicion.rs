//! Notices servers that have ended, and takes their shards over.
//!
//! A server is suspected that answers no beats, or answers that it does not reach the bucket. It is taken
//! over if, for half a lease, its journal has no new object either: a server that clients use puts one a
//! second, and one that only the others cannot reach must not lose its shards. Of several servers that
//! could take it over, one acts first, by a hash of both lives.
//!
//! A server that takes another one over has stored an object itself since it began to watch that one. So
//! if the bucket stops to answer all servers for a while, none takes another one for dead.

use super::beats::Beats;
use super::{Agent, Seated};
use crate::cluster::Heard;
use flagstone_storage::cluster::{ClusterMap, Life, MapDraft, MapMember, MapRefusal, MemberState};
use flagstone_storage::lease::BootTime;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use tokio::time::{Instant, timeout};

/// Parts of a lease: the silence from which on a server's journal is watched, as a beat is overdue; how long
/// its journal must have no new object; and how much later each further server acts.
const OVERDUE: u32 = 5;
const WATCHED: u32 = 2;
const NEXT: u32 = 3;

/// Leases of silence after which a replica has ended: nobody waits for what it has.
const REPLICA_OVERDUE: u32 = 40;

/// The knowledge of other servers: which answer, and which may have ended.
pub(super) struct Suspicion {
    beats: Beats,
    watched: BTreeMap<Life, Watched>,
}

/// The journal of a silent server.
struct Watched {
    /// The newest object, and since when it is the newest.
    newest: u64,
    since: Instant,
    since_boot: BootTime,
    /// True if this server has stored an object since.
    has_store: bool,
}

impl Watched {
    fn new(newest: u64) -> Self {
        Self { newest, since: Instant::now(), since_boot: BootTime::now(), has_store: false }
    }
}

impl Suspicion {
    pub(super) fn begin(own: &Seated) -> Self {
        Self { beats: Beats::new(own.clone()), watched: BTreeMap::new() }
    }

    /// Returns the lives that answer.
    pub(super) fn heard(&self) -> &Heard {
        self.beats.heard()
    }
}

impl Agent {
    /// Watches the journals of servers that are silent, and takes one over that has ended.
    pub(super) async fn suspect(&mut self, map: &ClusterMap) -> anyhow::Result<()> {
        let others = self.own.cluster.others();
        self.suspicion.beats.keep(&others);
        let lease = self.lease();
        let heard = self.suspicion.heard();
        let is_overdue = |member: &&MapMember| {
            let limit = if member.is_replica() { lease * REPLICA_OVERDUE } else { lease / OVERDUE };
            heard.silence(member.life).is_none_or(|silence| silence > limit)
        };
        let overdue: Vec<Life> = others.iter().filter(is_overdue).map(|it| it.life).collect();
        self.suspicion.watched.retain(|life, _| overdue.contains(life));
        self.own.cluster.sight.keep_unsealed(|life| overdue.contains(&life));
        self.own.cluster.sight.set_watched(self.suspicion.watched.keys().copied());
        if map.member(self.life()).is_some_and(|it| !it.takes_shards() && !it.stands_by()) {
            // It could take nothing: others act.
            return Ok(());
        }
        for life in overdue {
            let asked = timeout(lease / NEXT, self.own.seat.progress_of(life)).await;
            let Ok(Ok(newest)) = asked else {
                // Without the store nobody can take anything over.
                self.suspicion.watched.remove(&life);
                continue;
            };
            let patience = lease / WATCHED + self.rank(map, life) * (lease / NEXT);
            let entry = self.suspicion.watched.entry(life);
            let watched = entry.or_insert_with(|| Watched::new(newest));
            if watched.newest != newest {
                *watched = Watched::new(newest);
            }
            // The journal was looked at once more since the own object was stored.
            if watched.has_store && watched.since.elapsed() >= patience {
                self.take_over(life).await?;
                continue;
            }
            watched.has_store = self.own.seat.has_stored_since(watched.since_boot);
        }
        Ok(())
    }

    /// Returns how many servers act before this one: standbys act behind owners, to which they answer as
    /// well.
    fn rank(&self, map: &ClusterMap, ended: Life) -> u32 {
        let both = |life: Life| [ended.0.to_be_bytes(), life.0.to_be_bytes()].concat();
        let weight =
            |it: &MapMember| (it.takes_shards(), self.own.node.layout.hash(&both(it.life)));
        let Some(own) = map.member(self.life()).map(weight) else { return 0 };
        let able = map.members().iter().filter(|it| it.takes_shards() || it.stands_by());
        let before = able.filter(|it| self.suspicion.heard().answers(it.life, self.lease()));
        before.filter(|it| weight(it) > own).count() as u32
    }

    /// Seals the journal of a life, and shares its shards out among the servers that answer.
    async fn take_over(&mut self, ended: Life) -> anyhow::Result<()> {
        self.suspicion.watched.remove(&ended);
        // Another server may have acted, or may have taken this one for dead, too.
        self.look().await;
        let map = self.own.cluster.map();
        if !map.is_open(self.life()) || !map.is_open(ended) {
            return Ok(());
        }
        if let Err(error) = self.own.seat.seal(ended).await {
            self.look().await;
            if !self.own.cluster.map().is_open(ended) {
                // Others were faster, and need its objects no more.
                return Ok(());
            }
            self.own.cluster.sight.note_unsealed(ended, format!("{error:#}"));
            self.warn(format!(
                "a server of the cluster has ended, and the journal of its life {ended} cannot be \
                sealed: {error:#}"
            ));
            return Ok(());
        }
        tracing::warn!(
            life = ended.0,
            "a server of the cluster has ended: its shards are taken over"
        );
        let heard = self.suspicion.heard().clone();
        let (lease, own) = (self.lease(), self.life());
        let answers = |life: Life| life == own || heard.answers(life, lease);
        let mut has_sealed = false;
        self.change("taking over", |draft| {
            has_sealed = false;
            let is_open = draft.map().member(own).is_some_and(|it| it.state == MemberState::Open);
            is_open.then_some(()).ok_or(MapRefusal::NotOpen(own))?;
            share_out(draft, ended, &answers)?;
            has_sealed = true;
            Ok(())
        })
        .await?;
        self.own.cluster.sight.takeovers.fetch_add(u64::from(has_sealed), Ordering::Relaxed);
        Ok(())
    }
}

/// Notes that a life is sealed, and gives its shards to open ones of those that answer: all to a standby,
/// which becomes an owner in its place, or else each to the owner that has the fewest.
fn share_out(
    draft: &mut MapDraft,
    ended: Life,
    answers: &impl Fn(Life) -> bool,
) -> Result<(), MapRefusal> {
    let is_owner = draft.map().owned_by(ended).next().is_some();
    let mut open = draft.map().members().iter().filter(|it| it.state == MemberState::Open);
    let standby = open.find(|it| it.life != ended && it.stands_by() && answers(it.life));
    if let Some(standby) = standby.filter(|_| is_owner).map(|member| member.life) {
        draft.promote(standby)?;
        let owned = draft.map().owned_by(ended);
        let heirs: Vec<(u16, Life)> = owned.map(|shard| (shard.id, standby)).collect();
        return draft.seal(ended, &heirs);
    }
    let allotments = draft.map().balance();
    let stays = |life: Life| draft.map().member(life).is_some_and(|member| member.takes_shards());
    let is_heir = |life: Life| life != ended && stays(life) && answers(life);
    let lives = allotments.iter().filter(|one| is_heir(one.life));
    let mut shares: Vec<(usize, Life)> = lives.map(|one| (one.shards, one.life)).collect();
    let owned: Vec<u16> = draft.map().owned_by(ended).map(|shard| shard.id).collect();
    let mut heirs = Vec::with_capacity(owned.len());
    for shard in owned {
        let Some(least) = shares.iter_mut().min() else { break };
        least.0 += 1;
        heirs.push((shard, least.1));
    }
    draft.seal(ended, &heirs)
}
