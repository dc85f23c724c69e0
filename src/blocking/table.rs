//! Waiters of one worker, by key.

use super::Waiter;
use flagstone_commands::Awaited;
use flagstone_storage::need::Key;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

/// Content of a key, as far as it matters to waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// Type of the value; "none" if the key does not exist.
    pub(crate) type_name: &'static str,
    /// State of a stream: while it is unchanged, a waiter that has found nothing finds nothing. Another
    /// stream in its place, or another group of the same name, has another state.
    pub(crate) state: [u64; 6],
}

impl Content {
    pub(crate) const NONE: Self = Self { type_name: "none", state: [0; 6] };
}

/// The waiters of a key by number, so in FIFO order. Nearly all keys have one, which needs no map.
#[derive(Debug, Default)]
struct QueuedWaiters {
    /// Any one of them.
    one: Option<Arc<Waiter>>,
    others: BTreeMap<u64, Arc<Waiter>>,
}

impl QueuedWaiters {
    fn is_empty(&self) -> bool {
        self.one.is_none() && self.others.is_empty()
    }

    /// Adds a waiter; returns false if it was there.
    fn insert(&mut self, waiter: &Arc<Waiter>) -> bool {
        match &self.one {
            None if self.others.is_empty() => self.one = Some(waiter.clone()),
            Some(one) if one.id == waiter.id => return false,
            _ => return self.others.insert(waiter.id, waiter.clone()).is_none(),
        }
        true
    }

    /// Removes a waiter; returns false if it was not there.
    fn remove(&mut self, id: u64) -> bool {
        if self.one.as_ref().is_some_and(|one| one.id == id) {
            self.one = None;
            return true;
        }
        self.others.remove(&id).is_some()
    }

    /// Returns the first waiter behind a number that is fit.
    fn first_behind(&self, after: u64, is_fit: impl Fn(&Waiter) -> bool) -> Option<&Arc<Waiter>> {
        let one = self.one.as_ref().filter(|one| one.id > after && is_fit(one));
        let mut behind = self.others.range((Excluded(after), Unbounded)).map(|(_, other)| other);
        let other = behind.find(|other| is_fit(other));
        one.into_iter().chain(other).min_by_key(|waiter| waiter.id)
    }

    /// Returns them, in any order.
    fn iter(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        self.one.iter().chain(self.others.values())
    }

    /// Returns the number of the last one; 0 if there is none.
    fn last(&self) -> u64 {
        let one = self.one.as_ref().map_or(0, |one| one.id);
        self.others.last_key_value().map_or(0, |(id, _)| *id).max(one)
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiters: QueuedWaiters,
    /// Number of waiters that are served when the key is deleted, too.
    want_absence: u32,
    /// Number of waiters for each type, by [`Awaited`].
    awaited: [u32; 4],
    /// True while a task serves a waiter of the key: no other is served until it has ended.
    busy: bool,
    /// True if the key is in the list of ready keys.
    ready: bool,
    /// Content in which the waiters up to this number have found nothing.
    searched: Option<Box<(Content, u64)>>,
}

/// Queues of waiters.
#[derive(Debug, Default)]
pub(crate) struct WaitTable {
    /// Queues by database and key.
    queues: HashMap<u32, HashMap<Box<[u8]>, Queue>>,
    /// Number of keys with waiters.
    awaited: usize,
    /// Number of keys with waiters for their deletion.
    awaited_absent: usize,
    /// Keys that may have something.
    ready: VecDeque<Key>,
    /// True while waiters are being served.
    serving: bool,
    /// Locks that do not keep waiters from being served.
    held: HeldLocks,
}

/// Locks of the task that serves waiters.
#[derive(Debug, Default)]
pub(crate) enum HeldLocks {
    #[default]
    Nothing,
    /// Keys, sorted.
    Keys(Vec<Key>),
    /// The whole worker.
    All,
}

impl HeldLocks {
    /// Creates locks on some keys.
    pub(crate) fn keys(mut keys: Vec<Key>) -> Self {
        keys.sort_unstable();
        Self::Keys(keys)
    }

