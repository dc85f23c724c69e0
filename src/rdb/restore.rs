//! From a payload to an object.

use super::listpack::{self, Element};
use super::reader::{Reader, Result};
use super::{
    FIELD_EXPIRY_MAX_MS, HashField, Object, RestoreError, SetForm, VERSION_FIELD_EXPIRY,
    VERSION_FOREIGN_MAX, ZsetForm, crc64, distinct, double, intset, object_type, quicklist_node,
    stream, ziplist, zipmap,
};

/// The object in `payload`.
///
/// Takes memory in proportion to the payload, whatever lengths it announces: compressed strings get at
/// most 88 times as long.
///
/// # Errors
///
/// [`RestoreError`] if the footer is wrong, the object is malformed or empty, has duplicates, bytes
/// behind it, or is of a type that has no representation here.
pub fn restore(payload: &[u8]) -> Result<Object> {
    read(payload, |version| version <= VERSION_FIELD_EXPIRY)
}

/// The object in `payload`, which may also be of a later RDB version of Valkey than any known
/// (`rdb-version-check relaxed`): such an object may have been given another meaning.
///
/// # Errors
///
/// As [`restore`].
pub fn restore_newer(payload: &[u8]) -> Result<Object> {
    read(payload, |version| version <= VERSION_FIELD_EXPIRY || version > VERSION_FOREIGN_MAX)
}

fn read(payload: &[u8], is_known: impl Fn(u16) -> bool) -> Result<Object> {
    let mut reader = Reader::new(object_bytes(payload, is_known)?);
    let object = object(&mut reader)?;
    if reader.is_empty() && is_valid(&object) { Ok(object) } else { Err(RestoreError::BadFormat) }
}

/// The payload without its footer, which is checked.
pub(super) fn object_bytes(payload: &[u8], is_known: impl Fn(u16) -> bool) -> Result<&[u8]> {
    let wrong = RestoreError::BadChecksumOrVersion;
    let (covered, checksum) = payload.split_last_chunk::<8>().ok_or(wrong)?;
    let (object, version) = covered.split_last_chunk::<2>().ok_or(wrong)?;
    let right = is_known(u16::from_le_bytes(*version))
        && u64::from_le_bytes(*checksum) == crc64::checksum(covered);
    if right { Ok(object) } else { Err(wrong) }
}

/// Whether a collection has members and none twice.
fn is_valid(object: &Object) -> bool {
    match object {
        Object::String(_) => true,
        Object::List(elements) => !elements.is_empty(),
        Object::Set(_, members) => {
            !members.is_empty() && distinct(members.iter().map(Vec::as_slice))
        }
        Object::Zset(_, members) => {
            !members.is_empty() && distinct(members.iter().map(|(member, _)| member.as_slice()))
        }
        Object::Stream(_) => true,
        Object::Hash(fields) => {
            !fields.is_empty() && distinct(fields.iter().map(|field| field.name.as_slice()))
        }
    }
}

fn object(reader: &mut Reader<'_>) -> Result<Object> {
    let object_type = reader.byte()?;
    Ok(match object_type {
        object_type::STRING => Object::String(string(reader)?),
        object_type::LIST => Object::List(strings(reader)?),
        object_type::LIST_ZIPLIST => Object::List(texts(ziplist::elements(&reader.string()?)?)),
        object_type::LIST_QUICKLIST => Object::List(quicklist_of_ziplists(reader)?),
        object_type::LIST_QUICKLIST_2 => Object::List(quicklist(reader)?),
        object_type::SET => Object::Set(SetForm::Table, strings(reader)?),
        object_type::SET_INTSET => {
            Object::Set(SetForm::Intset, integers(&intset::members(&reader.string()?)?))
        }
        object_type::SET_LISTPACK => {
            Object::Set(SetForm::Listpack, texts(listpack::elements(&reader.string()?)?))
        }
        object_type::ZSET => {
            Object::Zset(ZsetForm::Skiplist, scored_strings(reader, Reader::text_score)?)
        }
        object_type::ZSET_2 => {
            Object::Zset(ZsetForm::Skiplist, scored_strings(reader, Reader::binary_score)?)
        }
        object_type::ZSET_ZIPLIST => {
            Object::Zset(ZsetForm::Listpack, scored(&ziplist::elements(&reader.string()?)?)?)
        }
        object_type::ZSET_LISTPACK => {
            Object::Zset(ZsetForm::Listpack, scored(&listpack::elements(&reader.string()?)?)?)
        }
        object_type::HASH => Object::Hash(hash(reader)?),
        object_type::HASH_ZIPMAP => Object::Hash(hash_of_zipmap(&reader.string()?)?),
        object_type::HASH_ZIPLIST => Object::Hash(fields(&ziplist::elements(&reader.string()?)?)?),
        object_type::HASH_LISTPACK => {
            Object::Hash(fields(&listpack::elements(&reader.string()?)?)?)
        }
        object_type::HASH_METADATA => Object::Hash(hash_with_expiry(reader)?),
        object_type::HASH_LISTPACK_EX => Object::Hash(listpack_with_expiry(reader)?),
        object_type::STREAM_LISTPACKS
        | object_type::STREAM_LISTPACKS_2
        | object_type::STREAM_LISTPACKS_3 => {
            Object::Stream(Box::new(stream::read(reader, object_type)?))
        }
        object_type::MODULE_PRE_GA | object_type::MODULE_2 => {
            return Err(RestoreError::Unsupported(object_type));
        }
        _ => return Err(RestoreError::BadFormat),
    })
}

