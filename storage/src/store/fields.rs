//! Fields of hashes that have expired.

use super::Store;
use crate::need::Part;
use crate::notify::NotifyFlags;
use crate::value::Value;

impl Store {
    /// Returns the part of a key's value that has to be in memory before some of its fields are deleted that have
    /// expired at `now_ms`, and about how many bytes it takes; `None` if all that is needed is there, or none has
    /// expired.
    pub fn missing_due(&mut self, db: u32, key: &[u8], now_ms: u64) -> Option<(Part, u64)> {
        let Value::Hash(hash) = &self.entry_for_part(db, key)?.value else { return None };
        let part = hash.require_some_due(now_ms).err()?;
        let fields = if let Part::Fields(names) = &part { names.len() as u64 } else { 0 };
        Some((part, fields * hash.mean_bytes()))
    }

    /// Deletes the fields of a hash that are known to have expired, and the hash with its last field. Does nothing if
    /// [a part](Self::missing_due) has to be in memory before.
    pub fn expire_fields(&mut self, db: u32, key: &[u8]) {
        let now_ms = self.due_ms;
        let Ok(mut entry) = self.entry_mut(db, key) else { return };
        let is_due = match &entry.value {
            Value::Hash(hash) if hash.require_some_due(now_ms).is_err() => return,
            Value::Hash(hash) => hash.is_due(now_ms),
            _ => false,
        };
        if !is_due {
            // The index may hold too early a time, from when less of the hash was in memory.
            if entry.stored.fields_expire_at_ms() != entry.value.fields_expire_at_ms() {
                entry.touch();
            }
            return;
        }
        let Some(hash) = entry.as_hash_mut() else { return };
        let expired = hash.remove_expired(now_ms);
        if hash.is_empty() {
            entry.clear();
        }
        entry.removal_event(NotifyFlags::HASH, "hexpired");
        self.stats.expired_fields += expired.len() as u64;
        self.words.fields(db, key, expired.iter().map(|name| &**name));
        self.words.excuse();
    }
}
