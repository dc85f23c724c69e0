//! Commands on the role of this server: REPLICAOF, ROLE, and those by which replicas ask for the
//! stream.

use crate::commands::{Handler, Spec};
use crate::followers::{FailoverStep, FailoverWish, FollowerState, SyncWish};
use crate::node::Node;
use crate::replica::{LinkState, Primary, Testimony};
use crate::replication::{self, Promotion};
use crate::routing::{Call, CallOutcome, CallStop, Waiting};
use crate::worker::Peers;
use flagstone_commands::{Group, acl, arg, error, flag, is_word};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

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
        let offset = match replica.is_succeeding() {
            true => link.position.offset,
            false => cx.node.followers.acknowledged_end().unwrap_or(former),
        };
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
        let (host, port) = (arg(args, 1)?.to_vec(), arg(args, 2)?.to_vec());
        if cx.worker.settings().cluster_enabled {
            return Err("ERR REPLICAOF not allowed in cluster mode.".into());
        }
        let (node, peers) = (cx.node.clone(), cx.worker.peers.clone());
        let choosing = async move { choose_role(&node, &peers, host, &port).await };
        cx.out.simple(replication::to_end(cx.node, choosing).await?);
        Ok(())
    })
}

/// Makes this server the replica of another one, or a primary. Returns the reply.
async fn choose_role(
    node: &Arc<Node>,
    peers: &Arc<Peers>,
    host: Vec<u8>,
    port: &[u8],
) -> Result<&'static str, String> {
    // A promotion may wait for the end of a promise.
    let _choosing = node.health.replica.choosing.lock().await;
    if node.followers.failover.step() != FailoverStep::None {
        return Err("ERR REPLICAOF not allowed while failing over.".to_owned());
    }
    if is_word(&host, "no") && is_word(port, "one") {
        replication::promote(node, peers, Promotion::Ordered).await?;
        node.config.assign("replicaof", "");
        return Ok("OK");
    }
    let port = parse_i64(port).and_then(|port| u16::try_from(port).ok());
    let port = port.ok_or("ERR Invalid master port")?;
    let host = String::from_utf8(host).ok();
    let host = host.filter(|host| !host.is_empty() && !host.contains(char::is_whitespace));
    let primary = Primary { host: host.ok_or("ERR Invalid master host")?, port };
    let is_same = |present: &Primary| {
        present.host.eq_ignore_ascii_case(&primary.host) && present.port == primary.port
    };
    if node.health.replica.link().primary.as_ref().is_some_and(is_same) {
        return Ok("OK Already connected to specified master");
    }
    let address = primary.to_string();
    replication::follow(node, peers, primary).await?;
    node.config.assign("replicaof", &address);
    Ok("OK")
}

/// Returns the wish that the arguments of FAILOVER are.
fn failover_wish(args: Args<'_>) -> Result<FailoverWish, CallStop> {
    let mut wish = FailoverWish::default();
    let mut at = 1;
    while let Some(word) = args.get(at) {
        let (one, two) = (args.get(at + 1), args.get(at + 2));
        match (one, two) {
            (Some(ms), _) if is_word(word, "timeout") && wish.timeout.is_none() => {
                let ms = parse_i64(ms).ok_or(error::NOT_INTEGER)?;
                let ms = u64::try_from(ms).ok().filter(|ms| *ms > 0);
                let ms = ms.ok_or("ERR FAILOVER timeout must be greater than 0")?;
                wish.timeout = Some(Duration::from_millis(ms));
                at += 2;
            }
            (Some(host), Some(port)) if is_word(word, "to") && wish.target.is_none() => {
                let port = parse_i64(port).ok_or(error::NOT_INTEGER)?;
                // No replica has a port that does not fit.
                let port = u16::try_from(port).unwrap_or_default();
                wish.target = Some((String::from_utf8_lossy(host).into_owned(), port));
                at += 3;
            }
            _ if is_word(word, "force") && !wish.is_forced => {
                wish.is_forced = true;
                at += 1;
            }
            _ => return Err(error::SYNTAX.into()),
        }
    }
    Ok(wish)
}

/// `FAILOVER [TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]`
fn failover<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let (node, peers) = (cx.node, &cx.worker.peers);
        if cx.worker.settings().cluster_enabled {
            return Err("ERR FAILOVER not allowed in cluster mode. \
                 Use CLUSTER FAILOVER command instead."
                .into());
        }
        if args.len() == 2 && is_word(arg(args, 1)?, "abort") {
            if !replication::abort_failover(node, peers).await {
                return Err("ERR No failover in progress.".into());
            }
            cx.out.ok();
            return Ok(());
        }
        let wish = failover_wish(args)?;
        let all = node.followers.all();
        if node.followers.failover.step() != FailoverStep::None {
            return Err("ERR FAILOVER already in progress.".into());
        }
        if node.health.replica.is_following() {
            return Err("ERR FAILOVER is not valid when server is a replica.".into());
        }
        if all.is_empty() {
            return Err("ERR FAILOVER requires connected replicas.".into());
        }
        if wish.is_forced && cx.worker.settings().is_in_group() {
            return Err(
                "ERR FAILOVER with force option is not allowed in a group (repl-group-size): \
                 what the target lacks would be lost."
                    .into(),
            );
        }
        if wish.is_forced && (wish.timeout.is_none() || wish.target.is_none()) {
            return Err("ERR FAILOVER with force option requires both a timeout \
                 and target HOST and IP."
                .into());
        }
        if let Some(target) = &wish.target {
            let found = all.iter().find(|follower| replication::is_at(follower, target));
            let found = found.ok_or("ERR FAILOVER target HOST and PORT is not a replica.")?;
            if found.state() != FollowerState::Online {
                return Err("ERR FAILOVER target replica is not online.".into());
            }
        }
        if !replication::begin_failover(node, peers, wish) {
            return Err("ERR FAILOVER already in progress.".into());
        }
        cx.out.ok();
        Ok(())
    })
}

