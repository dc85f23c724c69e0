//! Reading new entries: XREAD.

use super::read_options::ReadOptions;
use super::{parse, reply_entries};
use crate::{
    Awaited, Begin, Block, Ctx, Find, Group, KeySpec, Nil, Outcome, Run, Spec, Stop, flag, key,
};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::{Stream, StreamId};
use flagstone_wire::resp::{Args, Mark, Reply};

/// Returns the id behind which a stream is read.
fn read_behind(cx: &mut Ctx<'_>, key: &[u8], id: &[u8]) -> Result<StreamId, Stop> {
    let stream = cx.store.typed::<Stream>(cx.db, key)?;
    let last = stream.map(Stream::last_id);
    match id {
        b"$" => Ok(last.unwrap_or_default()),
        b"+" => match last {
            Some(last) => last.prev().ok_or_else(|| "ERR the stream last element ID is 0-0".into()),
            None => Ok(StreamId::MIN),
        },
        b">" => Err(GROUPS_ONLY.into()),
        id => parse::id(id, 0),
    }
}

const GROUPS_ONLY: &str = "ERR The > ID can be specified only when calling XREADGROUP using the \
                           GROUP <group> <consumer> option.";

/// Begins the reply of streams by their keys.
pub(super) fn begin_streams(out: &mut Reply) -> Mark {
    if out.is_resp3() { out.begin_map() } else { out.begin_array() }
}

/// Ends the reply of so many streams. Without any, the command has nothing to read: with BLOCK, it
/// stops to wait, and replaces these arguments when it runs again.
pub(super) fn end_streams(
    out: &mut Reply,
    (mark, found): (Mark, usize),
    options: &ReadOptions<'_>,
    replaced: Vec<(usize, Vec<u8>)>,
) -> Outcome {
    if found > 0 {
        out.end(mark, found);
        return Ok(());
    }
    out.discard(mark);
    let Some(until_ms) = options.until_ms else {
        out.null_array();
        return Ok(());
    };
    let keys = options.streams().map(|(key, _)| key.into()).collect();
    let on = if options.group.is_some() { Awaited::Group } else { Awaited::Stream };
    Err(Stop::Block(Box::new(Block { keys, on, until_ms, nil: Nil::Array, replaced })))
}

/// `XREAD [COUNT count] [BLOCK ms] STREAMS key… id…`
fn xread(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let options = ReadOptions::parse(args, false, cx.now_ms())?;
    let mut streams = Vec::with_capacity(options.streams().len());
    let mut replaced = Vec::new();
    for (n, (key, id)) in options.streams().enumerate() {
        if !cx.is_here(key) {
            continue;
        }
        let behind = read_behind(cx, key, id)?;
        if matches!(id, b"$" | b"+") {
            replaced.push((options.id_at(n), format!("{}-{}", behind.ms, behind.seq).into_bytes()));
        }
        streams.push((key, behind));
    }
    let mut found = 0;
    let mark = begin_streams(cx.out);
    for (key, id) in streams {
        let Some(stream) = cx.store.typed::<Stream>(cx.db, key)? else { continue };
        let Some(from) = id.next().filter(|from| *from <= stream.last_id()) else { continue };
        let entries = stream.range(from, StreamId::MAX, options.count, false);
        let mut entries = entries.or_load(cx.db, key)?.peekable();
        if entries.peek().is_none() {
            continue;
        }
        if !cx.out.is_resp3() {
            cx.out.array(2);
        }
        cx.out.bulk(key);
        reply_entries(cx.out, entries);
        found += 1;
        if cx.out.is_lost() {
            break;
        }
    }
    end_streams(cx.out, (mark, found), &options, replaced)
}

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "xread",
    group: Group::Stream,
    since: "5.0.0",
    complexity: "O(log(N)+M) for each stream, where N is the number of its nodes and M the number of entries returned.",
    summary: "Returns entries of streams behind the given ids.",
    arity: -4,
    flags: flag!(READONLY | BLOCKING | MOVABLE_KEYS),
    keys: &[KeySpec {
        flags: key!(RO | ACCESS),
        begin: Begin::Keyword("STREAMS", 1),
        find: Find::Range { last: -1, step: 1, limit: 2 },
    }],
    blocks: ReadOptions::has_block,
    run: Run::Keys(xread),
    ..Spec::NEW
}];
