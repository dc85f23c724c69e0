//! Decodes a payload to an object.

use crate::parts::{Kind, Part, Sink, StreamHead};
use crate::reader::{Reader, Result};
use crate::walk::{kind, walk};
use crate::{
    HashField, Object, RestoreError, StreamField, StreamNode, StreamObject, VERSION_FIELD_EXPIRY,
    VERSION_FOREIGN_MAX, crc64, object_type::LAST_COMMON,
};

/// Returns the object in `payload`.
///
/// Takes memory in proportion to the payload, whatever lengths it announces: compressed strings
/// expand at most 88 times, and small elements take up to 20 times their bytes.
///
/// # Errors
///
/// [`RestoreError`] if the footer is wrong, the object is malformed or empty, has duplicates, bytes
/// behind it, or is of a type that has no representation here.
pub fn restore(payload: &[u8]) -> Result<Object> {
    restore_within(payload, false, Allowance::ANY)
}

/// Returns the object in `payload`, which may also be of a later RDB version of Valkey than the
/// known ones (`rdb-version-check relaxed`): such an object may have another meaning there.
///
/// # Errors
///
/// As [`restore`].
pub fn restore_newer(payload: &[u8]) -> Result<Object> {
    restore_within(payload, true, Allowance::ANY)
}

/// Bytes that each part of an object (an element, a name, a value) takes beside its own.
pub const PART_OVERHEAD: usize = 24;

/// Bytes of memory that the object in a payload may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes beside those of the payload.
    pub more: usize,
    /// Length of a string that may be larger than that.
    pub string: usize,
}

impl Allowance {
    /// Allows any number of bytes.
    pub const ANY: Self = Self { more: usize::MAX, string: usize::MAX };
}

/// Returns the object in `payload`, as [`restore`] does or, with `newer`, as [`restore_newer`], if it
/// takes no more than is allowed.
///
/// # Errors
///
/// As [`restore`]; [`RestoreError::TooLarge`].
pub fn restore_within(payload: &[u8], newer: bool, allowance: Allowance) -> Result<Object> {
    restore_object(payload, newer, allowance, Ok)
}

/// Returns the object in `payload`, as [`restore_within`] does, a stream without its nodes: `pack` takes each
/// of them, once it is decoded, and returns the bytes that it takes then.
///
/// # Errors
///
/// As [`restore_within`].
pub fn restore_packing(
    payload: &[u8],
    newer: bool,
    allowance: Allowance,
    mut pack: impl FnMut(StreamNode) -> usize,
) -> Result<Object> {
    restore_object(payload, newer, allowance, |node| Err(pack(node)))
}

/// Restores an object. `keep` returns a node of a stream, or the bytes that it takes elsewhere.
fn restore_object<F>(payload: &[u8], newer: bool, allowance: Allowance, keep: F) -> Result<Object>
where
    F: FnMut(StreamNode) -> std::result::Result<StreamNode, usize>,
{
    let is_known =
        |version| version <= VERSION_FIELD_EXPIRY || (newer && version > VERSION_FOREIGN_MAX);
    let (object, version) = object_bytes(payload, is_known)?;
    let object_type = *object.first().ok_or(RestoreError::BadFormat)?;
    if version > VERSION_FOREIGN_MAX && object_type > LAST_COMMON {
        return Err(RestoreError::BadFormat);
    }
    let most = payload.len().saturating_add(allowance.more);
    let most = if kind(object_type)? == Kind::String { most.max(allowance.string) } else { most };
    let mut reader = Reader::within(&object[1..], most as u64);
    let collector = Collector { left: most, ..Collector::new(object_type)? };
    let mut packing = Packing { collector, keep };
    walk::<RestoreError, _, _>(object_type, &mut reader, &mut packing)?;
    let object = packing.collector.finish();
    if !reader.is_empty() || object.is_empty() {
        return Err(RestoreError::BadFormat);
    }
    if object.is_distinct() { Ok(object) } else { Err(RestoreError::BadFormat) }
}

/// Assembles an object whose nodes may be kept elsewhere.
struct Packing<F> {
    collector: Collector,
    keep: F,
}

impl<F> Sink for Packing<F>
where
    F: FnMut(StreamNode) -> std::result::Result<StreamNode, usize>,
{
    type Error = RestoreError;

    fn part(&mut self, part: Part<'_>) -> Result<()> {
        let part = match part {
            Part::Node(node) => match (self.keep)(node) {
                Ok(node) => Part::Node(node),
                Err(bytes) => return self.collector.charge(bytes),
            },
            other => other,
        };
        self.collector.part(part)
    }
}

/// Checks the footer of a payload; returns the rest and the version.
pub(crate) fn object_bytes(payload: &[u8], is_known: impl Fn(u16) -> bool) -> Result<(&[u8], u16)> {
    let wrong = RestoreError::BadChecksumOrVersion;
    let (covered, checksum) = payload.split_last_chunk::<8>().ok_or(wrong)?;
    let (object, version) = covered.split_last_chunk::<2>().ok_or(wrong)?;
    let version = u16::from_le_bytes(*version);
    let right = is_known(version) && u64::from_le_bytes(*checksum) == crc64::checksum(covered);
    if right { Ok((object, version)) } else { Err(wrong) }
}

