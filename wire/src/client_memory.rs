//! The memory of connections: input, queued commands and unread replies. It is counted in one place
//! for the process, which has one allocator: so a large allocation on any thread can check whether
//! there is room (`maxmemory-clients`).
//!
//! Only large buffers are counted here, as they grow. The other memory of connections is found by
//! visiting all of them (`Client::memory`), which happens periodically.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum size of a buffer that is not counted, in bytes.
pub const SMALL: usize = 64 << 10;

/// The memory of all connections of the process.
pub static CLIENTS: Account = Account::new();

/// The memory in use, and its limits.
#[derive(Debug)]
pub struct Account {
    taken: AtomicUsize,
    /// Limit of all clients together; 0: none.
    limit: AtomicUsize,
    /// Limit of a single client while the others keep to the limit.
    single: AtomicUsize,
    /// These two for the replies to clients that are never closed for their memory.
    spared: [AtomicUsize; 2],
}

/// Limits of connections, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Limit of all connections together; 0: none.
    pub all: u64,
    /// Limit of a single connection while the others keep to `all`; at least `all`.
    pub single: u64,
}

impl Account {
    const fn new() -> Self {
        Self {
            taken: AtomicUsize::new(0),
            limit: AtomicUsize::new(0),
            single: AtomicUsize::new(0),
            spared: [AtomicUsize::new(0), AtomicUsize::new(0)],
        }
    }

    /// Sets the limits. `spared`: those of the replies to clients that are never closed for their memory.
    pub fn set_limit(&self, limit: Limit, spared: Limit) {
        let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        self.limit.store(bytes(limit.all), Ordering::Relaxed);
        self.single.store(bytes(limit.single), Ordering::Relaxed);
        self.spared[0].store(bytes(spared.all), Ordering::Relaxed);
        self.spared[1].store(bytes(spared.single), Ordering::Relaxed);
    }

    /// Returns the limits of all replies together and of a single one.
    fn limits_of(&self, is_spared: bool) -> (usize, usize) {
        let [all, single] = match is_spared {
            true => [&self.spared[0], &self.spared[1]],
            false => [&self.limit, &self.single],
        };
        (all.load(Ordering::Relaxed), single.load(Ordering::Relaxed))
    }

    /// Returns the limits.
    pub fn limit(&self) -> Limit {
        Limit {
            all: self.limit.load(Ordering::Relaxed) as u64,
            single: self.single.load(Ordering::Relaxed) as u64,
        }
    }

    /// Returns the memory of all large buffers in bytes, but no more than all clients may take: for the
    /// rest, clients are closed.
    pub fn kept(&self) -> u64 {
        let (taken, limit) =
            (self.taken.load(Ordering::Relaxed), self.limit.load(Ordering::Relaxed));
        if limit == 0 { taken as u64 } else { taken.min(limit) as u64 }
    }

    /// Returns true if the limit of all is exceeded: then clients that take most are closed.
    #[inline]
    pub fn is_over(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        limit != 0 && self.taken.load(Ordering::Relaxed) > limit
    }

