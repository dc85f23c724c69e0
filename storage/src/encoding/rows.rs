//! Writes the element rows of one value.

use super::{Delta, OpWriter, RowKey};
use bytes::Bytes;

/// See the module's description.
pub(crate) struct ElementRows<'a> {
    ops: &'a mut OpWriter,
    /// Buffer for a row's key: the head of all of them, then the element.
    key: Vec<u8>,
    head: usize,
    hash_of: &'a dyn Fn(&[u8]) -> u64,
}

impl<'a> ElementRows<'a> {
    /// Creates a writer of the rows of a version; `hash_of` hashes element names.
    pub(crate) fn new(
        ops: &'a mut OpWriter,
        slot: u16,
        version: u64,
        hash_of: &'a dyn Fn(&[u8]) -> u64,
    ) -> Self {
        let mut key = Vec::with_capacity(64);
        RowKey::elements(&mut key, slot, version);
        let head = key.len();
        Self { ops, key, head, hash_of }
    }

    /// Puts the row of an element; `new`: it does not exist, which must be certain.
    pub(crate) fn put(&mut self, element: &[u8], value: &[u8], new: bool) {
        self.key.truncate(self.head);
        self.key.extend_from_slice(element);
        self.ops.put(&self.key, value, new);
    }

    /// Like [`put`](Self::put); the pending row gets the value's memory.
    pub(crate) fn put_shared(&mut self, element: &[u8], value: Bytes, new: bool) {
        self.key.truncate(self.head);
        self.key.extend_from_slice(element);
        self.ops.put_shared(&self.key, value, new);
    }

    /// Deletes the row of an element.
    pub(crate) fn delete(&mut self, element: &[u8]) {
        self.key.truncate(self.head);
        self.key.extend_from_slice(element);
        self.ops.delete(&self.key, Delta::default());
    }

    /// Marks the elements with a prefix as dead: they are swept, and no new ones may follow.
    pub(crate) fn dead(&mut self, prefix: &[u8]) {
        let key = RowKey::dead_elements(&self.key[..self.head], prefix);
        self.ops.put(&key, b"", true);
    }

    /// Returns the element key of a name.
    pub(crate) fn named(&self, name: &[u8]) -> Vec<u8> {
        RowKey::named_element((self.hash_of)(name), name)
    }
}
