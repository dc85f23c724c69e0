//! Nodes of a stream: neighbouring entries packed into one row.
//!
//! A node begins and ends where Valkey's would: its size is counted as that of Valkey's listpack.
//! Deleted entries leave the row, but count for this as long as the node exists.

use super::id::StreamId;
use super::paged::PagedRow;
use crate::encoding::{get_bytes, get_varint, put_bytes, put_varint};
use crate::value::list::listpack_entry;

/// Maximum size of a node's listpack in bytes, whatever is configured: every added entry rewrites
/// the row.
const NODE_BYTES: usize = 4096;

/// Limits on the size of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeLimits {
    bytes: u64,
    entries: u64,
}

impl NodeLimits {
    /// Creates limits from the configuration: bytes and entries of a node, 0 for none.
    pub fn new(bytes: usize, entries: u64) -> Self {
        let bytes = if bytes == 0 { NODE_BYTES } else { bytes.min(NODE_BYTES) };
        Self { bytes: bytes as u64, entries: if entries == 0 { u64::MAX } else { entries } }
    }
}

/// Consecutive entries, some of which may have been deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::value) struct EntryNode {
    /// The id of the first entry it had; other ids are stored as differences to it.
    first: StreamId,
    /// The greatest id of all entries it had.
    last: StreamId,
    /// Number of entries.
    count: u32,
    /// Number of deleted entries.
    deleted: u32,
    /// Bytes of Valkey's listpack except for the two counts.
    listpack: u64,
    /// The names of the first entry's fields, then the entries.
    buf: Vec<u8>,
    /// Offset of the entries.
    head: usize,
}

/// An entry of a stream.
#[derive(Clone, Copy, Debug)]
pub struct StreamEntry<'a> {
    pub id: StreamId,
    /// Its fields and their values.
    pub fields: Fields<'a>,
}

/// The fields of an entry: names and values.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    left: usize,
    /// Names that the entry shares with the node's first one.
    shared: Option<&'a [u8]>,
    rest: &'a [u8],
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let names = self.shared.as_mut().unwrap_or(&mut self.rest);
        let name = get_bytes(names)?;
        Some((name, get_bytes(&mut self.rest)?))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Fields<'_> {}

/// Returns the bytes that an integer takes in a listpack.
fn listpack_int(n: i64) -> u64 {
    match n {
        0..=127 => 2,
        -4096..=4095 => 3,
        -0x8000..=0x7fff => 4,
        -0x80_0000..=0x7f_ffff => 5,
        -0x8000_0000..=0x7fff_ffff => 6,
        _ => 10,
    }
}

impl EntryNode {
    /// Creates a node without entries, for a first entry with an id and these field names.
    pub(in crate::value) fn new<'a>(
        first: StreamId,
        names: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Self {
        let mut buf = Vec::new();
        put_varint(&mut buf, names.len() as u64);
        // Counts header, number of fields, end of the master entry, and end.
        let mut listpack = 6 + listpack_int(names.len() as i64) + listpack_int(0) + 1;
        for name in names {
            put_bytes(&mut buf, name);
            listpack += listpack_entry(name);
        }
        let head = buf.len();
        Self { first, last: first, count: 0, deleted: 0, listpack, buf, head }
    }

    /// Returns the number of entries.
    pub(in crate::value) fn count(&self) -> u64 {
        u64::from(self.count)
    }

    /// Returns the greatest id of all entries it had, which may have been deleted.
    pub(in crate::value) fn last(&self) -> StreamId {
        self.last
    }

    /// Returns true if an entry with `bytes` of names and values fits.
    pub(in crate::value) fn has_room(&self, bytes: usize, limits: NodeLimits) -> bool {
        self.listpack_bytes() + (bytes as u64) < limits.bytes
            && u64::from(self.count) + u64::from(self.deleted) < limits.entries
    }

    /// Returns the size of the listpack in bytes.
    fn listpack_bytes(&self) -> u64 {
        let ints = listpack_int(i64::from(self.count)) + listpack_int(i64::from(self.deleted));
        self.listpack + ints
    }

