//! Entries for writing.

use super::{DirtyKey, EntryAddress, Store};
use crate::need::Fault;
use crate::notes::{NoteKind, Notes};
use crate::notify::NotifyFlags;
use crate::slot::KeyHash;
use crate::value::{Entry, Hash, KeyBuf, Str, Typed, Value};
use crate::words::RoundWords;
use std::collections::HashSet;
use std::ops::{Deref, DerefMut};

/// An entry that notes the key as dirty when it is first accessed mutably.
#[derive(Debug)]
pub struct EntryMut<'a> {
    entry: &'a mut Entry,
    dirty: &'a mut Vec<DirtyKey>,
    seen: &'a mut u64,
    changes: &'a mut u64,
    notes: &'a mut Notes,
    words: &'a mut RoundWords,
    changed: bool,
    /// True if changes are noted as [`NoteKind::Touched`].
    quiet: bool,
    /// Number of the unit that changes the entry; 0: none.
    unit: u32,
    /// True if the key did not exist and no event has announced it since.
    is_new: bool,
    round: u64,
    db: u32,
    at: KeyHash,
}

impl Store {
    /// Returns an entry that was found, for writing. Inline: its result is large, and would be copied.
    #[inline]
    pub(super) fn change(&mut self, found: EntryAddress) -> Result<EntryMut<'_>, Fault> {
        if self.makes_copies() {
            self.copy_before_change(found);
        }
        let Self { dbs, dirty, seen, round, stats, notes, words, unit, .. } = self;
        let entry = found.entry_mut(dbs);
        if !unit.may_change(entry) {
            return Err(Fault::Unsettled);
        }
        Ok(EntryMut {
            unit: unit.number(),
            is_new: !entry.is_live(),
            entry,
            dirty,
            seen,
            changes: &mut stats.changes,
            notes,
            words,
            changed: false,
            quiet: false,
            round: *round,
            db: found.db,
            at: found.at,
        })
    }
}

impl EntryMut<'_> {
    /// Sets the value to a string, whatever type it had.
    pub fn set_string(&mut self, bytes: &[u8]) {
        match &mut self.value {
            Value::Str(string) => string.set(bytes),
            value => *value = Value::Str(Str::new(bytes)),
        }
    }

    /// Notes changes as [`NoteKind::Touched`] from now on.
    pub fn quietly(&mut self) {
        self.quiet = true;
    }

    /// Notes a keyspace event of the key, after the event that the key is new if it is.
    #[inline]
    pub fn event(&mut self, class: NotifyFlags, name: &'static str) {
        if self.notes.wants_events() {
            self.note_event(class, name);
        }
    }

    /// Notes the event that the key is new if it is. Any other event does so, too.
    #[inline]
    pub fn creation_event(&mut self) {
        if self.is_new && self.entry.is_live() {
            self.is_new = false;
            self.notes.event(self.db, &self.entry.key, NotifyFlags::NEW, "new");
        }
    }

    #[cold]
    fn note_event(&mut self, class: NotifyFlags, name: &'static str) {
        self.creation_event();
        self.notes.event(self.db, &self.entry.key, class, name);
    }

    /// Notes a keyspace event of a removal from the key, before the event that the key is deleted
    /// if it is.
    #[inline]
    pub fn removal_event(&mut self, class: NotifyFlags, name: &'static str) {
        self.event(class, name);
        self.deletion_event();
    }

    /// Notes the event that the key is deleted if it is.
    #[inline]
    pub fn deletion_event(&mut self) {
        if !self.entry.is_live() {
            self.event(NotifyFlags::GENERIC, "del");
        }
    }

    /// Says that fields of its hash have expired; see [`RoundWords`].
    pub fn say_expired(&mut self, names: &[&[u8]]) {
        if !self.words.is_wanted() {
            return;
        }
        self.words.fields(self.db, &self.entry.key, names.iter().copied());
        let Value::Hash(hash) = &self.entry.value else { return };
        let all = names.iter().collect::<HashSet<_>>().len() as u64 >= hash.len();
        if all && self.entry.expire_at_ms != 0 {
            self.words.loses(self.db, &self.entry.key, self.entry.expire_at_ms);
        }
    }

    /// Notes the first change.
    #[inline]
    pub(super) fn note_change(&mut self, what: NoteKind) {
        if !self.changed {
            self.changed = true;
            *self.changes += 1;
            self.notes.changed(self.db, &self.entry.key, what);
        }
    }

    /// Notes the key as dirty.
    pub(super) fn touch(&mut self) {
        self.deref_mut();
    }

    /// Returns the value it holds, if it is of this type.
    pub fn typed<T: Typed>(&self) -> Option<&T> {
        T::of(&self.entry.value)
    }

    /// Returns the value it holds, for changing it in place.
    pub fn typed_mut<T: Typed>(&mut self) -> Option<&mut T> {
        T::of_mut(&mut self.deref_mut().value)
    }

    /// Returns the value it holds, if it is of this type, for a change of its encoding alone: nobody is told of
    /// that, and it is stored with the next change.
    pub fn recoded<T: Typed>(&mut self) -> Option<&mut T> {
        T::of_mut(&mut self.entry.value)
    }

    /// Returns the value for changing it in place, creating it if the key does not exist.
    pub fn typed_or_new<T: Typed + Default>(&mut self) -> Result<&mut T, Fault> {
        if self.entry.value.is_absent() {
            self.deref_mut().value = T::default().into_value();
        }
        if T::of(&self.entry.value).is_none() {
            return Err(Fault::WrongType);
        }
        self.typed_mut().ok_or(Fault::WrongType)
    }

    /// Returns the string it holds, for changing it in place.
    pub fn as_str_mut(&mut self) -> Option<&mut Str> {
        self.typed_mut()
    }

    /// Returns the hash it holds, for changing it in place.
    pub fn as_hash_mut(&mut self) -> Option<&mut Hash> {
        self.typed_mut()
    }

    /// Deletes the key if it holds a collection without elements.
    pub fn clear_if_empty(&mut self) {
        if self.entry.value.is_empty_collection() {
            self.deref_mut().clear();
        }
    }
}

impl Deref for EntryMut<'_> {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        self.entry
    }
}

impl DerefMut for EntryMut<'_> {
    fn deref_mut(&mut self) -> &mut Entry {
        self.note_change(if self.quiet { NoteKind::Touched } else { NoteKind::Changed });
        self.entry.visible |= !self.quiet;
        if !self.entry.dirty {
            self.entry.dirty = true;
            self.entry.unit = self.unit;
            self.entry.round = self.round;
            *self.seen = self.round;
            // A clone would take the bytes one by one.
            let key = KeyBuf::from_slice(&self.entry.key);
            self.dirty.push(DirtyKey { db: self.db, at: self.at, key });
        }
        self.entry
    }
}
