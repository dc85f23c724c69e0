//! Promotions in a group of known size (`repl-group-size`): whoever takes over has all that was
//! acknowledged, whichever server is chosen.

use super::Server;
use super::acks::{PATIENCE, ask, has_keys, spawn, text};
use super::failover::replicaof;
use super::followers::{caught_up, count, info, run, until};
use redis::{Connection, Value, cmd};
use rustix::process::Signal;
use std::time::Duration;

const GROUP: &[&str] = &[
    "--repl-ack",
    "sync",
    "--repl-group-size",
    "3",
    "--workers",
    "2",
    "--shards",
    "4",
    "--repl-ping-replica-period",
    "1000",
];

/// A primary and two replicas, which have its first write.
fn group() -> (Server, Server, Server) {
    let primary = Server::start(GROUP);
    // Their own command lines do not name it: a start finds their positions.
    let (one, other) = (Server::start(GROUP), Server::start(GROUP));
    let mut client = primary.client();
    for replica in [&one, &other] {
        replicaof(&mut replica.client(), primary.port());
    }
    until("writes are accepted", || ask(&mut client, &["SET", "a", "0"]) == "ok");
    until("both replicas are there", || {
        (0..2).all(|n| info(&mut client, &format!("slave{n}")).contains("state=online"))
    });
    for replica in [&one, &other] {
        caught_up(&mut client, &mut replica.client());
    }
    (primary, one, other)
}

/// Writes of which each is acknowledged.
fn write(client: &mut Connection, from: i64, to: i64) {
    for n in from..=to {
        assert_eq!(ask(client, &["INCR", "a"]), format!("int({n})"));
        run(client, &["MULTI", "RPUSH l x", "HINCRBY h f 2", "EXEC", "SELECT 3"]);
        run(client, &["SET there x", "SELECT 0"]);
    }
}

fn has(client: &mut Connection, n: i64) {
    until("it has what was acknowledged", || ask(client, &["GET", "a"]) == n.to_string());
    assert_eq!(ask(client, &["LLEN", "l"]), format!("int({n})"));
    assert_eq!(ask(client, &["HGET", "h", "f"]), (2 * n).to_string());
}

/// Lets a replica get nothing while writes are acknowledged.
fn write_behind(replica: &Server, client: &mut Connection, from: i64, to: i64) {
    replicaof(&mut replica.client(), 1);
    write(client, from, to);
}

fn refused(client: &mut Connection) {
    let reply = ask(client, &["SET", "a", "x"]);
    assert!(reply.starts_with("NOREPLICAS This server takes over"), "{reply}");
    let reply = ask(client, &["GET", "a"]);
    assert!(reply.starts_with("MASTERDOWN This server may lack"), "{reply}");
}

#[test]
fn a_promoted_server_takes_what_another_replica_has_more() {
    let (mut old, new, other) = group();
    let (mut client, mut next, mut third) = (old.client(), new.client(), other.client());
    write_behind(&new, &mut client, 1, 50);
    old.kill();
    let position = ["master_replid", "master_repl_offset"].map(|field| info(&mut next, field));
    run(&mut next, &["REPLICAOF NO ONE"]);
    let kept = ["master_replid", "master_repl_offset"].map(|field| info(&mut next, field));
    assert_eq!(kept, position);
    assert_eq!(info(&mut next, "role"), "master", "Sentinel waits for that");
    assert_eq!(info(&mut next, "repl_group_awaited"), "1");
    refused(&mut next);
    assert_eq!(ask(&mut third, &["GET", "a"]), "50");
    replicaof(&mut third, new.port());
    has(&mut next, 50);
    assert_eq!(info(&mut next, "repl_group_awaited"), "");
    until("writes are accepted", || ask(&mut next, &["INCR", "a"]) == "int(51)");
    caught_up(&mut next, &mut third);
    assert_eq!((count(&mut next, "sync_full"), count(&mut next, "sync_partial_ok")), (0, 1));
    // The dead one comes back, with nothing that the others lack.
    old.restart();
    let mut client = old.client();
    replicaof(&mut client, new.port());
    until("it has the new value", || ask(&mut client, &["GET", "a"]) == "51");
    assert_eq!(ask(&mut client, &["LLEN", "l"]), "int(50)");
    assert_eq!(count(&mut next, "sync_full"), 0);
}

