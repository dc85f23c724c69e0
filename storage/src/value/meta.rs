//! Meta rows of keys, and the values of hash fields in element rows: their bytes.
//!
//! ```text
//! meta row    type u8 | flags u8 | [expire_at_ms u64] | payload
//!   string    the bytes
//!   big string   version u64 | len u64                              (chunks: E rows)
//!   packed hash  count | (name, value, [expire_at_ms u64])… | [rewrites]  (lengths are varints)
//!   big hash     version u64 | len u64 | min_expire_at_ms u64 | [bytes u64]   (fields: E rows)
//!   packed set   count | name… | [rewrites]
//!   big set      version u64 | len u64 | [bytes u64]                (members: E rows)
//! packed list  count | element…
//! big list     version u64 | len u64 | first u64 | last u64 | listpack u64  (nodes: E rows)
//!   packed zset  count | (score f64, name)… | [rewrites]             (in order)
//!   big zset     version u64 | len u64 | low f64 | high f64 | [bytes u64]   (members, order: E rows)
//!   stream       last_id | max_deleted_id | entries_added u64 | count | (id, node)… | groups
//!   big stream   version u64 | len u64 | nodes u64 | low | first_id | last_id | max_deleted_id |
//!                entries_added u64 | groups | [bytes u64]        (nodes, groups: E rows)
//! field       flags u8 | [expire_at_ms u64] | [name] | value
//! ```

use super::collection::Collection;
use super::size::{UNKNOWN, row_units};
use super::{
    BigStr, Entry, Field, Hash, JournaledState, List, Set, SetEncoding, Str, Stream, Value, Zset,
};
use crate::encoding::{get_bytes, get_varint, put_bytes, put_varint};
use thiserror::Error;

pub(crate) const TYPE_STRING: u8 = 1;
pub(crate) const TYPE_HASH: u8 = 2;
pub(crate) const TYPE_SET: u8 = 3;
pub(crate) const TYPE_LIST: u8 = 4;
pub(crate) const TYPE_ZSET: u8 = 5;
pub(crate) const TYPE_STREAM: u8 = 6;

/// The key expires: the time follows the flags.
pub(crate) const EXPIRES: u8 = 1;
/// The value is in element rows.
pub(crate) const BIG: u8 = 2;
/// A hash whose fields have, or had, expiries.
pub(crate) const TIMED: u8 = 4;
/// OBJECT ENCODING answers "hashtable" for a hash or a set, "quicklist" for a list, "skiplist" for a
/// sorted set, packed or not.
pub(crate) const TABLE: u8 = 8;
/// OBJECT ENCODING answers "intset" for a set.
pub(crate) const INTSET: u8 = 16;

/// The field expires: the time follows the flags.
const FIELD_EXPIRES: u8 = 1;
/// The row's key holds only a digest of the name; the name follows.
const FIELD_NAMED: u8 = 2;

/// Error of a row that is not in the form of its type.
#[derive(Debug, Error)]
#[error("damaged row: {what}")]
pub struct MetaError {
    what: &'static str,
}

const fn damaged(what: &'static str) -> MetaError {
    MetaError { what }
}

/// Writes the meta row of a live entry.
pub fn encode_meta(out: &mut Vec<u8>, entry: &Entry) {
    let collection = entry.value.collection();
    let (kind, mut flags) = collection.map_or((TYPE_STRING, 0), Collection::kind);
    if entry.expire_at_ms != 0 {
        flags |= EXPIRES;
    }
    if entry.value.version() != 0 {
        flags |= BIG;
    }
    out.extend_from_slice(&[kind, flags]);
    if entry.expire_at_ms != 0 {
        out.extend_from_slice(&entry.expire_at_ms.to_be_bytes());
    }
    match &entry.value {
        Value::Str(Str::Int(n)) => out.extend_from_slice(n.to_string().as_bytes()),
        Value::Str(Str::Emb(bytes)) => out.extend_from_slice(bytes),
        Value::Str(Str::Raw(bytes)) => out.extend_from_slice(bytes),
        Value::Str(Str::Big(big)) => {
            out.extend_from_slice(&big.version.to_be_bytes());
            out.extend_from_slice(&big.len.to_be_bytes());
        }
        _ => {
            if let Some(collection) = collection {
                collection.encode(out);
            }
        }
    }
}

