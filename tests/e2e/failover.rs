//! Exchanges of roles: promoted replicas, and FAILOVER.

use super::Server;
use super::followers::{
    CHANGES, Reader, caught_up, contents, count, follow, info, offset, run, until,
};
use super::ways::{Passing, place, way_to};
use redis::{Commands, Connection, Value, cmd};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(super) fn replicaof(client: &mut Connection, port: u16) {
    let _: () = cmd("REPLICAOF").arg("127.0.0.1").arg(port).query(client).expect("REPLICAOF");
}

#[test]
fn replicas_of_a_dead_primary_go_on_with_the_one_that_is_promoted() {
    let mut old = Server::start(&["--appendfsync", "always"]);
    let mut client = old.client();
    run(&mut client, CHANGES);
    let (mut new, sibling) = (Server::start(&["--workers", "2"]), follow(&old, &[]));
    replicaof(&mut new.client(), old.port());
    let (mut first, mut second) = (new.client(), sibling.client());
    caught_up(&mut client, &mut first);
    caught_up(&mut client, &mut second);
    let id = info(&mut client, "master_replid");
    run(&mut client, &["SELECT 3", "MULTI", "INCR counted", "INCR counted", "EXEC", "SELECT 0"]);
    caught_up(&mut client, &mut first);
    old.kill();
    run(&mut first, &["REPLICAOF NO ONE"]);
    assert_eq!(info(&mut first, "master_replid2"), id);
    assert_ne!(info(&mut first, "master_replid"), id);
    run(&mut first, &["INCR n1", "SELECT 3", "INCR counted", "SELECT 0", "SADD late x"]);
    replicaof(&mut second, new.port());
    caught_up(&mut first, &mut second);
    assert_eq!((count(&mut first, "sync_full"), count(&mut first, "sync_partial_ok")), (0, 1));
    for db in [0, 3, 4] {
        assert_eq!(contents(&mut first, db), contents(&mut second, db), "{db}");
    }
    // The stream goes on over a kill of the new primary, too.
    new.kill();
    new.restart();
    let mut first = new.client();
    run(&mut first, &["INCR n1"]);
    caught_up(&mut first, &mut second);
    assert_eq!(count(&mut first, "sync_full"), 0);
    assert_eq!(contents(&mut first, 0), contents(&mut second, 0));
}

#[test]
fn a_replica_that_has_more_than_the_promoted_one_begins_anew() {
    let mut old = Server::start(&["--appendfsync", "always"]);
    let new = follow(&old, &[]);
    let (mut client, mut first) = (old.client(), new.client());
    run(&mut client, &["SET a 1"]);
    caught_up(&mut client, &mut first);
    let id = info(&mut client, "master_replid");
    let end = offset(&mut client);
    run(&mut client, &["SET a 2", "MULTI", "INCR a", "INCR b", "EXEC"]);
    caught_up(&mut client, &mut first);
    old.kill();
    run(&mut first, &["REPLICAOF NO ONE"]);
    let end_here: u64 = info(&mut first, "second_repl_offset").parse().expect("an offset");
    assert!(end_here > end, "{end_here}");
    for (from, goes_on) in [(end_here, true), (end_here + 1, false), (end_here + 1000, false)] {
        let reply = Reader::connect(&new).ask(&format!("PSYNC {id} {from}"));
        assert_eq!(reply.starts_with("+CONTINUE"), goes_on, "{from}: {reply}");
    }
    // One that has less gets the rest of the former stream, then the new one.
    let own = info(&mut first, "master_replid");
    let mut reader = Reader::connect(&new);
    let reply = reader.ask(&format!("PSYNC {id} {}", end + 1));
    assert_eq!(reply, format!("+CONTINUE {own}"));
    run(&mut first, &["SET mine 1"]);
    let mut words = Vec::new();
    while words.last().is_none_or(|last| last != "SET mine 1") {
        words.push(reader.next());
    }
    words.retain(|words| !words.starts_with("REPLCONF") && words != "SELECT 0");
    assert_eq!(words, ["SET a 2", "MULTI", "INCR a", "INCR b", "EXEC", "SET mine 1"]);
}

