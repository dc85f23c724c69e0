//! Commands that count, flush and swap whole databases.

use crate::commands::{Handler, Spec};
use crate::routing::{CallOutcome, Databases, Waiting};
use flagstone_commands::generic::existing_db;
use flagstone_commands::{ErrorText, Group, acl, arg, error, flag, is_word};
use flagstone_wire::resp::Args;

/// Checks the option of FLUSHDB and FLUSHALL. SYNC and ASYNC are the same: the keys are removed at
/// once, and their memory is freed in the background.
fn check_flush_option(args: Args<'_>) -> Result<(), ErrorText> {
    match (args.len(), args.get(1)) {
        (1, _) => Ok(()),
        (2, Some(word)) if is_word(word, "sync") || is_word(word, "async") => Ok(()),
        _ => Err(error::SYNTAX.into()),
    }
}

/// `DBSIZE`
fn dbsize<'a>(dbs: &'a mut Databases<'_>, _args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let keys = dbs.key_count().await?;
        dbs.out.int(keys.cast_signed());
        Ok(())
    })
}

/// `FLUSHDB [ASYNC | SYNC]`
fn flushdb<'a>(dbs: &'a mut Databases<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        check_flush_option(args)?;
        dbs.flush(vec![dbs.db]).await?;
        dbs.out.ok();
        Ok(())
    })
}

/// `FLUSHALL [ASYNC | SYNC]`
fn flushall<'a>(dbs: &'a mut Databases<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        check_flush_option(args)?;
        dbs.flush((0..dbs.count()).collect()).await?;
        dbs.out.ok();
        Ok(())
    })
}

/// `SWAPDB index1 index2`
fn swapdb<'a>(dbs: &'a mut Databases<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move { swap(dbs, args).await })
}

async fn swap(dbs: &mut Databases<'_>, args: Args<'_>) -> CallOutcome {
    if dbs.worker.settings().cluster_enabled {
        return Err("ERR SWAPDB is not allowed in cluster mode".into());
    }
    let index = |at: usize, wrong: &'static str| {
        let number =
            flagstone_wire::num::parse_i64(arg(args, at)?).and_then(|n| i32::try_from(n).ok());
        number.ok_or(ErrorText::from(wrong))
    };
    let first = index(1, "ERR invalid first DB index")?;
    let second = index(2, "ERR invalid second DB index")?;
    let databases = dbs.count();
    let (first, second) = (existing_db(first, databases)?, existing_db(second, databases)?);
    if first != second {
        dbs.swap(first, second).await?;
    }
    dbs.out.ok();
    Ok(())
}

/// Base of the flushing commands.
const FLUSHES: Spec = Spec {
    group: Group::Server,
    arity: -1,
    flags: flag!(WRITE | ALL_SHARDS),
    acl: acl!(KEYSPACE | DANGEROUS),
    tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
    ..Spec::NEW
};

/// Declarations of the commands on whole databases.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "dbsize",
        group: Group::Server,
        summary: "Counts the keys of the selected database.",
        arity: 1,
        flags: flag!(READONLY | FAST | ALL_SHARDS),
        acl: acl!(KEYSPACE),
        tips: &["request_policy:all_shards", "response_policy:agg_sum"],
        run: Handler::Databases(dbsize),
        ..Spec::NEW
    },
    Spec {
        name: "flushdb",
        summary: "Deletes every key of the selected database.",
        run: Handler::Databases(flushdb),
        ..FLUSHES
    },
    Spec {
        name: "flushall",
        summary: "Deletes every key of every database.",
        run: Handler::Databases(flushall),
        ..FLUSHES
    },
    Spec {
        name: "swapdb",
        group: Group::Server,
        since: "4.0.0",
        summary: "Exchanges the contents of two databases.",
        arity: 3,
        flags: flag!(WRITE | FAST),
        acl: acl!(KEYSPACE | DANGEROUS),
        run: Handler::Databases(swapdb),
        ..Spec::NEW
    },
];
