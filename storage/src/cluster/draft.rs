//! Changes of the map, each with the rules that a map alone can check. What the caller must have
//! done before (read a seal, flushed a shard) stands with each.

use super::libraries::LibrariesId;
use super::map::{ClusterMap, FORMAT, MAX_BYTES, MAX_MEMBERS, MapShard, SplitOrigin};
use super::member::{ClusterSecret, Life, MapMember, MemberState, NodeAddress, NodeId, ServerRole};
use crate::division::PartOrigin;
use crate::journal::Lsn;
use crate::slot::{Layout, MAX_SHARDS};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// The reason why a map does not allow a change. The draft is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapRefusal {
    #[error("a cluster has at least one shard, and a lease")]
    NoSettings,
    #[error("the host of a server has 1 to 255 visible characters of ASCII")]
    NoHost,
    #[error("life {0} is not open in the map")]
    NotOpen(Life),
    #[error("the map has no life {0}")]
    NoLife(Life),
    /// The node's former life must be sealed first.
    #[error("the node has joined as life {0}, which is open")]
    NodeIsOpen(Life),
    #[error("there is no shard {0}")]
    NoShard(u16),
    #[error("shard {shard} is not owned by life {life}")]
    NotOwner { shard: u16, life: Life },
    #[error("shard {0} has no owner")]
    Parked(u16),
    #[error("shard {shard} has an owner, life {owner}")]
    Owned { shard: u16, owner: Life },
    #[error(
        "shard {shard} cannot be split at slot {slot}: it does not have it, or it is its first one"
    )]
    NoSplit { shard: u16, slot: u16 },
    #[error("there are {MAX_SHARDS} shards, or will be, and no more are possible")]
    ManyShards,
    #[error("shard {0} must go from its sealed owner to an open one")]
    NoHeir(u16),
    #[error("life {0} owns shards")]
    OwnsShards(Life),
    #[error("life {0} leaves the cluster, and gets no shards")]
    Leaving(Life),
    #[error("life {0} is a replica, and gets no shards")]
    Replica(Life),
    #[error("another server has changed the libraries of functions")]
    OtherLibraries,
    /// They were put on the base of a map that is too old by now.
    #[error("the libraries of functions were put too long ago")]
    LateLibraries,
    #[error("the map is so already")]
    NoChange,
    #[error("the map is full: it has {0} lives, and forgets those only that no list names")]
    Full(usize),
    #[error("the map has {0} bytes, which is too much")]
    TooLarge(usize),
    /// A change has a fault of its own; it is not put.
    #[error("the changed map is invalid: {0}")]
    Invalid(String),
}

/// A change of the map that is being made: any number of steps, which count together or not at all.
#[derive(Debug)]
pub struct MapDraft {
    pub(super) map: ClusterMap,
}

/// A whole change, which may be under way. Its fate is known once [`MapStore::change`] has returned
/// an outcome; after an error the same change is to be put again, and nothing be served meanwhile of
/// a shard that it gives away (rule 3).
///
/// [`MapStore::change`]: super::MapStore::change
#[derive(Clone)]
pub struct PendingChange {
    pub(super) map: Arc<ClusterMap>,
    pub(super) text: Bytes,
}

impl PendingChange {
    /// Returns the map that it makes. It may count, or not.
    pub fn map(&self) -> &ClusterMap {
        &self.map
    }
}

impl fmt::Debug for PendingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let map = &self.map;
        f.debug_struct("PendingChange").field("number", &map.number).finish_non_exhaustive()
    }
}

impl ClusterMap {
    /// Begins a change on the base of this map, which counts.
    pub fn draft(&self) -> MapDraft {
        let map = Self { number: self.number + 1, nonce: rand::random(), ..self.clone() };
        MapDraft { map }
    }
}

impl MapDraft {
    /// Makes the first map of a cluster: nobody has joined, and all shards are parked. `lease_ms`:
    /// see [`ClusterMap::lease`].
    ///
    /// # Errors
    /// If there is no shard, or no lease.
    pub fn create(shards: u16, lease_ms: u64) -> Result<Self, MapRefusal> {
        if shards == 0 || lease_ms == 0 {
            return Err(MapRefusal::NoSettings);
        }
        let parked = |id| MapShard {
            id,
            owner: None,
            journals: Vec::new(),
            since: 1,
            is_begun: false,
            stored: 0,
            moving_to: None,
            is_pinned: false,
            slots: None,
            origin: None,
            split_at: None,
        };
        Ok(Self {
            map: ClusterMap {
                format: FORMAT,
                number: 1,
                nonce: rand::random(),
                next_life: 1,
                lease_ms,
                secret: ClusterSecret::random(),
                functions: None,
                members: Vec::new(),
                shards: (0..shards).map(parked).collect(),
            },
        })
    }

