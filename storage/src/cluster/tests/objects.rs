//! The objects: reading, changing, deleting, and damage.

use super::*;
use crate::cluster::{AmendError, MemberState};
use object_store::ObjectStoreExt;

async fn put(server: &Server, name: &str, text: impl Into<Vec<u8>>) {
    server.sim.objects.put(&name.into(), text.into().into()).await.unwrap();
}

async fn text(server: &Server, number: u64) -> Vec<u8> {
    let found = server.sim.objects.get(&object(number).into()).await.unwrap();
    found.bytes().await.unwrap().to_vec()
}

/// Returns the error with which a server that knows nothing reads the newest map.
async fn unread(server: &Server) -> MapError {
    self::server(&server.sim, 0, 1000).maps.newest().await.unwrap_err()
}

#[test]
fn a_cluster_is_founded_once() {
    run(async {
        let sim = Sim::new(1);
        let [a, b] = [(); 2].map(|()| server(&sim, 0, 1000));
        assert!(a.maps.newest().await.unwrap().is_none());
        assert!(matches!(a.maps.amend(touch).await, Err(AmendError::NoMap)));
        let [first, other] = [1, 2].map(|n| MapDraft::create(n, 300).unwrap().finish().unwrap());
        assert!(matches!(a.maps.change(&first).await, Ok(MapOutcome::Counts(_))));
        let lost = b.maps.change(&other).await.unwrap();
        let MapOutcome::Lost(newest) = lost else { panic!("{lost:?}") };
        assert_eq!(*newest, *first.map);
    });
}

#[test]
fn a_look_for_a_newer_map_costs_one_listing() {
    run(async {
        let sim = Sim::new(2);
        let [a, b] = [(); 2].map(|()| server(&sim, 0, 1000));
        let base = a.found().await;
        let requests = |server: &Server| {
            [&server.client.lists, &server.client.gets, &server.client.puts]
                .map(|count| count.load(Ordering::SeqCst))
        };
        assert_eq!(b.maps.newest().await.unwrap(), Some(base.clone()));
        let before = requests(&b);
        assert_eq!(b.maps.newest().await.unwrap(), Some(base.clone()));
        assert_eq!(b.maps.newer_than(base.number()).await.unwrap(), None);
        assert_eq!(requests(&b), [before[0] + 2, before[1], before[2]]);
        let newest = a.touch().await;
        assert_eq!(b.maps.newer_than(base.number() - 1).await.unwrap(), Some(newest.number()));
        assert_eq!(b.maps.newest().await.unwrap(), Some(newest));
    });
}

#[test]
fn what_a_caller_refuses_is_not_put() {
    run(async {
        let sim = Sim::new(3);
        let a = server(&sim, 0, 1000);
        let base = a.found().await;
        let refused = a.maps.amend(|draft| draft.release(Life(1))).await;
        assert!(matches!(refused, Err(AmendError::Refused(MapRefusal::OwnsShards(Life(1))))));
        // Its shard has no heir.
        let refused = a.maps.amend(|draft| draft.seal(Life(1), &[])).await;
        assert!(matches!(refused, Err(AmendError::Refused(MapRefusal::NoHeir(0)))));
        assert_eq!(a.maps.newest().await.unwrap(), Some(base));
    });
}

#[test]
fn a_change_without_an_answer_is_put_until_its_number_is_taken() {
    run(async {
        let sim = Sim::new(4);
        let [a, b] = [(); 2].map(|()| server(&sim, 0, 1000));
        let base = a.found().await.number();
        for is_lost in [false, true] {
            let base = base + u64::from(is_lost);
            *a.client.refused.lock().unwrap() = Some(format!("{:020}", base + 1));
            let amended = a.maps.amend(touch).await;
            let Err(AmendError::Unknown { change, error }) = amended else { panic!("{amended:?}") };
            assert!(matches!(error, MapError::Away { .. }), "{error}");
            assert_eq!(change.map().number(), base + 1);
            assert!(!format!("{change:?}").contains("secret"));
            assert!(a.maps.change(&change).await.is_err());
            if is_lost {
                b.touch().await;
            }
            *a.client.refused.lock().unwrap() = None;
            match a.maps.change(&change).await.unwrap() {
                MapOutcome::Counts(newest) => assert!(!is_lost && *newest == *change.map),
                MapOutcome::Lost(newest) => assert!(is_lost && *newest != *change.map),
                forgotten @ MapOutcome::Forgotten(_) => panic!("{forgotten:?}"),
            }
        }
    });
}

#[test]
fn a_store_that_is_away_is_told_within_bounded_time() {
    run(async {
        let sim = Sim::new(5);
        let a = server(&sim, 0, 1000);
        let change = {
            a.found().await;
            a.change().await
        };
        a.client.die();
        let bound = Duration::from_secs(2);
        let newest = tokio::time::timeout(bound, a.maps.newest()).await.unwrap();
        assert!(matches!(newest, Err(MapError::Away { .. })));
        let changed = tokio::time::timeout(bound, a.maps.change(&change)).await.unwrap();
        assert!(matches!(changed, Err(MapError::Away { .. })));
    });
}

