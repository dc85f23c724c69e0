//! ACL DRYRUN, LOG and GENPASS.

use crate::command::registry;
use crate::routing::{Call, CallOutcome};
use flagstone_commands::help::syntax;
use flagstone_commands::{arg, error, int_arg, is_word};
use flagstone_wire::resp::Args;

/// Number of entries that ACL LOG shows by default.
const DEFAULT_COUNT: usize = 10;

/// Bits of a generated password by default, and the maximum.
const DEFAULT_BITS: i64 = 256;
const MAX_BITS: i64 = 4096;

/// `ACL DRYRUN name command [arg …]`
pub(super) fn dryrun(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let (name, inner) = (arg(args, 2)?, args.skip(3));
    let account = cx
        .node
        .access
        .accounts
        .get(name)
        .ok_or_else(|| [b"ERR User '", name, b"' not found"].concat())?;
    let word = arg(args, 3)?;
    let command = registry::resolve(inner)
        .ok_or_else(|| [b"ERR Command '", word, b"' not found"].concat())?;
    if !command.spec.arity_allows(inner.len()) {
        return Err(error::arity(command.full_name).into());
    }
    match account.user().check(command, inner) {
        Ok(()) => cx.out.ok(),
        Err(denied) => cx.out.bulk(&denied.detailed_text(&account.name, command, inner)),
    }
    Ok(())
}

/// `ACL LOG [count | RESET]`
pub(super) fn log(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let count = match args.get(2) {
        _ if args.len() > 3 => return Err(syntax("ACL", arg(args, 1)?).into()),
        None => DEFAULT_COUNT,
        Some(word) if is_word(word, "reset") => {
            cx.node.access.denials.clear();
            cx.out.ok();
            return Ok(());
        }
        Some(_) => usize::try_from(int_arg(args, 2)?).unwrap_or(0),
    };
    let (entries, now_ms) = (cx.node.access.denials.latest(count), cx.node.clock.now_ms());
    let out = &mut *cx.out;
    out.array(entries.len());
    for entry in entries {
        out.map(10);
        out.bulk_str("count");
        out.int(entry.count.cast_signed());
        out.bulk_str("reason");
        out.bulk_str(entry.access.reason.name());
        out.bulk_str("context");
        out.bulk_str(entry.access.context.name());
        out.bulk_str("object");
        out.bulk(entry.object());
        out.bulk_str("username");
        out.bulk(entry.user());
        out.bulk_str("age-seconds");
        out.double(now_ms.saturating_sub(entry.updated_ms) as f64 / 1000.0);
        out.bulk_str("client-info");
        out.bulk(&entry.client);
        out.bulk_str("entry-id");
        out.int(entry.id.cast_signed());
        out.bulk_str("timestamp-created");
        out.int(entry.created_ms.cast_signed());
        out.bulk_str("timestamp-last-updated");
        out.int(entry.updated_ms.cast_signed());
    }
    Ok(())
}

/// `ACL GENPASS [bits]`
pub(super) fn genpass(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let bits = match args.get(2) {
        _ if args.len() > 3 => return Err(syntax("ACL", arg(args, 1)?).into()),
        None => DEFAULT_BITS,
        Some(_) => int_arg(args, 2)?,
    };
    if !(1..=MAX_BITS).contains(&bits) {
        return Err(format!(
            "ERR ACL GENPASS argument must be the number of bits for the output password, a \
            positive number up to {MAX_BITS}"
        )
        .into());
    }
    // The thread's generator is a cryptographic one, seeded by the system.
    let digits = (bits + 3) / 4;
    let digit = |_| char::from(b"0123456789abcdef"[rand::random_range(0..16)]);
    cx.out.bulk_str(&(0..digits).map(digit).collect::<String>());
    Ok(())
}
