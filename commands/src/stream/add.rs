//! Adding entries: XADD.

use super::parse::NewId;
use super::trim_options::TrimOptions;
use super::{key_arg, node_limits, reply_id};
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, error, flag, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{Fault, OrLoad};
use flagstone_storage::value::{Stream, StreamId, Typed, Value};
use flagstone_wire::resp::Args;

/// Maximum number of bytes of an entry's names and values.
const ENTRY_MAX: usize = 1 << 30;

const EXHAUSTED: &str =
    "ERR The stream has exhausted the last possible ID, unable to add more items";
const TOO_SMALL: &str =
    "ERR The ID specified in XADD is equal or smaller than the target stream top item";

/// Returns the id of a new entry behind the last one.
fn next_id(wanted: NewId, last: StreamId, now_ms: u64) -> Result<StreamId, Stop> {
    let next = last.next().ok_or(EXHAUSTED)?;
    let id = match wanted {
        NewId::Auto if now_ms > last.ms => StreamId::new(now_ms, 0),
        NewId::Auto => next,
        NewId::OfTime(ms) if ms == last.ms => {
            let seq = last.seq.checked_add(1).ok_or(TOO_SMALL)?;
            StreamId::new(ms, seq)
        }
        NewId::OfTime(ms) => StreamId::new(ms, 0),
        NewId::Given(id) => id,
    };
    if id > last { Ok(id) } else { Err(TOO_SMALL.into()) }
}

/// The fields of an entry, as the arguments behind its id.
#[derive(Clone)]
struct FieldArgs<'a> {
    args: Args<'a>,
    at: usize,
}

impl<'a> Iterator for FieldArgs<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let pair = (self.args.get(self.at)?, self.args.get(self.at + 1)?);
        self.at += 2;
        Some(pair)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.args.len().saturating_sub(self.at) / 2;
        (left, Some(left))
    }
}

impl ExactSizeIterator for FieldArgs<'_> {}

/// `XADD key [NOMKSTREAM] [MAXLEN|MINID [=|~] threshold [LIMIT count]] *|id field value…`
fn xadd(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (name, db, now_ms) = (key_arg(args)?, cx.db, cx.now_ms());
    let options = TrimOptions::parse(args, true, cx.store.obeys(), cx.settings)?;
    let fields = FieldArgs { args, at: options.at + 1 };
    let Some(wanted) = options.id.filter(|_| is_paired(args.len(), fields.at)) else {
        return Err(error::arity("xadd").into());
    };
    if wanted == NewId::Given(StreamId::MIN) {
        return Err("ERR The ID specified in XADD must be greater than 0-0".into());
    }
    let limits = node_limits(cx.settings);
    let mut entry = cx.store.entry_mut(db, name)?;
    if entry.value.is_absent() && options.no_mkstream {
        cx.out.null();
        return Ok(());
    }
    let none = Stream::new();
    let stream = match &entry.value {
        Value::Absent => &none,
        value => Stream::of(value).ok_or(Fault::WrongType)?,
    };
    let id = next_id(wanted, stream.last_id(), now_ms)?;
    let bytes = fields.clone().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > ENTRY_MAX {
        return Err("ERR Elements are too large to be stored".into());
    }
    let added = stream.added(id, bytes, limits);
    let plan = options.trim.map(|trim| stream.plan_trim(&trim, Some(added)));
    let plan = plan.transpose().or_load(db, name)?;
    let stream = entry.typed_or_new::<Stream>()?;
    stream.append(id, fields, limits);
    let plan = plan.filter(|plan| plan.deleted() > 0);
    if let Some(plan) = &plan {
        stream.trim(plan);
    }
    entry.event(NotifyFlags::STREAM, "xadd");
    if plan.is_some() {
        entry.event(NotifyFlags::STREAM, "xtrim");
    }
    if cx.is_heard() {
        say(cx, args, &options, Some(id))?;
    }
    reply_id(cx.out, id);
    Ok(())
}

/// Says what XADD or XTRIM has done.
pub(super) fn say(
    cx: &mut Ctx<'_>,
    args: Args<'_>,
    options: &TrimOptions,
    id: Option<StreamId>,
) -> Outcome {
    let (db, name) = (cx.db, key_arg(args)?);
    let left = match cx.store.typed::<Stream>(db, name)? {
        Some(stream) => (stream.len(), stream.end(false).ok().flatten().map(|first| first.id)),
        None => (0, None),
    };
    let words = options.said(args, id, left);
    cx.say(&words.iter().map(|word| &word[..]).collect::<Vec<_>>());
    Ok(())
}

/// Returns true if the arguments from `first` on are pairs, at least one.
fn is_paired(len: usize, first: usize) -> bool {
    len > first && (len - first).is_multiple_of(2)
}

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "xadd",
    group: Group::Stream,
    since: "5.0.0",
    complexity: "O(1), and O(N) for a trim of N entries.",
    summary: "Appends an entry to a stream, which is created if it is missing.",
    arity: -5,
    flags: flag!(WRITE | DENYOOM | FAST),
    keys: &[KeySpec::one(1, key!(RW | UPDATE))],
    tips: &["nondeterministic_output"],
    run: Run::Keys(xadd),
    ..Spec::NEW
}];