/// Appends the payload of a hash.
pub(crate) fn encode_hash(out: &mut Vec<u8>, hash: &Hash) {
    if hash.is_packed() {
        return pack_hash(out, hash);
    }
    out.extend_from_slice(&Collection::version(hash).to_be_bytes());
    out.extend_from_slice(&hash.len().to_be_bytes());
    out.extend_from_slice(&hash.min_expire_at_ms().to_be_bytes());
    out.extend_from_slice(&hash.whole_bytes().to_be_bytes());
}

fn pack_hash(out: &mut Vec<u8>, hash: &Hash) {
    put_varint(out, hash.len());
    for (name, field) in hash.iter() {
        put_bytes(out, name);
        put_bytes(out, &field.value);
        if hash.is_timed() {
            out.extend_from_slice(&field.expire_at_ms.to_be_bytes());
        }
    }
    put_rewrites(out, hash.rewrites());
}

/// Appends the number of rewrites of a packed collection, if there were any.
fn put_rewrites(out: &mut Vec<u8>, rewrites: u32) {
    if rewrites != 0 {
        put_varint(out, u64::from(rewrites));
    }
}

/// Reads the number of rewrites behind the elements of a packed collection. There is none if there
/// were no rewrites, and in rows of earlier versions.
fn take_rewrites(rest: &mut &[u8]) -> Result<u32, MetaError> {
    if rest.is_empty() {
        return Ok(0);
    }
    let rewrites = get_varint(rest).ok_or(damaged("no rewrites"))?;
    Ok(u32::try_from(rewrites).unwrap_or(u32::MAX))
}

/// Decodes a meta row, without the elements in element rows.
pub fn decode_entry(key: &[u8], hash: u64, row: &[u8]) -> Result<Entry, MetaError> {
    let mut rest = row;
    let [kind, flags] = *take::<2>(&mut rest).ok_or(damaged("no type"))?;
    let mut entry = Entry::absent(key, hash);
    if flags & EXPIRES != 0 {
        entry.expire_at_ms = take_u64(&mut rest).ok_or(damaged("no expiry"))?;
    }
    entry.value = match (kind, flags & BIG != 0) {
        (TYPE_STRING, false) => Value::Str(Str::new(rest)),
        (TYPE_STRING, true) => {
            let version = take_u64(&mut rest).ok_or(damaged("no version"))?;
            let len = take_u64(&mut rest).ok_or(damaged("no length"))?;
            Value::Str(Str::Big(Box::new(BigStr::stored(version, len))))
        }
        (TYPE_HASH, big) => {
            let timed = flags & TIMED != 0;
            let mut hash = if big { big_hash(rest, timed)? } else { unpack_hash(rest, timed)? };
            if flags & TABLE != 0 {
                hash.make_table();
            }
            Value::Hash(Box::new(hash))
        }
        (TYPE_SET, big) => {
            let encoding = match (flags & INTSET != 0, flags & TABLE != 0) {
                (true, _) => SetEncoding::Intset,
                (false, false) => SetEncoding::Listpack,
                (false, true) => SetEncoding::Table,
            };
            Value::Set(Box::new(if big {
                big_set(rest, encoding)?
            } else {
                unpack_set(rest, encoding)?
            }))
        }
        (TYPE_LIST, big) => {
            let mut list = if big { big_list(rest)? } else { unpack_list(rest)? };
            list.set_quicklist(flags & TABLE != 0);
            Value::List(Box::new(list))
        }
        (TYPE_ZSET, big) => {
            let skiplist = flags & TABLE != 0;
            let zset = if big { big_zset(rest, skiplist)? } else { unpack_zset(rest, skiplist)? };
            Value::Zset(Box::new(zset))
        }
        (TYPE_STREAM, big) => {
            let stream = Stream::decode_meta(rest, big).ok_or(damaged("a stream"))?;
            Value::Stream(Box::new(stream))
        }
        _ => return Err(damaged("unknown type")),
    };
    entry.stored = entry.state().of_size(row_units(key.len(), row));
    Ok(entry)
}

