//! `flagstone cluster move` and `drain`: ask owners to give shards away, and wait until they have.

use super::naming::{find, named, named_life};
use super::{ClusterMaps, ClusterPlace};
use crate::membership::tell_of;
use anyhow::{Result, anyhow, bail};
use clap::Args;
use flagstone_storage::cluster::{
    AmendError, ClusterMap, Life, MapDraft, MapMember, MapRefusal, MapShard, MemberState, NodeId,
};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between two looks at the map.
const POLL: Duration = Duration::from_millis(200);

/// Move shards to a server, or let the cluster move them again
///
/// The owners give the shards away, one at a time, and clients follow. The shards are pinned: the servers
/// do not move them back when they share the shards out evenly. They move other shards instead, if
/// there are any. A pin ends with --unpin, and when its server leaves or is lost.
#[derive(Args)]
pub(super) struct ShardMoveArguments {
    /// The numbers of the shards, with commas
    #[arg(value_name = "SHARD[,SHARD...]", value_delimiter = ',', required = true)]
    shards: Vec<u16>,
    /// The server that gets them: the beginning of its id, or host:port
    #[arg(long, value_name = "NODE", required_unless_present = "unpin", conflicts_with = "unpin")]
    to: Option<String>,
    /// Take the pins from the shards, and call off moves that are not done
    #[arg(long)]
    unpin: bool,
    #[command(flatten)]
    waiting: MoveWaiting,
    #[command(flatten)]
    at: ClusterPlace,
}

/// Move all shards away from a server, which goes on running
///
/// The other servers share its shards, and it gets none until it starts again. It can be stopped, then,
/// without any client having to wait; it need not be.
#[derive(Args)]
pub(super) struct DrainArguments {
    /// The server: the beginning of its id, or host:port
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    waiting: MoveWaiting,
    #[command(flatten)]
    at: ClusterPlace,
}

#[derive(Args)]
pub(super) struct MoveWaiting {
    /// How long to wait until it is done; what is not done by then goes on
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(super) timeout: u64,
    /// Do not wait
    #[arg(long)]
    pub(super) no_wait: bool,
}

/// The reason why the newest map is not changed.
#[derive(Debug)]
pub(super) enum MoveRefusal {
    /// It is so already.
    Nothing,
    Because(anyhow::Error),
}

impl fmt::Display for MoveRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => MapRefusal::NoChange.fmt(f),
            Self::Because(error) => error.fmt(f),
        }
    }
}

impl From<MapRefusal> for MoveRefusal {
    fn from(refusal: MapRefusal) -> Self {
        match refusal {
            MapRefusal::NoChange => Self::Nothing,
            MapRefusal::Parked(shard) => Self::Because(anyhow!(
                "shard {shard} is parked: no server has it to give it away. The next one that has too \
                 few takes it"
            )),
            other => Self::Because(other.into()),
        }
    }
}

impl ShardMoveArguments {
    pub(super) async fn run(&self) -> Result<()> {
        let maps = self.at.maps()?;
        let shards: BTreeSet<u16> = self.shards.iter().copied().collect();
        let map = change(&maps, |draft| want(draft, &shards, self.to.as_deref())).await?;
        let Some(to) = &self.to else {
            shards.iter().for_each(|shard| say!("shard {shard} is not pinned"));
            return Ok(());
        };
        let to = find(&map, to)?;
        if self.waiting.no_wait {
            shards.iter().for_each(|shard| say!("shard {shard} is to move to {}", named(to)));
            return Ok(());
        }
        let mut moves =
            Moves { pending: shards, to: to.node, called_off: 0, begun: Instant::now() };
        let is_done = self.waiting.until(&maps, |map| Ok(moves.look(map))).await?;
        if moves.called_off > 0 {
            bail!("{} moves were called off", moves.called_off);
        }
        self.waiting.check(is_done, &moves.pending)
    }
}

/// Asks for the moves of shards: to a server, or to where the cluster wants to have them.
fn want(draft: &mut MapDraft, shards: &BTreeSet<u16>, to: Option<&str>) -> Result<(), MoveRefusal> {
    let to = to.map(|to| find(draft.map(), to).map(|member| member.life));
    let to = to.transpose().map_err(MoveRefusal::Because)?;
    let mut is_new = false;
    for shard in shards {
        match draft.want_move(*shard, to) {
            Ok(()) => is_new = true,
            Err(MapRefusal::NoChange) => {}
            Err(refusal) => return Err(refusal.into()),
        }
    }
    if is_new { Ok(()) } else { Err(MoveRefusal::Nothing) }
}

/// Changes the map, unless it is so already, tells the servers, and returns the newest one.
pub(super) async fn change(
    maps: &ClusterMaps,
    steps: impl FnMut(&mut MapDraft) -> Result<(), MoveRefusal>,
) -> Result<Arc<ClusterMap>> {
    match maps.store.amend(steps).await {
        Ok(map) => {
            tell_of(&map).await;
            Ok(map)
        }
        Err(AmendError::Refused(MoveRefusal::Nothing) | AmendError::NoMap) => maps.newest().await,
        Err(AmendError::Refused(MoveRefusal::Because(error))) => Err(error),
        Err(AmendError::Unknown { error, .. }) => {
            bail!("{error}. The change may count all the same: repeat the command, it does no harm")
        }
        Err(error) => Err(error.into()),
    }
}

