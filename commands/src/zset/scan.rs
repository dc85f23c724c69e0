//! ZSCAN.

use super::{READS, key_arg};
use crate::scan::{self, ScanOptions};
use crate::{Ctx, Group, Outcome, Run, Spec, arg, flag};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Zset;
use flagstone_wire::num::{format_f64, format_f64_in_full};
use flagstone_wire::resp::Args;

/// `ZSCAN key cursor [MATCH pattern] [COUNT count] [NOSCORES]`
///
/// A listpack is returned whole, in order. The scores of a skiplist have 17 digits.
fn zscan(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    let layout = cx.store.layout().clone();
    let from = scan::parse_place(arg(args, 2)?, &layout)?;
    let mut shown: Vec<Box<[u8]>> = Vec::new();
    let Some(zset) = cx.store.typed::<Zset>(cx.db, key)? else {
        scan::reply(cx.out, 0, &shown);
        return Ok(());
    };
    let options = ScanOptions::parse(args, "ZSCAN")?;
    let mut visit = |name: &[u8], score: f64| {
        if !options.takes(name) {
            return;
        }
        shown.push(name.into());
        if !options.names_only {
            shown.push(match zset.is_skiplist() {
                true => format_f64_in_full(score).into_bytes().into(),
                false => format_f64(score).as_bytes().into(),
            });
        }
    };
    let next = if zset.is_skiplist() {
        let place = |name: &[u8]| scan::place(&layout, name);
        let next = zset.scan(from, options.count, place, visit).or_load(cx.db, key)?;
        scan::cursor(&layout, next)
    } else {
        zset.require_all().or_load(cx.db, key)?;
        zset.iter().for_each(|(name, score)| visit(name, score));
        0
    };
    scan::reply(cx.out, next, &shown);
    Ok(())
}

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "zscan",
    group: Group::SortedSet,
    since: "2.8.0",
    complexity: "O(1) for each call, O(N) for a whole scan of N members.",
    summary: "Iterates over the members and their scores.",
    arity: -3,
    flags: flag!(READONLY),
    keys: READS,
    tips: &["nondeterministic_output"],
    run: Run::Keys(zscan),
    ..Spec::NEW
}];