/// Decodes the state that a meta row holds. That of a plain string, which most are, needs nothing of
/// the value.
pub fn decode_state(key: &[u8], row: &[u8]) -> Result<JournaledState, MetaError> {
    let mut rest = row;
    match take::<2>(&mut rest).ok_or(damaged("no type"))? {
        [TYPE_STRING, flags] if flags & BIG == 0 => {
            let expires = flags & EXPIRES != 0;
            let expire_at_ms =
                if expires { take_u64(&mut rest).ok_or(damaged("no expiry"))? } else { 0 };
            Ok(JournaledState::new(expire_at_ms, 0, 0).of_size(row_units(key.len(), row)))
        }
        _ => decode_entry(key, 0, row).map(|entry| entry.stored),
    }
}

fn big_hash(mut rest: &[u8], timed: bool) -> Result<Hash, MetaError> {
    let version = take_u64(&mut rest).ok_or(damaged("no version"))?;
    let len = take_u64(&mut rest).ok_or(damaged("no length"))?;
    let min_expire_at_ms = take_u64(&mut rest).ok_or(damaged("no field expiry"))?;
    let bytes = take_whole(&mut rest, len);
    Ok(Hash::from_meta(version, (len, bytes), timed, min_expire_at_ms))
}

fn unpack_hash(mut rest: &[u8], timed: bool) -> Result<Hash, MetaError> {
    let mut hash = Hash::new();
    if timed {
        hash.set_timed();
    }
    let count = get_varint(&mut rest).ok_or(damaged("no count"))?;
    for _ in 0..count {
        let name = get_bytes(&mut rest).ok_or(damaged("no field name"))?;
        let value = get_bytes(&mut rest).ok_or(damaged("no field value"))?;
        let expire_at_ms =
            if timed { take_u64(&mut rest).ok_or(damaged("no field expiry"))? } else { 0 };
        hash.set(name, value, expire_at_ms);
    }
    hash.set_rewrites(take_rewrites(&mut rest)?);
    Ok(hash)
}

/// Appends the payload of a set.
pub(crate) fn encode_set(out: &mut Vec<u8>, set: &Set) {
    let version = Collection::version(set);
    if version == 0 {
        put_varint(out, set.len());
        set.iter().for_each(|name| put_bytes(out, name));
        put_rewrites(out, set.rewrites());
        return;
    }
    for n in [version, set.len(), set.whole_bytes()] {
        out.extend_from_slice(&n.to_be_bytes());
    }
}

fn big_set(mut rest: &[u8], encoding: SetEncoding) -> Result<Set, MetaError> {
    let version = take_u64(&mut rest).ok_or(damaged("no version"))?;
    let len = take_u64(&mut rest).ok_or(damaged("no length"))?;
    let bytes = take_whole(&mut rest, len);
    Ok(Set::from_meta(version, (len, bytes), encoding))
}

fn unpack_set(mut rest: &[u8], encoding: SetEncoding) -> Result<Set, MetaError> {
    let mut set = Set::new(encoding);
    for _ in 0..get_varint(&mut rest).ok_or(damaged("no count"))? {
        set.add(get_bytes(&mut rest).ok_or(damaged("no member"))?);
    }
    set.set_rewrites(take_rewrites(&mut rest)?);
    Ok(set)
}

/// Appends the payload of a list.
pub(crate) fn encode_list(out: &mut Vec<u8>, list: &List) {
    let version = Collection::version(list);
    if version == 0 {
        put_varint(out, list.len());
        list.loaded().for_each(|element| put_bytes(out, element));
        return;
    }
    let (first, last) = list.bounds();
    for n in [version, list.len(), first, last, list.listpack_bytes()] {
        out.extend_from_slice(&n.to_be_bytes());
    }
}

