//! A switch-over by hand: writers are held by CLIENT PAUSE until a replica has all of the primary's stream.

use super::Server;
use super::followers::{Reader, caught_up, count, follow, info, offset, run, until};
use redis::{Commands, Connection, Value, cmd};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn number(client: &mut Connection, field: &str) -> u64 {
    info(client, field).parse().unwrap_or(0)
}

/// Returns the offset that ROLE states.
fn of_role(client: &mut Connection) -> u64 {
    let (_, offset, _): (String, u64, Value) = cmd("ROLE").query(client).expect("ROLE");
    offset
}

fn pair(args: &[&str]) -> (Server, Server, Connection, Connection) {
    let primary = Server::start(args);
    let replica = follow(&primary, &[]);
    let (mut writer, mut reader) = (primary.client(), replica.client());
    caught_up(&mut writer, &mut reader);
    (primary, replica, writer, reader)
}

/// A script that promotes the replica whose offset is the primary's loses nothing that was acknowledged.
#[test]
fn the_offset_of_a_primary_counts_all_that_it_has_acknowledged() {
    for args in [&[][..], &["--workers", "2"], &["--appendfsync", "no"]] {
        let (_primary, _replica, mut writer, mut reader) = pair(args);
        for n in 0..20u32 {
            let key = format!("key{n}");
            let _: () = writer.set(&key, n).expect("SET");
            let stated = match n % 2 {
                0 => offset(&mut writer),
                _ => of_role(&mut writer),
            };
            until("the replica is there", || number(&mut reader, "slave_repl_offset") >= stated);
            assert_eq!(reader.get::<_, Option<u32>>(&key).expect("GET"), Some(n), "{args:?}");
        }
        run(&mut writer, &["SELECT 3", "SET x 1", "MULTI", "SET y 1", "INCR n", "EXEC"]);
        let stated = offset(&mut writer);
        until("the replica is there", || number(&mut reader, "slave_repl_offset") >= stated);
        assert_eq!(number(&mut reader, "slave_repl_offset"), stated, "no byte more is stated");
    }
}

/// A replica in a pause reads the stream on, stays connected, and applies none of it.
#[test]
fn a_pause_on_a_replica_holds_the_stream_of_its_primary() {
    let (_primary, _replica, mut writer, mut reader) = pair(&["--repl-timeout", "2"]);
    run(&mut reader, &["CONFIG SET repl-timeout 2"]);
    run(&mut writer, &["SET a 1"]);
    caught_up(&mut writer, &mut reader);
    let before = number(&mut reader, "slave_repl_offset");
    for pause in ["CLIENT PAUSE 100000 WRITE", "CLIENT PAUSE 2500 WRITE"] {
        run(&mut reader, &[pause]);
        run(&mut writer, &["INCR b"]);
        let stated = offset(&mut writer);
        until("the stream is read", || number(&mut reader, "slave_read_repl_offset") >= stated);
        let applied = number(&mut reader, "slave_repl_offset");
        assert!(applied >= before && applied < stated);
        if pause.contains("100000") {
            assert_eq!(reader.get::<_, Option<u32>>("b").expect("GET"), None);
            // More than is read ahead, for longer than its primary waits for a silent one.
            let large = vec![7u8; 1 << 20];
            (0..4).for_each(|n| writer.set(format!("large{n}"), &large).expect("SET"));
            sleep(Duration::from_millis(3500));
            assert_eq!(info(&mut reader, "master_link_status"), "up");
            assert!(!reader.exists::<_, bool>("large3").expect("EXISTS"));
            run(&mut reader, &["CLIENT UNPAUSE"]);
        }
        caught_up(&mut writer, &mut reader);
    }
    assert_eq!(reader.get::<_, Option<u32>>("b").expect("GET"), Some(2));
    assert_eq!(reader.strlen::<_, u64>("large3").expect("STRLEN"), 1 << 20);
    assert_eq!((count(&mut writer, "sync_full"), count(&mut writer, "sync_partial_ok")), (1, 0));
}

