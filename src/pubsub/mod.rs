//! Publish and subscribe: the subscriptions of all connections. There is one registry for the node,
//! because a message goes to connections of every worker, and its publisher is told their number.
//!
//! A message is put into its subscribers' outboxes under the registry's lock, so all of them
//! receive the messages of a channel in the same order. Slow work (matching patterns, rendering,
//! waking connections) is done outside the lock.

mod subscriptions;
mod wakes;

pub use subscriptions::Subscriptions;

use crate::clients::Client;
use crate::config::OutputBufferLimits;
use bytes::Bytes;
use flagstone_wire::glob;
use flagstone_wire::resp::{Proto, Reply};
use fnv::FnvHashMap;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wakes::Wakes;

/// Kind of a subscription; its value is the index in [`Client::subscriptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionKind {
    Channel,
    Pattern,
    Shard,
}

impl SubscriptionKind {
    pub const ALL: [Self; 3] = [Self::Channel, Self::Pattern, Self::Shard];

    /// Returns the first word of its messages.
    const fn word(self) -> &'static [u8] {
        match self {
            Self::Channel => b"message",
            Self::Pattern => b"pmessage",
            Self::Shard => b"smessage",
        }
    }
}

/// Approximate memory in bytes of a subscription beside its name.
const ENTRY: usize = 200;

/// Returns the approximate memory in bytes of a subscription.
fn weight(name: &[u8]) -> usize {
    name.len() + ENTRY
}

/// Writes the confirmation of a subscription or its end; `count` subscriptions are left.
pub fn write_confirmation(told: &mut Reply, word: &[u8], name: Option<&[u8]>, count: usize) {
    told.push(3);
    told.bulk(word);
    told.bulk_or_null(name);
    told.count(count);
}

/// Subscribers of one name, by client id.
type Listeners = FnvHashMap<u64, Arc<Client>>;

#[derive(Debug, Default)]
struct Registry {
    /// Subscribers by kind and name.
    names: [HashMap<Bytes, Listeners>; 3],
    /// All patterns, collected when a message needs them; `None` after a change.
    patterns: Option<Arc<[Bytes]>>,
}

impl Registry {
    fn patterns(&mut self) -> Arc<[Bytes]> {
        let names = &self.names[SubscriptionKind::Pattern as usize];
        self.patterns.get_or_insert_with(|| names.keys().cloned().collect()).clone()
    }

    fn listeners(&self, kind: SubscriptionKind, name: &[u8]) -> Option<&Listeners> {
        self.names[kind as usize].get(name)
    }
}

/// All subscriptions of the node.
#[derive(Debug)]
pub struct PubSub {
    registry: Mutex<Registry>,
    wakes: Wakes,
    /// Memory of all subscriptions in bytes, and its maximum.
    bytes: AtomicUsize,
    max_bytes: usize,
}

/// A message to the subscribers of one name.
struct Parcel<'a> {
    kind: SubscriptionKind,
    name: &'a [u8],
    /// Bytes before channel and payload, in RESP2 and RESP3.
    heads: [Vec<u8>; 2],
}

impl<'a> Parcel<'a> {
    fn new(kind: SubscriptionKind, name: &'a [u8]) -> Self {
        let heads = [Proto::Resp2, Proto::Resp3].map(|proto| {
            let mut head = Reply::new(proto);
            head.push(if kind == SubscriptionKind::Pattern { 4 } else { 3 });
            head.bulk(kind.word());
            if kind == SubscriptionKind::Pattern {
                head.bulk(name);
            }
            head.into_bytes()
        });
        Self { kind, name, heads }
    }
}

