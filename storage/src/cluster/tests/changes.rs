//! The rules of changes.

use super::*;
use crate::cluster::{MemberState, ServerRole};
use crate::slot::MAX_SHARDS;
use MapRefusal::{
    Full, Leaving, ManyShards, NoChange, NoHeir, NoHost, NoLife, NoSettings, NoShard, NodeIsOpen,
    NotOpen, NotOwner, Owned, OwnsShards, Parked, Replica,
};

const A: Life = Life(1);
const B: Life = Life(2);
const C: Life = Life(3);

/// Completes a change.
fn finish(draft: MapDraft) -> ClusterMap {
    (*draft.finish().unwrap().map).clone()
}

/// Makes a change of some steps.
fn after(map: &ClusterMap, steps: impl FnOnce(&mut MapDraft)) -> ClusterMap {
    let mut draft = map.draft();
    steps(&mut draft);
    finish(draft)
}

/// Makes one step, which must be refused, and change nothing.
fn refused<T: std::fmt::Debug>(
    map: &ClusterMap,
    step: impl FnOnce(&mut MapDraft) -> Result<T, MapRefusal>,
) -> MapRefusal {
    let mut draft = map.draft();
    let before = draft.map().clone();
    let refusal = step(&mut draft).unwrap_err();
    assert_eq!(*draft.map(), before);
    refusal
}

fn joined(map: &ClusterMap, nodes: &[u8]) -> ClusterMap {
    after(map, |draft| {
        for n in nodes {
            draft.join(node(*n), address(*n)).unwrap();
        }
    })
}

fn empty(shards: u16) -> ClusterMap {
    finish(MapDraft::create(shards, 3000).unwrap())
}

/// Returns the owners of all shards.
fn owners(map: &ClusterMap) -> Vec<Option<Life>> {
    map.shards().iter().map(|shard| shard.owner).collect()
}

#[test]
fn no_split_is_wished_for_that_would_make_too_many_shards() {
    let map = empty(MAX_SHARDS - 2);
    let slots = [0, 1, 2].map(|shard| map.slots_of(shard).start + 1);
    let map = after(&map, |draft| {
        draft.want_split(0, Some(slots[0])).unwrap();
        draft.want_split(1, Some(slots[1])).unwrap();
    });
    assert!(map.has_room_for_shard());
    assert_eq!(refused(&map, |draft| draft.want_split(2, Some(slots[2]))), ManyShards);
    // One that was wished for may be elsewhere, and end.
    let map = after(&map, |draft| {
        draft.want_split(0, Some(slots[0] + 1)).unwrap();
        draft.want_split(1, None).unwrap();
        draft.want_split(2, Some(slots[2])).unwrap();
    });
    assert_eq!(map.lower_half(0), Some(0..2));
    let full = empty(MAX_SHARDS);
    assert!(!full.has_room_for_shard());
    let at = full.slots_of(5).start + 1;
    assert_eq!(refused(&full, |draft| draft.want_split(5, Some(at))), ManyShards);
}

/// Three nodes with two shards each.
fn three() -> ClusterMap {
    let first = joined(&empty(6), &[1]);
    let moves = [(2, B), (3, B), (4, C), (5, C)];
    after(&first, |draft| {
        for n in [2, 3] {
            draft.join(node(n), address(n)).unwrap();
        }
        for (shard, to) in moves {
            draft.give(shard, A, to).unwrap();
        }
    })
}

#[test]
fn a_new_cluster_has_parked_shards_only() {
    let map = empty(3);
    assert_eq!((map.number(), map.lease()), (1, Duration::from_secs(3)));
    assert_eq!(owners(&map), [None; 3]);
    assert!(map.members().is_empty());
    assert_ne!(map.secret(), empty(3).secret());
    assert!(!format!("{map:?}").contains(&String::from(map.secret().clone())));
    for (shards, lease_ms) in [(0, 3000), (3, 0)] {
        assert_eq!(MapDraft::create(shards, lease_ms).unwrap_err(), NoSettings);
    }
}

