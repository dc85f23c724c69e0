//! Decodes an object's bytes to its parts, one after the other: for a payload, which becomes an
//! object, and for a file, whose objects may be larger than memory.

use crate::input::Input;
use crate::listpack::{self, Element, Packed};
use crate::parts::{Kind, Part, Sink};
use crate::{
    FIELD_EXPIRY_MAX_MS, RestoreError, SetForm, ZsetForm, double, intset, object_type,
    quicklist_node, stream, ziplist, zipmap,
};
use std::borrow::Cow;

/// Returns the kind of objects of this type.
pub(crate) fn kind(object_type: u8) -> Result<Kind, RestoreError> {
    Ok(match object_type {
        object_type::STRING => Kind::String,
        object_type::LIST
        | object_type::LIST_ZIPLIST
        | object_type::LIST_QUICKLIST
        | object_type::LIST_QUICKLIST_2 => Kind::List,
        object_type::SET => Kind::Set(SetForm::Table),
        object_type::SET_INTSET => Kind::Set(SetForm::Intset),
        object_type::SET_LISTPACK => Kind::Set(SetForm::Listpack),
        object_type::ZSET | object_type::ZSET_2 => Kind::Zset(ZsetForm::Skiplist),
        object_type::ZSET_ZIPLIST | object_type::ZSET_LISTPACK => Kind::Zset(ZsetForm::Listpack),
        object_type::HASH
        | object_type::HASH_ZIPMAP
        | object_type::HASH_ZIPLIST
        | object_type::HASH_LISTPACK
        | object_type::HASH_METADATA_PRE_GA
        | object_type::HASH_LISTPACK_EX_PRE_GA
        | object_type::HASH_METADATA
        | object_type::HASH_LISTPACK_EX => Kind::Hash,
        object_type::STREAM_LISTPACKS
        | object_type::STREAM_LISTPACKS_2
        | object_type::STREAM_LISTPACKS_3 => Kind::Stream,
        object_type::MODULE_PRE_GA | object_type::MODULE_2 => {
            return Err(RestoreError::Unsupported(object_type));
        }
        _ => return Err(RestoreError::BadFormat),
    })
}

/// Passes the parts of the next object in `input`, of this type, to `sink`.
pub(crate) fn walk<E, I, S>(object_type: u8, input: &mut I, sink: &mut S) -> Result<(), E>
where
    I: Input,
    S: Sink,
    E: From<I::Error> + From<S::Error> + From<RestoreError>,
{
    match object_type {
        object_type::STRING => input.text(|piece| Ok(sink.part(Part::Text(piece))?)),
        object_type::LIST | object_type::SET => {
            counted(input, |input| Ok(sink.part(Part::Element(input.string()?))?))
        }
        object_type::LIST_ZIPLIST => texts(ziplist::ZiplistIter::new(&input.string()?)?, sink),
        object_type::LIST_QUICKLIST => {
            counted(input, |input| texts(ziplist::ZiplistIter::new(&input.string()?)?, sink))
        }
        object_type::LIST_QUICKLIST_2 => counted(input, |input| quicklist_node(input, sink)),
        object_type::SET_INTSET => {
            for member in intset::members(&input.string()?)? {
                sink.part(Part::Element(Cow::Owned(member.to_string().into_bytes())))?;
            }
            Ok(())
        }
        object_type::SET_LISTPACK => texts(listpack::ListpackIter::new(&input.string()?)?, sink),
        object_type::ZSET => counted(input, |input| {
            let member = input.string()?.into_owned();
            Ok(sink.part(Part::Scored(Cow::Owned(member), input.text_score()?))?)
        }),
        object_type::ZSET_2 => counted(input, |input| {
            let member = input.string()?.into_owned();
            Ok(sink.part(Part::Scored(Cow::Owned(member), input.binary_score()?))?)
        }),
        object_type::ZSET_ZIPLIST => scored(ziplist::ZiplistIter::new(&input.string()?)?, sink),
        object_type::ZSET_LISTPACK => scored(listpack::ListpackIter::new(&input.string()?)?, sink),
        object_type::STREAM_LISTPACKS
        | object_type::STREAM_LISTPACKS_2
        | object_type::STREAM_LISTPACKS_3 => stream::walk(object_type, input, sink),
        _ => walk_hash(object_type, input, sink),
    }
}

