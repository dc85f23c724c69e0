//! Databases, expiry, scans and counts, over restarts.

use super::Server;
use redis::Commands;
use std::collections::HashSet;
use std::time::{Duration, Instant};

fn dbsize(client: &mut redis::Connection) -> u64 {
    redis::cmd("DBSIZE").query(client).expect("a size")
}

fn scan_all(client: &mut redis::Connection, count: u32) -> HashSet<String> {
    let mut found = HashSet::new();
    let mut cursor = 0u64;
    loop {
        let (next, keys): (u64, Vec<String>) =
            redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(count).query(client).expect("a page");
        found.extend(keys);
        if next == 0 {
            return found;
        }
        cursor = next;
    }
}

#[test]
fn scans_and_counts_are_exact_hot_pending_and_cold() {
    let options = ["--workers", "2", "--shards", "3", "--handover-interval-ms", "100"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    let mut want = HashSet::new();
    for n in 0..3000u32 {
        let () = client.set(format!("k{n}"), n).expect("stored");
        want.insert(format!("k{n}"));
    }
    for n in (0..3000u32).step_by(3) {
        let () = client.del(format!("k{n}")).expect("deleted");
        want.remove(&format!("k{n}"));
    }
    assert_eq!(dbsize(&mut client), 2000);
    assert_eq!(scan_all(&mut client, 10), want);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(scan_all(&mut client, 100), want);
    server.kill();
    server.restart();
    let mut client = server.client();
    assert_eq!(dbsize(&mut client), 2000);
    assert_eq!(scan_all(&mut client, 100), want);
    // New and changed keys over cold ones.
    for n in 0..500u32 {
        let () = client.set(format!("k{n}"), "new").expect("stored");
        want.insert(format!("k{n}"));
    }
    assert_eq!(dbsize(&mut client), want.len() as u64);
    assert_eq!(scan_all(&mut client, 50), want);
}

#[test]
fn scan_answers_before_it_has_gathered_very_many_names() {
    const KEYS: usize = 3000;
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    let want: HashSet<String> = (0..KEYS).map(|n| format!("{n:01000}")).collect();
    for key in &want {
        let () = client.set(key, 1).expect("stored");
    }
    let mut scan = redis::cmd("SCAN");
    scan.arg(0).arg("COUNT").arg(1_000_000);
    let (next, keys): (u64, Vec<String>) = scan.query(&mut client).expect("a page");
    assert!(next != 0 && (1000..KEYS).contains(&keys.len()), "{next} {}", keys.len());
    assert_eq!(scan_all(&mut client, 1_000_000), want);
    // Names that are left out are not counted.
    scan.arg("MATCH").arg("*7");
    let (next, keys): (u64, Vec<String>) = scan.query(&mut client).expect("all");
    assert_eq!((next, keys.len()), (0, KEYS / 10));
}

#[test]
fn expired_keys_go_by_themselves() {
    let mut server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    for n in 0..500u32 {
        let () = client.pset_ex(format!("k{n}"), n, 300 + u64::from(n % 200)).expect("stored");
    }
    let () = client.set("stays", 1).expect("stored");
    server.kill();
    server.restart();
    let mut client = server.client();
    let deadline = Instant::now() + Duration::from_secs(30);
    while dbsize(&mut client) != 1 {
        assert!(Instant::now() < deadline, "expired keys are still counted");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn keys_that_expire_while_clients_are_paused_stay_until_the_end_of_the_pause() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    for n in 0..20 {
        let () = client.pset_ex(format!("k{n}"), "v", 300).expect("stored");
        let () = client.set(format!("stays{n}"), n).expect("stored");
    }
    let pause = |client: &mut redis::Connection, args: &[&str]| {
        let () = redis::cmd("CLIENT").arg(args).query(client).expect("done");
    };
    pause(&mut client, &["PAUSE", "100000", "WRITE"]);
    std::thread::sleep(Duration::from_millis(700));
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    for key in &keys {
        assert_eq!(client.get::<_, Option<String>>(key).expect("an answer"), None);
        assert_eq!(client.ttl::<_, i64>(key).expect("an answer"), -2);
    }
    // Several workers at once.
    let found: Vec<Option<String>> = client.mget(&keys).expect("an answer");
    assert!(found.iter().all(Option::is_none));
    assert_eq!(scan_all(&mut client, 100).len(), 20);
    assert_eq!(dbsize(&mut client), 40);
    pause(&mut client, &["UNPAUSE"]);
    let deadline = Instant::now() + Duration::from_secs(30);
    while dbsize(&mut client) != 20 {
        assert!(Instant::now() < deadline, "expired keys are still counted");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn flushed_databases_stay_empty_over_a_kill() {
    let options = ["--workers", "2", "--shards", "2", "--handover-interval-ms", "50"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    for n in 0..1000u32 {
        let () = client.set(format!("k{n}"), n).expect("stored");
        let () = client.hset(format!("h{n}"), "f", "v".repeat(100)).expect("stored");
    }
    let () = redis::cmd("SELECT").arg(1).query(&mut client).expect("selected");
    let () = client.set("other", 1).expect("stored");
    let () = redis::cmd("SWAPDB").arg(0).arg(1).query(&mut client).expect("swapped");
    assert_eq!(dbsize(&mut client), 2000);
    let () = redis::cmd("FLUSHDB").query(&mut client).expect("flushed");
    assert_eq!(dbsize(&mut client), 0);
    let () = client.set("after", 1).expect("stored");
    server.kill();
    server.restart();
    let mut client = server.client();
    assert_eq!(scan_all(&mut client, 10), HashSet::from(["other".to_owned()]));
    let () = redis::cmd("SELECT").arg(1).query(&mut client).expect("selected");
    assert_eq!(scan_all(&mut client, 10), HashSet::from(["after".to_owned()]));
    assert_eq!(client.get::<_, Option<u32>>("k1").expect("an answer"), None);
}

#[test]
fn counters_from_many_clients_lose_no_increment() {
    let server = Server::start(&["--workers", "2", "--shards", "2", "--appendfsync", "everysec"]);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let mut client = server.client();
                for n in 0..200u32 {
                    let () = client.incr(format!("c{}", n % 4), 1).expect("stored");
                }
            });
        }
    });
    let mut client = server.client();
    for n in 0..4 {
        assert_eq!(client.get::<_, u32>(format!("c{n}")).expect("an answer"), 1000);
    }
}

