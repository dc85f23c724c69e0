//! The subscriptions of a client that other threads may end: those to shard channels.

use super::{Client, ClientState};
use bytes::Bytes;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Names of shard channels.
#[derive(Debug, Default)]
pub struct ShardChannels(Mutex<HashSet<Bytes>>);

impl Client {
    /// Returns the shard channels that it is subscribed to. Only the registry of all subscriptions
    /// changes them, under its lock.
    pub(crate) fn shard_channels(&self) -> MutexGuard<'_, HashSet<Bytes>> {
        self.shard_channels.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows how many channels and patterns it is subscribed to, and how many shard channels.
    pub(crate) fn show_subscriptions(&self, others: [usize; 2]) {
        let shards = self.shard_channels();
        for (counter, count) in self.subscriptions.iter().zip([others[0], others[1], shards.len()])
        {
            counter.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
        self.set(ClientState::PUBSUB, others != [0, 0] || !shards.is_empty());
    }

    /// Ends a subscription to a shard channel, from any thread; returns the number of those left.
    pub(crate) fn leave_shard_channel(&self, name: &[u8]) -> usize {
        let mut shards = self.shard_channels();
        shards.remove(name);
        let [channels, patterns, shown] = &self.subscriptions;
        shown.store(u32::try_from(shards.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
        let others = [channels, patterns].map(|count| count.load(Ordering::Relaxed));
        self.set(ClientState::PUBSUB, others != [0, 0] || !shards.is_empty());
        shards.len()
    }
}