#[test]
fn a_primary_that_only_the_sentinels_do_not_reach_loses_nothing() {
    let (old, new, other) = group();
    let (mut client, mut next, mut third) = (old.client(), new.client(), other.client());
    write(&mut client, 1, 10);
    run(&mut next, &["REPLICAOF NO ONE"]);
    // It goes on with the other replica.
    write(&mut client, 11, 30);
    refused(&mut next);
    let waiting = spawn(&old, &["GET", "a"]);
    replicaof(&mut third, new.port());
    has(&mut next, 30);
    until("writes are accepted", || ask(&mut next, &["INCR", "a"]) == "int(31)");
    let _ = waiting.recv_timeout(PATIENCE).expect("a reply");
    let reply = ask(&mut client, &["SET", "a", "old"]);
    assert!(reply.contains("NOREPLICAS"), "{reply}");
    let reply = ask(&mut client, &["GET", "a"]);
    assert!(reply.starts_with("MASTERDOWN"), "{reply}");
    replicaof(&mut client, new.port());
    until("it has the new value", || ask(&mut client, &["GET", "a"]) == "31");
}

#[test]
fn the_former_primary_is_heard_too() {
    let (mut old, new, other) = group();
    let (mut client, mut next) = (old.client(), new.client());
    write_behind(&new, &mut client, 1, 20);
    other.signal(Signal::STOP);
    old.kill();
    run(&mut next, &["REPLICAOF NO ONE"]);
    old.restart();
    let mut client = old.client();
    replicaof(&mut client, new.port());
    has(&mut next, 20);
    until("writes are accepted", || ask(&mut next, &["INCR", "a"]) == "int(21)");
    until("it has the new value", || ask(&mut client, &["GET", "a"]) == "21");
    other.signal(Signal::CONT);
    let mut third = other.client();
    replicaof(&mut third, new.port());
    until("it has the new value", || ask(&mut third, &["GET", "a"]) == "21");
    assert_eq!(count(&mut next, "sync_full"), 0);
}

#[test]
fn a_promotion_waits_over_a_restart_and_can_be_taken_back() {
    let (mut old, mut new, other) = group();
    let (mut client, mut next) = (old.client(), new.client());
    write_behind(&new, &mut client, 1, 20);
    run(&mut next, &["REPLICAOF NO ONE"]);
    new.kill();
    new.restart();
    let mut next = new.client();
    assert_eq!(info(&mut next, "repl_group_awaited"), "1");
    refused(&mut next);
    // The old one is the primary after all.
    replicaof(&mut next, old.port());
    until("it follows again", || ask(&mut next, &["GET", "a"]) == "20");
    assert_eq!(info(&mut next, "role"), "slave");
    write(&mut client, 21, 30);
    caught_up(&mut client, &mut next);
    assert_eq!(count(&mut client, "sync_full"), 2, "only when they came first");
    // It is promoted by hand, without anybody to hear.
    other.signal(Signal::STOP);
    old.kill();
    run(&mut next, &["REPLICAOF NO ONE"]);
    refused(&mut next);
    run(&mut next, &["CONFIG SET repl-ack none"]);
    assert_eq!(ask(&mut next, &["INCR", "a"]), "int(31)");
    assert!(new.log().contains("this server is a primary from now on"), "{}", new.log());
    old.restart();
}

#[test]
fn a_replica_of_a_later_primary_does_not_load_the_data_of_an_old_one() {
    let (old, new, mut other) = group();
    let (mut client, mut next, mut third) = (old.client(), new.client(), other.client());
    write(&mut client, 1, 10);
    old.signal(Signal::STOP);
    run(&mut next, &["REPLICAOF NO ONE"]);
    replicaof(&mut third, new.port());
    has(&mut next, 10);
    until("writes are accepted", || ask(&mut next, &["SET", "a", "10"]) == "ok");
    write(&mut next, 11, 20);
    old.signal(Signal::CONT);
    // Also after a restart.
    other.kill();
    other.restart();
    let mut third = other.client();
    replicaof(&mut third, old.port());
    is_refused(&mut third, "a", "20");
    replicaof(&mut third, new.port());
    until("writes are accepted", || ask(&mut next, &["INCR", "a"]) == "int(21)");
    until("it has the new value", || ask(&mut third, &["GET", "a"]) == "21");
    assert_eq!(count(&mut next, "sync_full"), 0);
}