#[test]
fn every_layout_of_threads_serves_the_same_commands() {
    for layout in [
        &["--workers", "1"][..],
        &["--workers", "2", "--net-workers", "1"],
        &["--workers", "2", "--accept-mode", "round-robin"],
    ] {
        let server = Server::start(&[layout, &["--shards", "3"]].concat());
        let mut clients: Vec<_> = (0..4).map(|_| server.client()).collect();
        for n in 0..400usize {
            let () = clients[n % 4].set(format!("k{n}"), n).expect("stored");
        }
        let client = &mut clients[0];
        let keys: Vec<String> = (0..400).map(|n| format!("k{n}")).collect();
        let values: Vec<u32> = client.mget(&keys).expect("an answer");
        assert!(values.iter().copied().eq(0..400), "{layout:?}");
        let removed: u32 = client.del(&keys[..100]).expect("an answer");
        assert_eq!((removed, dbsize(client)), (100, 300), "{layout:?}");
        assert_eq!(scan_all(client, 30).len(), 300, "{layout:?}");
        let () = redis::cmd("FLUSHALL").query(client).expect("flushed");
        assert_eq!(clients.iter_mut().map(dbsize).sum::<u64>(), 0, "{layout:?}");
    }
}

#[test]
fn excess_memory_leaves_an_idle_server() {
    let options = ["--workers", "1", "--shards", "1", "--handover-interval-ms", "100"];
    let server = Server::start(&[&options[..], &["--memory-budget", "16mb"]].concat());
    let mut client = server.client();
    let pairs: Vec<(String, String)> =
        (0..8000).map(|n| (format!("k{n}"), "x".repeat(1500))).collect();
    let () = client.mset(&pairs).expect("stored");
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let info: redis::InfoDict =
            redis::cmd("INFO").arg("everything").query(&mut client).expect("a reply");
        let held: usize = info.get("hot_bytes").expect("a number");
        // Five sixteenths of the budget.
        if (1..=5 << 20).contains(&held) {
            break;
        }
        assert!(Instant::now() < deadline, "{held} bytes are held");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(dbsize(&mut client), 8000);
}