    /// Appends an entry with a greater id than all others.
    pub(in crate::value) fn push<'a>(
        &mut self,
        id: StreamId,
        fields: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) {
        let (ms, seq) = self.distance(id);
        let n = fields.len();
        let shares = self.count_in(id, fields.clone());
        let mut body = Vec::new();
        put_varint(&mut body, ms);
        put_varint(&mut body, if ms == 0 { seq } else { id.seq });
        // 0: as many fields as the first entry, with the same names.
        put_varint(&mut body, if shares { 0 } else { n as u64 + 1 });
        for (name, value) in fields {
            if !shares {
                put_bytes(&mut body, name);
            }
            put_bytes(&mut body, value);
        }
        put_bytes(&mut self.buf, &body);
        self.count += 1;
    }

    /// Counts an entry that another server has deleted before: like [`push`](Self::push) and the
    /// deletion of that entry.
    pub(in crate::value) fn skip_deleted<'a>(
        &mut self,
        id: StreamId,
        fields: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) {
        self.count_in(id, fields);
        self.deleted += 1;
    }

    /// Returns the differences of an id to that of the first entry.
    fn distance(&self, id: StreamId) -> (u64, u64) {
        (id.ms.wrapping_sub(self.first.ms), id.seq.wrapping_sub(self.first.seq))
    }

    /// Adds an entry to the size of the listpack and to the ids; returns true if its fields have the names
    /// that entries may share.
    fn count_in<'a>(
        &mut self,
        id: StreamId,
        fields: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> bool {
        let ((ms, seq), n) = (self.distance(id), fields.len());
        let shares = self.shares(fields.clone());
        self.listpack += listpack_int(2) + listpack_int(ms as i64) + listpack_int(seq as i64);
        for (name, value) in fields {
            self.listpack += if shares { 0 } else { listpack_entry(name) };
            self.listpack += listpack_entry(value);
        }
        let parts = if shares { n + 3 } else { 2 * n + 4 };
        self.listpack += listpack_int(parts as i64);
        if !shares {
            self.listpack += listpack_int(n as i64);
        }
        self.last = self.last.max(id);
        shares
    }

    /// Returns true if the fields have the names that entries may share.
    fn shares<'a>(&self, fields: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>) -> bool {
        let mut names = &self.buf[..self.head];
        get_varint(&mut names) == Some(fields.len() as u64) && { fields }
            .all(|(name, _)| get_bytes(&mut names) == Some(name))
    }

    /// Returns the entries in order.
    pub(in crate::value) fn iter(&self) -> NodeEntries<'_> {
        NodeEntries { node: self, rest: &self.buf[self.head..] }
    }

    /// Returns the entry of an id.
    pub(in crate::value) fn get(&self, id: StreamId) -> Option<StreamEntry<'_>> {
        self.iter().find(|entry| entry.id == id)
    }

    /// Returns the names that entries may share.
    pub(in crate::value) fn names(&self) -> Names<'_> {
        let mut rest = &self.buf[..self.head];
        let left = get_varint(&mut rest).unwrap_or(0);
        Names { left: usize::try_from(left).unwrap_or(0), rest }
    }

    /// Deletes the entries for which `gone` returns true, and returns their number.
    pub(in crate::value) fn delete(&mut self, mut gone: impl FnMut(StreamId) -> bool) -> u64 {
        let mut kept = Vec::with_capacity(self.buf.len());
        kept.extend_from_slice(&self.buf[..self.head]);
        let mut entries = self.iter();
        let mut deleted = 0;
        loop {
            let before = entries.rest;
            let Some(entry) = entries.next() else { break };
            if gone(entry.id) {
                deleted += 1;
            } else {
                kept.extend_from_slice(&before[..before.len() - entries.rest.len()]);
            }
        }
        self.buf = kept;
        self.count -= deleted;
        self.deleted += deleted;
        u64::from(deleted)
    }

    /// Releases memory that is not needed while the node stays as it is.
    pub(in crate::value) fn shrink(&mut self) {
        self.buf.shrink_to_fit();
    }

    /// Decodes one entry.
    fn entry<'a>(&'a self, mut body: &'a [u8]) -> Option<StreamEntry<'a>> {
        let ms = get_varint(&mut body)?;
        let seq = get_varint(&mut body)?;
        let seq = if ms == 0 { self.first.seq.checked_add(seq)? } else { seq };
        let id = StreamId { ms: self.first.ms.checked_add(ms)?, seq };
        let own = usize::try_from(get_varint(&mut body)?).ok()?;
        let shared = self.names();
        let fields = match own {
            0 => Fields { left: shared.left, shared: Some(shared.rest), rest: body },
            n => Fields { left: n - 1, shared: None, rest: body },
        };
        Some(StreamEntry { id, fields })
    }

    /// Returns true if all entries can be decoded.
    fn is_sound(&self) -> bool {
        let (mut rest, mut count, mut before) = (&self.buf[self.head..], 0, None);
        while !rest.is_empty() {
            let entry = get_bytes(&mut rest).and_then(|body| self.entry(body));
            let Some(StreamEntry { id, mut fields }) = entry else { return false };
            let n = fields.left;
            if fields.by_ref().count() != n || !fields.rest.is_empty() || Some(id) <= before {
                return false;
            }
            before = Some(id);
            count += 1;
        }
        count == self.count && before <= Some(self.last) && self.first <= self.last
    }
}

