//! Libraries of functions: their objects, and the maps that name them.

use super::*;
use crate::cluster::{LibrariesError, LibrariesId, LibraryStore};
use crate::encoding::{Function, Library};
use object_store::ObjectStoreExt;
use std::collections::BTreeSet;

/// Returns a library with a code that is so long.
fn library(name: &str, length: usize) -> Library {
    let function = Function { name: name.as_bytes().into(), description: None, flags: 1 };
    let (engine, code) = (b"LUA"[..].into(), vec![b'-'; length].into());
    Library { name: name.as_bytes().into(), engine, code, functions: vec![function] }
}

/// Returns the store of libraries of a server.
fn store_of(server: &Server) -> LibraryStore {
    let mut store = LibraryStore::new(&Place::within(server.client.clone(), "data".into(), "sim"));
    store.limits = server.maps.limits;
    store
}

fn object_of(id: LibrariesId) -> String {
    format!("data/cluster/functions/{id}")
}

/// Returns the names of the objects of libraries.
async fn objects(sim: &Sim) -> BTreeSet<String> {
    let names = sim.names().await.into_iter();
    names.filter(|name| name.starts_with("data/cluster/functions/")).collect()
}

#[test]
fn libraries_are_put_and_read() {
    run(async {
        let sim = Sim::new(1);
        let a = server(&sim, 0, 1000);
        let (base, store) = (a.found().await, store_of(&a));
        for libraries in [vec![], vec![library("a", 3), library("b", 70_000)]] {
            let id = store.put(&base, libraries.iter()).await.unwrap();
            assert!(id.to_string().starts_with("00000000000000000002-"), "{id}");
            assert_eq!(LibrariesId::try_from(id.to_string()), Ok(id));
            assert_eq!(store.read(id).await.unwrap(), Some(libraries));
            store.remove(id).await.unwrap();
            store.remove(id).await.unwrap();
            assert_eq!(store.read(id).await.unwrap(), None);
        }
        let large = [library("large", 64 << 20)];
        let refused = store.put(&base, large.iter()).await;
        assert!(matches!(refused, Err(LibrariesError::TooLarge(_))), "{refused:?}");
        assert!(objects(&sim).await.is_empty());
        for text in ["", "2-00", &format!("+{:019}-{}", 2, "0".repeat(32)), &"0".repeat(53)] {
            assert!(LibrariesId::try_from(text.to_owned()).is_err(), "{text}");
        }
    });
}

#[test]
fn no_flipped_bit_of_the_libraries_is_believed() {
    run(async {
        let sim = Sim::new(2);
        let a = server(&sim, 0, 1000);
        let (base, store) = (a.found().await, store_of(&a));
        let id = store.put(&base, [library("a", 3)].iter()).await.unwrap();
        let path = object_of(id).into();
        let whole = sim.objects.get(&path).await.unwrap().bytes().await.unwrap();
        let newer = {
            let mut newer = whole.to_vec();
            newer[8] = 2;
            let crc = crc32c::crc32c_append(crc32c::crc32c(&newer[..12]), &newer[16..]);
            newer[12..16].copy_from_slice(&crc.to_le_bytes());
            newer
        };
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            sim.objects.put(&path, damaged.into()).await.unwrap();
            let read = store.read(id).await;
            assert!(matches!(read, Err(LibrariesError::Damaged { .. })), "{bit}: {read:?}");
        }
        for length in 0..whole.len() {
            sim.objects.put(&path, whole.slice(..length).into()).await.unwrap();
            assert!(store.read(id).await.is_err(), "{length}");
        }
        sim.objects.put(&path, newer.into()).await.unwrap();
        let error = store.read(id).await.unwrap_err();
        assert!(matches!(error, LibrariesError::NewerFormat { found: 2, .. }), "{error}");
        assert!(error.to_string().contains(&format!("cluster/functions/{id}")), "{error}");
    });
}

