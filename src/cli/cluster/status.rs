//! `flagstone cluster status`: the map as tables.

use super::ClusterPlace;
use super::naming::{address_of, id_of};
use anyhow::Result;
use clap::Args;
use flagstone_storage::cluster::{ClusterMap, Life, MapMember, MapShard, MemberState, ServerRole};
use flagstone_storage::slot::SLOTS;
use std::ops::Range;

/// Show the servers and shards of a cluster
///
/// The first line says if all slots have an owner. A parked shard belongs to no server. A shard that
/// lists journals of former owners is served: its owner has read them, and has not stored all of it yet.
#[derive(Args)]
pub(super) struct ClusterStatusArguments {
    #[command(flatten)]
    at: ClusterPlace,
    /// Show whole ids
    #[arg(long, short)]
    wide: bool,
    /// Show the map as JSON, without the secret
    #[arg(long)]
    json: bool,
}

impl ClusterStatusArguments {
    pub(super) async fn run(&self) -> Result<()> {
        let map = self.at.maps()?.newest().await?;
        match self.json {
            true => say!("{}", serde_json::to_string_pretty(&map.without_secret()?)?),
            false => say!("{}", render(&map, self.wide)),
        }
        Ok(())
    }
}

/// Returns the text, without a last newline.
fn render(map: &ClusterMap, wide: bool) -> String {
    let parts = [summary(map), servers(map, wide), shards(map, wide)];
    parts.join("\n\n")
}

fn summary(map: &ClusterMap) -> String {
    let parked = map.shards().iter().filter(|shard| shard.owner.is_none());
    let slots: usize = parked.clone().map(|shard| map.slots_of(shard.id).len()).sum();
    let old = map.shards().iter().filter(|shard| !former(shard).is_empty()).count();
    let whole = match slots {
        0 => format!("all {SLOTS} slots have an owner"),
        slots => format!("{slots} of {SLOTS} slots have no owner"),
    };
    format!(
        "{whole}; shards that are parked: {}, that list journals of former owners: {old}\n\
         map {}, lease {} ms",
        parked.count(),
        map.number(),
        map.lease().as_millis()
    )
}

/// Returns the journals of former owners that a shard lists.
fn former(shard: &MapShard) -> Vec<Life> {
    shard.journals.iter().copied().filter(|life| Some(*life) != shard.owner).collect()
}

fn servers(map: &ClusterMap, wide: bool) -> String {
    let head = ["server", "life", "state", "address", "shards", "slots"];
    let mut rows = vec![head.map(str::to_owned)];
    for member in map.members() {
        let owned: Vec<Range<u16>> =
            map.owned_by(member.life).map(|shard| map.slots_of(shard.id)).collect();
        let mut address = address_of(&member.address);
        if let Some(port) = member.address.tls_port {
            address.push_str(&format!(" tls:{port}"));
        }
        rows.push([
            id_of(member, wide),
            member.life.to_string(),
            state_of(member).to_owned(),
            address,
            owned.len().to_string(),
            joined(&owned),
        ]);
    }
    table(&rows)
}

fn shards(map: &ClusterMap, wide: bool) -> String {
    let head = ["shard", "slots", "owner", "journals", "moving to", "pinned", "split at"];
    let mut rows = vec![head.map(str::to_owned)];
    let named = |life: Option<Life>| match life {
        Some(life) => map.member(life).map_or_else(|| life.to_string(), |it| id_of(it, wide)),
        None => "-".to_owned(),
    };
    for shard in map.shards() {
        let journals: Vec<String> = shard.journals.iter().map(ToString::to_string).collect();
        rows.push([
            shard.id.to_string(),
            joined(&[map.slots_of(shard.id)]),
            named(shard.owner),
            or_dash(journals.join(",")),
            named(shard.moving_to),
            if shard.is_pinned { "yes" } else { "-" }.to_owned(),
            or_dash(shard.split_at.map(|slot| slot.to_string()).unwrap_or_default()),
        ]);
    }
    table(&rows)
}

fn state_of(member: &MapMember) -> &'static str {
    match member.state {
        MemberState::Open if member.leaving => "leaving",
        MemberState::Open if member.role == ServerRole::Standby => "standby",
        MemberState::Open if member.is_replica() => "replica",
        MemberState::Open => "open",
        MemberState::Sealed => "sealed",
        MemberState::Released => "released",
    }
}

/// Returns ranges of slots as `0-99,200`; those that follow each other as one.
fn joined(ranges: &[Range<u16>]) -> String {
    let mut ranges = ranges.to_vec();
    ranges.sort_by_key(|range| range.start);
    let mut whole: Vec<Range<u16>> = Vec::new();
    for range in ranges.iter().filter(|range| !range.is_empty()) {
        match whole.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => whole.push(range.clone()),
        }
    }
    let shown = whole.iter().map(|range| match range.len() {
        1 => range.start.to_string(),
        _ => format!("{}-{}", range.start, range.end - 1),
    });
    or_dash(shown.collect::<Vec<_>>().join(","))
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Returns rows with columns of equal width, without a last newline.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
