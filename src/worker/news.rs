//! What commands have done to keys, told to whoever wants to hear of it: keyspace events, and that
//! keys have changed. It is told once the commands' writes are stored, as their replies are.

use super::{Shown, Worker};
use crate::config::Settings;
use crate::tracking::Changes;
use crate::unit::Published;
use flagstone_storage::notes::{Note, NoteKind};
use flagstone_storage::partition::Partition;
use std::cell::RefMut;
use std::rc::Rc;

/// The notes of one command.
pub(crate) struct News {
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
        self.node.audience(&settings).broadcast(&self.node.prefixes, &changes);
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
        self.node.audience(&settings).broadcast(&self.node.prefixes, &changes);
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
