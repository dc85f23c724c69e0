//! Log of refused and closed clients: one line for all of some seconds, so that an attack is
//! neither overlooked nor able to flood the log.

use crate::transport::PeerAddr;
use std::sync::{Mutex, PoisonError};

/// Time between two lines in ms.
const PERIOD_MS: u64 = 10_000;

/// Number of refusals of one kind, and the last client.
#[derive(Debug, Default)]
struct RefusalCount {
    times: u64,
    last: Option<PeerAddr>,
    /// The reason for the last one, if they differ.
    reason: String,
}

#[derive(Debug, Default)]
struct RefusalCounts {
    wrong_passwords: RefusalCount,
    silent: RefusalCount,
    too_many: RefusalCount,
    unprotected: RefusalCount,
    evicted: RefusalCount,
    handshakes: RefusalCount,
    plain: RefusalCount,
    secured: RefusalCount,
    unnamed: RefusalCount,
    logged_at_ms: u64,
}

/// Refusals since the last line.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<RefusalCounts>);

impl Refusals {
    fn count(&self, which: impl FnOnce(&mut RefusalCounts) -> &mut RefusalCount, addr: &PeerAddr) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = which(&mut counts);
        count.times += 1;
        count.last = Some(addr.clone());
    }

    /// Counts a client that has given a wrong password.
    pub fn wrong_password(&self, addr: &PeerAddr) {
        self.count(|counts| &mut counts.wrong_passwords, addr);
    }

    /// Counts a client that was closed because it did not authenticate in time.
    pub fn silent(&self, addr: &PeerAddr) {
        self.count(|counts| &mut counts.silent, addr);
    }

    /// Counts a client that was refused because there are too many.
    pub fn too_many(&self, addr: &PeerAddr) {
        self.count(|counts| &mut counts.too_many, addr);
    }

    /// Counts a client of another machine that was refused because there is no password.
    pub fn unprotected(&self, addr: &PeerAddr) {
        self.count(|counts| &mut counts.unprotected, addr);
    }

    /// Counts a client that was closed because all clients together took too much memory.
    pub fn evicted(&self, addr: &PeerAddr) {
        self.count(|counts| &mut counts.evicted, addr);
    }

    /// Counts a TLS handshake that failed, or was not complete in time.
    pub fn handshake(&self, addr: &PeerAddr, reason: String) {
        self.count(
            |counts| {
                counts.handshakes.reason = reason;
                &mut counts.handshakes
            },
            addr,
        );
    }

    /// Counts a client of the port for TLS that does not speak it.
    pub fn plain_at_tls(&self, addr: &PeerAddr) {
        self.count(|counts| &mut counts.plain, addr);
    }

    /// Counts a client that speaks TLS at a port for others.
    pub fn tls_at_plain(&self, addr: &PeerAddr) {
        self.count(|counts| &mut counts.secured, addr);
    }

    /// Counts a connection of a proxy that does not name its client.
    pub fn unnamed(&self, addr: &PeerAddr, reason: String) {
        self.count(
            |counts| {
                counts.unnamed.reason = reason;
                &mut counts.unnamed
            },
            addr,
        );
    }

    /// Returns a line about the refusals since the last line, if one is due.
    fn due(&self, now_ms: u64) -> Option<String> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now_ms.saturating_sub(counts.logged_at_ms) < PERIOD_MS {
            return None;
        }
        let RefusalCounts { wrong_passwords, silent, too_many, unprotected, .. } = &*counts;
        let RefusalCounts { evicted, handshakes, plain, secured, unnamed, .. } = &*counts;
        let told: Vec<String> = [
            (wrong_passwords, "wrong passwords"),
            (silent, "closed that gave no password"),
            (
                too_many,
                "refused as maxclients is reached, or half of it by clients without a password",
            ),
            (unprotected, "refused by protected-mode"),
            (evicted, "closed by maxmemory-clients, those that took most"),
            (handshakes, "failed TLS handshakes"),
            (plain, "without TLS at tls-port"),
            (secured, "with TLS at a port without it"),
            (unnamed, "of proxies (proxy-protocol) that named no client"),
        ]
        .into_iter()
        .filter_map(|(count, what)| {
            let last = count.last.as_ref()?;
            let reason = if count.reason.is_empty() { "" } else { ": " };
            Some(format!("{} {what} (last: {last}{reason}{})", count.times, count.reason))
        })
        .collect();
        if told.is_empty() {
            return None;
        }
        *counts = RefusalCounts { logged_at_ms: now_ms, ..RefusalCounts::default() };
        Some(told.join("; "))
    }

    /// Logs the refusals, at most once in some seconds.
    pub fn log(&self, now_ms: u64) {
        if let Some(told) = self.due(now_ms) {
            tracing::warn!("clients turned away: {told}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn there_is_one_line_for_all_of_some_seconds() {
        let refusals = Refusals::default();
        assert_eq!(refusals.due(50_000), None);
        let addr = |port| PeerAddr::from(SocketAddr::from(([10, 0, 0, 1], port)));
        for port in 1..=500 {
            refusals.wrong_password(&addr(port));
        }
        refusals.silent(&addr(7));
        let first = refusals.due(50_000).expect("a line");
        assert_eq!(
            first,
            "500 wrong passwords (last: 10.0.0.1:500); \
            1 closed that gave no password (last: 10.0.0.1:7)"
        );
        refusals.evicted(&addr(9));
        assert_eq!(refusals.due(59_999), None);
        let second = refusals.due(60_000).expect("a line");
        assert!(second.starts_with("1 closed by maxmemory-clients"), "{second}");
        assert_eq!(refusals.due(80_000), None);
        refusals.handshake(&addr(1), "no certificate".to_owned());
        refusals.handshake(&addr(2), "it takes too long".to_owned());
        let third = refusals.due(90_000).expect("a line");
        assert_eq!(third, "2 failed TLS handshakes (last: 10.0.0.1:2: it takes too long)");
    }
}
