//! Look-ups, changes and replies shared by the commands on consumer groups.

use super::{reply_id, text_of};
use crate::{Ctx, Stop, until_zero_byte};
use flagstone_storage::Store;
use flagstone_storage::need::Part;
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{Fault, OrLoad};
use flagstone_storage::value::stream::{ConsumerNo, Group, PendingEntry};
use flagstone_storage::value::{Stream, StreamId, Typed};
use flagstone_wire::resp::Reply;
use std::collections::HashMap;

/// The number of a consumer that does not exist yet.
pub(super) const NEW: ConsumerNo = 0;

/// Returns the error of commands that need a key with a group.
pub(super) fn no_group(key: &[u8], group: &[u8]) -> Vec<u8> {
    let parts = [
        b"NOGROUP No such key '",
        until_zero_byte(key),
        b"' or consumer group '",
        until_zero_byte(group),
        b"'",
    ];
    parts.concat()
}

/// Returns the error of commands that need a group, for a key that exists.
pub(super) fn no_group_of_key(key: &[u8], group: &[u8]) -> Vec<u8> {
    let (key, group) = (until_zero_byte(key), until_zero_byte(group));
    [b"NOGROUP No such consumer group '", group, b"' for key name '", key, b"'"].concat()
}

/// Returns the error of XREADGROUP without key or group.
pub(super) fn no_group_to_read(key: &[u8], group: &[u8]) -> Vec<u8> {
    [&no_group(key, group)[..], b" in XREADGROUP with GROUP option"].concat()
}

/// Returns a stream and its group, if both exist.
pub(super) fn find<'a>(
    store: &'a mut Store,
    db: u32,
    key: &[u8],
    group: &[u8],
) -> Result<Option<(&'a Stream, &'a Group)>, Stop> {
    with_group(store.typed::<Stream>(db, key)?, (db, key), group)
}

/// The same for a command that changes the stream: it is no reader that finds the key, or misses it.
pub(super) fn find_to_change<'a>(
    store: &'a mut Store,
    db: u32,
    key: &[u8],
    group: &[u8],
) -> Result<Option<(&'a Stream, &'a Group)>, Stop> {
    let entry = store.peek(db, key)?;
    let stream = entry.map(|entry| Stream::of(&entry.value).ok_or(Fault::WrongType)).transpose()?;
    with_group(stream, (db, key), group)
}

fn with_group<'a>(
    stream: Option<&'a Stream>,
    (db, key): (u32, &[u8]),
    group: &[u8],
) -> Result<Option<(&'a Stream, &'a Group)>, Stop> {
    let Some(stream) = stream else { return Ok(None) };
    let group = stream.groups().group(group).or_load(db, key)?;
    Ok(group.map(|group| (stream, group)))
}

/// Changes a group of an existing stream, and publishes the event. For WATCH and tracking the
/// stream is unchanged.
pub(super) fn change(
    cx: &mut Ctx<'_>,
    key: &[u8],
    event: Option<&'static str>,
    change: impl FnOnce(&mut Stream),
) -> Result<(), Stop> {
    if let Some(mut entry) = cx.store.typed_mut::<Stream>(cx.db, key)? {
        entry.quietly();
        entry.typed_mut::<Stream>().map(change);
        if let Some(event) = event {
            entry.event(NotifyFlags::STREAM, event);
        }
    }
    Ok(())
}

/// Says that a consumer was created.
pub(super) fn say_consumer(cx: &mut Ctx<'_>, key: &[u8], group: &[u8], consumer: &[u8]) {
    cx.say(&[b"XGROUP", b"CREATECONSUMER", key, group, consumer]);
}

/// Says that pending entries are a consumer's, or are gone because the entries were deleted.
pub(super) fn say_pending(
    cx: &mut Ctx<'_>,
    key: &[u8],
    (group, consumer): (&[u8], &[u8]),
    entries: &[PendingEntry],
) -> Result<(), Stop> {
    let Some((_, found)) = find(cx.store, cx.db, key, group)? else { return Ok(()) };
    let last_id = text_of(found.last_id());
    for entry in entries {
        let (id, at_ms) = (text_of(entry.id), entry.delivered_ms.to_string());
        let deliveries = entry.deliveries.to_string();
        cx.say(&[
            b"XCLAIM",
            key,
            group,
            consumer,
            b"0",
            &id,
            b"TIME",
            at_ms.as_bytes(),
            b"RETRYCOUNT",
            deliveries.as_bytes(),
            b"FORCE",
            b"JUSTID",
            b"LASTID",
            &last_id,
        ]);
    }
    Ok(())
}

/// Says the position of a group.
pub(super) fn say_position(cx: &mut Ctx<'_>, key: &[u8], group: &[u8]) -> Result<(), Stop> {
    let Some((_, found)) = find(cx.store, cx.db, key, group)? else { return Ok(()) };
    let (id, read) = (text_of(found.last_id()), found.entries_read().unwrap_or(-1).to_string());
    cx.say(&[b"XGROUP", b"SETID", key, group, &id, b"ENTRIESREAD", read.as_bytes()]);
    Ok(())
}