impl PubSub {
    /// Creates a registry for connections of so many workers, with subscriptions of at most
    /// `max_bytes` of memory.
    pub fn new(workers: usize, max_bytes: usize) -> Self {
        Self {
            registry: Mutex::default(),
            wakes: Wakes::new(workers),
            bytes: AtomicUsize::new(0),
            max_bytes,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message to the subscribers of its channel, and returns their number.
    pub fn publish(
        &self,
        channel: &[u8],
        payload: &[u8],
        limits: &OutputBufferLimits,
        now_ms: u64,
    ) -> usize {
        let mut registry = self.lock();
        let heard = registry.listeners(SubscriptionKind::Channel, channel).is_some();
        let patterns = registry.patterns();
        drop(registry);
        let matching = patterns.iter().filter(|pattern| glob::matches(pattern, channel));
        let mut parcels: SmallVec<[Parcel<'_>; 2]> = SmallVec::new();
        parcels.extend(heard.then(|| Parcel::new(SubscriptionKind::Channel, channel)));
        parcels.extend(matching.map(|pattern| Parcel::new(SubscriptionKind::Pattern, pattern)));
        self.deliver(&parcels, channel, payload, limits, now_ms)
    }

    /// Returns the number of clients that would receive a message.
    pub fn receivers(&self, channel: &[u8], to_shard: bool) -> usize {
        let mut registry = self.lock();
        if to_shard {
            return registry.listeners(SubscriptionKind::Shard, channel).map_or(0, |all| all.len());
        }
        let patterns = registry.patterns();
        let matching = patterns.iter().filter(|pattern| glob::matches(pattern, channel));
        let by_pattern =
            matching.filter_map(|pattern| registry.listeners(SubscriptionKind::Pattern, pattern));
        let by_name = registry.listeners(SubscriptionKind::Channel, channel);
        by_name.into_iter().chain(by_pattern).map(|all| all.len()).sum()
    }

    /// Sends a message to the subscribers of a shard channel, which patterns do not match; returns
    /// their number.
    pub fn publish_to_shard(
        &self,
        channel: &[u8],
        payload: &[u8],
        limits: &OutputBufferLimits,
        now_ms: u64,
    ) -> usize {
        if self.lock().listeners(SubscriptionKind::Shard, channel).is_none() {
            return 0;
        }
        self.deliver(
            &[Parcel::new(SubscriptionKind::Shard, channel)],
            channel,
            payload,
            limits,
            now_ms,
        )
    }

    fn deliver(
        &self,
        parcels: &[Parcel<'_>],
        channel: &[u8],
        payload: &[u8],
        limits: &OutputBufferLimits,
        now_ms: u64,
    ) -> usize {
        if parcels.is_empty() {
            return 0;
        }
        // Both protocols render it alike.
        let mut body = Reply::with_capacity(Proto::Resp2, channel.len() + payload.len() + 32);
        body.bulk(channel);
        body.bulk(payload);
        let body = Bytes::from(body.into_bytes());
        let registry = self.lock();
        let mut sent = 0;
        for Parcel { kind, name, heads } in parcels {
            let Some(listeners) = registry.listeners(*kind, name) else { continue };
            for client in listeners.values() {
                let head = &heads[usize::from(client.resp() == 3)];
                if let Some(waker) = client.put(head, &body, limits, now_ms) {
                    self.wakes.add(client.worker, waker);
                }
            }
            sent += listeners.len();
        }
        sent
    }

    /// Wakes the connections that have received messages. A publisher calls this once it has
    /// published all messages that it has, so that each connection writes them at once.
    #[inline]
    pub fn ring(&self) {
        self.wakes.ring();
    }

    /// Wakes the connections of a worker that have received messages, until the worker ends.
    pub async fn run_wakes(&self, worker: usize) {
        self.wakes.run(worker).await;
    }

    /// Runs `run` while no message is sent: it changes the rendering of messages.
    pub fn between_messages<T>(&self, run: impl FnOnce() -> T) -> T {
        let _registry = self.lock();
        run()
    }

    /// Reserves memory for subscriptions to these names; returns false if there is not enough.
    #[must_use]
    pub fn reserve<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> bool {
        let bytes = names.map(weight).sum();
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= self.max_bytes;
        if !fits {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Releases the memory of a subscription.
    fn release(&self, name: &[u8]) {
        self.bytes.fetch_sub(weight(name), Ordering::Relaxed);
    }

    /// Subscribes a client, whose memory is reserved, and returns the shared copy of the name; `None` if
    /// it is subscribed already.
    fn add(&self, kind: SubscriptionKind, name: &[u8], client: &Arc<Client>) -> Option<Bytes> {
        let mut registry = self.lock();
        let names = &mut registry.names[kind as usize];
        let found = names.get_key_value(name).map(|(name, _)| name.clone());
        let is_new = found.is_none();
        let name = found.unwrap_or_else(|| Bytes::copy_from_slice(name));
        if names.entry(name.clone()).or_default().insert(client.id, client.clone()).is_some() {
            return None;
        }
        if kind == SubscriptionKind::Shard {
            client.shard_channels().insert(name.clone());
        }
        if is_new && kind == SubscriptionKind::Pattern {
            registry.patterns = None;
        }
        Some(name)
    }

    /// Removes a subscription of a client; returns false if there is none.
    fn remove(&self, kind: SubscriptionKind, name: &[u8], client: &Client) -> bool {
        let mut registry = self.lock();
        let names = &mut registry.names[kind as usize];
        let Some(listeners) = names.get_mut(name) else { return false };
        if listeners.remove(&client.id).is_none() {
            return false;
        }
        if kind == SubscriptionKind::Shard {
            client.shard_channels().remove(name);
        }
        if listeners.is_empty() {
            names.remove(name);
            if kind == SubscriptionKind::Pattern {
                registry.patterns = None;
            }
        }
        drop(registry);
        self.release(name);
        true
    }

    /// Ends all subscriptions to the shard channels for which `is_gone` is true, and tells their clients:
    /// their shard is served by another server now.
    pub fn end_shard_channels(
        &self,
        is_gone: impl Fn(&[u8]) -> bool,
        limits: &OutputBufferLimits,
        now_ms: u64,
    ) {
        let mut registry = self.lock();
        let names = &mut registry.names[SubscriptionKind::Shard as usize];
        for (name, listeners) in names.extract_if(|name, _| is_gone(name)) {
            for client in listeners.into_values() {
                let left = client.leave_shard_channel(&name);
                client.release(weight(&name));
                self.release(&name);
                let proto = if client.resp() == 3 { Proto::Resp3 } else { Proto::Resp2 };
                let mut told = Reply::new(proto);
                write_confirmation(&mut told, b"sunsubscribe", Some(&name), left);
                let frame = Bytes::from(told.into_bytes());
                if let Some(waker) = client.put(&[], &frame, limits, now_ms) {
                    self.wakes.add(client.worker, waker);
                }
            }
        }
        drop(registry);
        self.ring();
    }

    /// Returns the subscribers for which `is_chosen` is true with one of their subscriptions.
    pub fn choose(
        &self,
        is_chosen: impl Fn(&Client, SubscriptionKind, &[u8]) -> bool,
    ) -> Vec<Arc<Client>> {
        let registry = self.lock();
        let mut chosen: FnvHashMap<u64, Arc<Client>> = FnvHashMap::default();
        for kind in SubscriptionKind::ALL {
            for (name, listeners) in &registry.names[kind as usize] {
                for (id, client) in listeners {
                    if !chosen.contains_key(id) && is_chosen(client, kind, name) {
                        chosen.insert(*id, client.clone());
                    }
                }
            }
        }
        chosen.into_values().collect()
    }

    /// Returns the number of names of a kind with subscribers.
    pub fn count(&self, kind: SubscriptionKind) -> usize {
        self.lock().names[kind as usize].len()
    }

    /// Returns the number of subscribers of a name.
    pub fn listeners(&self, kind: SubscriptionKind, name: &[u8]) -> usize {
        self.lock().listeners(kind, name).map_or(0, Listeners::len)
    }

    /// Returns the names of a kind that have subscribers.
    pub fn names(&self, kind: SubscriptionKind) -> Vec<Bytes> {
        self.lock().names[kind as usize].keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests;