fn error(client: &mut Connection, words: &[&str]) -> String {
    let mut request = cmd(words[0]);
    request.arg(&words[1..]);
    let failed = request.query::<Value>(client).expect_err("an error");
    format!("{} {}", failed.code().unwrap_or_default(), failed.detail().unwrap_or_default())
}

#[test]
fn a_failover_exchanges_the_roles_and_nothing_is_sent_anew() {
    let primary = Server::start(&["--workers", "2", "--appendfsync", "everysec"]);
    let replica = follow(&primary, &[]);
    let sibling = follow(&primary, &[]);
    let (mut client, mut other) = (primary.client(), replica.client());
    let mut third = sibling.client();
    run(&mut client, CHANGES);
    caught_up(&mut client, &mut other);
    caught_up(&mut client, &mut third);
    let port = replica.port().to_string();
    run(&mut client, &["INCR moved"]);
    run(&mut client, &[&format!("FAILOVER TO 127.0.0.1 {port} TIMEOUT 60000")]);
    // It waits for the end of the failover, and is refused then.
    let refused = client.incr::<_, _, i64>("moved", 1);
    assert!(refused.is_err() || refused.is_ok_and(|value| value == 2));
    until("the roles are exchanged", || {
        info(&mut other, "role") == "master" && info(&mut client, "master_link_status") == "up"
    });
    assert_eq!(info(&mut client, "master_failover_state"), "no-failover");
    assert_eq!(info(&mut client, "role"), "slave");
    run(&mut other, &["INCR moved", "INCR n1"]);
    caught_up(&mut other, &mut client);
    assert_eq!(count(&mut other, "sync_full"), 0);
    replicaof(&mut third, replica.port());
    until("both are there", || info(&mut other, "connected_slaves") == "2");
    run(&mut other, &["INCR n1"]);
    caught_up(&mut other, &mut client);
    until("the third has it", || contents(&mut third, 0) == contents(&mut other, 0));
    assert_eq!(count(&mut other, "sync_full"), 0);
    assert_eq!(contents(&mut client, 0), contents(&mut other, 0));
    let configured: Vec<String> =
        cmd("CONFIG").arg(&["GET", "replicaof"]).query(&mut client).expect("it");
    assert_eq!(configured[1], format!("127.0.0.1 {port}"));
    // And back.
    run(&mut other, &["FAILOVER TIMEOUT 60000"]);
    until("there is another primary", || info(&mut other, "role") == "slave");
    until("its link is up", || info(&mut other, "master_link_status") == "up");
}

#[test]
fn a_server_whose_successor_s_reply_is_lost_does_not_become_a_second_primary() {
    let primary = Server::start(&["--appendfsync", "always"]);
    let replica = Server::start(&["--appendfsync", "always"]);
    let (mut client, mut other) = (primary.client(), replica.client());
    let is_lost = Arc::new(AtomicBool::new(false));
    let port = way_to(replica.port(), move || {
        let (is_lost, mut breaks) = (is_lost.clone(), false);
        Box::new(move |passing| match passing {
            Passing::Request(bytes) => {
                let asks = place(b"FAILOVER", bytes).is_some();
                breaks |= asks && !is_lost.swap(true, Ordering::SeqCst);
                true
            }
            Passing::Reply(_) => !breaks,
        })
    });
    run(&mut other, &[&format!("CONFIG SET replica-announce-port {port}")]);
    replicaof(&mut other, primary.port());
    run(&mut client, &["SET a 1"]);
    caught_up(&mut client, &mut other);
    run(&mut client, &[&format!("FAILOVER TO 127.0.0.1 {port} TIMEOUT 60000")]);
    until("it has ended", || info(&mut client, "master_failover_state") == "no-failover");
    assert_eq!(
        ["role", "master_port"].map(|it| info(&mut client, it)),
        ["slave", &port.to_string()]
    );
    assert_eq!(info(&mut other, "role"), "master");
    assert!(error(&mut client, &["SET", "a", "2"]).starts_with("READONLY"));
    run(&mut other, &["INCR a"]);
    caught_up(&mut other, &mut client);
    assert_eq!(client.get::<_, i64>("a").expect("GET"), 2);
    let log = primary.log();
    assert!(
        log.contains("the failover is done") && !log.contains("does not give its role"),
        "{log}"
    );
}

