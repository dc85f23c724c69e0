//! A simulation of clusters: servers that act at the same time over one store, with the engines, the
//! journals and the maps of real ones, on a clock that skips all waiting.
//!
//! Processes die before or behind any request, sleep, are cut off from the store, and go on; requests
//! are late or lost, or have no answer; servers are suspected rightly and wrongly, join, move shards, and
//! leave. Clients read and increase counters on whichever server claims to serve them. In the end all
//! trouble stops, and the cluster must become whole by itself. One seed has one trace.

mod agent;
mod ledger;
mod maps;
mod server;
mod trouble;
mod whole;
mod world;

use crate::simulated;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use world::{Seen, SimWorld};

const SHARDS: u16 = 4;
const LEASE: Duration = Duration::from_millis(900);

/// Keys with a counter each, and those of pairs that are always increased together.
const PLAIN_KEYS: u64 = 20;
const ALL_KEYS: u64 = PLAIN_KEYS + 8;

/// Seeds of a test.
const SEEDS: u64 = 120;

fn key_name(key: u64) -> Vec<u8> {
    format!("key:{key}").into_bytes()
}

/// Runs the history of a seed. Returns the number of events and the hash of its trace.
fn history(seed: u64) -> (Seen, (u64, u64)) {
    simulated::run(seed, || async {
        let world = SimWorld::new(seed);
        world.clone().live().await;
        let seen = world.seen();
        (seen, world.sim.trace())
    })
}

/// The seeds to run, from the environment for longer runs: `FLAGSTONE_SEEDS=first-last`.
fn seeds() -> Range<u64> {
    let chosen = std::env::var("FLAGSTONE_SEEDS").ok();
    let range = chosen.as_deref().and_then(|text| text.split_once('-'));
    let number = |text: &str| text.parse().unwrap();
    range.map_or(0..SEEDS, |(first, last)| number(first)..number(last) + 1)
}

/// Runs the histories of all seeds, on all processors.
fn run_all(seeds: Range<u64>) -> (Seen, Vec<u64>) {
    let next = AtomicU64::new(seeds.start);
    let all = Mutex::new((Seen::default(), Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end {
                        return;
                    }
                    let ran = std::panic::catch_unwind(|| history(seed));
                    let (seen, failed) = &mut *all.lock().unwrap();
                    match ran {
                        Ok((one, _)) => seen.add(&one),
                        Err(_) => failed.push(seed),
                    }
                }
            });
        }
    });
    all.into_inner().unwrap()
}

#[test]
fn whatever_happens_nothing_is_lost_or_shown_late() {
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    let (seen, failed) = run_all(seeds);
    println!("{count} seeds, {} failed: {failed:?}; {seen:?}", failed.len());
    assert!(failed.is_empty(), "seeds {failed:?}");
    // What is to be withstood does happen.
    let rare = [
        seen.takeovers,
        seen.wrong_takeovers,
        seen.refusals,
        seen.libraries,
        seen.left,
        seen.splits,
    ];
    assert!(count < SEEDS || rare.iter().all(|one| *one > count / 8), "{seen:?}");
    assert!(seen.reads > 20 * count && seen.writes > 20 * count, "{seen:?}");
}

#[test]
fn one_seed_has_one_trace() {
    for seed in 0..4 {
        assert_eq!(history(seed).1, history(seed).1, "seed {seed}");
    }
}
