//! Readers of a worker's keys.

use indexmap::IndexMap;
use smallvec::SmallVec;

/// Approximate memory in bytes of a key beside its name.
const ENTRY: usize = 96;

/// Number of readers of a key from which on, whenever it has doubled, those that have disconnected
/// are removed.
const MANY: usize = 32;

/// A client that has read a key.
#[derive(Clone, Copy, Debug)]
struct Reader {
    client: u64,
    /// Number of news before its first read that no invalidation has followed, and before its last
    /// read.
    first: u64,
    last: u64,
}

/// Readers of a key, ascending by client.
type Readers = SmallVec<[Reader; 2]>;

/// Readers by key. Keys have no database, as in Redis: those of the same name are one.
#[derive(Debug, Default)]
pub(crate) struct Table {
    keys: IndexMap<Box<[u8]>, Readers>,
    /// Number of readers of all keys.
    reads: usize,
    /// Approximate memory in bytes.
    bytes: usize,
}

fn weight(key: &[u8], readers: usize) -> usize {
    key.len() + ENTRY + readers * size_of::<Reader>()
}

impl Table {
    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the number of readers of all keys.
    pub(crate) fn reads(&self) -> usize {
        self.reads
    }

    /// Records that a client has read a key, after `told` news.
    pub(crate) fn add(
        &mut self,
        key: &[u8],
        client: u64,
        told: u64,
        is_there: impl Fn(u64) -> bool,
    ) {
        let reader = Reader { client, first: told, last: told };
        let Some(readers) = self.keys.get_mut(key) else {
            self.keys.insert(key.into(), SmallVec::from_slice(&[reader]));
            self.reads += 1;
            self.bytes += weight(key, 1);
            return;
        };
        let at = match readers.binary_search_by_key(&client, |reader| reader.client) {
            // Its earlier read has yet to be invalidated.
            Ok(at) => {
                readers[at].last = told;
                return;
            }
            Err(at) => at,
        };
        let before = readers.len();
        readers.insert(at, reader);
        if before >= MANY && before.is_power_of_two() {
            readers.retain(|reader| reader.client == client || is_there(reader.client));
        }
        let after = readers.len();
        self.bytes = self.bytes + weight(key, after) - weight(key, before);
        self.reads = self.reads + after - before;
    }

    /// Returns the clients that read a key before this news, but for those that are `spared`. All of them are
    /// removed if they have not read the key since.
    pub(crate) fn take(&mut self, key: &[u8], news: u64, spared: impl Fn(u64) -> bool) -> Vec<u64> {
        let Some(readers) = self.keys.get_mut(key) else { return Vec::new() };
        let before = readers.len();
        let mut taken = Vec::with_capacity(before);
        readers.retain(|reader| {
            if reader.first < news {
                if !spared(reader.client) {
                    taken.push(reader.client);
                }
                reader.first = reader.last;
            }
            reader.first >= news
        });
        let after = readers.len();
        self.bytes = self.bytes + weight(key, after) - weight(key, before);
        self.reads -= before - after;
        if after == 0 {
            self.keys.swap_remove(key);
            self.bytes -= weight(key, 0);
        }
        taken
    }

    /// Removes and returns a key with its readers, if there are too many keys, or they take too
    /// much memory.
    pub(crate) fn evict(
        &mut self,
        max_keys: usize,
        max_bytes: usize,
    ) -> Option<(Box<[u8]>, Vec<u64>)> {
        if self.keys.is_empty() || (self.keys.len() <= max_keys && self.bytes <= max_bytes) {
            return None;
        }
        let removed = self.keys.swap_remove_index(rand::random_range(0..self.keys.len()))?;
        Some(self.uncount(removed))
    }

    /// Removes and returns keys with their readers.
    pub(crate) fn take_where(
        &mut self,
        is_gone: impl Fn(&[u8]) -> bool,
    ) -> Vec<(Box<[u8]>, Vec<u64>)> {
        let names: Vec<Box<[u8]>> = self.keys.keys().filter(|key| is_gone(key)).cloned().collect();
        let mut gone = Vec::with_capacity(names.len());
        for name in names {
            let removed = self.keys.swap_remove_entry(&name);
            gone.extend(removed.map(|removed| self.uncount(removed)));
        }
        gone
    }

