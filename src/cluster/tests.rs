//! Tests of waiting for libraries of functions.

use super::*;
use flagstone_storage::cluster::{MapDraft, ServerRole};

/// Returns a cluster without libraries, and its first two maps, each of which names others.
fn cluster() -> (Cluster, [Arc<ClusterMap>; 2]) {
    let first = MapDraft::create(1, 1000).unwrap();
    let layout = Arc::new(Layout::new(1, 1));
    let cluster = Cluster::new(NodeId([1; 20]), Life(1), layout, Arc::new(first.map().clone()));
    let mut maps = Vec::new();
    let (mut map, mut from) = (first.map().clone(), None);
    for n in 0..2 {
        let to = LibrariesId::try_from(format!("{:020}-{n:032x}", map.number())).unwrap();
        let mut draft = map.draft();
        draft.replace_functions(from, Some(to)).unwrap();
        map = draft.map().clone();
        from = Some(to);
        maps.push(Arc::new(map.clone()));
    }
    (cluster, maps.try_into().unwrap())
}

#[test]
fn libraries_are_lacking_from_the_map_on_that_names_others() {
    let (cluster, [first, second]) = cluster();
    assert!(!cluster.lacks_libraries());
    cluster.learn(&first);
    assert!(cluster.lacks_libraries());
    cluster.set_libraries(first.functions());
    assert!(!cluster.lacks_libraries());
    cluster.learn(&second);
    assert!(cluster.lacks_libraries());
    // An older map changes nothing, and loading its libraries neither.
    cluster.learn(&first);
    assert!(cluster.lacks_libraries());
    cluster.set_libraries(second.functions());
    assert!(!cluster.lacks_libraries());
    assert_eq!(cluster.libraries(), second.functions());
    let (node, layout) = (NodeId([2; 20]), Arc::new(Layout::new(1, 1)));
    assert!(Cluster::new(node, Life(2), layout, second).lacks_libraries());
}

#[test]
fn commands_wait_until_libraries_are_loaded_and_no_longer_than_their_limit() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (cluster, [map, _]) = cluster();
        let part = ExpectedPart::Libraries;
        cluster.learn(&map);
        let begun = Instant::now();
        cluster.until_settled(part, begun + PATIENCE).await;
        assert!(begun.elapsed() >= PATIENCE);
        assert!(cluster.late(part, false).starts_with("TRYAGAIN "));
        let loading = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            cluster.set_libraries(map.functions());
        };
        let begun = Instant::now();
        tokio::join!(cluster.until_settled(part, begun + PATIENCE), loading);
        assert_eq!(begun.elapsed(), Duration::from_millis(10));
    });
}

#[test]
fn clients_are_sent_to_a_port_that_there_is() {
    let address = |port, tls_port| NodeAddress { host: "h".to_owned(), port, tls_port };
    let ports = |address: NodeAddress| [false, true].map(|secured| moved(7, &address, secured));
    assert_eq!(ports(address(1, Some(2))), ["MOVED 7 h:1", "MOVED 7 h:2"]);
    assert_eq!(ports(address(1, None)), ["MOVED 7 h:1"; 2]);
    assert_eq!(ports(address(0, Some(2))), ["MOVED 7 h:2"; 2]);
}

#[test]
fn a_server_says_while_it_gives_a_shard_away() {
    let (map, life) = map_of_one();
    let cluster = server(1, life, &map);
    cluster.set(0, ServedState::Served);
    assert!(!cluster.is_giving());
    for ended in [ServedState::Served, ServedState::Elsewhere] {
        cluster.begin_giving(0, None);
        assert!(cluster.is_giving());
        cluster.set(0, ended);
        assert!(!cluster.is_giving());
    }
}

#[test]
fn an_answer_without_the_slots_that_were_given_away_meanwhile_proves_nothing() {
    let (map, life) = map_of_one();
    let cluster = server(1, life, &map);
    let asked = cluster.given();
    assert_eq!((&*asked.word(), cluster.proven_by(&asked, 7)), ("-", 7));
    cluster.begin_giving(0, None);
    assert_eq!(cluster.proven_by(&asked, 7), 0);
    let asked = cluster.given();
    assert_eq!((&*asked.word(), cluster.proven_by(&asked, 8)), ("0-8191", 8));
    // It may have come back: its records of before are still asked for.
    cluster.set(0, ServedState::Served);
    cluster.begin_giving(0, None);
    assert_eq!(cluster.proven_by(&asked, 9), 9);
    cluster.begin_giving(1, None);
    assert_eq!((cluster.proven_by(&asked, 9), &*cluster.given().word()), (0, "0-16383"));
}

const ADDRESS: fn(u16) -> NodeAddress =
    |port| NodeAddress { host: "10.0.0.5".to_owned(), port, tls_port: None };

fn after(map: &ClusterMap, steps: impl FnOnce(&mut MapDraft)) -> Arc<ClusterMap> {
    let mut draft = map.draft();
    steps(&mut draft);
    Arc::new(draft.finish().unwrap().map().clone())
}

/// Returns the map of two shards, which one server has, and its life.
fn map_of_one() -> (Arc<ClusterMap>, Life) {
    let new = MapDraft::create(2, 1000).unwrap().finish().unwrap();
    let mut life = Life(0);
    let map = after(new.map(), |draft| life = draft.join(NodeId([1; 20]), ADDRESS(1)).unwrap());
    (map, life)
}

fn server(node: u8, life: Life, map: &Arc<ClusterMap>) -> Cluster {
    let layout = Arc::new(Layout::new(2, 1));
    Cluster::new(NodeId([node; 20]), life, layout, map.clone())
}

