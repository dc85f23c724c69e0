//! Element rows of streams, and which of them are in memory.

use super::node::EntryNode;
use super::paged::{Paged, PagedRow};
use super::trim::Cold;
use super::{Groups, Stream, StreamId, prefix};
use crate::encoding::{ElementRows, get_bytes, get_varint, put_bytes, put_varint};
use crate::need::{ElementRange, IndexPiece, Page, Part};
use crate::value::collection::Collection;
use crate::value::meta;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;

/// Approximate bytes up to which a stream stays in the meta row.
const PACKED_BYTES: usize = 1024;

/// Approximate bytes of a packed node beside those of its entries.
const PACKED_NODE: usize = 24;

impl Stream {
    /// Appends the payload of the meta row: everything or, with a version, only the data that finds
    /// the rows.
    pub(crate) fn encode_meta(&self, out: &mut Vec<u8>) {
        let stored = self.version != 0;
        if stored {
            for n in [self.version, self.len, self.node_count] {
                out.extend_from_slice(&n.to_be_bytes());
            }
            let low = self.nodes.low().copied().unwrap_or(StreamId::MAX);
            out.extend_from_slice(&low.to_bytes());
            out.extend_from_slice(&self.first_id.to_bytes());
        }
        out.extend_from_slice(&self.last_id.to_bytes());
        out.extend_from_slice(&self.max_deleted_id.to_bytes());
        out.extend_from_slice(&self.entries_added.to_be_bytes());
        if !stored {
            put_varint(out, self.node_count);
            let mut row = Vec::new();
            for (first, node) in self.nodes.in_memory() {
                row.clear();
                node.encode(&mut row);
                out.extend_from_slice(&first.to_bytes());
                put_bytes(out, &row);
            }
        }
        self.groups.encode(out, stored);
        if stored {
            out.extend_from_slice(&self.nodes.whole_bytes().to_be_bytes());
        }
    }

    /// Decodes the output of [`Stream::encode_meta`]; `None` if it is damaged.
    pub(crate) fn decode_meta(mut rest: &[u8], stored: bool) -> Option<Self> {
        let rest = &mut rest;
        let mut stream = Self::default();
        let mut low = StreamId::MAX;
        if stored {
            stream.version = take_u64(rest)?;
            stream.len = take_u64(rest)?;
            stream.node_count = take_u64(rest)?;
            low = StreamId::take(rest)?;
            stream.first_id = StreamId::take(rest)?;
        }
        stream.last_id = StreamId::take(rest)?;
        stream.max_deleted_id = StreamId::take(rest)?;
        stream.entries_added = take_u64(rest)?;
        if stored {
            stream.nodes = Paged::away(&[prefix::NODES], low, stream.last_id.next());
            stream.last_unread = stream.last_id;
        } else {
            stream.node_count = get_varint(rest)?;
            for _ in 0..stream.node_count {
                let first = StreamId::take(rest)?;
                let node = EntryNode::decode(&first, get_bytes(rest)?)?;
                stream.len += node.count();
                stream.nodes.insert(first, node);
            }
            stream.first_id = stream.end(false).ok()?.map_or(StreamId::MIN, |entry| entry.id);
        }
        stream.groups = Groups::decode(rest, stored)?;
        if stored && !rest.is_empty() {
            stream.nodes.set_whole_bytes(take_u64(rest)?);
        }
        rest.is_empty().then_some(stream)
    }
}

fn take_u64(input: &mut &[u8]) -> Option<u64> {
    let (head, rest) = input.split_first_chunk::<8>()?;
    *input = rest;
    Some(u64::from_be_bytes(*head))
}

impl Collection for Stream {
    fn type_name(&self) -> &'static str {
        "stream"
    }

    fn encoding(&self) -> &'static str {
        "stream"
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn may_be_empty(&self) -> bool {
        true
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn memory(&self) -> usize {
        let cold: usize = self.cold.iter().map(Cold::memory).sum();
        size_of::<Self>() + self.nodes.memory() + self.groups.memory() + cold
    }

    fn require_whole(&self) -> Result<(), Part> {
        self.nodes.require_whole()?;
        self.groups.require_whole()
    }

    fn is_too_big(&self) -> bool {
        let nodes = self.nodes.heap() + self.nodes.loaded() * PACKED_NODE;
        nodes + self.groups.packed_bytes() > PACKED_BYTES
    }

    fn unpack(&mut self, version: u64) {
        self.version = version;
        self.nodes.unpack();
        self.groups.unpack();
    }

    fn detach(&mut self) {
        self.version = 0;
        self.cold.clear();
        self.nodes.detach();
        self.groups.detach();
    }

    fn seal(&mut self, rows: &mut ElementRows<'_>) {
        if self.nodes.has_changes() {
            // The unit that needed the counts has ended.
            self.cold = Vec::new();
        }
        self.nodes.seal(rows);
        self.groups.seal(rows);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        self.encode_meta(out);
    }

    fn kind(&self) -> (u8, u8) {
        (meta::TYPE_STREAM, 0)
    }

    fn apply_all(&mut self, rows: Vec<(Bytes, Bytes)>) -> Result<()> {
        self.nodes.apply_all(&rows)?;
        self.groups.apply_all(&rows)?;
        let count: u64 = self.nodes.in_memory().map(|(_, node)| node.count()).sum();
        ensure!(count == self.len, "the nodes of a stream do not have its entries");
        Ok(())
    }

    fn apply_page(&mut self, page: Page) -> Result<()> {
        self.nodes.apply_page(&page)?;
        self.groups.apply_page(&page)
    }

    fn apply_index(&mut self, range: &ElementRange, pieces: Vec<IndexPiece>) -> Result<()> {
        if !self.nodes.is_of(&range.from) {
            return Ok(());
        }
        let Some((from, to)) = self.nodes.keys_of(range) else { return Ok(()) };
        let mut nodes = Vec::with_capacity(pieces.len());
        for (element, count) in pieces {
            nodes.push((self.nodes.key_of(&element).context("a node has no id")?, count));
        }
        let cold = Cold::new(from, to, nodes);
        // A unit that is repeated may need those of several trims at once.
        self.cold.retain(|known| !cold.replaces(known));
        self.cold.push(cold);
        Ok(())
    }

    fn has_few_in_memory(&self) -> bool {
        self.nodes.has_few_in_memory() && self.groups.has_few_in_memory()
    }

    fn shed(&mut self, steps: usize) {
        if self.version != 0 {
            self.cold.clear();
            self.last_unread = self.last_id;
            self.nodes.shed(steps);
            self.groups.shed(steps);
        }
    }
}
