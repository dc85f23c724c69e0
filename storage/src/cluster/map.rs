//! The data of a map, and its bytes (`docs/format.md`).

use super::libraries::LibrariesId;
use super::member::{ClusterSecret, Life, MapMember, MemberState, NodeId};
use crate::journal::Lsn;
use crate::slot::{Layout, MAX_SHARDS, SLOTS};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::time::Duration;

/// The version of the format that this program writes and reads.
pub(super) const FORMAT: u32 = 1;

/// Maximum number of lives in a map, including those that are sealed.
pub(super) const MAX_MEMBERS: usize = 1000;

/// Maximum number of bytes of a map.
pub(super) const MAX_BYTES: u64 = 32 << 20;

/// A map of the cluster that counts: the first content of its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterMap {
    pub(super) format: u32,
    pub(super) number: u64,
    /// A random number of the change that made it.
    pub(super) nonce: u64,
    pub(super) next_life: u64,
    pub(super) lease_ms: u64,
    pub(super) secret: ClusterSecret,
    /// The object with the libraries of functions; `None`: there are none.
    pub(super) functions: Option<LibrariesId>,
    /// In the order of their lives.
    pub(super) members: Vec<MapMember>,
    /// Shard n is at n.
    pub(super) shards: Vec<MapShard>,
}

/// The entry of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapShard {
    pub id: u16,
    /// The life that may serve it; `None`: the shard is parked, and any life may take it.
    pub owner: Option<Life>,
    /// The lives in whose journals there may be records of it that its engine lacks, in the order in
    /// which they owned it. The owner is the last one.
    pub journals: Vec<Life>,
    /// The number of the map that made the owner the owner, or parked the shard. An owner that
    /// finds another number than the one it knows has lost the shard meanwhile, and takes it again
    /// (rule 22).
    pub since: u64,
    /// True once an owner has stored something in its engine: its files must be there.
    pub is_begun: bool,
    /// The lsn up to which its engine has stored everything, at least: one with less is an older copy.
    #[serde(default)]
    pub stored: Lsn,
    /// The life to which the owner is to give it.
    pub moving_to: Option<Life>,
    /// True if a user wants it at `moving_to`, or else at its owner: balance leaves it there. It ends
    /// when the shard changes hands in another way.
    pub is_pinned: bool,
    /// Its first and its last slot, once any shard was split; `None`: see [`ClusterMap::slots_of`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<(u16, u16)>,
    /// The shard that it was split from, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<SplitOrigin>,
    /// The first slot that the owner is to split off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_at: Option<u16>,
}

/// The origin of a shard that was split from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitOrigin {
    pub shard: u16,
    /// The life that made its files. It is a part of their place: a life that has ended, and still writes
    /// there, disturbs nobody.
    pub by: Life,
}

/// The reason why an object is no map that can be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MapUnreadable {
    /// It has a version of the format that this program does not know.
    Newer(u32),
    Damaged(String),
}

#[derive(Deserialize)]
struct MapVersion {
    format: u32,
}

impl ClusterMap {
    /// Returns the number of the map, from 1 on.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns how long the object of a journal proves that its owner is not replaced. It is fixed
    /// when the cluster is made.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// Returns the secret, which is fixed when the cluster is made.
    pub fn secret(&self) -> &ClusterSecret {
        &self.secret
    }

    /// Returns the object with the libraries of functions that count; `None`: there are none.
    pub fn functions(&self) -> Option<LibrariesId> {
        self.functions
    }

    /// Returns all lives that are not forgotten, in their order.
    pub fn members(&self) -> &[MapMember] {
        &self.members
    }

    pub fn member(&self, life: Life) -> Option<&MapMember> {
        let at = self.members.binary_search_by_key(&life, |member| member.life).ok()?;
        self.members.get(at)
    }

    /// Returns the life of a node that may own shards, if it has one.
    pub fn open_member(&self, node: NodeId) -> Option<&MapMember> {
        self.members.iter().find(|m| m.node == node && m.state == MemberState::Open)
    }

    pub fn is_open(&self, life: Life) -> bool {
        self.member(life).is_some_and(|member| member.state == MemberState::Open)
    }

    /// Returns true if a life is open, and may own shards.
    pub(super) fn may_own(&self, life: Life) -> bool {
        let is_owner =
            |member: &MapMember| member.state == MemberState::Open && !member.is_replica();
        self.member(life).is_some_and(is_owner)
    }

    /// Returns the shards; shard n is at n.
    pub fn shards(&self) -> &[MapShard] {
        &self.shards
    }

    /// Returns the slots of a shard; none if there is no such shard.
    pub fn slots_of(&self, shard: u16) -> Range<u16> {
        match self.shards.get(usize::from(shard)) {
            None => 0..0,
            Some(MapShard { slots: Some((first, last)), .. }) => *first..last + 1,
            Some(_) => Layout::slots_at_creation(self.shards.len() as u16, shard),
        }
    }

    /// Returns the slots of all shards, in the order of the shards.
    pub fn division(&self) -> Vec<Range<u16>> {
        self.shards.iter().map(|shard| self.slots_of(shard.id)).collect()
    }

    /// Returns the shards of an owner, in their order.
    pub fn owned_by(&self, life: Life) -> impl Iterator<Item = &MapShard> {
        self.shards.iter().filter(move |shard| shard.owner == Some(life))
    }

    /// Returns true if the journal of `life` may have records that an engine lacks.
    pub fn lists(&self, life: Life) -> bool {
        self.shards.iter().any(|shard| shard.journals.contains(&life))
    }