fn big_list(mut rest: &[u8]) -> Result<List, MetaError> {
    let version = take_u64(&mut rest).ok_or(damaged("no version"))?;
    let len = take_u64(&mut rest).ok_or(damaged("no length"))?;
    let first = take_u64(&mut rest).ok_or(damaged("no first node"))?;
    let last = take_u64(&mut rest).filter(|&last| last >= first).ok_or(damaged("no last node"))?;
    let bytes = take_u64(&mut rest).filter(|&n| n >= 7).ok_or(damaged("no listpack bytes"))?;
    Ok(List::from_meta(version, len, (first, last), bytes))
}

fn unpack_list(mut rest: &[u8]) -> Result<List, MetaError> {
    let mut list = List::new();
    for _ in 0..get_varint(&mut rest).ok_or(damaged("no count"))? {
        list.push(get_bytes(&mut rest).ok_or(damaged("no element"))?, false);
    }
    Ok(list)
}

/// Appends the payload of a sorted set.
pub(crate) fn encode_zset(out: &mut Vec<u8>, zset: &Zset) {
    let version = Collection::version(zset);
    if version == 0 {
        put_varint(out, zset.len());
        for (name, score) in zset.iter() {
            out.extend_from_slice(&score.to_bits().to_be_bytes());
            put_bytes(out, name);
        }
        put_rewrites(out, zset.rewrites());
        return;
    }
    out.extend_from_slice(&version.to_be_bytes());
    out.extend_from_slice(&zset.len().to_be_bytes());
    let (low, high) = zset.bounds();
    out.extend_from_slice(&low.to_bits().to_be_bytes());
    out.extend_from_slice(&high.to_bits().to_be_bytes());
    out.extend_from_slice(&zset.whole_bytes().to_be_bytes());
}

fn big_zset(mut rest: &[u8], skiplist: bool) -> Result<Zset, MetaError> {
    let version = take_u64(&mut rest).ok_or(damaged("no version"))?;
    let len = take_u64(&mut rest).ok_or(damaged("no length"))?;
    let low = take_score(&mut rest).ok_or(damaged("no least score"))?;
    let high = take_score(&mut rest).ok_or(damaged("no greatest score"))?;
    let bytes = take_whole(&mut rest, len);
    Ok(Zset::from_meta(version, (len, bytes), (low, high), skiplist))
}

fn unpack_zset(mut rest: &[u8], skiplist: bool) -> Result<Zset, MetaError> {
    let mut zset = Zset::new(skiplist);
    for _ in 0..get_varint(&mut rest).ok_or(damaged("no count"))? {
        let score = take_score(&mut rest).ok_or(damaged("no score"))?;
        zset.set(get_bytes(&mut rest).ok_or(damaged("no member"))?, score);
    }
    zset.set_rewrites(take_rewrites(&mut rest)?);
    Ok(zset)
}

/// Reads a score; `None` if it is not a number.
fn take_score(input: &mut &[u8]) -> Option<f64> {
    take_u64(input).map(f64::from_bits).filter(|score| !score.is_nan())
}

/// Appends the value of a hash field's element row, with `name` only if the row's key has a digest.
pub fn encode_field(out: &mut Vec<u8>, field: &Field, name: Option<&[u8]>) {
    let expires = if field.expire_at_ms != 0 { FIELD_EXPIRES } else { 0 };
    out.push(expires | if name.is_some() { FIELD_NAMED } else { 0 });
    if field.expire_at_ms != 0 {
        out.extend_from_slice(&field.expire_at_ms.to_be_bytes());
    }
    if let Some(name) = name {
        put_bytes(out, name);
    }
    out.extend_from_slice(&field.value);
}

/// The parts of a field's element row.
#[derive(Debug)]
pub(crate) struct FieldParts<'a> {
    /// The name, if the row has it.
    pub(crate) name: Option<&'a [u8]>,
    /// 0: the field never expires.
    pub(crate) expire_at_ms: u64,
    pub(crate) value: &'a [u8],
}

/// Decodes a field's element row: the name, if the row has it, and the field.
pub fn decode_field(row: &[u8]) -> Result<(Option<&[u8]>, Field), MetaError> {
    let FieldParts { name, expire_at_ms, value } = field_parts(row)?;
    Ok((name, Field { value: value.into(), expire_at_ms }))
}

