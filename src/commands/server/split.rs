//! FLAGSTONE SPLIT: makes one shard two while clients use it.

use crate::routing::{Call, Waiting};
use crate::worker::Worker;
use flagstone_commands::{ErrorText, arg, error};
use flagstone_storage::slot::SplitPlan;
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;
use std::rc::Rc;

const CLUSTER: &str =
    "ERR in a cluster of several servers, `flagstone cluster split` splits shards";

fn number(args: Args<'_>, at: usize, unknown: &'static str) -> Result<u16, ErrorText> {
    let number = parse_i64(arg(args, at)?).ok_or(error::NOT_INTEGER)?;
    u16::try_from(number).map_err(|_| unknown.into())
}

/// `FLAGSTONE SPLIT shard [slot]`: the slots of a shard from `slot` on, or its upper half, become a shard of
/// their own, whose number is the reply.
pub(super) fn split<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let splitter = cx.node.splitter.clone().ok_or(CLUSTER)?;
        let shard = number(args, 2, "ERR there is no such shard")?;
        let at = match args.len() {
            3 => None,
            4 => Some(number(args, 3, "ERR there is no such slot")?),
            _ => return Err(error::SYNTAX.into()),
        };
        SplitPlan::new(&cx.node.layout, shard, at).map_err(|why| format!("ERR {why}"))?;
        let target = cx.node.worker_of_shard(shard);
        let split = move |worker: Rc<Worker>| worker.split_shard(shard, at, splitter);
        let into = cx.worker.peers.on_worker(target, false, split).await;
        let into = into.map_err(|_| format!("ERR worker {target} is gone"))?;
        let into = into.map_err(|why| format!("ERR shard {shard} is not split: {why}"))?;
        cx.out.int(into.into());
        Ok(())
    })
}