#[test]
fn the_newest_maps_are_kept_and_older_ones_go_a_few_at_a_time() {
    run(async {
        let sim = Sim::new(6);
        let a = server(&sim, 0, 4);
        let base = a.found().await.number();
        for _ in 0..30 {
            a.maps.amend(touch).await.unwrap();
        }
        let last = base + 30;
        let before = sim.names().await.len();
        assert_eq!(a.maps.prune().await.unwrap(), 16);
        let names = sim.names().await;
        assert_eq!((names.len(), &names[0]), (before - 16, &object(17)));
        assert!(a.maps.prune().await.unwrap() > 0);
        assert_eq!(sim.names().await, (last - 3..=last).map(object).collect::<Vec<_>>());
        assert_eq!(a.maps.prune().await.unwrap(), 0);
        // A server that knows no map deletes none.
        assert_eq!(server(&sim, 0, 1).maps.prune().await.unwrap(), 0);
    });
}

#[test]
fn objects_with_other_names_are_no_maps() {
    run(async {
        let sim = Sim::new(7);
        let a = server(&sim, 0, 1000);
        let base = a.found().await;
        let zeros = "0".repeat(19);
        for name in
            ["note", "9", "+0000000000000000009", &zeros, &format!("{zeros}0"), &"9".repeat(20)]
        {
            put(&a, &format!("data/cluster/map/{name}"), "no map").await;
        }
        put(&a, &format!("{}/9", object(9)), "no map").await;
        put(&a, "data/cluster/functions/00000000000000000009", "no map").await;
        assert_eq!(server(&sim, 0, 1000).maps.newest().await.unwrap(), Some(base));
    });
}

#[test]
fn damage_is_named_with_its_object() {
    run(async {
        let sim = Sim::new(8);
        let a = server(&sim, 0, 1000);
        let base = a.found().await.number();
        let (at, change) = (base + 1, a.change().await);
        let whole = text(&a, base).await;
        let whole = String::from_utf8(whole).unwrap();
        let mut flipped = whole.clone().into_bytes();
        flipped[40] ^= 1;
        let unsealed = whole.replace("\"open\"", "\"sealed\"");
        let content = &unsealed[..unsealed.rfind(",\n  \"checksum\"").unwrap()];
        let checked = |content: &str| {
            format!(
                "{content},\n  \"checksum\": \"{:08x}\"\n}}\n",
                crc32c::crc32c(content.as_bytes())
            )
        };
        let renumbered = format!("\"number\": {at}");
        let invalid = content.replace(&format!("\"number\": {base}"), &renumbered);
        let newer = invalid.replace("\"format\": 1", "\"format\": 2");
        for (text, reason) in [
            (flipped, "its checksum is wrong"),
            (whole.clone().into_bytes(), "it is map 2"),
            (b"hello".to_vec(), "it has no checksum"),
            (Vec::new(), "it has no checksum"),
            (vec![b' '; (32 << 20) + 1], "it has 33554433 bytes"),
            (checked(&invalid).into_bytes(), "an owner that is not open"),
            (checked("{\n  \"format\": 1").into_bytes(), "missing field"),
        ] {
            put(&a, &object(at), text).await;
            let error = unread(&a).await;
            assert!(matches!(error, MapError::Damaged { .. }), "{error}");
            let error = error.to_string();
            assert!(error.contains(&format!("cluster/map/{at:020} is damaged")), "{error}");
            assert!(error.contains(reason), "{error}");
        }
        put(&a, &object(at), checked(&newer)).await;
        let error = unread(&a).await;
        assert!(matches!(error, MapError::NewerFormat { found: 2, .. }), "{error}");
        // Nor does a writer that knows the map before it take the number for its own.
        let changed = a.maps.change(&change).await;
        assert!(matches!(changed, Err(MapError::NewerFormat { .. })), "{changed:?}");
    });
}

#[test]
fn the_example_of_the_document_is_a_map() {
    let document = include_str!("../../../../docs/format.md");
    let (_, section) = document.split_once("## Map of a cluster").unwrap();
    let (_, example) = section.split_once("```json\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let map = ClusterMap::decode(7, example.as_bytes()).unwrap();
    assert_eq!(map.encode().unwrap(), example);
    let owners: Vec<_> = map.shards().iter().map(|shard| shard.owner).collect();
    assert_eq!(owners, [Some(Life(3)), Some(Life(2)), None]);
    assert_eq!(map.members()[1].address.tls_port, Some(6380));
}

#[test]
fn a_directory_that_is_used_like_a_bucket_has_maps_too() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::parse(&format!("bucket+file://{}", dir.path().display())).unwrap();
        let [mut a, b] = [(); 2].map(|()| MapStore::new(&place));
        assert!(a.newest().await.unwrap().is_none());
        let first = MapDraft::create(2, 300).unwrap().finish().unwrap();
        a.change(&first).await.unwrap();
        for (maps, n) in [(&a, 1), (&b, 2), (&a, 3)] {
            let join = |draft: &mut MapDraft| draft.join(node(n), address(n)).map(drop);
            maps.amend(join).await.unwrap();
        }
        a.kept = 2;
        assert_eq!(a.prune().await.unwrap(), 2);
        let newest = b.newest().await.unwrap().unwrap();
        assert_eq!(newest.number(), 4);
        assert!(newest.members().iter().all(|member| member.state == MemberState::Open));
    });
}
