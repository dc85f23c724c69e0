//! Reading as a consumer of a group: XREADGROUP.

use super::group::{self, Delivery, NEW, no_group_to_read};
use super::read::{begin_streams, end_streams};
use super::read_options::ReadOptions;
use super::{parse, reply_entries, reply_entry, reply_id};
use crate::{Begin, Ctx, Find, Group, KeySpec, Outcome, Run, Spec, Stop, flag, key};
use flagstone_storage::need::Part;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::stream::{self, ConsumerNo, PendingEntry};
use flagstone_storage::value::{Stream, StreamId, Typed};
use flagstone_wire::resp::{Args, Reply};
use std::collections::HashSet;

/// The entries of a stream to read.
#[derive(Clone, Copy, Debug)]
enum EntriesToRead {
    /// Entries not yet delivered to any consumer of the group (`>`).
    New,
    /// Entries pending for this consumer, behind an id.
    History(StreamId),
}

impl EntriesToRead {
    fn parse(id: &[u8]) -> Result<Self, Stop> {
        let meaningless = |id: char| -> Stop {
            format!(
                "ERR The {id} ID is meaningless in the context of XREADGROUP: you want to read the \
                 history of this consumer by specifying a proper ID, or use the > ID to get new \
                 messages. The {id} ID would just return an empty result set."
            )
            .into()
        };
        match id {
            b"$" => Err(meaningless('$')),
            b"+" => Err(meaningless('+')),
            b">" => Ok(Self::New),
            id => Ok(match parse::id(id, 0)? {
                StreamId::MAX => Self::New,
                id => Self::History(id),
            }),
        }
    }
}

/// The reply of one stream and its changes, not yet applied.
#[derive(Default)]
struct ReadPlan {
    number: ConsumerNo,
    /// New position of the group, if it moves.
    position: Option<(StreamId, Option<i64>)>,
    /// First new entry, and number of new entries.
    new: Option<(StreamId, u64)>,
    history: Option<Vec<PendingEntry>>,
    /// New and changed pending entries of the consumer.
    pending: Vec<PendingEntry>,
    /// The consumer has no pending entry before this id.
    low: Option<StreamId>,
}

impl ReadPlan {
    fn of(
        stream: &Stream,
        group: &stream::Group,
        options: &ReadOptions<'_>,
        (consumer, wanted, now_ms): (&[u8], EntriesToRead, u64),
    ) -> Result<Self, Part> {
        let consumer = stream.groups().consumer(group, consumer)?;
        let mut plan =
            Self { number: consumer.map_or(NEW, |(number, _)| number), ..Self::default() };
        match wanted {
            EntriesToRead::New => plan.new_entries(stream, group, options, now_ms)?,
            EntriesToRead::History(id) => {
                plan.history(stream, group, (id, options.count), now_ms)?
            }
        }
        stream.groups().require_pending(group, plan.pending.iter().map(|entry| entry.id))?;
        Ok(plan)
    }

    fn new_entries(
        &mut self,
        stream: &Stream,
        group: &stream::Group,
        options: &ReadOptions<'_>,
        now_ms: u64,
    ) -> Result<(), Part> {
        let Some(from) = group.last_id().next().filter(|from| *from <= stream.last_id()) else {
            return Ok(());
        };
        let mut position = (group.last_id(), group.entries_read());
        let mut count = 0;
        for entry in stream.range(from, StreamId::MAX, options.count, false)? {
            position = stream.advance(position, entry.id);
            count += 1;
            if !options.no_ack {
                let consumer = self.number;
                let id = entry.id;
                let pending = PendingEntry { id, delivered_ms: now_ms, deliveries: 1, consumer };
                self.pending.push(pending);
            }
        }
        if count > 0 {
            (self.new, self.position) = (Some((from, count)), Some(position));
        }
        Ok(())
    }

    fn history(
        &mut self,
        stream: &Stream,
        group: &stream::Group,
        (behind, count): (StreamId, u64),
        now_ms: u64,
    ) -> Result<(), Part> {
        let Some(from) = behind.next() else { return Ok(()) };
        let found = stream.groups().pending_of(group, self.number, from, count)?;
        self.low = found.first().map(|entry| entry.id).filter(|_| {
            let consumer = stream.groups().consumer_of(group, self.number);
            matches!(consumer, Ok(Some(consumer)) if from <= consumer.first_pending())
        });
        let mut before = None;
        for entry in &found {
            if stream.get_behind(before.replace(entry.id), entry.id)?.is_some() {
                let deliveries = entry.deliveries.saturating_add(1);
                self.pending.push(PendingEntry { delivered_ms: now_ms, deliveries, ..*entry });
            }
        }
        self.history = Some(found);
        Ok(())
    }

    /// Returns true if the stream is part of the reply.
    fn answers(&self) -> bool {
        self.new.is_some() || self.history.is_some()
    }

    fn reply(&self, out: &mut Reply, key: &[u8], stream: &Stream) -> Result<(), Part> {
        if !out.is_resp3() {
            out.array(2);
        }
        out.bulk(key);
        if let Some((from, count)) = self.new {
            reply_entries(out, stream.range(from, StreamId::MAX, count, false)?);
        }
        let Some(history) = &self.history else { return Ok(()) };
        out.array(history.len());
        for entry in history {
            match stream.get(entry.id)? {
                Some(entry) => reply_entry(out, entry),
                None => {
                    out.array(2);
                    reply_id(out, entry.id);
                    out.null_array();
                }
            }
        }
        Ok(())
    }