#[test]
fn each_change_has_the_next_number_and_a_nonce_of_its_own() {
    let map = three();
    let changes = [0, 1].map(|shard| after(&map, |draft| draft.park(shard, A).unwrap()));
    for change in &changes {
        assert_eq!(change.number, map.number + 1);
        assert_ne!(change.nonce, map.nonce);
    }
    assert_ne!(changes[0].nonce, changes[1].nonce);
}

#[test]
fn those_who_join_take_their_share_of_parked_shards() {
    let map = joined(&empty(5), &[1]);
    assert_eq!(owners(&map), [Some(A); 5]);
    // Nothing is parked, so the second one waits until it is given some.
    let map = joined(&map, &[2]);
    assert_eq!(map.owned_by(B).count(), 0);
    assert_eq!(
        map.balance().iter().map(|one| (one.life, one.surplus(), one.lack())).collect::<Vec<_>>(),
        [(A, 2, 0), (B, 0, 2)]
    );
    let parked = after(&map, |draft| (0..5).for_each(|shard| draft.park(shard, A).unwrap()));
    let map = joined(&parked, &[3]);
    assert_eq!(owners(&map), [Some(C), None, None, None, None]);
}

#[test]
fn a_node_has_one_open_life() {
    let map = three();
    assert_eq!(refused(&map, |draft| draft.join(node(2), address(9))), NodeIsOpen(B));
    for host in ["", "a b", "a\n", &"h".repeat(256)] {
        let address = NodeAddress { host: host.into(), ..address(4) };
        assert_eq!(refused(&map, |draft| draft.join(node(4), address)), NoHost);
    }
}

#[test]
fn a_replica_gets_no_shard_by_any_step() {
    let map = after(&three(), |draft| {
        assert_eq!(draft.join_as_replica(node(4), address(4), ServerRole::Replica), Ok(Life(4)));
    });
    let replica = Life(4);
    assert_eq!(owners(&map), owners(&three()));
    assert!(map.member(replica).unwrap().is_replica() && !map.member(A).unwrap().is_replica());
    assert!(map.balance().iter().all(|one| one.life != replica));
    assert_eq!(refused(&map, |draft| draft.want_move(0, Some(replica))), Replica(replica));
    assert_eq!(refused(&map, |draft| draft.give(0, A, replica)), Replica(replica));
    assert_eq!(refused(&map, |draft| draft.seal(A, &[(0, replica)])), Replica(replica));
    let parked = after(&map, |draft| draft.park(0, A).unwrap());
    assert_eq!(refused(&parked, |draft| draft.take_parked(0, replica)), Replica(replica));
    // Without another server nobody owns anything.
    let alone = after(&joined(&empty(2), &[1]), |draft| {
        draft.join_as_replica(node(2), address(2), ServerRole::Standby).unwrap();
        draft.seal(A, &[]).unwrap();
    });
    assert_eq!(owners(&alone), [None, None]);
    assert_eq!(owners(&joined(&alone, &[3])), [Some(C), Some(C)]);
    // A server that still owns shards is no replica before others have them.
    let sealed =
        |draft: &mut MapDraft| draft.join_as_replica(node(1), address(1), ServerRole::Replica);
    assert_eq!(refused(&three(), sealed), NodeIsOpen(A));
    let mut draft = three().draft();
    draft.seal(A, &[(0, B)]).unwrap();
    assert_eq!(draft.join_as_replica(node(1), address(1), ServerRole::Standby), Err(OwnsShards(A)));
}