    /// Makes the first map of a cluster that gets the data of a single server: all shards are parked, and
    /// their engines have everything. `epoch`: the greatest of the server's journal, above which all
    /// lives are, as rows have versions by epochs; `origin`: which shard each was split from, and in which epoch.
    ///
    /// # Errors
    /// See [`create`](Self::create).
    pub(super) fn create_behind(
        epoch: u64,
        layout: &Layout,
        origin: &dyn Fn(u16) -> Option<PartOrigin>,
        lease_ms: u64,
    ) -> Result<Self, MapRefusal> {
        let mut draft = Self::create(layout.shards(), lease_ms)?;
        draft.map.next_life = epoch + 1;
        let division = layout.division().unwrap_or_default();
        for shard in &mut draft.map.shards {
            shard.is_begun = true;
            let slots = division.get(usize::from(shard.id));
            shard.slots = slots.map(|slots| (slots.start, slots.end - 1));
            let origin = origin(shard.id);
            shard.origin =
                origin.map(|from| SplitOrigin { shard: from.shard, by: Life(from.epoch) });
        }
        Ok(draft)
    }

    /// Returns the map as the steps so far have made it.
    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// Lets a new life of a node join, and returns it. It counts once the change does (rule 4). The
    /// life gets the shards of the node's sealed lives, whose journals stay listed, and parked ones
    /// up to its fair share.
    ///
    /// # Errors
    /// If the node has an open life: its journal must be sealed, which may be a step of the same
    /// change. If the host is not valid, or the map is full.
    pub fn join(&mut self, node: NodeId, address: NodeAddress) -> Result<Life, MapRefusal> {
        let life = self.add(node, address, ServerRole::Owner)?;
        let is_of_node = |owner: Life| self.map.member(owner).is_some_and(|m| m.node == node);
        let owned = self.map.shards.iter().filter(|shard| shard.owner.is_some_and(is_of_node));
        for shard in owned.map(|shard| shard.id).collect::<Vec<_>>() {
            self.inherit(shard, life);
        }
        let lack = self.map.balance().iter().find(|one| one.life == life).map_or(0, |o| o.lack());
        let parked = self.map.shards.iter().filter(|shard| shard.owner.is_none());
        for shard in parked.map(|shard| shard.id).take(lack).collect::<Vec<_>>() {
            self.inherit(shard, life);
        }
        Ok(life)
    }

    /// Lets a new life of a node join that owns no shard, unless it is promoted, and returns it.
    ///
    /// # Errors
    /// Also if a former life of the node owns shards: others have to take them first.
    pub fn join_as_replica(
        &mut self,
        node: NodeId,
        address: NodeAddress,
        role: ServerRole,
    ) -> Result<Life, MapRefusal> {
        let of_node = self.map.members.iter().filter(|member| member.node == node);
        let mut lives = of_node.map(|member| member.life);
        let owner = lives.find(|life| self.map.owned_by(*life).next().is_some());
        if let Some(owner) = owner.filter(|owner| !self.map.is_open(*owner)) {
            return Err(MapRefusal::OwnsShards(owner));
        }
        self.add(node, address, role)
    }

    /// Makes a replica an owner, which has no shard yet.
    ///
    /// # Errors
    /// If it is not open, if it leaves, or if it is an owner already.
    pub fn promote(&mut self, life: Life) -> Result<(), MapRefusal> {
        self.open(life)?;
        let member = self.map.members.iter_mut().find(|m| m.life == life && m.is_replica());
        let member = member.ok_or(MapRefusal::NoChange)?;
        if member.leaving {
            return Err(MapRefusal::Leaving(life));
        }
        member.role = ServerRole::Owner;
        Ok(())
    }

