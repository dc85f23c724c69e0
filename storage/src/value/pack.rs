//! Packed elements: the contents of one node of a list.

use crate::encoding::{get_varint, put_varint};
use bytes::Bytes;
use std::ops::Deref;

/// Maximum size of a node: in bytes, and in elements. A longer element has a node of its own.
pub(crate) const NODE_BYTES: usize = 2048;
pub(crate) const NODE_MAX: usize = 128;

/// Longest varint in bytes.
const VARINT_MAX: usize = 10;

/// Elements in one buffer. Each is `varint(len) | bytes | varint(len) with its bytes reversed`, so
/// that the buffer can be read from both ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pack {
    /// The elements, with free space or the head of the row before them.
    buf: PackMemory,
    start: usize,
    count: usize,
}

/// Memory of a pack.
#[derive(Clone, Debug)]
enum PackMemory {
    Own(Vec<u8>),
    /// The node's row, which others have as well: it is copied before it is changed.
    Shared(Bytes),
}

impl Default for PackMemory {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl Deref for PackMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl PackMemory {
    /// Returns the memory to change it.
    fn own(&mut self) -> &mut Vec<u8> {
        if let Self::Shared(bytes) = self {
            *self = Self::Own(bytes.to_vec());
        }
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(_) => unreachable!("it was copied"),
        }
    }

    fn truncate(&mut self, len: usize) {
        match self {
            Self::Own(bytes) => bytes.truncate(len),
            Self::Shared(bytes) => bytes.truncate(len),
        }
    }
}

/// Encodes a length as a varint: its bytes, and their number.
fn varint(len: usize) -> ([u8; VARINT_MAX], usize) {
    let mut bytes = [0; VARINT_MAX];
    let (mut n, mut i) = (len, 0);
    while n >= 0x80 {
        bytes[i] = n as u8 | 0x80;
        n >>= 7;
        i += 1;
    }
    bytes[i] = n as u8;
    (bytes, i + 1)
}

/// Returns the bytes that an element of `len` bytes takes.
pub(crate) fn entry_len(len: usize) -> usize {
    len + 2 * varint(len).1
}

/// Writes an element over `out`, which has the right length.
fn write_entry(out: &mut [u8], element: &[u8]) {
    let (mut head, n) = varint(element.len());
    let end = out.len() - n;
    out[..n].copy_from_slice(&head[..n]);
    out[n..end].copy_from_slice(element);
    head[..n].reverse();
    out[end..].copy_from_slice(&head[..n]);
}

/// Iterator over elements, from both ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PackElements<'a>(&'a [u8]);

impl<'a> Iterator for PackElements<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let mut rest = self.0;
        let len = usize::try_from(get_varint(&mut rest)?).ok()?;
        let head = self.0.len() - rest.len();
        let (element, rest) = rest.split_at_checked(len)?;
        self.0 = rest.get(head..)?;
        Some(element)
    }
}

impl DoubleEndedIterator for PackElements<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let (mut len, mut shift, mut end) = (0usize, 0, self.0.len());
        loop {
            end = end.checked_sub(1)?;
            let byte = self.0[end];
            len |= usize::from(byte & 0x7f).checked_shl(shift)?;
            shift += 7;
            if byte < 0x80 {
                break;
            }
        }
        let tail = self.0.len() - end;
        let begin = end.checked_sub(len)?;
        let element = &self.0[begin..end];
        self.0 = &self.0[..begin.checked_sub(tail)?];
        Some(element)
    }
}

impl Pack {
    /// Creates a pack of one element.
    pub(crate) fn of(element: &[u8]) -> Self {
        let mut pack = Self::default();
        pack.push_back(element);
        pack
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.buf[self.start..]
    }

    /// Returns the size of the elements in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.buf.len() - self.start
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns true if an element fits into the node.
    pub(crate) fn fits(&self, element: &[u8]) -> bool {
        self.is_empty()
            || (self.count < NODE_MAX && self.bytes() + entry_len(element.len()) <= NODE_BYTES)
    }

