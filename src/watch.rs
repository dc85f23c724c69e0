//! WATCH: keys whose change keeps the next EXEC of a client from running.
//!
//! Each worker has a table of who watches which of its keys. A change marks them in the moment in
//! which it is made, on the thread that makes it: it may not be stored then, but nobody has seen
//! what was there before without being marked.
//!
//! EXEC looks at the mark with the locks of all keys that it watches, whatever worker runs it: they
//! are among its own keys. That is enough. Whoever changes a key of a worker either runs on this
//! worker's thread and finds the key free, so it is before the lock or behind it; or it is a
//! coordinator with a lock of its own, and what it has done is noted (`routing/hold.rs`) before that
//! lock is free. Both are marked before the lock is granted to EXEC, and the grant comes by a
//! message: the mark is seen. Nobody changes the key from then on until EXEC is done. It is looked at
//! anew in each attempt, as between two of them the locks were free.
//!
//! A key that was there when it was first watched and is there no more has expired, even if nobody
//! has noticed before EXEC looks it up. One that was not there cannot expire: WATCH removes an
//! expired key before it watches it.

use crate::clients::Watch;
use flagstone_storage::need::Key;
use flagstone_storage::notes::NoteKind;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug)]
struct Watcher {
    watch: Arc<Watch>,
    /// The key was there when it was first watched, and is if it has not expired since.
    existed: bool,
}

/// Who watches which keys of a worker.
#[derive(Debug, Default)]
pub(crate) struct WatchTable {
    /// By database.
    keys: HashMap<u32, HashMap<Box<[u8]>, Vec<Watcher>>>,
}

impl WatchTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn add(&mut self, (db, key): &Key, watch: &Arc<Watch>, existed: bool) {
        // Its end may have come here first.
        if !watch.is_over() {
            let watchers = self.keys.entry(*db).or_default().entry(key.clone()).or_default();
            watchers.push(Watcher { watch: watch.clone(), existed });
        }
    }

    pub(crate) fn remove(&mut self, keys: &[Key], watch: &Arc<Watch>) {
        for (db, key) in keys {
            let Some(of_db) = self.keys.get_mut(db) else { continue };
            let Some(watchers) = of_db.get_mut(key) else { continue };
            watchers.retain(|watcher| !Arc::ptr_eq(&watcher.watch, watch));
            if watchers.is_empty() {
                of_db.remove(key);
            }
            if of_db.is_empty() {
                self.keys.remove(db);
            }
        }
    }

    /// A key has changed. That one expires which was not there when it was first watched (SWAPDB
    /// has brought it, expired as it was) is no change.
    pub(crate) fn touch(&self, db: u32, key: &[u8], what: NoteKind) {
        let watchers = self.keys.get(&db).and_then(|keys| keys.get(key));
        for watcher in watchers.into_iter().flatten() {
            if what == NoteKind::Changed || watcher.existed {
                watcher.watch.mark();
            }
        }
    }

    /// A database has other contents: those are marked whose keys were there, or are now.
    pub(crate) fn touch_all(&self, db: u32, mut is_there: impl FnMut(&[u8]) -> bool) {
        for (key, watchers) in self.keys.get(&db).into_iter().flatten() {
            let is_there = is_there(key);
            for watcher in watchers.iter().filter(|watcher| watcher.existed || is_there) {
                watcher.watch.mark();
            }
        }
    }

    /// The keys of a database that are watched.
    pub(crate) fn keys_of(&self, db: u32) -> impl Iterator<Item = &[u8]> {
        self.keys.get(&db).into_iter().flat_map(|keys| keys.keys().map(|key| &**key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        (0, name.as_bytes().into())
    }

    #[test]
    fn who_watches_a_key_is_marked_when_it_changes() {
        let (first, second): (Arc<Watch>, Arc<Watch>) = Default::default();
        let mut table = WatchTable::default();
        table.add(&key("a"), &first, true);
        table.add(&key("b"), &first, false);
        table.add(&key("b"), &second, false);
        table.touch(1, b"a", NoteKind::Changed);
        table.touch(0, b"c", NoteKind::Changed);
        table.touch(0, b"b", NoteKind::Expired);
        assert!(!first.is_dirty() && !second.is_dirty());
        table.touch(0, b"a", NoteKind::Expired);
        assert!(first.is_dirty() && !second.is_dirty());
        table.touch(0, b"b", NoteKind::Changed);
        assert!(second.is_dirty());
    }

    #[test]
    fn only_keys_that_were_there_or_are_change_with_their_database() {
        let (first, second): (Arc<Watch>, Arc<Watch>) = Default::default();
        let mut table = WatchTable::default();
        table.add(&key("a"), &first, false);
        table.add(&key("b"), &second, false);
        table.touch_all(1, |_| true);
        table.touch_all(0, |_| false);
        assert!(!first.is_dirty() && !second.is_dirty());
        table.touch_all(0, |key| key == b"a");
        assert!(first.is_dirty() && !second.is_dirty());
        let third: Arc<Watch> = Arc::default();
        table.add(&key("b"), &third, true);
        table.touch_all(0, |_| false);
        assert!(third.is_dirty() && !second.is_dirty());
    }

    #[test]
    fn a_watch_that_has_ended_leaves_nothing() {
        let (first, second): (Arc<Watch>, Arc<Watch>) = Default::default();
        let mut table = WatchTable::default();
        table.add(&key("a"), &first, true);
        table.add(&key("a"), &second, true);
        table.remove(&[key("a"), key("none")], &first);
        table.touch(0, b"a", NoteKind::Changed);
        assert!(!first.is_dirty() && second.is_dirty());
        table.remove(&[key("a")], &second);
        assert!(table.is_empty());
        // The end came first.
        second.end();
        table.add(&key("a"), &second, true);
        assert!(table.is_empty());
    }
}
