//! Streams as payloads of DUMP and RESTORE.

use crate::rdb::{EntryId, StreamNode, StreamObject};
use flagstone_storage::need::Part;
use flagstone_storage::value::stream::StreamHead;
use flagstone_storage::value::{Stream, StreamId};

fn id((ms, seq): EntryId) -> StreamId {
    StreamId { ms, seq }
}

fn entry_id(id: StreamId) -> EntryId {
    (id.ms, id.seq)
}

/// A stream, all of which must be in memory, as an object.
pub fn object(stream: &Stream) -> Result<StreamObject<&[u8]>, Part> {
    let nodes = stream.nodes()?.map(|node| StreamNode {
        first: entry_id(node.first),
        names: node.names.collect(),
        entries: node
            .entries
            .map(|entry| (entry_id(entry.id), entry.fields.collect(), false))
            .collect(),
    });
    Ok(StreamObject {
        nodes: nodes.collect(),
        last_id: entry_id(stream.last_id()),
        max_deleted_id: entry_id(stream.max_deleted_id()),
        entries_added: stream.entries_added(),
        first_id: entry_id(stream.first_id()),
    })
}

/// The stream of an object.
pub fn restored(object: &StreamObject) -> Stream {
    let mut stream = Stream::new();
    for node in &object.nodes {
        let entries = node.entries.iter().map(|(entry, fields, is_deleted)| {
            let fields = fields.iter().map(|(name, value)| (&name[..], &value[..]));
            (id(*entry), fields, *is_deleted)
        });
        stream.push_node(id(node.first), node.names.iter().map(|name| &name[..]), entries);
    }
    stream.set_head(StreamHead {
        last_id: id(object.last_id),
        max_deleted_id: id(object.max_deleted_id),
        entries_added: object.entries_added,
    });
    stream
}
