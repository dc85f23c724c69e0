//! Channels of a cluster: messages reach subscribers at every server, and shard channels those at the
//! server of their slot.

use super::Server;
use super::pubsub::Raw;
use super::servers::{Cluster, LEASE, asked, client, settle, until};
use redis::{Commands, Value};
use rustix::process::Signal;
use std::time::Instant;

/// Waits until each server has a link to each other one.
fn link(servers: &[&Server]) {
    until("the servers have links for messages", || {
        servers.iter().all(|server| {
            let links =
                redis::cmd("CLUSTER").arg("LINKS").query::<Vec<Value>>(&mut server.client());
            links.expect("answered").len() == servers.len() - 1
        })
    });
}

/// Subscribes two clients: to a channel, and to patterns that match it.
fn listen(server: &Server) -> [Raw; 2] {
    let (mut plain, mut pattern) = (Raw::connect(server), Raw::connect(server));
    plain.expect("SUBSCRIBE news", "*3 $9 subscribe $4 news :1");
    pattern.expect("PSUBSCRIBE n*", "*3 $10 psubscribe $2 n* :1");
    [plain, pattern]
}

/// Checks that two clients of [`listen`] hear a message next.
fn hear([plain, pattern]: &mut [Raw; 2], message: &str) {
    let length = message.len();
    plain.hear(&format!("*3 $7 message $4 news ${length} {message}"));
    pattern.hear(&format!("*4 $8 pmessage $2 n* $4 news ${length} {message}"));
}

#[test]
fn a_message_reaches_the_subscribers_of_all_servers_once_and_in_order() {
    let cluster = Cluster::new();
    let servers = cluster.servers(3);
    let all: Vec<&Server> = servers.iter().collect();
    link(&all);
    let mut listeners: Vec<[Raw; 2]> = all.iter().map(|server| listen(server)).collect();
    let mut publisher = all[0].client();
    let mut messages: Vec<String> = (0..1000).map(|n| format!("message-{n}")).collect();
    // Longer than what a client may send before its password, and than a batch.
    messages[500] = "x".repeat(1 << 20);
    for some in messages.chunks(100) {
        let mut pipe = redis::pipe();
        for message in some {
            pipe.cmd("PUBLISH").arg("news").arg(message);
        }
        let receivers: Vec<usize> = pipe.query(&mut publisher).expect("published");
        assert!(receivers.iter().all(|count| *count == 2), "its own listeners: {receivers:?}");
    }
    let mut pipe = redis::pipe();
    pipe.atomic().cmd("PUBLISH").arg("news").arg("in-exec").cmd("PUBLISH").arg("news").arg("again");
    let receivers: Vec<usize> = pipe.query(&mut publisher).expect("published");
    assert_eq!(receivers, [2, 2]);
    let script = redis::Script::new("return redis.call('PUBLISH', 'news', 'in-script')");
    assert_eq!(script.invoke::<usize>(&mut publisher).expect("published"), 2);
    messages.extend(["in-exec", "again", "in-script"].map(ToOwned::to_owned));
    for both in &mut listeners {
        messages.iter().for_each(|message| hear(both, message));
    }
    // From another server, behind all of that.
    let receivers: usize = all[1].client().publish("news", "end").expect("published");
    assert_eq!(receivers, 2);
    listeners.iter_mut().for_each(|both| hear(both, "end"));
    // Events of keys stay on their server.
    for server in &all {
        let set = redis::cmd("CONFIG")
            .arg(&["SET", "notify-keyspace-events", "KA"])
            .exec(&mut server.client());
        set.expect("set");
    }
    for [plain, _] in &mut listeners {
        plain.expect("PSUBSCRIBE __key*", "*3 $10 psubscribe $6 __key* :2");
    }
    let _: () = client(&all).set("key", "value").expect("stored");
    let sent: usize = all[0].client().publish("news", "last").expect("published");
    assert_eq!(sent, 2);
    let mut heard = 0;
    for [plain, pattern] in &mut listeners {
        pattern.hear("*4 $8 pmessage $2 n* $4 news $4 last");
        let mut lines = plain.lines(4);
        while !lines.contains("news") {
            heard += usize::from(lines.contains("pmessage"));
            lines = plain.lines(1);
        }
    }
    assert!(heard <= 1, "{heard} servers tell of one change");
    let info = asked(all[1], ["CLUSTER", "INFO"]);
    assert!(info.contains("cluster_stats_messages_received:1004\r\n"), "{info}");
    assert!(info.contains("cluster_stats_messages_sent:2\r\n"), "{info}");
}