    /// Adds a new life of a node.
    fn add(
        &mut self,
        node: NodeId,
        address: NodeAddress,
        role: ServerRole,
    ) -> Result<Life, MapRefusal> {
        if let Some(former) = self.map.open_member(node) {
            return Err(MapRefusal::NodeIsOpen(former.life));
        }
        if !address.is_valid() {
            return Err(MapRefusal::NoHost);
        }
        if self.map.members.len() >= MAX_MEMBERS {
            return Err(MapRefusal::Full(self.map.members.len()));
        }
        let life = Life(self.map.next_life);
        self.map.next_life += 1;
        let (state, begun, leaving) = (MemberState::Open, false, false);
        self.map.members.push(MapMember { node, life, state, begun, leaving, role, address });
        Ok(life)
    }

    /// Notes that a life has begun its journal.
    ///
    /// # Errors
    /// If it is not open, or if that was noted before.
    pub fn begin(&mut self, life: Life) -> Result<(), MapRefusal> {
        self.open(life)?;
        let member = self.map.members.iter_mut().find(|m| m.life == life && !m.begun);
        member.ok_or(MapRefusal::NoChange)?.begun = true;
        Ok(())
    }

    /// Notes that a user accepts the loss of a life's journal, which is missing: a server that finds no
    /// object of it goes on without (see [`begin`](Self::begin)).
    ///
    /// # Errors
    /// If the map does not have the life, or if that was noted before.
    pub fn give_up(&mut self, life: Life) -> Result<(), MapRefusal> {
        let member = self.map.members.iter_mut().find(|member| member.life == life);
        let member = member.ok_or(MapRefusal::NoLife(life))?;
        if !member.begun {
            return Err(MapRefusal::NoChange);
        }
        member.begun = false;
        Ok(())
    }

    /// Notes that an open life is at another address.
    ///
    /// # Errors
    /// If it is not open, if the host is not valid, or if it is there already.
    pub fn readdress(&mut self, life: Life, address: &NodeAddress) -> Result<(), MapRefusal> {
        self.open(life)?;
        if !address.is_valid() {
            return Err(MapRefusal::NoHost);
        }
        let elsewhere = |m: &&mut MapMember| m.life == life && m.address != *address;
        let member = self.map.members.iter_mut().find(elsewhere);
        member.ok_or(MapRefusal::NoChange)?.address = address.clone();
        Ok(())
    }

    /// Notes that the journal of a life is sealed, and gives its shards to `heirs`: pairs of a shard
    /// and an open life. The caller has read the seal, and it counts (rules 5 and 6). The journals
    /// stay listed (rule 14). A shard without an heir must get an owner by a later step of this
    /// change; it is left to nobody only if no life is open.
    ///
    /// # Errors
    /// If the life is not open, if a shard is not its own or has two heirs, or if an heir is not open.
    pub fn seal(&mut self, life: Life, heirs: &[(u16, Life)]) -> Result<(), MapRefusal> {
        self.open(life)?;
        for (at, (shard, heir)) in heirs.iter().enumerate() {
            self.owned(*shard, life)?;
            self.may_own(*heir)?;
            if *heir == life {
                return Err(MapRefusal::NotOpen(life));
            }
            if heirs[..at].iter().any(|(before, _)| before == shard) {
                return Err(MapRefusal::Owned { shard: *shard, owner: *heir });
            }
        }
        self.end(life, MemberState::Sealed);
        for (shard, heir) in heirs {
            self.inherit(*shard, *heir);
        }
        self.end_wishes(|shard| shard.owner == Some(life));
        Ok(())
    }

    /// Gives a shard from its owner to another life. The owner itself asks for it, takes no commands
    /// for the shard until the fate of the change is known, has flushed all of it, and its own wait
    /// for former owners is over (rules 19 to 21).
    ///
    /// # Errors
    /// If `from` does not own it, or if one of them is not open, or if they are the same.
    pub fn give(&mut self, shard: u16, from: Life, to: Life) -> Result<(), MapRefusal> {
        self.owned(shard, from)?;
        self.may_own(to)?;
        if from == to {
            return Err(MapRefusal::NoChange);
        }
        self.hand_over(shard, Some(to), vec![to]);
        self.map.shards[usize::from(shard)].is_begun = true;
        Ok(())
    }

    /// Leaves a shard to nobody. For its owner the same holds as when it gives the shard away.
    ///
    /// # Errors
    /// If `from` does not own it.
    pub fn park(&mut self, shard: u16, from: Life) -> Result<(), MapRefusal> {
        self.owned(shard, from)?;
        self.hand_over(shard, None, Vec::new());
        self.map.shards[usize::from(shard)].is_begun = true;
        Ok(())
    }