/// A change of libraries waits for the end of a pause, and lets others go on meanwhile.
#[test]
fn a_pause_of_writes_delays_libraries_and_nobody_else() {
    const CODE: &str = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";
    const CHANGES: [&[&str]; 3] = [&["LOAD", "REPLACE", CODE], &["DELETE", "lib"], &["FLUSH"]];
    let server = Server::start(&["--workers", "1"]);
    let mut client = server.client();
    for words in CHANGES {
        run(&mut client, &["CLIENT PAUSE 20000 WRITE"]);
        let begun = Instant::now();
        let mut other = server.client();
        let changing =
            std::thread::spawn(move || cmd("FUNCTION").arg(words).query::<String>(&mut other));
        until("it waits", || {
            let all: String = cmd("INFO").arg("clients").query(&mut client).expect("INFO");
            all.contains("blocked_clients:1\r\n")
        });
        run(&mut client, &["PING", "CLIENT UNPAUSE"]);
        changing.join().expect("no panic").expect("it is done");
        assert!(begun.elapsed() < Duration::from_secs(10), "{words:?}: {:?}", begun.elapsed());
    }
}

/// A library that was looked at while a pause began is stored behind it, and not behind the offset that is stated.
#[test]
fn a_pause_holds_a_library_that_is_looked_at() {
    let (primary, _replica, mut writer, mut reader) = pair(&["--repl-ping-replica-period", "1000"]);
    let code = "#!lua name=lib\nfor _ = 1, 4000000 do end \
                redis.register_function('f', function() return 1 end)";
    let mut other = primary.client();
    let loading = std::thread::spawn(move || {
        cmd("FUNCTION").arg(&["LOAD", code]).query::<String>(&mut other).expect("it is loaded")
    });
    until("it is admitted", || {
        let list: String = cmd("CLIENT").arg("LIST").query(&mut writer).expect("a list");
        list.contains(" cmd=function|load ")
    });
    run(&mut writer, &["CLIENT PAUSE 100000 WRITE"]);
    let stated = offset(&mut writer);
    sleep(Duration::from_millis(1000));
    assert_eq!(offset(&mut writer), stated);
    run(&mut writer, &["CLIENT UNPAUSE"]);
    assert_eq!(loading.join().expect("it ends"), "lib");
    caught_up(&mut writer, &mut reader);
    let libraries: Value = cmd("FUNCTION").arg("LIST").query(&mut reader).expect("a list");
    assert!(format!("{libraries:?}").contains("lib"), "{libraries:?}");
}

/// A transaction that tells of a primary shows what that primary has, not what it had as a replica.
#[test]
fn a_transaction_that_is_overtaken_by_a_promotion_shows_nothing_old() {
    for workers in ["1", "2"] {
        let primary = Server::start(&[]);
        let replica = follow(&primary, &["--workers", workers, "--enable-debug-command", "yes"]);
        let (mut writer, mut reader) = (primary.client(), replica.client());
        run(&mut writer, &["SET a 1"]);
        caught_up(&mut writer, &mut reader);
        let mut clients = [(); 2].map(|()| Reader::connect(&replica));
        for (client, other) in clients.iter_mut().zip(["WATCH a", "PING"]) {
            client.ask(other);
            let queue = ["GET a", "CLIENT SETNAME behind", "DEBUG SLEEP 4", "ROLE"];
            assert_eq!(client.ask("MULTI"), "+OK");
            queue.iter().for_each(|command| assert_eq!(client.ask(command), "+QUEUED"));
            client.say("EXEC");
        }
        until("the units have run", || {
            let list: String = cmd("CLIENT").arg("LIST").query(&mut reader).expect("a list");
            list.matches(" name=behind ").count() == 2
        });
        run(&mut writer, &["SET a 2"]);
        caught_up(&mut writer, &mut reader);
        run(&mut reader, &["REPLICAOF NO ONE"]);
        let [watching, client] = &mut clients;
        assert_eq!(watching.line(), "*-1");
        let lines = [(); 8].map(|()| client.line());
        assert_eq!(
            lines,
            ["*4", "$1", "2", "+OK", "+OK", "*3", "$6", "master"],
            "{workers} workers"
        );
    }
}

/// Bytes that a pause has held are those of a former primary: a promoted replica does not apply them.
#[test]
fn a_replica_that_is_promoted_in_a_pause_is_a_primary_at_once() {
    let (_primary, _replica, mut writer, mut reader) = pair(&[]);
    run(&mut reader, &["CLIENT PAUSE 100000 WRITE"]);
    run(&mut writer, &["SET late 1"]);
    let stated = offset(&mut writer);
    until("the stream is read", || number(&mut reader, "slave_read_repl_offset") >= stated);
    run(&mut reader, &["REPLICAOF NO ONE", "CLIENT UNPAUSE", "SET own 1"]);
    sleep(Duration::from_millis(1500));
    assert!(!reader.exists::<_, bool>("late").expect("EXISTS"));
    assert_eq!(info(&mut reader, "role"), "master");
    let role: Vec<Value> = cmd("ROLE").query(&mut reader).expect("ROLE");
    assert_eq!(role.len(), 3);
}

