//! Claiming entries that were delivered to other consumers: XCLAIM, XAUTOCLAIM.

use super::group::{self, Delivery, NEW, no_group};
use super::pending::idle_ms;
use super::{key_arg, parse, reply_entry, reply_id};
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, is_word, key};
use flagstone_storage::need::Part;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::stream::{self, ConsumerNo, PendingEntry};
use flagstone_storage::value::{Stream, StreamId};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::{Args, Reply};
use std::collections::BTreeMap;

/// Default COUNT of XAUTOCLAIM.
const AUTO_COUNT: u64 = 100;

/// Pending entries that XAUTOCLAIM examines for each one that it may claim.
const ATTEMPTS: u64 = 10;

/// Maximum COUNT of XAUTOCLAIM.
const MAX_COUNT: i64 = i64::MAX / 16;

/// Parses the number of an option of XCLAIM.
fn number_arg(args: Args<'_>, at: usize, of: &str, command: &str) -> Result<i64, Stop> {
    let number = args.get(at).and_then(parse_i64);
    number.ok_or_else(|| format!("ERR Invalid {of} argument for {command}").into())
}

/// The ids and options of XCLAIM.
#[derive(Debug)]
struct ClaimOptions {
    ids: Vec<StreamId>,
    min_idle_ms: i64,
    /// Time of delivery to record, in ms since the Unix epoch.
    delivered_ms: u64,
    deliveries: Option<u64>,
    force: bool,
    just_id: bool,
    last_id: StreamId,
}

impl ClaimOptions {
    fn parse(args: Args<'_>, now_ms: u64) -> Result<Self, Stop> {
        let min_idle_ms = number_arg(args, 4, "min-idle-time", "XCLAIM")?.max(0);
        let (mut ids, mut at) = (Vec::new(), 5);
        while let Some(Ok(id)) = args.get(at).map(|id| parse::id(id, 0)) {
            ids.push(id);
            at += 1;
        }
        let (mut force, mut just_id, mut last_id) = (false, false, StreamId::MIN);
        let (mut delivered, mut deliveries) = (-1, -1);
        while let Some(option) = args.get(at) {
            at += 1;
            let (more, here) = (at < args.len(), at);
            let value = |name| number_arg(args, here, name, "XCLAIM");
            if is_word(option, "force") {
                force = true;
                continue;
            } else if is_word(option, "justid") {
                just_id = true;
                continue;
            } else if is_word(option, "idle") && more {
                delivered = (now_ms as i64).wrapping_sub(value("IDLE option")?);
            } else if is_word(option, "time") && more {
                delivered = value("TIME option")?;
            } else if is_word(option, "retrycount") && more {
                deliveries = value("RETRYCOUNT option")?;
            } else if is_word(option, "lastid") && more {
                last_id = parse::id(arg(args, here)?, 0)?;
            } else {
                let option = String::from_utf8_lossy(option);
                return Err(format!("ERR Unrecognized XCLAIM option '{option}'").into());
            }
            at += 1;
        }
        // A time in the future or before the epoch is replaced by now.
        let delivered_ms = u64::try_from(delivered).ok().filter(|ms| *ms <= now_ms);
        let delivered_ms = delivered_ms.unwrap_or(now_ms);
        let deliveries = u64::try_from(deliveries).ok();
        Ok(Self { ids, min_idle_ms, delivered_ms, deliveries, force, just_id, last_id })
    }
}

/// The changes of a claim, not yet applied.
#[derive(Debug, Default)]
struct ClaimPlan {
    /// Claimed ids, in the order of the reply.
    claimed: Vec<StreamId>,
    /// Pending entries by id; `None` removes one.
    changed: BTreeMap<StreamId, Option<PendingEntry>>,
}

impl ClaimPlan {
    /// Claims a pending entry.
    fn set(&mut self, entry: PendingEntry) {
        self.claimed.push(entry.id);
        self.changed.insert(entry.id, Some(entry));
    }

    /// Removes a pending entry whose entry was deleted.
    fn remove(&mut self, id: StreamId) {
        self.changed.insert(id, None);
    }

    /// Checks that all rows for applying the plan are in memory.
    fn require(&self, stream: &Stream, group: &stream::Group) -> Result<(), Part> {
        stream.groups().require_pending(group, self.changed.keys().copied())
    }

    /// Replies with the claimed entries.
    fn reply(&self, out: &mut Reply, stream: &Stream, just_id: bool) -> Result<(), Part> {
        out.array(self.claimed.len());
        for id in &self.claimed {
            match stream.get(*id)?.filter(|_| !just_id) {
                Some(entry) => reply_entry(out, entry),
                None => reply_id(out, *id),
            }
        }
        Ok(())
    }

