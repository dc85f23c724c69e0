//! Publish and subscribe: who listens to which channel. One registry for the whole node, as a
//! message goes to connections of every worker and its publisher is told how many there are.

use crate::clients::Client;
use crate::config::OutputBufferLimits;
use crate::glob;
use crate::resp::{Proto, Reply};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The clients that listen to one channel or pattern, in the order in which they came.
type Listeners = Vec<Arc<Client>>;

#[derive(Debug, Default)]
struct Registry {
    channels: HashMap<Bytes, Listeners>,
    patterns: HashMap<Bytes, Listeners>,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct PubSub(Mutex<Registry>);

/// A message in both protocols, rendered when the first listener of each is met.
struct Message<'a> {
    words: &'a [&'a [u8]],
    rendered: [Option<Bytes>; 2],
}

impl Message<'_> {
    fn frame(&mut self, resp: u32) -> Bytes {
        let proto = if resp == 3 { Proto::Resp3 } else { Proto::Resp2 };
        let rendered = &mut self.rendered[usize::from(resp == 3)];
        let words = self.words;
        let render = || {
            let mut out = Reply::new(proto);
            out.push(words.len());
            words.iter().for_each(|word| out.bulk(word));
            Bytes::from(out.into_bytes())
        };
        rendered.get_or_insert_with(render).clone()
    }

    fn send(&mut self, listeners: &Listeners, limits: &OutputBufferLimits, now_ms: u64) -> usize {
        for client in listeners {
            client.push(self.frame(client.resp()), limits, now_ms);
        }
        listeners.len()
    }
}

impl PubSub {
    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message to who listens to its channel; how many that are.
    pub fn publish(
        &self,
        channel: &[u8],
        payload: &[u8],
        limits: &OutputBufferLimits,
        now_ms: u64,
    ) -> usize {
        let registry = self.lock();
        let mut sent = 0;
        if let Some(listeners) = registry.channels.get(channel) {
            let words: [&[u8]; 3] = [b"message", channel, payload];
            sent +=
                Message { words: &words, rendered: [None, None] }.send(listeners, limits, now_ms);
        }
        for (pattern, listeners) in &registry.patterns {
            if glob::matches(pattern, channel) {
                let words: [&[u8]; 4] = [b"pmessage", pattern, channel, payload];
                let mut message = Message { words: &words, rendered: [None, None] };
                sent += message.send(listeners, limits, now_ms);
            }
        }
        sent
    }

    /// A connection has ended.
    pub fn forget(&self, client: &Client) {
        let mut registry = self.lock();
        let Registry { channels, patterns } = &mut *registry;
        for map in [channels, patterns] {
            map.retain(|_, listeners| {
                listeners.retain(|listener| listener.id != client.id);
                !listeners.is_empty()
            });
        }
    }
}
