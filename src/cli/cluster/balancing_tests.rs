//! How the shards are shared out, and why.

use super::*;
use flagstone_storage::cluster::{NodeAddress, NodeId};

const ONE: Life = Life(1);
const TWO: Life = Life(2);

fn after(map: &ClusterMap, steps: impl FnOnce(&mut MapDraft)) -> ClusterMap {
    let mut draft = map.draft();
    steps(&mut draft);
    draft.finish().expect("a map").map().clone()
}

/// Two servers: the first one has all of six shards.
fn uneven() -> ClusterMap {
    let new = MapDraft::create(6, 3000).and_then(MapDraft::finish).expect("a new cluster");
    after(new.map(), |draft| {
        for n in 1..=2 {
            let address = NodeAddress { host: format!("10.0.0.{n}"), port: 6379, tls_port: None };
            let life = draft.join(NodeId([n; 20]), address).expect("joined");
            draft.begin(life).expect("begun");
        }
    })
}

#[test]
fn the_table_says_who_gives_and_who_gets() {
    let expected = "\
server    shards  pinned  target  gives  gets  leaves
01010101  6       -       3       3      -     -
02020202  0       -       3       -      3     -

shards that are to move, or to be taken: 3";
    assert_eq!(described(&uneven()), expected);
    assert!(!is_even(&uneven()));
}

#[test]
fn pins_are_told_and_what_would_be_without_them() {
    let pinned = after(&uneven(), |draft| {
        for shard in 0..5 {
            draft.want_move(shard, Some(ONE)).expect("pinned");
        }
        draft.want_move(5, Some(TWO)).expect("pinned");
    });
    let text = described(&pinned);
    for part in [
        "01010101  5       5       5       -      -     -\n",
        "02020202  1       1       1       -      -     -\n",
        "shard 5 is asked to move to 02020202 (10.0.0.2:6379)\n",
        "pinned shards stay where they are: 0,1,2,3,4,5; without the pins, to move: 3",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let free = after(&pinned, |draft| unpin_all(draft).expect("unpinned"));
    assert_eq!(described(&free), described(&uneven()));
    assert!(matches!(unpin_all(&mut free.draft()), Err(MoveRefusal::Nothing)));
}

#[test]
fn shards_of_nobody_and_of_those_that_leave_are_told() {
    let even = after(&uneven(), |draft| {
        (0..3).for_each(|shard| draft.give(shard, ONE, TWO).expect("given"));
    });
    assert!(is_even(&even) && described(&even).ends_with("no shard is to move to even them out"));
    let leaving = after(&even, |draft| {
        draft.leave(TWO).expect("leaves");
        draft.park(3, ONE).expect("parked");
    });
    let text = described(&leaving);
    for part in ["02020202  3       -       0       3      -     yes\n", "that no server has: 1"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!is_even(&leaving));
}
