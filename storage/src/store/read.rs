//! Keys for reading, of which more is not needed than that they exist.

use super::Store;
use crate::need::Fault;
use crate::value::Entry;

impl Store {
    /// Returns a key that this command has found before; `None` when it does not exist.
    pub fn found(&self, db: u32, key: &[u8]) -> Option<&Entry> {
        let at = self.at(key);
        let db = self.dbs.get(db as usize)?;
        let table = db.tables.get(db.table_of(at.slot))?;
        let entry = table.get(at.hash, key)?;
        (entry.is_live() && !entry.has_expired(self.due_ms)).then_some(entry)
    }

    /// Returns true if a key exists; counts as a hit or miss.
    pub fn exists(&mut self, db: u32, key: &[u8]) -> Result<bool, Fault> {
        Ok(self.entry(db, key)?.is_some())
    }

    /// Returns true if a key exists; counts as an access even for a client with CLIENT NO-TOUCH.
    pub fn exists_touching(&mut self, db: u32, key: &[u8]) -> Result<bool, Fault> {
        let touch = std::mem::replace(&mut self.touch, true);
        let found = self.exists(db, key);
        self.touch = touch;
        found
    }
}