#[test]
fn a_server_without_the_data_of_its_group_is_not_promoted() {
    let old = Server::start(GROUP);
    let new = Server::start(GROUP);
    let mut next = new.client();
    old.signal(Signal::STOP);
    replicaof(&mut next, old.port());
    let reply = ask(&mut next, &["REPLICAOF", "NO", "ONE"]);
    assert!(reply.contains("this server lacks what its group has acknowledged"), "{reply}");
    assert_eq!(info(&mut next, "role"), "slave");
    run(&mut next, &["CONFIG SET repl-group-size 0", "REPLICAOF NO ONE"]);
    assert_eq!(info(&mut next, "role"), "master");
    old.signal(Signal::CONT);
}

#[test]
fn what_strangers_say_does_not_count() {
    let (mut old, new, _other) = group();
    let (mut client, mut next) = (old.client(), new.client());
    write_behind(&new, &mut client, 1, 5);
    old.kill();
    let (id, end) = (info(&mut next, "master_replid"), 1_u64 << 40);
    run(&mut next, &["REPLICAOF NO ONE"]);
    let said = |next: &mut Connection, text: &str, rest: &[&str]| {
        let words = [&["REPLCONF", "POSITION", text][..], rest].concat();
        ask(next, &words)
    };
    for wrong in ["", "x", "x 1", "x y -", "x 1 - w", "x 1 - w z", "x 1 - w 1 v"] {
        assert_eq!(said(&mut next, wrong, &[]), "ERR syntax error", "{wrong}");
    }
    let reply = said(&mut next, "another 5 -", &[]);
    assert!(reply.contains("no stream in common"), "{reply}");
    let reply = said(&mut next, &format!("{id} {end} -"), &[]);
    assert!(reply.contains("SEND"), "{reply}");
    for rest in ["", "*1\r\n$4\r\nPING\r\n", "garbage"] {
        let reply = said(&mut next, &format!("{id} {end} -"), &["REST", rest]);
        assert!(reply.contains("the end of the stream"), "{reply}");
    }
    // A question has to be answered, by a server that has nothing more.
    let asks = said(&mut next, &format!("{id} 1 -"), &[]);
    assert!(asks.contains("AGAIN"), "{asks}");
    let asks = said(&mut next, &format!("{id} 1 0123456789abcdef.1"), &[]);
    assert!(asks.contains("AGAIN"), "{asks}");
    refused(&mut next);
    for words in [&["PSYNC", "?", "-1"][..], &["SYNC"], &["FAILOVER"]] {
        let reply = ask(&mut new.client(), words);
        assert!(reply.contains("NOMASTERLINK") || reply.contains("not valid"), "{reply}");
    }
    let _: Value = cmd("PING").query(&mut next).expect("PING");
}

