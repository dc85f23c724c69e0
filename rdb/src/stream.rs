//! Streams: nodes of entries in listpacks, then the stream's properties, then its groups.
//!
//! A node is a pair of strings: the id of its first entry in 16 bytes, big-endian, and a listpack.
//! The listpack begins with the numbers of entries, of deleted entries in it, and of the names that
//! entries may share, then these names and 0. An entry is its flags, the differences of its id to
//! the node's, the number of its fields (unless it shares the names), names and values (or only
//! values), and the number of all these elements. Format: `rdb.c` and `t_stream.c` of Valkey 8.1.1.

use crate::input::Input;
use crate::listpack::{self, Element, Listpack, ListpackIter, Packed};
use crate::parts::{Part, Sink, StreamHead};
use crate::reader::Result;
use crate::writer::Writer;
use crate::{
    EntryId, Limits, RestoreError, StreamEntry, StreamNode, StreamObject, object_type,
    stream_groups,
};

/// The flags of an entry.
const DELETED: i64 = 1;
const SAME_FIELDS: i64 = 2;

/// Returns the payload of a stream.
pub(crate) fn dump<B: AsRef<[u8]>>(stream: &StreamObject<B>, limits: &Limits) -> Vec<u8> {
    let object_type = match limits.old_types {
        true => object_type::STREAM_LISTPACKS_2,
        false => object_type::STREAM_LISTPACKS_3,
    };
    let mut writer = Writer::new(object_type, limits.compression);
    writer.len(stream.nodes.len() as u64);
    let mut len = 0;
    for node in &stream.nodes {
        len += node.entries.iter().filter(|(.., is_deleted)| !is_deleted).count() as u64;
        writer.string(&[node.first.0.to_be_bytes(), node.first.1.to_be_bytes()].concat());
        writer.string(&pack(node));
    }
    writer.len(len);
    for (ms, seq) in [stream.last_id, stream.first_id, stream.max_deleted_id] {
        writer.len(ms);
        writer.len(seq);
    }
    writer.len(stream.entries_added);
    stream_groups::write(&mut writer, &stream.groups, !limits.old_types);
    writer.finish(limits.version())
}

/// Returns the listpack of a node.
fn pack<B: AsRef<[u8]>>(node: &StreamNode<B>) -> Vec<u8> {
    let mut listpack = Listpack::new();
    let deleted = node.entries.iter().filter(|(.., is_deleted)| *is_deleted).count();
    listpack.push_integer((node.entries.len() - deleted) as i64);
    listpack.push_integer(deleted as i64);
    listpack.push_integer(node.names.len() as i64);
    node.names.iter().for_each(|name| listpack.push(name.as_ref()));
    listpack.push_integer(0);
    for ((ms, seq), fields, is_deleted) in &node.entries {
        let shares = fields.len() == node.names.len()
            && fields.iter().zip(&node.names).all(|((name, _), shared)| {
                name.as_ref().is_none_or(|name| name.as_ref() == shared.as_ref())
            });
        let deleted = if *is_deleted { DELETED } else { 0 };
        listpack.push_integer(deleted | if shares { SAME_FIELDS } else { 0 });
        listpack.push_integer(ms.wrapping_sub(node.first.0).cast_signed());
        listpack.push_integer(seq.wrapping_sub(node.first.1).cast_signed());
        if !shares {
            listpack.push_integer(fields.len() as i64);
        }
        for ((name, value), at) in fields.iter().zip(0..) {
            if let Some(name) = name.as_ref().or(node.names.get(at)).filter(|_| !shares) {
                listpack.push(name.as_ref());
            }
            listpack.push(value.as_ref());
        }
        let parts = if shares { fields.len() + 3 } else { 2 * fields.len() + 4 };
        listpack.push_integer(parts as i64);
    }
    listpack.finish()
}

/// Passes the parts of a stream of this type to `sink`.
pub(crate) fn walk<E, I, S>(
    object_type: u8,
    input: &mut I,
    sink: &mut S,
) -> std::result::Result<(), E>
where
    I: Input,
    S: Sink,
    E: From<I::Error> + From<S::Error> + From<RestoreError>,
{
    let mut order = Order::default();
    for _ in 0..input.len()? {
        let first = node_id(&input.string()?)?;
        let most = input.most();
        let node = unpack(first, &input.string()?, most)?;
        order.add(&node)?;
        sink.part(Part::Node(node))?;
    }
    let len = input.len()?;
    let last_id = (input.len()?, input.len()?);
    let first_id = order.first_id.unwrap_or((0, 0));
    let mut head = StreamHead { last_id, first_id, max_deleted_id: (0, 0), entries_added: len };
    if object_type != object_type::STREAM_LISTPACKS {
        // Skips the first id, which follows from the entries.
        input.len()?;
        input.len()?;
        head.max_deleted_id = (input.len()?, input.len()?);
        head.entries_added = input.len()?;
    }
    if order.count != len || order.last_id.is_some_and(|last| last > last_id) {
        return Err(RestoreError::BadFormat.into());
    }
    sink.part(Part::Head(head))?;
    stream_groups::walk(object_type, input, sink)
}

