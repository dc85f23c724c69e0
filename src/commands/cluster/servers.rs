//! The commands that servers of a cluster send each other, and what they have sent.

use super::{DISABLED, enabled};
use crate::clients::ClientState;
use crate::cluster::{UNPROVEN, open_link};
use crate::membership::answer_beat;
use crate::routing::{Call, CallOutcome};
use flagstone_commands::arg;
use flagstone_wire::resp::Args;
use std::sync::atomic::Ordering;

/// `CLUSTER BEAT from to number nonce given proof`: another server asks whether this one is there.
pub(super) fn beat(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let Some(cluster) = &cx.node.cluster else { return Err(DISABLED.into()) };
    let words = [2, 3, 4, 5, 6, 7].map(|at| args.get(at).unwrap_or_default());
    let is_well = !cx.node.journal.is_in_trouble();
    let published = cx.node.journal.published();
    cx.out.simple(&answer_beat(cluster, words, (is_well, published))?);
    Ok(())
}

/// `CLUSTER LINK from to nonce proof`: another server is about to send messages on this connection.
pub(super) fn link(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let Some(cluster) = &cx.node.cluster else { return Err(DISABLED.into()) };
    let words = [arg(args, 2)?, arg(args, 3)?, arg(args, 4)?, arg(args, 5)?];
    let (link, reply) = open_link(cluster, words)?;
    cx.session.link = Some(Box::new(link));
    cx.out.simple(&reply);
    Ok(())
}

/// `CLUSTER SPREAD number proof [channel message ...]`: messages that another server was given. The first
/// batch has none. One that is refused ends the connection.
pub(super) fn spread(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let Some(cluster) = &cx.node.cluster else { return Err(DISABLED.into()) };
    let words = [arg(args, 2)?, arg(args, 3)?];
    let parts: Vec<&[u8]> = args.iter().skip(4).collect();
    let Some(link) = &mut cx.session.link else { return Err(UNPROVEN.into()) };
    if let Err(why) = link.accept(cluster, words, parts.iter().copied()) {
        cx.session.link = None;
        cx.session.closing = true;
        return Err(why.into());
    }
    cx.session.client.set(ClientState::SERVER, true);
    cx.node.clients.befriend(&cx.session.client);
    let settings = cx.worker.settings();
    let (limits, now_ms) = (&settings.client_output_buffer_limit, cx.node.clock.now_ms());
    let (messages, _) = parts.as_chunks::<2>();
    for [channel, payload] in messages {
        cx.node.broadcast.pubsub.publish(channel, payload, limits, now_ms);
    }
    cluster.messages.received.fetch_add(messages.len() as u64, Ordering::Relaxed);
    cx.out.simple(&String::from_utf8_lossy(words[0]));
    Ok(())
}

/// Returns how many messages were queued for other servers, have come from them, and were dropped.
pub(super) fn messages(cx: &Call<'_>) -> (u64, u64, u64) {
    let Some(cluster) = &cx.node.cluster else { return (0, 0, 0) };
    let all = &cluster.messages;
    let [queued, received, dropped] =
        [&all.queued, &all.received, &all.dropped].map(|counter| counter.load(Ordering::Relaxed));
    (queued, received, dropped)
}

/// `CLUSTER LINKS`: the links by which messages of PUBLISH go to other servers.
pub(super) fn links(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    enabled(&cx.worker.settings())?;
    let open = cx.node.cluster.as_ref().map(|cluster| cluster.messages.open()).unwrap_or_default();
    cx.out.array(open.len());
    for queue in open {
        let bytes = queue.bytes();
        cx.out.map(6);
        for (name, text) in
            [("direction", "to"), ("node", &*queue.node().to_string()), ("events", "w")]
        {
            cx.out.bulk_str(name);
            cx.out.bulk_str(text);
        }
        cx.out.bulk_str("create-time");
        cx.out.int(queue.since_ms().cast_signed());
        for name in ["send-buffer-allocated", "send-buffer-used"] {
            cx.out.bulk_str(name);
            cx.out.count(bytes);
        }
    }
    Ok(())
}