    /// Returns the lives that have ended, and that no list names. None will ever name them, so the
    /// objects of their journals, without the seals, may be deleted (rules 25 and 26).
    pub fn ended(&self) -> Vec<Life> {
        let is_gone = |m: &&MapMember| m.state != MemberState::Open && !self.lists(m.life);
        self.members.iter().filter(is_gone).map(|member| member.life).collect()
    }

    /// Returns its fields for people and scripts, without the secret.
    ///
    /// # Errors
    /// None that can be expected: all of its fields have a form in JSON.
    pub fn without_secret(&self) -> serde_json::Result<serde_json::Value> {
        let mut fields = serde_json::to_value(self)?;
        if let Some(fields) = fields.as_object_mut() {
            fields.remove("secret");
        }
        Ok(fields)
    }

    /// Returns the bytes of its object.
    pub(super) fn encode(&self) -> serde_json::Result<Bytes> {
        crate::checked::to_vec(self).map(Bytes::from)
    }

    /// Reads the object of map `number`.
    pub(super) fn decode(number: u64, text: &[u8]) -> Result<Self, MapUnreadable> {
        let damaged = MapUnreadable::Damaged;
        let invalid = |error: anyhow::Error| damaged(error.to_string());
        let MapVersion { format } = crate::checked::from_slice(text).map_err(invalid)?;
        if format > FORMAT {
            return Err(MapUnreadable::Newer(format));
        }
        let map: Self = crate::checked::from_slice(text).map_err(invalid)?;
        if map.number != number {
            return Err(damaged(format!("it is map {}", map.number)));
        }
        map.check().map_err(damaged)?;
        Ok(map)
    }

    /// Checks what holds in every map. The error says what does not.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.format != FORMAT || self.number == 0 || self.lease_ms == 0 {
            return Err("its format, its number or its lease is invalid".to_owned());
        }
        let shards = 1..=usize::from(MAX_SHARDS);
        if !shards.contains(&self.shards.len()) || self.members.len() > MAX_MEMBERS {
            return Err("it has no shard, or too many shards or members".to_owned());
        }
        if !self.members.is_sorted_by(|a, b| a.life < b.life) {
            return Err("its members are not in the order of their lives".to_owned());
        }
        if self.functions.is_some_and(|id| id.map >= self.number) {
            return Err("it names libraries of a later map".to_owned());
        }
        let first = self.members.first().map_or(1, |member| member.life.0);
        let last = self.members.last().map_or(0, |member| member.life.0);
        if first == 0 || last >= self.next_life {
            return Err("it has a life that was never given".to_owned());
        }
        for member in &self.members {
            let is_other = self.open_member(member.node).is_some_and(|m| m.life != member.life);
            if member.state == MemberState::Open && is_other {
                return Err(format!("node {} has two open lives", member.node));
            }
            if !member.address.is_valid() {
                return Err(format!("life {} has no valid host", member.life));
            }
        }
        if !self.covers_all_slots() {
            return Err("its shards do not have each slot once".to_owned());
        }
        for (id, shard) in self.shards.iter().enumerate() {
            if let Some(complaint) = self.complaint(id, shard) {
                return Err(format!("shard {} {complaint}", shard.id));
            }
        }
        Ok(())
    }

    /// Returns true if each slot is in one shard: those of creation, or those that are said.
    fn covers_all_slots(&self) -> bool {
        if self.shards.iter().all(|shard| shard.slots.is_none()) {
            return true;
        }
        let mut said: Vec<(u16, u16)> = self.shards.iter().filter_map(|it| it.slots).collect();
        said.sort_unstable();
        let mut next = 0;
        let follows = said.iter().all(|(first, last)| {
            let is_next = *first == next && first <= last && *last < SLOTS;
            next = last.saturating_add(1);
            is_next
        });
        follows && next == SLOTS && said.len() == self.shards.len()
    }

    /// Returns what is wrong with the entry in the place of shard `id`.
    fn complaint(&self, id: usize, shard: &MapShard) -> Option<&'static str> {
        if usize::from(shard.id) != id {
            return Some("is in the place of another one");
        }
        let former = match shard.owner {
            None => &shard.journals[..],
            Some(owner) => match shard.journals.split_last() {
                Some((last, former)) if *last == owner && self.may_own(owner) => former,
                _ => return Some("has an owner that is not open, or not the last of its list"),
            },
        };
        let is_ended = |life: &Life| self.member(*life).is_some() && !self.is_open(*life);
        if !former.iter().all(is_ended) {
            return Some("lists a journal of another owner that is not ended");
        }
        if (1..former.len()).any(|at| former[..at].contains(&former[at])) {
            return Some("lists a journal twice");
        }
        if !(1..=self.number).contains(&shard.since) {
            return Some("has an owner since a later map");
        }
        if shard.is_pinned && shard.owner.is_none() {
            return Some("is pinned, and has no owner");
        }
        if shard.origin.is_some_and(|from| from.shard >= shard.id || from.by.0 >= self.next_life) {
            return Some("was split from a later shard, or by a later life");
        }
        let slots = self.slots_of(shard.id);
        if shard.split_at.is_some_and(|at| at <= slots.start || at >= slots.end) {
            return Some("is to be split at a slot that it does not have, or at its first one");
        }
        let aim = shard.moving_to?;
        let is_wrong = shard.owner.is_none_or(|owner| owner == aim) || !self.may_own(aim);
        is_wrong.then_some("is to move to a life that cannot have it")
    }
}