#[test]
fn a_failover_that_cannot_be_is_refused_or_ends() {
    let primary = Server::start(&["--appendfsync", "always"]);
    let mut client = primary.client();
    let refused = |client: &mut Connection, words: &[&str], text: &str| {
        assert_eq!(error(client, words), text, "{words:?}");
    };
    refused(&mut client, &["FAILOVER"], "ERR FAILOVER requires connected replicas.");
    refused(&mut client, &["FAILOVER", "ABORT"], "ERR No failover in progress.");
    refused(&mut client, &["FAILOVER", "ABORT", "FORCE"], "ERR syntax error");
    refused(
        &mut client,
        &["FAILOVER", "TIMEOUT", "0"],
        "ERR FAILOVER timeout must be greater than 0",
    );
    refused(
        &mut client,
        &["FAILOVER", "TIMEOUT", "x"],
        "ERR value is not an integer or out of range",
    );
    // It is online, and never acknowledges anything.
    let mut reader = Reader::connect(&primary);
    reader.ask("REPLCONF listening-port 1 ip-address 10.0.0.1");
    reader.ask("PSYNC ? -1");
    reader.data_set();
    run(&mut client, &["SET a 1"]);
    assert_eq!(reader.next(), "SET a 1");
    let target = ["FAILOVER", "TO", "10.0.0.1", "1"];
    let forced = "ERR FAILOVER with force option requires both a timeout and target HOST and IP.";
    refused(&mut client, &["FAILOVER", "FORCE"], forced);
    refused(&mut client, &[&target[..], &["FORCE"]].concat(), forced);
    let unknown = "ERR FAILOVER target HOST and PORT is not a replica.";
    refused(&mut client, &["FAILOVER", "TO", "10.0.0.1", "2"], unknown);
    let mut request = cmd("FAILOVER");
    let _: () = request.arg(&["TO", "10.0.0.1", "1"]).query(&mut client).expect("FAILOVER");
    refused(&mut client, &["FAILOVER"], "ERR FAILOVER already in progress.");
    assert_eq!(info(&mut client, "master_failover_state"), "waiting-for-sync");
    refused(
        &mut client,
        &["REPLICAOF", "NO", "ONE"],
        "ERR REPLICAOF not allowed while failing over.",
    );
    let reply = Reader::connect(&primary).ask("PSYNC ? -1");
    assert_eq!(reply, "-NOMASTERLINK Can't SYNC while failing over");
    let mut writer = primary.client();
    let writing = thread::spawn(move || writer.set::<_, _, ()>("b", 1));
    thread::sleep(Duration::from_millis(100));
    assert!(!writing.is_finished(), "writes wait");
    assert_eq!(client.get::<_, i64>("a").expect("GET"), 1);
    run(&mut client, &["FAILOVER ABORT"]);
    writing.join().expect("it ends").expect("it is written");
    assert_eq!(info(&mut client, "master_failover_state"), "no-failover");
    run(&mut client, &["FAILOVER TIMEOUT 100"]);
    until("the time is over", || info(&mut client, "master_failover_state") == "no-failover");
    let _: () = client.set("c", 1).expect("this server is still the primary");
    // By force, to an address where nobody is: only ABORT helps.
    let end = info(&mut client, "master_replid");
    run(&mut client, &["CONFIG SET repl-timeout 1", "FAILOVER TO 10.0.0.1 1 FORCE TIMEOUT 100"]);
    until("it is a replica", || info(&mut client, "role") == "slave");
    until("it asks", || info(&mut client, "master_failover_state") == "failover-in-progress");
    run(&mut client, &["FAILOVER ABORT", "SET d 1"]);
    assert_eq!(info(&mut client, "role"), "master");
    assert_eq!(info(&mut client, "master_replid2"), end);
}