impl Object {
    /// Returns true if it is a collection without members, which has no payload.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Object::String(_) | Object::Stream(_) => false,
            Object::List(elements) => elements.is_empty(),
            Object::Set(_, members) => members.is_empty(),
            Object::Zset(_, members) => members.is_empty(),
            Object::Hash(fields) => fields.is_empty(),
        }
    }

    /// Returns true if no member occurs twice.
    pub(crate) fn is_distinct(&self) -> bool {
        match self {
            Object::String(_) | Object::List(_) | Object::Stream(_) => true,
            Object::Set(_, members) => distinct(members.iter().map(Vec::as_slice)),
            Object::Zset(_, members) => {
                distinct(members.iter().map(|(member, _)| member.as_slice()))
            }
            Object::Hash(fields) => distinct(fields.iter().map(|field| field.name.as_slice())),
        }
    }
}

/// Assembles an object from its parts.
pub(crate) struct Collector {
    object: Object,
    /// Bytes that it may still take.
    left: usize,
}

impl Collector {
    pub(crate) fn new(object_type: u8) -> Result<Self> {
        let object = match kind(object_type)? {
            Kind::String => Object::String(Vec::new()),
            Kind::List => Object::List(Vec::new()),
            Kind::Set(form) => Object::Set(form, Vec::new()),
            Kind::Zset(form) => Object::Zset(form, Vec::new()),
            Kind::Hash => Object::Hash(Vec::new()),
            Kind::Stream => Object::Stream(Box::new(StreamObject {
                nodes: Vec::new(),
                last_id: (0, 0),
                first_id: (0, 0),
                max_deleted_id: (0, 0),
                entries_added: 0,
                groups: Vec::new(),
            })),
        };
        Ok(Collector { object, left: usize::MAX })
    }

    pub(crate) fn finish(self) -> Object {
        self.object
    }

    /// Takes bytes of those that the object may take.
    fn charge(&mut self, bytes: usize) -> Result<()> {
        self.left = self.left.checked_sub(bytes).ok_or(RestoreError::TooLarge)?;
        Ok(())
    }
}

impl Sink for Collector {
    type Error = RestoreError;

    fn part(&mut self, part: Part<'_>) -> Result<()> {
        self.charge(memory(&part))?;
        match (&mut self.object, part) {
            (Object::String(string), Part::Text(text)) => string.extend_from_slice(text),
            (Object::List(elements), Part::Element(element)) => elements.push(element.into_owned()),
            (Object::Set(_, members), Part::Element(member)) => members.push(member.into_owned()),
            (Object::Zset(_, members), Part::Scored(member, score)) => {
                members.push((member.into_owned(), score));
            }
            (Object::Hash(fields), Part::Field(name, value, expire_at_ms)) => {
                let (name, value) = (name.into_owned(), value.into_owned());
                fields.push(HashField { name, value, expire_at_ms });
            }
            (Object::Stream(stream), Part::Node(node)) => stream.nodes.push(node),
            (Object::Stream(stream), Part::Head(head)) => {
                let StreamHead { last_id, first_id, max_deleted_id, entries_added } = head;
                (stream.last_id, stream.first_id) = (last_id, first_id);
                (stream.max_deleted_id, stream.entries_added) = (max_deleted_id, entries_added);
            }
            (Object::Stream(stream), Part::Group(group)) => stream.groups.push(group),
            _ => return Err(RestoreError::BadFormat),
        }
        Ok(())
    }
}

/// Returns the approximate bytes of memory that a part takes.
fn memory(part: &Part<'_>) -> usize {
    let text = |len: usize| PART_OVERHEAD + len;
    match part {
        Part::Text(text) => text.len(),
        Part::Element(element) => text(element.len()),
        Part::Scored(member, _) => text(member.len()) + size_of::<f64>(),
        Part::Field(name, value, expiry) => {
            text(name.len()) + text(value.len()) + size_of_val(expiry)
        }
        Part::Node(node) => {
            let names: usize = node.names.iter().map(|name| text(name.len())).sum();
            let field = |(name, value): &StreamField| {
                text(name.as_ref().map_or(0, Vec::len)) + text(value.len())
            };
            let entries = node
                .entries
                .iter()
                .map(|entry| size_of_val(entry) + entry.1.iter().map(field).sum::<usize>());
            names + entries.sum::<usize>()
        }
        Part::Head(_) => 0,
        Part::Group(group) => {
            let consumers = group.consumers.iter();
            let consumers = consumers.map(|one| size_of_val(one) + one.name.len());
            text(group.name.len()) + size_of_val(&group.pending[..]) + consumers.sum::<usize>()
        }
    }
}

/// Returns true if no two `items` are equal.
fn distinct<'a>(items: impl ExactSizeIterator<Item = &'a [u8]>) -> bool {
    let mut seen = std::collections::HashSet::with_capacity(items.len());
    items.into_iter().all(|item| seen.insert(item))
}