    fn apply(mut self, stream: &mut Stream, mut delivery: Delivery<'_>) {
        delivery.number = self.number;
        delivery.active = self.new.is_some() && !self.pending.is_empty();
        let number = delivery.apply(stream, &mut self.pending);
        if let Some((last_id, entries_read)) = self.position {
            stream.groups_mut().set_position(delivery.group, last_id, entries_read);
        }
        if let Some(low) = self.low {
            stream.groups_mut().raise_low(delivery.group, number, low);
        }
    }
}

/// Returns the plan for one stream, whose group exists.
fn plan(
    cx: &mut Ctx<'_>,
    options: &ReadOptions<'_>,
    (key, wanted): (&[u8], EntriesToRead),
) -> Result<ReadPlan, Stop> {
    let (db, now_ms) = (cx.db, cx.now_ms());
    let (name, consumer) = options.group.unwrap_or_default();
    let Some((stream, group)) = group::find(cx.store, cx.db, key, name)? else {
        return Ok(ReadPlan::default());
    };
    Ok(ReadPlan::of(stream, group, options, (consumer, wanted, now_ms)).or_load(db, key)?)
}

/// Checks that all rows are in memory before anything changes.
fn require(
    cx: &mut Ctx<'_>,
    options: &ReadOptions<'_>,
    streams: &[(&[u8], EntriesToRead)],
) -> Result<(), Stop> {
    let before = cx.store.stats.lookups();
    let (mut seen, mut repeated) = (HashSet::new(), HashSet::new());
    for &(key, wanted) in streams {
        if seen.insert(key) {
            plan(cx, options, (key, wanted))?;
        } else if repeated.insert(key)
            && let Some(entry) = cx.store.entry(cx.db, key)?
        {
            // A later read of the same stream sees the changes of an earlier one.
            entry.value.require_whole().or_load(cx.db, key)?;
        }
    }
    // The streams are looked up once more.
    cx.store.stats.set_lookups(before);
    Ok(())
}

/// `XREADGROUP GROUP group consumer [COUNT count] [BLOCK ms] [NOACK] STREAMS key… id…`
fn xreadgroup(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (db, now_ms) = (cx.db, cx.now_ms());
    let options = ReadOptions::parse(args, true, now_ms)?;
    let (name, consumer) = options.group.unwrap_or_default();
    let mut streams = Vec::with_capacity(options.streams().len());
    for (key, id) in options.streams() {
        if !cx.is_here(key) {
            continue;
        }
        if group::find(cx.store, cx.db, key, name)?.is_none() {
            return Err(no_group_to_read(key, name).into());
        }
        streams.push((key, EntriesToRead::parse(id)?));
    }
    if streams.len() > 1 {
        require(cx, &options, &streams)?;
    }
    let mut found = 0;
    let mark = begin_streams(cx.out);
    for (key, wanted) in streams {
        let plan = plan(cx, &options, (key, wanted))?;
        if cx.again && !plan.answers() {
            // The consumer's time was updated when it began to wait.
            continue;
        }
        if plan.answers()
            && let Some(stream) = cx.store.peek(db, key)?.and_then(|entry| Stream::of(&entry.value))
        {
            plan.reply(cx.out, key, stream).or_load(db, key)?;
            found += 1;
        }
        let delivery = Delivery { key, group: name, consumer, number: NEW, now_ms, active: false };
        let event = group::creation_event(plan.number);
        let said = cx.is_heard().then(|| (plan.number, plan.position, plan.pending.clone()));
        group::change(cx, key, event, |stream| plan.apply(stream, delivery))?;
        if let Some((number, position, pending)) = said {
            say(cx, (key, name, consumer), number, position.is_some(), &pending)?;
        }
    }
    end_streams(cx.out, (mark, found), &options, Vec::new())
}

/// Says what the read of one stream has changed.
fn say(
    cx: &mut Ctx<'_>,
    (key, group, consumer): (&[u8], &[u8], &[u8]),
    number: ConsumerNo,
    moves: bool,
    pending: &[PendingEntry],
) -> Result<(), Stop> {
    cx.say_nothing();
    if number == NEW {
        group::say_consumer(cx, key, group, consumer);
    }
    group::say_pending(cx, key, (group, consumer), pending)?;
    if moves {
        group::say_position(cx, key, group)?;
    }
    Ok(())
}

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "xreadgroup",
    group: Group::Stream,
    since: "5.0.0",
    complexity: "O(log(N)+M) for each stream, where N is the number of its nodes and M the number of entries returned.",
    summary: "Returns entries of streams to a consumer of a group.",
    arity: -7,
    flags: flag!(WRITE | BLOCKING | MOVABLE_KEYS),
    keys: &[KeySpec {
        flags: key!(RO | ACCESS),
        begin: Begin::Keyword("STREAMS", 4),
        find: Find::ShownAs(&Find::Range { last: -1, step: 1, limit: 2 }, ReadOptions::add_keys),
    }],
    blocks: ReadOptions::has_block,
    run: Run::Keys(xreadgroup),
    ..Spec::NEW
}];
