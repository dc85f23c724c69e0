//! The keys in slots: CLUSTER COUNTKEYSINSLOT, GETKEYSINSLOT and SLOT-STATS.

use super::{enabled, slot_arg};
use crate::cluster::WholeLook;
use crate::routing::{Call, CallOutcome, CallStop, Waiting};
use crate::worker::{Cursor, Worker};
use flagstone_commands::{ErrorText, arg, error, is_word};
use flagstone_storage::slot::SLOTS;
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;
use std::ops::RangeInclusive;
use std::rc::Rc;

/// Maximum number of keys that GETKEYSINSLOT requests at once.
const PAGE: usize = 1024;

const GONE: &str = "ERR a worker is gone";

/// Begins a look at the keys of this server; `None`: no shard ever comes or goes.
fn begin_look(cx: &Call<'_>) -> Result<Option<WholeLook>, CallStop> {
    Ok(cx.node.cluster.as_ref().map(|cluster| cluster.begin_look()).transpose()?)
}

fn check_look(cx: &Call<'_>, look: Option<WholeLook>) -> CallOutcome {
    match (&cx.node.cluster, look) {
        (Some(cluster), Some(look)) => Ok(cluster.check_look(&look)?),
        _ => Ok(()),
    }
}

/// `CLUSTER COUNTKEYSINSLOT slot`
pub(super) fn count_keys<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        enabled(&cx.worker.settings())?;
        let look = begin_look(cx)?;
        let slot = slot_arg(args, 2, "ERR Invalid slot")?;
        let target = cx.node.worker_of(slot);
        let count = move |worker: Rc<Worker>| async move { worker.slot_counts(slot..=slot).await };
        let counts = cx.worker.peers.on_worker(target, false, count).await.map_err(|_| GONE)??;
        check_look(cx, look)?;
        cx.out.int(counts.first().map_or(0, |(_, keys)| i64::from(*keys)));
        Ok(())
    })
}

/// `CLUSTER GETKEYSINSLOT slot count`
pub(super) fn get_keys<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        enabled(&cx.worker.settings())?;
        let look = begin_look(cx)?;
        const WRONG: &str = "ERR Invalid slot or number of keys";
        let slot = slot_arg(args, 2, WRONG)?;
        let wanted = parse_i64(arg(args, 3)?).ok_or(error::NOT_INTEGER)?;
        let wanted = usize::try_from(wanted).map_err(|_| WRONG)?;
        let mut left = wanted;
        let target = cx.node.worker_of(slot);
        let mut found = Vec::new();
        let mut next = Some(Cursor { slot, hash48: 0 });
        while let Some(from) = next.filter(|from| left > 0 && from.slot == slot) {
            let limit = left.min(PAGE);
            let scan = move |worker: Rc<Worker>| async move { worker.scan(0, from, limit).await };
            let scanned = cx.worker.peers.on_worker(target, false, scan).await;
            let (page, _) = scanned.map_err(|_| GONE)??;
            let of_slot = |key: &[u8]| flagstone_storage::slot::slot_of(key) == slot;
            let keys = page.keys.into_iter().map(|found| found.key);
            found.extend(keys.filter(|key| of_slot(key)).take(left));
            left = wanted - found.len();
            next = page.next;
        }
        check_look(cx, look)?;
        cx.out.array(found.len());
        found.iter().for_each(|key| cx.out.bulk(key));
        Ok(())
    })
}

/// Order of the slots in the reply.
struct SlotOrder {
    limit: usize,
    descending: bool,
}

fn order(args: Args<'_>) -> Result<SlotOrder, ErrorText> {
    if !is_word(arg(args, 3)?, "key-count") {
        return Err("ERR Unrecognized sort metric for ORDERBY.".into());
    }
    let mut order = SlotOrder { limit: usize::from(SLOTS), descending: true };
    let (mut limits, mut directions) = (0, 0);
    let mut at = 4;
    while let Some(word) = args.get(at) {
        if is_word(word, "limit") && at + 1 < args.len() {
            const RANGE: &str =
                "ERR Limit has to lie in between 1 and 16384 (maximum number of slots).";
            let limit = parse_i64(arg(args, at + 1)?).and_then(|n| usize::try_from(n).ok());
            order.limit = limit
                .filter(|n| (1..=usize::from(SLOTS)).contains(n))
                .ok_or(ErrorText::from(RANGE))?;
            limits += 1;
            at += 1;
        } else if is_word(word, "asc") || is_word(word, "desc") {
            order.descending = is_word(word, "desc");
            directions += 1;
        } else {
            return Err(error::SYNTAX.into());
        }
        if limits > 1 || directions > 1 {
            return Err("ERR Multiple filters of the same type are disallowed.".into());
        }
        at += 1;
    }
    Ok(order)
}

fn range(args: Args<'_>) -> Result<RangeInclusive<u16>, ErrorText> {
    let slot = |at| slot_arg(args, at, "ERR Invalid or out of range slot");
    let (start, end) = (slot(3)?, slot(4)?);
    if start > end {
        let text = format!("ERR Start slot number {start} is greater than end slot number {end}");
        return Err(text.into());
    }
    Ok(start..=end)
}

/// `CLUSTER SLOT-STATS SLOTSRANGE start end`, and with `ORDERBY key-count [LIMIT limit] [ASC|DESC]`
pub(super) fn stats<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        enabled(&cx.worker.settings())?;
        let look = begin_look(cx)?;
        let (slots, order) = match args.get(2) {
            Some(word) if is_word(word, "slotsrange") && args.len() == 5 => (range(args)?, None),
            Some(word) if is_word(word, "orderby") => (0..=SLOTS - 1, Some(order(args)?)),
            _ => {
                return Err("ERR unknown subcommand or wrong number of arguments for \
                    'slot-stats'. Try CLUSTER HELP."
                    .into());
            }
        };
        let count = move |worker: Rc<Worker>| {
            let slots = slots.clone();
            async move { worker.slot_counts(slots).await }
        };
        let mut all = Vec::new();
        for counts in cx.worker.peers.on_all(false, count).await.map_err(|_| GONE)? {
            all.extend(counts?);
        }
        all.sort_unstable();
        if let Some(order) = order {
            match order.descending {
                true => all.sort_by_key(|(_, keys)| std::cmp::Reverse(*keys)),
                false => all.sort_by_key(|(_, keys)| *keys),
            }
            all.truncate(order.limit);
        }
        check_look(cx, look)?;
        cx.out.array(all.len());
        for (slot, keys) in all {
            cx.out.array(2);
            cx.out.int(i64::from(slot));
            cx.out.map(1);
            cx.out.bulk_str("key-count");
            cx.out.int(i64::from(keys));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::command::registry;
    use crate::routing::shows_data;

    #[test]
    fn what_says_something_of_keys_waits_for_a_proof_of_ownership() {
        crate::commands::install(&[]).unwrap();
        let cluster = registry::lookup(b"cluster").unwrap();
        let shown = |name: &str| shows_data(cluster.subcommand(name.as_bytes()).unwrap());
        for name in ["countkeysinslot", "getkeysinslot", "slot-stats"] {
            assert!(shown(name), "{name}");
        }
        assert!(!shown("info") && !shown("nodes") && !shown("beat"));
    }
}
