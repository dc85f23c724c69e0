//! HRANDFIELD.

use super::{READS, key_arg};
use crate::{Ctx, Group, Outcome, Run, Spec, arg, draws, error, flag, is_word};
use flagstone_storage::Store;
use flagstone_storage::store::{Fault, OrLoad};
use flagstone_storage::value::{Field, Hash, Typed};
use flagstone_wire::resp::{Args, Reply};
use std::borrow::Cow;

/// Returns the hash of a key without its expired fields; `None` if the key does not exist.
fn live_hash<'a>(
    store: &'a mut Store,
    db: u32,
    key: &[u8],
) -> Result<Option<Cow<'a, Hash>>, Fault> {
    let due_ms = store.due_ms();
    let Some(hash) = store.hash(db, key)? else { return Ok(None) };
    if hash.is_due(due_ms) {
        hash.require_due(due_ms).or_load(db, key)?;
        if store.keeps_expired() {
            let mut live = store.hash(db, key)?.cloned();
            live.as_mut().map(|hash| hash.remove_expired(due_ms));
            return Ok(live.filter(|hash| !hash.is_empty()).map(Cow::Owned));
        }
        store.expire_fields(db, key);
    }
    let entry = store.peek(db, key)?;
    Ok(entry.and_then(|entry| Hash::of(&entry.value)).map(Cow::Borrowed))
}

/// `HRANDFIELD key [count [WITHVALUES]]`
fn hrandfield(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    if args.len() == 2 {
        let live = live_hash(cx.store, cx.db, key)?;
        let drawn = match &live {
            Some(hash) => hash.draw(1).or_load(cx.db, key)?.next(),
            None => None,
        };
        cx.out.bulk_or_null(drawn.map(|(name, _)| name));
        return Ok(());
    }
    let count = draws::count_arg(args, 2)?;
    if args.len() > 4 || (args.len() == 4 && !is_word(arg(args, 3)?, "WITHVALUES")) {
        return Err(error::SYNTAX.into());
    }
    let with_values = args.len() == 4;
    if with_values && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err("ERR value is out of range".into());
    }
    let wanted = draws::draw_count(count)?;
    let live = live_hash(cx.store, cx.db, key)?;
    let drawn = match &live {
        None => Vec::new(),
        Some(hash) if count < 0 => {
            reply(cx.out, hash.draw(wanted).or_load(cx.db, key)?, with_values);
            return Ok(());
        }
        Some(hash) => hash.sample(wanted).or_load(cx.db, key)?,
    };
    reply(cx.out, drawn.into_iter(), with_values);
    Ok(())
}

/// Replies with fields, and their values if `with_values`: in RESP3 as pairs.
fn reply<'a>(
    out: &mut Reply,
    fields: impl ExactSizeIterator<Item = (&'a [u8], &'a Field)>,
    with_values: bool,
) {
    let pairs = with_values && out.is_resp3();
    out.array(if with_values && !pairs { fields.len() * 2 } else { fields.len() });
    draws::write_each(out, fields, |out, (name, field)| {
        if pairs {
            out.array(2);
        }
        out.bulk(name);
        if with_values {
            out.bulk(&field.value);
        }
    });
}

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "hrandfield",
    group: Group::Hash,
    since: "6.2.0",
    complexity: "O(N) where N is the number of fields returned.",
    summary: "Returns fields drawn at random.",
    arity: -2,
    flags: flag!(READONLY),
    keys: READS,
    tips: &["nondeterministic_output"],
    run: Run::Keys(hrandfield),
    ..Spec::NEW
}];
