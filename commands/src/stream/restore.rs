//! Conversion of streams to and from the payloads of DUMP and RESTORE.

use flagstone_rdb::{
    EntriesRead, EntryId, StreamConsumer, StreamGroup, StreamNode, StreamObject, StreamPending,
};
use flagstone_storage::need::Part;
use flagstone_storage::value::stream::{Group, PendingEntry, StreamHead};
use flagstone_storage::value::{Stream, StreamId};
use std::collections::HashMap;

fn id((ms, seq): EntryId) -> StreamId {
    StreamId { ms, seq }
}

fn entry_id(id: StreamId) -> EntryId {
    (id.ms, id.seq)
}

/// Returns a stream, which must be entirely in memory, as an object.
pub fn object(stream: &Stream) -> Result<StreamObject<&[u8]>, Part> {
    let nodes = stream.nodes()?.map(|node| StreamNode {
        first: entry_id(node.first),
        names: node.names.collect(),
        entries: node
            .entries
            .map(|entry| {
                let fields = entry.fields.map(|(name, value)| (Some(name), value));
                (entry_id(entry.id), fields.collect(), false)
            })
            .collect(),
    });
    let groups = stream.groups().iter().map(|row| group_object(stream, row?));
    Ok(StreamObject {
        nodes: nodes.collect(),
        last_id: entry_id(stream.last_id()),
        max_deleted_id: entry_id(stream.max_deleted_id()),
        entries_added: stream.entries_added(),
        first_id: entry_id(stream.first_id()),
        groups: groups.collect::<Result<_, _>>()?,
    })
}

/// Returns a group as an object.
fn group_object<'a>(
    stream: &'a Stream,
    (name, group): (&'a [u8], &'a Group),
) -> Result<StreamGroup<&'a [u8]>, Part> {
    let consumers = stream.groups().consumers(group)?;
    let places: HashMap<_, _> =
        consumers.iter().enumerate().map(|(place, (number, _))| (*number, place)).collect();
    let mut pending = Vec::new();
    for entry in stream.groups().pending_from(group, StreamId::MIN)? {
        let entry = entry?;
        if let Some(&consumer) = places.get(&entry.consumer) {
            let (id, delivered_ms) = (entry_id(entry.id), entry.delivered_ms);
            let deliveries = entry.deliveries;
            pending.push(StreamPending { id, delivered_ms, deliveries, consumer });
        }
    }
    let consumers = consumers.into_iter().map(|(_, consumer)| StreamConsumer {
        name: consumer.name(),
        seen_ms: consumer.seen_ms(),
        active_ms: consumer.active_ms(),
    });
    Ok(StreamGroup {
        name,
        last_id: entry_id(group.last_id()),
        entries_read: group.entries_read().map_or(EntriesRead::Unknown, EntriesRead::Known),
        pending,
        consumers: consumers.collect(),
    })
}

/// Adds the group of an object to a stream.
fn restore_group(stream: &mut Stream, group: &StreamGroup) {
    let entries_read = match group.entries_read {
        EntriesRead::Known(read) => Some(read),
        EntriesRead::Unknown => None,
        EntriesRead::Missing => stream.entries_up_to(id(group.last_id)),
    };
    let groups = stream.groups_mut();
    groups.create(&group.name, id(group.last_id), entries_read);
    let mut numbers = Vec::with_capacity(group.consumers.len());
    for consumer in &group.consumers {
        let number = groups.create_consumer(&group.name, &consumer.name, consumer.seen_ms);
        groups.set_active(&group.name, number, consumer.active_ms);
        numbers.push(number);
    }
    let entry = |entry: &StreamPending| PendingEntry {
        id: id(entry.id),
        delivered_ms: entry.delivered_ms,
        deliveries: entry.deliveries,
        consumer: numbers[entry.consumer],
    };
    let pending: Vec<_> = group.pending.iter().map(entry).collect();
    groups.put_pending(&group.name, &pending);
}

/// Appends a node of a payload to a stream; returns the bytes that it takes there.
pub fn push_node(stream: &mut Stream, node: &StreamNode) -> usize {
    let entries = node.entries.iter().map(|(entry, fields, is_deleted)| {
        let fields = fields.iter().enumerate().map(|(at, (name, value))| {
            let name = name.as_ref().or(node.names.get(at));
            (name.map_or(&b""[..], |name| name), &value[..])
        });
        (id(*entry), fields, *is_deleted)
    });
    stream.push_node(id(node.first), node.names.iter().map(|name| &name[..]), entries)
}

/// Returns the stream of an object, whose nodes `stream` has.
pub fn restored(mut stream: Stream, object: &StreamObject) -> Stream {
    stream.set_head(StreamHead {
        last_id: id(object.last_id),
        max_deleted_id: id(object.max_deleted_id),
        entries_added: object.entries_added,
    });
    object.groups.iter().for_each(|group| restore_group(&mut stream, group));
    stream
}
