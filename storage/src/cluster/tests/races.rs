//! Many writers at once, with requests that are late, lost, or arrive twice.

use super::*;
use futures::future::join_all;
use std::collections::BTreeSet;

#[test]
fn of_a_hundred_writers_one_wins_each_number() {
    run(async {
        let sim = Sim::new(7);
        let base = server(&sim, 0, 1000).found().await.number();
        let writers = (0..100).map(|_| async {
            let server = server(&sim, 0, 1000);
            let mut tries = 0;
            let mut own = None;
            let amended = server.maps.amend(|draft| {
                tries += 1;
                own = Some((draft.map().number(), draft.map().nonce));
                touch(draft)
            });
            server.believes(&amended.await.unwrap());
            let (number, nonce) = own.unwrap();
            assert_eq!(server.first(number).unwrap().nonce, nonce);
            (number, tries)
        });
        let won = join_all(writers).await;
        let numbers: BTreeSet<u64> = won.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (base + 1..=base + 100).collect());
        assert!(won.iter().map(|(_, tries)| tries).sum::<usize>() > 1000, "there was no race");
        let last = server(&sim, 0, 1000).maps.newest().await.unwrap().unwrap();
        assert_eq!(last.number(), base + 100);
    });
}

/// Events that the seeds together must have seen.
#[derive(Debug, Default)]
struct Seen {
    counts: usize,
    lost: usize,
    forgotten: usize,
    unknown: usize,
    debris: usize,
}

/// Pauses a server now and then.
async fn naps(server: &Server) {
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(server.sim.below(80))).await;
        server.client.paused.shut(true);
        tokio::time::sleep(Duration::from_millis(server.sim.below(100))).await;
        server.client.paused.shut(false);
    }
}

/// Puts a change until its fate is known.
async fn settle(server: &Server, change: &PendingChange, seen: &mut Seen) {
    let mut unknown = 0;
    let outcome = loop {
        match server.maps.change(change).await {
            Ok(outcome) => break outcome,
            Err(MapError::Away { .. } | MapError::Restless { .. }) => unknown += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(unknown < 100, "a fate stays unknown");
    };
    seen.unknown += unknown;
    let number = change.map().number();
    let first = server.first(number);
    match outcome {
        MapOutcome::Counts(newest) => {
            assert_eq!(first.as_ref(), Some(change.map()), "map {number} counts for its writer");
            server.believes(&newest);
            assert!(newest.number() >= number);
            seen.counts += 1;
        }
        MapOutcome::Lost(newest) => {
            assert_ne!(first.as_ref(), Some(change.map()), "map {number} is lost for its writer");
            server.believes(&newest);
            seen.lost += 1;
        }
        MapOutcome::Forgotten(newest) => {
            server.believes(&newest);
            assert!(newest.number() > number);
            seen.forgotten += 1;
        }
    }
}

/// Changes the map several times, as one of some writers.
async fn writes(server: &Server) -> Seen {
    let mut seen = Seen::default();
    for _ in 0..12 {
        let Ok(base) = server.maps.newest().await else { continue };
        let base = base.unwrap();
        server.believes(&base);
        let mut draft = base.draft();
        touch(&mut draft).unwrap();
        if server.sim.below(4) == 0 {
            tokio::time::sleep(Duration::from_millis(server.sim.below(150))).await;
        }
        settle(server, &draft.finish().unwrap(), &mut seen).await;
        // It is as likely to fail as other requests, and the next one deletes the rest.
        let _ = server.maps.prune().await;
    }
    seen
}

async fn story_of(seed: u64) -> Seen {
    let sim = Sim::new(seed);
    let kept = 1 + sim.below(3);
    server(&sim, 0, kept).found().await;
    let writers = (0..4).map(|_| async {
        let faults = [0, 20, 60][sim.below(3) as usize];
        let server = server(&sim, faults, kept);
        server.client.doubles.store(20, Ordering::SeqCst);
        tokio::join!(writes(&server), naps(&server)).0
    });
    let mut seen = Seen::default();
    for one in join_all(writers).await {
        seen.counts += one.counts;
        seen.lost += one.lost;
        seen.forgotten += one.forgotten;
        seen.unknown += one.unknown;
    }
    seen.debris = sim.stored_again();
    // Whoever comes last believes the last map of the sequence.
    let last = server(&sim, 0, kept);
    let newest = last.maps.newest().await.unwrap().unwrap();
    last.believes(&newest);
    assert_eq!(last.first(newest.number() + 1), None);
    seen
}

#[test]
fn nobody_believes_another_content_of_a_number() {
    let mut all = Seen::default();
    for seed in 0..200 {
        let seen = run(story_of(seed));
        all.counts += seen.counts;
        all.lost += seen.lost;
        all.forgotten += seen.forgotten;
        all.unknown += seen.unknown;
        all.debris += seen.debris;
    }
    println!("{all:?}");
    assert!(all.counts > 1000 && all.lost > 1000, "{all:?}");
    assert!(all.forgotten > 20 && all.unknown > 20 && all.debris > 20, "{all:?}");
}
