//! CLUSTER, READONLY, READWRITE and ASKING: with `cluster-enabled yes` the server is one of several over
//! a bucket, or a cluster of one node that owns all slots. Clients of a cluster work unchanged.

mod servers;
mod show;
mod slots;

use crate::clients::ClientState;
use crate::cluster::Cluster;
use crate::commands::{Handler, Spec};
use crate::config::Settings;
use crate::routing::{Call, CallOutcome};
use flagstone_commands::help::help;
use flagstone_commands::{CommandFlags, Ctx, ErrorText, Group, acl, arg, flag, is_word};
use flagstone_storage::cluster::NodeId;
use flagstone_storage::slot::{SLOTS, slot_of};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::{Args, Reply};
use show::{ShownNode, all_nodes};
use std::sync::Arc;

const DISABLED: &str = "ERR This instance has cluster support disabled";

/// Error of subcommands that change which node owns which slots.
const ALONE: &str = "ERR This server is a cluster of one node, which owns all slots: its topology \
    cannot be changed";
const SHARED: &str = "ERR The servers of this cluster share the slots out among themselves: use \
    `flagstone cluster` to move some";

/// Checks that cluster support is enabled.
fn enabled(settings: &Settings) -> Result<(), ErrorText> {
    if settings.cluster_enabled { Ok(()) } else { Err(DISABLED.into()) }
}

/// Returns the slot in an argument, or `wrong` if it is none.
fn slot_arg(args: Args<'_>, at: usize, wrong: &'static str) -> Result<u16, ErrorText> {
    let number = parse_i64(arg(args, at)?).ok_or(flagstone_commands::error::NOT_INTEGER)?;
    let slot = u16::try_from(number).ok().filter(|slot| *slot < SLOTS);
    slot.ok_or(ErrorText::from(wrong))
}

/// Returns the number of slots of this server's shards that could not be taken.
fn untaken_slots(cx: &Call<'_>) -> usize {
    let Some(cluster) = &cx.node.cluster else { return 0 };
    let map = cluster.map();
    let untaken = map.owned_by(cluster.life()).filter(|it| cluster.is_untaken(it.id));
    untaken.map(|shard| map.slots_of(shard.id).len()).sum()
}

/// `CLUSTER INFO`
fn info(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let settings = cx.worker.settings();
    enabled(&settings)?;
    let nodes = all_nodes(cx, &settings);
    let slots = |node: &ShownNode| node.slots.iter().map(|slots| slots.len()).sum::<usize>();
    let owned: usize = nodes.iter().map(slots).sum();
    let silent: usize = nodes.iter().filter(|node| !node.is_connected).map(slots).sum();
    let own: usize = nodes.iter().filter(|node| node.is_myself).map(slots).sum();
    let refuses_data = cx.node.health.refuses_data(&settings);
    let failed = if refuses_data { own } else { untaken_slots(cx).min(own) };
    let answering = owned - silent - failed;
    // With some shards, the others are served.
    let refuses_all = refuses_data || own > 0 && failed == own;
    let state = if owned == usize::from(SLOTS) && !refuses_all { "ok" } else { "fail" };
    let size = nodes.iter().filter(|node| !node.slots.is_empty()).count();
    let epoch = cx.node.cluster.as_ref().map_or(1, |cluster| cluster.map().number());
    let known = nodes.len();
    let (sent, received, dropped) = servers::messages(cx);
    let text = format!(
        "cluster_state:{state}\r\ncluster_slots_assigned:{owned}\r\ncluster_slots_ok:{answering}\r\n\
        cluster_slots_pfail:{silent}\r\ncluster_slots_fail:{failed}\r\ncluster_known_nodes:{known}\r\n\
        cluster_size:{size}\r\ncluster_current_epoch:{epoch}\r\ncluster_my_epoch:{epoch}\r\n\
        cluster_stats_messages_publish_sent:{sent}\r\ncluster_stats_messages_sent:{sent}\r\n\
        cluster_stats_messages_publish_received:{received}\r\n\
        cluster_stats_messages_received:{received}\r\n\
        total_cluster_links_buffer_limit_exceeded:{dropped}\r\n"
    );
    cx.out.verbatim(*b"txt", text.as_bytes());
    Ok(())
}

