//! Commands on time, durability and the shutdown.

use crate::blocking::{DEMOTED, UNBLOCKED};
use crate::checkpoints::take_new;
use crate::clients::{Cancel, ClientState, Ended, Turn};
use crate::commands::{Handler, Spec};
use crate::node::{Node, ShutdownRequest};
use crate::replication::primary;
use crate::routing::{Call, CallOutcome, CallStop, Waiting};
use crate::unit::{Unit, UnitOutcome};
use crate::version::COMPATIBLE_VERSION;
use crate::worker::Peers;
use flagstone_commands::{Ctx, ErrorText, Group, acl, arg, error, flag};
use flagstone_storage::journal::Lsn;
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the journal's durable lsn is checked.
const POLL: Duration = Duration::from_millis(1);

/// Interval at which acknowledgements are counted even if none has come.
const RECOUNT: Duration = Duration::from_millis(100);

const NOT_STOPPED: &str = "ERR Errors trying to SHUTDOWN. Check logs.";

const MUST_BE_POSITIVE: &str = "ERR value is out of range, must be positive";

/// `TIME`
fn time(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let now_us = cx.node.clock.now_us().cast_signed();
    cx.out.array(2);
    cx.out.bulk_int(now_us / 1_000_000);
    cx.out.bulk_int(now_us % 1_000_000);
    Ok(())
}

fn time_in_unit(cx: &mut Ctx<'_>, _: &Unit<'_>, _: Args<'_>) -> UnitOutcome {
    let now_ms = cx.now_ms().cast_signed();
    cx.out.array(2);
    cx.out.bulk_int(now_ms / 1000);
    cx.out.bulk_int(now_ms % 1000 * 1000);
    Ok(())
}

/// Parses a timeout in ms; 0 means none.
fn timeout_arg(cx: &Call<'_>, text: &[u8]) -> Result<u64, ErrorText> {
    let ms = parse_i64(text).ok_or("ERR timeout is not an integer or out of range")?;
    let ms = u64::try_from(ms).map_err(|_| "ERR timeout is negative")?;
    match i64::try_from(cx.node.clock.now_ms() + ms) {
        Ok(_) => Ok(ms),
        Err(_) => Err("ERR timeout is out of range".into()),
    }
}

/// Waits for `done`, until the timeout (0: none) or CLIENT UNBLOCK ends the wait.
async fn block(cx: &mut Call<'_>, timeout_ms: u64, done: impl Future<Output = ()>) -> CallOutcome {
    let turn = Arc::new(Turn::default());
    let client = &cx.session.client;
    client.set_turn(&turn, timeout_ms != 0);
    let time_is_over = async {
        match timeout_ms {
            0 => pending().await,
            ms => tokio::time::sleep(Duration::from_millis(ms)).await,
        }
    };
    tokio::select! {
        () = done => {}
        () = time_is_over => {}
        // The turn's end is evaluated below.
        _ = turn.wait() => {}
    }
    client.end_turn(cx.node.clock.now_ms());
    match turn.ended() {
        Some(Ended::Cancelled(Cancel::Unblocked)) => Err(UNBLOCKED.into()),
        Some(Ended::Cancelled(Cancel::Demoted)) => {
            cx.session.closing = true;
            Err(DEMOTED.into())
        }
        Some(Ended::Cancelled(Cancel::Gone)) => Err(CallStop::Close),
        _ => Ok(()),
    }
}

/// Fails on a replica: no other server has its writes.
fn refuse_on_replica(cx: &Call<'_>, name: &str) -> CallOutcome {
    if cx.node.health.replica.is_following() {
        return Err(format!(
            "ERR {name} cannot be used with replica instances. Please also note that writes to \
             replicas are just local and are not propagated."
        )
        .into());
    }
    Ok(())
}

/// Returns the record for which replicas are waited for: it has the last change of any connection.
/// This connection's writes were answered before, and are in the journal.
fn last_change(node: &Node) -> Lsn {
    match node.followers.feed.is_on() {
        true => node.followers.feed.last_change(),
        false => node.journal.end(),
    }
}

