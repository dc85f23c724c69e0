//! Messages of PUBLISH on their way to the other servers: a bounded queue for each. A publisher never
//! waits; what does not fit is dropped, and a server to which there is no link gets nothing.

use super::{Life, NodeId};
use arc_swap::ArcSwap;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Bytes of the messages that wait for one server; one message may be larger.
const QUEUE_MAX: usize = 32 << 20;

/// Bytes of the messages of a batch; one message may be larger.
pub const BATCH_BYTES: usize = 256 << 10;

/// Messages of a batch.
pub const BATCH_MESSAGES: usize = 128;

/// Approximate memory in bytes of a message in a queue beside its text.
const ENTRY: usize = 128;

/// A message and its channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadMessage {
    pub channel: Bytes,
    pub payload: Bytes,
}

impl SpreadMessage {
    fn new(channel: &[u8], payload: &[u8]) -> Self {
        let mut both = Bytes::from([channel, payload].concat());
        let channel = both.split_to(channel.len());
        Self { channel, payload: both }
    }

    fn weight(&self) -> usize {
        self.channel.len() + self.payload.len() + ENTRY
    }
}

#[derive(Debug, Default)]
struct WaitingMessages {
    messages: VecDeque<SpreadMessage>,
    bytes: usize,
    /// Messages that were dropped since the queue was empty.
    lost: u64,
}

/// The messages for one other server.
#[derive(Debug)]
pub struct PeerQueue {
    node: NodeId,
    life: Life,
    waiting: Mutex<WaitingMessages>,
    /// True while there is a link; changed under the lock.
    is_open: AtomicBool,
    filled: Notify,
    /// When the link began, in ms since the Unix epoch.
    since_ms: AtomicU64,
}

impl PeerQueue {
    fn new(node: NodeId, life: Life) -> Self {
        let (waiting, filled) = (Mutex::default(), Notify::new());
        let (is_open, since_ms) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { node, life, waiting, is_open, filled, since_ms }
    }

    fn lock(&self) -> MutexGuard<'_, WaitingMessages> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn node(&self) -> NodeId {
        self.node
    }

    pub fn life(&self) -> Life {
        self.life
    }

    /// Returns true while there is a link.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Returns when the link began, in ms since the Unix epoch.
    pub fn since_ms(&self) -> u64 {
        self.since_ms.load(Ordering::Relaxed)
    }

    /// Returns the bytes that wait.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Notes that there is a link: messages are queued from now on.
    pub fn open(&self, now_ms: u64) {
        let _waiting = self.lock();
        self.since_ms.store(now_ms, Ordering::Relaxed);
        self.is_open.store(true, Ordering::Relaxed);
    }

    /// Notes that there is no link, and returns the number of messages that are dropped.
    pub fn close(&self) -> u64 {
        let mut waiting = self.lock();
        self.is_open.store(false, Ordering::Relaxed);
        std::mem::take(&mut *waiting).messages.len() as u64
    }

    /// Queues a message if there is a link; returns false if there is no room for it.
    fn put(&self, message: &SpreadMessage) -> bool {
        let mut waiting = self.lock();
        if !self.is_open() {
            return true;
        }
        let bytes = waiting.bytes + message.weight();
        if bytes > QUEUE_MAX && !waiting.messages.is_empty() {
            waiting.lost += 1;
            if waiting.lost == 1 {
                tracing::warn!(
                    life = self.life.0,
                    "a server of the cluster is too slow: messages of PUBLISH for it are dropped"
                );
            }
            return false;
        }
        waiting.bytes = bytes;
        waiting.messages.push_back(message.clone());
        drop(waiting);
        self.filled.notify_one();
        true
    }

    /// Takes the next messages, in order.
    fn take(&self) -> Vec<SpreadMessage> {
        let mut waiting = self.lock();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(message) = waiting.messages.front() {
            let weight = message.weight();
            let is_full = bytes + weight > BATCH_BYTES || batch.len() == BATCH_MESSAGES;
            if is_full && !batch.is_empty() {
                break;
            }
            bytes += weight;
            batch.extend(waiting.messages.pop_front());
        }
        waiting.bytes -= bytes;
        if waiting.messages.is_empty() && waiting.lost > 0 {
            let lost = std::mem::take(&mut waiting.lost);
            tracing::warn!(life = self.life.0, lost, "messages for the server are sent again");
        }
        batch
    }

    /// Waits for messages, and takes the next ones, in order.
    pub async fn next_batch(&self) -> Vec<SpreadMessage> {
        loop {
            let batch = self.take();
            if !batch.is_empty() {
                return batch;
            }
            self.filled.notified().await;
        }
    }
}