/// `CLUSTER MYID`
fn myid(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    enabled(&cx.worker.settings())?;
    cx.out.bulk_str(&cx.node.cluster_id());
    Ok(())
}

/// `CLUSTER MYSHARDID`
fn myshardid(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    enabled(&cx.worker.settings())?;
    cx.out.bulk_str(&show::reversed(&cx.node.cluster_id()));
    Ok(())
}

/// `CLUSTER NODES`
fn nodes(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let settings = cx.worker.settings();
    enabled(&settings)?;
    let text: String = all_nodes(cx, &settings).iter().map(|node| node.line() + "\n").collect();
    cx.out.verbatim(*b"txt", text.as_bytes());
    Ok(())
}

/// `CLUSTER SLOTS`
fn slots(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let settings = cx.worker.settings();
    enabled(&settings)?;
    let nodes = all_nodes(cx, &settings);
    let mut ranges: Vec<_> =
        nodes.iter().flat_map(|node| node.slots.iter().map(move |slots| (slots, node))).collect();
    ranges.sort_by_key(|(slots, _)| *slots.start());
    let replicas = show::replicas(&nodes);
    cx.out.array(ranges.len());
    for (slots, node) in ranges {
        cx.out.array(3 + replicas.len());
        cx.out.int(i64::from(*slots.start()));
        cx.out.int(i64::from(*slots.end()));
        node.write_endpoint(cx.out);
        replicas.iter().for_each(|replica| replica.write_endpoint(cx.out));
    }
    Ok(())
}

/// `CLUSTER SHARDS`
fn shards(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let settings = cx.worker.settings();
    enabled(&settings)?;
    let nodes = all_nodes(cx, &settings);
    let replicas = show::replicas(&nodes);
    let owners: Vec<&ShownNode> = nodes.iter().filter(|node| !node.is_replica).collect();
    cx.out.array(owners.len());
    for node in owners {
        cx.out.map(2);
        cx.out.bulk_str("slots");
        cx.out.array(2 * node.slots.len());
        for slots in &node.slots {
            cx.out.int(i64::from(*slots.start()));
            cx.out.int(i64::from(*slots.end()));
        }
        cx.out.bulk_str("nodes");
        // Replicas have nothing of a server that owns no slots.
        let replicas = if node.slots.is_empty() { &[] } else { &replicas[..] };
        cx.out.array(1 + replicas.len());
        node.write_details(cx.out);
        replicas.iter().for_each(|replica| replica.write_details(cx.out));
    }
    Ok(())
}

/// Checks that an argument is this node's id.
fn known_node(cx: &Call<'_>, args: Args<'_>) -> Result<(), ErrorText> {
    let id = arg(args, 2)?;
    let is_open = |cluster: &Arc<Cluster>| {
        let node = std::str::from_utf8(id).ok().and_then(NodeId::parse);
        node.is_some_and(|node| cluster.map().open_member(node).is_some())
    };
    if id == cx.node.cluster_id().as_bytes() || cx.node.cluster.as_ref().is_some_and(is_open) {
        return Ok(());
    }
    Err([b"ERR Unknown node ", id].concat().into())
}

/// `CLUSTER REPLICAS node-id`: all replicas are shown as those of one node, the first that owns slots.
fn replicas(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let settings = cx.worker.settings();
    enabled(&settings)?;
    known_node(cx, args)?;
    let (nodes, id) = (all_nodes(cx, &settings), arg(args, 2)?);
    let is_of = |node: &&ShownNode| node.replica_of.as_ref().is_some_and(|of| of.as_bytes() == id);
    let of_node: Vec<String> = nodes.iter().filter(is_of).map(ShownNode::line).collect();
    cx.out.array(of_node.len());
    of_node.iter().for_each(|line| cx.out.bulk_str(line));
    Ok(())
}

