//! FLAGSTONE HOTKEYS and BIGKEYS: keys that stand out, known without a scan.

use crate::routing::{Call, Waiting};
use crate::worker::{HotKey, MAX_HOT, Worker};
use flagstone_storage::store::BigKey;
use flagstone_wire::resp::Args;
use std::rc::Rc;

/// `FLAGSTONE HOTKEYS`: the keys that commands named most often in the last ten seconds.
pub(super) fn hot_keys<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let last = |worker: Rc<Worker>| async move { worker.hot_keys.last() };
        let told = cx.worker.peers.on_all(true, last).await.map_err(|_| "ERR a worker is gone")?;
        let all = merged(told.into_iter().flatten());
        cx.out.array(all.len());
        for HotKey { db, key, per_second } in all {
            cx.out.map(3);
            cx.out.bulk_str("db");
            cx.out.int(db.into());
            cx.out.bulk_str("key");
            cx.out.bulk(&key);
            cx.out.bulk_str("per-second");
            cx.out.int(per_second.round() as i64);
        }
        Ok(())
    })
}

/// Adds up the rates that several workers report for a key: a coordinator may run on any of them.
fn merged(told: impl Iterator<Item = HotKey>) -> Vec<HotKey> {
    let mut all: Vec<HotKey> = Vec::new();
    for hot in told {
        match all.iter_mut().find(|known| known.db == hot.db && known.key == hot.key) {
            Some(known) => known.per_second += hot.per_second,
            None => all.push(hot),
        }
    }
    all.sort_by(|one, other| other.per_second.total_cmp(&one.per_second));
    all.truncate(MAX_HOT);
    all
}

/// `FLAGSTONE BIGKEYS`: the biggest keys of each type that were written or loaded.
pub(super) fn big_keys<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let look =
            |worker: Rc<Worker>| async move { worker.partition.borrow_mut().store.big_keys() };
        let told = cx.worker.peers.on_all(true, look).await.map_err(|_| "ERR a worker is gone")?;
        let mut all: Vec<BigKey> = told.into_iter().flatten().collect();
        all.sort_by(|one, other| {
            one.type_name.cmp(other.type_name).then(other.size.cmp(&one.size))
        });
        cx.out.array(all.len());
        for BigKey { db, key, type_name, size } in all {
            cx.out.map(4);
            cx.out.bulk_str("db");
            cx.out.int(db.into());
            cx.out.bulk_str("key");
            cx.out.bulk(&key);
            cx.out.bulk_str("type");
            cx.out.bulk_str(type_name);
            cx.out.bulk_str("size");
            cx.out.int(size.cast_signed());
        }
        Ok(())
    })
}
