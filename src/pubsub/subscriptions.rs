//! The subscriptions of one connection.

use super::{PubSub, SubscriptionKind, weight};
use crate::clients::{Client, ClientState};
use bytes::Bytes;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A connection's subscriptions, which end when this is dropped.
#[derive(Debug)]
pub struct Subscriptions {
    pub(super) pubsub: Arc<PubSub>,
    client: Arc<Client>,
    /// Names by kind.
    names: [HashSet<Bytes>; 3],
}

impl Subscriptions {
    pub fn new(pubsub: &Arc<PubSub>, client: &Arc<Client>) -> Self {
        Self { pubsub: pubsub.clone(), client: client.clone(), names: Default::default() }
    }

    /// Subscribes to a name; its memory is reserved ([`PubSub::reserve`]).
    pub fn add(&mut self, kind: SubscriptionKind, name: &[u8]) {
        let names = &mut self.names[kind as usize];
        if names.contains(name) {
            self.pubsub.release(name);
            return;
        }
        names.insert(self.pubsub.add(kind, name, &self.client));
        self.client.hold(weight(name));
        self.show(kind);
        self.client.set(ClientState::PUBSUB, true);
    }

    /// Ends a subscription; messages sent before are in the client's outbox.
    pub fn remove(&mut self, kind: SubscriptionKind, name: &[u8]) {
        if self.names[kind as usize].remove(name) {
            self.end(kind, name);
            self.show(kind);
            self.client.set(ClientState::PUBSUB, !self.is_empty());
        }
    }

    fn end(&self, kind: SubscriptionKind, name: &[u8]) {
        self.pubsub.remove(kind, name, &self.client);
        self.client.release(weight(name));
    }

    fn show(&self, kind: SubscriptionKind) {
        let count = u32::try_from(self.names[kind as usize].len()).unwrap_or(u32::MAX);
        self.client.subscriptions[kind as usize].store(count, Ordering::Relaxed);
    }

    /// Returns the number of subscriptions that the client is told: channels and patterns together.
    pub fn count(&self, kind: SubscriptionKind) -> usize {
        let [channels, patterns, shards] = &self.names;
        if kind == SubscriptionKind::Shard { shards.len() } else { channels.len() + patterns.len() }
    }

    /// Returns the names of a kind.
    pub fn names(&self, kind: SubscriptionKind) -> Vec<Bytes> {
        self.names[kind as usize].iter().cloned().collect()
    }

    /// Returns true if there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.names.iter().all(HashSet::is_empty)
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        for kind in SubscriptionKind::ALL {
            for name in std::mem::take(&mut self.names[kind as usize]) {
                self.end(kind, &name);
            }
            self.show(kind);
        }
        self.client.set(ClientState::PUBSUB, false);
    }
}