#[test]
fn a_primary_whose_writes_nobody_confirms_gives_them_to_its_successor() {
    let (old, new, other) = group();
    let (mut client, mut next) = (old.client(), new.client());
    write(&mut client, 1, 10);
    other.signal(Signal::STOP);
    run(&mut next, &["REPLICAOF NO ONE"]);
    let mut waiting: Vec<_> =
        (0..8).map(|n| spawn(&old, &["SET", &format!("k{n}"), "v"])).collect();
    let both = "redis.call('set', KEYS[1], 'v') return redis.call('incr', KEYS[2])";
    waiting.push(spawn(&old, &["EVAL", both, "2", "m", "a"]));
    until("all is written", || has_keys(&mut client, 12));
    assert!(waiting.iter().all(|reply| reply.try_recv().is_err()), "nobody has confirmed it");
    replicaof(&mut client, new.port());
    for reply in waiting {
        let reply = text(reply.recv_timeout(PATIENCE).expect("a reply"));
        assert!(reply.contains("not known"), "{reply}");
    }
    until("it has the last write", || ask(&mut next, &["GET", "a"]) == "11");
    until("writes are accepted", || ask(&mut next, &["INCR", "a"]) == "int(12)");
    // The former primary goes on with what nobody had confirmed.
    until("it has the new value", || ask(&mut client, &["GET", "a"]) == "12");
    assert_eq!(ask(&mut client, &["GET", "k0"]), "v");
    run(&mut next, &["APPEND k1 x", "MSET k2 w k3 w"]);
    until("it has the new values", || ask(&mut client, &["GET", "k3"]) == "w");
    assert_eq!(ask(&mut client, &["GET", "k1"]), "vx");
    let kept = ask(&mut next, &["EXISTS", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"]);
    assert_eq!(kept, "int(8)");
    assert_eq!(count(&mut next, "sync_full"), 0);
    other.signal(Signal::CONT);
}

/// Waits until a replica is refused, and keeps its data.
fn is_refused(client: &mut Connection, key: &str, value: &str) {
    until("it is refused", || {
        info(client, "master_link_down_reason").contains("it has followed a later primary")
    });
    run(client, &["CONFIG SET replica-serve-stale-data yes"]);
    assert_eq!(ask(client, &["GET", key]), value);
}

#[test]
fn a_later_primary_that_was_killed_does_not_load_the_data_of_an_old_one() {
    let (mut old, mut new, mut other) = group();
    let (mut next, mut third) = (new.client(), other.client());
    old.kill();
    run(&mut next, &["REPLICAOF NO ONE"]);
    replicaof(&mut third, new.port());
    until("writes are accepted", || ask(&mut next, &["SET", "w", "1"]) == "ok");
    // And once more, so that the old one does not know the last primary's stream at all.
    run(&mut third, &["REPLICAOF NO ONE"]);
    replicaof(&mut next, other.port());
    until("writes are accepted", || ask(&mut third, &["SET", "w", "2"]) == "ok");
    old.restart();
    for server in [&mut new, &mut other] {
        server.kill();
        server.restart();
        let mut client = server.client();
        replicaof(&mut client, old.port());
        is_refused(&mut client, "w", "2");
    }
    // The old one hears the others, if it is to follow them first.
    let (mut next, mut third) = (new.client(), other.client());
    run(&mut third, &["REPLICAOF NO ONE"]);
    replicaof(&mut next, other.port());
    until("writes are accepted", || ask(&mut third, &["SET", "w", "3"]) == "ok");
    let mut client = old.client();
    replicaof(&mut client, other.port());
    until("it has the new value", || ask(&mut client, &["GET", "w"]) == "3");
}

#[test]
fn from_its_start_on_a_server_that_is_to_be_promoted_gives_its_data_to_nobody() {
    let (mut old, mut new, other) = group();
    let (mut client, mut next, mut third) = (old.client(), new.client(), other.client());
    write_behind(&new, &mut client, 1, 5);
    old.kill();
    run(&mut next, &["REPLICAOF NO ONE"]);
    for _ in 0..2 {
        new.kill();
        new.restart();
        replicaof(&mut third, new.port());
        has(&mut third, 5);
    }
    let mut next = new.client();
    has(&mut next, 5);
    until("writes are accepted", || ask(&mut next, &["INCR", "a"]) == "int(6)");
    assert_eq!(count(&mut next, "sync_full"), 0);
}

#[test]
fn a_role_that_is_chosen_right_after_the_start_comes_after_the_first_one() {
    let (old, mut new, _other) = group();
    for _ in 0..2 {
        new.kill();
        new.restart();
        let mut next = new.client();
        replicaof(&mut next, old.port());
        std::thread::sleep(Duration::from_millis(2500));
        assert_eq!(info(&mut next, "role"), "slave");
        until("it follows", || info(&mut next, "master_link_status") == "up");
    }
}

#[test]
fn transactions_from_before_a_promotion_show_nothing_old() {
    let (old, new, _other) = group();
    let (mut client, mut next) = (old.client(), new.client());
    write_behind(&new, &mut client, 1, 5);
    let mut readers: Vec<_> = (0..4).map(|_| new.client()).collect();
    for _ in 0..10 {
        replicaof(&mut next, 1);
        let is_promoted = std::sync::atomic::AtomicBool::new(false);
        // All of them have ended when it becomes a replica again, which may show what is old.
        std::thread::scope(|scope| {
            for reader in &mut readers {
                scope.spawn(|| {
                    while !is_promoted.load(std::sync::atomic::Ordering::Relaxed) {
                        run(reader, &["MULTI"]);
                        let _: Value = cmd("ROLE").query(reader).expect("queued");
                        let _: Result<Value, _> = cmd("GET").arg("a").query(reader);
                        let said = ask(reader, &["EXEC"]);
                        assert!(!said.contains("master") || !said.contains("'\"0\"'"), "{said}");
                    }
                });
            }
            run(&mut next, &["REPLICAOF NO ONE"]);
            is_promoted.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
}

#[test]
fn a_former_primary_that_starts_as_a_replica_acknowledges_nothing() {
    let (mut old, mut new, other) = group();
    let (mut next, mut third) = (new.client(), other.client());
    old.kill();
    run(&mut next, &["REPLICAOF NO ONE"]);
    replicaof(&mut third, new.port());
    until("writes are accepted", || ask(&mut next, &["SET", "a", "1"]) == "ok");
    let port = old.port();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writer = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            // From the first moment at which it can be reached.
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let Ok(client) = redis::Client::open(("127.0.0.1", port)) else { continue };
                let Ok(mut client) = client.get_connection() else { continue };
                for _ in 0..100 {
                    let said = cmd("INCR").arg("a").query::<i64>(&mut client);
                    assert!(said.is_err(), "{said:?}");
                }
            }
        })
    };
    for _ in 0..3 {
        old.restart_with(&[GROUP, &["--replicaof", &format!("127.0.0.1 {}", new.port())]].concat());
        let mut client = old.client();
        until("it follows", || info(&mut client, "master_link_status") == "up");
        old.kill();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    writer.join().expect("nothing was acknowledged");
    assert_eq!(ask(&mut next, &["GET", "a"]), "1");
    assert_eq!(count(&mut next, "sync_full"), 0);
    new.kill();
}

#[test]
fn roles_are_exchanged_again_and_again() {
    let one = Server::start(GROUP);
    let (other, third) = (Server::start(GROUP), Server::start(GROUP));
    let mut clients = [one.client(), other.client()];
    let ports = [one.port(), other.port()];
    replicaof(&mut clients[1], ports[0]);
    until("writes are accepted", || ask(&mut clients[0], &["SET", "a", "0"]) == "ok");
    replicaof(&mut third.client(), ports[0]);
    for n in 1..=10 {
        let (primary, replica) = (n % 2, 1 - n % 2);
        run(&mut clients[primary], &["REPLICAOF NO ONE"]);
        replicaof(&mut clients[replica], ports[primary]);
        let value = format!("int({n})");
        until("writes are accepted", || {
            let said = ask(&mut clients[primary], &["INCR", "a"]);
            assert!(said == value || said.contains("NOREPLICAS"), "{said}");
            said == value
        });
    }
    // FAILOVER leaves the servers what they need to know, too.
    let mut third = third.client();
    replicaof(&mut third, ports[0]);
    until("it follows", || info(&mut third, "master_link_status") == "up");
    let reply = ask(
        &mut clients[0],
        &["FAILOVER", "TO", "127.0.0.1", &ports[1].to_string(), "FORCE", "TIMEOUT", "1"],
    );
    assert!(reply.contains("not allowed in a group"), "{reply}");
    run(&mut clients[0], &[&format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 20000", ports[1])]);
    until("writes are accepted", || ask(&mut clients[1], &["SET", "a", "x"]) == "ok");
    run(&mut clients[0], &["REPLICAOF NO ONE"]);
    replicaof(&mut third, ports[0]);
    until("writes are accepted", || ask(&mut clients[0], &["SET", "a", "y"]) == "ok");
    until("it has the new value", || ask(&mut third, &["GET", "a"]) == "y");
}

#[test]
fn a_replica_that_was_killed_while_it_loaded_starts_alone() {
    let primary = Server::start(&[]);
    let script = "for n = 1, 20000 do redis.call('set', n, n) end";
    let _: Value = cmd("EVAL").arg(script).arg(0).query(&mut primary.client()).expect("EVAL");
    let mut replica = Server::start(GROUP);
    for _ in 0..4 {
        let mut client = replica.client();
        replicaof(&mut client, primary.port());
        until("it loads", || {
            info(&mut client, "master_sync_in_progress") == "1"
                || info(&mut client, "master_link_status") == "up"
        });
        std::thread::sleep(Duration::from_millis(50));
        replica.kill();
        replica.restart();
        assert_eq!(info(&mut replica.client(), "role"), "master");
    }
    replica.stop();
}

#[test]
fn the_replica_of_a_group_of_two_starts_as_its_primary() {
    let two = [GROUP, &["--repl-group-size", "2"]].concat();
    let (mut old, mut new) = (Server::start(&two), Server::start(&two));
    let (mut client, mut next) = (old.client(), new.client());
    replicaof(&mut next, old.port());
    until("writes are accepted", || ask(&mut client, &["SET", "a", "0"]) == "ok");
    write(&mut client, 1, 5);
    old.kill();
    new.kill();
    new.restart();
    let mut next = new.client();
    old.restart();
    replicaof(&mut old.client(), new.port());
    until("writes are accepted", || ask(&mut next, &["INCR", "a"]) == "int(6)");
    assert_eq!(count(&mut next, "sync_full"), 0);
}
