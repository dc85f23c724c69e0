use super::*;

const S: u64 = 1_000_000;
const DAY: u64 = 86_400 * S;
/// Some time in 2026.
const THEN: u64 = 1_790_000_000 * S;

fn clock() -> (Arc<ManualTime>, Clock) {
    let time = Arc::new(ManualTime::default());
    time.wall_us.store(THEN, Ordering::Relaxed);
    (time.clone(), Clock::manual(time))
}

/// Advances both clocks.
fn pass(time: &ManualTime, us: u64) {
    time.wall_us.fetch_add(us, Ordering::Relaxed);
    time.elapsed_us.fetch_add(us, Ordering::Relaxed);
}

fn set(time: &ManualTime, wall_us: u64) {
    time.wall_us.store(wall_us, Ordering::Relaxed);
}

#[test]
fn time_goes_on_when_the_system_clock_was_set_back() {
    let (time, clock) = clock();
    pass(&time, 100 * S);
    set(&time, THEN + DAY);
    assert_eq!(clock.now_us(), THEN + DAY);
    set(&time, THEN);
    assert_eq!(clock.now_us(), THEN + DAY);
    for seconds in [1, 10, 100, 1000] {
        let before = clock.now_us();
        pass(&time, seconds * S);
        let passed = clock.now_us() - before;
        assert!((seconds * S - passed) <= seconds * S / SLOWER + 1, "{passed} of {seconds} s");
    }
}

#[test]
fn time_goes_on_from_the_time_of_the_data() {
    let (time, clock) = clock();
    clock.at_least((THEN + DAY) / 1000);
    assert_eq!(clock.now_us(), THEN + DAY);
    assert_eq!(clock.ahead_ms(), DAY / 1000);
    pass(&time, 128 * S);
    assert_eq!(clock.now_us(), THEN + DAY + 127 * S);
    // A later lower bound counts, too.
    clock.at_least((THEN + 2 * DAY) / 1000);
    pass(&time, 128 * S);
    assert_eq!(clock.now_us(), THEN + 2 * DAY);
    pass(&time, 128 * S);
    assert_eq!(clock.now_us(), THEN + 2 * DAY + 127 * S);
}

#[test]
fn the_system_clock_is_followed_when_it_has_caught_up() {
    let (time, clock) = clock();
    clock.now_us();
    set(&time, THEN - 10 * S);
    clock.now_us();
    // A lead of ten seconds is gone after 1280 s at the slower rate.
    for _ in 0..1300 {
        pass(&time, S);
        clock.now_us();
    }
    assert_eq!(clock.now_us(), THEN + 1290 * S);
    assert_eq!(clock.ahead_ms(), 0);
    set(&time, THEN + DAY);
    assert_eq!(clock.now_us(), THEN + DAY);
    // An earlier lead does not count any more.
    set(&time, THEN + DAY - S);
    assert_eq!(clock.now_us(), THEN + DAY);
    pass(&time, 128 * S);
    assert_eq!(clock.now_us(), THEN + DAY + 127 * S);
}

#[test]
fn a_thread_that_read_the_clock_earlier_does_not_lead_away_from_it() {
    let (time, clock) = clock();
    for n in 0..1000 {
        pass(&time, S);
        let wall = time.wall_us.load(Ordering::Relaxed);
        assert_eq!(clock.now_us(), wall, "{n}");
        set(&time, wall - 3);
        assert_eq!(clock.now_us(), wall);
        set(&time, wall);
    }
}

#[test]
fn time_never_goes_back_or_stands_whatever_the_system_clock_does() {
    let (time, clock) = clock();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut before = clock.now_us();
    for _ in 0..100_000 {
        if random(10) == 0 {
            set(&time, THEN + random(4 * DAY));
            assert!(clock.now_us() >= before);
            before = clock.now_us();
        }
        let passed = random(10 * S);
        pass(&time, passed);
        let now = clock.now_us();
        assert!(now >= before + passed - passed / SLOWER - 1, "{before} {now} {passed}");
        before = now;
    }
}

#[test]
fn large_jumps_are_counted_once() {
    let (time, clock) = clock();
    clock.look();
    for _ in 0..10 {
        pass(&time, S / 10);
        clock.look();
    }
    assert_eq!((clock.jumps(), clock.ahead_ms()), (0, 0));
    set(&time, THEN + DAY);
    clock.look();
    clock.look();
    assert_eq!((clock.jumps(), clock.ahead_ms()), (1, 0));
    set(&time, THEN);
    clock.look();
    pass(&time, S);
    clock.look();
    assert_eq!(clock.jumps(), 2);
    assert!(clock.ahead_ms() > (DAY - S) / 1000);
    // A small correction is not logged.
    set(&time, THEN + 2 * S);
    clock.look();
    assert_eq!(clock.jumps(), 2);
}

#[test]
fn milliseconds_and_microseconds_are_of_one_time() {
    let (time, clock) = clock();
    assert_eq!(clock.now_ms(), THEN / 1000);
    pass(&time, 700);
    assert_eq!(clock.now_ms(), THEN / 1000);
    set(&time, THEN + 100);
    assert_eq!(clock.now_us(), THEN + 100);
    pass(&time, 1000);
    assert_eq!(clock.now_ms(), THEN / 1000 + 1);
    set(&time, THEN);
    assert_eq!(clock.now_ms(), THEN / 1000 + 1, "it was set back");
    assert!(clock.now_us() >= THEN + 1000);
}
