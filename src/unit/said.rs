//! Runs handlers, and says what they have done for replicas (RFC 15).

use crate::command::Command;
use flagstone_commands::{Ctx, Outcome, Stop, flag};
use flagstone_wire::resp::Args;

/// Runs a handler of a command on keys. Its words are said, if it has changed something and has not
/// said itself what that was.
#[inline]
pub(crate) fn run<'a>(
    cx: &mut Ctx<'_>,
    command: &Command,
    args: Args<'a>,
    handler: impl FnOnce(&mut Ctx<'_>, Args<'a>) -> Outcome,
) -> Outcome {
    let (is_heard, before) = (cx.is_heard(), counts(cx));
    if is_heard {
        cx.store.words.begin_command(cx.store.stats.changes);
    }
    let outcome = handler(cx, args);
    debug_assert!(
        !matches!(outcome, Err(Stop::Miss(_)))
            || counts(cx).0 == before.0
            || counts(cx).1 != before.1,
        "{} has changed something before it missed data, and would do so again",
        command.full_name
    );
    // A script puts the arguments of its next command where these are.
    cx.store.forget_hint();
    // One that misses data runs again. A read that has changed something has found an expiry, which is said already.
    if is_heard
        && !matches!(outcome, Err(Stop::Miss(_)))
        && cx.store.words.is_unsaid(cx.store.stats.changes)
        && command.spec.has(flag!(WRITE))
    {
        say(cx, command, args);
    }
    if is_heard && outcome.is_ok() {
        cx.store.words.end_command();
    }
    outcome
}

/// Returns how much was changed so far, and how much has expired.
fn counts(cx: &Ctx<'_>) -> (u64, u64) {
    let stats = &cx.store.stats;
    (stats.changes, stats.expired + stats.expired_fields)
}

/// Says a command by its own words.
#[cold]
pub(crate) fn say(cx: &mut Ctx<'_>, command: &Command, args: Args<'_>) {
    let db = cx.db;
    cx.store.words.command(db, words_of(command, args).into_iter());
}

/// Returns the words of a command as every server knows it: `rename-command` may give it another
/// name here.
pub(crate) fn words_of<'a>(command: &Command, args: Args<'a>) -> Vec<&'a [u8]> {
    let mut words: Vec<&[u8]> = args.iter().collect();
    let declared = command.full_name.split('|').next().unwrap_or_default();
    if let Some(name) = words.first_mut()
        && !name.eq_ignore_ascii_case(declared.as_bytes())
    {
        *name = declared.as_bytes();
    }
    words
}
