//! `cluster-enabled yes`: a cluster of one node.

use super::Server;
use super::blind::run;
use redis::{Connection, Value};

fn error(client: &mut Connection, words: &[&str]) -> String {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(*word));
    command.query::<Value>(client).expect_err("refused").to_string()
}

fn text(client: &mut Connection, words: &[&str]) -> String {
    match run(client, words) {
        Value::BulkString(bytes) => String::from_utf8(bytes).expect("a text"),
        Value::VerbatimString { text, .. } => text,
        other => panic!("{words:?}: {other:?}"),
    }
}

fn clustered(options: &[&str]) -> Server {
    let mut all = vec!["--cluster-enabled", "yes", "--workers", "2", "--shards", "3"];
    all.extend(options);
    Server::start(&all)
}

#[test]
fn a_cluster_of_one_describes_itself() {
    let mut server = clustered(&[]);
    let mut client = server.client();
    let id = text(&mut client, &["CLUSTER", "MYID"]);
    assert!(id.len() == 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_ne!(text(&mut client, &["CLUSTER", "MYSHARDID"]), id);
    let (port, bus) = (server.port(), u32::from(server.port()) + 10_000);
    let line = format!("{id} 127.0.0.1:{port}@{bus} myself,master - 0 0 1 connected 0-16383\n");
    assert_eq!(text(&mut client, &["CLUSTER", "NODES"]), line);
    assert!(text(&mut client, &["CLUSTER", "INFO"]).contains("cluster_slots_ok:16384\r\n"));
    let info = text(&mut client, &["INFO", "everything"]);
    assert!(info.contains("cluster_enabled:1\r\n") && info.contains("server_mode:cluster\r\n"));
    assert!(format!("{:?}", run(&mut client, &["HELLO"])).contains("\"cluster\""));
    let slots = format!("{:?}", run(&mut client, &["CLUSTER", "SLOTS"]));
    assert!(slots.contains("int(0), int(16383)") && slots.contains("127.0.0.1"), "{slots}");
    let shards = format!("{:?}", run(&mut client, &["CLUSTER", "SHARDS"]));
    assert!(shards.contains("online") && shards.contains(&id), "{shards}");
    assert_eq!(run(&mut client, &["CLUSTER", "LINKS"]), Value::Array(Vec::new()));
    assert_eq!(run(&mut client, &["CLUSTER", "REPLICAS", &id]), Value::Array(Vec::new()));
    assert!(error(&mut client, &["CLUSTER", "REPLICAS", "x"]).contains("Unknown node x"));
    assert!(error(&mut client, &["CLUSTER", "MEET", "h", "1"]).contains("cluster of one node"));
    for word in ["READONLY", "READWRITE", "ASKING"] {
        assert_eq!(run(&mut client, &[word]), Value::Okay);
    }
    drop(client);
    server.stop();
    server.restart();
    assert_eq!(text(&mut server.client(), &["CLUSTER", "MYID"]), id, "it stays");
}

#[test]
fn a_server_that_is_no_cluster_says_so() {
    let server = Server::start(&[]);
    let mut client = server.client();
    for words in [&["CLUSTER", "INFO"][..], &["ASKING"], &["CLUSTER", "MEET", "h", "1"]] {
        assert!(error(&mut client, words).contains("cluster support disabled"), "{words:?}");
    }
    run(&mut client, &["MSET", "a", "1", "b", "2"]);
    run(&mut client, &["SELECT", "1"]);
}

#[test]
fn keys_of_several_slots_are_refused() {
    let server = clustered(&[]);
    let mut client = server.client();
    const CROSS: &str = "Keys in request don't hash to the same slot";
    for words in [
        &["MSET", "a", "1", "b", "2"][..],
        &["RENAME", "a", "b"],
        &["SINTERSTORE", "d", "a", "b"],
        &["EVAL", "return 1", "2", "a", "b"],
        &["XREAD", "STREAMS", "a", "b", "0", "0"],
        &["BLPOP", "a", "b", "1"],
        &["WATCH", "a", "b"],
        &["SSUBSCRIBE", "a", "b"],
    ] {
        assert!(error(&mut client, words).contains(CROSS), "{words:?}");
    }
    run(&mut client, &["MSET", "{t}a", "1", "{t}b", "2"]);
    run(&mut client, &["MULTI"]);
    run(&mut client, &["SET", "a", "1"]);
    run(&mut client, &["SET", "b", "1"]);
    assert!(error(&mut client, &["EXEC"]).contains(CROSS));
    assert!(error(&mut client, &["EXEC"]).contains("without MULTI"), "it is discarded");
    run(&mut client, &["MULTI"]);
    run(&mut client, &["SET", "{t}a", "3"]);
    run(&mut client, &["INCR", "{t}b"]);
    run(&mut client, &["EXEC"]);
    let script = "#!lua\nredis.call('GET', 'a') return redis.call('GET', 'b')";
    assert!(error(&mut client, &["EVAL", script, "0"]).contains("do not hash to the same slot"));
    let script =
        "redis.call('GET', 'a') redis.call('GET', 'b') return redis.call('MGET', 'a', 'b')";
    assert!(error(&mut client, &["EVAL", script, "0"]).contains("Command 'mget' in script"));
    let script =
        "#!lua flags=allow-cross-slot-keys\nredis.call('GET', 'a') return redis.call('GET', 'b')";
    assert_eq!(run(&mut client, &["EVAL", script, "0"]), Value::Nil);
    let script = "#!lua flags=no-cluster\nreturn 1";
    assert!(error(&mut client, &["EVAL", script, "0"]).contains("Can not run script on cluster"));
    assert!(error(&mut client, &["SELECT", "1"]).contains("SELECT is not allowed in cluster mode"));
    run(&mut client, &["SELECT", "0"]);
    assert!(error(&mut client, &["MOVE", "a", "1"]).contains("MOVE is not allowed"));
    assert!(error(&mut client, &["SWAPDB", "0", "1"]).contains("SWAPDB is not allowed"));
    run(&mut client, &["RPUSH", "list", "1", "2"]);
    assert!(
        error(&mut client, &["SORT", "list", "BY", "w_*"]).contains("BY option of SORT denied")
    );
    assert!(
        error(&mut client, &["SORT", "list", "GET", "w_*"]).contains("GET option of SORT denied")
    );
    run(&mut client, &["SORT", "list", "BY", "{list}w_*", "GET", "#"]);
}

#[test]
fn keys_are_found_by_their_slots() {
    let server = clustered(&[]);
    let mut client = server.client();
    for n in 0..3000 {
        run(&mut client, &["SET", &format!("{{tag}}{n}"), "v"]);
    }
    run(&mut client, &["SET", "other", "v"]);
    let Value::Int(slot) = run(&mut client, &["CLUSTER", "KEYSLOT", "x{tag}"]) else { panic!() };
    let slot = slot.to_string();
    assert_eq!(run(&mut client, &["CLUSTER", "COUNTKEYSINSLOT", &slot]), Value::Int(3000));
    for (wanted, found) in [("0", 0), ("10", 10), ("2500", 2500), ("9999", 3000)] {
        let keys = run(&mut client, &["CLUSTER", "GETKEYSINSLOT", &slot, wanted]);
        let Value::Array(keys) = keys else { panic!("no list") };
        let different: std::collections::BTreeSet<_> =
            keys.iter().map(|key| format!("{key:?}")).collect();
        assert_eq!((keys.len(), different.len()), (found, found));
    }
    let stats = run(&mut client, &["CLUSTER", "SLOT-STATS", "ORDERBY", "KEY-COUNT", "LIMIT", "1"]);
    assert!(format!("{stats:?}").contains("3000"), "{stats:?}");
    let range = ["CLUSTER", "SLOT-STATS", "SLOTSRANGE", &slot, &slot];
    assert!(format!("{:?}", run(&mut client, &range)).contains("3000"));
    assert!(error(&mut client, &["CLUSTER", "COUNTKEYSINSLOT", "16384"]).contains("Invalid slot"));
}

#[test]
fn a_cluster_tells_what_it_is_to_announce() {
    let server = clustered(&["--cluster-announce-ip", "192.0.2.7"]);
    let mut client = server.client();
    for (name, value) in [
        ("port", "7000"),
        ("tls-port", "7001"),
        ("bus-port", "7002"),
        ("hostname", "host.example"),
        ("human-nodename", "first"),
    ] {
        run(&mut client, &["CONFIG", "SET", &format!("cluster-announce-{name}"), value]);
    }
    let nodes = text(&mut client, &["CLUSTER", "NODES"]);
    assert!(nodes.contains(" 192.0.2.7:7000@7002,host.example,nodename=first "), "{nodes}");
    let slots = |client: &mut Connection| format!("{:?}", run(client, &["CLUSTER", "SLOTS"]));
    let shards = format!("{:?}", run(&mut client, &["CLUSTER", "SHARDS"]));
    assert!(shards.contains("int(7001)") && shards.contains("host.example"), "{shards}");
    assert!(slots(&mut client).contains("192.0.2.7"));
    for (kind, first) in [("hostname", "host.example"), ("unknown-endpoint", "nil")] {
        run(&mut client, &["CONFIG", "SET", "cluster-preferred-endpoint-type", kind]);
        let shown = slots(&mut client);
        let (at, ip) = (shown.find(first), shown.find("192.0.2.7"));
        assert!(at.is_some() && at < ip, "{kind}: {shown}");
    }
    run(&mut client, &["CONFIG", "SET", "cluster-announce-client-ipv4", "192.0.2.9"]);
    assert!(text(&mut client, &["CLUSTER", "NODES"]).contains(" 192.0.2.9:"));
}

#[test]
fn a_cluster_has_one_database() {
    let mut server = Server::start(&["--databases", "3"]);
    let mut client = server.client();
    run(&mut client, &["SELECT", "2"]);
    run(&mut client, &["SET", "k", "v"]);
    drop(client);
    server.stop();
    let said = server.refused(&["--cluster-enabled", "yes"]);
    assert!(said.contains("databases"), "{said}");
}
