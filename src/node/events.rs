//! Messages of PUBLISH, and keyspace events (`notify-keyspace-events`): publishes each event on the
//! configured channels, to the clients of this server only.

use super::Node;
use crate::config::Settings;
use flagstone_storage::notes::Interest;
use flagstone_storage::notify::NotifyFlags;
use std::sync::atomic::Ordering;

impl Node {
    /// Returns the changes and events that any client listens for.
    pub fn interest(&self, settings: &Settings) -> Interest {
        Interest {
            changes: self.broadcast.listeners.count.load(Ordering::Relaxed) != 0,
            events: settings.notify_keyspace_events.published(),
        }
    }

    /// Sends a message to the subscribers of its channel, to those of the other servers of a cluster too,
    /// and returns the number of those here.
    pub fn publish(&self, settings: &Settings, channel: &[u8], payload: &[u8]) -> usize {
        if let Some(cluster) = &self.cluster {
            cluster.messages.send(channel, payload);
        }
        let (limits, now_ms) = (&settings.client_output_buffer_limit, self.clock.now_ms());
        self.broadcast.pubsub.publish(channel, payload, limits, now_ms)
    }

    /// Publishes a keyspace event on the configured channels.
    pub(crate) fn publish_event(&self, settings: &Settings, db: u32, key: &[u8], event: &str) {
        let flags = settings.notify_keyspace_events;
        let (limits, now_ms) = (&settings.client_output_buffer_limit, self.clock.now_ms());
        if flags.contains(NotifyFlags::KEYSPACE) {
            let channel = [format!("__keyspace@{db}__:").as_bytes(), key].concat();
            self.broadcast.pubsub.publish(&channel, event.as_bytes(), limits, now_ms);
        }
        if flags.contains(NotifyFlags::KEYEVENT) {
            let channel = format!("__keyevent@{db}__:{event}");
            self.broadcast.pubsub.publish(channel.as_bytes(), key, limits, now_ms);
        }
    }
}
