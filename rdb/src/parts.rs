//! The parts of an object, as they are decoded one after the other.

use crate::{EntryId, SetForm, StreamGroup, StreamNode, ZsetForm};
use std::borrow::Cow;

/// The kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    String,
    List,
    Set(SetForm),
    Zset(ZsetForm),
    Hash,
    Stream,
}

/// The next part of an object.
#[derive(Debug)]
pub enum Part<'a> {
    /// More bytes of a string.
    Text(&'a [u8]),
    /// An element of a list, from head to tail, or of a set.
    Element(Cow<'a, [u8]>),
    /// A member of a sorted set, with its score.
    Scored(Cow<'a, [u8]>, f64),
    /// A field of a hash: name, value, and expiry.
    Field(Cow<'a, [u8]>, Cow<'a, [u8]>, Option<u64>),
    /// The next entries of a stream.
    Node(StreamNode),
    /// A stream's properties, behind its entries.
    Head(StreamHead),
    /// A group, behind the head.
    Group(StreamGroup),
}

/// A stream's properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamHead {
    /// The greatest id ever given.
    pub last_id: EntryId,
    /// The first id of the entries that are not deleted; 0-0 if there is none.
    pub first_id: EntryId,
    pub max_deleted_id: EntryId,
    pub entries_added: u64,
}

/// Receiver of the parts of an object.
pub trait Sink {
    type Error;

    /// # Errors
    /// The reason why no more parts are accepted.
    fn part(&mut self, part: Part<'_>) -> Result<(), Self::Error>;
}
