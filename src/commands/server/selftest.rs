//! PFSELFTEST: tests HyperLogLog.

use crate::commands::{Handler, Spec};
use crate::routing::{Call, Waiting};
use flagstone_commands::hyperloglog::self_test;
use flagstone_commands::{Group, acl, flag};
use flagstone_wire::resp::Args;

/// `PFSELFTEST`: takes a while, so it does not run on a worker's thread.
fn pfselftest<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let sparse_max = cx.worker.settings().data.hll_sparse_max_bytes;
        let tested = cx.node.background.spawn_blocking(move || self_test(sparse_max)).await;
        match tested {
            Ok(Ok(())) => cx.out.ok(),
            Ok(Err(text)) => return Err(format!("ERR TESTFAILED {text}").into()),
            Err(_) => return Err("ERR TESTFAILED the test did not come to its end".into()),
        }
        Ok(())
    })
}

/// Declarations of the commands that test the server itself.
pub const SELFTEST_COMMANDS: &[Spec] = &[Spec {
    name: "pfselftest",
    group: Group::Hyperloglog,
    since: "2.8.9",
    complexity: "O(1), but a second or so",
    summary: "Tests the sketches themselves.",
    arity: 1,
    flags: flag!(ADMIN),
    acl: acl!(HYPERLOGLOG),
    run: Handler::Wait(pfselftest),
    ..Spec::NEW
}];
