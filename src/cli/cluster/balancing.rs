//! `flagstone cluster balance`: shows how the servers share the shards out, and lets them share all.

use super::ClusterPlace;
use super::moving::{MoveRefusal, MoveWaiting, change, moved};
use super::naming::{id_of, named_life};
use super::status::table;
use anyhow::{Result, bail};
use clap::Args;
use flagstone_storage::cluster::{Allotment, ClusterMap, Life, MapDraft, MapRefusal, MemberState};
use std::time::Instant;

/// Show how the shards are shared out, or let the servers share all of them evenly
///
/// Servers share shards out by themselves, but for those that are pinned (`move`). The table has the number of
/// shards of each server, how many of them are pinned, how many it should have, and how many it is to give away or
/// to get.
///
/// With --unpin all pins end, and so do moves that are not done; then the command waits until all servers have what
/// they should have.
#[derive(Args)]
pub(super) struct BalanceArguments {
    /// Take the pins from all shards, and wait until they are shared out evenly
    #[arg(long)]
    unpin: bool,
    #[command(flatten)]
    waiting: MoveWaiting,
    #[command(flatten)]
    at: ClusterPlace,
}

impl BalanceArguments {
    pub(super) async fn run(&self) -> Result<()> {
        let (maps, begun) = (self.at.maps()?, Instant::now());
        if !self.unpin {
            let map = maps.newest().await?;
            say!("{}", described(&map));
            return Ok(());
        }
        let map = change(&maps, unpin_all).await?;
        say!("{}", described(&map));
        if self.waiting.no_wait {
            return Ok(());
        }
        if map.balance().is_empty() {
            bail!("no server runs that could take shards");
        }
        let mut owners: Vec<Option<Life>> = map.shards().iter().map(|shard| shard.owner).collect();
        let is_done = self.waiting.until(&maps, |map| {
            for (owner, shard) in owners.iter_mut().zip(map.shards()) {
                if *owner != shard.owner {
                    say!("{}", moved(map, shard, begun));
                    *owner = shard.owner;
                }
            }
            Ok(is_even(map))
        });
        if !is_done.await? {
            let map = maps.newest().await?;
            bail!(
                "not done within {} s, and goes on (are all servers running?)\n{}",
                self.waiting.timeout,
                described(&map)
            );
        }
        say!("all shards are shared out");
        Ok(())
    }
}

/// Takes the pins from all shards.
fn unpin_all(draft: &mut MapDraft) -> Result<(), MoveRefusal> {
    let all = draft.map().shards().iter();
    let held: Vec<u16> =
        all.filter(|it| it.is_pinned || it.moving_to.is_some()).map(|it| it.id).collect();
    if held.is_empty() {
        return Err(MapRefusal::NoChange.into());
    }
    held.into_iter().try_for_each(|shard| draft.want_move(shard, None)).map_err(MoveRefusal::from)
}

/// Returns true if all servers have the shards that they should have.
fn is_even(map: &ClusterMap) -> bool {
    let has_all = |one: &Allotment| one.shards == one.target;
    map.balance().iter().all(has_all)
        && map.shards().iter().all(|it| it.moving_to.is_none() && it.owner.is_some())
}

/// Returns the number of shards that servers are to give away, or to take if nobody has them.
fn moves(map: &ClusterMap) -> usize {
    map.balance().iter().map(Allotment::lack).sum()
}

/// Returns the text, without a last newline.
fn described(map: &ClusterMap) -> String {
    let head = ["server", "shards", "pinned", "target", "gives", "gets", "leaves"];
    let mut rows = vec![head.map(str::to_owned)];
    let pinned = |life: Life| {
        let of_life = map.shards().iter().filter(|it| it.moving_to.or(it.owner) == Some(life));
        of_life.filter(|it| it.is_pinned).count()
    };
    let or_dash = |number: usize| if number == 0 { "-".to_owned() } else { number.to_string() };
    for one in map.balance() {
        let Some(member) = map.member(one.life) else { continue };
        rows.push([
            id_of(member, false),
            one.shards.to_string(),
            or_dash(pinned(one.life)),
            one.target.to_string(),
            or_dash(one.surplus()),
            or_dash(one.lack()),
            if member.leaving { "yes" } else { "-" }.to_owned(),
        ]);
    }
    let mut parts = vec![table(&rows), String::new()];
    parts.extend(reasons(map));
    parts.join("\n")
}

/// Returns the lines that say what is to happen, and why.
fn reasons(map: &ClusterMap) -> Vec<String> {
    let mut lines = Vec::new();
    let shards = map.shards();
    match moves(map) {
        0 if is_even(map) => lines.push("no shard is to move to even them out".to_owned()),
        0 => {}
        count => lines.push(format!("shards that are to move, or to be taken: {count}")),
    }
    let parked = shards.iter().filter(|shard| shard.owner.is_none()).count();
    if parked > 0 {
        lines.push(format!("shards that no server has: {parked}"));
    }
    let ended = map.members().iter().filter(|it| it.state == MemberState::Open && !it.begun);
    for member in ended {
        let name = named_life(map, member.life);
        lines.push(format!("{name} is joining, or its journal is given up"));
    }
    for shard in shards {
        if let Some(to) = shard.moving_to {
            lines.push(format!("shard {} is asked to move to {}", shard.id, named_life(map, to)));
        }
    }
    let pinned: Vec<String> =
        shards.iter().filter(|it| it.is_pinned).map(|it| it.id.to_string()).collect();
    if !pinned.is_empty() {
        lines.push(format!(
            "pinned shards stay where they are: {}; without the pins, to move: {}",
            pinned.join(","),
            unpinned(map).as_ref().map_or(0, moves)
        ));
    }
    lines
}

/// Returns the map as it would be without pins.
fn unpinned(map: &ClusterMap) -> Option<ClusterMap> {
    let mut draft = map.draft();
    unpin_all(&mut draft).ok()?;
    Some(draft.map().clone())
}

#[cfg(test)]
#[path = "balancing_tests.rs"]
mod tests;
