//! HRANDFIELD.

use super::{READS, key_arg};
use crate::commands::{Ctx, Group, Outcome, Run, Spec, arg, error, flag, int_arg, is_word};
use crate::resp::{Args, Reply};
use flagstone_storage::Store;
use flagstone_storage::store::{Fault, OrLoad};
use flagstone_storage::value::{Hash, Value};

/// Most fields that one command may draw with repetition; a reply of more would not fit anywhere.
const MAX_DRAWS: u64 = 1 << 24;

/// The hash of a key, all in memory and without expired fields; `None` if the key does not exist.
fn live_hash<'a>(store: &'a mut Store, db: u32, key: &[u8]) -> Result<Option<&'a Hash>, Fault> {
    let now_ms = store.now_ms();
    let Some(hash) = store.hash(db, key)? else { return Ok(None) };
    hash.require_all().or_load(db, key)?;
    if hash.is_due(now_ms) {
        store.expire_fields(db, key);
    }
    let entry = store.peek(db, key)?;
    Ok(entry.and_then(|entry| match &entry.value {
        Value::Hash(hash) => Some(&**hash),
        _ => None,
    }))
}

/// `HRANDFIELD key [count [WITHVALUES]]`
///
/// All of the hash must be in memory: O(N) in its size when it is not.
fn hrandfield(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    if args.len() == 2 {
        let hash = live_hash(cx.store, cx.db, key)?;
        let name = hash.and_then(|hash| hash.at(draw(hash)?)).map(|(name, _)| name);
        cx.out.bulk_or_null(name);
        return Ok(());
    }
    let count = int_arg(args, 2)?;
    if count == i64::MIN {
        let (min, max) = (-i64::MAX, i64::MAX);
        return Err(format!("ERR value is out of range, value must between {min} and {max}").into());
    }
    if args.len() > 4 || (args.len() == 4 && !is_word(arg(args, 3)?, "WITHVALUES")) {
        return Err(error::SYNTAX.into());
    }
    let with_values = args.len() == 4;
    let too_many = with_values && count.unsigned_abs() > i64::MAX as u64 / 2;
    if too_many || (count < 0 && count.unsigned_abs() > MAX_DRAWS) {
        return Err("ERR value is out of range".into());
    }
    match live_hash(cx.store, cx.db, key)? {
        Some(hash) if count != 0 => reply_fields(cx.out, hash, count, with_values),
        _ => cx.out.array(0),
    }
    Ok(())
}

/// The position of a field drawn at random.
fn draw(hash: &Hash) -> Option<usize> {
    let len = hash.len() as usize;
    (len > 0).then(|| rand::random_range(0..len))
}

/// `count` distinct fields in no certain order, or `-count` that may repeat.
fn reply_fields(out: &mut Reply, hash: &Hash, count: i64, with_values: bool) {
    let len = hash.len() as usize;
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let shown = if count < 0 { wanted } else { wanted.min(len) };
    out.array(if with_values && !out.is_resp3() { shown * 2 } else { shown });
    let mut reply = |index| {
        let Some((name, field)) = hash.at(index) else { return };
        if with_values && out.is_resp3() {
            out.array(2);
        }
        out.bulk(name);
        if with_values {
            out.bulk(&field.value);
        }
    };
    if count < 0 {
        (0..shown).filter_map(|_| draw(hash)).for_each(reply);
    } else if shown == len {
        (0..len).for_each(reply);
    } else {
        rand::seq::index::sample(&mut rand::rng(), len, shown).iter().for_each(&mut reply);
    }
}

/// The commands of this file.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "hrandfield",
    group: Group::Hash,
    since: "6.2.0",
    complexity: "O(N) where N is the number of fields returned.",
    summary: "Returns fields drawn at random.",
    arity: -2,
    flags: flag::READONLY,
    keys: READS,
    tips: &["nondeterministic_output"],
    run: Run::Keys(hrandfield),
    ..Spec::NEW
}];
