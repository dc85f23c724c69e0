//! What commands have done to keys, told to whoever wants to hear of it: keyspace events. It is
//! told once the commands' writes are stored, as their replies are.

use crate::config::{NotifyFlags, Settings};
use crate::node::Node;
use crate::worker::Worker;
use flagstone_storage::notes::{Interest, Note, What};
use flagstone_storage::partition::Partition;
use std::cell::RefMut;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// The notes of one command.
pub struct News {
    /// What it tells is stored with this round of its worker.
    pub round: u64,
    /// The connection whose command it was; 0: none.
    pub client: u64,
    pub notes: Vec<Note>,
}

impl Node {
    /// What anybody wants to hear of.
    pub fn interest(&self, settings: &Settings) -> Interest {
        let changes = self.change_listeners.load(Ordering::Relaxed) > 0;
        Interest { changes, events: settings.notify_keyspace_events.classes() }
    }

    /// Publishes a keyspace event on the channels that are configured.
    fn publish_event(&self, settings: &Settings, db: u32, key: &[u8], event: &str) {
        let flags = settings.notify_keyspace_events;
        let (limits, now_ms) = (&settings.client_output_buffer_limit, self.clock.now_ms());
        if flags.contains(NotifyFlags::KEYSPACE) {
            let channel = [format!("__keyspace@{db}__:").as_bytes(), key].concat();
            self.pubsub.publish(&channel, event.as_bytes(), limits, now_ms);
        }
        if flags.contains(NotifyFlags::KEYEVENT) {
            let channel = format!("__keyevent@{db}__:{event}");
            self.pubsub.publish(channel.as_bytes(), key, limits, now_ms);
        }
    }
}

impl Worker {
    /// Takes what a command of a connection (0: of none) has noted, to tell it once it is stored.
    #[inline]
    pub(crate) fn take_notes(self: &Rc<Self>, mut partition: RefMut<'_, Partition>, client: u64) {
        let store = &mut partition.store;
        if !store.notes.is_empty() {
            let news = News { round: store.seen(), client, notes: store.notes.take() };
            drop(partition);
            self.spread(news);
        }
    }

    /// Something has happened that is told once its round is stored.
    #[cold]
    pub(crate) fn spread(self: &Rc<Self>, news: News) {
        self.note_news(news);
        self.serve_waiters();
    }

    /// The same without serving those who have waited for it.
    pub(crate) fn note_news(&self, news: News) {
        let changed = news.notes.iter().filter(|note| note.what == What::Changed);
        self.touch_waiters(changed.map(|note| (note.db, &*note.key)));
        self.news.borrow_mut().push_back(news);
        // A round that nothing has changed is stored already.
        self.tell_news();
    }

    /// Tells what is stored by now, in order.
    pub(crate) fn tell_news(&self) {
        if self.news.borrow().is_empty() {
            return;
        }
        let to_disk = self.is_always();
        loop {
            let outcome = match self.news.borrow().front() {
                Some(next) => self.rounds.outcome(next.round, to_disk),
                None => return,
            };
            let Some(stored) = outcome else { return };
            // Nothing has happened where the write could not be stored.
            if let Some(news) = self.news.borrow_mut().pop_front()
                && stored.is_ok()
            {
                self.tell(&news);
            }
        }
    }

    /// Tells of what is stored.
    pub(crate) fn tell(&self, news: &News) {
        let settings = self.settings();
        for note in &news.notes {
            match note.what {
                What::Changed => {}
                What::Event(_, name) => {
                    self.node.publish_event(&settings, note.db, &note.key, name);
                }
            }
        }
    }
}
