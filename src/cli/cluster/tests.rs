//! The tables of `flagstone cluster status`, and names of servers.

use super::super::naming::find;
use super::*;
use flagstone_storage::cluster::{MapDraft, NodeAddress, NodeId};

fn address(host: &str, port: u16, tls_port: Option<u16>) -> NodeAddress {
    NodeAddress { host: host.to_owned(), port, tls_port }
}

fn node(n: u8) -> NodeId {
    let mut id = [0x3f; 20];
    id[3] = n;
    NodeId(id)
}

fn after(map: &ClusterMap, steps: impl FnOnce(&mut MapDraft)) -> ClusterMap {
    let mut draft = map.draft();
    steps(&mut draft);
    draft.finish().expect("a map").map().clone()
}

/// Three servers of four shards: one has ended, one leaves, and shard 3 is parked.
fn map() -> ClusterMap {
    let new = MapDraft::create(4, 3000).and_then(MapDraft::finish).expect("a new cluster");
    let map = after(new.map(), |draft| {
        let one = draft.join(node(1), address("10.0.0.5", 6379, None)).expect("joined");
        let two = draft.join(node(2), address("10.0.0.6", 6379, Some(6380))).expect("joined");
        let three = draft.join(node(3), address("fd00::7", 6379, None)).expect("joined");
        draft.give(1, one, two).expect("given");
        draft.give(2, one, three).expect("given");
        draft.park(3, one).expect("parked");
        draft.seal(one, &[(0, two)]).expect("sealed");
    });
    after(&map, |draft| {
        draft.leave(Life(3)).expect("leaves");
        draft.want_move(2, Some(Life(2))).expect("wanted");
        draft.want_split(1, Some(5000)).expect("wanted");
    })
}

#[test]
fn the_status_shows_servers_and_shards() {
    let expected = "\
4096 of 16384 slots have no owner; shards that are parked: 1, that list journals of former owners: 1
map 3, lease 3000 ms

server    life  state    address                 shards  slots
3f3f3f01  1     sealed   10.0.0.5:6379           0       -
3f3f3f02  2     open     10.0.0.6:6379 tls:6380  2       0-8191
3f3f3f03  3     leaving  [fd00::7]:6379          1       8192-12287

shard  slots        owner     journals  moving to  pinned  split at
0      0-4095       3f3f3f02  1,2       -          -       -
1      4096-8191    3f3f3f02  2         -          -       5000
2      8192-12287   3f3f3f03  3         3f3f3f02   yes     -
3      12288-16383  -         -         -          -       -";
    assert_eq!(render(&map(), false), expected);
    let wide = render(&map(), true);
    assert_eq!(wide.matches(&node(2).to_string()).count(), 4, "{wide}");
    let whole = after(&map(), |draft| draft.take_parked(3, Life(2)).expect("taken"));
    assert!(render(&whole, false).starts_with("all 16384 slots have an owner; "));
}

#[test]
fn slots_that_follow_each_other_are_one_range() {
    assert_eq!(joined(&[]), "-");
    assert_eq!(joined(&[0..4, 4..9, 9..9, 10..11, 20..22]), "0-8,10,20-21");
}

#[test]
fn a_server_has_an_unambiguous_name() {
    let map = map();
    let life = |name: &str| find(&map, name).map(|member| member.life.0);
    let refusal = |name: &str| life(name).expect_err(name).to_string();
    assert_eq!(life("3f3f3f02").expect("found"), 2);
    assert_eq!(life(&node(3).to_string()).expect("found"), 3);
    for address in ["10.0.0.6:6379", "10.0.0.6:6380"] {
        assert_eq!(life(address).expect("found"), 2);
    }
    assert_eq!(life("[fd00::7]:6379").expect("found"), 3);
    assert!(refusal("3f").contains("several servers"));
    assert!(refusal("10.0.0.5:6379").contains("has ended"));
    for nobody in ["", "4f", "10.0.0.6", "10.0.0.6:1"] {
        assert!(refusal(nobody).contains("has no server"), "{nobody}");
    }
}