/// Shards that are to move to a node.
struct Moves {
    pending: BTreeSet<u16>,
    to: NodeId,
    called_off: usize,
    begun: Instant,
}

impl Moves {
    /// Tells which moves have ended, and returns true if all have.
    fn look(&mut self, map: &ClusterMap) -> bool {
        let is_there = |life: Option<Life>| {
            life.and_then(|it| map.member(it)).is_some_and(|m| m.node == self.to)
        };
        let entry = |shard: u16| map.shards().get(usize::from(shard));
        for shard in self.pending.iter().filter_map(|shard| entry(*shard)) {
            if is_there(shard.owner) {
                say!("{}", moved(map, shard, self.begun));
            } else if !is_there(shard.moving_to) {
                self.called_off += 1;
                say!(
                    "shard {}: the move was called off: another one was asked for, or a server has \
                    ended or leaves",
                    shard.id
                );
            }
        }
        self.pending.retain(|shard| {
            entry(*shard).is_some_and(|it| !is_there(it.owner) && is_there(it.moving_to))
        });
        self.pending.is_empty()
    }
}

/// Returns the line of a shard that has moved.
pub(super) fn moved(map: &ClusterMap, shard: &MapShard, begun: Instant) -> String {
    let owner = shard.owner.map_or_else(|| "nowhere".to_owned(), |life| named_life(map, life));
    format!("shard {} is at {owner} ({:.1} s)", shard.id, begun.elapsed().as_secs_f64())
}

impl DrainArguments {
    pub(super) async fn run(&self) -> Result<()> {
        let (maps, begun) = (self.at.maps()?, Instant::now());
        let mut drained = None;
        let map = change(&maps, |draft| {
            drained = Some(leave(draft, &self.node)?);
            Ok(())
        });
        let map = map.await?;
        let life = match drained {
            Some(life) => life,
            None => find(&map, &self.node)?.life,
        };
        let name = named_life(&map, life);
        let mut pending: BTreeSet<u16> = map.owned_by(life).map(|shard| shard.id).collect();
        if self.waiting.no_wait {
            say!("{name} is to give {} shards away", pending.len());
            return Ok(());
        }
        let node = map.member(life).map(|member| member.node);
        let look = |map: &ClusterMap| {
            let next = node.and_then(|node| map.open_member(node));
            if next.is_some_and(|member| member.life != life) {
                bail!("{name} has started again, and leaves no more");
            }
            let owned: BTreeSet<u16> = map.owned_by(life).map(|shard| shard.id).collect();
            for shard in pending.difference(&owned) {
                say!("{}", moved(map, &map.shards()[usize::from(*shard)], begun));
            }
            pending = owned;
            Ok(pending.is_empty())
        };
        let is_done = self.waiting.until(&maps, look).await?;
        self.waiting.check(is_done, &pending)?;
        say!("{name} has no shards, and gets none until it starts again");
        Ok(())
    }
}

/// Lets a server leave, and returns its life.
fn leave(draft: &mut MapDraft, node: &str) -> Result<Life, MoveRefusal> {
    let map = draft.map();
    let member = find(map, node).map_err(MoveRefusal::Because)?;
    if member.is_replica() {
        return Err(MoveRefusal::Because(anyhow!(
            "{} is a replica, and owns no shard",
            named(member)
        )));
    }
    let life = member.life;
    let mut others = map.balance().into_iter().filter(|one| one.life != life);
    let stays = |life: Life| map.member(life).is_some_and(|member| member.takes_shards());
    let is_standby = |it: &MapMember| it.state == MemberState::Open && it.stands_by();
    if !others.any(|one| stays(one.life)) && !map.members().iter().any(is_standby) {
        return Err(MoveRefusal::Because(anyhow!(
            "there is no other server that could take the shards of {}",
            named_life(map, life)
        )));
    }
    draft.leave(life)?;
    Ok(life)
}

impl MoveWaiting {
    /// Looks at newer and newer maps until `look` returns true; returns false if it never did in time.
    pub(super) async fn until(
        &self,
        maps: &ClusterMaps,
        mut look: impl FnMut(&ClusterMap) -> Result<bool>,
    ) -> Result<bool> {
        let looking = async {
            while !look(&*maps.newest().await?)? {
                tokio::time::sleep(POLL).await;
            }
            anyhow::Ok(())
        };
        match tokio::time::timeout(Duration::from_secs(self.timeout), looking).await {
            Ok(looked) => looked.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// Returns the error that something was not done in time.
    fn check(&self, is_done: bool, pending: &BTreeSet<u16>) -> Result<()> {
        if is_done {
            return Ok(());
        }
        let shards: Vec<String> = pending.iter().map(ToString::to_string).collect();
        bail!(
            "not done within {} s, and goes on: shards {} (is their owner running?)",
            self.timeout,
            shards.join(", ")
        )
    }
}
