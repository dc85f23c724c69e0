use super::*;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

const FIRST: u64 = 3;

fn no_space() -> JournalError {
    JournalError::NoSpace { path: PathBuf::from("/journal") }
}

/// Rounds of a worker that are closed one after the other.
struct World {
    rounds: Rounds,
    open: u64,
    durable: u64,
    /// Rounds that failed.
    failed: Vec<u64>,
}

impl World {
    fn new() -> Self {
        Self { rounds: Rounds::new(FIRST), open: FIRST, durable: 0, failed: Vec::new() }
    }

    fn close(&mut self, fails: bool) {
        if fails {
            self.rounds.fail(&no_space());
            self.failed.push(self.open);
        }
        self.open += 2;
        self.advance();
    }

    fn sync(&mut self) {
        self.durable = self.open - 2;
        self.advance();
    }

    fn advance(&self) {
        self.rounds.advance(self.open - 2, self.durable, self.open);
    }

    /// Returns true if a reply that shows a round is given, false if an error is; `None` while it
    /// waits.
    fn answer(&self, shown: &Shown, round: u64, to_disk: bool) -> Option<bool> {
        let known = self.rounds.is_known(shown, to_disk);
        known.then(|| self.rounds.failure(shown, round, to_disk).is_none())
    }
}

#[test]
fn a_failed_round_is_known_as_long_as_a_reply_shows_it() {
    let mut world = World::new();
    let parked = world.rounds.seen(world.open);
    let round = world.open;
    for _ in 0..100_000 {
        world.close(true);
    }
    assert_eq!(world.answer(&parked, round, false), Some(false));
    assert!(!world.rounds.is_stored(&parked, false));
    assert!(world.rounds.any_failure(&parked, false).is_some());
    // No reply shows the other rounds, and nothing is kept of them.
    assert_eq!(Rc::strong_count(&parked.fates[0]), 1);
}

#[test]
fn a_failed_round_behind_stored_ones_waits_for_their_sync() {
    let mut world = World::new();
    let mut shown = world.rounds.seen(world.open);
    let first = world.open;
    world.close(false);
    let second = world.open;
    world.rounds.see(second, &mut shown);
    world.close(true);
    assert_eq!(world.answer(&shown, first, true), None, "the first round is not on disk");
    world.sync();
    assert_eq!(world.answer(&shown, first, true), Some(true));
    assert_eq!(world.answer(&shown, second, true), Some(false));
    assert!(!world.rounds.is_stored(&shown, true));
}

#[test]
fn a_stored_round_behind_a_failed_one_does_not_make_that_good() {
    let mut world = World::new();
    let mut shown = world.rounds.seen(world.open);
    let first = world.open;
    world.close(true);
    world.rounds.see(world.open, &mut shown);
    let second = world.open;
    world.close(false);
    world.sync();
    assert!(!world.rounds.is_stored(&shown, true));
    assert_eq!(world.answer(&shown, first, true), Some(false));
    assert_eq!(world.answer(&shown, second, true), Some(true));
}

#[test]
fn entries_that_the_journal_has_do_not_fail_with_the_open_round() {
    let mut world = World::new();
    let shown = world.rounds.seen(world.open - 1);
    assert_eq!(world.answer(&shown, world.open - 1, false), None);
    world.close(true);
    assert!(world.rounds.is_stored(&shown, false));
    assert_eq!(world.answer(&shown, FIRST - 1, true), None, "it is not on disk");
    world.sync();
    assert!(world.rounds.is_stored(&shown, true));
}

#[test]
fn when_the_journal_has_failed_nothing_that_is_not_on_disk_is_shown() {
    let mut world = World::new();
    let stored = world.rounds.seen(world.open);
    world.close(false);
    world.sync();
    let mut shown = stored.clone();
    world.rounds.see(world.open, &mut shown);
    let second = world.open;
    world.rounds.fail_all("a sync failed");
    assert!(world.rounds.is_stored(&stored, true));
    assert_eq!(world.answer(&shown, FIRST, true), Some(true));
    assert_eq!(world.answer(&shown, second, true), Some(false));
    assert_eq!(world.answer(&shown, second, false), Some(false), "it is not closed");
}

/// xorshift64*.
fn random(state: &mut u64, below: u64) -> u64 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below
}