/// The offset behind CLIENT PAUSE is the last one: what was admitted before has ended.
#[test]
fn a_pause_begins_behind_the_commands_that_run() {
    for workers in ["1", "2"] {
        let (primary, _replica, mut writer, mut reader) = pair(&["--workers", workers]);
        let script =
            "for i = 1, 2e7 do end redis.call('INCR', KEYS[1]) redis.call('INCR', KEYS[2])";
        let mut other = primary.client();
        let running = std::thread::spawn(move || {
            let _: Value =
                cmd("EVAL").arg(script).arg(&["2", "a", "b"]).query(&mut other).expect("EVAL");
        });
        sleep(Duration::from_millis(50));
        run(&mut writer, &["CLIENT PAUSE 100000 WRITE"]);
        let stated = offset(&mut writer);
        assert_eq!(writer.get::<_, Option<u32>>("b").expect("GET"), Some(1), "{workers} workers");
        running.join().expect("the script has ended");
        until("the replica is there", || number(&mut reader, "slave_repl_offset") >= stated);
        assert_eq!(reader.get::<_, Option<u32>>("b").expect("GET"), Some(1));
        assert_eq!(offset(&mut writer), stated);
    }
}

/// A pause of the writers of a primary does not hold the stream of the one that follows it.
#[test]
fn a_primary_that_becomes_a_replica_is_not_paused_any_more() {
    let (primary, replica, mut writer, mut reader) = pair(&[]);
    run(&mut writer, &["CLIENT PAUSE 100000 WRITE"]);
    run(&mut reader, &["REPLICAOF NO ONE"]);
    let mut waiting = primary.client();
    let refused = std::thread::spawn(move || waiting.set::<_, _, ()>("late", 1));
    sleep(Duration::from_millis(100));
    run(&mut writer, &[&format!("REPLICAOF 127.0.0.1 {}", replica.port())]);
    let error = refused.join().expect("it is answered").expect_err("a replica takes no writes");
    assert_eq!(error.code(), Some("READONLY"), "{error}");
    run(&mut reader, &["SET new 1"]);
    caught_up(&mut reader, &mut writer);
    assert_eq!(writer.get::<_, Option<u32>>("new").expect("GET"), Some(1));
}

/// A former primary that goes on with the stream does not know the database that it has selected itself.
#[test]
fn the_stream_of_a_promoted_server_selects_its_database() {
    let (_primary, replica, mut writer, mut reader) = pair(&[]);
    run(&mut writer, &["SELECT 2", "SET x 1"]);
    caught_up(&mut writer, &mut reader);
    let (id, behind) = (info(&mut writer, "master_replid"), offset(&mut writer) + 1);
    run(&mut reader, &["REPLICAOF NO ONE", "SELECT 2", "SET y 1"]);
    let mut former = Reader::connect(&replica);
    let reply = former.ask(&format!("PSYNC {id} {behind}"));
    assert!(reply.starts_with("+CONTINUE"), "{reply}");
    assert_eq!([former.next(), former.next()], ["SELECT 2", "SET y 1"].map(str::to_owned));
    // It knows by itself which one its former primary has selected, should it follow that again.
    let (first, _second, mut writer, mut reader) = pair(&[]);
    run(&mut writer, &["SELECT 2", "SET x 1"]);
    caught_up(&mut writer, &mut reader);
    let port = first.port();
    run(&mut reader, &["REPLICAOF NO ONE", &format!("REPLICAOF 127.0.0.1 {port}")]);
    run(&mut writer, &["SET y 1"]);
    caught_up(&mut writer, &mut reader);
    run(&mut reader, &["SELECT 2"]);
    assert_eq!(reader.get::<_, Option<u32>>("y").expect("GET"), Some(1));
}

/// A replica that cannot read for some time, and says how far it is, is not silent.
#[test]
fn a_replica_that_does_not_read_is_heard() {
    let primary = Server::start(&["--repl-timeout", "1"]);
    let (mut writer, mut reader) = (primary.client(), Reader::connect(&primary));
    assert!(reader.ask("PSYNC ? -1").starts_with("+FULLRESYNC"));
    reader.data_set();
    let large = vec![7u8; 1 << 20];
    (0..24).for_each(|n| writer.set(format!("large{n}"), &large).expect("SET"));
    for _ in 0..12 {
        sleep(Duration::from_millis(300));
        reader.say("REPLCONF ACK 0");
    }
    assert_eq!(info(&mut writer, "connected_slaves"), "1");
}