#[test]
fn a_map_names_libraries_that_were_made_from_those_before_it() {
    run(async {
        let sim = Sim::new(3);
        let a = server(&sim, 0, 1000);
        let base = a.found().await;
        let [first, second] = [(); 2].map(|()| Some(LibrariesId::random(base.number())));
        let replace = async |from, to| {
            let replaced = a.maps.amend(|draft| draft.replace_functions(from, to)).await;
            replaced.map(|map| map.functions()).map_err(|error| error.to_string())
        };
        let other = Err("another server has changed the libraries of functions".to_owned());
        assert_eq!(replace(None, first).await, Ok(first));
        assert_eq!(replace(None, second).await, other);
        assert_eq!(replace(None, None).await, other);
        assert_eq!(replace(first, first).await, Err("the map is so already".to_owned()));
        assert_eq!(replace(first, second).await, Ok(second));
        assert_eq!(replace(second, None).await, Ok(None));
        // Another server reads it from the object.
        let read = server(&sim, 0, 1000).maps.newest().await.unwrap().unwrap();
        assert_eq!((read.functions(), read.number()), (None, base.number() + 3));
        let later = Some(LibrariesId::random(read.number() + 1));
        let text = "the libraries of functions were put too long ago";
        assert_eq!(replace(None, later).await, Err(text.to_owned()));
    });
}

#[test]
fn libraries_are_deleted_once_no_map_can_name_them() {
    run(async {
        let sim = Sim::new(4);
        let a = server(&sim, 0, 1000);
        let (mut newest, store) = (a.found().await, store_of(&a));
        let name = async |from, to| a.maps.amend(|draft| draft.replace_functions(from, to)).await;
        let id = store.put(&newest, [library("a", 3)].iter()).await.unwrap();
        newest = name(None, Some(id)).await.unwrap();
        // These are of changes that are under way, or came to nothing.
        let [slow, late] = [
            store.put(&newest, [library("b", 3)].iter()).await.unwrap(),
            store.put(&newest, [library("c", 3)].iter()).await.unwrap(),
        ];
        sim.objects.put(&"data/cluster/functions/note".into(), "none".into()).await.unwrap();
        let last = newest.number() + 63;
        while newest.number() < last {
            newest = a.touch().await;
            assert_eq!(store.prune(&newest).await.unwrap(), 0, "{}", newest.number());
        }
        // The last map that may name it ...
        newest = name(Some(id), Some(slow)).await.unwrap();
        assert_eq!(newest.number(), last + 1);
        let refused = name(Some(slow), Some(late)).await;
        assert!(refused.unwrap_err().to_string().contains("put too long ago"));
        // ... keeps it. The one that it replaced goes as well: nobody needs it.
        assert_eq!(store.prune(&newest).await.unwrap(), 2);
        let left = objects(&sim).await;
        assert_eq!(left, [object_of(slow), "data/cluster/functions/note".into()].into());
        for _ in 0..70 {
            newest = a.touch().await;
        }
        assert_eq!(store.prune(&newest).await.unwrap(), 0);
        assert_eq!(store.read(slow).await.unwrap(), Some(vec![library("b", 3)]));
    });
}

#[test]
fn few_objects_are_deleted_at_a_time() {
    run(async {
        let sim = Sim::new(5);
        let a = server(&sim, 0, 1000);
        let (mut newest, store) = (a.found().await, store_of(&a));
        for _ in 0..20 {
            store.put(&newest, [].iter()).await.unwrap();
        }
        for _ in 0..64 {
            newest = a.touch().await;
        }
        assert_eq!(store.prune(&newest).await.unwrap(), 16);
        assert_eq!(store.prune(&newest).await.unwrap(), 4);
    });
}

#[test]
fn what_is_put_over_a_store_with_faults_is_whole() {
    run(async {
        for seed in 0..20 {
            let sim = Sim::new(100 + seed);
            let founder = server(&sim, 0, 1000);
            let (base, a) = (founder.found().await, server(&sim, 30, 1000));
            a.client.doubles.store(30, Ordering::SeqCst);
            let (store, libraries) = (store_of(&a), [library("a", 100)]);
            match store.put(&base, libraries.iter()).await {
                Ok(id) => {
                    let read = store_of(&founder).read(id).await.unwrap();
                    assert_eq!(read.as_deref(), Some(&libraries[..]), "seed {seed}");
                }
                Err(error) => assert!(matches!(error, LibrariesError::Away { .. }), "{error}"),
            }
        }
    });
}
