//! News: keyspace events, changed keys, and messages that units publish. Clients hear of them once
//! the commands' writes are stored, as with replies.

use super::{Shown, Worker};
use crate::config::Settings;
use crate::tracking::Changes;
use crate::unit::Published;
use flagstone_storage::notes::{Note, NoteKind};
use flagstone_storage::partition::Partition;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::rc::Rc;

/// News of a worker.
#[derive(Default)]
pub(super) struct Announced {
    /// News that is announced once the rounds that it shows are stored.
    queue: RefCell<VecDeque<News>>,
    /// Number of news so far.
    pub(super) count: Cell<u64>,
}

/// Notes of one command.
pub(crate) struct News {
    /// Rounds that must be stored first.
    pub(crate) shown: Shown,
    /// Connection whose command it was; 0 if none.
    pub client: u64,
    /// Number of the news, from 1 on for each worker.
    pub number: u64,
    pub notes: Vec<Note>,
    /// Messages that a unit has published.
    pub published: Vec<Published>,
}

impl Worker {
    /// Takes the notes of a command, to announce them once they are stored. `client`: the
    /// connection, or 0.
    #[inline]
    pub(crate) fn take_notes(self: &Rc<Self>, mut partition: RefMut<'_, Partition>, client: u64) {
        let store = &mut partition.store;
        if !store.notes.is_empty() {
            let (seen, notes) = (store.seen(), store.notes.take());
            drop(partition);
            self.spread(self.rounds.seen(seen), client, notes, Vec::new());
        }
    }

    /// Queues news until the rounds that it shows are stored, and serves waiters.
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

    /// Queues news without serving waiters.
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
        let number = self.announced.count.get() + 1;
        self.announced.count.set(number);
        self.announced.queue.borrow_mut().push_back(News {
            shown,
            client,
            number,
            notes,
            published,
        });
        // The notes may show only rounds that are stored already.
        self.tell_news();
    }

    /// Announces, in order, the changes that are stored by now.
    pub(crate) fn tell_news(&self) {
        if self.announced.queue.borrow().is_empty() {
            return;
        }
        let (to_disk, settings) = (self.is_always(), self.settings());
        let mut changes = Changes::default();
        while let Some((news, stored)) = self.next_news(to_disk) {
            // A write that could not be stored has changed nothing.
            if stored {
                self.tell_each(&news, &settings, &mut changes);
            }
        }
        self.node.audience(&settings).broadcast(&self.node.broadcast.listeners.prefixes, &changes);
        self.node.broadcast.pubsub.ring();
    }

    /// Removes the oldest news if its rounds are stored, or never will be; also returns whether they are
    /// stored. A reply may say that this is not known, news waits until it is.
    fn next_news(&self, to_disk: bool) -> Option<(News, bool)> {
        let mut waiting = self.announced.queue.borrow_mut();
        let news = waiting.pop_front_if(|news| self.rounds.is_final(&news.shown, to_disk))?;
        let stored = self.rounds.is_stored(&news.shown, to_disk);
        Some((news, stored))
    }

    /// Announces news that is stored.
    pub(crate) fn tell(&self, news: &News) {
        let settings = self.settings();
        let mut changes = Changes::default();
        self.tell_each(news, &settings, &mut changes);
        self.node.audience(&settings).broadcast(&self.node.broadcast.listeners.prefixes, &changes);
        self.node.broadcast.pubsub.ring();
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
