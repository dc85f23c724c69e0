//! Streams.

pub mod ack;
pub mod add;
pub mod claim;
pub mod edit;
mod group;
#[cfg(test)]
mod group_tests;
pub mod info;
mod info_groups;
pub mod manage;
pub mod parse;
pub mod pending;
pub mod range;
pub mod read;
pub mod read_group;
pub mod read_options;
pub mod restore;
#[cfg(test)]
mod tests;
pub mod trim_options;

use super::{ErrorText, KeySpec, arg, key};
use crate::DataSettings;
use flagstone_storage::value::StreamId;
use flagstone_storage::value::stream::{NodeLimits, StreamEntry};
use flagstone_wire::resp::{Args, Reply};

/// Key spec of commands that read a stream.
pub(super) const READS: KeySpec = KeySpec::one(1, key!(RO | ACCESS));

/// Returns the key, the first argument of most commands here.
fn key_arg(args: Args<'_>) -> Result<&[u8], ErrorText> {
    arg(args, 1)
}

/// Returns the limits of a stream's nodes.
fn node_limits(settings: &DataSettings) -> NodeLimits {
    NodeLimits::new(settings.stream_node_max_bytes, settings.stream_node_max_entries)
}

/// Writes an id.
pub(super) fn reply_id(out: &mut Reply, id: StreamId) {
    out.bulk(&text_of(id));
}

/// Returns an id as a text.
fn text_of(id: StreamId) -> Vec<u8> {
    format!("{}-{}", id.ms, id.seq).into_bytes()
}

/// Writes an entry: its id, then its fields and their values.
pub(super) fn reply_entry(out: &mut Reply, entry: StreamEntry<'_>) {
    out.array(2);
    reply_id(out, entry.id);
    out.array(entry.fields.len() * 2);
    for (name, value) in entry.fields {
        out.bulk(name);
        out.bulk(value);
    }
}

/// Writes entries.
pub(super) fn reply_entries<'a>(
    out: &mut Reply,
    entries: impl Iterator<Item = StreamEntry<'a>>,
) -> usize {
    let mark = out.begin_array();
    let mut count = 0;
    for entry in entries {
        reply_entry(out, entry);
        count += 1;
    }
    out.end(mark, count);
    count
}