fn string(reader: &mut Reader<'_>) -> Result<Vec<u8>> {
    reader.string().map(std::borrow::Cow::into_owned)
}

/// A length, then that many of what `read` reads.
fn counted<'a, T>(
    reader: &mut Reader<'a>,
    mut read: impl FnMut(&mut Reader<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    let len = reader.len()?;
    let mut items = Vec::with_capacity(reader.capacity_for(len));
    for _ in 0..len {
        items.push(read(reader)?);
    }
    Ok(items)
}

fn strings(reader: &mut Reader<'_>) -> Result<Vec<Vec<u8>>> {
    counted(reader, string)
}

fn scored_strings<'a>(
    reader: &mut Reader<'a>,
    score: impl Fn(&mut Reader<'a>) -> Result<f64>,
) -> Result<Vec<(Vec<u8>, f64)>> {
    counted(reader, |reader| Ok((string(reader)?, score(reader)?)))
}

fn hash(reader: &mut Reader<'_>) -> Result<Vec<HashField>> {
    counted(reader, |reader| {
        Ok(HashField { name: string(reader)?, value: string(reader)?, expire_at_ms: None })
    })
}

/// The least expiry, then fields, each with its distance from that plus one, or zero for none.
fn hash_with_expiry(reader: &mut Reader<'_>) -> Result<Vec<HashField>> {
    let least_expire_at_ms = u64::from_le_bytes(reader.array()?);
    counted(reader, |reader| {
        let expire_at_ms = match reader.len()? {
            0 => None,
            distance => {
                let expire_at_ms = least_expire_at_ms
                    .checked_add(distance - 1)
                    .filter(|&expire_at_ms| expire_at_ms <= FIELD_EXPIRY_MAX_MS);
                Some(expire_at_ms.ok_or(RestoreError::BadFormat)?)
            }
        };
        Ok(HashField { name: string(reader)?, value: string(reader)?, expire_at_ms })
    })
}

/// The least expiry, then a listpack of name, value and expiry, where zero is none.
fn listpack_with_expiry(reader: &mut Reader<'_>) -> Result<Vec<HashField>> {
    let _least_expire_at_ms: [u8; 8] = reader.array()?;
    let listpack = reader.string()?;
    let elements = listpack::elements(&listpack)?;
    let (triples, []) = elements.as_chunks::<3>() else {
        return Err(RestoreError::BadFormat);
    };
    let field = |[name, value, expiry]: &[Element<'_>; 3]| {
        let expire_at_ms = match *expiry {
            Element::Integer(0) => None,
            Element::Integer(expiry) => {
                let expire_at_ms =
                    u64::try_from(expiry).ok().filter(|expiry| *expiry <= FIELD_EXPIRY_MAX_MS);
                Some(expire_at_ms.ok_or(RestoreError::BadFormat)?)
            }
            Element::Text(_) => return Err(RestoreError::BadFormat),
        };
        Ok(HashField { name: name.into_bytes(), value: value.into_bytes(), expire_at_ms })
    };
    triples.iter().map(field).collect()
}

fn hash_of_zipmap(zipmap: &[u8]) -> Result<Vec<HashField>> {
    let field = |(name, value): (&[u8], &[u8])| HashField {
        name: name.to_vec(),
        value: value.to_vec(),
        expire_at_ms: None,
    };
    Ok(zipmap::fields(zipmap)?.into_iter().map(field).collect())
}

/// Nodes, each a listpack or a single element as it is. Empty listpacks are skipped.
fn quicklist(reader: &mut Reader<'_>) -> Result<Vec<Vec<u8>>> {
    let nodes = counted(reader, |reader| match reader.len()? {
        quicklist_node::PLAIN => {
            let element = string(reader)?;
            if element.is_empty() { Err(RestoreError::BadFormat) } else { Ok(vec![element]) }
        }
        quicklist_node::PACKED => listpack::elements(&reader.string()?).map(texts),
        _ => Err(RestoreError::BadFormat),
    })?;
    Ok(nodes.into_iter().flatten().collect())
}

fn quicklist_of_ziplists(reader: &mut Reader<'_>) -> Result<Vec<Vec<u8>>> {
    let nodes = counted(reader, |reader| ziplist::elements(&reader.string()?).map(texts))?;
    Ok(nodes.into_iter().flatten().collect())
}

fn texts(elements: Vec<Element<'_>>) -> Vec<Vec<u8>> {
    elements.into_iter().map(Element::into_bytes).collect()
}

fn integers(members: &[i64]) -> Vec<Vec<u8>> {
    members.iter().map(|member| member.to_string().into_bytes()).collect()
}

/// Members, each followed by its score.
fn scored(elements: &[Element<'_>]) -> Result<Vec<(Vec<u8>, f64)>> {
    let (pairs, []) = elements.as_chunks::<2>() else {
        return Err(RestoreError::BadFormat);
    };
    let member = |[member, score]: &[Element<'_>; 2]| {
        let score = match score {
            Element::Integer(score) => *score as f64,
            Element::Text(score) => double::parse(score)?,
        };
        Ok((member.into_bytes(), score))
    };
    pairs.iter().map(member).collect()
}

/// Names, each followed by its value.
fn fields(elements: &[Element<'_>]) -> Result<Vec<HashField>> {
    let (pairs, []) = elements.as_chunks::<2>() else {
        return Err(RestoreError::BadFormat);
    };
    let field = |[name, value]: &[Element<'_>; 2]| HashField {
        name: name.into_bytes(),
        value: value.into_bytes(),
        expire_at_ms: None,
    };
    Ok(pairs.iter().map(field).collect())
}
