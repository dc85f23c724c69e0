//! The subscriptions of one connection.

use super::{PubSub, SubscriptionKind, weight};
use crate::clients::Client;
use bytes::Bytes;
use std::collections::HashSet;
use std::sync::Arc;

/// A connection's subscriptions, which end when this is dropped.
#[derive(Debug)]
pub struct Subscriptions {
    pub(super) pubsub: Arc<PubSub>,
    /// The client, which has the names of the shard channels: others may end these.
    client: Arc<Client>,
    /// Names of channels, and patterns.
    names: [HashSet<Bytes>; 2],
}

impl Subscriptions {
    pub fn new(pubsub: &Arc<PubSub>, client: &Arc<Client>) -> Self {
        Self { pubsub: pubsub.clone(), client: client.clone(), names: Default::default() }
    }

    /// Subscribes to a name; its memory is reserved ([`PubSub::reserve`]).
    pub fn add(&mut self, kind: SubscriptionKind, name: &[u8]) {
        let Some(name) = self.pubsub.add(kind, name, &self.client) else {
            self.pubsub.release(name);
            return;
        };
        self.client.hold(weight(&name));
        if let Some(names) = self.names.get_mut(kind as usize) {
            names.insert(name);
        }
        self.show();
    }

    /// Ends a subscription; messages sent before are in the client's outbox.
    pub fn remove(&mut self, kind: SubscriptionKind, name: &[u8]) {
        if let Some(names) = self.names.get_mut(kind as usize) {
            names.remove(name);
        }
        self.end(kind, name);
        self.show();
    }

    fn end(&self, kind: SubscriptionKind, name: &[u8]) {
        if self.pubsub.remove(kind, name, &self.client) {
            self.client.release(weight(name));
        }
    }

    fn show(&self) {
        self.client.show_subscriptions(self.names.each_ref().map(HashSet::len));
    }

    /// Returns the number of subscriptions that the client is told: channels and patterns together.
    pub fn count(&self, kind: SubscriptionKind) -> usize {
        match kind {
            SubscriptionKind::Shard => self.client.shard_channels().len(),
            _ => self.names.iter().map(HashSet::len).sum(),
        }
    }

    /// Returns the names of a kind.
    pub fn names(&self, kind: SubscriptionKind) -> Vec<Bytes> {
        match self.names.get(kind as usize) {
            Some(names) => names.iter().cloned().collect(),
            None => self.client.shard_channels().iter().cloned().collect(),
        }
    }

    /// Returns true if there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.names.iter().all(HashSet::is_empty) && self.client.shard_channels().is_empty()
    }
}

impl Drop for Subscriptions {
    fn drop(&mut self) {
        for kind in SubscriptionKind::ALL {
            for name in self.names(kind) {
                self.end(kind, &name);
            }
        }
        self.client.show_subscriptions([0, 0]);
    }
}
