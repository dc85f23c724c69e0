//! Commands to publish and subscribe.

mod introspect;
mod subscribe;

use crate::commands::{Handler, Spec};
use crate::routing::{Call, CallOutcome};
use crate::unit::{Published, Unit, UnitOutcome};
use flagstone_commands::{Channels, CommandFlags, Ctx, Group, KeySpec, arg, flag, key};
use flagstone_storage::slot::slot_of;
use flagstone_wire::resp::Args;

/// `PUBLISH channel message`
fn publish(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let sent = cx.node.publish(&cx.worker.settings(), arg(args, 1)?, arg(args, 2)?);
    cx.worker.say(cx.session.db, &[b"PUBLISH", arg(args, 1)?, arg(args, 2)?]);
    cx.out.count(sent);
    Ok(())
}

/// `SPUBLISH shardchannel message`
fn spublish(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let settings = cx.worker.settings();
    let (limits, now_ms) = (&settings.client_output_buffer_limit, cx.node.clock.now_ms());
    let sent =
        cx.node.broadcast.pubsub.publish_to_shard(arg(args, 1)?, arg(args, 2)?, limits, now_ms);
    cx.worker.say(cx.session.db, &[b"SPUBLISH", arg(args, 1)?, arg(args, 2)?]);
    cx.out.count(sent);
    Ok(())
}

/// Records a message of a transaction or script; it is published when its changes are stored.
fn publish_in_unit(
    cx: &mut Ctx<'_>,
    unit: &Unit<'_>,
    args: Args<'_>,
    to_shard: bool,
) -> UnitOutcome {
    let (channel, message) = (arg(args, 1)?, arg(args, 2)?);
    if to_shard
        && let Some(cluster) = &unit.node.cluster
        && !cluster.serves(slot_of(channel))
    {
        return Err(cluster.refusal(slot_of(channel), unit.request.secured).into());
    }
    cx.out.count(unit.node.broadcast.pubsub.receivers(channel, to_shard));
    let name: &[u8] = if to_shard { b"SPUBLISH" } else { b"PUBLISH" };
    cx.store.words.command(cx.db, [name, channel, message].into_iter());
    let (channel, message) = (channel.into(), message.into());
    unit.effects().publish(Published { to_shard, channel, message })
}

const PUBLISHES: CommandFlags = flag!(PUBSUB | LOADING | STALE | FAST | MAY_REPLICATE);
const SUBSCRIBES: CommandFlags = flag!(PUBSUB | NOSCRIPT | LOADING | STALE | SUBSCRIBER);

/// Declarations of the commands to publish and subscribe.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "publish",
        group: Group::Pubsub,
        since: "2.0.0",
        complexity: "O(N+M) where N is the number of clients subscribed to the channel and M is \
            the number of patterns that clients are subscribed to",
        summary: "Sends a message to a channel.",
        arity: 3,
        flags: PUBLISHES,
        channels: Channels::First,
        run: Handler::Either {
            alone: publish,
            in_unit: |cx, unit, args| publish_in_unit(cx, unit, args, false),
        },
        ..Spec::NEW
    },
    Spec {
        name: "spublish",
        group: Group::Pubsub,
        since: "7.0.0",
        complexity: "O(N) where N is the number of clients subscribed to the shard channel",
        summary: "Sends a message to a shard channel.",
        arity: 3,
        flags: PUBLISHES,
        keys: &[KeySpec::one(1, key!(NOT_KEY))],
        channels: Channels::First,
        run: Handler::Either {
            alone: spublish,
            in_unit: |cx, unit, args| publish_in_unit(cx, unit, args, true),
        },
        ..Spec::NEW
    },
    Spec {
        name: "subscribe",
        group: Group::Pubsub,
        since: "2.0.0",
        complexity: "O(N) where N is the number of channels",
        summary: "Begins to listen to channels.",
        arity: -2,
        flags: SUBSCRIBES,
        channels: Channels::All,
        run: Handler::Session(subscribe::subscribe),
        ..Spec::NEW
    },
    Spec {
        name: "psubscribe",
        group: Group::Pubsub,
        since: "2.0.0",
        complexity: "O(N) where N is the number of patterns",
        summary: "Begins to listen to all channels that match patterns.",
        arity: -2,
        flags: SUBSCRIBES,
        channels: Channels::Patterns,
        run: Handler::Session(subscribe::psubscribe),
        ..Spec::NEW
    },
    Spec {
        name: "ssubscribe",
        group: Group::Pubsub,
        since: "7.0.0",
        complexity: "O(N) where N is the number of shard channels",
        summary: "Begins to listen to shard channels.",
        arity: -2,
        flags: SUBSCRIBES,
        keys: &[KeySpec::to_end(1, 1, key!(NOT_KEY))],
        channels: Channels::All,
        run: Handler::Session(subscribe::ssubscribe),
        ..Spec::NEW
    },
    Spec {
        name: "unsubscribe",
        group: Group::Pubsub,
        since: "2.0.0",
        complexity: "O(N) where N is the number of channels",
        summary: "Ends to listen to channels, or to all of them.",
        arity: -1,
        flags: SUBSCRIBES,
        run: Handler::Session(subscribe::unsubscribe),
        ..Spec::NEW
    },
    Spec {
        name: "punsubscribe",
        group: Group::Pubsub,
        since: "2.0.0",
        complexity: "O(N) where N is the number of patterns",
        summary: "Ends to listen to what matches patterns, or to all of them.",
        arity: -1,
        flags: SUBSCRIBES,
        run: Handler::Session(subscribe::punsubscribe),
        ..Spec::NEW
    },
    Spec {
        name: "sunsubscribe",
        group: Group::Pubsub,
        since: "7.0.0",
        complexity: "O(N) where N is the number of shard channels",
        summary: "Ends to listen to shard channels, or to all of them.",
        arity: -1,
        flags: SUBSCRIBES,
        keys: &[KeySpec::to_end(1, 1, key!(NOT_KEY))],
        run: Handler::Session(subscribe::sunsubscribe),
        ..Spec::NEW
    },
    Spec {
        name: "pubsub",
        group: Group::Pubsub,
        since: "2.8.0",
        complexity: "Depends on subcommand.",
        summary: "Holds the commands on who listens to what.",
        arity: -2,
        subcommands: introspect::SUBCOMMANDS,
        ..Spec::NEW
    },
];
