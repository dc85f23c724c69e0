//! The consumer groups of a stream in a payload.
//!
//! A group is its name, the id it has read up to, the number of these entries (types 2 and 3), its
//! pending entries (id in 16 bytes, time in 8, little-endian, deliveries), and its consumers: name,
//! time when seen and (type 3) when active, and the ids of their pending entries. Format: `rdb.c`
//! of Valkey 8.1.1.

use crate::input::Input;
use crate::object::{EntriesRead, StreamConsumer, StreamGroup, StreamPending};
use crate::parts::{Part, Sink};
use crate::writer::Writer;
use crate::{EntryId, RestoreError, object_type};
use std::collections::{BTreeMap, HashSet};

/// A missing time, or an unknown number.
const NONE: u64 = u64::MAX;

/// Writes all groups.
pub(crate) fn write<B: AsRef<[u8]>>(
    writer: &mut Writer,
    groups: &[StreamGroup<B>],
    has_active: bool,
) {
    writer.len(groups.len() as u64);
    for group in groups {
        writer.string(group.name.as_ref());
        writer.len(group.last_id.0);
        writer.len(group.last_id.1);
        writer.len(match group.entries_read {
            EntriesRead::Known(read) => read as u64,
            EntriesRead::Unknown | EntriesRead::Missing => NONE,
        });
        writer.len(group.pending.len() as u64);
        let mut owned = vec![Vec::new(); group.consumers.len()];
        for entry in &group.pending {
            write_id(writer, entry.id);
            writer.bytes(&entry.delivered_ms.to_le_bytes());
            writer.len(entry.deliveries);
            if let Some(ids) = owned.get_mut(entry.consumer) {
                ids.push(entry.id);
            }
        }
        writer.len(group.consumers.len() as u64);
        for (consumer, ids) in group.consumers.iter().zip(owned) {
            writer.string(consumer.name.as_ref());
            writer.bytes(&consumer.seen_ms.to_le_bytes());
            if has_active {
                writer.bytes(&consumer.active_ms.unwrap_or(NONE).to_le_bytes());
            }
            writer.len(ids.len() as u64);
            ids.into_iter().for_each(|id| write_id(writer, id));
        }
    }
}

fn write_id(writer: &mut Writer, (ms, seq): EntryId) {
    writer.bytes(&ms.to_be_bytes());
    writer.bytes(&seq.to_be_bytes());
}

fn read_id<I: Input>(input: &mut I) -> Result<EntryId, I::Error> {
    Ok((u64::from_be_bytes(input.array()?), u64::from_be_bytes(input.array()?)))
}

fn time<I: Input>(input: &mut I) -> Result<u64, I::Error> {
    Ok(u64::from_le_bytes(input.array()?))
}

/// Passes all groups of a stream of this type to `sink`.
pub(crate) fn walk<E, I, S>(object_type: u8, input: &mut I, sink: &mut S) -> Result<(), E>
where
    I: Input,
    S: Sink,
    E: From<I::Error> + From<S::Error> + From<RestoreError>,
{
    let mut names = HashSet::new();
    for _ in 0..input.len()? {
        let group = read_group(object_type, input)?;
        if !names.insert(group.name.clone()) {
            return Err(RestoreError::BadFormat.into());
        }
        sink.part(Part::Group(group))?;
    }
    Ok(())
}

fn read_group<I: Input>(object_type: u8, input: &mut I) -> Result<StreamGroup, I::Error> {
    let name = input.string()?.into_owned();
    let last_id = (input.len()?, input.len()?);
    let entries_read = match object_type {
        object_type::STREAM_LISTPACKS => EntriesRead::Missing,
        _ => match input.len()? {
            NONE => EntriesRead::Unknown,
            read => EntriesRead::Known(read as i64),
        },
    };
    let mut pending = BTreeMap::new();
    for _ in 0..input.len()? {
        let id = read_id(input)?;
        let delivered_ms = time(input)?;
        // No consumer is known yet.
        let consumer = usize::MAX;
        let entry = StreamPending { id, delivered_ms, deliveries: input.len()?, consumer };
        if pending.insert(id, entry).is_some() {
            return Err(RestoreError::BadFormat.into());
        }
    }
    let consumers = read_consumers(object_type, input, &mut pending)?;
    let pending: Vec<_> = pending.into_values().collect();
    if pending.iter().any(|entry| entry.consumer == usize::MAX) {
        return Err(RestoreError::BadFormat.into());
    }
    Ok(StreamGroup { name, last_id, entries_read, pending, consumers })
}

fn read_consumers<I: Input>(
    object_type: u8,
    input: &mut I,
    pending: &mut BTreeMap<EntryId, StreamPending>,
) -> Result<Vec<StreamConsumer>, I::Error> {
    let mut consumers = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..input.len()? {
        let name = input.string()?.into_owned();
        let seen_ms = time(input)?;
        let active_ms = match object_type {
            object_type::STREAM_LISTPACKS_3 => Some(time(input)?).filter(|ms| *ms != NONE),
            _ => Some(seen_ms),
        };
        for _ in 0..input.len()? {
            let entry = pending.get_mut(&read_id(input)?);
            let entry = entry.filter(|entry| entry.consumer == usize::MAX);
            entry.ok_or(RestoreError::BadFormat)?.consumer = consumers.len();
        }
        if !names.insert(name.clone()) {
            return Err(RestoreError::BadFormat.into());
        }
        consumers.push(StreamConsumer { name, seen_ms, active_ms });
    }
    Ok(consumers)
}