fn walk_hash<E, I, S>(object_type: u8, input: &mut I, sink: &mut S) -> Result<(), E>
where
    I: Input,
    S: Sink,
    E: From<I::Error> + From<S::Error> + From<RestoreError>,
{
    match object_type {
        object_type::HASH => counted(input, |input| field(input, None, sink)),
        object_type::HASH_ZIPMAP => {
            for (name, value) in zipmap::fields(&input.string()?)? {
                sink.part(Part::Field(Cow::Borrowed(name), Cow::Borrowed(value), None))?;
            }
            Ok(())
        }
        object_type::HASH_ZIPLIST => fields(ziplist::ZiplistIter::new(&input.string()?)?, sink),
        object_type::HASH_LISTPACK => fields(listpack::ListpackIter::new(&input.string()?)?, sink),
        object_type::HASH_METADATA_PRE_GA => counted(input, |input| {
            let expire_at_ms = field_expiry(input.len()?)?;
            field(input, expire_at_ms, sink)
        }),
        object_type::HASH_METADATA => {
            // The least expiry, then fields, each with its distance from it plus one, or zero.
            let least_expire_at_ms = u64::from_le_bytes(input.array()?);
            counted(input, |input| {
                let expire_at_ms = match input.len()? {
                    0 => None,
                    distance => field_expiry(
                        least_expire_at_ms
                            .checked_add(distance - 1)
                            .ok_or(RestoreError::BadFormat)?,
                    )?,
                };
                field(input, expire_at_ms, sink)
            })
        }
        object_type::HASH_LISTPACK_EX_PRE_GA => expiring(input, sink),
        object_type::HASH_LISTPACK_EX => {
            let _least_expire_at_ms: [u8; 8] = input.array()?;
            expiring(input, sink)
        }
        _ => Err(kind(object_type).err().unwrap_or(RestoreError::BadFormat).into()),
    }
}

/// Reads a length, then that many items with `read`.
fn counted<E: From<I::Error>, I: Input>(
    input: &mut I,
    mut read: impl FnMut(&mut I) -> Result<(), E>,
) -> Result<(), E> {
    for _ in 0..input.len()? {
        read(input)?;
    }
    Ok(())
}

/// Validates the expiry of a field; zero means that it does not expire.
fn field_expiry(expire_at_ms: u64) -> Result<Option<u64>, RestoreError> {
    match expire_at_ms {
        0 => Ok(None),
        1..=FIELD_EXPIRY_MAX_MS => Ok(Some(expire_at_ms)),
        _ => Err(RestoreError::BadFormat),
    }
}

/// Reads a name, then a value.
fn field<E, I, S>(input: &mut I, expire_at_ms: Option<u64>, sink: &mut S) -> Result<(), E>
where
    I: Input,
    S: Sink,
    E: From<I::Error> + From<S::Error>,
{
    let name = Cow::Owned(input.string()?.into_owned());
    Ok(sink.part(Part::Field(name, input.string()?, expire_at_ms))?)
}

/// Reads a listpack of name, value and expiry, where zero means none.
fn expiring<E, I, S>(input: &mut I, sink: &mut S) -> Result<(), E>
where
    I: Input,
    S: Sink,
    E: From<I::Error> + From<S::Error> + From<RestoreError>,
{
    let listpack = input.string()?;
    let mut elements = listpack::ListpackIter::new(&listpack)?;
    while let Some(name) = elements.element()? {
        let value = elements.more()?;
        let expiry = match elements.more()? {
            Element::Integer(expiry) => u64::try_from(expiry).ok(),
            Element::Text(_) => None,
        };
        let expire_at_ms = field_expiry(expiry.ok_or(RestoreError::BadFormat)?)?;
        sink.part(Part::Field(name.into_cow(), value.into_cow(), expire_at_ms))?;
    }
    Ok(())
}

/// Reads a node: a listpack, or a single element. Empty listpacks are skipped.
fn quicklist_node<E, I, S>(input: &mut I, sink: &mut S) -> Result<(), E>
where
    I: Input,
    S: Sink,
    E: From<I::Error> + From<S::Error> + From<RestoreError>,
{
    match input.len()? {
        quicklist_node::PLAIN => {
            let element = input.string()?;
            if element.is_empty() {
                return Err(RestoreError::BadFormat.into());
            }
            Ok(sink.part(Part::Element(element))?)
        }
        quicklist_node::PACKED => texts(listpack::ListpackIter::new(&input.string()?)?, sink),
        _ => Err(RestoreError::BadFormat.into()),
    }
}

fn texts<'a, E, S>(mut elements: impl Packed<'a>, sink: &mut S) -> Result<(), E>
where
    S: Sink,
    E: From<S::Error> + From<RestoreError>,
{
    while let Some(element) = elements.element()? {
        sink.part(Part::Element(element.into_cow()))?;
    }
    Ok(())
}

/// Reads members, each followed by its score.
fn scored<'a, E, S>(mut elements: impl Packed<'a>, sink: &mut S) -> Result<(), E>
where
    S: Sink,
    E: From<S::Error> + From<RestoreError>,
{
    while let Some(member) = elements.element()? {
        let score = match elements.more()? {
            Element::Integer(score) => score as f64,
            Element::Text(score) => double::parse(score)?,
        };
        sink.part(Part::Scored(member.into_cow(), score))?;
    }
    Ok(())
}

/// Reads names, each followed by its value.
fn fields<'a, E, S>(mut elements: impl Packed<'a>, sink: &mut S) -> Result<(), E>
where
    S: Sink,
    E: From<S::Error> + From<RestoreError>,
{
    while let Some(name) = elements.element()? {
        let value = elements.more()?;
        sink.part(Part::Field(name.into_cow(), value.into_cow(), None))?;
    }
    Ok(())
}