    pub(crate) fn iter(&self) -> PackElements<'_> {
        PackElements(self.as_bytes())
    }

    /// Returns the elements from the `index`-th on.
    pub(crate) fn iter_from(&self, index: usize) -> PackElements<'_> {
        PackElements(&self.as_bytes()[self.offset(index)..])
    }

    /// Returns the elements before the `index`-th.
    pub(crate) fn iter_to(&self, index: usize) -> PackElements<'_> {
        PackElements(&self.as_bytes()[..self.offset(index)])
    }

    pub(crate) fn get(&self, index: usize) -> Option<&[u8]> {
        self.iter_from(index).next()
    }

    /// Returns the offset of the `index`-th element; the end for one beyond the last.
    fn offset(&self, index: usize) -> usize {
        let mut elements = self.iter();
        if index <= self.count / 2 {
            elements.by_ref().take(index).for_each(drop);
            self.bytes() - elements.0.len()
        } else {
            let behind = self.count.saturating_sub(index);
            elements.by_ref().rev().take(behind).for_each(drop);
            elements.0.len()
        }
    }

    pub(crate) fn push_back(&mut self, element: &[u8]) {
        let (mut head, n) = varint(element.len());
        let buf = self.buf.own();
        buf.reserve(element.len() + 2 * n);
        buf.extend_from_slice(&head[..n]);
        buf.extend_from_slice(element);
        head[..n].reverse();
        buf.extend_from_slice(&head[..n]);
        self.count += 1;
    }

    pub(crate) fn push_front(&mut self, element: &[u8]) {
        let len = entry_len(element.len());
        let bytes = self.bytes();
        let buf = self.buf.own();
        if self.start < len {
            // Doubles the space, so that a push takes constant time on average.
            let room = len + bytes.min(NODE_BYTES);
            let end = buf.len();
            buf.resize(end + room - self.start, 0);
            buf.copy_within(self.start..end, room);
            self.start = room;
        }
        let at = self.start - len;
        write_entry(&mut buf[at..at + len], element);
        self.start = at;
        self.count += 1;
    }

    /// Drops the first `n` elements.
    pub(crate) fn drop_front(&mut self, n: usize) {
        self.start += self.offset(n);
        self.count = self.count.saturating_sub(n);
    }

    /// Drops the last `n` elements.
    pub(crate) fn drop_back(&mut self, n: usize) {
        self.count = self.count.saturating_sub(n);
        let mut elements = self.iter();
        elements.by_ref().rev().take(n).for_each(drop);
        let end = self.start + elements.0.len();
        self.buf.truncate(end);
    }

    /// Inserts an element before the `index`-th.
    pub(crate) fn insert(&mut self, index: usize, element: &[u8]) {
        let at = self.start + self.offset(index);
        let len = entry_len(element.len());
        let buf = self.buf.own();
        let end = buf.len();
        buf.resize(end + len, 0);
        buf.copy_within(at..end, at + len);
        write_entry(&mut buf[at..at + len], element);
        self.count += 1;
    }

    pub(crate) fn remove(&mut self, index: usize) {
        if index < self.count {
            let (from, to) = (self.offset(index), self.offset(index + 1));
            self.buf.own().drain(self.start + from..self.start + to);
            self.count -= 1;
        }
    }

    pub(crate) fn replace(&mut self, index: usize, element: &[u8]) {
        if self.get(index).is_some_and(|old| old.len() == element.len()) {
            let at = self.start + self.offset(index);
            let len = entry_len(element.len());
            write_entry(&mut self.buf.own()[at..at + len], element);
        } else {
            self.remove(index);
            self.insert(index, element);
        }
    }

    /// Keeps the elements before the `index`-th, and returns the others.
    pub(crate) fn split_off(&mut self, index: usize) -> Self {
        let at = self.start + self.offset(index);
        let kept = index.min(self.count);
        let tail = Self::from_elements(&self.buf[at..], self.count - kept);
        self.buf.truncate(at);
        self.count = kept;
        tail
    }

    /// Returns the number of elements in the first half by bytes: at least one, and not all if
    /// there are several.
    pub(crate) fn half(&self) -> usize {
        let mut elements = self.iter();
        let mut n = 0;
        while elements.0.len() > self.bytes() / 2 && elements.next().is_some() {
            n += 1;
        }
        n.clamp(1, self.count.saturating_sub(1).max(1))
    }

    /// Appends another pack's elements.
    pub(crate) fn append(&mut self, other: &Self) {
        self.buf.own().extend_from_slice(other.as_bytes());
        self.count += other.count;
    }

    /// Drops the elements for which `drop` returns true.
    pub(crate) fn remove_where(&mut self, mut drop: impl FnMut(&[u8]) -> bool) {
        let buf = PackMemory::Own(Vec::with_capacity(self.bytes()));
        let mut kept = Self { buf, ..Self::default() };
        for element in self.iter().filter(|element| !drop(element)) {
            kept.push_back(element);
        }
        *self = kept;
    }

    /// Releases memory that is not needed while the elements stay as they are.
    pub(crate) fn shrink(&mut self) {
        if let PackMemory::Own(buf) = &mut self.buf {
            buf.drain(..std::mem::take(&mut self.start));
            buf.shrink_to_fit();
        }
    }

    /// Returns the node's row, in memory that both have from now on.
    pub(crate) fn share(&mut self) -> Bytes {
        let mut row = Vec::with_capacity(varint(self.count).1 + self.bytes());
        self.encode(&mut row);
        let row = Bytes::from(row);
        self.start = row.len() - self.bytes();
        self.buf = PackMemory::Shared(row.clone());
        row
    }

    /// Appends the node's row: the count, then the elements.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.count as u64);
        out.extend_from_slice(self.as_bytes());
    }

    /// Decodes a node's row; `None` if it is damaged.
    pub(crate) fn decode(mut row: &[u8]) -> Option<Self> {
        let count = usize::try_from(get_varint(&mut row)?).ok()?;
        let (mut elements, mut found) = (PackElements(row), 0);
        while !elements.0.is_empty() {
            let before = elements.0;
            let len = elements.next()?.len();
            let mut back = PackElements(&before[..before.len() - elements.0.len()]);
            if back.next_back()?.len() != len || !back.0.is_empty() {
                return None;
            }
            found += 1;
        }
        (found == count && count > 0).then(|| Self::from_elements(row, count))
    }

    /// Returns a copy of encoded elements.
    fn from_elements(elements: &[u8], count: usize) -> Self {
        Self { buf: PackMemory::Own(elements.to_vec()), start: 0, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn check(pack: &Pack, model: &VecDeque<Vec<u8>>) {
        assert!(pack.iter().eq(model.iter().map(|e| &e[..])));
        assert!(pack.iter().rev().eq(model.iter().rev().map(|e| &e[..])));
        assert_eq!(pack.count(), model.len());
        for (i, element) in model.iter().enumerate() {
            assert_eq!(pack.get(i), Some(&element[..]));
        }
        let mut row = Vec::new();
        pack.encode(&mut row);
        match Pack::decode(&row) {
            Some(back) => assert!(back.iter().eq(pack.iter())),
            None => assert!(pack.is_empty()),
        }
    }

    #[test]
    fn a_pack_is_as_a_deque() {
        use rand::{RngExt, SeedableRng, rngs::SmallRng};
        let mut rng = SmallRng::seed_from_u64(3);
        let (mut pack, mut model) = (Pack::default(), VecDeque::new());
        let mut shared = Vec::new();
        for n in 0..3000usize {
            let element = vec![n as u8; [0, 3, 127, 128, 300][rng.random_range(0..5)]];
            let i = rng.random_range(0..=model.len());
            match rng.random_range(0..9) {
                0 | 1 => {
                    pack.push_front(&element);
                    model.push_front(element);
                }
                2 | 3 => {
                    pack.push_back(&element);
                    model.push_back(element);
                }
                4 => {
                    pack.insert(i, &element);
                    model.insert(i, element);
                }
                5 if i < model.len() => {
                    pack.replace(i, &element);
                    model[i] = element;
                }
                6 if i < model.len() => {
                    pack.remove(i);
                    model.remove(i);
                }
                7 => {
                    pack.drop_front(i.min(2));
                    model.drain(..i.min(2));
                }
                _ => {
                    let tail = pack.split_off(i);
                    assert_eq!(tail.count(), model.len() - i);
                    pack.append(&tail);
                }
            }
            if n % 5 == 0 {
                let (row, before) = (pack.share(), pack.clone());
                assert!(before.iter().eq(pack.iter()) && row.ends_with(pack.as_bytes()));
                shared.push((row.clone(), row.to_vec()));
            }
            if model.len() > 30 {
                pack.drop_back(20);
                model.truncate(model.len() - 20);
                pack.shrink();
            }
            check(&pack, &model);
        }
        // Rows that others have stay what they were.
        assert!(shared.iter().all(|(row, copy)| row == copy));
    }

    #[test]
    fn damaged_rows_are_refused() {
        for row in [&[1u8, 2, 1, 2][..], &[1, 1, 9, 2], &[2, 1, 9, 1], &[1, 5], &[0], &[]] {
            assert!(Pack::decode(row).is_none());
        }
        assert_eq!(Pack::decode(&[1, 1, 9, 1]).unwrap().get(0), Some(&[9u8][..]));
    }
}