/// Returns the number of replicas that have, or have stored, all records up to an lsn.
fn acknowledged(node: &Node, lsn: Lsn, is_stored: bool) -> usize {
    if let Some(cluster) = &node.cluster {
        // They have it from the bucket.
        let map = cluster.map();
        let given = map.owned_by(cluster.life()).map(|shard| shard.since).max();
        return cluster.copies.count(lsn, given.unwrap_or(0));
    }
    let offset = node.followers.offset_of(lsn);
    offset.map_or(0, |offset| node.followers.count(offset, is_stored))
}

/// Waits until so many replicas have, or have stored, all records up to an lsn.
async fn wait_acknowledged(
    node: &Node,
    peers: &Peers,
    lsn: Lsn,
    (replicas, is_stored): (i64, bool),
) {
    // Replicas are sent only what is durable.
    node.journal.request_sync(lsn);
    let _awaited = node.cluster.as_ref().map(|cluster| cluster.await_copies());
    if node.followers.feed.is_on() {
        // At the shutdown nobody is asked.
        let _ = primary::ask_for_acknowledgements(peers).await;
    }
    loop {
        let told = node.followers.acknowledged.notified();
        if acknowledged(node, lsn, is_stored) as i64 >= replicas {
            return;
        }
        // The stream may end, and begin anew, while nobody acknowledges.
        let _ = tokio::time::timeout(RECOUNT, told).await;
    }
}

/// `WAIT numreplicas timeout`
fn wait<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let replicas = parse_i64(arg(args, 1)?).ok_or(error::NOT_INTEGER)?;
        let timeout_ms = timeout_arg(cx, arg(args, 2)?)?;
        refuse_on_replica(cx, "WAIT")?;
        let (node, peers) = (cx.node.clone(), cx.worker.peers.clone());
        let end = last_change(&node);
        if (acknowledged(&node, end, false) as i64) < replicas && !cx.session.in_exec {
            let done = wait_acknowledged(&node, &peers, end, (replicas, false));
            block(cx, timeout_ms, done).await?;
        }
        cx.out.count(acknowledged(&node, end, false));
        Ok(())
    })
}

/// `WAITAOF numlocal numreplicas timeout`: waits until the connection's writes are durable.
fn waitaof<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let local = parse_i64(arg(args, 1)?).ok_or(error::NOT_INTEGER)?;
        if !(0..=1).contains(&local) {
            return Err("ERR value is out of range, value must between 0 and 1".into());
        }
        let replicas = parse_i64(arg(args, 2)?).filter(|&n| n >= 0).ok_or(MUST_BE_POSITIVE)?;
        let timeout_ms = timeout_arg(cx, arg(args, 3)?)?;
        refuse_on_replica(cx, "WAITAOF")?;
        // The connection's writes were answered before, and are in the journal.
        let (end, change) = (cx.node.journal.end(), last_change(cx.node));
        if !cx.session.in_exec {
            let (node, peers) = (cx.node.clone(), cx.worker.peers.clone());
            let done = async {
                if local > 0 {
                    wait_durable(&node, end).await;
                }
                if replicas > 0 {
                    wait_acknowledged(&node, &peers, change, (replicas, true)).await;
                }
            };
            block(cx, timeout_ms, done).await?;
        }
        cx.out.array(2);
        cx.out.int(i64::from(cx.node.journal.durable() >= end));
        cx.out.count(acknowledged(cx.node, change, true));
        Ok(())
    })
}

/// Waits until the journal is durable up to `end`, or has failed.
async fn wait_durable(node: &Node, end: Lsn) {
    let journal = &node.journal;
    journal.request_sync(end);
    while journal.durable() < end && journal.failed().is_none() {
        tokio::time::sleep(POLL).await;
    }
}