    /// Returns the bytes that are left of half of the limit of all. Without a limit, or if `is_spared`, it
    /// is that of the replies to clients that are never closed for their memory.
    #[must_use]
    pub fn left_of_half(&self, is_spared: bool) -> usize {
        (self.limit_of_all(is_spared) / 2).saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// Returns true if less than a sixteenth of that limit is taken.
    #[must_use]
    pub fn has_plenty(&self, is_spared: bool) -> bool {
        self.taken.load(Ordering::Relaxed) < self.limit_of_all(is_spared) / 16
    }

    fn limit_of_all(&self, is_spared: bool) -> usize {
        match self.limits_of(is_spared).0 {
            0 => self.limits_of(true).0,
            limit => limit,
        }
    }

    fn change(&self, before: usize, now: usize) {
        if now >= before {
            self.taken.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.taken.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// Like [`change`](Self::change), if there is room. One buffer may take the whole limit of all
    /// clients; if others use that, they are closed, and meanwhile there may be twice as much. It
    /// may take what a single client may with a `value` of so many bytes, beside a buffer of that
    /// size from which it is copied, while the others keep to the limit of all. Many small values get no
    /// more than that limit.
    fn try_change(&self, before: usize, now: usize, value: usize, is_spared: bool) -> bool {
        self.change(before, now);
        let (limit, single) = self.limits_of(is_spared);
        let most = limit.saturating_mul(2);
        let taken = self.taken.load(Ordering::Relaxed);
        let is_single = now <= single.min(limit.saturating_add(value.saturating_mul(2)));
        let fits = limit == 0
            || self.limit.load(Ordering::Relaxed) == 0
            || now <= before
            || (now <= limit && taken <= most)
            || (is_single && taken.saturating_sub(now.saturating_mul(2)) <= limit);
        if !fits {
            self.change(now, before);
        }
        fits
    }
}

/// The counted bytes of one buffer; counted until this is dropped.
#[derive(Debug, Default)]
pub struct Taken(usize);

impl Taken {
    /// Sets the current size of the buffer in bytes.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        if bytes > SMALL || self.0 != 0 {
            self.change(bytes);
        }
    }

    #[cold]
    fn change(&mut self, bytes: usize) {
        let now = counted(bytes);
        CLIENTS.change(self.0, now);
        self.0 = now;
    }

    /// Sets the size in bytes that the buffer is about to grow to; returns false if the limits
    /// refuse it.
    #[must_use]
    pub fn try_set(&mut self, bytes: usize) -> bool {
        self.try_set_with(bytes, usize::MAX, false)
    }

    /// Like [`try_set`](Self::try_set) for a buffer of several values, the greatest of which takes
    /// `value` bytes: only that one may be beyond the limit of all clients. `is_spared`: the limits are
    /// those for clients that are never closed for their memory.
    #[must_use]
    pub fn try_set_with(&mut self, bytes: usize, value: usize, is_spared: bool) -> bool {
        let now = counted(bytes);
        let fits = CLIENTS.try_change(self.0, now, value, is_spared);
        if fits {
            self.0 = now;
        }
        fits
    }

    /// Returns true if [`try_set_with`](Self::try_set_with) would succeed now.
    #[must_use]
    pub fn would_fit(&self, bytes: usize, value: usize, is_spared: bool) -> bool {
        let now = counted(bytes);
        let fits = CLIENTS.try_change(self.0, now, value, is_spared);
        if fits {
            CLIENTS.change(now, self.0);
        }
        fits
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.set(0);
    }
}

fn counted(bytes: usize) -> usize {
    if bytes > SMALL { bytes } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: Limit = Limit { all: 100, single: 100 };
    const WIDE: Limit = Limit { all: 100, single: 1000 };

    #[test]
    fn one_buffer_may_take_all_memory_and_all_buffers_twice_as_much() {
        let account = Account::new();
        assert!(account.try_change(0, usize::MAX / 2, usize::MAX, false) && !account.is_over());
        account.change(usize::MAX / 2, 0);
        account.set_limit(STRICT, STRICT);
        assert!(
            !account.try_change(0, 101, usize::MAX, false)
                && account.try_change(0, 100, usize::MAX, false)
        );
        assert!(!account.is_over());
        assert!(account.try_change(0, 80, usize::MAX, false) && account.is_over());
        assert!(!account.try_change(0, 30, usize::MAX, false), "there is no more");
        assert!(account.try_change(100, 90, usize::MAX, false), "what gets smaller always fits");
        account.change(90, 0);
        assert!(!account.is_over() && account.try_change(0, 100, usize::MAX, false));
    }

    #[test]
    fn half_of_the_limit_is_left_or_of_that_of_spared_replies() {
        let account = Account::new();
        account.change(0, 30);
        assert_eq!((account.left_of_half(false), account.left_of_half(true)), (0, 0));
        account.set_limit(Limit { all: 0, single: 0 }, WIDE);
        assert_eq!((account.left_of_half(false), account.left_of_half(true)), (20, 20));
        account.set_limit(Limit { all: 80, single: 80 }, WIDE);
        assert_eq!((account.left_of_half(false), account.left_of_half(true)), (10, 20));
        account.change(0, 30);
        assert_eq!((account.left_of_half(false), account.left_of_half(true)), (0, 0));
    }

    #[test]
    fn a_single_buffer_may_be_large_while_the_others_keep_to_the_limit() {
        let account = Account::new();
        account.set_limit(WIDE, WIDE);
        assert!(account.try_change(0, 80, usize::MAX, false));
        assert!(!account.try_change(0, 1001, usize::MAX, false));
        assert!(account.try_change(0, 1000, usize::MAX, false) && account.is_over());
        assert!(!account.try_change(0, 101, usize::MAX, false), "there is a large one already");
        assert!(account.try_change(0, 1000, usize::MAX, false), "its copy");
        account.change(2000, 0);
        account.change(0, 600);
        assert!(!account.try_change(0, 500, usize::MAX, false), "the others are beyond the limit");
    }

    #[test]
    fn many_small_values_take_no_more_than_all_clients_may() {
        let account = Account::new();
        account.set_limit(WIDE, WIDE);
        assert!(!account.try_change(0, 121, 10, false) && account.try_change(0, 120, 10, false));
        account.change(120, 0);
        assert!(!account.try_change(0, 601, 250, false) && account.try_change(0, 600, 250, false));
        account.change(600, 0);
        assert!(
            !account.try_change(0, 1001, 1000, false) && account.try_change(0, 1000, 1000, false)
        );
    }

    #[test]
    fn clients_that_are_spared_have_limits_of_their_own() {
        let account = Account::new();
        account.set_limit(Limit { all: 1, single: 1 }, WIDE);
        assert!(!account.try_change(0, 80, 80, false) && account.try_change(0, 80, 80, true));
        assert!(account.is_over() && account.kept() == 1, "others are closed");
        assert!(!account.try_change(0, 1001, 1001, true));
        account.set_limit(Limit { all: 0, single: 0 }, WIDE);
        assert!(account.try_change(0, 1001, 1001, true), "there is no limit");
        assert_eq!(account.kept(), 1081);
    }
}