#[test]
fn a_server_is_whole_while_it_serves_all_shards_of_the_newest_map() {
    let (map, life) = map_of_one();
    let cluster = server(1, life, &map);
    let is_whole = || {
        let part = ExpectedPart::AllShards { and_to_come: true };
        assert_eq!(cluster.begin_look().is_err(), cluster.awaits(part));
        !cluster.awaits(part)
    };
    assert!(!is_whole());
    cluster.set(0, ServedState::Served);
    assert!(!is_whole());
    cluster.set(1, ServedState::Served);
    assert!(is_whole());
    let look = cluster.begin_look().unwrap();
    assert_eq!(cluster.check_look(&look), Ok(()));
    // A newer map may give it more, or less.
    cluster.hear(map.number() + 1);
    assert!(!is_whole());
    let mut other = Life(0);
    let map = after(&map, |draft| other = draft.join(NodeId([2; 20]), ADDRESS(2)).unwrap());
    cluster.learn(&map);
    assert!(is_whole() && cluster.check_look(&look).is_ok());
    cluster.begin_giving(1, Some(other));
    assert!(!is_whole() && cluster.check_look(&look).is_err());
    // It stays: a look from before may have missed its keys.
    cluster.set(1, ServedState::Served);
    assert!(is_whole() && cluster.check_look(&look).is_err());
    cluster.begin_giving(1, Some(other));
    cluster.learn(&after(&map, |draft| draft.give(1, life, other).unwrap()));
    assert!(!is_whole(), "the next owner is not told yet");
    cluster.set(1, ServedState::Elsewhere);
    assert!(is_whole());
}

#[test]
fn shards_on_their_way_here_matter_to_flushes_and_parked_ones_to_all() {
    let (map, one) = map_of_one();
    let mut two = Life(0);
    let map = after(&map, |draft| two = draft.join(NodeId([2; 20]), ADDRESS(2)).unwrap());
    let cluster = server(2, two, &map);
    let awaits = |and_to_come| cluster.awaits(ExpectedPart::AllShards { and_to_come });
    assert!(!awaits(false) && awaits(true), "balance gives it one");
    cluster.learn(&after(&map, |draft| draft.give(1, one, two).unwrap()));
    assert!(awaits(false));
    cluster.set(1, ServedState::Served);
    assert!(!awaits(false) && !awaits(true));
    let moving = after(&cluster.map(), |draft| draft.want_move(0, Some(two)).unwrap());
    cluster.learn(&moving);
    assert!(!awaits(false) && awaits(true));
    let parked = after(&moving, |draft| draft.park(0, one).unwrap());
    cluster.learn(&after(&parked, |draft| draft.seal(one, &[]).unwrap()));
    assert!(awaits(false) && awaits(true), "it is to take the parked one");
}

#[tokio::test(start_paused = true)]
async fn commands_on_all_keys_of_a_replica_go_on_when_the_last_shard_is_shown() {
    let (map, _) = map_of_one();
    let mut life = Life(0);
    let map = after(&map, |draft| {
        life = draft.join_as_replica(NodeId([2; 20]), ADDRESS(2), ServerRole::Replica).unwrap();
    });
    let cluster = server(2, life, &map);
    let part = ExpectedPart::AllShards { and_to_come: false };
    assert!(cluster.awaits(part));
    let showing = async {
        for shard in [0, 1] {
            tokio::time::sleep(Duration::from_millis(10)).await;
            cluster.show_mirror(shard, map.number());
        }
    };
    let begun = Instant::now();
    tokio::join!(cluster.until_settled(part, begun + PATIENCE), showing);
    assert_eq!(begun.elapsed(), Duration::from_millis(20));
    assert!(!cluster.awaits(part) && cluster.begin_look().is_ok());
}

#[test]
fn a_replica_that_leaves_takes_nothing_over() {
    let mut draft = MapDraft::create(1, 1000).unwrap();
    let address = NodeAddress { host: "h".to_owned(), port: 1, tls_port: None };
    let owner = draft.join(NodeId([1; 20]), address.clone()).unwrap();
    let role = ServerRole::Replica;
    let replica = draft.join_as_replica(NodeId([2; 20]), address, role).unwrap();
    let first = Arc::new(draft.map().clone());
    let of = |life: Life| {
        Cluster::new(NodeId([2; 20]), life, Arc::new(Layout::new(1, 1)), first.clone())
    };
    assert!(of(owner).begin_takeover().is_err_and(|text| text.contains("to a replica")));
    let cluster = of(replica);
    assert!(cluster.begin_takeover().is_ok() && cluster.takes_over());
    cluster.end_takeover();
    let mut draft = first.draft();
    draft.leave(replica).unwrap();
    cluster.learn(&Arc::new(draft.map().clone()));
    assert!(cluster.begin_takeover().is_err_and(|text| text.contains("leaves the cluster")));
    assert!(!cluster.takes_over());
}

#[test]
fn a_shard_that_is_served_is_not_one_that_could_not_be_taken() {
    let (map, life) = map_of_one();
    let cluster = server(1, life, &map);
    cluster.sight.note_untaken([1].into_iter(), "damaged");
    assert_eq!([0, 1].map(|shard| cluster.is_untaken(shard)), [false, true]);
    cluster.set(1, ServedState::Expected);
    assert!(cluster.is_untaken(1));
    // The note stays until the next step.
    cluster.set(1, ServedState::Served);
    assert!(!cluster.is_untaken(1));
}

#[test]
fn a_server_that_cannot_read_the_map_is_out_of_touch() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (cluster, [map, _]) = cluster();
        tokio::time::advance(OUT_OF_TOUCH * map.lease()).await;
        assert!(!cluster.is_out_of_touch());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(cluster.is_out_of_touch());
        cluster.learn(&map);
        assert!(!cluster.is_out_of_touch());
    });
}
