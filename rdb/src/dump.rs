//! Encodes an object as a payload.

use crate::listpack::{self, Listpack};
use crate::writer::Writer;
use crate::{
    HashField, Limits, Object, SetForm, VERSION_FIELD_EXPIRY, ZsetForm, double, integer, intset,
    object_type, quicklist_node, stream,
};
use flagstone_wire::num::format_f64;

/// Returns the payload of `object`, which has no duplicates and, if a collection, is not empty.
///
/// The bytes are those of Valkey 8.1, where the order of its elements is not up to a hash function,
/// for a value that was built element by element; for a hash with field expiry, those of Redis 8.0.
pub fn dump<B: AsRef<[u8]>>(object: &Object<B>, limits: &Limits) -> Vec<u8> {
    match object {
        Object::String(string) => {
            let mut writer = Writer::new(object_type::STRING, limits.compression);
            writer.string(string.as_ref());
            writer.finish(limits.version())
        }
        Object::List(elements) => list(elements, limits),
        Object::Set(form, members) => set(*form, members, limits),
        Object::Zset(form, members) => zset(*form, members, limits),
        Object::Hash(fields) => match fields.iter().filter_map(|f| f.expire_at_ms).min() {
            None => hash(fields, limits),
            Some(least_expire_at_ms) => hash_with_expiry(fields, least_expire_at_ms, limits),
        },
        Object::Stream(object) => stream::dump(object, limits),
    }
}

/// Returns an object that is a single listpack or intset.
fn single(object_type: u8, encoded: &[u8], limits: &Limits) -> Vec<u8> {
    let mut writer = Writer::new(object_type, limits.compression);
    writer.string(encoded);
    writer.finish(limits.version())
}

/// Returns true if strings are few and short enough for a listpack.
fn fits_listpack<'a>(
    count: usize,
    max_count: usize,
    mut strings: impl Iterator<Item = &'a [u8]> + Clone,
    max_len: usize,
) -> bool {
    count <= max_count
        && strings.clone().all(|string| string.len() <= max_len)
        && strings.try_fold(0usize, |sum, s| sum.checked_add(s.len())).is_some_and(|sum| {
            // Every element takes up to ten bytes more than its text.
            sum + count * 20 < listpack::MAX_LEN
        })
}

/// Limits of a quicklist node: bytes and elements.
#[derive(Debug, Clone, Copy)]
pub struct NodeLimit {
    pub bytes: usize,
    pub count: usize,
}

impl NodeLimit {
    /// Maximum size of a node in bytes if it is limited by its element count.
    const SAFE_BYTES: usize = 8192;
    /// Assumed bytes of an element beside its text.
    const ELEMENT_OVERHEAD: usize = 8;

    /// Creates the limits of a setting.
    pub fn new(list_max_listpack_size: i32) -> Self {
        match usize::try_from(list_max_listpack_size) {
            Ok(count) => NodeLimit { bytes: Self::SAFE_BYTES, count: count.max(1) },
            Err(_) => {
                let level = list_max_listpack_size.unsigned_abs().min(5);
                NodeLimit { bytes: 2048 << level, count: usize::MAX }
            }
        }
    }

    fn takes(&self, node: &Listpack, element_len: usize, is_first_node: bool) -> bool {
        // A list of one node is a bare listpack, for which the overhead is not counted.
        let overhead = if is_first_node { 0 } else { Self::ELEMENT_OVERHEAD };
        node.len() + element_len + overhead <= self.bytes && node.count() < self.count
    }
}

/// A node of a list to write: packed, or an element too long for that.
enum Node<'a> {
    Packed(Listpack),
    Plain(&'a [u8]),
}

fn list<B: AsRef<[u8]>>(elements: &[B], limits: &Limits) -> Vec<u8> {
    let limit = NodeLimit::new(limits.list_max_listpack_size);
    let mut nodes: Vec<Node<'_>> = Vec::new();
    for element in elements.iter().map(AsRef::as_ref) {
        if element.len() > limit.bytes {
            nodes.push(Node::Plain(element));
            continue;
        }
        let is_first_node = nodes.len() == 1;
        match nodes.last_mut() {
            Some(Node::Packed(node)) if limit.takes(node, element.len(), is_first_node) => {
                node.push(element);
            }
            _ => {
                let mut node = Listpack::new();
                node.push(element);
                nodes.push(Node::Packed(node));
            }
        }
    }
    let mut writer = Writer::new(object_type::LIST_QUICKLIST_2, limits.compression);
    writer.len(nodes.len() as u64);
    for node in nodes {
        match node {
            Node::Packed(listpack) => {
                writer.len(quicklist_node::PACKED);
                writer.string(&listpack.finish());
            }
            Node::Plain(element) => {
                writer.len(quicklist_node::PLAIN);
                writer.string(element);
            }
        }
    }
    writer.finish(limits.version())
}