/// `SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE] [ABORT]`: every answered write is stored anyway; SAVE
/// takes a checkpoint first. ABORT takes a stop back that still waits for replicas.
fn shutdown<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let given: Vec<Vec<u8>> = args.iter().skip(1).map(<[u8]>::to_ascii_lowercase).collect();
        let has = |word: &[u8]| given.iter().any(|option| option == word);
        let known: [&[u8]; 5] = [b"nosave", b"save", b"now", b"force", b"abort"];
        let only_abort = given.iter().all(|option| option == b"abort");
        if !given.iter().all(|option| known.contains(&option.as_slice()))
            || (has(b"abort") && !only_abort)
            || (has(b"save") && has(b"nosave"))
        {
            return Err(error::SYNTAX.into());
        }
        if has(b"abort") {
            if !cx.node.ending.abort() {
                return Err("ERR No shutdown in progress.".into());
            }
            tracing::info!(client = %cx.session.client.addr, "Shutdown manually aborted");
            cx.out.ok();
            return Ok(());
        }
        if let Some(kind) = cx.node.code.scripts.running.busy().filter(|_| !has(b"nosave")) {
            return Err(kind.busy_text().into());
        }
        // A server of a cluster has no checkpoints.
        let to_save = has(b"save") && cx.node.cluster.is_none();
        if to_save && take_new(cx.node).await.is_err() && !has(b"force") {
            return Err(NOT_STOPPED.into());
        }
        tracing::info!(client = %cx.session.client.addr, "SHUTDOWN by a client");
        let stop = cx.node.ending.ask(ShutdownRequest { now: has(b"now") });
        let client = cx.session.client.clone();
        client.set(ClientState::BLOCKED, true);
        // Else the connection ends with the server.
        cx.node.ending.aborted(stop).await;
        client.seen_at(cx.node.clock.now_ms());
        client.set(ClientState::BLOCKED, false);
        Err(NOT_STOPPED.into())
    })
}

/// `LOLWUT [VERSION version …]`
fn lolwut(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let stones = "    ____\n  _/    \\__\n /_________\\\n|___________|\n";
    // The last line is that of the reference, which programs search for.
    let own = env!("CARGO_PKG_VERSION");
    let text = format!("{stones}\nFlagstone {own}\n\nRedis ver. {COMPATIBLE_VERSION}\n");
    cx.out.verbatim(*b"txt", text.as_bytes());
    Ok(())
}

/// Declarations of the commands on time, durability, roles and the shutdown.
pub const ADMIN_COMMANDS: &[Spec] = &[
    Spec {
        name: "time",
        group: Group::Server,
        since: "2.6.0",
        summary: "Answers the time of the server.",
        arity: 1,
        flags: flag!(LOADING | STALE | FAST),
        tips: &["nondeterministic_output"],
        run: Handler::Either { alone: time, in_unit: time_in_unit },
        ..Spec::NEW
    },
    Spec {
        name: "wait",
        group: Group::Generic,
        since: "3.0.0",
        summary: "Waits until replicas have the writes of the connection.",
        arity: 3,
        flags: flag!(BLOCKING),
        acl: acl!(CONNECTION),
        tips: &["request_policy:all_shards", "response_policy:agg_min"],
        run: Handler::Wait(wait),
        ..Spec::NEW
    },
    Spec {
        name: "waitaof",
        group: Group::Generic,
        since: "7.2.0",
        summary: "Waits until the writes of the connection are durable.",
        arity: 4,
        flags: flag!(BLOCKING),
        acl: acl!(CONNECTION),
        tips: &["request_policy:all_shards", "response_policy:agg_min"],
        run: Handler::Wait(waitaof),
        ..Spec::NEW
    },
    Spec {
        name: "shutdown",
        group: Group::Server,
        complexity: "O(N) when saving, where N is the total number of keys in all databases when saving data, otherwise O(1)",
        summary: "Ends the server.",
        arity: -1,
        flags: flag!(ADMIN | NOSCRIPT | LOADING | STALE | NO_MULTI | ALLOW_BUSY),
        run: Handler::Wait(shutdown),
        ..Spec::NEW
    },
    Spec {
        name: "lolwut",
        group: Group::Server,
        since: "5.0.0",
        summary: "Shows a picture and the version.",
        arity: -1,
        flags: flag!(READONLY | FAST),
        run: Handler::Session(lolwut),
        ..Spec::NEW
    },
];
