//! CLIENT TRACKING with BCAST: clients that are told of every changed key with some prefix.

use super::Audience;
use crate::clients::{Client, ClientState};
use bytes::Bytes;
use flagstone_storage::value::KeyBuf;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Approximate memory in bytes of a client's prefix beside its text.
const ENTRY: usize = 200;

/// Returns the approximate memory in bytes of a client's prefix.
pub(super) fn prefix_weight(prefix: &[u8]) -> usize {
    prefix.len() + ENTRY
}

/// Clients by prefix.
#[derive(Debug)]
pub struct Prefixes {
    clients: Mutex<BTreeMap<Bytes, Vec<Arc<Client>>>>,
    /// Number of prefixes.
    count: AtomicUsize,
    /// Memory of all prefixes in bytes, and its maximum.
    bytes: AtomicUsize,
    max_bytes: usize,
}

impl Prefixes {
    /// Creates a table for prefixes of at most `max_bytes` of memory.
    pub fn new(max_bytes: usize) -> Self {
        let count = AtomicUsize::new(0);
        Self { clients: Mutex::default(), count, bytes: AtomicUsize::new(0), max_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Bytes, Vec<Arc<Client>>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of prefixes.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns true if there are any prefixes.
    #[inline]
    pub fn any(&self) -> bool {
        self.count() != 0
    }

    /// Returns true if there is memory for these prefixes.
    pub fn fits<'a>(&self, prefixes: impl Iterator<Item = &'a [u8]>) -> bool {
        let more: usize = prefixes.map(prefix_weight).sum();
        self.bytes.load(Ordering::Relaxed).saturating_add(more) <= self.max_bytes
    }

    /// Adds a prefix of a client that does not have it yet.
    pub(super) fn add(&self, prefix: Bytes, client: &Arc<Client>) {
        self.bytes.fetch_add(prefix_weight(&prefix), Ordering::Relaxed);
        let mut clients = self.lock();
        clients.entry(prefix).or_default().push(client.clone());
        self.count.store(clients.len(), Ordering::Relaxed);
    }

    /// Removes a prefix of a client.
    pub(super) fn remove(&self, prefix: &Bytes, client: &Client) {
        self.bytes.fetch_sub(prefix_weight(prefix), Ordering::Relaxed);
        let mut clients = self.lock();
        if let Some(listeners) = clients.get_mut(prefix) {
            listeners.retain(|other| other.id != client.id);
            if listeners.is_empty() {
                clients.remove(prefix);
            }
        }
        self.count.store(clients.len(), Ordering::Relaxed);
    }
}

/// Changed keys, each with the client that changed it last; 0 if none did.
#[derive(Debug, Default)]
pub struct Changes(BTreeMap<KeyBuf, u64>);

impl Changes {
    pub(crate) fn add(&mut self, key: &KeyBuf, client: u64) {
        self.0.insert(key.clone(), client);
    }

    /// Returns the keys with a prefix.
    fn with<'a>(&'a self, prefix: &'a [u8]) -> impl Iterator<Item = (&'a [u8], u64)> + Clone {
        let from = self.0.range(KeyBuf::from_slice(prefix)..);
        from.map(|(key, client)| (&**key, *client))
            .take_while(move |(key, _)| key.starts_with(prefix))
    }
}

impl Audience<'_> {
    /// Tells the clients of prefixes which of their keys have changed.
    pub(crate) fn broadcast(&self, prefixes: &Prefixes, changes: &Changes) {
        if changes.0.is_empty() {
            return;
        }
        for (prefix, listeners) in prefixes.lock().iter() {
            let keys = changes.with(prefix);
            let (noloop, rest): (Vec<_>, Vec<_>) =
                listeners.iter().partition(|client| client.is(ClientState::NOLOOP));
            if !rest.is_empty() {
                let keys = keys.clone().map(|(key, _)| key);
                self.invalidate_all_of(keys, rest.into_iter());
            }
            for client in noloop {
                let others = keys.clone().filter(|(_, by)| *by != client.id).map(|(key, _)| key);
                self.invalidate_all_of(others, std::iter::once(client));
            }
        }
    }
}
