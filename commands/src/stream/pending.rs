//! Entries delivered but not acknowledged: XPENDING.

use super::group::{find, no_group};
use super::{READS, key_arg, parse, reply_id};
use crate::{Ctx, Group, Outcome, Run, Spec, Stop, arg, error, flag, int_arg, is_word};
use flagstone_storage::need::Part;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::stream::{self, ConsumerNo, PendingEntry};
use flagstone_storage::value::{Stream, StreamId};
use flagstone_wire::resp::{Args, Reply};
use std::collections::HashMap;

/// The range of XPENDING, and its filters.
struct PendingRange<'a> {
    start: StreamId,
    end: StreamId,
    count: u64,
    min_idle_ms: i64,
    consumer: Option<&'a [u8]>,
}

impl<'a> PendingRange<'a> {
    fn parse(args: Args<'a>) -> Result<Self, Stop> {
        let mut at = 3;
        let mut min_idle_ms = 0;
        if is_word(arg(args, 3)?, "idle") {
            min_idle_ms = int_arg(args, 4)?;
            if args.len() < 8 {
                return Err(error::SYNTAX.into());
            }
            at += 2;
        }
        let count = u64::try_from(int_arg(args, at + 2)?).unwrap_or(0);
        let start = parse::interval_start(arg(args, at)?)?;
        let end = parse::interval_end(arg(args, at + 1)?)?;
        Ok(Self { start, end, count, min_idle_ms, consumer: args.get(at + 3) })
    }

    /// Returns the pending entries of the range.
    fn find(
        &self,
        stream: &Stream,
        group: &stream::Group,
        now_ms: u64,
    ) -> Result<Vec<PendingEntry>, Part> {
        let groups = stream.groups();
        let mut found = Vec::new();
        let consumer = match self.consumer {
            Some(name) => match groups.consumer(group, name)? {
                Some(consumer) => Some(consumer),
                None => return Ok(found),
            },
            None => None,
        };
        let mut left = consumer.map_or(group.pending(), |(_, consumer)| consumer.pending());
        let from = consumer.map_or(self.start, |(_, it)| self.start.max(it.first_pending()));
        if left == 0 || self.count == 0 {
            return Ok(found);
        }
        for entry in groups.pending_from(group, from)? {
            let entry = entry?;
            if entry.id > self.end {
                break;
            }
            if consumer.is_some_and(|(number, _)| number != entry.consumer) {
                continue;
            }
            left -= 1;
            if self.min_idle_ms == 0 || idle_ms(now_ms, &entry) >= self.min_idle_ms {
                found.push(entry);
            }
            if left == 0 || found.len() as u64 >= self.count {
                break;
            }
        }
        Ok(found)
    }
}

/// Returns the time in ms since an entry was delivered; negative if that is in the future.
pub(super) fn idle_ms(now_ms: u64, entry: &PendingEntry) -> i64 {
    now_ms.wrapping_sub(entry.delivered_ms) as i64
}

/// `XPENDING key group [[IDLE min-idle-ms] start end count [consumer]]`
fn xpending(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (db, key, name, now_ms) = (cx.db, key_arg(args)?, arg(args, 2)?, cx.now_ms());
    let range = match args.len() {
        3 => None,
        6..=9 => Some(PendingRange::parse(args)?),
        _ => return Err(error::SYNTAX.into()),
    };
    let Some((stream, group)) = find(cx.store, db, key, name)? else {
        return Err(no_group(key, name).into());
    };
    let out = &mut *cx.out;
    let Some(range) = range else { return Ok(summary(out, stream, group).or_load(db, key)?) };
    let groups = stream.groups();
    let found = range.find(stream, group, now_ms).or_load(db, key)?;
    let mut names: HashMap<ConsumerNo, &[u8]> = HashMap::new();
    out.array(found.len());
    for entry in found {
        let owner = match names.get(&entry.consumer) {
            Some(owner) => owner,
            None => {
                let owner = groups.consumer_of(group, entry.consumer).or_load(db, key)?;
                let owner = owner.map_or(&b""[..], |consumer| consumer.name());
                names.entry(entry.consumer).or_insert(owner)
            }
        };
        out.array(4);
        reply_id(out, entry.id);
        out.bulk(owner);
        out.int(idle_ms(now_ms, &entry).max(0));
        out.int(entry.deliveries as i64);
    }
    Ok(())
}

/// Writes the number of pending entries, their first and last id, and the number of each consumer.
fn summary(out: &mut Reply, stream: &Stream, group: &stream::Group) -> Result<(), Part> {
    let groups = stream.groups();
    out.array(4);
    out.count(group.pending() as usize);
    let first = groups.pending_from(group, StreamId::MIN)?.next().transpose()?;
    let last = groups.last_pending(group)?;
    let (Some(first), Some(last)) = (first, last) else {
        out.null();
        out.null();
        out.null_array();
        return Ok(());
    };
    reply_id(out, first.id);
    reply_id(out, last.id);
    let mut consumers = groups.consumers(group)?;
    consumers.retain(|(_, consumer)| consumer.pending() > 0);
    out.array(consumers.len());
    for (_, consumer) in consumers {
        out.array(2);
        out.bulk(consumer.name());
        out.bulk_int(consumer.pending() as i64);
    }
    Ok(())
}

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "xpending",
    group: Group::Stream,
    since: "5.0.0",
    complexity: "O(N) where N is the number of entries returned; with a consumer, of those in between.",
    summary: "Describes the pending entries of a group: delivered, not yet acknowledged.",
    arity: -3,
    flags: flag!(READONLY),
    keys: &[READS],
    tips: &["nondeterministic_output"],
    run: Run::Keys(xpending),
    ..Spec::NEW
}];
