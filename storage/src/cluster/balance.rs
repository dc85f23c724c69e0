//! The number of shards that each server should have. All servers compute it from the map, so nobody
//! has to decide: owners give what they have too much of, and others take what is parked.

use super::map::ClusterMap;
use super::member::{Life, MemberState};
use std::cmp::Reverse;

/// The shards of an open life: those that it has or will get by a move, and the number that it should
/// have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allotment {
    pub life: Life,
    pub shards: usize,
    pub target: usize,
}

impl Allotment {
    /// Returns the number of shards that it should give away.
    pub fn surplus(&self) -> usize {
        self.shards.saturating_sub(self.target)
    }

    /// Returns the number of shards that it should get.
    pub fn lack(&self) -> usize {
        self.target.saturating_sub(self.shards)
    }
}

impl ClusterMap {
    /// Returns the allotments of all open lives, in the order of the lives. Targets differ by one
    /// at most, and their sum is the number of shards. Lives with the most shards have the greater
    /// targets, so that few shards move; of those with as many, the earliest.
    pub fn balance(&self) -> Vec<Allotment> {
        let open = self.members.iter().filter(|member| member.state == MemberState::Open);
        let of = |life: Life| {
            let will_have = self.shards.iter().filter(|s| s.moving_to.or(s.owner) == Some(life));
            Allotment { life, shards: will_have.count(), target: 0 }
        };
        let mut all: Vec<Allotment> = open.map(|member| of(member.life)).collect();
        let lives = all.len().max(1);
        let (each, rest) = (self.shards.len() / lives, self.shards.len() % lives);
        all.sort_by_key(|one| (Reverse(one.shards), one.life));
        for (at, one) in all.iter_mut().enumerate() {
            one.target = each + usize::from(at < rest);
        }
        all.sort_by_key(|one| one.life);
        all
    }

    /// Returns the number of shards that a life should have; 0 if it is not open.
    pub fn fair_share(&self, life: Life) -> usize {
        self.balance().iter().find(|one| one.life == life).map_or(0, |one| one.target)
    }
}