#[test]
fn a_promoted_replica_gets_shards_by_the_same_change() {
    let with = |role| {
        after(&three(), |draft| {
            draft.join_as_replica(node(4), address(4), role).unwrap();
        })
    };
    let standby = Life(4);
    let map = with(ServerRole::Standby);
    assert!(map.member(standby).unwrap().stands_by() && !map.member(A).unwrap().stands_by());
    assert_eq!(refused(&map, |draft| draft.seal(A, &[(0, standby)])), Replica(standby));
    let lost = after(&map, |draft| {
        draft.promote(standby).unwrap();
        draft.seal(A, &[(0, standby), (1, standby)]).unwrap();
    });
    assert_eq!(lost.owned_by(standby).count(), 2);
    let member = lost.member(standby).unwrap();
    assert!(member.takes_shards() && !member.stands_by());
    assert_eq!(refused(&lost, |draft| draft.promote(standby)), NoChange);
    // A plain replica is promoted by hand only, and gets its share.
    let map = with(ServerRole::Replica);
    assert!(!map.member(standby).unwrap().stands_by());
    let promoted = after(&map, |draft| draft.promote(standby).unwrap());
    assert_eq!(promoted.fair_share(standby), 1);
    assert_eq!(refused(&map, |draft| draft.promote(A)), NoChange);
    assert_eq!(refused(&map, |draft| draft.promote(Life(9))), NotOpen(Life(9)));
    let leaving = after(&map, |draft| draft.leave(standby).unwrap());
    assert_eq!(refused(&leaving, |draft| draft.promote(standby)), Leaving(standby));
}

#[test]
fn a_map_without_replicas_is_as_before() {
    let text = three().encode().unwrap();
    assert!(!String::from_utf8_lossy(&text).contains("role"));
    let map = after(&three(), |draft| {
        draft.join_as_replica(node(4), address(4), ServerRole::Replica).unwrap();
    });
    let read = ClusterMap::decode(map.number(), &map.encode().unwrap()).unwrap();
    assert_eq!(read, map);
}

#[test]
fn the_journal_of_a_life_that_has_begun_it_can_be_given_up_once() {
    let map = three();
    assert_eq!(refused(&map, |draft| draft.give_up(A)), NoChange);
    assert_eq!(refused(&map, |draft| draft.give_up(Life(9))), NoLife(Life(9)));
    let begun = after(&map, |draft| draft.begin(A).unwrap());
    let given_up = after(&begun, |draft| draft.give_up(A).unwrap());
    assert_eq!((given_up.members(), given_up.shards()), (map.members(), map.shards()));
    let sealed = after(&begun, |draft| draft.seal(A, &[(0, B), (1, C)]).unwrap());
    let given_up = after(&sealed, |draft| draft.give_up(A).unwrap());
    assert!(given_up.lists(A) && !given_up.member(A).unwrap().begun);
}

#[test]
fn a_node_that_starts_again_keeps_its_shards_and_the_list() {
    let map = three();
    let again = after(&map, |draft| {
        draft.seal(B, &[]).unwrap();
        assert_eq!(draft.join(node(2), address(7)), Ok(Life(4)));
    });
    assert_eq!(again.member(B).unwrap().state, MemberState::Sealed);
    assert_eq!(again.open_member(node(2)).unwrap().address, address(7));
    for shard in again.owned_by(Life(4)) {
        assert_eq!(shard.journals, [B, Life(4)]);
        assert_eq!(shard.since, again.number);
    }
    assert_eq!(again.owned_by(Life(4)).count(), 2);
    assert_eq!(again.shards()[0], map.shards()[0]);
}

#[test]
fn a_failover_names_an_heir_for_each_shard() {
    let map = three();
    let heirs = [(2, A), (3, C)];
    let over = after(&map, |draft| draft.seal(B, &heirs).unwrap());
    assert_eq!(owners(&over), [A, A, A, C, C, C].map(Some));
    assert_eq!(over.shards()[2].journals, [B, A]);
    assert_eq!(over.shards()[3].since, over.number);
    assert_eq!(refused(&over, |draft| draft.seal(B, &[])), NotOpen(B));

    for (heirs, refusal) in [
        (vec![(0, A)], NotOwner { shard: 0, life: B }),
        (vec![(9, A)], NoShard(9)),
        (vec![(2, Life(9))], NotOpen(Life(9))),
        (vec![(2, B)], NotOpen(B)),
        (vec![(2, A), (2, C)], Owned { shard: 2, owner: C }),
    ] {
        assert_eq!(refused(&map, |draft| draft.seal(B, &heirs)), refusal);
    }
    let mut without = map.draft();
    without.seal(B, &heirs[..1]).unwrap();
    assert_eq!(without.finish().unwrap_err(), NoHeir(3));
}

