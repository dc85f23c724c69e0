//! SUBSCRIBE and UNSUBSCRIBE, also for patterns and shard channels.

use crate::clients::ClientState;
use crate::pubsub::{SubscriptionKind, Subscriptions, write_confirmation};
use crate::routing::{Call, CallOutcome};
use crate::session::ReplyMode;
use bytes::Bytes;
use flagstone_storage::slot::slot_of;
use flagstone_wire::resp::{Args, Reply};

const NO_ROOM: &str = "OOM the subscriptions of all clients take all the memory they may";

/// `SUBSCRIBE channel [channel …]`
pub(super) fn subscribe(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    begin(cx, args, SubscriptionKind::Channel, b"subscribe")
}

/// `PSUBSCRIBE pattern [pattern …]`
pub(super) fn psubscribe(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    begin(cx, args, SubscriptionKind::Pattern, b"psubscribe")
}

/// `SSUBSCRIBE shardchannel [shardchannel …]`
pub(super) fn ssubscribe(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    // Unlike the other two, as in the reference.
    if cx.session.in_exec {
        return Err("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client".into());
    }
    begin(cx, args, SubscriptionKind::Shard, b"ssubscribe")
}

/// `UNSUBSCRIBE [channel …]`
pub(super) fn unsubscribe(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    end(cx, args, SubscriptionKind::Channel, b"unsubscribe");
    Ok(())
}

/// `PUNSUBSCRIBE [pattern …]`
pub(super) fn punsubscribe(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    end(cx, args, SubscriptionKind::Pattern, b"punsubscribe");
    Ok(())
}

/// `SUNSUBSCRIBE [shardchannel …]`
pub(super) fn sunsubscribe(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    end(cx, args, SubscriptionKind::Shard, b"sunsubscribe");
    Ok(())
}

fn begin(cx: &mut Call<'_>, args: Args<'_>, kind: SubscriptionKind, word: &[u8]) -> CallOutcome {
    let pubsub = &cx.node.broadcast.pubsub;
    if !pubsub.reserve(args.iter().skip(1)) {
        return Err(NO_ROOM.into());
    }
    let mut told = Reply::new(cx.session.proto);
    let client = &cx.session.client;
    let subscriptions = cx
        .session
        .subscriptions
        .get_or_insert_with(|| Box::new(Subscriptions::new(pubsub, client)));
    for name in args.iter().skip(1) {
        subscriptions.add(kind, name);
        write_confirmation(&mut told, word, Some(name), subscriptions.count(kind));
    }
    if kind == SubscriptionKind::Shard {
        check_shard(cx, args)?;
    }
    tell(cx, told);
    Ok(())
}

/// Takes subscriptions to shard channels back if their shard has left this server since the command was
/// admitted: those who end the subscriptions may have come before.
fn check_shard(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let (Some(cluster), Some(first)) = (&cx.node.cluster, args.get(1)) else { return Ok(()) };
    let slot = slot_of(first);
    if !cluster.has_lost(slot) {
        return Ok(());
    }
    if let Some(subscriptions) = &mut cx.session.subscriptions {
        args.iter().skip(1).for_each(|name| subscriptions.remove(SubscriptionKind::Shard, name));
        if subscriptions.is_empty() {
            cx.session.subscriptions = None;
        }
    }
    Err(cluster.refusal(slot, cx.session.client.is(ClientState::SECURED)).into())
}

fn end(cx: &mut Call<'_>, args: Args<'_>, kind: SubscriptionKind, word: &[u8]) {
    let mut told = Reply::new(cx.session.proto);
    let mut count = 0;
    let mut names: Vec<Bytes> = args.iter().skip(1).map(Bytes::copy_from_slice).collect();
    if let Some(subscriptions) = &mut cx.session.subscriptions {
        if args.len() == 1 {
            names = subscriptions.names(kind);
        }
        for name in &names {
            subscriptions.remove(kind, name);
            write_confirmation(&mut told, word, Some(name), subscriptions.count(kind));
        }
        count = subscriptions.count(kind);
        if subscriptions.is_empty() {
            cx.session.subscriptions = None;
        }
    } else {
        names.iter().for_each(|name| write_confirmation(&mut told, word, Some(name), 0));
    }
    if names.is_empty() {
        write_confirmation(&mut told, word, None, count);
    }
    cx.session.take_pushes(cx.out);
    tell(cx, told);
}

/// Sends confirmations, which are messages: even clients with replies switched off receive them.
fn tell(cx: &mut Call<'_>, told: Reply) {
    if cx.session.reply_mode == ReplyMode::On {
        cx.out.append(told.as_bytes());
        return;
    }
    let settings = cx.worker.settings();
    let (limits, now_ms) = (&settings.client_output_buffer_limit, cx.node.clock.now_ms());
    cx.session.client.push(Bytes::from(told.into_bytes()), limits, now_ms);
}