#[test]
fn a_replica_that_takes_over_reads_the_rest_of_the_stream_first() {
    use super::replica::{EMPTY, ID, Primary};
    let primary = Primary::serve(EMPTY);
    let replica = Server::start(&[]);
    let mut client = replica.client();
    super::replica::follow(&mut client, &primary);
    primary.say(&["SELECT 0", "SET a 1"]);
    primary.wait();
    until("it has that", || client.get::<_, Option<i64>>("a").is_ok_and(|a| a == Some(1)));
    let has: u64 = info(&mut client, "slave_repl_offset").parse().expect("an offset");
    let rest = "*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$1\r\n2\r\n".len() as u64;
    let mut reader = Reader::connect(&replica);
    reader.say(&format!("PSYNC {ID} {} FAILOVER", has + rest + 1));
    thread::sleep(Duration::from_millis(100));
    assert_eq!(info(&mut client, "role"), "slave", "it waits");
    primary.say(&["SET b 2"]);
    let reply = reader.line();
    assert!(reply.starts_with("+CONTINUE"), "{reply}");
    assert_eq!(client.get::<_, i64>("b").expect("GET"), 2);
    assert_eq!(info(&mut client, "role"), "master");
}

#[test]
fn only_the_primary_makes_its_replica_take_over() {
    let primary = Server::start(&["--appendfsync", "always"]);
    let replica = follow(&primary, &[]);
    let (mut client, mut other) = (primary.client(), replica.client());
    caught_up(&mut client, &mut other);
    let id = info(&mut client, "master_replid");
    let next = offset(&mut client) + 1;
    let mut reader = Reader::connect(&primary);
    let reply = reader.ask(&format!("PSYNC {id} {next} FAILOVER"));
    assert_eq!(reply, "-ERR PSYNC FAILOVER can't be sent to a master.");
    let mut reader = Reader::connect(&replica);
    let reply = reader.ask(&format!("PSYNC {} {next} FAILOVER", "0".repeat(40)));
    assert_eq!(reply, "-ERR PSYNC FAILOVER replid must match my replid.");
    let reply = reader.ask(&format!("PSYNC {id} {next} FAILOVER"));
    assert!(reply.starts_with("+CONTINUE") || reply.starts_with("+FULLRESYNC"), "{reply}");
    assert_eq!(info(&mut other, "role"), "master");
}

#[test]
fn a_stop_waits_until_replicas_have_everything() {
    let options = ["--appendfsync", "everysec", "--workers", "2", "--shutdown-timeout", "60"];
    let mut primary = Server::start(&options);
    let replica = follow(&primary, &[]);
    let (mut client, mut other) = (primary.client(), replica.client());
    caught_up(&mut client, &mut other);
    replica.signal(Signal::STOP);
    for n in 0..500 {
        let _: () = client.set(format!("k{n}"), "v".repeat(1000)).expect("SET");
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(700));
            replica.signal(Signal::CONT);
        });
        primary.stop();
    });
    assert!(primary.log().contains("all replicas have everything"), "{}", primary.log());
    run(&mut other, &["REPLICAOF NO ONE"]);
    assert_eq!(cmd("DBSIZE").query::<u64>(&mut other).expect("DBSIZE"), 500);
    // It waits no longer than it may.
    primary.restart();
    let mut client = primary.client();
    run(&mut client, &["CONFIG SET shutdown-timeout 1"]);
    replicaof(&mut other, primary.port());
    caught_up(&mut client, &mut other);
    replica.signal(Signal::STOP);
    run(&mut client, &["SET late 1"]);
    primary.stop();
    assert!(primary.log().contains("replicas lack the last writes"), "{}", primary.log());
    replica.signal(Signal::CONT);
}

