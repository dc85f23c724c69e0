//! Servers of one cluster that are cut off from their bucket: one of them, and all at once.

use super::Server;
use super::bucket::Bucket;
use super::pubsub::Raw;
use super::servers::{asked, check, client, fill, settle, slots_of, until};
use super::tracking::Keeper;
use redis::Commands;
use rustix::process::Signal;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LEASE: Duration = Duration::from_millis(600);

/// Three servers, each with a door of its own to one bucket.
fn servers() -> Vec<(Server, Bucket)> {
    servers_with("60000")
}

/// The same with another `store-timeout-ms`.
fn servers_with(timeout: &str) -> Vec<(Server, Bucket)> {
    let bucket = Bucket::start();
    let lease = LEASE.as_millis().to_string();
    let start = |door: Bucket| {
        let options = [
            "--cluster-enabled",
            "yes",
            "--store",
            "s3://bucket/data",
            "--shards",
            "6",
            "--cluster-lease-ms",
            &lease,
            "--store-timeout-ms",
            timeout,
        ];
        (Server::start_in(door.environment(), &options), door)
    };
    let all: Vec<(Server, Bucket)> = (0..3).map(|_| start(bucket.door())).collect();
    settle(&of(&all));
    all
}

fn of(all: &[(Server, Bucket)]) -> Vec<&Server> {
    all.iter().map(|(server, _)| server).collect()
}

#[test]
fn others_take_over_from_a_server_that_answers_and_does_not_reach_the_bucket() {
    let mut all = servers();
    fill(&mut client(&of(&all)), 1);
    let own = (0..200).map(|n| format!("key:{n}"));
    let mut plain = all[0].0.client();
    let own: Vec<String> = own.filter(|key| plain.get::<_, String>(key).is_ok()).collect();
    all[0].1.set_away(true);
    let begun = Instant::now();
    let lost = plain.set::<_, _, ()>(&own[0], "lost").expect_err("nobody stores it");
    assert!(begun.elapsed() < Duration::from_secs(20), "far below store-timeout-ms: {lost}");
    until("commands are refused as in a cluster that is down", || {
        plain.get::<_, String>(&own[1]).is_err_and(|error| error.code() == Some("CLUSTERDOWN"))
    });
    assert_eq!(redis::cmd("PING").query::<String>(&mut plain).expect("answered"), "PONG");
    let error = plain.set::<_, _, ()>(&own[1], "x").expect_err("refused");
    assert_eq!(error.code(), Some("CLUSTERDOWN"), "{error}");
    settle(&of(&all[1..]));
    let mut of_rest = client(&of(&all[1..]));
    let _: () = of_rest.set(&own[0], own[0].replace("key:", "") + " 1").expect("stored");
    check(&mut of_rest, 1);
    fill(&mut of_rest, 2);
    // It shows nothing old while it finds out that it has no shards any more.
    all[0].1.set_away(false);
    loop {
        match plain.get::<_, String>(&own[1]) {
            Ok(value) => panic!("it shows {value}, and others have the shard"),
            Err(error) if error.is_io_error() => break,
            Err(_) => sleep(Duration::from_millis(1)),
        }
    }
    let status = all[0].0.reap();
    assert!(status.is_some_and(|status| status != 0), "{status:?}");
    all[0].0.restart();
    settle(&of(&all));
    check(&mut client(&of(&all)), 2);
}

#[test]
fn clients_that_wait_are_released_by_a_server_that_is_cut_off() {
    let all = servers();
    fill(&mut client(&of(&all)), 1);
    let (server, door) = &all[0];
    let mut plain = server.client();
    let own = (0..200).map(|n| format!("key:{n}"));
    let own = own.into_iter().find(|key| plain.get::<_, String>(key).is_ok()).expect("some key");
    let (queue, channel) = (format!("{{{own}}}queue"), format!("{{{own}}}channel"));
    let (mut waiting, mut listening) = (Raw::connect(server), Raw::connect(server));
    waiting.send(&format!("BLPOP {queue} 0\r\n"));
    let mut keepers = [&[][..], &["BCAST"]].map(|options| Keeper::new(server, options));
    keepers[0].read(&[&own]);
    let heard = |word: &str, left| {
        format!("*3 ${} {word} ${} {channel} :{left}", word.len(), channel.len())
    };
    listening.expect(&format!("SSUBSCRIBE {channel}"), &heard("ssubscribe", 1));
    until("the client waits", || {
        asked(server, ["INFO", "clients"]).contains("blocked_clients:1\r\n")
    });
    assert!(asked(server, ["CLUSTER", "INFO"]).contains("cluster_state:ok\r\n"));
    door.set_away(true);
    // They need not ask, and nobody tells them but this server.
    let told = waiting.lines(1);
    assert!(told.starts_with("-CLUSTERDOWN "), "{told}");
    listening.hear(&heard("sunsubscribe", 0));
    // Nobody tells them of changes of what they have read, so they are told that it has changed.
    let told = keepers.each_mut().map(|keeper| keeper.wait_told(1));
    assert_eq!(told, [vec![own.clone()], vec!["*".to_owned()]]);
    for command in [format!("SSUBSCRIBE {channel}"), format!("SPUBLISH {channel} m")] {
        listening.send(&format!("{command}\r\n"));
        let told = listening.lines(1);
        assert!(told.starts_with("-CLUSTERDOWN "), "{command}: {told}");
    }
    listening.send("CLUSTER COUNTKEYSINSLOT 0\r\n");
    let told = listening.lines(1);
    assert!(told.starts_with("-CLUSTERDOWN "), "{told}");
    let info = asked(server, ["CLUSTER", "INFO"]);
    assert!(info.contains("cluster_state:fail\r\n"), "{info}");
    assert!(!info.contains("cluster_slots_fail:0\r\n"), "{info}");
    settle(&of(&all[1..]));
    let info = asked(&all[1].0, ["CLUSTER", "INFO"]);
    assert!(info.contains("cluster_state:ok\r\n"), "{info}");
    // There it waits on.
    let mut next = client(&of(&all[1..]));
    let _: usize = next.lpush(&queue, "element").expect("pushed");
    // They hear of it once.
    for keeper in &mut keepers {
        keeper.ping();
        assert!(keeper.hear().is_empty());
    }
}