    /// Notes that a key was removed, and returns it with its readers.
    fn uncount(&mut self, (key, readers): (Box<[u8]>, Readers)) -> (Box<[u8]>, Vec<u64>) {
        self.bytes -= weight(&key, readers.len());
        self.reads -= readers.len();
        (key, readers.iter().map(|reader| reader.client).collect())
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everybody(_: u64) -> bool {
        true
    }

    fn nobody(_: u64) -> bool {
        false
    }

    #[test]
    fn clients_that_read_the_key_before_are_told() {
        let mut table = Table::default();
        table.add(b"k", 2, 0, everybody);
        table.add(b"k", 1, 0, everybody);
        table.add(b"k", 3, 1, everybody);
        table.add(b"other", 1, 0, everybody);
        assert_eq!((table.len(), table.reads()), (2, 4));
        assert_eq!(table.take(b"k", 1, nobody), [1, 2]);
        assert_eq!(table.take(b"k", 1, nobody), Vec::<u64>::new());
        // Another change of the key was announced in between.
        table.add(b"k", 3, 2, everybody);
        assert_eq!(table.take(b"k", 2, nobody), [3]);
        assert_eq!((table.len(), table.reads()), (2, 2), "it has read the new value, too");
        assert_eq!(table.take(b"k", 3, nobody), [3]);
        assert_eq!(table.take(b"other", 9, nobody), [1]);
        assert_eq!((table.len(), table.reads(), table.bytes), (0, 0, 0));
    }

    #[test]
    fn a_client_that_has_read_the_key_since_is_told_of_the_next_change_too() {
        let mut table = Table::default();
        table.add(b"k", 1, 0, everybody);
        table.add(b"k", 1, 1, everybody);
        assert_eq!(table.take(b"k", 1, nobody), [1]);
        assert_eq!((table.len(), table.reads()), (1, 1));
        assert_eq!(table.take(b"k", 2, nobody), [1]);
        assert_eq!((table.len(), table.reads(), table.bytes), (0, 0, 0));
    }

    #[test]
    fn keys_that_are_gone_leave_with_their_readers() {
        let mut table = Table::default();
        for (key, client) in [(&b"a"[..], 1), (b"b", 1), (b"a", 2), (b"c", 3)] {
            table.add(key, client, 0, everybody);
        }
        let mut gone = table.take_where(|key| key != b"b");
        gone.sort();
        assert_eq!(gone, [(b"a"[..].into(), vec![1, 2]), (b"c"[..].into(), vec![3])]);
        assert_eq!((table.len(), table.reads(), table.bytes), (1, 1, weight(b"b", 1)));
    }

    #[test]
    fn a_client_that_changed_and_read_a_key_is_told_of_the_next_change() {
        let mut table = Table::default();
        for client in [1, 2] {
            table.add(b"k", client, 0, everybody);
        }
        table.add(b"k", 1, 1, everybody);
        assert!(table.take(b"k", 1, everybody).is_empty());
        assert_eq!((table.len(), table.reads()), (1, 1));
        assert_eq!(table.take(b"k", 2, nobody), [1]);
        assert_eq!((table.len(), table.reads(), table.bytes), (0, 0, 0));
    }

    #[test]
    fn there_are_no_more_keys_than_may_be() {
        let mut table = Table::default();
        for n in 0..100u32 {
            table.add(&n.to_be_bytes(), 7, 0, everybody);
        }
        assert!(table.evict(100, usize::MAX).is_none());
        let mut gone = 0;
        while let Some((key, readers)) = table.evict(60, usize::MAX) {
            assert_eq!((key.len(), readers), (4, vec![7]));
            gone += 1;
        }
        assert_eq!((gone, table.len()), (40, 60));
        while table.evict(usize::MAX, 10 * weight(b"1234", 1)).is_some() {}
        assert_eq!(table.len(), 10);
        while table.evict(0, usize::MAX).is_some() {}
        assert_eq!((table.len(), table.reads(), table.bytes), (0, 0, 0));
    }

    #[test]
    fn readers_that_are_gone_are_forgotten() {
        let mut table = Table::default();
        for client in 0..10_000 {
            table.add(b"k", client, 0, |id| id + 10 > client);
        }
        assert!(table.reads() < 2 * MANY, "{}", table.reads());
        assert!(table.take(b"k", 1, nobody).contains(&9_999));
    }
}
