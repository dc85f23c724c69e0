//! HSCAN.

use super::{READS, key_arg};
use crate::scan::{self, ScanOptions};
use crate::{Ctx, Group, Outcome, Run, Spec, arg, flag};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Field;
use flagstone_wire::resp::Args;

/// `HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]`
///
/// A listpack is returned whole.
fn hscan(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    let due_ms = cx.due_ms();
    let layout = cx.store.layout().clone();
    let from = scan::parse_place(arg(args, 2)?, &layout)?;
    // The values go from the hash into the reply: they may be large.
    let mut shown: Vec<&[u8]> = Vec::new();
    let Some(hash) = cx.store.hash(cx.db, key)? else {
        scan::reply(cx.out, 0, &shown);
        return Ok(());
    };
    let options = ScanOptions::parse(args, "HSCAN")?;
    let shows = |name: &[u8], field: &Field| !field.is_expired(due_ms) && options.takes(name);
    let parts = if options.names_only { 1 } else { 2 };
    let next = if hash.is_table() {
        let place = |name: &[u8]| scan::place(&layout, name);
        let next = hash.scan(from, options.count, place, |name, field| {
            if shows(name, field) {
                shown.extend(&[name, &field.value][..parts]);
            }
        });
        let next = next.or_load(cx.db, key)?;
        scan::cursor(&layout, next)
    } else {
        hash.require_all().or_load(cx.db, key)?;
        let found = hash.iter().filter(|(name, field)| shows(name, field));
        found.for_each(|(name, field)| shown.extend(&[name, &field.value][..parts]));
        0
    };
    scan::reply(cx.out, next, &shown);
    Ok(())
}

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "hscan",
    group: Group::Hash,
    since: "2.8.0",
    complexity: "O(1) for each call, O(N) for a whole scan of N fields.",
    summary: "Iterates over the fields.",
    arity: -3,
    flags: flag!(READONLY),
    keys: READS,
    tips: &["nondeterministic_output"],
    run: Run::Keys(hscan),
    ..Spec::NEW
}];