/// Returns the event of creating a consumer, if it did not exist.
pub(super) fn creation_event(number: ConsumerNo) -> Option<&'static str> {
    (number == NEW).then_some("xgroup-createconsumer")
}

/// A delivery of pending entries to a consumer.
#[derive(Debug)]
pub(super) struct Delivery<'a> {
    pub key: &'a [u8],
    pub group: &'a [u8],
    pub consumer: &'a [u8],
    /// Number of the consumer, or [`NEW`].
    pub number: ConsumerNo,
    pub now_ms: u64,
    /// True if the consumer received something.
    pub active: bool,
}

impl Delivery<'_> {
    /// Creates the consumer, if it is new, and gives it the pending entries with its number;
    /// returns the number.
    pub(super) fn apply(&self, stream: &mut Stream, entries: &mut [PendingEntry]) -> ConsumerNo {
        let groups = stream.groups_mut();
        let number = match self.number {
            NEW => groups.create_consumer(self.group, self.consumer, self.now_ms),
            number => number,
        };
        entries.iter_mut().filter(|e| e.consumer == NEW).for_each(|e| e.consumer = number);
        if !entries.is_empty() {
            groups.put_pending(self.group, entries);
        }
        groups.note_request(self.group, number, self.now_ms, self.active);
        number
    }
}

/// Writes a number; null if it is unknown.
fn reply_or_null(out: &mut Reply, number: Option<i64>) {
    match number {
        Some(number) => out.int(number),
        None => out.null(),
    }
}

/// Writes a group's last delivered id, its number of entries read, and its lag.
pub(super) fn reply_progress(out: &mut Reply, stream: &Stream, group: &Group) {
    out.bulk_str("last-delivered-id");
    reply_id(out, group.last_id());
    out.bulk_str("entries-read");
    reply_or_null(out, group.entries_read());
    out.bulk_str("lag");
    reply_or_null(out, stream.lag(group));
}

/// Returns a consumer's time for a reply; -1 if there is none.
pub(super) fn time_or_minus_one(ms: Option<u64>) -> i64 {
    ms.map_or(-1, |ms| ms as i64)
}

/// Writes the groups of a stream as XINFO STREAM … FULL does, with up to `count` pending entries of
/// each group and consumer.
pub(super) fn reply_full(out: &mut Reply, stream: &Stream, count: u64) -> Result<(), Part> {
    out.array(stream.groups().len() as usize);
    for row in stream.groups().iter() {
        let (name, group) = row?;
        out.map(7);
        out.bulk_str("name");
        out.bulk(name);
        reply_progress(out, stream, group);
        out.bulk_str("pel-count");
        out.count(group.pending() as usize);
        reply_pending(out, stream, group, count)?;
    }
    Ok(())
}

/// Writes the first `count` pending entries of a group, and of each of its consumers.
fn reply_pending(out: &mut Reply, stream: &Stream, group: &Group, count: u64) -> Result<(), Part> {
    let groups = stream.groups();
    let consumers = groups.consumers(group)?;
    // One walk finds all of them.
    let most = |pending: u64| pending.min(count);
    let mut left: u64 = consumers.iter().map(|(_, consumer)| most(consumer.pending())).sum();
    let mut first: Vec<PendingEntry> = Vec::new();
    let mut of_consumers: HashMap<ConsumerNo, Vec<PendingEntry>> = HashMap::new();
    for entry in groups.pending_from(group, StreamId::MIN)? {
        if left == 0 && first.len() as u64 >= most(group.pending()) {
            break;
        }
        let entry = entry?;
        if (first.len() as u64) < count {
            first.push(entry);
        }
        let here = of_consumers.entry(entry.consumer).or_default();
        if (here.len() as u64) < count {
            here.push(entry);
            left = left.saturating_sub(1);
        }
    }
    let names: HashMap<_, _> = consumers.iter().map(|(no, it)| (*no, it.name())).collect();
    out.bulk_str("pending");
    out.array(first.len());
    for entry in first {
        out.array(4);
        reply_id(out, entry.id);
        out.bulk(names.get(&entry.consumer).copied().unwrap_or_default());
        out.int(entry.delivered_ms as i64);
        out.int(entry.deliveries as i64);
    }
    out.bulk_str("consumers");
    out.array(consumers.len());
    for (number, consumer) in consumers {
        out.map(5);
        out.bulk_str("name");
        out.bulk(consumer.name());
        out.bulk_str("seen-time");
        out.int(consumer.seen_ms() as i64);
        out.bulk_str("active-time");
        out.int(time_or_minus_one(consumer.active_ms()));
        out.bulk_str("pel-count");
        out.count(consumer.pending() as usize);
        let pending = of_consumers.remove(&number).unwrap_or_default();
        out.bulk_str("pending");
        out.array(pending.len());
        for entry in pending {
            out.array(3);
            reply_id(out, entry.id);
            out.int(entry.delivered_ms as i64);
            out.int(entry.deliveries as i64);
        }
    }
    Ok(())
}
