//! The shards of a process: which are attached to one of its partitions, and which generations their
//! rows have.
//!
//! A database is known in memory by one generation, the same in all stores of a process. Servers of
//! a cluster flush separately, so rows of a shard that comes from another one may have a different
//! generation. This table has those that differ: none, in a process that alone has all shards.

use crate::slot::{Layout, MAX_SHARDS, NotOwned};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// State of one shard.
#[derive(Debug, Default)]
struct AttachedShard {
    is_attached: AtomicBool,
    /// True if another process owns it.
    is_mirrored: AtomicBool,
    /// A database's generation in memory, and in its low half that of its rows in this shard; 0: all
    /// databases have the same in both.
    rows: AtomicU64,
}

/// See the module's description. The worker of a shard changes its state while nothing else runs
/// there; other workers learn of it by the locks that this worker grants.
#[derive(Debug)]
pub struct AttachedShards {
    shards: Box<[AttachedShard]>,
    /// True once rows of any shard had another generation than their database.
    differ: AtomicBool,
}

impl Default for AttachedShards {
    /// Creates a table in which no shard is attached. It has room for all that there may ever be.
    fn default() -> Self {
        let shards = (0..MAX_SHARDS).map(|_| AttachedShard::default()).collect();
        Self { shards, differ: AtomicBool::new(false) }
    }
}

impl AttachedShards {
    fn of(&self, shard: u16) -> Option<&AttachedShard> {
        self.shards.get(usize::from(shard))
    }

    /// Returns true if a shard is attached to any partition.
    pub fn has(&self, shard: u16) -> bool {
        self.of(shard).is_some_and(|of| of.is_attached.load(Ordering::Acquire))
    }

    /// Returns true if a shard is attached, and belongs to this process.
    fn owns(&self, shard: u16) -> bool {
        self.has(shard) && !self.mirrors(shard)
    }

    /// Returns true if another process owns a shard.
    pub(crate) fn mirrors(&self, shard: u16) -> bool {
        self.of(shard).is_some_and(|of| of.is_mirrored.load(Ordering::Acquire))
    }

    /// Returns the attached shards, ascending.
    pub fn ids(&self) -> impl Iterator<Item = u16> {
        (0..self.shards.len() as u16).filter(|shard| self.has(*shard))
    }

    /// Returns true if a row may have another generation than its database.
    #[inline]
    pub(crate) fn differ(&self) -> bool {
        self.differ.load(Ordering::Relaxed)
    }

    /// Returns the generation that the rows of a database have in a shard. `generation`: that of the
    /// database in memory.
    #[inline]
    pub fn row_generation(&self, generation: u32, shard: u16) -> u32 {
        if self.differ() { self.other_generation(generation, shard) } else { generation }
    }

    #[cold]
    fn other_generation(&self, generation: u32, shard: u16) -> u32 {
        let rows = self.of(shard).map_or(0, |of| of.rows.load(Ordering::Acquire));
        if (rows >> 32) as u32 == generation { rows as u32 } else { generation }
    }

    /// Checks that records may have operations of these shards.
    ///
    /// # Errors
    /// The first slot of one that is not attached.
    pub fn check(
        &self,
        layout: &Layout,
        shards: impl IntoIterator<Item = u16>,
    ) -> Result<(), NotOwned> {
        match shards.into_iter().find(|shard| !self.owns(*shard)) {
            None => Ok(()),
            Some(shard) => Err(layout.not_owned(shard)),
        }
    }

    /// Notes a shard as attached; `rows`: a database's generation in memory and in the rows, if they
    /// differ; `is_mirrored`: another process owns it. Returns false if it was attached before.
    pub(crate) fn attach(&self, shard: u16, rows: Option<(u32, u32)>, is_mirrored: bool) -> bool {
        let Some(of) = self.of(shard) else { return false };
        if of.is_attached.load(Ordering::Acquire) {
            return false;
        }
        let pair = rows.map_or(0, |(memory, rows)| u64::from(memory) << 32 | u64::from(rows));
        of.rows.store(pair, Ordering::Release);
        of.is_mirrored.store(is_mirrored, Ordering::Release);
        if pair != 0 {
            self.differ.store(true, Ordering::Relaxed);
        }
        !of.is_attached.swap(true, Ordering::AcqRel)
    }

    /// Notes a shard as detached.
    pub(crate) fn detach(&self, shard: u16) {
        if let Some(of) = self.of(shard) {
            of.is_attached.store(false, Ordering::Release);
            of.rows.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static LAYOUT: Layout = Layout::new(3, 1);

    #[test]
    fn a_shard_is_attached_once() {
        let attached = AttachedShards::default();
        assert!(attached.attach(1, None, false) && !attached.attach(1, None, false));
        assert!(!attached.attach(MAX_SHARDS, None, false));
        assert!(attached.attach(2, None, false));
        assert_eq!(attached.ids().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(attached.check(&LAYOUT, [1, 2]), Ok(()));
        assert_eq!(attached.check(&LAYOUT, [2, 0]), Err(NotOwned { slot: 0 }));
        attached.detach(1);
        assert!(!attached.has(1) && attached.has(2));
        assert_eq!(attached.check(&LAYOUT, [1]), Err(NotOwned { slot: 5462 }));
        assert!(attached.attach(1, None, false));
    }

    #[test]
    fn a_shard_of_another_process_may_become_an_own_one() {
        let attached = AttachedShards::default();
        attached.attach(1, None, true);
        assert!(attached.mirrors(1) && attached.check(&LAYOUT, [1]).is_err());
        attached.detach(1);
        attached.attach(1, None, false);
        assert!(!attached.mirrors(1) && attached.check(&LAYOUT, [1]).is_ok());
    }

    #[test]
    fn rows_of_a_shard_have_its_generation_until_the_database_has_another() {
        let attached = AttachedShards::default();
        attached.attach(0, None, false);
        assert!(!attached.differ());
        attached.attach(1, Some((7, 3)), false);
        let of = |generation| [0, 1, 2, 9].map(|shard| attached.row_generation(generation, shard));
        assert_eq!(of(7), [7, 3, 7, 7]);
        assert_eq!(of(8), [8; 4], "the database was flushed here");
        attached.detach(1);
        assert_eq!(of(7), [7; 4]);
    }
}