/// `CLUSTER COUNT-FAILURE-REPORTS node-id`
fn failure_reports(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    enabled(&cx.worker.settings())?;
    known_node(cx, args)?;
    cx.out.int(0);
    Ok(())
}

/// `CLUSTER KEYSLOT key`
fn keyslot(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    enabled(&cx.worker.settings())?;
    cx.out.int(i64::from(slot_of(arg(args, 2)?)));
    Ok(())
}

/// `CLUSTER SAVECONFIG`: there is nothing to save.
fn saveconfig(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    enabled(&cx.worker.settings())?;
    cx.out.ok();
    Ok(())
}

/// `CLUSTER FAILOVER [FORCE|TAKEOVER]`: this replica is about to become an owner of the shards of its
/// primary. The options make no difference: nobody votes, and a primary that does not answer loses its
/// shards anyway.
fn failover(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    enabled(&cx.worker.settings())?;
    let Some(cluster) = &cx.node.cluster else { return Err(ALONE.into()) };
    let is_known = |option| is_word(option, "force") || is_word(option, "takeover");
    if args.len() > 3 || args.get(2).is_some_and(|option| !is_known(option)) {
        return Err(flagstone_commands::error::SYNTAX.into());
    }
    cluster.begin_takeover()?;
    cx.out.ok();
    Ok(())
}

/// Answers a subcommand that would change the topology.
fn refuse(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    enabled(&cx.worker.settings())?;
    Err(if cx.node.cluster.is_some() { SHARED } else { ALONE }.into())
}

/// `READONLY`: a client that can be redirected reads from a replica all the same.
fn readonly(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.session.client.set(ClientState::READONLY, true);
    cx.out.ok();
    Ok(())
}

/// `READWRITE`
fn readwrite(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.session.client.set(ClientState::READONLY, false);
    cx.out.ok();
    Ok(())
}

/// `ASKING`: every key is this node's, so it changes nothing.
fn nothing(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    enabled(&cx.worker.settings())?;
    cx.out.ok();
    Ok(())
}

/// `CLUSTER HELP`
fn show_help(out: &mut Reply) {
    help(
        out,
        "CLUSTER",
        &[
            ("COUNTKEYSINSLOT <slot>", "Return the number of keys in <slot>."),
            (
                "FAILOVER [FORCE|TAKEOVER]",
                "Make this replica the owner of the slots of its primary.",
            ),
            ("GETKEYSINSLOT <slot> <count>", "Return key names stored by current node in a slot."),
            ("INFO", "Return information about the cluster."),
            ("KEYSLOT <key>", "Return the hash slot for <key>."),
            ("LINKS", "Return the links by which messages go to other nodes."),
            ("MYID", "Return the node id."),
            ("MYSHARDID", "Return the node's shard id."),
            ("NODES", "Return the nodes with their slots, each as a line of text."),
            ("REPLICAS <node-id>", "Return <node-id> replicas, as CLUSTER NODES shows them."),
            ("SHARDS", "Return the shards, each with its node and slots."),
            ("SLOT-STATS", "Return an array of slot usage statistics."),
            ("SLOTS", "Return the ranges of slots, each with its node."),
        ],
    );
}

/// Flags of subcommands that answer at any time, and of those for administrators.
const ANY_TIME: CommandFlags = flag!(LOADING | STALE);
const CHANGES: CommandFlags = flag!(ADMIN | STALE | NO_ASYNC_LOADING);

/// Common declaration of the subcommands.
const SUB: Spec = Spec {
    group: Group::Cluster,
    since: "3.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: ANY_TIME,
    ..Spec::NEW
};

/// Common declaration of those that change the topology.
const CHANGE: Spec = Spec { flags: CHANGES, run: Handler::Session(refuse), ..SUB };

/// Common declaration of those that only servers of the cluster send: each proves that it is one.
const OF_SERVERS: Spec = Spec {
    flags: flag!(
        LOADING | STALE | NO_AUTH | FAST | ALLOW_BUSY | PAUSELESS | SKIP_MONITOR | SKIP_SLOWLOG
    ),
    ..SUB
};

