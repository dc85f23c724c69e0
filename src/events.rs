//! What commands have done to keys, told to whoever wants to hear of it: keyspace events, and that
//! keys have changed. It is told once the commands' writes are stored, as their replies are.

use crate::config::Settings;
use crate::node::Node;
use crate::tracking::Changes;
use crate::unit::Published;
use crate::worker::{Shown, Worker};
use flagstone_storage::notes::{Interest, Note, NoteKind};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::partition::Partition;
use std::cell::RefMut;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// The notes of one command.
pub struct News {
    /// What it tells is stored with this.
    pub(crate) shown: Shown,
    /// The connection whose command it was; 0: none.
    pub client: u64,
    /// Counts the news of a worker from 1 on.
    pub number: u64,
    pub notes: Vec<Note>,
    /// What a unit has published.
    pub published: Vec<Published>,
}

impl Node {
    /// What anybody wants to hear of.
    pub fn interest(&self, settings: &Settings) -> Interest {
        Interest {
            changes: self.change_listeners.load(Ordering::Relaxed) != 0,
            events: settings.notify_keyspace_events.classes(),
        }
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
            let (seen, notes) = (store.seen(), store.notes.take());
            drop(partition);
            self.spread(self.rounds.seen(seen), client, notes, Vec::new());
        }
    }

    /// Something has happened that is told once what it shows is stored.
    #[cold]
    pub(crate) fn spread(
        self: &Rc<Self>,
        shown: Shown,
        client: u64,
        notes: Vec<Note>,
        published: Vec<Published>,
    ) {
        self.note_news(shown, client, notes, published);
        self.serve_waiters();
    }

    /// The same without serving those who have waited for it.
    pub(crate) fn note_news(
        &self,
        shown: Shown,
        client: u64,
        notes: Vec<Note>,
        published: Vec<Published>,
    ) {
        let changed = notes.iter().filter(|note| note.what.is_change());
        self.touch_watches(&notes);
        self.touch_waiters(changed.map(|note| (note.db, &*note.key)));
        let number = self.news_count.get() + 1;
        self.news_count.set(number);
        self.news.borrow_mut().push_back(News { shown, client, number, notes, published });
        // A round that nothing has changed is stored already.
        self.tell_news();
    }

    /// Tells what is stored by now, in order.
    pub(crate) fn tell_news(&self) {
        if self.news.borrow().is_empty() {
            return;
        }
        let (to_disk, settings) = (self.is_always(), self.settings());
        let mut changes = Changes::default();
        while let Some((news, stored)) = self.next_news(to_disk) {
            // Nothing has happened where the write could not be stored.
            if stored {
                self.tell_each(&news, &settings, &mut changes);
            }
        }
        self.node.broadcast(&changes, &settings);
        self.node.pubsub.ring();
    }

    /// The oldest news if it is known what became of it, and whether it is stored.
    fn next_news(&self, to_disk: bool) -> Option<(News, bool)> {
        let mut waiting = self.news.borrow_mut();
        let news = waiting.pop_front_if(|news| self.rounds.is_known(&news.shown, to_disk))?;
        let stored = self.rounds.is_stored(&news.shown, to_disk);
        Some((news, stored))
    }

    /// Tells of what is stored.
    pub(crate) fn tell(&self, news: &News) {
        let settings = self.settings();
        let mut changes = Changes::default();
        self.tell_each(news, &settings, &mut changes);
        self.node.broadcast(&changes, &settings);
        self.node.pubsub.ring();
    }

    fn tell_each(&self, news: &News, settings: &Settings, changes: &mut Changes) {
        for published in &news.published {
            published.send(&self.node, settings);
        }
        for note in &news.notes {
            match note.what {
                NoteKind::Changed | NoteKind::Expired => self.tell_change(news, note, changes),
                NoteKind::Touched => {}
                NoteKind::Event(_, name) => {
                    self.node.publish_event(settings, note.db, &note.key, name);
                }
            }
        }
    }
}