#[test]
fn in_the_import_mode_keys_do_not_expire_and_their_source_sees_them() {
    let server = Server::start(&["--workers", "2", "--import-mode", "yes"]);
    let (mut source, mut client) = (server.client(), server.client());
    let ask = |client: &mut redis::Connection, line: &str| -> redis::Value {
        let mut words = line.split(' ');
        let mut request = redis::cmd(words.next().expect("a name"));
        words.for_each(|word| _ = request.arg(word));
        request.query(client).unwrap_or_else(|error| panic!("{line}: {error}"))
    };
    let number = |value: redis::Value| redis::from_redis_value::<i64>(value).expect("a number");
    let names = |value: redis::Value| redis::from_redis_value::<Vec<String>>(value).expect("names");
    ask(&mut source, "CLIENT IMPORT-SOURCE ON");
    // It is a client: the limits of this server hold.
    ask(&mut client, "CONFIG SET proto-max-bulk-len 1048576");
    for line in
        ["SETRANGE long 1048576 x", "SETBIT long 8388608 1", "XADD s MAXLEN = 1 LIMIT 1 * a b"]
    {
        let mut words = line.split(' ');
        let mut request = redis::cmd(words.next().expect("a name"));
        words.for_each(|word| _ = request.arg(word));
        assert!(request.query::<redis::Value>(&mut source).is_err(), "{line}");
    }
    for key in ["a", "b", "c"] {
        ask(&mut source, &format!("SET {key} 1 PX 1"));
    }
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(ask(&mut client, "GET a"), redis::Value::Nil);
    assert_eq!(number(ask(&mut client, "TTL a")), -2);
    assert_eq!(number(ask(&mut client, "DBSIZE")), 3);
    assert!(names(ask(&mut client, "KEYS *")).is_empty());
    assert_eq!(number(ask(&mut source, "TTL a")), 0);
    assert_eq!(number(ask(&mut source, "INCR a")), 2);
    assert_eq!(number(ask(&mut source, "EXISTS a b c")), 3);
    assert_eq!(names(ask(&mut source, "KEYS *")).len(), 3);
    assert_ne!(ask(&mut source, "RANDOMKEY"), redis::Value::Nil);
    let page: (u64, Vec<String>) =
        redis::from_redis_value(ask(&mut source, "SCAN 0 COUNT 1000")).expect("a page");
    assert_eq!((page.0, page.1.len()), (0, 3));
    let in_exec = |client: &mut redis::Connection| -> (i64, Vec<String>, Vec<String>) {
        let mut unit = redis::pipe();
        unit.atomic().cmd("DBSIZE").cmd("KEYS").arg("*").cmd("EVAL");
        unit.arg("return redis.call('KEYS', ARGV[1])").arg(0).arg("*");
        unit.query(client).expect("EXEC")
    };
    let (size, own, of_script) = in_exec(&mut source);
    assert_eq!((size, own.len(), of_script.len()), (3, 3, 3));
    let (size, others, of_script) = in_exec(&mut client);
    assert_eq!((size, others.len(), of_script.len()), (3, 0, 0));
    let list = |client: &mut redis::Connection| -> String {
        redis::from_redis_value(ask(client, "CLIENT LIST")).expect("a list")
    };
    assert!(list(&mut client).contains("flags=I"));
    ask(&mut client, "CONFIG SET import-mode no");
    assert!(!list(&mut client).contains("flags=I"));
    super::followers::until("they expire", || number(ask(&mut client, "DBSIZE")) == 0);
    let refused = redis::cmd("CLIENT").arg(&["IMPORT-SOURCE", "ON"]).query::<()>(&mut source);
    assert!(refused.expect_err("refused").to_string().contains("not in import mode"));
}

#[test]
fn a_random_key_may_have_expired_while_expired_keys_stay() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    let random = |client: &mut redis::Connection| -> Option<String> {
        redis::cmd("RANDOMKEY").query(client).expect("a key or none")
    };
    let () = redis::cmd("SET").arg(&["gone", "v", "PX", "3"]).query(&mut client).expect("SET");
    let () = redis::cmd("CLIENT").arg(&["PAUSE", "60000", "WRITE"]).query(&mut client).expect("OK");
    std::thread::sleep(Duration::from_millis(10));
    if dbsize(&mut client) == 1 {
        assert_eq!(random(&mut client).as_deref(), Some("gone"));
    }
    let () = redis::cmd("CLIENT").arg("UNPAUSE").query(&mut client).expect("OK");
    let () = redis::cmd("SET").arg(&["here", "v"]).query(&mut client).expect("SET");
    for _ in 0..10 {
        assert_eq!(random(&mut client).as_deref(), Some("here"));
    }
    let () = redis::cmd("DEL").arg("here").query(&mut client).expect("DEL");
    assert_eq!(random(&mut client), None);
}
