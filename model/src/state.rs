//! A state of the cluster, and the ghosts: facts that no server knows, by which the invariants are
//! judged.

use crate::bucket::{Bucket, Lsn, Position, Seal, Straggler};
use crate::invariants::Invariant;
use crate::life::{Believed, Life, Phase, Role, Tenure};
use crate::map::{ClusterMap, LifeId, Number, ShardId};
use crate::rules::Rule;
use crate::scene::{Limits, Scene};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub bucket: Bucket,
    pub lives: Vec<Life>,
    pub stragglers: Vec<Straggler>,
    /// The limits, less what has happened.
    pub left: Limits,
    pub ghosts: Ghosts,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ghosts {
    /// The sequence of maps: the first content of each number, from 1.
    pub sequence: Vec<Arc<ClusterMap>>,
    /// The greatest value of each shard that a client has seen.
    pub shown: Vec<u8>,
    /// The greatest lsn of each shard that was stored.
    pub lsns: Vec<Lsn>,
    /// The invariant that the last action has broken. Nothing happens after that.
    pub broken: Option<Invariant>,
}

impl State {
    /// Returns the state in which a scene begins.
    pub fn first(scene: &Scene) -> Self {
        let shards = scene.owners.len();
        let mut state = Self {
            bucket: Bucket::new(shards),
            lives: vec![Life::new(shards); scene.nodes.len()],
            stragglers: Vec::new(),
            left: scene.limits,
            ghosts: Ghosts {
                sequence: Vec::new(),
                shown: vec![0; shards],
                lsns: vec![0; shards],
                broken: None,
            },
        };
        if scene.founders > 0 {
            state.found(scene);
        }
        state
    }

    /// Puts the first map, in which the founders have joined and own their shards.
    fn found(&mut self, scene: &Scene) {
        let mut map = ClusterMap::empty(0, scene.owners.len());
        let epochs: Vec<_> =
            (0..scene.founders).map(|life| map.add(life, scene.nodes[life])).collect();
        for (entry, owner) in map.shards.iter_mut().zip(&scene.owners) {
            entry.owner = owner.map(|life| epochs[life]);
            entry.journals = entry.owner.into_iter().collect();
        }
        self.bucket.grow(map.next_epoch);
        let map = Arc::new(map);
        self.bucket.maps.insert(1, map.clone());
        self.ghosts.sequence.push(map.clone());
        for (life, epoch) in epochs.into_iter().enumerate() {
            self.believe(scene, life, (1, &map));
            for shard in map.shards_of(epoch) {
                self.serve_first(life, shard);
            }
        }
    }

    /// Makes a founder serve a shard, as if it had taken it.
    fn serve_first(&mut self, life: LifeId, shard: ShardId) {
        let engine = &mut self.bucket.engines[shard];
        (engine.writer, engine.since) = (1, 1);
        let tenure = Tenure { writer: 1, since: 1, at: Position::default(), wait: 0, held: false };
        self.lives[life].roles[shard] = Role::Owner(tenure);
    }

    /// Returns the newest map of the sequence.
    pub fn truth(&self) -> Option<&ClusterMap> {
        self.ghosts.sequence.last().map(AsRef::as_ref)
    }

    pub fn breaks(&mut self, invariant: Invariant) {
        self.ghosts.broken.get_or_insert(invariant);
    }

    /// A life takes a map for part of the sequence, and acts on it: it learns its epoch, its end,
    /// and the shards that it lost.
    pub fn believe(
        &mut self,
        scene: &Scene,
        life: LifeId,
        (number, map): (Number, &Arc<ClusterMap>),
    ) {
        if self.ghosts.sequence.get(number - 1) != Some(map) {
            self.breaks(Invariant::OneSequence);
        }
        let one = &mut self.lives[life];
        if one.phase == Phase::Ended || one.map.as_ref().is_some_and(|old| old.number >= number) {
            return;
        }
        one.map = Some(Believed { number, map: map.clone() });
        if let Some(member) = map.member_of(life) {
            one.phase = Phase::Joined;
            one.epoch = Some(member.epoch);
            if member.sealed {
                return one.end();
            }
        }
        for member in map.members.iter().filter(|member| member.sealed) {
            one.note_seal(member.epoch);
        }
        let compared = scene.rules.has(Rule::SinceCompared);
        for shard in scene.shards() {
            let since = map.shards[shard].since;
            let is_other = one.since(shard).is_some_and(|other| other != since);
            if !one.is_mine(shard) || is_other && compared {
                one.roles[shard] = Role::None;
            }
        }
    }

    /// Returns the ticks until the owners of the journals in `shard`'s list cannot answer any more,
    /// as far as the life knows of their seals.
    pub fn wait_of(&self, scene: &Scene, life: LifeId, shard: ShardId) -> u8 {
        let one = &self.lives[life];
        let Some(believed) = one.map.as_ref().filter(|_| scene.rules.has(Rule::Wait)) else {
            return 0;
        };
        let mut former: Vec<_> = believed.map.shards[shard].journals.clone();
        former.retain(|epoch| Some(*epoch) != one.epoch);
        if !scene.rules.has(Rule::WaitForAll) {
            former = former.split_off(former.len().saturating_sub(1));
        }
        former.retain(|epoch| self.bucket.journal(*epoch).seal != Seal::Released);
        let passed = |epoch: usize| one.seals.get(epoch - 1).copied().flatten().unwrap_or(0);
        former.into_iter().map(|epoch| scene.lease - passed(epoch)).max().unwrap_or(0)
    }

    /// Returns the shard's state if the life takes commands for it.
    pub fn serving(&self, scene: &Scene, life: LifeId, shard: ShardId) -> Option<&Tenure> {
        let held = |tenure: &Tenure| tenure.held && scene.rules.has(Rule::HoldToGive);
        let tenure = self.lives[life].tenure(shard)?;
        (!held(tenure) && tenure.wait == 0).then_some(tenure)
    }

    /// Returns the shard's state if a reply of the life that shows it may leave.
    pub fn answering(&self, scene: &Scene, life: LifeId, shard: ShardId) -> Option<&Tenure> {
        let leased = self.lives[life].lease > 0 || !scene.rules.has(Rule::LeaseChecked);
        self.serving(scene, life, shard).filter(|_| leased)
    }

    /// Looks at all replies that could leave now (invariants 9, 10 and 15), and at the epochs (2).
    pub fn judge(&mut self, scene: &Scene) {
        for shard in scene.shards() {
            let mut answering = 0;
            for life in scene.lives() {
                let Some(tenure) = self.answering(scene, life, shard) else { continue };
                answering += 1;
                if tenure.at.value < self.ghosts.shown[shard] {
                    let owner = self.truth().and_then(|map| map.shards[shard].owner);
                    let is_owner = owner == self.lives[life].epoch;
                    self.breaks(if is_owner {
                        Invariant::NothingLost
                    } else {
                        Invariant::NoStaleReply
                    });
                }
            }
            if answering > 1 {
                self.breaks(Invariant::OneServes);
            }
        }
        let epochs: Vec<_> = self.lives.iter().filter_map(|life| life.epoch).collect();
        if epochs.iter().enumerate().any(|(at, epoch)| epochs[..at].contains(epoch)) {
            self.breaks(Invariant::OneLifePerEpoch);
        }
    }
}
