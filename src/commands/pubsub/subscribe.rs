//! SUBSCRIBE and UNSUBSCRIBE, also for patterns and shard channels.

use crate::pubsub::{SubscriptionKind, Subscriptions};
use crate::routing::{Call, CallOutcome};
use crate::session::ReplyMode;
use bytes::Bytes;
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
        confirm(&mut told, word, Some(name), subscriptions.count(kind));
    }
    tell(cx, told);
    Ok(())
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
            confirm(&mut told, word, Some(name), subscriptions.count(kind));
        }
        count = subscriptions.count(kind);
        if subscriptions.is_empty() {
            cx.session.subscriptions = None;
        }
    } else {
        names.iter().for_each(|name| confirm(&mut told, word, Some(name), 0));
    }
    if names.is_empty() {
        confirm(&mut told, word, None, count);
    }
    cx.session.take_pushes(cx.out);
    tell(cx, told);
}

/// Writes the confirmation of a subscription or its end; `count` subscriptions are left.
fn confirm(told: &mut Reply, word: &[u8], name: Option<&[u8]>, count: usize) {
    told.push(3);
    told.bulk(word);
    told.bulk_or_null(name);
    told.count(count);
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
