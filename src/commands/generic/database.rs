//! Counting, emptying and exchanging whole databases.

use super::existing_db;
use crate::commands::{
    Call, Group, Outcome, Run, Spec, Stop, Waiting, acl, arg, error, flag, is_word,
};
use crate::resp::Args;
use crate::routing;
use crate::worker::Worker;
use std::rc::Rc;

/// Checks the option of FLUSHDB and FLUSHALL. Both ways are the same here: the keys are gone at
/// once, their memory is given back in the background.
fn check_flush_option(args: Args<'_>) -> Result<(), Stop> {
    match (args.len(), args.get(1)) {
        (1, _) => Ok(()),
        (2, Some(word)) if is_word(word, "sync") || is_word(word, "async") => Ok(()),
        _ => Err(error::SYNTAX.into()),
    }
}

/// Number of databases.
fn databases(call: &Call<'_>) -> u32 {
    call.worker.partition.borrow().store.databases()
}

/// `DBSIZE`
fn dbsize<'a>(call: &'a mut Call<'_>, _args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let db = call.session.db;
        let count = move |worker: Rc<Worker>| async move { worker.key_count(db).await };
        let counts = routing::on_all(call.node, false, count).await;
        let mut keys = 0;
        for counted in counts.map_err(|_| "ERR a worker is gone")? {
            keys += counted?.0;
        }
        call.out.int(keys.cast_signed());
        Ok(())
    })
}

/// `FLUSHDB [ASYNC | SYNC]`
fn flushdb<'a>(call: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        check_flush_option(args)?;
        routing::flush(call.worker, vec![call.session.db]).await?;
        call.out.ok();
        Ok(())
    })
}

/// `FLUSHALL [ASYNC | SYNC]`
fn flushall<'a>(call: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        check_flush_option(args)?;
        let all = (0..databases(call)).collect();
        routing::flush(call.worker, all).await?;
        call.out.ok();
        Ok(())
    })
}

/// `SWAPDB index1 index2`
fn swapdb<'a>(call: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move { swap(call, args).await })
}

async fn swap(call: &mut Call<'_>, args: Args<'_>) -> Outcome {
    let index = |at: usize, wrong: &'static str| {
        let number = crate::num::parse_i64(arg(args, at)?).and_then(|n| i32::try_from(n).ok());
        number.ok_or(Stop::from(wrong))
    };
    let first = index(1, "ERR invalid first DB index")?;
    let second = index(2, "ERR invalid second DB index")?;
    let databases = databases(call);
    let (first, second) = (existing_db(first, databases)?, existing_db(second, databases)?);
    if first != second {
        routing::swap(call.worker, first, second).await?;
    }
    call.out.ok();
    Ok(())
}

/// What the flushing commands have in common.
const FLUSHES: Spec = Spec {
    group: Group::Server,
    arity: -1,
    flags: flag::WRITE,
    acl: acl::KEYSPACE | acl::DANGEROUS,
    tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
    ..Spec::NEW
};

/// Commands on whole databases.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "dbsize",
        group: Group::Server,
        summary: "Counts the keys of the selected database.",
        arity: 1,
        flags: flag::READONLY | flag::FAST,
        acl: acl::KEYSPACE,
        tips: &["request_policy:all_shards", "response_policy:agg_sum"],
        run: Run::Wait(dbsize),
        ..Spec::NEW
    },
    Spec {
        name: "flushdb",
        summary: "Deletes every key of the selected database.",
        run: Run::Wait(flushdb),
        ..FLUSHES
    },
    Spec {
        name: "flushall",
        summary: "Deletes every key of every database.",
        run: Run::Wait(flushall),
        ..FLUSHES
    },
    Spec {
        name: "swapdb",
        group: Group::Server,
        since: "4.0.0",
        summary: "Exchanges the contents of two databases.",
        arity: 3,
        flags: flag::WRITE | flag::FAST,
        acl: acl::KEYSPACE | acl::DANGEROUS,
        run: Run::Wait(swapdb),
        ..Spec::NEW
    },
];
