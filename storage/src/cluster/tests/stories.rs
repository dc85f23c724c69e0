//! Stories of RFC 16: writers and readers that sleep while others delete the numbers they know.

use super::*;
use object_store::ObjectStoreExt;

#[test]
fn two_sleeping_writers_do_not_make_a_sequence_of_their_own() {
    run(async {
        let sim = Sim::new(1);
        let [a, b, c] = [(); 3].map(|()| server(&sim, 0, 1));
        let base = a.found().await.number();
        let later = c.change().await;
        assert_eq!(a.touch().await.number(), base + 1);
        let late = a.change().await;
        for _ in 0..2 {
            b.touch().await;
        }
        assert_eq!(sim.names().await, [object(base + 3)]);
        // The request of one brings a map back that the other one could take for its base.
        for (server, change) in [(&c, later), (&a, late)] {
            let outcome = server.maps.change(&change).await.unwrap();
            let MapOutcome::Forgotten(newest) = outcome else { panic!("it believes {outcome:?}") };
            assert_eq!(newest.number(), base + 3);
            server.believes(&newest);
        }
        let debris = [base + 1, base + 2, base + 3].map(object);
        assert_eq!(sim.names().await, debris);
        // It is deleted like other old maps, and nobody has taken it for the newest one.
        assert_eq!(b.touch().await.number(), base + 4);
        assert_eq!(sim.names().await, [object(base + 4)]);
    });
}

#[test]
fn a_request_that_arrives_twice_brings_a_true_map_back_in_vain() {
    run(async {
        let sim = Sim::new(2);
        let [a, b, c] = [(); 3].map(|()| server(&sim, 0, 1));
        let base = a.found().await.number();
        let twice = a.change().await;
        assert!(matches!(a.maps.change(&twice).await, Ok(MapOutcome::Counts(_))));
        let late = b.change().await;
        for _ in 0..2 {
            c.touch().await;
        }
        // The true content of its base, with the true nonce.
        let place = object(base + 1).into();
        sim.objects.put(&place, twice.text.clone().into()).await.unwrap();
        let outcome = b.maps.change(&late).await.unwrap();
        let MapOutcome::Forgotten(newest) = outcome else { panic!("it believes {outcome:?}") };
        assert_eq!(newest.number(), base + 3);
        b.believes(&newest);
        // The first one asks again for a change that counted long ago.
        let again = a.maps.change(&twice).await.unwrap();
        assert!(matches!(again, MapOutcome::Forgotten(_)), "{again:?}");
    });
}

#[test]
fn a_reader_that_sleeps_behind_its_listing_looks_again() {
    run(async {
        let sim = Sim::new(3);
        let [a, b, reader] = [(); 3].map(|()| server(&sim, 0, 1));
        a.found().await;
        let late = b.change().await;
        let listed = a.touch().await.number();
        assert_eq!(late.map().number(), listed);
        reader.client.gets_wait.shut(true);
        let others = async {
            while reader.client.gets.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            a.touch().await;
            assert!(matches!(b.maps.change(&late).await, Ok(MapOutcome::Forgotten(_))));
            reader.client.gets_wait.shut(false);
        };
        let (read, ()) = tokio::join!(reader.maps.newest(), others);
        assert!(sim.names().await.contains(&object(listed)), "the debris is not read");
        let read = read.unwrap().unwrap();
        assert_eq!(read.number(), listed + 1);
        reader.believes(&read);
    });
}

#[test]
fn a_map_that_is_not_the_newest_any_more_counts_while_it_is_kept() {
    run(async {
        let sim = Sim::new(4);
        let [a, b] = [(); 2].map(|()| server(&sim, 0, 2));
        a.found().await;
        let change = a.change().await;
        assert!(matches!(a.maps.change(&change).await, Ok(MapOutcome::Counts(_))));
        let newest = b.touch().await;
        // It asks again, as if no answer had come.
        let again = a.maps.change(&change).await.unwrap();
        let MapOutcome::Counts(known) = again else { panic!("{again:?}") };
        assert_eq!(known, newest);
        b.touch().await;
        assert!(matches!(a.maps.change(&change).await, Ok(MapOutcome::Forgotten(_))));
    });
}