    /// Makes a life the owner of a parked shard. If journals are listed they stay so (rule 14).
    ///
    /// # Errors
    /// If the shard has an owner, or if the life is not open.
    pub fn take_parked(&mut self, shard: u16, life: Life) -> Result<(), MapRefusal> {
        self.may_own(life)?;
        if let Some(owner) = self.entry(shard)?.owner {
            return Err(MapRefusal::Owned { shard, owner });
        }
        self.inherit(shard, life);
        Ok(())
    }

    /// Asks the owner of a shard to give it to `to`, or to keep it if that is the owner; balance leaves
    /// it there. `None`: ends such a wish, and balance may move the shard.
    ///
    /// # Errors
    /// If nobody owns the shard, if `to` is not open, or leaves, or if it was asked so before.
    pub fn want_move(&mut self, shard: u16, to: Option<Life>) -> Result<(), MapRefusal> {
        let entry = self.entry(shard)?;
        if let Some(to) = to {
            self.open(to)?;
            match self.map.member(to) {
                Some(member) if member.is_replica() => return Err(MapRefusal::Replica(to)),
                Some(member) if member.leaving => return Err(MapRefusal::Leaving(to)),
                _ => {}
            }
            if entry.owner.is_none() {
                return Err(MapRefusal::Parked(shard));
            }
        }
        let wish = (to.filter(|to| entry.owner != Some(*to)), to.is_some());
        if (entry.moving_to, entry.is_pinned) == wish {
            return Err(MapRefusal::NoChange);
        }
        let entry = &mut self.map.shards[usize::from(shard)];
        (entry.moving_to, entry.is_pinned) = wish;
        Ok(())
    }

    /// Notes that the owner's engine has all records of a shard in the journals before its own: they
    /// leave the list (rule 24), and the engine's files must be there from now on.
    ///
    /// # Errors
    /// If `life` does not own it, or if no other journal is listed, and the shard is begun.
    pub fn note_flushed(&mut self, shard: u16, life: Life) -> Result<(), MapRefusal> {
        self.owned(shard, life)?;
        let entry = &mut self.map.shards[usize::from(shard)];
        if entry.journals.len() == 1 && entry.is_begun {
            return Err(MapRefusal::NoChange);
        }
        (entry.journals, entry.is_begun) = (vec![life], true);
        Ok(())
    }

    /// Notes that the engine of a shard has stored everything up to an lsn.
    ///
    /// # Errors
    /// If `life` does not own it.
    pub fn note_stored(&mut self, shard: u16, life: Life, lsn: Lsn) -> Result<(), MapRefusal> {
        self.owned(shard, life)?;
        let entry = &mut self.map.shards[usize::from(shard)];
        entry.stored = entry.stored.max(lsn);
        Ok(())
    }

    /// Notes that a life is to own nothing any more: it gives its shards away, and gets no others.
    ///
    /// # Errors
    /// If it is not open, or leaves already.
    pub fn leave(&mut self, life: Life) -> Result<(), MapRefusal> {
        self.open(life)?;
        let member = self.map.members.iter_mut().find(|m| m.life == life && !m.leaving);
        member.ok_or(MapRefusal::NoChange)?.leaving = true;
        self.end_wishes(|shard| shard.moving_to == Some(life));
        Ok(())
    }

    /// Notes that a life has ended its journal by itself: it answers nothing any more (rule 8).
    ///
    /// # Errors
    /// If it is not open, or owns a shard.
    pub fn release(&mut self, life: Life) -> Result<(), MapRefusal> {
        self.open(life)?;
        if self.map.owned_by(life).next().is_some() {
            return Err(MapRefusal::OwnsShards(life));
        }
        self.end(life, MemberState::Released);
        Ok(())
    }

    /// Takes lives from the map that have ended, and that no list names. The objects of their journals
    /// were deleted before, without the seals (rule 7): else nobody would know that they are left.
    ///
    /// # Errors
    /// If none of them is there any more.
    pub fn forget(&mut self, lives: &[Life]) -> Result<(), MapRefusal> {
        let mut gone = self.map.ended();
        gone.retain(|life| lives.contains(life));
        if gone.is_empty() {
            return Err(MapRefusal::NoChange);
        }
        self.map.members.retain(|member| !gone.contains(&member.life));
        Ok(())
    }

