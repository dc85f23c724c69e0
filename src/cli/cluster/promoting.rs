//! `flagstone cluster promote`: makes a replica an owner, and waits until it has its share.

use super::ClusterPlace;
use super::moving::{MoveRefusal, MoveWaiting, change, moved};
use super::naming::{find, named_life};
use anyhow::{Result, anyhow, bail};
use clap::Args;
use flagstone_storage::cluster::{ClusterMap, Life, MapDraft, MapRefusal};
use std::collections::BTreeSet;
use std::time::Instant;

/// Make a replica an owner of shards
///
/// The servers share the shards out with it, and take over those that nobody serves. It shows the shards of others
/// no more. A standby (cluster-replica standby) does this by itself when an owner is lost. The server is an
/// owner until others have its shards: a start before that is an owner again, a later one does what its settings say.
#[derive(Args)]
pub(super) struct PromoteArguments {
    /// The replica: the beginning of its id, or host:port
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    waiting: MoveWaiting,
    #[command(flatten)]
    at: ClusterPlace,
}

impl PromoteArguments {
    pub(super) async fn run(&self) -> Result<()> {
        let (maps, begun) = (self.at.maps()?, Instant::now());
        let map = change(&maps, |draft| promote(draft, &self.node)).await?;
        let life = find(&map, &self.node)?.life;
        let name = named_life(&map, life);
        say!("{name} is an owner, and is to have {} shards", map.fair_share(life));
        if self.waiting.no_wait {
            return Ok(());
        }
        let mut seen = BTreeSet::new();
        let is_done = self.waiting.until(&maps, |map| {
            for shard in map.owned_by(life).filter(|shard| seen.insert(shard.id)) {
                say!("{}", moved(map, shard, begun));
            }
            has_share(map, life)
        });
        if !is_done.await? {
            bail!(
                "not done within {} s, and goes on (are all servers running?)",
                self.waiting.timeout
            );
        }
        Ok(())
    }
}

/// Makes a replica an owner.
fn promote(draft: &mut MapDraft, node: &str) -> Result<(), MoveRefusal> {
    let member = find(draft.map(), node).map_err(MoveRefusal::Because)?;
    let life = member.life;
    draft.promote(life).map_err(|refusal| match refusal {
        MapRefusal::Leaving(_) => {
            MoveRefusal::Because(anyhow!("{} leaves the cluster", named_life(draft.map(), life)))
        }
        other => other.into(),
    })
}

/// Returns true if a life has as many shards as it should have.
///
/// # Errors
/// If it has ended.
fn has_share(map: &ClusterMap, life: Life) -> Result<bool> {
    let Some(one) = map.balance().into_iter().find(|one| one.life == life) else {
        bail!("life {life} has ended meanwhile");
    };
    Ok(map.owned_by(life).count() >= one.target)
}