const SUBCOMMANDS: &[Spec] = &[
    Spec { name: "addslots", arity: -3, summary: "Gives slots to the node.", ..CHANGE },
    Spec {
        name: "addslotsrange",
        since: "7.0.0",
        arity: -4,
        summary: "Gives ranges of slots to the node.",
        ..CHANGE
    },
    Spec {
        name: "beat",
        arity: 8,
        summary: "Asks a server of a cluster, for another one, whether it is there.",
        arguments: "from:integer to:integer map:integer nonce:integer given:string proof:string",
        run: Handler::Session(servers::beat),
        ..OF_SERVERS
    },
    Spec {
        name: "bumpepoch",
        summary: "Raises the epoch of the configuration.",
        tips: &["nondeterministic_output"],
        ..CHANGE
    },
    Spec {
        name: "count-failure-reports",
        arity: 3,
        flags: flag!(ADMIN | STALE),
        summary: "Counts the reports that a node has failed.",
        tips: &["nondeterministic_output"],
        run: Handler::Session(failure_reports),
        ..SUB
    },
    Spec {
        name: "countkeysinslot",
        arity: 3,
        flags: flag!(STALE | ALL_SHARDS),
        summary: "Counts the keys in a slot.",
        run: Handler::Wait(slots::count_keys),
        ..SUB
    },
    Spec { name: "delslots", arity: -3, summary: "Takes slots from the node.", ..CHANGE },
    Spec {
        name: "delslotsrange",
        since: "7.0.0",
        arity: -4,
        summary: "Takes ranges of slots from the node.",
        ..CHANGE
    },
    Spec {
        name: "failover",
        arity: -2,
        summary: "Makes a replica the primary.",
        run: Handler::Session(failover),
        ..CHANGE
    },
    Spec { name: "flushslots", summary: "Takes all slots from the node.", ..CHANGE },
    Spec { name: "forget", arity: 3, summary: "Forgets another node.", ..CHANGE },
    Spec {
        name: "getkeysinslot",
        arity: 4,
        flags: flag!(STALE | ALL_SHARDS),
        complexity: "O(N) where N is the number of requested keys",
        summary: "Returns keys in a slot.",
        tips: &["nondeterministic_output"],
        run: Handler::Wait(slots::get_keys),
        ..SUB
    },
    Spec {
        name: "help",
        since: "5.0.0",
        summary: "Lists the subcommands.",
        run: Handler::Help(show_help),
        ..SUB
    },
    Spec {
        name: "info",
        summary: "Describes the state of the cluster.",
        tips: &["nondeterministic_output"],
        run: Handler::Session(info),
        ..SUB
    },
    Spec {
        name: "keyslot",
        arity: 3,
        flags: flag!(STALE),
        complexity: "O(N) where N is the number of bytes in the key",
        summary: "Returns the slot of a key.",
        run: Handler::Session(keyslot),
        ..SUB
    },
    Spec {
        name: "link",
        arity: 6,
        summary: "Begins a link by which another server of the cluster sends messages.",
        arguments: "from:integer to:integer nonce:integer proof:string",
        run: Handler::Session(servers::link),
        ..OF_SERVERS
    },
    Spec {
        name: "links",
        since: "7.0.0",
        flags: flag!(STALE),
        summary: "Lists the links to other nodes.",
        tips: &["nondeterministic_output"],
        run: Handler::Session(servers::links),
        ..SUB
    },
    Spec { name: "meet", arity: -4, summary: "Joins another node.", ..CHANGE },
    Spec {
        name: "myid",
        summary: "Returns the id of the node.",
        run: Handler::Session(myid),
        ..SUB
    },
    Spec {
        name: "myshardid",
        since: "7.2.0",
        summary: "Returns the id of the node's shard.",
        tips: &["nondeterministic_output"],
        run: Handler::Session(myshardid),
        ..SUB
    },
    Spec {
        name: "nodes",
        summary: "Lists the nodes of the cluster.",
        tips: &["nondeterministic_output"],
        run: Handler::Session(nodes),
        ..SUB
    },
    Spec {
        name: "replicas",
        since: "5.0.0",
        arity: 3,
        flags: flag!(ADMIN | STALE),
        summary: "Lists the replicas of a node.",
        tips: &["nondeterministic_output"],
        run: Handler::Session(replicas),
        ..SUB
    },
    Spec { name: "replicate", arity: 3, summary: "Makes the node a replica.", ..CHANGE },
    Spec {
        name: "reset",
        arity: -2,
        flags: flag!(ADMIN | NOSCRIPT | STALE),
        summary: "Makes the node leave its cluster.",
        ..CHANGE
    },
    Spec {
        name: "saveconfig",
        summary: "Saves the configuration of the cluster.",
        run: Handler::Session(saveconfig),
        ..CHANGE
    },
    Spec { name: "set-config-epoch", arity: 3, summary: "Sets the epoch of a new node.", ..CHANGE },
    Spec { name: "setslot", arity: -4, summary: "Binds a slot to a node.", ..CHANGE },
    Spec {
        name: "shards",
        since: "7.0.0",
        summary: "Describes the shards with their nodes.",
        tips: &["nondeterministic_output"],
        run: Handler::Session(shards),
        ..SUB
    },
    Spec {
        name: "slaves",
        arity: 3,
        flags: flag!(ADMIN | STALE),
        summary: "Lists the replicas of a node.",
        tips: &["nondeterministic_output"],
        run: Handler::Session(replicas),
        ..SUB
    },
    Spec {
        name: "slot-stats",
        since: "8.0.0",
        arity: -4,
        flags: ANY_TIME.union(flag!(ALL_SHARDS)),
        complexity: "O(N) where N is the number of slots",
        summary: "Counts the keys of slots.",
        tips: &["nondeterministic_output", "request_policy:all_shards"],
        run: Handler::Wait(slots::stats),
        ..SUB
    },
    Spec {
        name: "spread",
        arity: -4,
        complexity: "O(N) where N is the number of messages",
        summary: "Publishes messages that another server of the cluster was given.",
        arguments: "number:integer proof:string message:block?*[channel:string payload:string]",
        run: Handler::Session(servers::spread),
        ..OF_SERVERS
    },
    Spec {
        name: "slots",
        summary: "Lists the ranges of slots with their nodes.",
        tips: &["nondeterministic_output"],
        run: Handler::Session(slots),
        ..SUB
    },
];

