//! XINFO GROUPS and XINFO CONSUMERS.

use super::group::{no_group_of_key, reply_progress};
use crate::{Ctx, Outcome, arg, error};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Stream;
use flagstone_wire::resp::Args;

/// `XINFO GROUPS key`
pub(super) fn groups(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (db, key) = (cx.db, arg(args, 2)?);
    let stream = cx.store.typed::<Stream>(db, key)?.ok_or(error::NO_SUCH_KEY)?;
    cx.out.array(stream.groups().len() as usize);
    for row in stream.groups().iter() {
        let (name, group) = row.or_load(db, key)?;
        cx.out.map(6);
        cx.out.bulk_str("name");
        cx.out.bulk(name);
        cx.out.bulk_str("consumers");
        cx.out.count(group.consumers() as usize);
        cx.out.bulk_str("pending");
        cx.out.count(group.pending() as usize);
        reply_progress(cx.out, stream, group);
    }
    Ok(())
}

/// `XINFO CONSUMERS key group`
pub(super) fn consumers(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (db, key, name, now_ms) = (cx.db, arg(args, 2)?, arg(args, 3)?, cx.now_ms());
    let stream = cx.store.typed::<Stream>(db, key)?.ok_or(error::NO_SUCH_KEY)?;
    let group = stream.groups().group(name).or_load(db, key)?;
    let Some(group) = group else {
        return Err(no_group_of_key(key, name).into());
    };
    let consumers = stream.groups().consumers(group).or_load(db, key)?;
    let since = |ms: u64| now_ms.wrapping_sub(ms) as i64;
    cx.out.array(consumers.len());
    for (_, consumer) in consumers {
        cx.out.map(4);
        cx.out.bulk_str("name");
        cx.out.bulk(consumer.name());
        cx.out.bulk_str("pending");
        cx.out.count(consumer.pending() as usize);
        cx.out.bulk_str("idle");
        cx.out.int(since(consumer.seen_ms()).max(0));
        cx.out.bulk_str("inactive");
        cx.out.int(consumer.active_ms().map_or(-1, since));
    }
    Ok(())
}
