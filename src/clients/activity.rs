//! Times at which a client was active, for `timeout` and CLIENT LIST.

use super::{Client, ClientState};
use std::sync::atomic::Ordering;

impl Client {
    /// Returns the time at which it last sent or took something, ms since the Unix epoch.
    pub fn last_ms(&self) -> u64 {
        self.last_ms.load(Ordering::Relaxed)
    }

    /// Notes that it is active.
    pub fn seen_at(&self, now_ms: u64) {
        self.last_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Notes that it was active at a time that may be older than the last one.
    #[inline]
    pub(crate) fn seen_since(&self, ms: u64) {
        if ms > self.last_ms() {
            self.seen_at(ms);
        }
    }

    /// Notes that it has sent commands, which run from now on: until their end it is not idle.
    #[inline]
    pub(crate) fn begins(&self, now_ms: u64) {
        self.seen_at(now_ms);
        self.goes_on();
    }

    /// Notes that further ones of its commands run.
    #[inline]
    pub(crate) fn goes_on(&self) {
        self.running.store(true, Ordering::Release);
    }

    /// Notes that none of its commands runs any more. `ms`: returns the time, which may be older than the last
    /// one.
    #[inline]
    pub(crate) fn ends(&self, ms: impl FnOnce() -> u64) {
        if self.running.load(Ordering::Relaxed) {
            self.seen_since(ms());
            self.running.store(false, Ordering::Release);
        }
    }

    /// Returns true if it may be idle for any time: it is subscribed, monitors, is blocked, follows, or is
    /// a server of the cluster; or if its command runs.
    pub fn may_be_idle(&self) -> bool {
        let states = ClientState::PUBSUB | ClientState::MONITOR | ClientState::BLOCKED;
        self.running.load(Ordering::Acquire)
            || self.is(states | ClientState::REPLICA | ClientState::SERVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::PeerAddr;
    use std::net::{Ipv4Addr, SocketAddr};

    #[test]
    fn a_client_is_idle_from_the_end_of_its_command_on() {
        let addr = PeerAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
        let client = Client::new(1, (addr.clone(), addr), 0, 0, 1000);
        client.begins(2000);
        assert!(client.may_be_idle());
        client.ends(|| 9000);
        assert!(!client.may_be_idle());
        assert_eq!(client.last_ms(), 9000);
        client.ends(|| 9500);
        client.seen_since(8000);
        assert_eq!(client.last_ms(), 9000, "no command has run, and an older time changes nothing");
        client.seen_since(9600);
        assert_eq!(client.last_ms(), 9600);
    }
}
