//! Commands on the role of this server: REPLICAOF, ROLE, and those by which replicas ask for the
//! stream.

use crate::commands::{Handler, Spec};
use crate::followers::{FollowerState, SyncWish};
use crate::replica::{LinkState, Primary};
use crate::replication;
use crate::routing::{Call, CallOutcome, Waiting};
use flagstone_commands::{Group, acl, arg, error, flag, is_word};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;

/// Maximum length of the address that a replica may announce, in bytes.
const MAX_HOST: usize = 255;

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
        let former = link.former.as_ref().map_or(0, |former| former.offset);
        let offset = cx.node.followers.figures().map_or(former, |stream| stream.end);
        cx.out.array(3);
        cx.out.bulk_str("master");
        cx.out.int(offset.cast_signed());
        let mut online = cx.node.followers.all();
        online.retain(|follower| follower.state() == FollowerState::Online);
        cx.out.array(online.len());
        for follower in online {
            cx.out.array(3);
            cx.out.bulk_str(&follower.facts.ip);
            cx.out.bulk_str(&follower.facts.port.to_string());
            cx.out.bulk_str(&follower.applied().to_string());
        }
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

/// Error of FAILOVER.
const NO_FAILOVER: &str =
    "ERR FAILOVER is not supported: use Sentinel, or REPLICAOF on both servers";

/// `FAILOVER [TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]`
fn failover(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    if args.len() == 2 && is_word(arg(args, 1)?, "abort") {
        return Err("ERR No failover in progress.".into());
    }
    if cx.node.health.replica.is_following() {
        return Err("ERR FAILOVER is not valid when server is a replica.".into());
    }
    match cx.node.followers.all().is_empty() {
        true => Err("ERR FAILOVER requires connected replicas.".into()),
        false => Err(NO_FAILOVER.into()),
    }
}

/// Makes the connection that of a replica, once the replies before are written.
fn begin_sync(cx: &mut Call<'_>, wish: SyncWish) -> CallOutcome {
    let replica = &cx.node.health.replica;
    if replica.is_following() && !replica.is_up() {
        return Err("NOMASTERLINK Can't SYNC while not connected with my master".into());
    }
    cx.session.sync = Some(wish);
    Ok(())
}

/// `PSYNC id offset`
fn psync<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let offset = parse_i64(arg(args, 2)?).ok_or(error::NOT_INTEGER)?;
        let id = arg(args, 1)?;
        // The offset is that of the next byte, from 1 on.
        let applied = offset.checked_sub(1).and_then(|applied| u64::try_from(applied).ok());
        let applied = applied.filter(|_| id != b"?");
        begin_sync(cx, SyncWish::Psync(applied.map(|applied| (id.into(), applied))))
    })
}

/// `SYNC`
fn sync<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move { begin_sync(cx, SyncWish::Sync) })
}

/// `REPLCONF name value …`
fn replconf(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    if args.len().is_multiple_of(2) {
        return Err(error::SYNTAX.into());
    }
    let told = cx.session.replica.get_or_insert_default();
    for at in (1..args.len()).step_by(2) {
        let (name, value) = (arg(args, at)?, arg(args, at + 1)?);
        let flag = || match parse_i64(value) {
            Some(number @ 0..=1) => Ok(number == 1),
            Some(_) => Err("ERR value is out of range, value must between 0 and 1"),
            None => Err(error::NOT_INTEGER),
        };
        match name.to_ascii_lowercase().as_slice() {
            b"listening-port" => {
                let port = parse_i64(value).ok_or(error::NOT_INTEGER)?;
                told.port = u16::try_from(port).unwrap_or_default();
            }
            b"ip-address" if value.len() > MAX_HOST => {
                return Err(format!(
                    "ERR REPLCONF ip-address provided by replica instance is too long: {} bytes",
                    value.len()
                )
                .into());
            }
            b"ip-address" => told.ip = String::from_utf8_lossy(value).into_owned(),
            b"capa" => told.takes_marks |= is_word(value, "eof"),
            b"rdb-only" => told.data_set_only = flag()?,
            // Only replicas acknowledge, and are served elsewhere; this server is asked by its primary.
            b"ack" | b"fack" | b"getack" => return Ok(()),
            b"rdb-filter-only" if value.is_empty() => {}
            b"rdb-filter-only" => return Err(NO_FILTER.into()),
            b"version" => {}
            _ => {
                let name = String::from_utf8_lossy(name);
                return Err(format!("ERR Unrecognized REPLCONF option: {name}").into());
            }
        }
    }
    cx.out.ok();
    Ok(())
}

/// Error for a data set that is to have a part of the data only.
const NO_FILTER: &str = "ERR rdb-filter-only is not supported: a data set has all data";

/// Base of REPLICAOF and its old name.
const FOLLOWS: Spec = Spec {
    group: Group::Server,
    arity: 3,
    flags: flag!(NO_ASYNC_LOADING | ADMIN | NOSCRIPT | STALE | ENDS_STREAM),
    run: Handler::Wait(replicaof),
    ..Spec::NEW
};

/// Base of the commands that ask a primary for its stream.
const ASKS: Spec = Spec {
    group: Group::Server,
    flags: flag!(NO_ASYNC_LOADING | ADMIN | NO_MULTI | NOSCRIPT),
    run: Handler::Wait(psync),
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
        summary: "Fails: an exchange of the roles is not supported.",
        arity: -1,
        flags: flag!(ADMIN | NOSCRIPT | STALE),
        run: Handler::Session(failover),
        ..FOLLOWS
    },
    Spec {
        name: "psync",
        since: "2.8.0",
        summary: "Makes the connection that of a replica, from a position of the stream on.",
        arity: -3,
        ..ASKS
    },
    Spec {
        name: "sync",
        summary: "Makes the connection that of a replica, which gets the data set first.",
        arity: 1,
        run: Handler::Wait(sync),
        ..ASKS
    },
    Spec {
        name: "replconf",
        since: "3.0.0",
        summary: "Tells facts of a replica before it asks for the stream.",
        arity: -1,
        flags: flag!(ADMIN | NOSCRIPT | LOADING | STALE | ALLOW_BUSY),
        run: Handler::Session(replconf),
        ..ASKS
    },
];
