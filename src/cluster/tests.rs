//! Tests of waiting for libraries of functions.

use super::*;
use flagstone_storage::cluster::MapDraft;

/// Returns a cluster without libraries, and its first two maps, each of which names others.
fn cluster() -> (Cluster, [Arc<ClusterMap>; 2]) {
    let first = MapDraft::create(1, 1000).unwrap();
    let layout = Arc::new(Layout { shards: 1, seed: 1 });
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
    let (node, layout) = (NodeId([2; 20]), Arc::new(Layout { shards: 1, seed: 1 }));
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