#[test]
fn shards_of_the_last_life_wait_with_their_lists_for_another_one() {
    let map = joined(&empty(2), &[1]);
    let alone = after(&map, |draft| draft.seal(A, &[]).unwrap());
    assert_eq!(owners(&alone), [None; 2]);
    assert_eq!(alone.shards()[1].journals, [A]);
    let taken = joined(&alone, &[2]);
    assert_eq!(owners(&taken), [Some(B); 2]);
    assert_eq!(taken.shards()[1].journals, [A, B]);
    // A life that has joined before takes one in a change of its own.
    let other = after(&alone, |draft| {
        let life = draft.join(node(3), address(3)).unwrap();
        draft.park(0, life).unwrap();
    });
    assert_eq!(refused(&other, |draft| draft.take_parked(1, B)), Owned { shard: 1, owner: B });
    assert_eq!(refused(&other, |draft| draft.take_parked(0, A)), NotOpen(A));
    let back = after(&other, |draft| draft.take_parked(0, B).unwrap());
    assert_eq!(back.shards()[0].journals, [B]);
}

#[test]
fn what_is_given_or_parked_lists_no_journal_of_former_owners() {
    let map = after(&three(), |draft| draft.seal(B, &[(2, A), (3, A)]).unwrap());
    let map = after(&map, |draft| draft.want_move(2, Some(C)).unwrap());
    assert_eq!(map.shards()[2].moving_to, Some(C));
    let given = after(&map, |draft| draft.give(2, A, C).unwrap());
    let shard = &given.shards()[2];
    assert_eq!((shard.owner, &shard.journals[..]), (Some(C), &[C][..]));
    assert_eq!((shard.since, shard.moving_to), (given.number, None));
    let parked = after(&map, |draft| draft.park(2, A).unwrap());
    assert!(parked.shards()[2].journals.is_empty());
    assert_eq!(refused(&map, |draft| draft.give(2, B, C)), NotOwner { shard: 2, life: B });
    assert_eq!(refused(&map, |draft| draft.give(2, A, B)), NotOpen(B));
    assert_eq!(refused(&map, |draft| draft.give(2, A, A)), NoChange);
    assert_eq!(refused(&parked, |draft| draft.park(2, A)), NotOwner { shard: 2, life: A });
}

#[test]
fn wishes_end_with_the_life_that_they_name() {
    let map = after(&three(), |draft| draft.want_move(0, Some(C)).unwrap());
    let over = after(&map, |draft| draft.seal(C, &[(4, A), (5, B)]).unwrap());
    assert_eq!(over.shards()[0].moving_to, None);
    assert_eq!(refused(&over, |draft| draft.want_move(0, Some(C))), NotOpen(C));
    assert!(!over.shards()[0].is_pinned);
    assert_eq!(refused(&over, |draft| draft.want_move(0, None)), NoChange);
    assert_eq!(refused(&over, |draft| draft.want_move(6, None)), NoShard(6));
    assert_eq!(refused(&empty(1), |draft| draft.want_move(0, Some(A))), NotOpen(A));
    let parked = after(&over, |draft| draft.park(0, A).unwrap());
    assert_eq!(refused(&parked, |draft| draft.want_move(0, Some(B))), Parked(0));
    let off = after(&map, |draft| draft.want_move(0, None).unwrap());
    assert_eq!((off.shards()[0].moving_to, off.shards()[0].is_pinned), (None, false));
    assert_eq!(refused(&map, |draft| draft.want_move(0, Some(C))), NoChange);
}