fn set<B: AsRef<[u8]>>(form: SetForm, members: &[B], limits: &Limits) -> Vec<u8> {
    let members = members.iter().map(AsRef::as_ref);
    let integers = || members.clone().map(integer::parse).collect::<Option<Vec<i64>>>();
    if form == SetForm::Intset
        && let Some(mut integers) = integers()
    {
        integers.sort_unstable();
        return single(object_type::SET_INTSET, &intset::encode(&integers), limits);
    }
    if form == SetForm::Listpack
        && !limits.old_types
        && fits_listpack(members.len(), usize::MAX, members.clone(), usize::MAX)
    {
        let mut listpack = Listpack::new();
        members.for_each(|member| listpack.push(member));
        return single(object_type::SET_LISTPACK, &listpack.finish(), limits);
    }
    let mut writer = Writer::new(object_type::SET, limits.compression);
    writer.len(members.len() as u64);
    members.for_each(|member| writer.string(member));
    writer.finish(limits.version())
}

fn zset<B: AsRef<[u8]>>(form: ZsetForm, members: &[(B, f64)], limits: &Limits) -> Vec<u8> {
    let mut members: Vec<(&[u8], f64)> =
        members.iter().map(|(member, score)| (member.as_ref(), *score)).collect();
    members.sort_unstable_by(|a, b| {
        a.1.partial_cmp(&b.1).unwrap_or(std::cmp::Ordering::Equal).then_with(|| a.0.cmp(b.0))
    });
    let names = members.iter().map(|(member, _)| *member);
    if form == ZsetForm::Listpack && fits_listpack(members.len(), usize::MAX, names, usize::MAX) {
        let mut listpack = Listpack::new();
        for (member, score) in members {
            listpack.push(member);
            match double::to_integer(score) {
                Some(score) => listpack.push_integer(score),
                None => listpack.push(format_f64(score).as_bytes()),
            }
        }
        return single(object_type::ZSET_LISTPACK, &listpack.finish(), limits);
    }
    let mut writer = Writer::new(object_type::ZSET_2, limits.compression);
    writer.len(members.len() as u64);
    for (member, score) in members.iter().rev() {
        writer.string(member);
        writer.bytes(&score.to_le_bytes());
    }
    writer.finish(limits.version())
}

fn hash_fits_listpack<B: AsRef<[u8]>>(fields: &[HashField<B>], limits: &Limits) -> bool {
    let strings = fields.iter().flat_map(|field| [field.name.as_ref(), field.value.as_ref()]);
    let (max_count, max_len) = (limits.hash_max_listpack_entries, limits.hash_max_listpack_value);
    fits_listpack(fields.len(), max_count, strings, max_len)
}

fn hash<B: AsRef<[u8]>>(fields: &[HashField<B>], limits: &Limits) -> Vec<u8> {
    if hash_fits_listpack(fields, limits) {
        let mut listpack = Listpack::new();
        for field in fields {
            listpack.push(field.name.as_ref());
            listpack.push(field.value.as_ref());
        }
        return single(object_type::HASH_LISTPACK, &listpack.finish(), limits);
    }
    let mut writer = Writer::new(object_type::HASH, limits.compression);
    writer.len(fields.len() as u64);
    for field in fields {
        writer.string(field.name.as_ref());
        writer.string(field.value.as_ref());
    }
    writer.finish(limits.version())
}

/// Returns a hash some of whose fields expire, the first of them at `least_expire_at_ms`.
fn hash_with_expiry<B: AsRef<[u8]>>(
    fields: &[HashField<B>],
    least_expire_at_ms: u64,
    limits: &Limits,
) -> Vec<u8> {
    let is_small = hash_fits_listpack(fields, limits);
    let object_type =
        if is_small { object_type::HASH_LISTPACK_EX } else { object_type::HASH_METADATA };
    let mut writer = Writer::new(object_type, limits.compression);
    writer.bytes(&least_expire_at_ms.to_le_bytes());
    if is_small {
        let mut by_expiry: Vec<&HashField<B>> = fields.iter().collect();
        by_expiry.sort_by_key(|field| field.expire_at_ms.unwrap_or(u64::MAX));
        let mut listpack = Listpack::new();
        for field in by_expiry {
            listpack.push(field.name.as_ref());
            listpack.push(field.value.as_ref());
            listpack.push_integer(field.expire_at_ms.unwrap_or(0).cast_signed());
        }
        writer.string(&listpack.finish());
    } else {
        writer.len(fields.len() as u64);
        for field in fields {
            let distance =
                field.expire_at_ms.map_or(0, |at| (at - least_expire_at_ms).saturating_add(1));
            writer.len(distance);
            writer.string(field.name.as_ref());
            writer.string(field.value.as_ref());
        }
    }
    writer.finish(VERSION_FIELD_EXPIRY)
}