/// Returns a field's element row without the value at its end.
pub(crate) fn field_head(row: &[u8]) -> &[u8] {
    let value = field_parts(row).map_or(0, |parts| parts.value.len());
    &row[..row.len() - value]
}

/// Returns the parts of a field's element row.
pub(crate) fn field_parts(row: &[u8]) -> Result<FieldParts<'_>, MetaError> {
    let mut rest = row;
    let [flags] = *take::<1>(&mut rest).ok_or(damaged("empty field"))?;
    let expire_at_ms = if flags & FIELD_EXPIRES != 0 {
        take_u64(&mut rest).ok_or(damaged("no field expiry"))?
    } else {
        0
    };
    let name = if flags & FIELD_NAMED != 0 {
        Some(get_bytes(&mut rest).ok_or(damaged("no field name"))?)
    } else {
        None
    };
    Ok(FieldParts { name, expire_at_ms, value: rest })
}

fn take<'a, const N: usize>(input: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, rest) = input.split_first_chunk::<N>()?;
    *input = rest;
    Some(head)
}

/// Reads the bytes that the elements of a big collection would take in a packed row; rows of earlier
/// versions do not have them.
fn take_whole(input: &mut &[u8], len: u64) -> u64 {
    take_u64(input).unwrap_or(len.saturating_mul(UNKNOWN))
}

fn take_u64(input: &mut &[u8]) -> Option<u64> {
    take::<8>(input).map(|b| u64::from_be_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roundtrip(value: Value, expire_at_ms: u64) -> Entry {
        let mut entry = Entry::absent(b"k", 1);
        entry.value = value;
        entry.expire_at_ms = expire_at_ms;
        let mut row = Vec::new();
        encode_meta(&mut row, &entry);
        let back = decode_entry(b"k", 1, &row).unwrap();
        assert_eq!(decode_state(b"k", &row).unwrap(), back.stored);
        back
    }

    #[test]
    fn strings_roundtrip() {
        let back = roundtrip(Value::Str(Str::new(b"12345")), 77);
        assert!(matches!(back.value, Value::Str(Str::Int(12345))));
        assert_eq!(back.expire_at_ms, 77);
        let back = roundtrip(Value::Str(Str::new(&[b'x'; 100])), 0);
        assert!(matches!(back.value, Value::Str(Str::Raw(v)) if v == [b'x'; 100]));
    }

    #[test]
    fn the_state_of_a_big_value_has_its_version() {
        let big = BigStr { version: 7, len: 1 << 20, ..BigStr::default() };
        let back = roundtrip(Value::Str(Str::Big(Box::new(big))), 5);
        assert_eq!((back.stored.version(), back.stored.expire_at_ms), (7, 5));
    }

    #[test]
    fn packed_hashes_roundtrip() {
        let mut hash: Hash = [(&b"a"[..], &b"1"[..]), (b"b", b"2")].into_iter().collect();
        hash.set(b"c", b"3", 99);
        let back = roundtrip(Value::Hash(Box::new(hash)), 0);
        let Value::Hash(hash) = back.value else { panic!("no hash") };
        assert_eq!((hash.len(), hash.min_expire_at_ms()), (3, 99));
        assert_eq!(&*hash.get(b"b", 0).unwrap().unwrap().value, b"2");
    }

    #[test]
    fn damaged_rows_are_refused() {
        for row in [&b""[..], &[9, 0], &[TYPE_HASH, 0, 2, 1], &[TYPE_STRING, EXPIRES, 0]] {
            assert!(decode_entry(b"k", 1, row).is_err() && decode_state(b"k", row).is_err());
        }
    }

    #[test]
    fn fields_roundtrip() {
        let field = Field { value: b"v"[..].into(), expire_at_ms: 5 };
        let mut row = Vec::new();
        encode_field(&mut row, &field, Some(b"name"));
        assert_eq!(decode_field(&row).unwrap(), (Some(&b"name"[..]), field));
    }
}