/// Replies that gather rounds, are held for a while, and are answered at any time: each according
/// to its rounds' outcomes, under thousands of failures.
#[test]
fn every_reply_is_answered_as_its_round_has_ended() {
    let mut seed = 20;
    let (mut answered, mut refused) = (0, 0);
    for run in 0..20 {
        let mut world = World::new();
        let mut holders: Vec<(Shown, Vec<u64>)> = Vec::new();
        for _ in 0..3000 {
            match random(&mut seed, 8) {
                0..=2 => world.close(random(&mut seed, 10) < run % 11),
                3 => world.sync(),
                4 => holders.push(Default::default()),
                5 | 6 if !holders.is_empty() => {
                    let at = random(&mut seed, holders.len() as u64) as usize;
                    // The round of staged, of a coordinator's stored, or of older changes.
                    let round = match random(&mut seed, 3) {
                        0 => world.open,
                        1 => world.open - 1,
                        _ => random(&mut seed, world.open - 1),
                    };
                    // Entries of failed rounds are removed.
                    if !world.failed.contains(&round) {
                        world.rounds.see(round, &mut holders[at].0);
                        holders[at].1.push(round);
                    }
                }
                7 if !holders.is_empty() => {
                    let at = random(&mut seed, holders.len() as u64) as usize;
                    let to_disk = random(&mut seed, 2) == 0;
                    let (shown, seen) = &holders[at];
                    let behind = if to_disk { world.durable } else { world.open - 2 };
                    if !world.rounds.is_known(shown, to_disk) {
                        assert!(seen.iter().any(|round| *round > behind), "it waits for nothing");
                        continue;
                    }
                    for round in seen {
                        let failed = world.failed.contains(round);
                        assert_eq!(world.answer(shown, *round, to_disk), Some(!failed));
                        assert!(failed || *round <= behind, "it is shown too early");
                        (answered, refused) = (answered + 1, refused + u32::from(failed));
                    }
                    let all = seen.iter().all(|round| !world.failed.contains(round));
                    assert_eq!(world.rounds.is_stored(shown, to_disk), all);
                    assert_eq!(world.rounds.any_failure(shown, to_disk).is_none(), all);
                    holders.swap_remove(at);
                }
                _ => {}
            }
        }
    }
    assert!(answered > 1000 && refused > 100, "{answered} answered, {refused} of them refused");
}

#[test]
fn an_error_stays_only_if_it_says_that_the_store_is_away() {
    let away = JournalError::Away { place: "s3://bucket".into(), reason: "no answer".into() };
    assert_eq!(refusal(&away).outcome, Outcome::Refused);
    assert_eq!(refusal(&no_space()).outcome, Outcome::Failed);
    let mut world = World::new();
    let shown = world.rounds.seen(world.open);
    world.close(false);
    world.rounds.set_away(Some(unknown(&away)));
    let unknown = world.rounds.failure(&shown, shown.round(), true).expect("an error");
    assert_eq!(unknown.outcome, Outcome::Refused);
    world.rounds.fail_all("a reason");
    let lost = world.rounds.failure(&shown, shown.round(), true).expect("an error");
    assert_eq!(lost.outcome, Outcome::Failed, "another server may have taken over");
}

/// A reply may begin to wait while the store is away, for a round that is open still.
#[test]
fn who_waits_for_the_open_round_hears_that_the_store_is_away_once_it_is_closed() {
    let away = JournalError::Away { place: "s3://bucket".into(), reason: "no answer".into() };
    let mut world = World::new();
    world.close(false);
    world.rounds.set_away(Some(unknown(&away)));
    let shown = world.rounds.stored(world.open - 1);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut waiting = pin!(world.rounds.wait(&shown, true));
    let mut cx = Context::from_waker(&waker);
    assert!(waiting.as_mut().poll(&mut cx).is_pending());
    world.rounds.advance(world.open, world.durable, world.open + 2);
    assert!(woken.0.load(Ordering::Relaxed));
    assert!(waiting.as_mut().poll(&mut cx).is_ready());
    assert!(world.rounds.any_failure(&shown, true).is_some());
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn rounds_that_are_given_up_are_not_known_even_once_they_are_durable() {
    let mut world = World::new();
    world.close(false);
    world.sync();
    let stored = world.rounds.seen(world.open);
    world.close(false);
    world.sync();
    let (first, waits) = (world.open, world.rounds.seen(world.open));
    world.close(false);
    let (last, open) = (world.open, world.rounds.seen(world.open));
    assert_eq!(world.answer(&waits, first, true), None);
    assert!(world.rounds.has_to_give_up(1));
    world.rounds.give_up(1, last);
    world.close(false);
    world.sync();
    world.rounds.give_up(1, world.open);
    // Whatever replies wait for from now on.
    for to_disk in [true, false] {
        assert_eq!(world.answer(&waits, first, to_disk), Some(false));
        assert_eq!(world.answer(&open, last, to_disk), Some(false), "it may be an older write");
        assert_eq!(world.answer(&stored, stored.round(), to_disk), Some(true));
        assert!(!world.rounds.is_stored(&waits, to_disk));
        // A replica shows its data as it is.
        let now = world.rounds.stored(first);
        assert_eq!(world.answer(&now, first, to_disk), Some(true));
        let mut both = now;
        both.add(waits.clone());
        assert_eq!(world.answer(&both, first, to_disk), Some(false));
    }
    let later = world.rounds.seen(world.open);
    world.close(false);
    world.sync();
    assert_eq!(world.answer(&later, later.round(), true), Some(true));
    world.rounds.forget_given_up();
    assert_eq!(world.answer(&waits, first, true), Some(true));
    // A second time, before the first is forgotten.
    let other = world.rounds.seen(world.open);
    world.close(false);
    world.rounds.give_up(2, other.round());
    world.rounds.forget_given_up();
    assert!(world.rounds.has_given_up(), "they are not durable");
    let (third, round) = (world.rounds.seen(world.open), world.open);
    world.close(false);
    world.rounds.give_up(3, round);
    world.sync();
    assert_eq!(world.answer(&other, other.round(), true), Some(false));
    assert_eq!(world.answer(&third, round, true), Some(false));
}
