//! PUBSUB: shows channels, patterns and their subscribers.

use crate::commands::{Handler, Spec};
use crate::pubsub::SubscriptionKind;
use crate::routing::{Call, CallOutcome};
use flagstone_commands::help::{help, syntax};
use flagstone_commands::{CommandFlags, Group, arg, flag};
use flagstone_wire::glob;
use flagstone_wire::resp::{Args, Reply};

/// `PUBSUB CHANNELS [pattern]`
fn channels(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    names(cx, args, SubscriptionKind::Channel)
}

/// `PUBSUB SHARDCHANNELS [pattern]`
fn shardchannels(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    names(cx, args, SubscriptionKind::Shard)
}

fn names(cx: &mut Call<'_>, args: Args<'_>, kind: SubscriptionKind) -> CallOutcome {
    if args.len() > 3 {
        return Err(syntax("PUBSUB", arg(args, 1)?).into());
    }
    let mut names = cx.node.broadcast.pubsub.names(kind);
    if let Some(pattern) = args.get(2) {
        names.retain(|name| glob::matches(pattern, name));
    }
    cx.out.array(names.len());
    names.iter().for_each(|name| cx.out.bulk(name));
    Ok(())
}

/// `PUBSUB NUMSUB [channel …]`
fn numsub(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    listeners(cx, args, SubscriptionKind::Channel);
    Ok(())
}

/// `PUBSUB SHARDNUMSUB [shardchannel …]`
fn shardnumsub(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    listeners(cx, args, SubscriptionKind::Shard);
    Ok(())
}

fn listeners(cx: &mut Call<'_>, args: Args<'_>, kind: SubscriptionKind) {
    // An array in RESP3, too, not a map.
    cx.out.array((args.len() - 2) * 2);
    for name in args.iter().skip(2) {
        cx.out.bulk(name);
        cx.out.count(cx.node.broadcast.pubsub.listeners(kind, name));
    }
}

/// `PUBSUB NUMPAT`
fn numpat(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.out.count(cx.node.broadcast.pubsub.count(SubscriptionKind::Pattern));
    Ok(())
}

/// `PUBSUB HELP`
fn show_help(out: &mut Reply) {
    help(
        out,
        "PUBSUB",
        &[
            ("CHANNELS [<pattern>]", "Answers the channels that clients listen to."),
            ("NUMPAT", "Answers how many patterns clients listen to."),
            ("NUMSUB [<channel> ...]", "Answers how many clients listen to each channel."),
            ("SHARDCHANNELS [<pattern>]", "Answers the shard channels that clients listen to."),
            (
                "SHARDNUMSUB [<shardchannel> ...]",
                "Answers how many clients listen to each shard channel.",
            ),
        ],
    );
}

const SHOWS: CommandFlags = flag!(PUBSUB | LOADING | STALE);

/// Declarations of the subcommands of PUBSUB.
pub(super) const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "channels",
        group: Group::Pubsub,
        since: "2.8.0",
        complexity: "O(N) where N is the number of active channels",
        summary: "Answers the channels that clients listen to.",
        arity: -2,
        flags: SHOWS,
        run: Handler::Session(channels),
        ..Spec::NEW
    },
    Spec {
        name: "numpat",
        group: Group::Pubsub,
        since: "2.8.0",
        summary: "Answers how many patterns clients listen to.",
        arity: 2,
        flags: SHOWS,
        run: Handler::Session(numpat),
        ..Spec::NEW
    },
    Spec {
        name: "numsub",
        group: Group::Pubsub,
        since: "2.8.0",
        complexity: "O(N) where N is the number of channels asked for",
        summary: "Answers how many clients listen to channels.",
        arity: -2,
        flags: SHOWS,
        run: Handler::Session(numsub),
        ..Spec::NEW
    },
    Spec {
        name: "shardchannels",
        group: Group::Pubsub,
        since: "7.0.0",
        complexity: "O(N) where N is the number of active shard channels",
        summary: "Answers the shard channels that clients listen to.",
        arity: -2,
        flags: SHOWS,
        run: Handler::Session(shardchannels),
        ..Spec::NEW
    },
    Spec {
        name: "shardnumsub",
        group: Group::Pubsub,
        since: "7.0.0",
        complexity: "O(N) where N is the number of shard channels asked for",
        summary: "Answers how many clients listen to shard channels.",
        arity: -2,
        flags: SHOWS,
        run: Handler::Session(shardnumsub),
        ..Spec::NEW
    },
    Spec {
        name: "help",
        group: Group::Pubsub,
        since: "6.2.0",
        summary: "Tells the subcommands.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        run: Handler::Help(show_help),
        ..Spec::NEW
    },
];
