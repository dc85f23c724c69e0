//! Random sequences of changes, and what holds in all of them.

use super::*;
use crate::cluster::{MapMember, MemberState, ServerRole};
use crate::journal::tests::sim_disk::Rng;
use std::collections::BTreeMap;

/// A kind of step, for the count of those that were made.
type Kind = &'static str;

/// Makes one step at random, of which many are refused.
fn step(draft: &mut MapDraft, rng: &mut Rng) -> (Kind, Result<(), MapRefusal>) {
    let shards = draft.map().shards().len() as u64;
    let shard = rng.below(shards) as u16;
    let lives = draft.map().next_life;
    let mut life = || Life(lives.saturating_sub(rng.below(6)));
    let (one, other) = (life(), life());
    let owner = draft.map().shards()[usize::from(shard)].owner.unwrap_or(one);
    let n = rng.below(5) as u8;
    match rng.below(13) {
        0 => {
            let mut joined = Ok(());
            if let Some(former) = draft.map().open_member(node(n)).map(|member| member.life) {
                joined = draft.seal(former, &[]);
            }
            let mut join = |draft: &mut MapDraft| match rng.below(3) {
                0 => draft.join_as_replica(node(n), address(n), ServerRole::Standby).map(drop),
                _ => draft.join(node(n), address(n)).map(drop),
            };
            ("join", joined.and_then(|()| join(draft)))
        }
        1 => {
            let open =
                |m: &&MapMember| m.state == MemberState::Open && m.life != one && !m.is_replica();
            let open: Vec<Life> =
                draft.map().members().iter().filter(open).map(|m| m.life).collect();
            let heirs = draft.map().owned_by(one).zip(open.iter().cycle());
            let heirs: Vec<_> = heirs.map(|(shard, heir)| (shard.id, *heir)).collect();
            ("seal", draft.seal(one, &heirs))
        }
        2 | 3 => ("give", draft.give(shard, owner, other)),
        4 => ("park", draft.park(shard, owner)),
        5 => ("take", draft.take_parked(shard, one)),
        6 => ("move", draft.want_move(shard, Some(other).filter(|_| n > 1))),
        7 => ("unlist", draft.note_flushed(shard, owner)),
        8 => ("release", draft.release(one)),
        9 => ("forget", draft.forget(&draft.map().ended())),
        _ => ("promote", draft.promote(one)),
    }
}

/// Checks what holds between a map and the next one.
fn holds(old: &ClusterMap, kind: Kind, new: &ClusterMap) {
    assert_eq!(new.number, old.number + 1);
    assert_ne!(new.nonce, old.nonce);
    assert_eq!((new.lease_ms, &new.secret), (old.lease_ms, &old.secret));
    // Each life is new once, and forgotten for ever.
    assert_eq!(new.next_life, old.next_life + u64::from(kind == "join"));
    for life in (1..new.next_life).map(Life) {
        let times = new.members.iter().filter(|member| member.life == life).count();
        let is_new = life.0 >= old.next_life;
        let was_there = old.member(life).is_some();
        assert!(times <= 1 && (times == 0 || is_new || was_there), "life {life}");
        let was_open = old.is_open(life) || is_new;
        assert!(was_open || !new.is_open(life), "life {life} is open again");
        assert!(times == 1 || !new.lists(life), "life {life} is listed still");
    }
    assert_eq!(new.shards.len(), old.shards.len());
    for (id, (before, after)) in old.shards.iter().zip(&new.shards).enumerate() {
        assert_eq!(usize::from(after.id), id);
        match after.owner {
            Some(owner) => assert!(new.may_own(owner) && after.journals.last() == Some(&owner)),
            None => assert!(after.journals.iter().all(|life| !new.is_open(*life))),
        }
        let is_changed = after.owner != before.owner;
        assert_eq!(after.since, if is_changed { new.number } else { before.since });
        let kept = after.journals.starts_with(&before.journals);
        let may_shorten = matches!(kind, "give" | "park" | "unlist");
        assert!(kept || may_shorten, "{kind}: {before:?} became {after:?}");
    }
    let kept = |life: Life| {
        let own =
            new.shards.iter().filter(|it| it.is_pinned && it.moving_to.or(it.owner) == Some(life));
        own.count()
    };
    let all = new.balance();
    assert!(all.iter().all(|one| one.target >= kept(one.life)));
    // Targets are even, but for those of lives with many pinned shards.
    let even: Vec<_> = all.iter().filter(|one| one.target > kept(one.life)).collect();
    let targets = || even.iter().map(|one| one.target);
    if let (Some(least), Some(most)) = (targets().min(), targets().max()) {
        assert!(most - least <= 1);
        assert_eq!(all.iter().map(|one| one.target).sum::<usize>(), new.shards.len());
    }
}

#[test]
fn rules_hold_in_random_sequences() {
    let mut made: BTreeMap<Kind, usize> = BTreeMap::new();
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let first = MapDraft::create(1 + rng.below(7) as u16, 3000).unwrap().finish().unwrap();
        let mut map = (*first.map).clone();
        for _ in 0..80 {
            let mut draft = map.draft();
            let before = draft.map().clone();
            let (kind, outcome) = step(&mut draft, &mut rng);
            if outcome.is_err() {
                // A join may have sealed the life before it.
                assert!(*draft.map() == before || kind == "join", "{kind}");
                continue;
            }
            let change = draft.finish().unwrap();
            holds(&map, kind, &change.map);
            let read = ClusterMap::decode(change.map.number, &change.text).unwrap();
            assert_eq!(read, *change.map);
            map = read;
            *made.entry(kind).or_default() += 1;
        }
    }
    assert_eq!(made.len(), 10, "{made:?}");
    assert!(made.values().all(|times| *times > 100), "{made:?}");
}
