//! The sessions that returning clients resume without a full handshake.

use crate::config::TlsSettings;
use rustls::server::StoresServerSessions;
use std::collections::{HashMap, VecDeque};
use std::fmt::{Debug, Formatter};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of bytes of all sessions: one has the certificates of its client.
const MAX_BYTES: usize = 16 << 20;

/// Maximum number of sessions, whatever the setting.
const MAX_SESSIONS: usize = 1 << 20;

#[derive(Default)]
struct Remembered {
    /// Time when the session was stored, and its bytes.
    sessions: HashMap<Vec<u8>, (Instant, Vec<u8>)>,
    /// Names of the sessions, the oldest first, and of some that were taken since.
    order: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Remembered {
    fn remove(&mut self, name: &[u8]) -> Option<(Instant, Vec<u8>)> {
        let removed = self.sessions.remove(name)?;
        self.bytes -= name.len() + removed.1.len();
        Some(removed)
    }
}

/// Sessions by name, bounded in number, bytes and time.
pub(super) struct SessionCache {
    most: usize,
    lifetime: Duration,
    remembered: Mutex<Remembered>,
}

impl SessionCache {
    pub(super) fn new(settings: &TlsSettings) -> Self {
        Self {
            most: match settings.session_cache_size {
                0 => MAX_SESSIONS,
                most => most.min(MAX_SESSIONS),
            },
            lifetime: Duration::from_secs(settings.session_cache_timeout_seconds),
            remembered: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh(&self, (since, session): (Instant, Vec<u8>)) -> Option<Vec<u8>> {
        (since.elapsed() <= self.lifetime).then_some(session)
    }
}

impl Debug for SessionCache {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionCache").field("most", &self.most).finish_non_exhaustive()
    }
}

impl StoresServerSessions for SessionCache {
    fn put(&self, name: Vec<u8>, session: Vec<u8>) -> bool {
        let bytes = name.len() + session.len();
        if bytes > MAX_BYTES {
            return false;
        }
        let mut remembered = self.lock();
        remembered.remove(&name);
        while remembered.order.len() >= self.most || remembered.bytes + bytes > MAX_BYTES {
            let Some(oldest) = remembered.order.pop_front() else { break };
            remembered.remove(&oldest);
        }
        remembered.bytes += bytes;
        remembered.order.push_back(name.clone());
        remembered.sessions.insert(name, (Instant::now(), session));
        true
    }

    fn get(&self, name: &[u8]) -> Option<Vec<u8>> {
        let found = self.lock().sessions.get(name).cloned();
        found.and_then(|found| self.fresh(found))
    }

    fn take(&self, name: &[u8]) -> Option<Vec<u8>> {
        let found = self.lock().remove(name);
        found.and_then(|found| self.fresh(found))
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn cache(size: usize, seconds: u64) -> SessionCache {
        let tls = TlsSettings {
            session_cache_size: size,
            session_cache_timeout_seconds: seconds,
            ..Settings::default().tls
        };
        SessionCache::new(&tls)
    }

    #[test]
    fn the_oldest_session_makes_room() {
        let cache = cache(2, 300);
        for n in 1..=3 {
            assert!(cache.put(vec![n], vec![n; 10]));
        }
        assert_eq!(cache.get(&[1]), None);
        assert_eq!(cache.take(&[2]), Some(vec![2; 10]));
        assert_eq!(cache.take(&[2]), None);
        assert_eq!(cache.get(&[3]), Some(vec![3; 10]));
        assert_eq!(cache.lock().bytes, 11);
    }

    #[test]
    fn bytes_are_bounded_without_a_size() {
        let cache = cache(0, 300);
        for n in 0..=255_u8 {
            assert!(cache.put(vec![n], vec![n; MAX_BYTES / 16]));
            assert!(cache.lock().bytes <= MAX_BYTES);
        }
        assert!(cache.get(&[255]).is_some());
        assert!(!cache.put(vec![1], vec![0; MAX_BYTES]));
    }

    #[test]
    fn names_of_sessions_that_were_taken_do_not_pile_up() {
        let cache = cache(100, 300);
        for n in 0..10_000_u32 {
            cache.put(n.to_be_bytes().to_vec(), vec![0; 10]);
            cache.take(&n.to_be_bytes());
        }
        assert!(cache.lock().order.len() <= 100, "{}", cache.lock().order.len());
    }

    #[test]
    fn an_old_session_is_not_resumed() {
        let cache = cache(10, 0);
        cache.put(vec![1], vec![1]);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(cache.get(&[1]), None);
        assert_eq!(cache.take(&[1]), None);
        assert_eq!(cache.lock().bytes, 0);
    }
}