#[test]
fn a_server_that_was_killed_or_sleeps_delays_no_message() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(3);
    link(&servers.iter().collect::<Vec<_>>());
    let mut listener = listen(&servers[1]);
    let mut publisher = servers[0].client();
    let mut number = 0;
    let mut publish_some = |listener: &mut [Raw; 2]| {
        let begun = Instant::now();
        for _ in 0..50 {
            let sent: usize = publisher.publish("news", format!("{number}")).expect("published");
            assert_eq!(sent, 0);
            hear(listener, &number.to_string());
            number += 1;
        }
        // It waits for no timeout: each would be a lease.
        assert!(begun.elapsed() < 50 * LEASE / 2, "{:?}", begun.elapsed());
    };
    publish_some(&mut listener);
    servers[2].signal(Signal::STOP);
    publish_some(&mut listener);
    servers[2].kill();
    publish_some(&mut listener);
    settle(&[&servers[0], &servers[1]]);
    publish_some(&mut listener);
    servers[2].restart();
    let all: Vec<&Server> = servers.iter().collect();
    settle(&all);
    link(&all);
    let mut again = listen(&servers[2]);
    let sent: usize = servers[0].client().publish("news", "here").expect("published");
    assert_eq!(sent, 0);
    hear(&mut listener, "here");
    hear(&mut again, "here");
}

#[test]
fn only_a_server_can_publish_as_one() {
    let cluster = Cluster::new();
    let servers = cluster.servers(1);
    let [mut plain, _] = listen(&servers[0]);
    const REFUSED: &str = "-ERR This is no command of a server of this cluster";
    let (proof, nonce) = ("0".repeat(64), "1");
    let mut stranger = Raw::connect(&servers[0]);
    let refused = |stranger: &mut Raw, command: &str| {
        stranger.send(&format!("{command}\r\n"));
        assert_eq!(stranger.lines(1), REFUSED, "{command}");
    };
    refused(&mut stranger, &format!("CLUSTER SPREAD 0 {proof}"));
    refused(&mut stranger, &format!("CLUSTER SPREAD 1 {proof} news forged"));
    refused(&mut stranger, &format!("CLUSTER LINK 1 1 {nonce} {proof}"));
    refused(&mut stranger, &format!("CLUSTER BEAT 1 1 1 {nonce} - {proof}"));
    refused(&mut stranger, &format!("CLUSTER SPREAD 0 {proof}"));
    let _: usize = servers[0].client().publish("news", "true").expect("published");
    plain.hear("*3 $7 message $4 news $4 true");
}

/// Returns a channel of each shard.
fn channels() -> Vec<String> {
    let shard_of =
        |name: &str| usize::from(flagstone_storage::slot::slot_of(name.as_bytes())) * 6 / 16384;
    let mut channels = vec![String::new(); 6];
    for name in (0..200).map(|n| format!("ch{n}")) {
        let shard = shard_of(&name);
        channels[shard] = name;
    }
    channels
}

/// Subscribes to a shard channel; returns false if the server redirects.
fn subscribe(client: &mut Raw, channel: &str) -> bool {
    client.send(&format!("SSUBSCRIBE {channel}\r\n"));
    let first = client.lines(1);
    if first.starts_with("-MOVED ") {
        return false;
    }
    assert_eq!(first, "*3");
    client.hear(&format!("$10 ssubscribe ${} {channel} :1", channel.len()));
    true
}

/// Publishes a message to a shard channel, which one client hears.
fn publish(server: &Server, channel: &str) {
    let mut publisher = server.client();
    let sent: usize =
        redis::cmd("SPUBLISH").arg(channel).arg("m").query(&mut publisher).expect("published");
    assert_eq!(sent, 1);
}

#[test]
fn shard_channels_are_on_the_server_of_their_slot_and_their_clients_hear_when_it_leaves() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(2);
    let mut subscribed = Vec::new();
    for channel in channels() {
        for (at, server) in servers.iter().enumerate() {
            let mut client = Raw::connect(server);
            let is_here = subscribe(&mut client, &channel);
            let sent =
                redis::cmd("SPUBLISH").arg(&channel).arg("m").query::<usize>(&mut server.client());
            if is_here {
                assert_eq!(sent.expect("published"), 1);
                client.hear(&format!("*3 $8 smessage ${} {channel} $1 m", channel.len()));
                subscribed.push((at, channel.clone(), client));
            } else {
                assert_eq!(sent.expect_err("redirected").code(), Some("MOVED"));
                client.send(&format!("SUNSUBSCRIBE {channel}\r\n"));
                assert!(client.lines(1).starts_with("-MOVED "));
            }
        }
    }
    assert_eq!(subscribed.len(), 6, "each channel is on one server");
    servers.push(cluster.server());
    settle(&servers.iter().collect::<Vec<_>>());
    let mut moved = 0;
    for (at, channel, client) in &mut subscribed {
        let length = channel.len();
        let mut elsewhere = Raw::connect(&servers[2]);
        if subscribe(&mut elsewhere, channel) {
            moved += 1;
            client.hear(&format!("*3 $12 sunsubscribe ${length} {channel} :0"));
            // It is no subscriber any more.
            client.expect("PING", "+PONG");
            assert!(!subscribe(client, channel));
            publish(&servers[2], channel);
            elsewhere.hear(&format!("*3 $8 smessage ${length} {channel} $1 m"));
        } else {
            publish(&servers[*at], channel);
            client.hear(&format!("*3 $8 smessage ${length} {channel} $1 m"));
        }
    }
    assert_eq!(moved, 2);
}
