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
        Self { taken: AtomicUsize::new(0), limit: AtomicUsize::new(0), single: AtomicUsize::new(0) }
    }

    /// Sets the limits.
    pub fn set_limit(&self, limit: Limit) {
        let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        self.limit.store(bytes(limit.all), Ordering::Relaxed);
        self.single.store(bytes(limit.single), Ordering::Relaxed);
    }

    /// Returns the limits.
    pub fn limit(&self) -> Limit {
        Limit {
            all: self.limit.load(Ordering::Relaxed) as u64,
            single: self.single.load(Ordering::Relaxed) as u64,
        }
    }

    /// Returns true if the limit of all is exceeded: then clients that take most are closed.
    #[inline]
    pub fn is_over(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        limit != 0 && self.taken.load(Ordering::Relaxed) > limit
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
    /// may take the limit of a single client, beside a buffer of that size from which it is copied,
    /// while the others keep to the limit of all.
    fn try_change(&self, before: usize, now: usize) -> bool {
        self.change(before, now);
        let limit = self.limit.load(Ordering::Relaxed);
        let most = limit.saturating_mul(2);
        let taken = self.taken.load(Ordering::Relaxed);
        let is_single = now <= self.single.load(Ordering::Relaxed);
        let fits = limit == 0
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
        let now = counted(bytes);
        let fits = CLIENTS.try_change(self.0, now);
        if fits {
            self.0 = now;
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

    #[test]
    fn one_buffer_may_take_all_memory_and_all_buffers_twice_as_much() {
        let account = Account::new();
        assert!(account.try_change(0, usize::MAX / 2) && !account.is_over());
        account.change(usize::MAX / 2, 0);
        account.set_limit(Limit { all: 100, single: 100 });
        assert!(!account.try_change(0, 101) && account.try_change(0, 100));
        assert!(!account.is_over());
        assert!(account.try_change(0, 80) && account.is_over());
        assert!(!account.try_change(0, 30), "there is no more");
        assert!(account.try_change(100, 90), "what gets smaller always fits");
        account.change(90, 0);
        assert!(!account.is_over() && account.try_change(0, 100));
    }

    #[test]
    fn a_single_buffer_may_be_large_while_the_others_keep_to_the_limit() {
        let account = Account::new();
        account.set_limit(Limit { all: 100, single: 1000 });
        assert!(account.try_change(0, 80));
        assert!(!account.try_change(0, 1001));
        assert!(account.try_change(0, 1000) && account.is_over());
        assert!(!account.try_change(0, 101), "there is a large one already");
        assert!(account.try_change(0, 1000), "its copy");
        account.change(2000, 0);
        account.change(0, 600);
        assert!(!account.try_change(0, 500), "the others are beyond the limit");
    }
}