    /// Replaces the libraries of functions: the caller has made those of the object `to` from those of
    /// `from`, and has put them after it read the map in the id. `None`: no libraries.
    ///
    /// # Errors
    /// If the libraries are not those of `from` any more; if `to` was put on the base of a map that is
    /// too old; if nothing changes.
    pub fn replace_functions(
        &mut self,
        from: Option<LibrariesId>,
        to: Option<LibrariesId>,
    ) -> Result<(), MapRefusal> {
        if self.map.functions != from {
            return Err(MapRefusal::OtherLibraries);
        }
        if from == to {
            return Err(MapRefusal::NoChange);
        }
        if to.is_some_and(|id| !id.may_begin_with(self.map.number)) {
            return Err(MapRefusal::LateLibraries);
        }
        self.map.functions = to;
        Ok(())
    }

    /// Completes the change.
    ///
    /// # Errors
    /// If a shard has a sealed owner, although a life is open; if the map gets too large.
    pub fn finish(mut self) -> Result<PendingChange, MapRefusal> {
        let is_orphan = |s: &&MapShard| s.owner.is_some_and(|owner| !self.map.is_open(owner));
        let orphans: Vec<u16> = self.map.shards.iter().filter(is_orphan).map(|s| s.id).collect();
        let has_heirs = self.map.members.iter().any(|m| self.map.may_own(m.life));
        for shard in orphans {
            if has_heirs {
                return Err(MapRefusal::NoHeir(shard));
            }
            let journals = self.entry(shard)?.journals.clone();
            self.hand_over(shard, None, journals);
        }
        self.map.check().map_err(MapRefusal::Invalid)?;
        let encoded = self.map.encode();
        let text = encoded.map_err(|error| MapRefusal::Invalid(error.to_string()))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(MapRefusal::TooLarge(text.len()));
        }
        Ok(PendingChange { map: Arc::new(self.map), text })
    }

    fn entry(&self, shard: u16) -> Result<&MapShard, MapRefusal> {
        self.map.shards.get(usize::from(shard)).ok_or(MapRefusal::NoShard(shard))
    }

    /// Checks that a life has not ended.
    fn open(&self, life: Life) -> Result<(), MapRefusal> {
        self.map.is_open(life).then_some(()).ok_or(MapRefusal::NotOpen(life))
    }

    /// Checks that a life may own shards.
    fn may_own(&self, life: Life) -> Result<(), MapRefusal> {
        self.open(life)?;
        self.map.may_own(life).then_some(()).ok_or(MapRefusal::Replica(life))
    }

    /// Checks that an open life owns a shard.
    pub(super) fn owned(&self, shard: u16, life: Life) -> Result<(), MapRefusal> {
        let is_owner = self.entry(shard)?.owner == Some(life);
        is_owner.then_some(()).ok_or(MapRefusal::NotOwner { shard, life })?;
        self.open(life)
    }

    /// Ends a life: nothing moves to it any more.
    fn end(&mut self, life: Life, state: MemberState) {
        self.map.members.iter_mut().filter(|m| m.life == life).for_each(|m| m.state = state);
        self.end_wishes(|shard| shard.moving_to == Some(life));
    }

    /// Ends the wishes of users for some shards.
    fn end_wishes(&mut self, of: impl Fn(&MapShard) -> bool) {
        for shard in self.map.shards.iter_mut().filter(|shard| of(shard)) {
            (shard.moving_to, shard.is_pinned) = (None, false);
        }
    }

    /// Gives a shard to a life that has to read the listed journals first.
    fn inherit(&mut self, shard: u16, heir: Life) {
        let mut journals = self.map.shards[usize::from(shard)].journals.clone();
        journals.push(heir);
        self.hand_over(shard, Some(heir), journals);
    }

    pub(super) fn hand_over(&mut self, shard: u16, owner: Option<Life>, journals: Vec<Life>) {
        let since = self.map.number;
        let entry = &mut self.map.shards[usize::from(shard)];
        let is_pinned = entry.is_pinned && owner.is_some() && owner == entry.moving_to;
        *entry = MapShard { owner, journals, since, moving_to: None, is_pinned, ..*entry };
    }
}