#[test]
fn counts_of_the_stream_go_back_to_zero() {
    let primary = Server::start(&["--appendfsync", "everysec"]);
    let replica = follow(&primary, &[]);
    let (mut client, mut other) = (primary.client(), replica.client());
    for n in 0..501 {
        let () = cmd("EVAL").arg(format!("return {n}")).arg(0).query(&mut client).expect("EVAL");
    }
    caught_up(&mut client, &mut other);
    // Behind the data set, which would have it compressed.
    let () = client.set("k", "v".repeat(1_000_000)).expect("SET");
    caught_up(&mut client, &mut other);
    run(&mut client, &["SAVE"]);
    let counts = ["sync_full", "evicted_scripts", "rdb_saves"];
    for name in counts {
        assert_ne!(field(&mut client, name).as_deref(), Some("0"), "{name}");
    }
    let [sent, got] = ["total_net_repl_output_bytes", "total_net_repl_input_bytes"];
    assert!(count(&mut client, sent) > 1_000_000 && count(&mut other, got) > 1_000_000);
    for connection in [&mut client, &mut other] {
        run(connection, &["CONFIG RESETSTAT"]);
    }
    for name in counts {
        assert_eq!(field(&mut client, name).as_deref(), Some("0"), "{name}");
    }
    // Questions and acknowledgements go on.
    assert!(count(&mut client, sent) < 500_000 && count(&mut other, got) < 500_000);
}

/// Returns a field of all of INFO, if it is there.
fn field(client: &mut Connection, name: &str) -> Option<String> {
    let all: String = cmd("INFO").query(client).expect("INFO");
    let found = all.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.map(str::to_owned)
}

#[test]
fn a_stop_that_waits_for_replicas_can_be_aborted() {
    let mut primary = Server::start(&["--appendfsync", "always", "--shutdown-timeout", "3600"]);
    let replica = follow(&primary, &[]);
    let (mut client, mut other) = (primary.client(), replica.client());
    caught_up(&mut client, &mut other);
    let none = error(&mut client, &["SHUTDOWN", "ABORT"]);
    assert!(none.ends_with("No shutdown in progress."), "{none}");
    replica.signal(Signal::STOP);
    run(&mut client, &["SET k 1"]);
    let ask = |line: &str| {
        let mut socket = primary.socket();
        socket.write_all(format!("{line}\r\n").as_bytes()).expect("sent");
        BufReader::new(socket)
    };
    let mut stops = [ask("SHUTDOWN"), ask("shutdown nosave force")];
    until("both wait", || {
        field(&mut client, "blocked_clients").as_deref() == Some("2")
            && field(&mut client, "shutdown_in_milliseconds").is_some()
    });
    let left = field(&mut client, "shutdown_in_milliseconds").expect("it waits");
    assert!((1..=3_600_000).contains(&left.parse::<u64>().expect("ms")), "{left}");
    for (name, value) in [("paused_reason", "shutdown_in_progress"), ("paused_actions", "write")] {
        assert_eq!(field(&mut client, name).as_deref(), Some(value));
    }
    let mut held = ask("SET k 2");
    until("it is held", || field(&mut client, "blocked_clients").as_deref() == Some("3"));
    run(&mut client, &["SHUTDOWN ABORT"]);
    let line = |socket: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        socket.read_line(&mut line).expect("a reply");
        line
    };
    for stop in &mut stops {
        assert_eq!(line(stop), "-ERR Errors trying to SHUTDOWN. Check logs.\r\n");
    }
    assert_eq!(line(&mut held), "+OK\r\n");
    for (name, value) in [("paused_reason", Some("none")), ("shutdown_in_milliseconds", None)] {
        assert_eq!(field(&mut client, name).as_deref(), value);
    }
    // A stop by a signal, too; then one that insists.
    primary.signal(Signal::TERM);
    until("it waits", || field(&mut client, "shutdown_in_milliseconds").is_some());
    run(&mut client, &["SHUTDOWN ABORT", "INCR k"]);
    let mut stop = ask("SHUTDOWN");
    until("it waits", || field(&mut client, "shutdown_in_milliseconds").is_some());
    let _now = ask("SHUTDOWN NOW");
    assert_eq!(line(&mut stop), "", "the connection ends with the server");
    primary.stop();
    replica.signal(Signal::CONT);
    primary.restart();
    assert_eq!(primary.client().get::<_, i64>("k").expect("k"), 3);
}

