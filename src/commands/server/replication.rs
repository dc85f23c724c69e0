//! Commands on the role of this server: REPLICAOF, ROLE, and those of a primary, which this server
//! is not yet.

use crate::commands::{Handler, Spec};
use crate::replica::{LinkState, Primary};
use crate::replication;
use crate::routing::{Call, CallOutcome, Waiting};
use flagstone_commands::{Group, acl, arg, flag, is_word};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;

/// Error of commands that ask a primary for its stream.
const NO_PRIMARY: &str =
    "ERR this server cannot be the primary of replicas: it has no stream for them";

/// Returns the name of a state in the reply to ROLE.
fn name_of(state: LinkState) -> &'static str {
    match state {
        LinkState::Connect => "connect",
        LinkState::Connecting => "connecting",
        LinkState::Handshake => "handshake",
        LinkState::Sync => "sync",
        LinkState::Connected => "connected",
    }
}

/// `ROLE`
fn role(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let replica = &cx.node.health.replica;
    let link = replica.link();
    let Some(primary) = &link.primary else {
        let offset = link.former.as_ref().map_or(0, |former| former.offset);
        cx.out.array(3);
        cx.out.bulk_str("master");
        cx.out.int(offset.cast_signed());
        cx.out.array(0);
        return Ok(());
    };
    cx.out.array(5);
    cx.out.bulk_str("slave");
    cx.out.bulk_str(&primary.host);
    cx.out.int(primary.port.into());
    cx.out.bulk_str(name_of(link.state));
    cx.out.int(if replica.is_up() { replica.offset().cast_signed() } else { -1 });
    Ok(())
}

/// `REPLICAOF host port` and `REPLICAOF NO ONE`
fn replicaof<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let (host, port) = (arg(args, 1)?, arg(args, 2)?);
        let (node, peers) = (cx.node, &cx.worker.peers);
        if cx.worker.settings().cluster_enabled {
            return Err("ERR REPLICAOF not allowed in cluster mode.".into());
        }
        if is_word(host, "no") && is_word(port, "one") {
            replication::promote(node, peers).await?;
            node.config.assign("replicaof", "");
            cx.out.ok();
            return Ok(());
        }
        let port = parse_i64(port).and_then(|port| u16::try_from(port).ok());
        let port = port.ok_or("ERR Invalid master port")?;
        let host = String::from_utf8(host.to_vec()).ok();
        let host = host.filter(|host| !host.is_empty() && !host.contains(char::is_whitespace));
        let primary = Primary { host: host.ok_or("ERR Invalid master host")?, port };
        let is_same = |present: &Primary| {
            present.host.eq_ignore_ascii_case(&primary.host) && present.port == primary.port
        };
        if node.health.replica.link().primary.as_ref().is_some_and(is_same) {
            cx.out.simple("OK Already connected to specified master");
            return Ok(());
        }
        node.config.assign("replicaof", &primary.to_string());
        replication::follow(node, peers, primary);
        cx.out.ok();
        Ok(())
    })
}

/// `FAILOVER [TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]`: there are no replicas.
fn failover(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    if args.len() == 2 && is_word(arg(args, 1)?, "abort") {
        return Err("ERR No failover in progress.".into());
    }
    if cx.node.health.replica.is_following() {
        return Err("ERR FAILOVER is not valid when server is a replica.".into());
    }
    Err("ERR FAILOVER requires connected replicas.".into())
}

/// `PSYNC id offset` and `SYNC`
fn psync(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let replica = &cx.node.health.replica;
    if replica.is_following() && !replica.is_up() {
        return Err("NOMASTERLINK Can't SYNC while not connected with my master".into());
    }
    Err(NO_PRIMARY.into())
}

/// `REPLCONF name value …`
fn replconf(_: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    Err(NO_PRIMARY.into())
}

/// Base of REPLICAOF and its old name.
const FOLLOWS: Spec = Spec {
    group: Group::Server,
    arity: 3,
    flags: flag!(NO_ASYNC_LOADING | ADMIN | NOSCRIPT | STALE),
    run: Handler::Wait(replicaof),
    ..Spec::NEW
};

/// Base of the commands that ask a primary for its stream.
const ASKS: Spec = Spec {
    group: Group::Server,
    flags: flag!(NO_ASYNC_LOADING | ADMIN | NO_MULTI | NOSCRIPT),
    run: Handler::Session(psync),
    ..Spec::NEW
};

/// Declarations of these commands.
pub const REPLICATION_COMMANDS: &[Spec] = &[
    Spec {
        name: "role",
        group: Group::Server,
        since: "2.8.12",
        summary: "Answers the role in replication.",
        arity: 1,
        flags: flag!(NOSCRIPT | LOADING | STALE | FAST),
        acl: acl!(ADMIN | DANGEROUS),
        run: Handler::Session(role),
        ..Spec::NEW
    },
    Spec {
        name: "replicaof",
        since: "5.0.0",
        summary: "Makes this server the replica of another one, or a primary.",
        ..FOLLOWS
    },
    Spec { name: "slaveof", summary: "The old name of REPLICAOF.", ..FOLLOWS },
    Spec {
        name: "failover",
        since: "6.2.0",
        summary: "Fails: there are no replicas.",
        arity: -1,
        flags: flag!(ADMIN | NOSCRIPT | STALE),
        run: Handler::Session(failover),
        ..FOLLOWS
    },
    Spec {
        name: "psync",
        since: "2.8.0",
        summary: "Fails: this server has no stream for replicas.",
        arity: -3,
        ..ASKS
    },
    Spec {
        name: "sync",
        summary: "Fails: this server has no stream for replicas.",
        arity: 1,
        ..ASKS
    },
    Spec {
        name: "replconf",
        since: "3.0.0",
        summary: "Fails: this server has no stream for replicas.",
        arity: -1,
        flags: flag!(ADMIN | NOSCRIPT | LOADING | STALE | ALLOW_BUSY),
        run: Handler::Session(replconf),
        ..ASKS
    },
];
