//! Notes of the changes that commands made to keys, in order, for waiting clients, watchers and subscribers. The
//! runner of a command takes its notes, and passes them on once the changes are stored.

use crate::notify::NotifyFlags;
use crate::value::KeyBuf;

/// The kind of a note: the effect of the command on the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// The key was written or deleted.
    Changed,
    /// The key was written in a way that only waiters hear of: the consumer groups of a stream.
    /// Clients that watch or track the key are not told, as in the reference.
    Touched,
    /// The key was deleted because its time had come, not by a command.
    Expired,
    /// A keyspace event: its class and its name.
    Event(NotifyFlags, &'static str),
}

impl NoteKind {
    /// Returns true if the key has another value now, or none.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Changed | Self::Touched | Self::Expired)
    }

    /// Returns true if clients that watch or track the key are told.
    pub fn is_visible(self) -> bool {
        matches!(self, Self::Changed | Self::Expired)
    }
}

/// One event of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub db: u32,
    pub key: KeyBuf,
    pub what: NoteKind,
}

/// The kinds of notes that have a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// True if [`NoteKind::Changed`] and [`NoteKind::Expired`] are wanted.
    pub changes: bool,
    pub events: NotifyFlags,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Notes {
    interest: Interest,
    taken: Vec<Note>,
    /// Bytes of the keys of these notes.
    key_bytes: usize,
    /// Number of notes at the last mark: a change behind it is noted although it repeats one before it.
    marked: usize,
}

impl Notes {
    /// Sets which notes are taken from now on.
    pub fn want(&mut self, interest: Interest) {
        self.interest = interest;
    }

    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Returns the notes since the last call.
    pub fn take(&mut self) -> Vec<Note> {
        (self.marked, self.key_bytes) = (0, 0);
        std::mem::take(&mut self.taken)
    }

    /// Returns the memory of the notes in bytes, without room for later ones.
    pub fn memory(&self) -> usize {
        self.taken.len() * size_of::<Note>() + self.key_bytes
    }

    /// Returns the number of notes so far.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Returns the number of notes so far, and makes each change from now on be noted behind them.
    pub fn mark(&mut self) -> usize {
        self.marked = self.len();
        self.marked
    }

    /// Drops the notes behind the first `before` of a command that missed data: it will look its keys up again.
    pub fn retry(&mut self, before: usize) {
        let is_miss = |note: &mut Note| matches!(note.what, NoteKind::Event(class, _) if class == NotifyFlags::KEY_MISS);
        let dropped = self.taken.extract_if(before.min(self.taken.len()).., is_miss);
        dropped.for_each(|note| self.key_bytes -= note.key.len());
    }

    /// Drops the changes of a command that changed nothing visible to others.
    pub fn drop_changes(&mut self) {
        let is_change =
            |note: &mut Note| matches!(note.what, NoteKind::Changed | NoteKind::Touched);
        self.taken.extract_if(.., is_change).for_each(|note| self.key_bytes -= note.key.len());
    }

    /// Returns true if keyspace events have a listener.
    #[inline]
    pub(crate) fn wants_events(&self) -> bool {
        !self.interest.events.is_empty()
    }

    /// Returns true if any of these classes of events has a listener.
    #[inline]
    pub(crate) fn wants(&self, classes: NotifyFlags) -> bool {
        self.interest.events.intersects(classes)
    }

    /// Notes an event of a class, if it has a listener.
    #[inline]
    pub fn event(&mut self, db: u32, key: &[u8], class: NotifyFlags, name: &'static str) {
        if self.wants(class) {
            self.push(db, key, NoteKind::Event(class, name));
        }
    }

    /// Notes that a key was written or deleted, if that has a listener.
    #[inline]
    pub fn changed(&mut self, db: u32, key: &[u8], what: NoteKind) {
        if self.interest.changes {
            self.push(db, key, what);
        }
    }

    #[cold]
    fn push(&mut self, db: u32, key: &[u8], what: NoteKind) {
        let note = Note { db, key: KeyBuf::from_slice(key), what };
        // A command that looks a key up several times changes it once.
        let is_write = matches!(what, NoteKind::Changed | NoteKind::Touched);
        if !is_write || self.taken.get(self.marked..).and_then(<[_]>::last) != Some(&note) {
            self.key_bytes += key.len();
            self.taken.push(note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_notes_is_counted() {
        let mut notes = Notes::default();
        notes
            .want(Interest { changes: true, events: NotifyFlags::GENERIC | NotifyFlags::KEY_MISS });
        notes.changed(0, b"key", NoteKind::Changed);
        notes.changed(0, b"key", NoteKind::Changed);
        notes.event(0, b"key", NotifyFlags::GENERIC, "del");
        notes.event(0, b"another", NotifyFlags::KEY_MISS, "keymiss");
        assert_eq!(notes.key_bytes, 3 + 3 + 7);
        assert_eq!(notes.memory(), 3 * size_of::<Note>() + notes.key_bytes);
        notes.retry(1);
        assert_eq!((notes.len(), notes.key_bytes), (2, 6));
        notes.drop_changes();
        assert_eq!((notes.len(), notes.key_bytes), (1, 3));
        notes.take();
        assert_eq!(notes.memory(), 0);
    }
}