#[test]
fn clients_that_can_be_are_sent_to_the_primary() {
    let primary = Server::start(&[]);
    let replica = follow(&primary, &[]);
    let (mut client, mut other) = (primary.client(), replica.client());
    run(&mut client, &["SET a 1"]);
    caught_up(&mut client, &mut other);
    assert!(error(&mut other, &["SET", "a", "2"]).starts_with("READONLY"));
    run(&mut other, &["GET a", "CLIENT CAPA redirect"]);
    let redirect = format!("REDIRECT 127.0.0.1:{}", primary.port());
    assert_eq!(error(&mut other, &["GET", "a"]), redirect);
    assert_eq!(error(&mut other, &["SET", "a", "2"]), redirect);
    run(&mut other, &["PING", "INFO"]);
    run(&mut other, &["READONLY", "GET a"]);
    assert_eq!(error(&mut other, &["SET", "a", "2"]), redirect);
    run(&mut other, &["READWRITE"]);
    assert_eq!(error(&mut other, &["GET", "a"]), redirect);
    run(&mut other, &["RESET", "GET a", "CLIENT CAPA redirect", "REPLICAOF NO ONE", "GET a"]);
    // On a primary it changes nothing.
    run(&mut client, &["CLIENT CAPA redirect", "GET a", "SET a 2"]);
}

#[test]
fn a_link_that_a_client_breaks_goes_on_and_its_bytes_are_counted() {
    let primary = Server::start(&["--appendfsync", "everysec"]);
    let replica = follow(&primary, &[]);
    let (mut client, mut other) = (primary.client(), replica.client());
    caught_up(&mut client, &mut other);
    let killed: u64 = cmd("CLIENT").arg(&["KILL", "TYPE", "master"]).query(&mut other).expect("it");
    assert_eq!(killed, 1);
    run(&mut client, &["SET a 1"]);
    until("the link is there again", || count(&mut client, "sync_partial_ok") == 1);
    caught_up(&mut client, &mut other);
    let killed: u64 =
        cmd("CLIENT").arg(&["KILL", "TYPE", "master"]).query(&mut client).expect("it");
    assert_eq!(killed, 0, "a primary has none");
    run(&mut other, &[&format!("CLIENT KILL 127.0.0.1:{}", primary.port())]);
    until("the link is there again", || count(&mut client, "sync_partial_ok") == 2);
    assert!(count(&mut client, "total_net_repl_output_bytes") > 100);
    assert!(count(&mut other, "total_net_repl_input_bytes") > 100);
    let stored: (u64, u64) =
        cmd("WAITAOF").arg(&[1, 1, 60_000]).query(&mut client).expect("WAITAOF");
    assert_eq!(stored, (1, 1));
}

#[test]
fn a_former_primary_goes_on_where_its_own_stream_ended() {
    // A ping would make the stream of a primary without replicas grow.
    let calm = ["--repl-ping-replica-period", "1000", "--appendfsync", "always"];
    let mut old = Server::start(&[&calm[..], &["--workers", "2"]].concat());
    let new = follow(&old, &calm);
    let (mut client, mut other) = (old.client(), new.client());
    run(&mut client, CHANGES);
    run(&mut client, &["SELECT 3", "INCR n"]);
    caught_up(&mut client, &mut other);
    run(&mut other, &["REPLICAOF NO ONE", "INCR n1"]);
    // Also when it was killed and started as a primary meanwhile.
    old.kill();
    old.restart();
    let mut client = old.client();
    replicaof(&mut client, new.port());
    caught_up(&mut other, &mut client);
    assert_eq!((count(&mut other, "sync_full"), count(&mut other, "sync_partial_ok")), (0, 1));
    run(&mut other, &["SELECT 3", "INCR n", "SELECT 0"]);
    caught_up(&mut other, &mut client);
    for db in [0, 3, 4] {
        assert_eq!(contents(&mut client, db), contents(&mut other, db), "{db}");
    }
    // One that has written something alone gets all data.
    run(&mut client, &["REPLICAOF NO ONE", "INCR n1"]);
    replicaof(&mut client, new.port());
    until("it has all data", || count(&mut other, "sync_full") == 1);
    caught_up(&mut other, &mut client);
    assert_eq!(contents(&mut client, 0), contents(&mut other, 0));
}