/// The names that the entries of a node may share.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    left: usize,
    rest: &'a [u8],
}

impl<'a> Iterator for Names<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        get_bytes(&mut self.rest)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Names<'_> {}

/// Iterator over the entries of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeEntries<'a> {
    node: &'a EntryNode,
    rest: &'a [u8],
}

impl<'a> Iterator for NodeEntries<'a> {
    type Item = StreamEntry<'a>;

    fn next(&mut self) -> Option<StreamEntry<'a>> {
        let body = get_bytes(&mut self.rest)?;
        self.node.entry(body)
    }
}

impl PagedRow<StreamId> for EntryNode {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.count));
        put_varint(out, u64::from(self.deleted));
        put_varint(out, self.listpack);
        put_varint(out, self.last.ms - self.first.ms);
        put_varint(out, self.last.seq);
        out.extend_from_slice(&self.buf);
    }

    fn decode(first: &StreamId, mut row: &[u8]) -> Option<Self> {
        let count = u32::try_from(get_varint(&mut row)?).ok()?;
        let deleted = u32::try_from(get_varint(&mut row)?).ok()?;
        let listpack = get_varint(&mut row)?;
        let ms = first.ms.checked_add(get_varint(&mut row)?)?;
        let last = StreamId { ms, seq: get_varint(&mut row)? };
        let mut names = row;
        for _ in 0..get_varint(&mut names)? {
            get_bytes(&mut names)?;
        }
        let head = row.len() - names.len();
        let node = Self { first: *first, last, count, deleted, listpack, buf: row.to_vec(), head };
        node.is_sound().then_some(node)
    }

    fn heap(&self) -> usize {
        self.buf.capacity() + 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(bytes: usize, entries: u64) -> NodeLimits {
        NodeLimits::new(bytes, entries)
    }

    type Owned = (StreamId, Vec<(Vec<u8>, Vec<u8>)>);

    fn entries(node: &EntryNode) -> Vec<Owned> {
        let own = |(n, v): (&[u8], &[u8])| (n.to_vec(), v.to_vec());
        node.iter().map(|entry| (entry.id, entry.fields.map(own).collect())).collect()
    }

    fn push(node: &mut EntryNode, id: (u64, u64), fields: &[(&str, &str)]) -> Owned {
        let id = StreamId::new(id.0, id.1);
        node.push(id, fields.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())));
        (id, fields.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect())
    }

    fn roundtrip(node: &EntryNode) {
        let mut row = Vec::new();
        node.encode(&mut row);
        assert_eq!(EntryNode::decode(&node.first, &row).as_ref(), Some(node));
    }

    fn node() -> (EntryNode, Vec<Owned>) {
        let mut node = EntryNode::new(StreamId::new(10, 5), [&b"a"[..], b"b"].into_iter());
        let model = vec![
            push(&mut node, (10, 5), &[("a", "1"), ("b", "2")]),
            push(&mut node, (10, 9), &[("a", "x"), ("b", "")]),
            push(&mut node, (11, 0), &[("a", "x")]),
            push(&mut node, (11, u64::MAX), &[("a", "x"), ("c", "y")]),
            push(&mut node, (u64::MAX, 0), &[("a", "-12345"), ("b", "z")]),
        ];
        (node, model)
    }

    #[test]
    fn entries_come_back_as_they_were() {
        let (mut node, mut model) = node();
        assert_eq!(entries(&node), model);
        roundtrip(&node);
        assert_eq!(node.delete(|id| id.ms == 10), 2);
        assert_eq!(node.delete(|id| id.ms == u64::MAX), 1);
        model.remove(4);
        model.drain(..2);
        assert_eq!(entries(&node), model);
        assert_eq!((node.count(), node.last()), (2, StreamId::new(u64::MAX, 0)));
        model.push(push(&mut node, (u64::MAX, 1), &[("a", "shared"), ("b", "again")]));
        assert_eq!(entries(&node), model);
        roundtrip(&node);
    }

    #[test]
    fn its_size_is_that_of_a_listpack() {
        // Counted by hand: header and end 7; counts 2 + 2, fields 2, names 3 + 3, end 2; then
        // flags, two differences, two values, and the number of parts.
        let mut node = EntryNode::new(StreamId::new(10, 5), [&b"a"[..], b"b"].into_iter());
        push(&mut node, (10, 5), &[("a", "1"), ("b", "xy")]);
        assert_eq!(node.listpack_bytes(), 7 + 4 + 2 + 6 + 2 + (2 + 2 + 2 + 2 + 4 + 2));
        push(&mut node, (11, 0), &[("c", "4096")]);
        // The sequence difference is negative, and the entry has a field name of its own.
        assert_eq!(node.listpack_bytes(), 35 + (2 + 2 + 3) + 2 + 3 + 4 + 2);
    }

    #[test]
    fn a_node_is_full_by_bytes_or_by_entries() {
        let (mut node, _) = node();
        let bytes = node.listpack_bytes() as usize;
        assert!(node.has_room(10, limits(bytes + 11, 6)));
        assert!(!node.has_room(10, limits(bytes + 10, 6)));
        assert!(!node.has_room(10, limits(0, 5)));
        node.delete(|id| id.ms == 10);
        assert!(!node.has_room(10, limits(0, 5)), "deleted entries count");
        assert!(node.has_room(10, limits(0, 0)));
        assert!(!node.has_room(NODE_BYTES, limits(0, 0)));
    }

    #[test]
    fn damaged_rows_are_refused() {
        let (node, _) = node();
        let mut row = Vec::new();
        node.encode(&mut row);
        for len in 0..row.len() {
            assert!(EntryNode::decode(&node.first, &row[..len]).is_none(), "{len}");
        }
        row.push(0);
        assert!(EntryNode::decode(&node.first, &row).is_none());
        row.pop();
        row[0] += 1;
        assert!(EntryNode::decode(&node.first, &row).is_none(), "a wrong count");
    }

    #[test]
    fn an_entry_that_was_deleted_before_counts_like_one_that_is_deleted() {
        for fields in [&[("a", "1"), ("b", "xy")][..], &[("c", "4096")], &[]] {
            let (mut skipped, _) = node();
            let (mut deleted, _) = node();
            let id = StreamId::new(u64::MAX, 7);
            let pairs = fields.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes()));
            skipped.skip_deleted(id, pairs.clone());
            deleted.push(id, pairs);
            assert_eq!(deleted.delete(|other| other == id), 1);
            assert_eq!(skipped, deleted);
            roundtrip(&skipped);
        }
    }
}