#[test]
fn a_life_is_forgotten_once_it_is_ended_and_no_list_names_it() {
    let map = after(&three(), |draft| draft.seal(B, &[(2, A), (3, A)]).unwrap());
    assert_eq!(refused(&map, |draft| draft.forget(&[A, B])), NoChange);
    assert_eq!(refused(&map, |draft| draft.note_flushed(2, B)), NotOwner { shard: 2, life: B });
    let map = after(&map, |draft| draft.note_flushed(0, A).unwrap());
    assert!(map.shards()[0].is_begun && !map.shards()[1].is_begun);
    assert_eq!(refused(&map, |draft| draft.note_flushed(0, A)), NoChange);
    let map = after(&map, |draft| draft.note_flushed(2, A).unwrap());
    assert!(map.lists(B) && map.shards()[2].since < map.number);
    let map = after(&map, |draft| draft.note_flushed(3, A).unwrap());
    assert!(!map.lists(B) && map.ended() == [B]);
    // Its journal may not be deleted yet.
    assert_eq!(refused(&map, |draft| draft.forget(&[A])), NoChange);
    let map = after(&map, |draft| draft.forget(&[A, B]).unwrap());
    assert!(map.ended().is_empty() && map.member(B).is_none() && map.member(A).is_some());
}

#[test]
fn a_life_releases_its_journal_once_it_owns_nothing() {
    let map = three();
    assert_eq!(refused(&map, |draft| draft.release(C)), OwnsShards(C));
    let given = after(&map, |draft| (4..6).for_each(|shard| draft.give(shard, C, A).unwrap()));
    let map = after(&given, |draft| draft.release(C).unwrap());
    assert_eq!(refused(&map, |draft| draft.release(C)), NotOpen(C));
    assert_eq!(refused(&map, |draft| draft.seal(C, &[])), NotOpen(C));
    let map = after(&map, |draft| draft.forget(&[C]).unwrap());
    assert_eq!(map.member(C), None);
}

#[test]
fn targets_differ_by_one_and_move_little() {
    let map = joined(&empty(8), &[1, 2, 3]);
    let figures = |map: &ClusterMap| -> Vec<_> {
        map.balance().iter().map(|one| (one.shards, one.target)).collect()
    };
    assert_eq!(figures(&map), [(8, 3), (0, 3), (0, 2)]);
    // The one that has most keeps most; a move that is wanted counts as made.
    let map = after(&map, |draft| {
        (0..3).for_each(|shard| draft.give(shard, A, C).unwrap());
        (3..6).for_each(|shard| draft.want_move(shard, Some(B)).unwrap());
    });
    assert_eq!(figures(&map), [(2, 2), (3, 3), (3, 3)]);
    assert_eq!([A, B, C, Life(4)].map(|life| map.fair_share(life)), [2, 3, 3, 0]);
    assert!(empty(8).balance().is_empty());
}

#[test]
fn a_full_map_takes_no_more_lives() {
    let mut draft = joined(&empty(1), &[1]).draft();
    for n in 2..=1000_u16 {
        let [high, low] = n.to_be_bytes();
        let mut id = [200; 20];
        (id[0], id[1]) = (low, high);
        draft.join(NodeId(id), address(1)).unwrap();
    }
    let map = finish(draft);
    assert_eq!(refused(&map, |draft| draft.join(node(99), address(9))), Full(1000));
}

#[test]
fn ids_of_nodes_are_forty_digits() {
    let text = "00112233445566778899aabbccddeeff01234567";
    assert_eq!(NodeId::parse(text).unwrap().to_string(), text);
    for other in
        ["", &text[1..], &text.to_uppercase(), &format!("{text}0"), &text.replace('0', "g")]
    {
        assert_eq!(NodeId::parse(other), None);
    }
}

