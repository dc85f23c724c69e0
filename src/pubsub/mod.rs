//! Publish and subscribe: who listens to which channel. One registry for the whole node, as a
//! message goes to connections of every worker and its publisher is told how many there are.
//!
//! A message is put into its listeners' outboxes under the registry's lock, so all of them get the
//! messages of a channel in the same order. What takes time (matching patterns, rendering, waking
//! connections) is done without it.

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

/// What a client can listen to; the value is its place in [`Client::subscriptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Channel,
    Pattern,
    Shard,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Channel, Self::Pattern, Self::Shard];

    /// The first word of its messages.
    const fn word(self) -> &'static [u8] {
        match self {
            Self::Channel => b"message",
            Self::Pattern => b"pmessage",
            Self::Shard => b"smessage",
        }
    }
}

/// Bytes of memory that a subscription takes beside its name, about.
const ENTRY: usize = 200;

/// The clients that listen to one name, by id.
type Listeners = FnvHashMap<u64, Arc<Client>>;

#[derive(Debug, Default)]
struct Registry {
    /// By kind.
    names: [HashMap<Bytes, Listeners>; 3],
    /// All patterns, made when a message needs them; `None`: they have changed.
    patterns: Option<Arc<[Bytes]>>,
}

impl Registry {
    fn patterns(&mut self) -> Arc<[Bytes]> {
        let names = &self.names[Kind::Pattern as usize];
        self.patterns.get_or_insert_with(|| names.keys().cloned().collect()).clone()
    }

    fn listeners(&self, kind: Kind, name: &[u8]) -> Option<&Listeners> {
        self.names[kind as usize].get(name)
    }
}

/// See the module's description.
#[derive(Debug)]
pub struct PubSub {
    registry: Mutex<Registry>,
    wakes: Wakes,
    /// Memory of all subscriptions, and how much of it there may be.
    bytes: AtomicUsize,
    max_bytes: usize,
}

/// A message for the listeners of one name.
struct Parcel<'a> {
    kind: Kind,
    name: &'a [u8],
    /// What is before channel and payload, in RESP2 and RESP3.
    heads: [Vec<u8>; 2],
}

impl<'a> Parcel<'a> {
    fn new(kind: Kind, name: &'a [u8]) -> Self {
        let heads = [Proto::Resp2, Proto::Resp3].map(|proto| {
            let mut head = Reply::new(proto);
            head.push(if kind == Kind::Pattern { 4 } else { 3 });
            head.bulk(kind.word());
            if kind == Kind::Pattern {
                head.bulk(name);
            }
            head.into_bytes()
        });
        Self { kind, name, heads }
    }
}

impl PubSub {
    /// For connections of so many workers, with subscriptions of at most `max_bytes` of memory.
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

    /// Sends a message to who listens to its channel; how many that are.
    pub fn publish(
        &self,
        channel: &[u8],
        payload: &[u8],
        limits: &OutputBufferLimits,
        now_ms: u64,
    ) -> usize {
        let mut registry = self.lock();
        let heard = registry.listeners(Kind::Channel, channel).is_some();
        let patterns = registry.patterns();
        drop(registry);
        let matching = patterns.iter().filter(|pattern| glob::matches(pattern, channel));
        let mut parcels: SmallVec<[Parcel<'_>; 2]> = SmallVec::new();
        parcels.extend(heard.then(|| Parcel::new(Kind::Channel, channel)));
        parcels.extend(matching.map(|pattern| Parcel::new(Kind::Pattern, pattern)));
        self.deliver(&parcels, channel, payload, limits, now_ms)
    }

    /// How many would hear a message.
    pub fn receivers(&self, channel: &[u8], to_shard: bool) -> usize {
        let mut registry = self.lock();
        if to_shard {
            return registry.listeners(Kind::Shard, channel).map_or(0, |all| all.len());
        }
        let patterns = registry.patterns();
        let matching = patterns.iter().filter(|pattern| glob::matches(pattern, channel));
        let by_pattern = matching.filter_map(|pattern| registry.listeners(Kind::Pattern, pattern));
        let by_name = registry.listeners(Kind::Channel, channel);
        by_name.into_iter().chain(by_pattern).map(|all| all.len()).sum()
    }

    /// The same for a shard channel, which patterns do not match.
    pub fn publish_to_shard(
        &self,
        channel: &[u8],
        payload: &[u8],
        limits: &OutputBufferLimits,
        now_ms: u64,
    ) -> usize {
        if self.lock().listeners(Kind::Shard, channel).is_none() {
            return 0;
        }
        self.deliver(&[Parcel::new(Kind::Shard, channel)], channel, payload, limits, now_ms)
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
        // Both protocols have it alike.
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

    /// Has the connections woken that were sent something. Whoever publishes does this once it has
    /// published what it has at hand, so that they write it all at once.
    #[inline]
    pub fn ring(&self) {
        self.wakes.ring();
    }

    /// Wakes the connections of a worker that were sent something; runs as long as the worker.
    pub async fn run_wakes(&self, worker: usize) {
        self.wakes.run(worker).await;
    }

    /// Runs something while no message is sent: what changes how messages are rendered.
    pub fn between_messages<T>(&self, run: impl FnOnce() -> T) -> T {
        let _registry = self.lock();
        run()
    }

    /// Takes room for subscriptions to these names; false: there is not enough.
    #[must_use]
    pub fn reserve<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> bool {
        let bytes = names.map(|name| name.len() + ENTRY).sum();
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= self.max_bytes;
        if !fits {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Gives the room for a subscription back.
    fn release(&self, name: &[u8]) {
        self.bytes.fetch_sub(name.len() + ENTRY, Ordering::Relaxed);
    }

    /// A client begins to listen; the name as everybody keeps it. Its room is reserved.
    fn add(&self, kind: Kind, name: &[u8], client: &Arc<Client>) -> Bytes {
        let mut registry = self.lock();
        let names = &mut registry.names[kind as usize];
        let found = names.get_key_value(name).map(|(name, _)| name.clone());
        let is_new = found.is_none();
        let name = found.unwrap_or_else(|| Bytes::copy_from_slice(name));
        names.entry(name.clone()).or_default().insert(client.id, client.clone());
        if is_new && kind == Kind::Pattern {
            registry.patterns = None;
        }
        name
    }

    /// A client listens no more.
    fn remove(&self, kind: Kind, name: &[u8], client: &Client) {
        let mut registry = self.lock();
        let names = &mut registry.names[kind as usize];
        let Some(listeners) = names.get_mut(name) else { return };
        listeners.remove(&client.id);
        if listeners.is_empty() {
            names.remove(name);
            if kind == Kind::Pattern {
                registry.patterns = None;
            }
        }
        drop(registry);
        self.release(name);
    }

    /// How many names of a kind are listened to.
    pub fn count(&self, kind: Kind) -> usize {
        self.lock().names[kind as usize].len()
    }

    /// How many clients listen to a name.
    pub fn listeners(&self, kind: Kind, name: &[u8]) -> usize {
        self.lock().listeners(kind, name).map_or(0, Listeners::len)
    }

    /// The names of a kind that are listened to.
    pub fn names(&self, kind: Kind) -> Vec<Bytes> {
        self.lock().names[kind as usize].keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests;
