//! WATCH: keys whose change makes the next EXEC of a client fail.
//!
//! Each worker has a table of the clients that watch its keys. A change marks them at the moment in
//! which it is made, on the thread that makes it: it may not be stored then, but no client can have
//! seen the previous value without being marked.
//!
//! EXEC checks the mark while it holds the locks of all keys that it watches, whichever worker runs
//! it: they are among its own keys. That is enough. A command that changes a key either runs on the
//! thread of the key's worker and finds the key free, so it is before the lock or behind it; or it
//! is a coordinator with a lock of its own, and its change is noted (`worker/lending.rs`) before
//! that lock is released. In both cases the client is marked before the lock is granted to EXEC,
//! and the grant is a message, so the mark is seen. No other command changes the key from then on
//! until EXEC has ended. Each attempt checks again, because the locks were free between two of
//! them.
//!
//! A key that existed when it was first watched, and does not any more, has expired, even if no
//! command has noticed before EXEC looks it up. One that did not exist cannot expire: WATCH removes
//! an expired key before it watches it.

use crate::clients::Watch;
use flagstone_storage::need::Key;
use flagstone_storage::notes::NoteKind;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug)]
struct Watcher {
    watch: Arc<Watch>,
    /// True if the key existed when it was first watched, so it exists now if it has not expired
    /// since.
    existed: bool,
}

/// Clients that watch keys of a worker.
#[derive(Debug, Default)]
pub(crate) struct WatchTable {
    /// Watchers by database and key.
    keys: HashMap<u32, HashMap<Box<[u8]>, Vec<Watcher>>>,
}

impl WatchTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn add(&mut self, (db, key): &Key, watch: &Arc<Watch>, existed: bool) {
        // The end of the watch may have come first.
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

    /// Marks the watchers of a changed key. The expiry of a key that did not exist when it was
    /// first watched (SWAPDB has brought it, expired as it was) is no change for them.
    pub(crate) fn touch(&self, db: u32, key: &[u8], what: NoteKind) {
        let watchers = self.keys.get(&db).and_then(|keys| keys.get(key));
        for watcher in watchers.into_iter().flatten() {
            if what == NoteKind::Changed || watcher.existed {
                watcher.watch.mark();
            }
        }
    }

    /// Marks the watchers of a database that has other contents, if their keys existed or exist
    /// now.
    pub(crate) fn touch_all(&self, db: u32, mut is_there: impl FnMut(&[u8]) -> bool) {
        for (key, watchers) in self.keys.get(&db).into_iter().flatten() {
            let is_there = is_there(key);
            for watcher in watchers.iter().filter(|watcher| watcher.existed || is_there) {
                watcher.watch.mark();
            }
        }
    }

    /// Marks all watchers of these keys, which are somewhere else from now on.
    pub(crate) fn touch_where(&self, is_gone: impl Fn(&[u8]) -> bool) {
        let gone = self.keys.values().flatten().filter(|(key, _)| is_gone(key));
        gone.flat_map(|(_, watchers)| watchers).for_each(|watcher| watcher.watch.mark());
    }

    /// Returns the watched keys of a database.
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
    fn watchers_of_a_key_are_marked_when_it_changes() {
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
    fn whoever_watches_a_key_that_is_gone_is_marked() {
        let (first, second): (Arc<Watch>, Arc<Watch>) = Default::default();
        let mut table = WatchTable::default();
        table.add(&key("a"), &first, false);
        table.add(&key("b"), &second, true);
        table.touch_where(|key| key == b"a");
        assert!(first.is_dirty() && !second.is_dirty());
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