    /// Returns the changed pending entries as replicas are told: a claim of one whose entry was
    /// deleted removes it there, too.
    fn said(&self) -> Vec<PendingEntry> {
        let gone = |id: StreamId| PendingEntry { id, deliveries: 1, ..PendingEntry::default() };
        self.changed.iter().map(|(id, entry)| entry.unwrap_or_else(|| gone(*id))).collect()
    }

    fn apply(self, cx: &mut Ctx<'_>, delivery: &Delivery<'_>) -> Outcome {
        let is_gone =
            |(id, entry): (&StreamId, &Option<PendingEntry>)| entry.is_none().then_some(*id);
        let gone: Vec<_> = self.changed.iter().filter_map(is_gone).collect();
        let said = cx.is_heard().then(|| self.said());
        let mut entries: Vec<_> = self.changed.into_values().flatten().collect();
        cx.say_nothing();
        if delivery.number == NEW {
            group::say_consumer(cx, delivery.key, delivery.group, delivery.consumer);
        }
        if let Some(said) = said {
            group::say_pending(cx, delivery.key, (delivery.group, delivery.consumer), &said)?;
        }
        group::change(cx, delivery.key, group::creation_event(delivery.number), |stream| {
            if !gone.is_empty() {
                stream.groups_mut().remove_pending(delivery.group, &gone);
            }
            delivery.apply(stream, &mut entries);
        })
    }
}

/// Returns the number of a consumer; [`NEW`] if it does not exist.
fn consumer_no(stream: &Stream, group: &stream::Group, name: &[u8]) -> Result<ConsumerNo, Part> {
    Ok(stream.groups().consumer(group, name)?.map_or(NEW, |(number, _)| number))
}

impl ClaimOptions {
    /// Computes the changes of the claim for a consumer.
    fn plan(
        &self,
        stream: &Stream,
        group: &stream::Group,
        consumer: ConsumerNo,
        now_ms: u64,
    ) -> Result<ClaimPlan, Part> {
        let mut plan = ClaimPlan::default();
        stream.groups().require_pending(group, self.ids.iter().copied())?;
        let mut before = None;
        for id in &self.ids {
            let pending = match plan.changed.get(id) {
                Some(changed) => *changed,
                None => stream.groups().pending_entry(group, *id)?,
            };
            if stream.get_behind(before.replace(*id), *id)?.is_none() {
                if pending.is_some() {
                    plan.remove(*id);
                }
                continue;
            }
            if pending.is_some_and(|entry| {
                self.min_idle_ms > 0 && idle_ms(now_ms, &entry) < self.min_idle_ms
            }) {
                continue;
            }
            let forced = PendingEntry { id: *id, deliveries: 1, ..PendingEntry::default() };
            let Some(mut entry) = pending.or(self.force.then_some(forced)) else { continue };
            entry.consumer = consumer;
            entry.delivered_ms = self.delivered_ms;
            match self.deliveries {
                Some(deliveries) => entry.deliveries = deliveries,
                None => {
                    let more = u64::from(!self.just_id);
                    entry.deliveries = entry.deliveries.saturating_add(more);
                }
            }
            plan.set(entry);
        }
        Ok(plan)
    }
}

/// `XCLAIM key group consumer min-idle-ms id… [IDLE ms] [TIME ms] [RETRYCOUNT count] [FORCE]
/// [JUSTID] [LASTID id]`
fn xclaim(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (db, key, name, now_ms) = (cx.db, key_arg(args)?, arg(args, 2)?, cx.now_ms());
    let consumer = arg(args, 3)?;
    let Some((stream, group)) = group::find(cx.store, db, key, name)? else {
        return Err(no_group(key, name).into());
    };
    let claim = ClaimOptions::parse(args, now_ms)?;
    let number = consumer_no(stream, group, consumer).or_load(db, key)?;
    let plan = claim.plan(stream, group, number, now_ms).or_load(db, key)?;
    plan.require(stream, group).or_load(db, key)?;
    plan.reply(cx.out, stream, claim.just_id).or_load(db, key)?;
    let position = (group.last_id() < claim.last_id).then(|| group.entries_read());
    let active = !plan.claimed.is_empty();
    let delivery = Delivery { key, group: name, consumer, number, now_ms, active };
    plan.apply(cx, &delivery)?;
    if let Some(entries_read) = position {
        group::change(cx, key, None, |stream| {
            stream.groups_mut().set_position(name, claim.last_id, entries_read);
        })?;
        if cx.is_heard() {
            group::say_position(cx, key, name)?;
        }
    }
    Ok(())
}

