//! Several commands as one, and the changes that keep them from running.

use super::Server;
use redis::{Commands, Value};
use std::io::{BufRead, BufReader, Read, Write};
use std::time::{Duration, Instant};

/// Keys in different shards of two.
const LEFT: &str = "{a}";
const RIGHT: &str = "{b}";

/// How long things may take that take a moment.
const PATIENCE: Duration = Duration::from_secs(20);

fn run<T: redis::FromRedisValue>(client: &mut redis::Connection, line: &str) -> T {
    try_run(client, line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn try_run<T: redis::FromRedisValue>(
    client: &mut redis::Connection,
    line: &str,
) -> redis::RedisResult<T> {
    let mut words = line.split(' ');
    let mut command = redis::cmd(words.next().expect("a name"));
    command.arg(words.collect::<Vec<_>>());
    command.query(client)
}

/// Returns true if EXEC of one PING runs.
fn runs(client: &mut redis::Connection) -> bool {
    let () = run(client, "MULTI");
    let () = run(client, "PING");
    let ran: Value = run(client, "EXEC");
    ran != Value::Nil
}

fn increment(client: &mut redis::Connection, keys: &[&str]) {
    loop {
        for key in keys {
            let () = run(client, &format!("WATCH {key}"));
        }
        let counts: Vec<Option<u64>> = client.mget(keys).expect("counts");
        let () = run(client, "MULTI");
        for (key, count) in keys.iter().zip(counts) {
            let () = run(client, &format!("SET {key} {}", count.unwrap_or(0) + 1));
        }
        if run::<Value>(client, "EXEC") != Value::Nil {
            return;
        }
    }
}

#[test]
fn no_increment_is_lost_under_watch() {
    const ROUNDS: u64 = 60;
    for workers in ["1", "2", "3"] {
        let options = ["--workers", workers, "--shards", "3", "--appendfsync", "no"];
        let server = Server::start(&options);
        let keys = ["k", "{a}x", "{b}x", "{c}x"];
        std::thread::scope(|scope| {
            for lane in 0..4 {
                let server = &server;
                scope.spawn(move || {
                    let mut client = server.client();
                    for round in 0..ROUNDS {
                        match (lane + round) % 2 {
                            0 => increment(&mut client, &keys[..1]),
                            _ => increment(&mut client, &keys),
                        }
                    }
                });
            }
        });
        let counts: Vec<u64> = server.client().mget(&keys[..]).expect("counts");
        let half = 2 * ROUNDS;
        assert_eq!(counts, [2 * half, half, half, half], "with {workers} workers");
    }
}

/// Each of these changes a key that is watched, or does not.
#[test]
fn every_change_of_a_watched_key_counts() {
    for workers in ["1", "2", "3"] {
        let server = Server::start(&["--workers", workers, "--shards", "3"]);
        let (mut client, mut other) = (server.client(), server.client());
        for (before, keys, change, changes) in [
            ("SET {b}k 1", "{a}k {b}k {c}k", "SET {b}k 1", true),
            ("SET {b}k 1", "{a}k {b}k {c}k", "GET {b}k", false),
            ("SET {b}k 1", "{b}k", "DEL {b}k {a}none", true),
            ("SET {b}k 1", "{b}k", "DEL {b}none {a}none", false),
            ("SET {b}k 1", "{b}k", "EXPIRE {b}k 100", true),
            ("SET {b}k 1", "{b}k", "PEXPIRE {b}k 0", true),
            ("MSET {a}k 1 {b}k 2", "{a}k", "RENAME {b}k {a}k", true),
            ("MSET {a}k 1 {b}k 2", "{b}k", "RENAME {b}k {a}k", true),
            ("SET {b}k 1", "{b}k", "COPY {b}k {a}k", false),
            ("SET {b}k 1", "{b}k", "FLUSHDB", true),
            ("PING", "{b}k", "FLUSHALL", false),
            ("SET {b}k 1", "{b}k", "SWAPDB 0 1", true),
            ("PING", "{b}k", "SWAPDB 0 1", false),
            ("RPUSH {a}l 1", "{b}l", "LMOVE {a}l {b}l LEFT LEFT", true),
            ("SET {b}k 1", "{b}k", "SET {b} 1", false),
        ] {
            let () = run(&mut other, "FLUSHALL");
            let () = run(&mut other, before);
            let () = run(&mut client, &format!("WATCH {keys}"));
            let _: redis::RedisResult<Value> = try_run(&mut other, change);
            assert_eq!(runs(&mut client), !changes, "{workers}: {before}, {keys}, {change}");
            assert!(runs(&mut client), "it watches no more");
        }
    }
}

#[test]
fn swapdb_changes_watched_keys_though_the_database_is_cold() {
    let options = ["--workers", "2", "--shards", "2"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    for key in [LEFT, RIGHT] {
        let () = client.set(key, 1).expect("stored");
    }
    server.kill();
    server.restart();
    let (mut client, mut other) = (server.client(), server.client());
    let () = run(&mut client, "SELECT 1");
    let () = run(&mut client, "WATCH {a} {b} none");
    let () = run(&mut other, "SWAPDB 0 1");
    assert!(!runs(&mut client));
    let () = run(&mut client, "WATCH none {a}none {b}none");
    let () = run(&mut other, "SWAPDB 0 1");
    assert!(runs(&mut client));
}

#[test]
fn a_watched_key_that_expires_counts() {
    let server =
        Server::start(&["--workers", "2", "--shards", "2", "--enable-debug-command", "yes"]);
    let mut client = server.client();
    for active in ["1", "0"] {
        let () = run(&mut client, &format!("DEBUG SET-ACTIVE-EXPIRE {active}"));
        for key in [LEFT, RIGHT] {
            // On a busy machine it may have expired before it is watched.
            loop {
                let began = Instant::now();
                let () = run(&mut client, &format!("SET {key} 1 PX 40"));
                let () = run(&mut client, &format!("WATCH {key} other"));
                if began.elapsed() < Duration::from_millis(30) {
                    break;
                }
                let () = run(&mut client, "UNWATCH");
            }
            std::thread::sleep(Duration::from_millis(if active == "1" { 400 } else { 60 }));
            assert!(!runs(&mut client), "active expiry: {active}");
            // The key is deleted by now, or has expired and is still there.
            let () = run(&mut client, &format!("WATCH {key}"));
            assert!(runs(&mut client), "active expiry: {active}");
        }
    }
}

#[test]
fn a_pop_by_a_served_client_counts() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let (mut client, mut other) = (server.client(), server.client());
    for (from, to) in [(LEFT, RIGHT), (RIGHT, LEFT)] {
        std::thread::scope(|scope| {
            let mut waiting = server.client();
            let blocked = scope.spawn(move || {
                let _: Value = run(&mut waiting, &format!("BLMOVE {from} {to} LEFT LEFT 0"));
            });
            let deadline = Instant::now() + PATIENCE;
            while !run::<String>(&mut other, "INFO clients").contains("blocked_clients:1") {
                assert!(Instant::now() < deadline, "nobody waits");
            }
            let () = run(&mut client, &format!("WATCH {to}"));
            let () = run(&mut other, &format!("RPUSH {from} x"));
            blocked.join().expect("served");
            assert!(!runs(&mut client));
            let () = run(&mut other, "FLUSHALL");
        });
    }
}

#[test]
fn watched_keys_may_leave_memory() {
    let options = ["--workers", "2", "--shards", "2", "--memory-budget", "16mb"];
    let server = Server::start(&[&options[..], &["--handover-interval-ms", "100"]].concat());
    let (mut client, mut other) = (server.client(), server.client());
    for key in [LEFT, RIGHT] {
        let () = client.set(key, 1).expect("stored");
    }
    let fill = |other: &mut redis::Connection| {
        let value = vec![b'x'; 16 << 10];
        for n in 0..1500 {
            let () = other.set(format!("fill{n}"), &value).expect("stored");
        }
    };
    let () = run(&mut client, "WATCH {a} {b} none");
    fill(&mut other);
    assert!(runs(&mut client));
    let () = run(&mut client, "WATCH {a} {b} none");
    fill(&mut other);
    let () = run(&mut other, "APPEND {b} 1");
    fill(&mut other);
    assert!(!runs(&mut client));
}

#[test]
fn a_watch_ends_with_everything_that_ends_it() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let (mut client, mut other) = (server.client(), server.client());
    for end in ["UNWATCH", "MULTI|DISCARD", "RESET", "MULTI|RESET", "MULTI|EXEC", "MULTI|NONE|EXEC"]
    {
        let () = run(&mut client, "WATCH {a} {b}");
        let shown: String = run(&mut client, "CLIENT INFO");
        assert!(shown.contains(" watch=2 ") && shown.contains(" flags=N "), "{shown}");
        for change in [LEFT, RIGHT] {
            let () = other.set(change, 1).expect("stored");
        }
        let shown: String = run(&mut client, "CLIENT INFO");
        assert!(shown.contains(" flags=d "), "{shown}");
        for command in end.split('|') {
            let _: redis::RedisResult<Value> = try_run(&mut client, command);
        }
        let shown: String = run(&mut client, "CLIENT INFO");
        assert!(shown.contains(" watch=0 ") && shown.contains(" flags=N "), "{end}: {shown}");
        assert!(shown.contains(" multi=-1 "), "{end}: {shown}");
        let () = other.set(LEFT, 2).expect("stored");
        assert!(runs(&mut client), "{end}");
    }
    // Watched keys are bounded; if not all can be watched, EXEC does not run.
    let server = Server::start(&["--memory-budget", "16mb"]);
    let mut client = server.client();
    let keys: Vec<String> = (0..2000).map(|n| format!("k{n}")).collect();
    let watched: redis::RedisResult<()> = redis::cmd("WATCH").arg(&keys).query(&mut client);
    assert!(watched.expect_err("refused").to_string().contains("too many keys"));
    assert!(!runs(&mut client));
    let () = redis::cmd("WATCH").arg(&keys[..100]).query(&mut client).expect("watched");
    assert!(runs(&mut client));
}

fn dbsize(client: &mut redis::Connection) -> i64 {
    run(client, "DBSIZE")
}

/// The reply of a transaction, as it is shown.
fn transact(client: &mut redis::Connection, lines: &[&str]) -> Value {
    let () = run(client, "MULTI");
    for line in lines {
        let queued: String = run(client, line);
        assert_eq!(queued, "QUEUED", "{line}");
    }
    run(client, "EXEC")
}

fn names(value: &Value) -> Vec<String> {
    let mut names: Vec<String> = redis::from_redis_value_ref(value).expect("names");
    names.sort();
    names
}

/// Asserts that the databases are as the exchanges of `databases_are_part_of_a_transaction` leave
/// them.
fn assert_exchanged(client: &mut redis::Connection, case: &str) {
    for (db, keys) in [("0", &[][..]), ("1", &["{a}=1"]), ("2", &["{a}=3", "{b}=3"])] {
        let () = run(client, &format!("SELECT {db}"));
        let mut found = Vec::new();
        for key in run::<Vec<String>>(client, "KEYS *") {
            found.push(format!("{key}={}", client.get::<_, String>(&key).expect("a value")));
        }
        found.sort();
        assert_eq!(found, keys, "database {db}, {case}");
        assert_eq!(dbsize(client), keys.len() as i64);
    }
}

#[test]
fn databases_are_part_of_a_transaction() {
    for workers in ["1", "2", "3"] {
        let mut server = Server::start(&["--workers", workers, "--shards", "3"]);
        let mut client = server.client();
        for n in 0..50 {
            let () = client.set(format!("k{n}"), n).expect("stored");
        }
        let lines = ["SET new 1", "DEL k1 k2 none", "DBSIZE", "KEYS *", "SCAN 0 COUNT 1000"];
        let Value::Array(items) = transact(&mut client, &lines) else { panic!("no array") };
        let mut want: Vec<String> =
            (0..50).filter(|n| ![1, 2].contains(n)).map(|n| format!("k{n}")).collect();
        want.push("new".to_owned());
        want.sort();
        assert_eq!(items[2], Value::Int(49), "with {workers} workers");
        assert_eq!(names(&items[3]), want);
        let Value::Array(page) = &items[4] else { panic!("no page") };
        assert_eq!(names(&page[1]), want);
        // Before and behind an empty database.
        let lines = [
            "SET gone 1",
            "FLUSHDB",
            "DBSIZE",
            "RANDOMKEY",
            "GET k3",
            "SET {a} 1",
            "SET {b} 2",
            "DBSIZE",
            "RANDOMKEY",
            "KEYS {a*",
        ];
        let Value::Array(items) = transact(&mut client, &lines) else { panic!("no array") };
        assert_eq!(items[2..5], [Value::Int(0), Value::Nil, Value::Nil]);
        assert_eq!(items[7], Value::Int(2));
        assert!([LEFT, RIGHT].contains(&names(&Value::Array(vec![items[8].clone()]))[0].as_str()));
        assert_eq!(names(&items[9]), [LEFT]);
        assert_eq!(dbsize(&mut client), 2);
        // Exchanged, changed and exchanged again.
        let lines = [
            "SWAPDB 0 1",
            "GET {a}",
            "SET {a} 3",
            "SELECT 1",
            "GET {a}",
            "INCR {b}",
            "DBSIZE",
            "SWAPDB 0 2",
            "MOVE {b} 2",
            "SELECT 2",
            "GET {b}",
            "DBSIZE",
            "SELECT 0",
            "DBSIZE",
        ];
        let Value::Array(items) = transact(&mut client, &lines) else { panic!("no array") };
        let text = |text: &str| Value::BulkString(text.into());
        assert_eq!(items[1], Value::Nil);
        assert_eq!(items[4..7], [text("1"), Value::Int(3), Value::Int(2)]);
        assert_eq!(items[8], Value::Int(1));
        assert_eq!(items[10..12], [text("3"), Value::Int(2)]);
        assert_eq!(items[13], Value::Int(0));
        assert_exchanged(&mut client, &format!("{workers} workers"));
        server.kill();
        server.restart();
        assert_exchanged(&mut server.client(), &format!("{workers} workers, restarted"));
    }
}

/// After an exchange of databases, a lent entry is read from the rows that its owner now names.
#[test]
fn cold_values_of_exchanged_databases_are_found() {
    let options = ["--workers", "2", "--shards", "2", "--handover-interval-ms", "50"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    for key in [LEFT, RIGHT] {
        let members: Vec<(u64, String)> = (0..40_000).map(|n| (n, format!("member{n}"))).collect();
        for chunk in members.chunks(5000) {
            let () = client.zadd_multiple(key, chunk).expect("stored");
        }
        let () = client.set(format!("{key}s"), "small").expect("stored");
    }
    std::thread::sleep(Duration::from_millis(500));
    for round in 0..2u64 {
        server.kill();
        server.restart();
        let mut client = server.client();
        let lines = [
            "SWAPDB 0 1",
            "ZSCORE {b} member7",
            "SELECT 1",
            "ZADD {b} 7 x",
            "ZRANGE {b} 20000 20000",
            "ZREMRANGEBYRANK {b} 0 0",
            "GET {b}s",
            "ZCARD {a}",
            "SELECT 0",
            "EXISTS {a} {b} {b}s",
            "SWAPDB 0 1",
        ];
        let Value::Array(items) = transact(&mut client, &lines) else { panic!("no array") };
        assert_eq!(items[1], Value::Nil);
        let added = i64::from(round == 0);
        assert_eq!(items[3], Value::Int(added));
        let Value::Array(at) = &items[4] else { panic!("no range") };
        assert_eq!(at.len(), 1);
        assert_eq!(items[5], Value::Int(1));
        assert_eq!(items[6], Value::BulkString(b"small".to_vec()));
        assert_eq!(items[7], Value::Int(40_000));
        assert_eq!(items[9], Value::Int(0));
        let cards = [LEFT, RIGHT].map(|key| client.zcard::<_, u64>(key).expect("a size"));
        // The first round adds a member and removes one; the second only removes one.
        assert_eq!(cards, [40_000, 40_000 - round]);
    }
}

#[test]
fn keys_moved_out_of_a_database_survive_its_end() {
    let options = ["--workers", "2", "--shards", "2", "--handover-interval-ms", "50"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    let big: Vec<(u64, String)> = (0..20_000).map(|n| (n, format!("member{n}"))).collect();
    for chunk in big.chunks(5000) {
        let () = client.zadd_multiple("big", chunk).expect("stored");
    }
    std::thread::sleep(Duration::from_millis(400));
    let _: Value = transact(&mut client, &["MOVE big 1", "FLUSHDB"]);
    assert_eq!(dbsize(&mut client), 0);
    // Dead rows are swept some seconds later.
    std::thread::sleep(Duration::from_millis(6500));
    server.kill();
    server.restart();
    let mut client = server.client();
    let () = run(&mut client, "SELECT 1");
    assert_eq!(client.zcard::<_, u64>("big").expect("a size"), 20_000);
    let all: Vec<String> = client.zrange("big", 0, -1).expect("members");
    assert_eq!(all.len(), 20_000);
}

#[test]
fn transactions_are_never_torn_by_kill_9() {
    for workers in ["1", "2"] {
        let options = ["--workers", workers, "--shards", "2", "--handover-interval-ms", "50"];
        let mut server = Server::start(&[&options[..], &["--memory-budget", "16mb"]].concat());
        for kill in 0..4u64 {
            let acknowledged = std::thread::scope(|scope| {
                let lanes: Vec<_> = (0..3)
                    .map(|lane| {
                        let server = &server;
                        scope.spawn(move || write_until_killed(server, lane, kill * 1_000_000))
                    })
                    .collect();
                std::thread::sleep(Duration::from_millis(150 + kill * 40));
                server.kill_shared();
                lanes.into_iter().map(|lane| lane.join().expect("a number")).collect::<Vec<_>>()
            });
            server.reap();
            server.restart();
            let mut client = server.client();
            for (lane, last) in acknowledged.into_iter().enumerate() {
                let keys = [format!("{LEFT}{lane}"), format!("{RIGHT}{lane}")];
                let numbers: Vec<Option<u64>> = client.mget(&keys[..]).expect("numbers");
                assert_eq!(numbers[0], numbers[1], "torn, with {workers} workers");
                assert!(numbers[0] >= last, "{numbers:?} is older than {last:?}");
                // The database beside is emptied and filled with each.
                let () = run(&mut client, &format!("SELECT {}", lane + 1));
                let all: Vec<String> = run(&mut client, "KEYS *");
                let want = numbers[0].map(|n| vec![format!("{LEFT}{n}"), format!("{RIGHT}{n}")]);
                let mut all = all;
                all.sort();
                assert_eq!(all, want.unwrap_or_default(), "with {workers} workers");
                let () = run(&mut client, "SELECT 0");
            }
        }
    }
}

/// Writes numbers with one transaction each; the last that was acknowledged.
fn write_until_killed(server: &Server, lane: usize, first: u64) -> Option<u64> {
    let mut client = server.client();
    let mut last = None;
    for n in first + 1.. {
        let mut transaction = redis::pipe();
        transaction.atomic().set(format!("{LEFT}{lane}"), n).set(format!("{RIGHT}{lane}"), n);
        transaction.cmd("SELECT").arg(lane + 1).cmd("FLUSHDB");
        transaction.set(format!("{LEFT}{n}"), 1).set(format!("{RIGHT}{n}"), 1);
        transaction.cmd("SELECT").arg(0);
        if transaction.query::<Value>(&mut client).is_err() {
            return last;
        }
        last = Some(n);
    }
    last
}

/// A feed that keeps its newest entries: a command finds only after its first change that data is
/// missing.
#[test]
fn a_feed_that_is_cold_is_added_to_and_bounded() {
    for workers in ["1", "2"] {
        let options = ["--workers", workers, "--shards", "2", "--handover-interval-ms", "50"];
        let mut server = Server::start(&[&options[..], &["--memory-budget", "16mb"]].concat());
        let mut client = server.client();
        for key in [LEFT, RIGHT] {
            for first in (0..30_000u64).step_by(5000) {
                let entries: Vec<(u64, String)> =
                    (first..first + 5000).map(|n| (n, format!("entry number {n}"))).collect();
                let () = client.zadd_multiple(key, &entries).expect("stored");
            }
        }
        std::thread::sleep(Duration::from_millis(300));
        server.kill();
        server.restart();
        let mut client = server.client();
        for n in 0..20u64 {
            let lines: Vec<String> = [LEFT, RIGHT]
                .iter()
                .flat_map(|key| {
                    [
                        format!("ZADD {key} {} new{n}", 50_000 + n),
                        format!("ZREMRANGEBYRANK {key} 0 -30001"),
                        format!("ZCARD {key}"),
                        format!("ZSCORE {key} new{n}"),
                    ]
                })
                .collect();
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            let Value::Array(items) = transact(&mut client, &lines) else { panic!("no array") };
            let score = Value::BulkString((50_000 + n).to_string().into_bytes());
            let half = [Value::Int(1), Value::Int(1), Value::Int(30_000), score];
            assert_eq!(items, [&half[..], &half[..]].concat());
        }
        for key in [LEFT, RIGHT] {
            let oldest: Vec<String> = client.zrange(key, 0, 0).expect("the oldest");
            assert_eq!(oldest, ["entry number 20"]);
        }
    }
}

/// A transaction that has changed something and meets a key that another one holds waits, and
/// begins anew.
#[test]
fn transactions_on_the_same_cold_keys_do_not_mix() {
    for workers in ["1", "2", "3"] {
        let options = ["--workers", workers, "--shards", "3", "--memory-budget", "16mb"];
        let server = Server::start(&[&options[..], &["--handover-interval-ms", "50"]].concat());
        let keys = ["{a}n", "{b}n", "{c}n"];
        std::thread::scope(|scope| {
            for lane in 0..3usize {
                let (server, keys) = (&server, &keys);
                scope.spawn(move || {
                    let mut client = server.client();
                    let filler = vec![b'x'; 64 << 10];
                    for n in 0..60 {
                        let order = [keys[lane], keys[(lane + 1) % 3], keys[(lane + 2) % 3]];
                        let mut transaction = redis::pipe();
                        transaction.atomic();
                        for key in order {
                            transaction.incr(key, 1).ignore();
                        }
                        transaction.cmd("MGET").arg(&keys[..]);
                        let (counts,): (Vec<u64>,) = transaction.query(&mut client).expect("ran");
                        assert!(counts.iter().all(|n| *n == counts[0]), "{counts:?}");
                        let () = client.set(format!("fill{lane}:{n}"), &filler).expect("stored");
                    }
                });
            }
        });
        let counts: Vec<u64> = server.client().mget(&keys[..]).expect("counts");
        assert_eq!(counts, [180; 3], "with {workers} workers");
    }
}

#[test]
fn a_client_goes_on_at_once_behind_a_transaction_that_had_to_load_a_key() {
    for workers in ["1", "2"] {
        let mut server = Server::start(&["--workers", workers, "--shards", "2"]);
        let value = "v".repeat(15_000);
        let mut client = server.client();
        (0..40).for_each(|n| client.set(format!("v{n}"), &value).expect("SET"));
        drop(client);
        server.stop();
        server.restart();
        let mut socket = server.socket();
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        // The first attempt of each ends at the cold key. The client is not one whose replies do not fit,
        // which waits for a second behind each.
        for n in 0..40 {
            let lines = format!("MULTI\r\nGET v{n}\r\nSET a {n}\r\nEXEC\r\n");
            socket.write_all(lines.as_bytes()).expect("sent");
        }
        let one = format!("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n$15000\r\n{value}\r\n+OK\r\n");
        let mut replies = vec![0; one.len() * 40];
        let begun = Instant::now();
        socket.read_exact(&mut replies).expect("the replies");
        assert_eq!(String::from_utf8_lossy(&replies), one.repeat(40));
        assert!(begun.elapsed() < Duration::from_secs(20), "{workers}: {:?}", begun.elapsed());
    }
}

#[test]
fn exec_waits_while_writes_are_paused_if_it_writes() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let (mut client, mut other) = (server.client(), server.client());
    let () = run(&mut client, "MULTI");
    let () = run(&mut client, "SET {a} 1");
    let () = run(&mut client, "SET {b} 1");
    let () = run(&mut other, "CLIENT PAUSE 60000 WRITE");
    let reads = transact(&mut other, &["GET {a}", "DBSIZE"]);
    assert_eq!(reads, Value::Array(vec![Value::Nil, Value::Int(0)]));
    std::thread::scope(|scope| {
        let ran = scope.spawn(|| run::<Value>(&mut client, "EXEC"));
        let deadline = Instant::now() + PATIENCE;
        while !run::<String>(&mut other, "INFO clients").contains("blocked_clients:1") {
            assert!(Instant::now() < deadline, "it does not wait");
        }
        assert!(!ran.is_finished());
        let () = run(&mut other, "CLIENT UNPAUSE");
        assert_eq!(ran.join().expect("a reply"), Value::Array(vec![Value::Okay, Value::Okay]));
    });
}

#[test]
fn errors_with_arguments_in_them_are_counted_as_they_are_sent() {
    /// A command, its arguments, and the error.
    type Wrong<'a> = (&'a str, &'a [&'a [u8]], &'a [u8]);
    let server = Server::start(&[]);
    let mut client = server.client();
    let () = run(&mut client, "XADD stream 1-1 a b");
    let () = run(&mut client, "SET string x");
    let () = run(&mut client, "CONFIG RESETSTAT");
    let wrong: [Wrong<'_>; 6] = [
        ("hsetex", &[b"h", b"\xff", b"FIELDS", b"1", b"a", b"b"], b"ERR unknown argument: \xff"),
        ("expire", &[b"string", b"1", b"\xff"], b"ERR Unsupported option \xff"),
        (
            "pexpire",
            &[b"string", b"1", b"GT", b"LT"],
            b"ERR GT and LT options at the same time are not compatible",
        ),
        ("scan", &[b"0", b"TYPE", b"\xff"], b"ERR unknown type name '\xff'"),
        (
            "xgroup|setid",
            &[b"stream", b"\xff", b"$"],
            b"NOGROUP No such consumer group '\xff' for key name 'stream'",
        ),
        (
            "eval",
            &[b"#!lua flags=\xff\nreturn 1", b"0"],
            b"ERR Unexpected flag in script shebang: \xff",
        ),
    ];
    for (name, arguments, error) in wrong {
        let words: Vec<&[u8]> =
            name.split('|').map(str::as_bytes).chain(arguments.iter().copied()).collect();
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend([format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"].concat());
        }
        let mut socket = server.socket();
        socket.write_all(&request).expect("sent");
        let mut reply = Vec::new();
        BufReader::new(socket).read_until(b'\n', &mut reply).expect("a reply");
        let text = String::from_utf8_lossy(&reply);
        assert_eq!(reply, [b"-", error, b"\r\n"].concat(), "{name}: {text}");
        let stats: String = run(&mut client, "INFO commandstats");
        let mut lines = stats.lines();
        let line = lines.find(|line| line.starts_with(&format!("cmdstat_{name}:")));
        assert!(line.is_some_and(|line| line.ends_with("failed_calls=1")), "{name}: {stats}");
    }
    let errors: String = run(&mut client, "INFO errorstats");
    assert!(errors.contains("errorstat_ERR:count=5\r\nerrorstat_NOGROUP:count=1\r\n"), "{errors}");
}

#[test]
fn parts_are_counted_and_logged_once() {
    for workers in ["1", "2"] {
        let options = ["--workers", workers, "--shards", "2", "--slowlog-log-slower-than", "0"];
        let server = Server::start(&options);
        let mut client = server.client();
        let () = run(&mut client, "CONFIG RESETSTAT");
        let () = run(&mut client, "SLOWLOG RESET");
        let inner = ["SET {a} x", "INCR {a}", "SET {b} 1", "GET {b}"];
        let () = run(&mut client, "MULTI");
        for line in inner {
            let () = run(&mut client, line);
        }
        // INCR fails, and nothing else.
        assert!(try_run::<Value>(&mut client, "EXEC").is_err());
        let () = run(&mut client, "MULTI");
        let refused: redis::RedisResult<Value> = try_run(&mut client, "GET");
        assert!(refused.is_err());
        assert!(try_run::<Value>(&mut client, "EXEC").is_err());
        let stats: String = run(&mut client, "INFO commandstats");
        let of = |name: &str| {
            let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:")));
            let fields =
                line.unwrap_or_default().split([',', ':']).filter_map(|f| f.split_once('='));
            let number = |wanted: &str| {
                fields.clone().find(|(name, _)| *name == wanted).map_or("", |(_, n)| n).to_owned()
            };
            [number("calls"), number("rejected_calls"), number("failed_calls")].join(" ")
        };
        assert_eq!(of("set"), "2 0 0");
        assert_eq!(of("incr"), "1 0 1");
        assert_eq!(of("get"), "1 1 0");
        assert_eq!(of("exec"), "2 0 1");
        let log: Vec<Vec<Value>> = run(&mut client, "SLOWLOG GET 100");
        let names: Vec<String> = log
            .iter()
            .map(|entry| {
                redis::from_redis_value_ref::<Vec<String>>(&entry[3]).expect("arguments").join(" ")
            })
            .rev()
            .collect();
        assert_eq!(names.windows(4).filter(|some| *some == inner).count(), 1, "{names:?}");
        assert!(!names.iter().any(|name| name == "EXEC"), "{names:?}");
    }
}

#[test]
fn keys_that_a_transaction_misses_are_loaded_at_once() {
    const FIELDS: usize = 2000;
    for workers in ["1", "2"] {
        let options = ["--workers", workers, "--shards", "2", "--appendfsync", "no"];
        let mut server = Server::start(&options);
        let mut client = server.client();
        for first in (0..FIELDS).step_by(100) {
            let mut fill = redis::cmd("HSET");
            fill.arg("{a}hash");
            (first..first + 100).for_each(|n| {
                fill.arg(format!("f{n}")).arg("1");
            });
            let _: u64 = fill.query(&mut client).expect("filled");
        }
        server.stop();
        server.restart();
        let mut client = server.client();
        client.set_read_timeout(Some(PATIENCE)).expect("set");
        let mut all = redis::pipe();
        all.atomic();
        for n in 0..FIELDS {
            all.cmd("HINCRBY").arg("{a}hash").arg(format!("f{n}")).arg(1);
        }
        // On another worker, if there are two.
        all.cmd("INCR").arg("{b}");
        let mut counts: Vec<u64> = all.query(&mut client).expect("the counts");
        assert_eq!(counts.pop(), Some(1));
        assert_eq!(counts, [2; FIELDS]);
    }
}

#[test]
fn a_transaction_reads_and_trims_a_cold_value_that_it_has_moved_or_changed() {
    const COUNT: usize = 40_000;
    let options = ["--workers", "2", "--shards", "2", "--appendfsync", "no"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    for first in (1..=COUNT).step_by(1000) {
        let mut fill = redis::pipe();
        for n in first..first + 1000 {
            fill.cmd("XADD").arg("{a}stream").arg(format!("{n}-1")).arg("f").arg(n).ignore();
            fill.cmd("RPUSH").arg("{a}list").arg(n).ignore();
        }
        let () = fill.query(&mut client).expect("filled");
    }
    let list = |from: u64, to: u64| {
        Value::Array((from..=to).map(|n| Value::BulkString(n.to_string().into_bytes())).collect())
    };
    for (lines, last) in [
        (&["RENAME {a}list {a}new", "LRANGE {a}new 19999 20000"][..], list(20_000, 20_001)),
        (&["DEL {a}stream", "RENAME {a}list {a}stream", "LRANGE {a}stream 9 9"], list(10, 10)),
        (&["MOVE {a}list 1", "SELECT 1", "LRANGE {a}list 29999 30000"], list(30_000, 30_001)),
        (&["XDEL {a}stream 20000-1", "XTRIM {a}stream MAXLEN 9", "XLEN {a}stream"], Value::Int(9)),
        (&["XTRIM {a}stream MAXLEN 19999", "XTRIM {a}stream MAXLEN 9"], Value::Int(19_990)),
    ] {
        // All of it is cold, and stays as it was: another server would have to be filled anew.
        server.stop();
        server.restart();
        let mut client = server.client();
        client.set_read_timeout(Some(PATIENCE)).expect("set");
        let copies = ["COPY {a}list {a}kept", "COPY {a}stream {a}old"];
        copies.iter().for_each(|copy| assert_eq!(run::<u64>(&mut client, copy), 1));
        server.stop();
        server.restart();
        let mut client = server.client();
        client.set_read_timeout(Some(PATIENCE)).expect("set");
        let Value::Array(mut replies) = transact(&mut client, lines) else { panic!("{lines:?}") };
        assert_eq!(replies.pop(), Some(last), "{lines:?}");
        let () = run(&mut client, "SELECT 0");
        let () = run(&mut client, "DEL {a}list {a}stream {a}new");
        let () = run(&mut client, "RENAME {a}kept {a}list");
        let () = run(&mut client, "RENAME {a}old {a}stream");
    }
}
