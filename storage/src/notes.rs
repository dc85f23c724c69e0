//! What commands have done that others wait for or want to hear of, in order. Whoever runs the
//! commands takes the notes after each, and tells of them once what they tell of is stored.

use crate::value::KeyBuf;

/// What there is to hear of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It was written, or deleted.
    Changed,
    /// Only who waits for it hears of what was written: the consumer groups of a stream. Who watches
    /// or tracks the key does not, as in the reference.
    Touched,
    /// It was deleted as its time had come; nobody did it.
    Expired,
    /// A keyspace event: its class, one bit, and its name.
    Event(u32, &'static str),
}

impl What {
    /// Whether the key holds something else now, or nothing.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Changed | Self::Touched | Self::Expired)
    }

    /// Whether those hear of it who watch or track the key.
    pub fn is_visible(self) -> bool {
        matches!(self, Self::Changed | Self::Expired)
    }
}

/// Something that happened to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub db: u32,
    pub key: KeyBuf,
    pub what: What,
}

/// What anybody wants to hear of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// [`What::Changed`] and [`What::Expired`].
    pub changes: bool,
    /// Bits of event classes.
    pub events: u32,
}

/// Classes of keyspace events that the store itself notes.
pub mod class {
    /// Of keys whatever they hold.
    pub const GENERIC: u32 = 1 << 2;
    pub const HASH: u32 = 1 << 6;
    pub const EXPIRED: u32 = 1 << 8;
    /// A key that was asked for does not exist.
    pub const KEY_MISS: u32 = 1 << 11;
    /// A key that did not exist does.
    pub const NEW: u32 = 1 << 14;
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Notes {
    interest: Interest,
    taken: Vec<Note>,
}

impl Notes {
    /// From now on this is noted.
    pub fn want(&mut self, interest: Interest) {
        self.interest = interest;
    }

    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// What was noted since the last time.
    pub fn take(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.taken)
    }

    /// The command stopped for something that is not in memory, and will look its keys up again.
    pub fn retry(&mut self) {
        self.taken.retain(|note| !matches!(note.what, What::Event(class::KEY_MISS, _)));
    }

    /// The command has changed nothing that anybody else can see.
    pub fn drop_changes(&mut self) {
        self.taken.retain(|note| !matches!(note.what, What::Changed | What::Touched));
    }

    /// Whether anybody wants to hear of keyspace events.
    #[inline]
    pub(crate) fn wants_events(&self) -> bool {
        self.interest.events != 0
    }

    /// Notes an event of a class, if anybody wants to hear of it.
    #[inline]
    pub fn event(&mut self, db: u32, key: &[u8], class: u32, name: &'static str) {
        if self.interest.events & class != 0 {
            self.push(db, key, What::Event(class, name));
        }
    }

    #[inline]
    pub(crate) fn changed(&mut self, db: u32, key: &[u8], what: What) {
        if self.interest.changes {
            self.push(db, key, what);
        }
    }

    #[cold]
    fn push(&mut self, db: u32, key: &[u8], what: What) {
        let note = Note { db, key: KeyBuf::from_slice(key), what };
        // A command that looks a key up several times has changed it once.
        let is_write = matches!(what, What::Changed | What::Touched);
        if !is_write || self.taken.last() != Some(&note) {
            self.taken.push(note);
        }
    }
}
