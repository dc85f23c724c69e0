//! The memory that connections take: what they have sent, queued and not read. It is counted in one
//! place for the process, which has one allocator: so whoever is about to take much of it knows on
//! any thread whether there is room (`maxmemory-clients`).
//!
//! Only what is large is counted here, as it grows. What a connection takes beside that is known by
//! looking at all of them (`Client::memory`), which happens by the clock.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of one buffer up to which it is not counted.
pub const SMALL: usize = 64 << 10;

/// The memory of all connections of the process.
pub static CLIENTS: Account = Account::new();

/// How much is taken, and how much may be.
#[derive(Debug)]
pub struct Account {
    taken: AtomicUsize,
    /// 0: any amount.
    limit: AtomicUsize,
}

impl Account {
    const fn new() -> Self {
        Self { taken: AtomicUsize::new(0), limit: AtomicUsize::new(0) }
    }

    /// Bytes that may be taken; 0: any number.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(usize::try_from(bytes).unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// Bytes that may be taken; 0: any number.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Whether more is taken than may be: then the clients that take most are closed.
    #[inline]
    pub fn is_over(&self) -> bool {
        let limit = self.limit();
        limit != 0 && self.taken.load(Ordering::Relaxed) > limit
    }

    fn change(&self, before: usize, now: usize) {
        if now >= before {
            self.taken.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.taken.fetch_sub(before - now, Ordering::Relaxed);
        }
    }

    /// The same if there is room for it. One buffer may take all that there is for clients; where
    /// others have it, these are closed, and meanwhile there may be twice as much.
    fn try_change(&self, before: usize, now: usize) -> bool {
        self.change(before, now);
        let limit = self.limit();
        let most = limit.saturating_mul(2);
        let fits = limit == 0
            || now <= before
            || (now <= limit && self.taken.load(Ordering::Relaxed) <= most);
        if !fits {
            self.change(now, before);
        }
        fits
    }
}

/// The bytes of one buffer that are counted, until this is dropped.
#[derive(Debug, Default)]
pub struct Taken(usize);

impl Taken {
    /// The buffer has so many bytes now.
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

    /// The buffer is about to have so many bytes; `false`: it may not.
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
    fn one_buffer_may_take_what_there_is_and_all_together_twice_that() {
        let account = Account::new();
        assert!(account.try_change(0, usize::MAX / 2) && !account.is_over());
        account.change(usize::MAX / 2, 0);
        account.set_limit(100);
        assert!(!account.try_change(0, 101) && account.try_change(0, 100));
        assert!(!account.is_over());
        assert!(account.try_change(0, 80) && account.is_over());
        assert!(!account.try_change(0, 30), "there is no more");
        assert!(account.try_change(100, 90), "what gets smaller always fits");
        account.change(90, 0);
        assert!(!account.is_over() && account.try_change(0, 100));
    }
}