/// The options of XAUTOCLAIM.
#[derive(Debug)]
struct AutoClaimOptions {
    min_idle_ms: i64,
    start: StreamId,
    count: u64,
    just_id: bool,
}

impl AutoClaimOptions {
    fn parse(args: Args<'_>) -> Result<Self, Stop> {
        let min_idle_ms = number_arg(args, 4, "min-idle-time", "XAUTOCLAIM")?.max(0);
        let start = parse::interval_start(arg(args, 5)?)?;
        let mut options = Self { min_idle_ms, start, count: AUTO_COUNT, just_id: false };
        let mut at = 6;
        while let Some(option) = args.get(at) {
            if is_word(option, "count") && at + 1 < args.len() {
                let count = args.get(at + 1).and_then(parse_i64);
                let count = count.filter(|count| (1..=MAX_COUNT).contains(count));
                options.count = count.ok_or("ERR COUNT must be > 0")?.unsigned_abs();
                at += 1;
            } else if is_word(option, "justid") {
                options.just_id = true;
            } else {
                return Err(error::SYNTAX.into());
            }
            at += 1;
        }
        Ok(options)
    }

    /// Computes the changes of the claim for a consumer, and the id at which the next one starts.
    fn plan(
        &self,
        stream: &Stream,
        group: &stream::Group,
        consumer: ConsumerNo,
        now_ms: u64,
    ) -> Result<(ClaimPlan, StreamId), Part> {
        let mut plan = ClaimPlan::default();
        let (mut attempts, mut left) = (self.count.saturating_mul(ATTEMPTS), self.count);
        let mut before = None;
        for entry in stream.groups().pending_from(group, self.start)? {
            let mut entry = entry?;
            if attempts == 0 || left == 0 {
                return Ok((plan, entry.id));
            }
            attempts -= 1;
            if stream.get_behind(before.replace(entry.id), entry.id)?.is_none() {
                plan.remove(entry.id);
                left -= 1;
                continue;
            }
            if self.min_idle_ms > 0 && idle_ms(now_ms, &entry) < self.min_idle_ms {
                continue;
            }
            entry.consumer = consumer;
            entry.delivered_ms = now_ms;
            entry.deliveries = entry.deliveries.saturating_add(u64::from(!self.just_id));
            plan.set(entry);
            left -= 1;
        }
        Ok((plan, StreamId::MIN))
    }
}

/// `XAUTOCLAIM key group consumer min-idle-ms start [COUNT count] [JUSTID]`
fn xautoclaim(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (db, key, name, now_ms) = (cx.db, key_arg(args)?, arg(args, 2)?, cx.now_ms());
    let (consumer, options) = (arg(args, 3)?, AutoClaimOptions::parse(args)?);
    let Some((stream, group)) = group::find(cx.store, cx.db, key, name)? else {
        return Err(no_group(key, name).into());
    };
    let number = consumer_no(stream, group, consumer).or_load(db, key)?;
    let (plan, next) = options.plan(stream, group, number, now_ms).or_load(db, key)?;
    plan.require(stream, group).or_load(db, key)?;
    cx.out.array(3);
    reply_id(cx.out, next);
    plan.reply(cx.out, stream, options.just_id).or_load(db, key)?;
    let deleted = plan.changed.iter().filter(|(_, entry)| entry.is_none());
    cx.out.array(deleted.clone().count());
    deleted.for_each(|(id, _)| reply_id(cx.out, *id));
    let active = !plan.claimed.is_empty();
    plan.apply(cx, &Delivery { key, group: name, consumer, number, now_ms, active })
}

/// Common declaration of the commands that claim entries.
const CLAIMS: Spec = Spec {
    group: Group::Stream,
    arity: -6,
    flags: flag!(WRITE | FAST),
    tips: &["nondeterministic_output"],
    ..Spec::NEW
};

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "xclaim",
        since: "5.0.0",
        complexity: "O(log N) for each id, where N is the number of pending entries of the group.",
        summary: "Transfers pending entries to a consumer.",
        keys: &[KeySpec::one(1, key!(RW | UPDATE))],
        run: Run::Keys(xclaim),
        ..CLAIMS
    },
    Spec {
        name: "xautoclaim",
        since: "6.2.0",
        complexity: "O(COUNT)",
        summary: "Transfers entries that have been pending for some time to a consumer.",
        keys: &[KeySpec::one(1, key!(RW | DELETE))],
        run: Run::Keys(xautoclaim),
        ..CLAIMS
    },
];