/// The queues of all other servers, and counts of messages.
#[derive(Debug, Default)]
pub struct MessageQueues {
    queues: ArcSwap<BTreeMap<Life, Arc<PeerQueue>>>,
    /// Messages that were queued for a server, ...
    pub queued: AtomicU64,
    /// ... that have come from another one, ...
    pub received: AtomicU64,
    /// ... and that were dropped, because there was no room, or the link broke.
    pub dropped: AtomicU64,
}

impl MessageQueues {
    /// Adds the queue of a server, without a link.
    pub fn add(&self, node: NodeId, life: Life) -> Arc<PeerQueue> {
        let queue = Arc::new(PeerQueue::new(node, life));
        self.queues.rcu(|queues| {
            let mut queues = BTreeMap::clone(queues);
            queues.insert(life, queue.clone());
            queues
        });
        queue
    }

    /// Removes the queue of a server, with what is in it.
    pub fn remove(&self, life: Life) {
        self.queues.rcu(|queues| {
            let mut queues = BTreeMap::clone(queues);
            queues.remove(&life);
            queues
        });
    }

    /// Returns the queues of all servers to which there is a link.
    pub fn open(&self) -> Vec<Arc<PeerQueue>> {
        self.queues.load().values().filter(|queue| queue.is_open()).cloned().collect()
    }

    /// Queues a message for each server to which there is a link.
    pub fn send(&self, channel: &[u8], payload: &[u8]) {
        let queues = self.queues.load();
        let mut open = queues.values().filter(|queue| queue.is_open()).peekable();
        if open.peek().is_none() {
            return;
        }
        let message = SpreadMessage::new(channel, payload);
        for queue in open {
            let counter = if queue.put(&message) { &self.queued } else { &self.dropped };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(queues: &MessageQueues, life: u64) -> Arc<PeerQueue> {
        queues.add(NodeId(rand::random()), Life(life))
    }

    fn counts(queues: &MessageQueues) -> (u64, u64) {
        (queues.queued.load(Ordering::Relaxed), queues.dropped.load(Ordering::Relaxed))
    }

    #[test]
    fn servers_with_a_link_get_each_message_in_order_and_others_nothing() {
        let queues = MessageQueues::default();
        let (near, away) = (queue(&queues, 1), queue(&queues, 2));
        queues.send(b"ch", b"before");
        near.open(5);
        for n in 0..300 {
            queues.send(b"ch", format!("{n}").as_bytes());
        }
        away.open(6);
        queues.send(b"", b"");
        assert_eq!((counts(&queues), queues.open().len()), ((302, 0), 2));
        let batches = [near.take(), near.take(), near.take()];
        assert_eq!(batches.each_ref().map(Vec::len), [BATCH_MESSAGES, BATCH_MESSAGES, 45]);
        for (n, message) in batches.iter().flatten().enumerate().take(300) {
            assert_eq!(
                (&*message.channel, &*message.payload),
                (&b"ch"[..], n.to_string().as_bytes())
            );
        }
        assert_eq!((away.take(), near.bytes()), (vec![SpreadMessage::new(b"", b"")], 0));
        queues.send(b"ch", b"lost with the link");
        assert_eq!((near.close(), near.bytes(), away.close()), (1, 0, 1));
        queues.send(b"ch", b"after");
        queues.remove(Life(1));
        assert!(near.take().is_empty() && queues.open().is_empty());
    }

    #[test]
    fn what_does_not_fit_is_dropped_but_a_single_message_of_any_size_goes() {
        let queues = MessageQueues::default();
        let slow = queue(&queues, 1);
        slow.open(5);
        let large = vec![b'x'; QUEUE_MAX];
        queues.send(b"ch", &large);
        queues.send(b"ch", b"no room");
        assert_eq!(counts(&queues), (1, 1));
        assert_eq!(slow.take().len(), 1);
        let half = vec![b'x'; QUEUE_MAX / 2];
        for _ in 0..3 {
            queues.send(b"ch", &half);
        }
        assert_eq!(counts(&queues), (2, 3));
        assert_eq!((slow.take().len(), slow.bytes()), (1, 0));
        for _ in 0..3 {
            queues.send(b"ch", &half[..BATCH_BYTES / 2 - 2 * ENTRY]);
        }
        assert_eq!((slow.take().len(), slow.take().len()), (2, 1), "a batch has a limit of bytes");
    }

    #[tokio::test]
    async fn the_next_message_ends_a_wait() {
        let queues = MessageQueues::default();
        let near = queue(&queues, 1);
        near.open(5);
        let waiting = tokio::spawn({
            let near = near.clone();
            async move { near.next_batch().await }
        });
        tokio::task::yield_now().await;
        queues.send(b"ch", b"m");
        assert_eq!(waiting.await.unwrap(), [SpreadMessage::new(b"ch", b"m")]);
    }
}
