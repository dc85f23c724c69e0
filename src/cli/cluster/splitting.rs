//! `flagstone cluster split`: asks the owner of a shard to split it, and waits until it has.

use super::ClusterPlace;
use super::moving::{MoveRefusal, MoveWaiting, change};
use super::naming::named_life;
use anyhow::{Result, bail};
use clap::Args;
use flagstone_storage::cluster::{ClusterMap, MapDraft, MapRefusal, MapShard};
use std::ops::Range;
use std::time::Instant;

/// Split a shard into two while it is served
///
/// The upper slots become a shard of their own, at the same server; the others may get it then. Commands on
/// the shard wait for a moment. Nothing is copied: both shards read the same files until these are merged.
#[derive(Args)]
pub(super) struct SplitArguments {
    /// The number of the shard
    #[arg(value_name = "SHARD")]
    shard: u16,
    /// The first slot of the new shard; default: the middle
    #[arg(long, value_name = "SLOT", conflicts_with = "cancel")]
    at: Option<u16>,
    /// Call the split off, if it is not done yet
    #[arg(long)]
    cancel: bool,
    #[command(flatten)]
    waiting: MoveWaiting,
    #[command(flatten)]
    place: ClusterPlace,
}

impl SplitArguments {
    pub(super) async fn run(&self) -> Result<()> {
        let (maps, begun, shard) = (self.place.maps()?, Instant::now(), self.shard);
        if self.cancel {
            change(&maps, |draft| draft.want_split(shard, None).map_err(MoveRefusal::from)).await?;
            say!("shard {shard} is not to be split");
            return Ok(());
        }
        let mut at = None;
        let map = change(&maps, |draft| {
            at = Some(want(draft, shard, self.at)?);
            Ok(())
        });
        let map = map.await?;
        let Some(at) = at.or(entry(&map, shard)?.split_at) else {
            bail!("shard {shard} was split by another command: see `flagstone cluster status`")
        };
        if self.waiting.no_wait {
            say!("shard {shard} is to be split at slot {at}");
            return Ok(());
        }
        let mut made = None;
        let is_done = self.waiting.until(&maps, |map| {
            let found = map.shards().iter().find(|it| map.slots_of(it.id).start == at);
            made = found.filter(|it| it.id != shard).map(|it| lines(map, shard, it));
            match (&made, entry(map, shard)?.split_at) {
                (None, None) => bail!("the split of shard {shard} was called off"),
                (made, _) => Ok(made.is_some()),
            }
        });
        if !is_done.await? {
            bail!(
                "not done within {} s, and goes on: is the owner of shard {shard} running? Its log says what \
                 it waits for",
                self.waiting.timeout
            );
        }
        say!("{} ({:.1} s)", made.unwrap_or_default(), begun.elapsed().as_secs_f64());
        Ok(())
    }
}

fn entry(map: &ClusterMap, shard: u16) -> Result<&MapShard, MapRefusal> {
    map.shards().get(usize::from(shard)).ok_or(MapRefusal::NoShard(shard))
}

/// Asks for the split of a shard, and returns the first slot of the new one.
fn want(draft: &mut MapDraft, shard: u16, at: Option<u16>) -> Result<u16, MoveRefusal> {
    let slots = draft.map().slots_of(shard);
    let at = at.or(entry(draft.map(), shard)?.split_at).unwrap_or_else(|| middle(&slots));
    draft.want_split(shard, Some(at))?;
    Ok(at)
}

fn middle(slots: &Range<u16>) -> u16 {
    slots.start + slots.len() as u16 / 2
}

/// Returns the line of a shard that was split.
fn lines(map: &ClusterMap, shard: u16, made: &MapShard) -> String {
    let shown = |id: u16| {
        let slots = map.slots_of(id);
        format!("shard {id} has the slots {}-{}", slots.start, slots.end - 1)
    };
    let owner = made.owner.map_or_else(|| "nobody".to_owned(), |life| named_life(map, life));
    format!("{}, {} at {owner}", shown(shard), shown(made.id))
}
