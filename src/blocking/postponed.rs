//! Keys whose waiters are served later: those of a transaction that has commands on the server, too,
//! which run behind its part on keys. Its changes are seen by blocked clients when all of it has run,
//! as in the reference.

use flagstone_storage::need::Key;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Such keys of a node, with the number of transactions that have named each of them.
#[derive(Debug, Default)]
pub struct PostponedKeys {
    /// Number of keys, so that one load usually shows that there is none.
    len: AtomicUsize,
    keys: Mutex<HashMap<Key, usize>>,
}

impl PostponedKeys {
    /// Postpones the waiters of some keys. It holds for a command that is sent to a worker after
    /// that.
    pub(crate) fn add(&self, added: &[Key]) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        added.iter().for_each(|key| *keys.entry(key.clone()).or_default() += 1);
        self.len.store(keys.len(), Ordering::Release);
    }

    /// Ends [`add`](Self::add). The waiters have to be looked at then.
    pub(crate) fn remove(&self, removed: &[Key]) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        for key in removed {
            if let Some(count) = keys.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    keys.remove(key);
                }
            }
        }
        self.len.store(keys.len(), Ordering::Release);
    }

    /// Returns true if the waiters of a key are served later.
    #[inline]
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.len.load(Ordering::Acquire) != 0
            && self.keys.lock().unwrap_or_else(PoisonError::into_inner).contains_key(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_postponed_until_the_last_transaction_that_named_it_has_ended() {
        let [x, y] = ["x", "y"].map(|name| -> Key { (0, name.as_bytes().into()) });
        let postponed = PostponedKeys::default();
        assert!(!postponed.has(&x));
        postponed.add(&[x.clone(), y.clone()]);
        postponed.add(&[x.clone(), x.clone()]);
        postponed.remove(&[x.clone(), y.clone()]);
        assert!(postponed.has(&x) && !postponed.has(&y));
        postponed.remove(&[x.clone(), x.clone()]);
        assert!(!postponed.has(&x));
        assert_eq!(postponed.len.load(Ordering::Relaxed), 0);
    }
}