#[test]
fn a_life_that_leaves_gets_nothing_more() {
    let map = after(&three(), |draft| draft.want_move(0, Some(B)).unwrap());
    let map = after(&map, |draft| draft.leave(B).unwrap());
    assert!(map.shards()[0].moving_to.is_none(), "a wish for it has ended");
    assert_eq!(refused(&map, |draft| draft.leave(B)), NoChange);
    assert_eq!(refused(&map, |draft| draft.want_move(0, Some(B))), Leaving(B));
    let targets: Vec<_> = map.balance().iter().map(|one| (one.life, one.target)).collect();
    assert_eq!(targets, [(A, 3), (B, 0), (C, 3)]);
    let alone = after(&map, |draft| {
        draft.leave(A).unwrap();
        draft.leave(C).unwrap();
    });
    assert!(alone.balance().iter().all(|one| one.target == 0), "they park what they own");
}

#[test]
fn a_shard_that_was_moved_by_hand_is_pinned_until_its_owner_loses_it() {
    let pinned = |map: &ClusterMap| map.shards()[0].is_pinned;
    let map = after(&three(), |draft| draft.want_move(0, Some(B)).unwrap());
    let moved = after(&map, |draft| draft.give(0, A, B).unwrap());
    assert!(pinned(&map) && pinned(&moved));
    type DraftStep = fn(&mut MapDraft) -> Result<(), MapRefusal>;
    let gone: [DraftStep; 5] = [
        |draft| draft.give(0, B, C),
        |draft| draft.park(0, B),
        |draft| draft.seal(B, &[(0, C), (2, A), (3, A)]),
        |draft| draft.want_move(0, None),
        |draft| draft.want_move(0, Some(C)).and_then(|()| draft.leave(C)),
    ];
    for step in gone {
        assert!(!pinned(&after(&moved, |draft| step(draft).unwrap())));
    }
    assert!(!pinned(&after(&map, |draft| draft.give(0, A, C).unwrap())), "not where it was wanted");
    // Its owner may be asked to keep it, and a move be called off so.
    let kept = after(&map, |draft| draft.want_move(0, Some(A)).unwrap());
    assert_eq!((kept.shards()[0].moving_to, pinned(&kept)), (None, true));
    assert_eq!(refused(&kept, |draft| draft.want_move(0, Some(A))), NoChange);
}

#[test]
fn targets_leave_pinned_shards_where_they_are() {
    let map = joined(&empty(12), &[1, 2, 3]);
    let figures = |map: &ClusterMap| -> Vec<_> {
        map.balance().iter().map(|one| (one.shards, one.target)).collect()
    };
    let pin = |map: &ClusterMap, shards: std::ops::Range<u16>, to| {
        after(map, |draft| shards.for_each(|shard| draft.want_move(shard, Some(to)).unwrap()))
    };
    // As many as an even share change nothing.
    assert_eq!(figures(&pin(&map, 0..4, A)), [(12, 4), (0, 4), (0, 4)]);
    let more = pin(&map, 0..7, A);
    assert_eq!(figures(&more), [(12, 7), (0, 3), (0, 2)]);
    // The rest is shared out by those that have less: two have more than their share by hand.
    assert_eq!(figures(&pin(&more, 7..11, B)), [(8, 7), (4, 4), (0, 1)]);
    let left = after(&more, |draft| draft.leave(B).unwrap());
    assert_eq!(figures(&left), [(12, 7), (0, 0), (0, 5)]);
}

#[test]
fn what_people_see_of_a_map_lacks_the_secret() {
    let map = three();
    let secret = String::from(map.secret().clone());
    assert!(std::str::from_utf8(&map.encode().unwrap()).unwrap().contains(&secret));
    let shown = map.without_secret().unwrap();
    assert!(!shown.to_string().contains(&secret));
    assert_eq!((&shown["number"], &shown["shards"][5]["owner"]), (&map.number().into(), &3.into()));
}
