//! SSCAN.

use super::{READS, key_arg};
use crate::scan::{self, ScanOptions};
use crate::{Ctx, Group, Outcome, Run, Spec, arg, flag};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::{Set, SetEncoding};
use flagstone_wire::resp::Args;

/// `SSCAN key cursor [MATCH pattern] [COUNT count]`
///
/// An intset and a listpack are returned whole.
fn sscan(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    let layout = cx.store.layout().clone();
    let from = scan::parse_place(arg(args, 2)?, &layout)?;
    let mut shown: Vec<&[u8]> = Vec::new();
    let Some(set) = cx.store.typed::<Set>(cx.db, key)? else {
        scan::reply(cx.out, 0, &shown);
        return Ok(());
    };
    let options = ScanOptions::parse(args, "SSCAN")?;
    let next = if set.encoding() == SetEncoding::Table {
        let place = |name: &[u8]| scan::place(&layout, name);
        let visit = |name| {
            if options.takes(name) {
                shown.push(name);
            }
        };
        let next = set.scan(from, options.count, place, visit).or_load(cx.db, key)?;
        scan::cursor(&layout, next)
    } else {
        set.require_all().or_load(cx.db, key)?;
        shown.extend(set.members().into_iter().filter(|name| options.takes(name)));
        0
    };
    scan::reply(cx.out, next, &shown);
    Ok(())
}

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "sscan",
    group: Group::Set,
    since: "2.8.0",
    complexity: "O(1) for each call, O(N) for a whole scan of N members.",
    summary: "Iterates over the members.",
    arity: -3,
    flags: flag!(READONLY),
    keys: READS,
    tips: &["nondeterministic_output"],
    run: Run::Keys(sscan),
    ..Spec::NEW
}];