/// Makes the connection that of a replica, once the replies before are written.
fn begin_sync(cx: &mut Call<'_>, wish: SyncWish) -> CallOutcome {
    if cx.node.cluster.is_some() {
        return Err("ERR A server of a cluster over one bucket has no replicas of its own".into());
    }
    if cx.session.monitoring.is_some() {
        // As in the reference, there is no reply.
        return Ok(());
    }
    if cx.node.followers.failover.step() != FailoverStep::None {
        return Err("NOMASTERLINK Can't SYNC while failing over".into());
    }
    let replica = &cx.node.health.replica;
    if replica.is_following() && !replica.is_up() {
        return Err("NOMASTERLINK Can't SYNC while not connected with my master".into());
    }
    cx.session.sync = Some(wish);
    Ok(())
}

/// Maximum time for which a replica that is to take over waits for the rest of the stream.
const REST_LIMIT: Duration = Duration::from_secs(1);

/// Interval at which it looks at its position.
const REST_POLL: Duration = Duration::from_millis(5);

/// Becomes the primary, as the present one asks for that. `end`: number of bytes of its stream, which
/// may be on their way still.
async fn take_over(
    node: &Arc<Node>,
    peers: &Arc<Peers>,
    id: &[u8],
    end: u64,
) -> Result<(), String> {
    let replica = &node.health.replica;
    let _choosing = replica.choosing.lock().await;
    if !replica.is_following() {
        return Err(replication::IS_PRIMARY.to_owned());
    }
    if !replica.link().position.id.eq_ignore_ascii_case(id) {
        return Err(replication::OTHER_STREAM.to_owned());
    }
    tracing::info!(end, "the primary asks this server to take over");
    let asked = Instant::now();
    while replica.is_up() && replica.offset() < end && asked.elapsed() < REST_LIMIT {
        sleep(REST_POLL).await;
    }
    replica.end_promise();
    replication::promote(node, peers, Promotion::HasEverything).await?;
    node.config.assign("replicaof", "");
    Ok(())
}

/// `PSYNC id offset [FAILOVER]`
fn psync<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let offset = parse_i64(arg(args, 2)?).ok_or(error::NOT_INTEGER)?;
        let id = arg(args, 1)?;
        if args.get(3).is_some_and(|word| is_word(word, "failover")) {
            let (node, peers, id) = (cx.node.clone(), cx.worker.peers.clone(), id.to_vec());
            let end = u64::try_from(offset).unwrap_or(0).saturating_sub(1);
            let taking_over = async move { take_over(&node, &peers, &id, end).await };
            replication::to_end(cx.node, taking_over).await?;
        }
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

/// `REPLCONF POSITION text [REST bytes]`: the data of a replica, and the end of its stream.
fn hear<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let said = Testimony::parse(arg(args, 2)?).ok_or(error::SYNTAX)?;
        let rest = args.get(4).filter(|_| args.get(3).is_some_and(|word| is_word(word, "rest")));
        let rest = rest.map(<[u8]>::to_vec);
        let told = cx.session.replica.get_or_insert_default();
        let host = match told.ip.as_str() {
            "" => cx.session.client.addr.host(),
            ip => ip.to_owned(),
        };
        let server = format!("{host}:{}", told.port);
        let (node, peers) = (cx.node.clone(), cx.worker.peers.clone());
        let hearing =
            async move { replication::hear(&node, &peers, &server, &said, rest.as_deref()).await };
        cx.out.simple(&replication::to_end(cx.node, hearing).await?);
        Ok(())
    })
}

/// `REPLCONF name value …`
fn replconf<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    match args.get(1).is_some_and(|word| is_word(word, "position")) && args.len() > 2 {
        true => hear(cx, args),
        false => Box::pin(async move { note_facts(cx, args) }),
    }
}

/// Notes facts that a replica tells before it asks for the stream.
fn note_facts(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
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
    flags: flag!(NO_ASYNC_LOADING | ADMIN | NOSCRIPT | STALE | ENDS_STREAM | AT_REST),
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
        summary: "Exchanges the roles of this server and a replica, once the replica has all data.",
        arity: -1,
        flags: flag!(ADMIN | NOSCRIPT | STALE),
        run: Handler::Wait(failover),
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
        run: Handler::Wait(replconf),
        ..ASKS
    },
];