/// `ASKING` in a transaction.
fn nothing_in_unit(
    cx: &mut Ctx<'_>,
    unit: &crate::unit::Unit<'_>,
    _: Args<'_>,
) -> crate::unit::UnitOutcome {
    enabled(unit.settings)?;
    cx.out.ok();
    Ok(())
}

/// Common declaration of the commands that change a connection's right to read.
const READS: Spec = Spec {
    group: Group::Cluster,
    since: "3.0.0",
    complexity: "O(1)",
    arity: 1,
    flags: flag!(LOADING | STALE | FAST),
    acl: acl!(CONNECTION),
    ..Spec::NEW
};

/// Declarations of the commands on clusters.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "cluster",
        complexity: "Depends on subcommand.",
        summary: "Holds the commands on the cluster.",
        arity: -2,
        flags: CommandFlags::empty(),
        subcommands: SUBCOMMANDS,
        ..SUB
    },
    Spec {
        name: "asking",
        flags: flag!(FAST),
        summary: "Allows a redirected command: no slot is ever on its way here.",
        run: Handler::Either { alone: nothing, in_unit: nothing_in_unit },
        ..READS
    },
    Spec {
        name: "readonly",
        summary: "Allows reads from a replica.",
        run: Handler::Session(readonly),
        ..READS
    },
    Spec {
        name: "readwrite",
        summary: "Ends READONLY.",
        run: Handler::Session(readwrite),
        ..READS
    },
];