fn node_id(key: &[u8]) -> Result<EntryId> {
    let (ms, seq) = key.split_first_chunk::<8>().ok_or(RestoreError::BadFormat)?;
    let seq = seq.try_into().map_err(|_| RestoreError::BadFormat)?;
    Ok((u64::from_be_bytes(*ms), u64::from_be_bytes(seq)))
}

/// Checks that nodes and entries are in order.
#[derive(Default)]
struct Order {
    /// Id of the last node.
    node: Option<EntryId>,
    /// Least id of the entries that are not deleted.
    first_id: Option<EntryId>,
    last_id: Option<EntryId>,
    count: u64,
}

impl Order {
    fn add(&mut self, node: &StreamNode) -> Result<()> {
        let first = Some(node.first);
        if self.node.replace(node.first) >= first || self.last_id >= first {
            return Err(RestoreError::BadFormat);
        }
        for (id, ..) in node.entries.iter().filter(|(.., is_deleted)| !is_deleted) {
            if self.last_id.replace(*id) >= Some(*id) {
                return Err(RestoreError::BadFormat);
            }
            self.first_id = self.first_id.or(Some(*id));
            self.count += 1;
        }
        Ok(())
    }
}

/// Iterator over the elements of a listpack.
struct Elements<'a>(std::vec::IntoIter<Element<'a>>);

impl Elements<'_> {
    fn integer(&mut self) -> Result<i64> {
        match self.0.next() {
            Some(Element::Integer(integer)) => Ok(integer),
            _ => Err(RestoreError::BadFormat),
        }
    }

    fn text(&mut self) -> Result<Vec<u8>> {
        self.0.next().map(Element::into_bytes).ok_or(RestoreError::BadFormat)
    }

    /// Reads a number of elements that must still follow.
    fn count(&mut self) -> Result<usize> {
        let count = usize::try_from(self.integer()?).ok();
        count.filter(|count| *count <= self.0.len()).ok_or(RestoreError::BadFormat)
    }
}

/// Memory in bytes that an element of a node takes while the node is decoded.
const ELEMENT_MEMORY: u64 = 96;

/// Checks that the elements of a listpack take at most `most` bytes when they are decoded.
fn admit_elements(listpack: &[u8], most: u64) -> Result<()> {
    // An element has two bytes.
    if (listpack.len() as u64).saturating_mul(ELEMENT_MEMORY / 2) <= most {
        return Ok(());
    }
    let mut elements = ListpackIter::new(listpack)?;
    let mut left = most / ELEMENT_MEMORY;
    while elements.element()?.is_some() {
        left = left.checked_sub(1).ok_or(RestoreError::TooLarge)?;
    }
    Ok(())
}

/// Decodes the node of a listpack, if that takes at most `most` bytes.
fn unpack(first: EntryId, listpack: &[u8], most: u64) -> Result<StreamNode> {
    admit_elements(listpack, most)?;
    let mut elements = Elements(listpack::elements(listpack)?.into_iter());
    let (count, deleted) = (elements.count()?, elements.count()?);
    let names = elements.count()?;
    let names = (0..names).map(|_| elements.text()).collect::<Result<Vec<_>>>()?;
    if elements.integer()? != 0 {
        return Err(RestoreError::BadFormat);
    }
    let mut entries = Vec::with_capacity(count.min(elements.0.len()));
    while !elements.0.as_slice().is_empty() {
        entries.push(unpack_entry(first, names.len(), &mut elements)?);
    }
    let found = entries.iter().filter(|(.., is_deleted)| *is_deleted).count();
    let is_sound = found == deleted && entries.len() - found == count && !entries.is_empty();
    if is_sound { Ok(StreamNode { first, names, entries }) } else { Err(RestoreError::BadFormat) }
}

fn unpack_entry(first: EntryId, shared: usize, elements: &mut Elements<'_>) -> Result<StreamEntry> {
    let flags = elements.integer()?;
    let ms = first.0.wrapping_add(elements.integer()?.cast_unsigned());
    let seq = first.1.wrapping_add(elements.integer()?.cast_unsigned());
    let shares = flags & SAME_FIELDS != 0;
    let count = if shares { shared } else { elements.count()? };
    let mut fields = Vec::with_capacity(count.min(elements.0.len()));
    for _ in 0..count {
        // Shared names are not copied for each entry: a payload could have any number of entries.
        let name = if shares { None } else { Some(elements.text()?) };
        fields.push((name, elements.text()?));
    }
    let parts = if shares { count + 3 } else { 2 * count + 4 };
    let is_sound = elements.integer()? == parts as i64 && (ms, seq) >= first;
    if is_sound {
        Ok(((ms, seq), fields, flags & DELETED != 0))
    } else {
        Err(RestoreError::BadFormat)
    }
}