/// Returns a key of a server. Nobody reads it.
fn key_of(server: &Server) -> String {
    let nodes = asked(server, ["CLUSTER", "NODES"]);
    let myself = nodes.lines().find(|line| line.contains("myself")).expect("itself");
    let ranges: Vec<(u16, u16)> = myself
        .split(' ')
        .skip(8)
        .filter_map(|range| {
            let (first, last) = range.split_once('-')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        })
        .collect();
    let mut plain = server.client();
    let mut slot_of = |key: &String| -> u16 {
        redis::cmd("CLUSTER").arg("KEYSLOT").arg(key).query(&mut plain).expect("its slot")
    };
    let mut keys = (0..1000).map(|n| format!("key:{n}"));
    let is_own = |slot: u16| ranges.iter().any(|(first, last)| (*first..=*last).contains(&slot));
    keys.find(|key| is_own(slot_of(key))).expect("some key")
}

/// Nothing renews the lease while nobody reads or writes, so it cannot be missed either.
#[test]
fn clients_that_listen_are_released_although_nobody_asks_for_data() {
    let all = servers();
    let (server, door) = &all[0];
    let channel = format!("{{{}}}channel", key_of(server));
    let heard = |word: &str, left| {
        format!("*3 ${} {word} ${} {channel} :{left}", word.len(), channel.len())
    };
    let mut listening = Raw::connect(server);
    let mut keeper = Keeper::new(server, &["BCAST"]);
    listening.expect(&format!("SSUBSCRIBE {channel}"), &heard("ssubscribe", 1));
    door.set_away(true);
    listening.hear(&heard("sunsubscribe", 0));
    assert_eq!(keeper.wait_told(1), ["*"]);
}

#[test]
fn nobody_takes_over_while_the_bucket_answers_nobody() {
    let all = servers();
    fill(&mut client(&of(&all)), 1);
    let lives = |all: &[(Server, Bucket)]| {
        let life = |server| asked(server, ["INFO", "everything"]);
        let line = |text: String| {
            let life = text.lines().find(|it| it.starts_with("cluster_life:"));
            life.expect("the server's life").to_owned()
        };
        of(all).into_iter().map(|server| line(life(server))).collect::<Vec<_>>()
    };
    let before = lives(&all);
    let slots: Vec<usize> = of(&all).into_iter().map(slots_of).collect();
    for (_, door) in &all {
        door.set_away(true);
    }
    // Each notices that it cannot store anything.
    for (server, _) in &all {
        let mut plain = server.client();
        until("writes are refused", || {
            let code = |key: usize| {
                let set = plain.set::<_, _, ()>(format!("key:{key}"), "x");
                set.err().and_then(|error| error.code().map(str::to_owned))
            };
            (0..20).filter_map(code).any(|code| code == "CLUSTERDOWN")
        });
    }
    sleep(2 * LEASE);
    for (_, door) in &all {
        door.set_away(false);
    }
    until("all serve again", || {
        let mut of_all = client(&of(&all));
        (0..20).all(|n| of_all.set::<_, _, ()>(format!("key:{n}"), "y").is_ok())
    });
    sleep(3 * LEASE);
    assert_eq!(lives(&all), before, "nobody was taken over");
    assert_eq!(of(&all).into_iter().map(slots_of).collect::<Vec<_>>(), slots);
}

/// The store answers, so nobody counts it as away, and each change of the map is tried again.
#[test]
fn a_server_ends_although_its_full_bucket_refuses_to_note_that_it_leaves() {
    let mut all = servers_with("2000");
    fill(&mut client(&of(&all)), 1);
    all.iter().for_each(|(_, door)| door.fill());
    let mut plain = all[1].0.client();
    let _ = plain.set::<_, _, ()>("key:1", "it may be refused");
    let begun = Instant::now();
    for (server, _) in &mut all {
        server.signal(Signal::TERM);
    }
    for (server, _) in &mut all {
        assert_eq!(server.reap(), Some(1));
        let log = server.log();
        assert!(log.contains("does not leave the cluster in"), "{log}");
    }
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}
