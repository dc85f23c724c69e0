//! Replacing keys that are not in memory without reading them (RFC 12).

use super::{EntryAddress, EntryMut, Store};
use crate::need::Fault;
use crate::notify::NotifyFlags;
use crate::presence::Presence;
use crate::slot::KeyHash;
use crate::value::JournaledState;
use smallvec::SmallVec;
use std::sync::Arc;

/// Number of keys whose hashes need no memory of their own.
const FEW_KEYS: usize = 16;

/// Classes of events that tell about the replaced row.
const OF_OLD_ROW: NotifyFlags = NotifyFlags::NEW.union(NotifyFlags::EXPIRED);

impl Store {
    /// Sets the filter of a shard's keys.
    pub(crate) fn set_presence(&mut self, shard: u16, presence: Option<&Arc<Presence>>) {
        let shard = usize::from(shard);
        if self.presence.len() <= shard {
            self.presence.resize(shard + 1, None);
        }
        self.presence[shard] = presence.cloned();
    }

    /// Sets how many keys may be replaced unseen from now on. The next rounds must be merged into
    /// shards by [`Partition::commit`](crate::partition::Partition::commit).
    pub(crate) fn allow_blind(&mut self, keys: usize) {
        self.may_replace = keys;
    }

    /// Returns true if a command may replace so many keys unseen now.
    fn allows_blind(&self, keys: usize) -> bool {
        keys <= self.may_replace && !self.notes.wants(OF_OLD_ROW)
    }

    /// Sets a key to a string with an expiry (0: none), whatever it was before: the key need not be
    /// in memory. Returns its entry.
    #[inline]
    pub fn replace(
        &mut self,
        db: u32,
        key: &[u8],
        bytes: &[u8],
        expire_at_ms: u64,
    ) -> Result<EntryMut<'_>, Fault> {
        let found = self.find_to_replace(db, key)?;
        let mut entry = self.change(found)?;
        entry.set_string(bytes);
        entry.expire_at_ms = expire_at_ms;
        Ok(entry)
    }

    /// Finds a key whose value and expiry are about to be replaced.
    fn find_to_replace(&mut self, db: u32, key: &[u8]) -> Result<EntryAddress, Fault> {
        Ok(match self.find(db, key) {
            Ok(Some(found)) => found,
            Ok(None) => self.insert_absent(db, key),
            Err(Fault::Miss(need)) => {
                let at = self.at(key);
                if need.part.is_some() || !self.allows_blind(1) || !self.allows(db, at, key) {
                    return Err(Fault::Miss(need));
                }
                self.may_replace -= 1;
                let found = self.insert_absent(db, key);
                self.dbs[db as usize].table(at.slot).note_known(key);
                found.entry_mut(&mut self.dbs).stored = JournaledState::unseen();
                found
            }
            Err(fault) => return Err(fault),
        })
    }

    /// Checks that [`replace`](Self::replace) misses none of the keys, and returns their hashes for it.
    pub fn can_replace<'a>(
        &mut self,
        db: u32,
        keys: impl Iterator<Item = &'a [u8]>,
    ) -> Result<SmallVec<[KeyHash; FEW_KEYS]>, Fault> {
        let (mut hashes, mut unseen) = (SmallVec::new(), 0);
        for key in keys {
            let at = self.layout.key_hash(key);
            self.hint(key, at);
            hashes.push(at);
            match self.peek(db, key) {
                Ok(_) => {}
                Err(Fault::Miss(need)) => {
                    unseen += 1;
                    if !self.allows_blind(unseen) || !self.allows(db, at, key) {
                        return Err(Fault::Miss(need));
                    }
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(hashes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::Interest;
    use crate::store::scope::tests::store;

    fn blind() -> Store {
        let mut store = store();
        (0..2).for_each(|shard| store.take_in(shard, std::iter::once(0)));
        store.allow_blind(2);
        store
    }

    fn set(store: &mut Store, key: &[u8]) -> bool {
        store.replace(0, key, b"v", 0).is_ok()
    }

    #[test]
    fn so_many_keys_are_replaced_unseen() {
        let mut store = blind();
        assert!(store.can_replace(0, [&b"a"[..], b"b"].into_iter()).is_ok());
        assert!(store.can_replace(0, [&b"a"[..], b"b", b"c"].into_iter()).is_err());
        assert!(set(&mut store, b"a") && set(&mut store, b"b"));
        assert!(!set(&mut store, b"c") && set(&mut store, b"a"));
        assert!(store.exists(0, b"a").is_ok_and(|exists| exists));
        store.own_none();
        store.confine(crate::Scope::Own);
        store.allow_blind(2);
        assert!(!set(&mut store, b"d"), "the command may not ask for it");
    }

    #[test]
    fn an_event_of_the_old_row_needs_the_row() {
        let mut store = blind();
        for (events, allowed) in
            [(NotifyFlags::NEW, false), (NotifyFlags::EXPIRED, false), (NotifyFlags::HASH, true)]
        {
            store.notes.want(Interest { changes: true, events });
            assert_eq!(set(&mut store, b"a"), allowed);
        }
    }

    #[test]
    fn a_blind_put_does_not_make_the_key_count_as_absent() {
        let mut store = blind();
        store.begin_unit();
        assert!(set(&mut store, b"a"));
        store.roll_back(1);
        assert!(matches!(store.exists(0, b"a"), Err(Fault::Miss(_))));
        assert!(set(&mut store, b"b"));
        let sealed = store.seal();
        store.unseal(&sealed);
        assert!(matches!(store.exists(0, b"b"), Err(Fault::Miss(_))));
    }
}