    /// Returns true if a key is locked by these. A command may have locked any number of keys.
    fn contains(&self, db: u32, key: &[u8]) -> bool {
        match self {
            Self::Nothing => false,
            Self::Keys(keys) => {
                keys.binary_search_by(|(in_db, held)| (*in_db, &**held).cmp(&(db, key))).is_ok()
            }
            Self::All => true,
        }
    }
}

impl WaitTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns the number of keys with waiters, and of those with waiters for their deletion.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.awaited, self.awaited_absent)
    }

    /// Adds a waiter to the queues of those of the keys that this worker owns.
    pub(crate) fn add(
        &mut self,
        waiter: &Arc<Waiter>,
        keys: &[Key],
        is_here: impl Fn(&Key) -> bool,
    ) {
        for key in keys.iter().filter(|key| is_here(key)) {
            let queues = self.queues.entry(key.0).or_default();
            let queue = queues.entry(key.1.clone()).or_default();
            self.awaited += usize::from(queue.waiters.is_empty());
            // A waiter that arrives late has not searched yet.
            if queue.searched.as_ref().is_some_and(|searched| searched.1 >= waiter.id) {
                queue.searched = None;
            }
            if queue.waiters.insert(waiter) {
                queue.awaited[waiter.on as usize] += 1;
                if waiter.on.wants_absence() {
                    self.awaited_absent += usize::from(queue.want_absence == 0);
                    queue.want_absence += 1;
                }
            }
            self.touch(key.0, &key.1);
        }
    }

    /// Removes a waiter from the queues of the keys.
    pub(crate) fn remove(&mut self, waiter: &Waiter, keys: &[Key]) {
        for key in keys {
            let Some(queue) = self.queue(key) else { continue };
            if !queue.waiters.remove(waiter.id) {
                continue;
            }
            queue.awaited[waiter.on as usize] -= 1;
            let mut nobody_for_absence = false;
            if waiter.on.wants_absence() {
                queue.want_absence -= 1;
                nobody_for_absence = queue.want_absence == 0;
            }
            let (is_empty, busy) = (queue.waiters.is_empty(), queue.busy);
            self.awaited_absent -= usize::from(nobody_for_absence);
            self.awaited -= usize::from(is_empty);
            if is_empty && !busy {
                self.drop_queue(key);
            }
        }
    }

    fn queue(&mut self, (db, key): &Key) -> Option<&mut Queue> {
        self.queues.get_mut(db)?.get_mut(key)
    }

    fn drop_queue(&mut self, (db, key): &Key) {
        let Some(queues) = self.queues.get_mut(db) else { return };
        queues.remove(key);
        if queues.is_empty() {
            self.queues.remove(db);
        }
    }

    /// Marks a key as changed, so that its waiters are checked.
    pub(crate) fn touch(&mut self, db: u32, key: &[u8]) {
        let Some(queue) = self.queues.get_mut(&db).and_then(|queues| queues.get_mut(key)) else {
            return;
        };
        if !std::mem::replace(&mut queue.ready, true) {
            self.ready.push_back((db, key.into()));
        }
    }

    /// Marks the keys of a waiter that was skipped when others were checked.
    pub(crate) fn look_again(&mut self, keys: &[Key]) {
        for key in keys {
            if let Some(queue) = self.queue(key) {
                queue.searched = None;
            }
            self.touch(key.0, &key.1);
        }
    }

    /// Marks all keys of some databases as changed.
    pub(crate) fn touch_all(&mut self, dbs: &[u32]) {
        for db in dbs {
            for (key, queue) in self.queues.get_mut(db).into_iter().flatten() {
                if !std::mem::replace(&mut queue.ready, true) {
                    self.ready.push_back((*db, key.clone()));
                }
            }
        }
    }

    /// Begins to serve; returns false if no key is ready, or serving is under way already.
    pub(crate) fn begin_serving(&mut self) -> bool {
        !self.ready.is_empty() && !std::mem::replace(&mut self.serving, true)
    }

    /// Returns the next key to check; `None` ends serving.
    pub(crate) fn next_ready(&mut self) -> Option<Key> {
        let next = self.ready.pop_front();
        match &next {
            None => self.serving = false,
            Some(key) => {
                if let Some(queue) = self.queue(key) {
                    queue.ready = false;
                }
            }
        }
        next
    }

    /// Sets the locks that the serving task holds, and returns the previous ones.
    pub(crate) fn hold(&mut self, held: HeldLocks) -> HeldLocks {
        std::mem::replace(&mut self.held, held)
    }

    /// Returns true if the serving task holds the lock on a key.
    pub(crate) fn holds(&self, db: u32, key: &[u8]) -> bool {
        self.held.contains(db, key)
    }

    /// Returns true if a client waits for a key.
    pub(crate) fn is_awaited(&self, (db, key): &Key) -> bool {
        self.queues.get(db).is_some_and(|queues| queues.contains_key(key))
    }

    /// Returns true if a waiter may be served from a key now.
    pub(crate) fn is_free(&self, (db, key): &Key) -> bool {
        let queue = self.queues.get(db).and_then(|queues| queues.get(key));
        queue.is_some_and(|queue| !queue.busy && !queue.waiters.is_empty())
    }

    /// Returns the first waiter of a key behind the number `after` for which the key's content may
    /// have something.
    pub(crate) fn next_waiter(
        &mut self,
        key: &Key,
        after: u64,
        holds: Content,
    ) -> Option<Arc<Waiter>> {
        let queue = self.queue(key).filter(|queue| !queue.busy)?;
        let fit = |on: &Awaited| on.fits(holds.type_name) && queue.awaited[*on as usize] > 0;
        if !Awaited::ALL.iter().any(fit) || (holds == Content::NONE && queue.want_absence == 0) {
            return None;
        }
        let searched = queue.searched.as_ref().filter(|searched| searched.0 == holds);
        let after = searched.map_or(after, |searched| after.max(searched.1));
        let is_fit = |waiter: &Waiter| waiter.on.fits(holds.type_name);
        let next = queue.waiters.first_behind(after, is_fit).cloned();
        if next.is_none() {
            let last = queue.waiters.last();
            queue.searched = (holds.type_name == "stream").then(|| Box::new((holds, last)));
        }
        next
    }

    /// Returns the waiters of some keys, each with its key.
    pub(crate) fn waiting_for(&self, is_it: impl Fn(&[u8]) -> bool) -> Vec<(Arc<Waiter>, Key)> {
        let of_db = |(db, queues): (&u32, &HashMap<Box<[u8]>, Queue>)| {
            let db = *db;
            let found = queues.iter().filter(|(key, _)| is_it(key));
            let found = found.flat_map(move |(key, queue)| {
                queue.waiters.iter().map(move |waiter| (waiter.clone(), (db, key.clone())))
            });
            found.collect::<Vec<_>>()
        };
        self.queues.iter().flat_map(of_db).collect()
    }

    /// Returns the first waiter of a key.
    pub(crate) fn first(&self, (db, key): &Key) -> Option<Arc<Waiter>> {
        let queue = self.queues.get(db)?.get(key)?;
        queue.waiters.first_behind(0, |_| true).cloned()
    }

    /// Sets a key busy while a task serves a waiter of it; afterwards, its waiters are checked
    /// again.
    pub(crate) fn set_busy(&mut self, key: &Key, busy: bool) {
        let Some(queue) = self.queue(key) else { return };
        queue.busy = busy;
        let is_empty = queue.waiters.is_empty();
        match busy {
            true => {}
            false if is_empty => self.drop_queue(key),
            false => self.touch(key.0, &key.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking::testing::waiter;

    fn key(name: &str) -> Key {
        (0, name.as_bytes().into())
    }

    fn table(waiters: &[&Arc<Waiter>]) -> WaitTable {
        let mut table = WaitTable::default();
        waiters.iter().for_each(|waiter| add(&mut table, waiter));
        table
    }

    fn add(table: &mut WaitTable, waiter: &Arc<Waiter>) {
        table.add(waiter, &waiter.keys, |_| true);
    }

    /// Returns the numbers of the waiters that are served from a key, in order.
    fn order(table: &mut WaitTable, name: &str, type_name: &'static str) -> Vec<u64> {
        order_in(table, name, Content { type_name, state: [0; 6] })
    }

    fn order_in(table: &mut WaitTable, name: &str, holds: Content) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(waiter) =
            table.next_waiter(&key(name), order.last().copied().unwrap_or(0), holds)
        {
            order.push(waiter.id);
        }
        order
    }

    #[test]
    fn a_waiter_that_found_nothing_in_a_stream_looks_again_when_it_changes() {
        let holds = |last_id| Content { type_name: "stream", state: [0, last_id, 0, 0, 0, 0] };
        let a = waiter(2, &["x"], Awaited::Stream);
        let b = waiter(3, &["x"], Awaited::Group);
        let mut table = table(&[&a, &b]);
        assert_eq!(order_in(&mut table, "x", holds(1)), [2, 3]);
        assert!(order_in(&mut table, "x", holds(1)).is_empty());
        add(&mut table, &waiter(4, &["x"], Awaited::Stream));
        assert_eq!(order_in(&mut table, "x", holds(1)), [4], "only who is new");
        assert_eq!(order_in(&mut table, "x", holds(2)), [2, 3, 4]);
        add(&mut table, &waiter(1, &["x"], Awaited::Stream));
        assert_eq!(order_in(&mut table, "x", holds(2)), [1, 2, 3, 4], "one that was slow");
        table.look_again(&a.keys);
        assert_eq!(order_in(&mut table, "x", holds(2)), [1, 2, 3, 4]);
        assert_eq!(order(&mut table, "x", "none"), [3]);
        assert_eq!(order_in(&mut table, "x", holds(2)), [1, 2, 3, 4], "it is another stream");
    }

    #[test]
    fn the_first_waiter_is_first_in_every_queue() {
        let a = waiter(1, &["x", "y"], Awaited::List);
        let b = waiter(2, &["y"], Awaited::List);
        let c = waiter(3, &["y", "x"], Awaited::List);
        // A late message changes nothing.
        let mut table = table(&[&c, &a, &b]);
        assert_eq!(order(&mut table, "x", "list"), [1, 3]);
        assert_eq!(order(&mut table, "y", "list"), [1, 2, 3]);
        table.remove(&a, &a.keys);
        table.remove(&a, &a.keys);
        assert_eq!(order(&mut table, "x", "list"), [3]);
        assert_eq!(table.len(), (2, 0));
        table.remove(&c, &c.keys);
        assert_eq!(order(&mut table, "y", "list"), [2]);
        table.remove(&b, &b.keys);
        assert!(table.is_empty());
        assert_eq!(table.len(), (0, 0));
    }

    #[test]
    fn waiters_are_found_by_their_keys() {
        let a = waiter(1, &["x", "y"], Awaited::List);
        let b = waiter(2, &["y"], Awaited::List);
        let table = table(&[&a, &b]);
        let found = |name: &str| {
            let found = table.waiting_for(|key| key == name.as_bytes());
            assert!(found.iter().all(|(_, of)| *of == key(name)));
            let mut ids: Vec<u64> = found.iter().map(|(waiter, _)| waiter.id).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!([found("x"), found("y"), found("z")], [vec![1], vec![1, 2], vec![]]);
    }

    #[test]
    fn only_keys_that_are_here_have_a_queue() {
        let mut table = WaitTable::default();
        let a = waiter(1, &["x", "y"], Awaited::List);
        table.add(&a, &a.keys, |(_, key)| **key == *b"x");
        assert_eq!(table.len(), (1, 0));
        assert!(order(&mut table, "y", "list").is_empty());
    }

    #[test]
    fn a_value_is_for_waiters_of_its_type() {
        let list = waiter(1, &["x"], Awaited::List);
        let zset = waiter(2, &["x"], Awaited::Zset);
        let group = waiter(3, &["x"], Awaited::Group);
        let mut table = table(&[&list, &zset, &group]);
        assert_eq!(order(&mut table, "x", "list"), [1, 3]);
        assert_eq!(order(&mut table, "x", "zset"), [2, 3]);
        assert_eq!(order(&mut table, "x", "none"), [3]);
        assert_eq!(table.len(), (1, 1));
        table.remove(&group, &group.keys);
        assert!(order(&mut table, "x", "none").is_empty());
        assert_eq!(table.len(), (1, 0));
    }

    #[test]
    fn a_key_is_looked_at_once_however_often_it_changed() {
        let mut table = table(&[&waiter(1, &["x"], Awaited::List)]);
        assert_eq!(table.next_ready(), Some(key("x")), "whoever comes is looked at");
        assert_eq!(table.next_ready(), None);
        for _ in 0..3 {
            table.touch(0, b"x");
            table.touch(0, b"other");
            table.touch(1, b"x");
            table.touch_all(&[0, 1]);
        }
        assert!(table.begin_serving());
        assert!(!table.begin_serving(), "not by two at once");
        assert_eq!(table.next_ready(), Some(key("x")));
        table.touch(0, b"x");
        assert_eq!(table.next_ready(), Some(key("x")), "it changed while it was looked at");
        assert_eq!(table.next_ready(), None);
        assert!(!table.begin_serving());
    }

    #[test]
    fn many_locks_take_no_square_of_their_number() {
        let keys: Vec<Key> = (0..100_000).rev().map(|n| key(&n.to_string())).collect();
        let began = std::time::Instant::now();
        let mut table = WaitTable::default();
        table.hold(HeldLocks::keys(keys.clone()));
        assert!(keys.iter().all(|(db, key)| table.holds(*db, key)));
        assert!(!table.holds(1, b"7") && !table.holds(0, b"x"));
        // A linear search takes minutes in a test.
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
        table.hold(HeldLocks::All);
        assert!(table.holds(0, b"x"));
    }

    #[test]
    fn a_busy_key_serves_no_waiter_until_it_is_free() {
        let a = waiter(1, &["x"], Awaited::List);
        let b = waiter(2, &["x"], Awaited::List);
        let mut table = table(&[&a, &b]);
        assert_eq!(table.next_ready(), Some(key("x")));
        table.set_busy(&key("x"), true);
        assert!(!table.is_free(&key("x")));
        assert!(order(&mut table, "x", "list").is_empty());
        table.remove(&a, &a.keys);
        table.set_busy(&key("x"), false);
        assert!(table.is_free(&key("x")));
        assert_eq!(table.next_ready(), Some(key("x")));
        assert_eq!(order(&mut table, "x", "list"), [2]);
        table.set_busy(&key("x"), true);
        table.remove(&b, &b.keys);
        assert!(!table.is_empty(), "whoever comes now comes behind");
        assert_eq!(table.len(), (0, 0));
        table.set_busy(&key("x"), false);
        assert!(table.is_empty());
    }
}
