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
    /// Returns the allotments of all open lives that are no replicas, in the order of the lives. The sum of the targets is
    /// the number of shards. A life to which more shards are pinned than an even share has these as its
    /// target; those of the others differ by one at most, and those of lives that leave are 0. Lives
    /// with the most shards have the greater targets, so that few shards move; of those with as many,
    /// the earliest.
    pub fn balance(&self) -> Vec<Allotment> {
        let open = self.members.iter().filter(|member| member.state == MemberState::Open);
        let owners = open.filter(|member| !member.is_replica());
        let (leaving, staying): (Vec<_>, Vec<_>) = owners.partition(|member| member.leaving);
        let mut even: Vec<_> = staying.iter().map(|member| self.allotment(member.life)).collect();
        let mut all: Vec<_> = leaving.iter().map(|member| self.allotment(member.life).0).collect();
        let mut left = self.shards.len();
        let (each, rest) = loop {
            let lives = even.len().max(1);
            let (each, rest) = (left / lives, left % lives);
            let Some(at) = even.iter().position(|(_, pinned)| *pinned > each) else {
                break (each, rest);
            };
            let (one, pinned) = even.swap_remove(at);
            left -= pinned;
            all.push(Allotment { target: pinned, ..one });
        };
        even.sort_by_key(|(one, _)| (Reverse(one.shards), one.life));
        all.extend(even.into_iter().enumerate().map(|(at, (one, _))| {
            let target = each + usize::from(at < rest);
            Allotment { target, ..one }
        }));
        all.sort_by_key(|one| one.life);
        all
    }

    /// Returns the allotment of a life, without its target, and the number of its pinned shards.
    fn allotment(&self, life: Life) -> (Allotment, usize) {
        let will_have = self.shards.iter().filter(|s| s.moving_to.or(s.owner) == Some(life));
        let pinned = will_have.clone().filter(|shard| shard.is_pinned).count();
        (Allotment { life, shards: will_have.count(), target: 0 }, pinned)
    }

    /// Returns the number of shards that a life should have; 0 if it is not open.
    pub fn fair_share(&self, life: Life) -> usize {
        self.balance().iter().find(|one| one.life == life).map_or(0, |one| one.target)
    }
}
