//! `maxmemory`: the data set is held at its limit by every policy, in memory and on disk.

use super::Server;
use super::blind::{info, number, run};
use super::checkpoints::done;
use super::replica::{EMPTY, Primary, follow};
use redis::Connection;
use std::io::Write;
use std::time::{Duration, Instant};

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const POLICIES: [&str; 7] = [
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
];

fn used(client: &mut Connection) -> u64 {
    info(client, "used_memory").parse().expect("a number")
}

fn set(client: &mut Connection, name: &str, value: &str) {
    run(client, &["CONFIG", "SET", name, value]);
}

/// Writes keys `from..to` of 500 bytes in pipelines, with an expiry.
fn write(client: &mut Connection, from: usize, to: usize) {
    let value = "v".repeat(500);
    for batch in (from..to).collect::<Vec<_>>().chunks(200) {
        let mut pipe = redis::pipe();
        for n in batch {
            pipe.cmd("SET").arg(format!("key:{n}")).arg(&value).arg("EX").arg(10_000 + n).ignore();
        }
        pipe.exec(client).expect("written");
    }
}

/// Waits until the data set is at most so large.
fn sinks_to(client: &mut Connection, most: u64, at: &str) {
    let begun = Instant::now();
    while used(client) > most {
        assert!(begun.elapsed() < PATIENCE, "{at}: {} is beyond {most}", used(client));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_policy_holds_the_data_set_at_its_limit() {
    // All of them on one worker, and each second one on two.
    for (workers, step) in [("1", 1), ("2", 2)] {
        let server =
            Server::start(&["--workers", workers, "--shards", "2", "--appendfsync", "everysec"]);
        let mut client = server.client();
        for policy in POLICIES.iter().step_by(step) {
            run(&mut client, &["FLUSHALL"]);
            run(&mut client, &["CONFIG", "RESETSTAT"]);
            set(&mut client, "maxmemory", "3mb");
            set(&mut client, "maxmemory-policy", policy);
            run(&mut client, &["SET", "stays", "v"]);
            for part in 0..4 {
                write(&mut client, part * 3000, part * 3000 + 3000);
                sinks_to(&mut client, 3 << 20, policy);
            }
            assert!(used(&mut client) > (3 << 20) * 9 / 10, "{policy} evicts too much");
            // The last keys may go between two looks.
            let (evicted, keys) = loop {
                let evicted = info(&mut client, "evicted_keys");
                let keys = number(&mut client, &["DBSIZE"]) as u64;
                if info(&mut client, "evicted_keys") == evicted {
                    break (evicted.parse::<u64>().expect("a number"), keys);
                }
            };
            assert!((12_000..=12_001).contains(&(evicted + keys)), "{policy}: {evicted} {keys}");
            if policy.starts_with("volatile") {
                assert_eq!(number(&mut client, &["EXISTS", "stays"]), 1, "{policy}");
            }
        }
    }
}

/// The journal has room for the small records of reads and settings, not for those of these keys.
#[test]
fn keys_that_the_journal_keeps_are_neither_counted_as_evicted_nor_tried_all_the_time() {
    const SEGMENT: usize = 1 << 20;
    let size = SEGMENT.to_string();
    let one = ["--workers", "1", "--shards", "1", "--memory-budget", "256mb"];
    let server = Server::start(&[&one[..], &["--journal-segment-size", &size]].concat());
    let mut client = server.client();
    for n in 0..300 {
        run(&mut client, &["SET", &format!("{}{n}", "n".repeat(50_000)), "x", "EX", "86400"]);
    }
    set(&mut client, "maxmemory-policy", "volatile-random");
    server.limit_files(Some(SEGMENT as u64 - 1));
    for size in [SEGMENT / 4, SEGMENT / 64] {
        let value = "f".repeat(size);
        let mut fill = (0..1000).map(|n| {
            let key = format!("fill:{size}:{n}");
            redis::cmd("SET").arg(key).arg(&value).query::<()>(&mut client)
        });
        assert!(fill.any(|done| done.is_err()), "the journal is full");
    }
    let failed = |client: &mut Connection| -> u64 {
        info(client, "failed_commits").parse().expect("a number")
    };
    let before = number(&mut client, &["DBSIZE"]);
    run(&mut client, &["CONFIG", "RESETSTAT"]);
    let limit = used(&mut client) - SEGMENT as u64;
    set(&mut client, "maxmemory", &limit.to_string());
    let begun = Instant::now();
    while failed(&mut client) == 0 {
        assert!(begun.elapsed() < PATIENCE, "nothing is evicted");
    }
    let (begun, tried) = (Instant::now(), failed(&mut client));
    while begun.elapsed() < Duration::from_secs(3) {
        run(&mut client, &["GET", "nothing"]);
    }
    let tries = failed(&mut client) - tried;
    // One in each second.
    assert!(tries <= begun.elapsed().as_secs() + 2, "{tries}");
    // None is tried between these two.
    let (evicted, left) = loop {
        let evicted: i64 = info(&mut client, "evicted_keys").parse().expect("a number");
        let left = number(&mut client, &["DBSIZE"]);
        if info(&mut client, "evicted_keys") == evicted.to_string() {
            break (evicted, left);
        }
    };
    assert_eq!(evicted, before - left);
    server.limit_files(None);
    sinks_to(&mut client, limit, "the journal takes everything again");
}

#[test]
fn the_size_is_exact_whatever_happens() {
    let mut server = Server::start(&["--workers", "2", "--shards", "3", "--memory-budget", "32mb"]);
    let empty = used(&mut server.client());
    let mut sizes = Vec::new();
    for round in 0..3 {
        let mut client = server.client();
        write(&mut client, round * 500, round * 500 + 1500);
        for n in 0..200 {
            let key = |name: &str| format!("{name}{n}");
            let mut pipe = redis::pipe();
            let mut add = |words: &[&str]| {
                pipe.cmd(words[0]).arg(&words[1..]).ignore();
            };
            add(&["HSET", &key("hash"), "a", "1", "b", &"y".repeat(100 * round)]);
            add(&["SADD", &key("set"), "a", &"z".repeat(100 + round)]);
            add(&["RPUSH", &key("list"), &"l".repeat(2000), "2"]);
            add(&["ZADD", &key("zset"), "1", "a", "2", &"m".repeat(100 + round)]);
            add(&["XADD", &key("stream"), "*", "field", &"s".repeat(2000)]);
            add(&["APPEND", &key("long"), &"x".repeat(20_000)]);
            add(&["INCR", "number"]);
            let () = pipe.query(&mut client).expect("stored");
        }
        for begin in (0..3000).step_by(100) {
            let mut pipe = redis::pipe();
            for n in begin..begin + 100 {
                pipe.hset("big", format!("f{n}"), round).ignore();
            }
            let () = pipe.query(&mut client).expect("stored");
        }
        run(&mut client, &["DEL", "key:1", "hash1", "list2", "stream3", "zset4", "long5"]);
        let before = used(&mut client);
        sizes.push(before);
        drop(client);
        match round {
            1 => server.kill(),
            _ => server.stop(),
        }
        server.restart();
        assert_eq!(used(&mut server.client()), before, "round {round}");
    }
    assert!(sizes[0] < sizes[1] && sizes[1] < sizes[2], "{sizes:?}");
    // `check` compares the counters with all rows.
    server.stop();
    done(&["check", "--dir", &server.dir().join("data").display().to_string()]);
    server.restart();
    let mut client = server.client();
    run(&mut client, &["FLUSHALL"]);
    assert_eq!(used(&mut client), empty);
    write(&mut client, 0, 100);
    let names: Vec<String> = (0..100).map(|n| format!("key:{n}")).collect();
    for name in &names {
        run(&mut client, &["DEL", name]);
    }
    assert_eq!(used(&mut client), empty);
}

#[test]
fn keys_on_disk_are_evicted_first() {
    let mut server =
        Server::start(&["--workers", "2", "--shards", "2", "--appendfsync", "everysec"]);
    for policy in ["allkeys-lru", "allkeys-lfu", "volatile-lru", "volatile-ttl", "allkeys-random"] {
        let mut client = server.client();
        run(&mut client, &["FLUSHALL"]);
        write(&mut client, 0, 8000);
        let all = used(&mut client);
        drop(client);
        server.stop();
        server.restart();
        // Only these are in memory now.
        let mut client = server.client();
        for n in 0..100 {
            run(&mut client, &["GET", &format!("key:{}", n * 80)]);
        }
        set(&mut client, "maxmemory-policy", policy);
        set(&mut client, "maxmemory", &(all / 2).to_string());
        sinks_to(&mut client, all / 2, policy);
        assert!(used(&mut client) > all * 2 / 5, "{policy} evicts too much");
        let kept: usize = (0..100)
            .filter(|n| number(&mut client, &["EXISTS", &format!("key:{}", n * 80)]) == 1)
            .count();
        match policy {
            "allkeys-random" => assert!((20..90).contains(&kept), "{kept} of 100"),
            // Those that expire first are the first ones.
            "volatile-ttl" => {
                assert_eq!(number(&mut client, &["EXISTS", "key:0"]), 0);
                assert_eq!(number(&mut client, &["EXISTS", "key:7999"]), 1);
            }
            _ => assert!(kept >= 98, "{policy}: {kept} of 100"),
        }
        set(&mut client, "maxmemory", "0");
    }
}

#[test]
fn what_is_used_stays() {
    let server = Server::start(&["--workers", "2", "--appendfsync", "no"]);
    let mut client = server.client();
    for policy in ["allkeys-lru", "allkeys-lfu"] {
        run(&mut client, &["FLUSHALL"]);
        set(&mut client, "maxmemory-policy", policy);
        set(&mut client, "maxmemory", "4mb");
        set(&mut client, "maxmemory-samples", "10");
        write(&mut client, 0, 3000);
        // The clock of accesses has seconds.
        for round in 0..3 {
            std::thread::sleep(Duration::from_millis(1100));
            for n in 0..200 {
                let key = format!("key:{}", n * 10);
                let _: Option<String> =
                    redis::cmd("GET").arg(key).query(&mut client).expect("read");
            }
            write(&mut client, 10_000 + round * 1500, 11_500 + round * 1500);
        }
        sinks_to(&mut client, 4 << 20, policy);
        let exists = |client: &mut Connection, n: usize| {
            number(client, &["EXISTS", &format!("key:{n}")]) == 1
        };
        let used = (0..200).filter(|n| exists(&mut client, n * 10)).count();
        let unused = (0..200).filter(|n| exists(&mut client, n * 10 + 1)).count();
        // LRU takes the oldest of the others, LFU any of them.
        let most = if policy == "allkeys-lru" { 100 } else { 170 };
        assert!(used > 180 && unused < most, "{policy}: {used} of those in use, {unused} others");
        set(&mut client, "maxmemory", "0");
    }
}

#[test]
fn beyond_the_limit_what_needs_memory_is_refused_if_nothing_may_go() {
    let server = Server::start(&["--workers", "2"]);
    let mut client = server.client();
    write(&mut client, 0, 1000);
    run(&mut client, &["SET", "plain", "v"]);
    set(&mut client, "maxmemory", "1100kb");
    let refused = |client: &mut Connection, words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = command.arg(*word));
        command.query::<redis::Value>(client).expect_err("refused").to_string()
    };
    const OOM: &str = "command not allowed when used memory > 'maxmemory'.";
    assert!(refused(&mut client, &["SET", "k", "v"]).contains(OOM));
    assert!(refused(&mut client, &["EVAL", "return redis.call('SET','k','v')", "0"]).contains(OOM));
    assert_eq!(number(&mut client, &["EXISTS", "key:0"]), 1, "reads go on");
    assert_eq!(number(&mut client, &["DEL", "key:0"]), 1, "and so do deletions");
    // Only keys with an expiry may go: then those without one are in the way.
    set(&mut client, "maxmemory-policy", "volatile-lru");
    sinks_to(&mut client, 1100 << 10, "volatile-lru");
    run(&mut client, &["SET", "k", "v"]);
    set(&mut client, "maxmemory", "1mb");
    let begun = Instant::now();
    while info(&mut client, "db0").contains("expires=0") || number(&mut client, &["DBSIZE"]) > 2 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
        if number(&mut client, &["DBSIZE"]) == 2 {
            break;
        }
    }
    assert!(refused(&mut client, &["SET", "other", "v"]).contains(OOM));
    assert_eq!(number(&mut client, &["EXISTS", "plain", "k"]), 2);
}

#[test]
fn replies_that_a_client_does_not_read_count_as_in_redis() {
    let server = Server::start(&["--appendfsync", "everysec"]);
    let mut client = server.client();
    for n in 0..40 {
        run(&mut client, &["SET", &format!("k{n}"), &"v".repeat(100_000)]);
    }
    let before = used(&mut client);
    set(&mut client, "maxmemory-policy", "allkeys-lru");
    set(&mut client, "maxmemory", &(before + (2 << 20)).to_string());
    assert_eq!(info(&mut client, "evicted_keys"), "0");
    let mut lazy = server.socket();
    lazy.write_all(&b"GET k39\r\n".repeat(120)).expect("sent");
    let begun = Instant::now();
    while info(&mut client, "evicted_keys") == "0" {
        assert!(begun.elapsed() < PATIENCE, "nothing is evicted");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(number(&mut client, &["DBSIZE"]) < 40);
    drop(lazy);
    let of_keys = info(&mut client, "used_memory_dataset").parse::<u64>().expect("a number");
    sinks_to(&mut client, of_keys + (1 << 20), "nobody has anything to read");
}

#[test]
fn an_evicted_key_tells_its_listeners() {
    let server = Server::start(&["--workers", "2"]);
    let mut client = server.client();
    run(&mut client, &["CONFIG", "SET", "notify-keyspace-events", "Ee"]);
    let mut listener = server.client();
    let mut channel = listener.as_pubsub();
    channel.subscribe("__keyevent@0__:evicted").expect("subscribed");
    channel.set_read_timeout(Some(PATIENCE)).expect("set");
    run(&mut client, &["SET", "k", "v"]);
    let mut watcher = server.client();
    run(&mut watcher, &["WATCH", "k"]);
    let mut told = server.client();
    let id = number(&mut told, &["CLIENT", "ID"]).to_string();
    let mut told = told.as_pubsub();
    told.subscribe("__redis__:invalidate").expect("subscribed");
    told.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut reader = server.client();
    run(&mut reader, &["CLIENT", "TRACKING", "ON", "REDIRECT", &id]);
    run(&mut reader, &["GET", "k"]);
    set(&mut client, "maxmemory-policy", "allkeys-random");
    set(&mut client, "maxmemory", "1mb");
    let message = channel.get_message().expect("an event");
    assert_eq!(message.get_payload::<String>().expect("a name"), "k");
    let keys: Vec<String> = told.get_message().expect("told").get_payload().expect("keys");
    assert_eq!(keys, ["k"]);
    run(&mut watcher, &["MULTI"]);
    run(&mut watcher, &["PING"]);
    assert_eq!(run(&mut watcher, &["EXEC"]), redis::Value::Nil);
    assert_eq!(info(&mut client, "evicted_keys"), "1");
}

#[test]
fn transactions_and_scripts_of_any_size_end_within_the_limit() {
    let server = Server::start(&["--workers", "2", "--appendfsync", "everysec"]);
    let mut client = server.client();
    set(&mut client, "maxmemory-policy", "allkeys-lru");
    set(&mut client, "maxmemory", "3mb");
    for round in 0..5 {
        let mut pipe = redis::pipe();
        pipe.atomic();
        for n in 0..1000 {
            pipe.cmd("SET").arg(format!("m{round}:{n}")).arg("x".repeat(300)).ignore();
        }
        pipe.exec(&mut client).expect("stored");
        let script = "for i=1,1000 do redis.call('SET', ARGV[1]..i, string.rep('y',300)) end";
        run(&mut client, &["EVAL", script, "0", &format!("s{round}:")]);
    }
    sinks_to(&mut client, 3 << 20, "scripts");
    assert!(number(&mut client, &["DBSIZE"]) > 1000);
}

#[test]
fn a_transaction_that_ends_in_a_pause_evicts_nothing_before_it() {
    for workers in ["1", "2"] {
        let server = Server::start(&["--workers", workers, "--shards", "2"]);
        let mut client = server.client();
        for n in 0..20 {
            run(&mut client, &["MULTI"]);
            run(&mut client, &["SET", "k", "v"]);
            run(&mut client, &["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
            run(&mut client, &["CONFIG", "SET", "maxmemory", "1"]);
            run(&mut client, &["CLIENT", "PAUSE", "60000", "WRITE"]);
            run(&mut client, &["EXEC"]);
            assert_eq!(number(&mut client, &["EXISTS", "k"]), 1, "{workers}, {n}");
            run(&mut client, &["CLIENT", "UNPAUSE"]);
            let begun = Instant::now();
            while number(&mut client, &["EXISTS", "k"]) == 1 {
                assert!(begun.elapsed() < PATIENCE, "nothing is evicted after the pause");
            }
            set(&mut client, "maxmemory", "0");
        }
    }
}

#[test]
fn a_replica_keeps_the_keys_of_its_primary_until_it_is_promoted() {
    let primary = Primary::serve(EMPTY);
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    set(&mut client, "maxmemory-policy", "allkeys-random");
    set(&mut client, "maxmemory", "1mb");
    follow(&mut client, &primary);
    let value = "v".repeat(500);
    let mut commands = vec!["SELECT 0".to_owned()];
    commands.extend((0..3000).map(|n| format!("SET key:{n} {value}")));
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    primary.say(&commands);
    primary.wait();
    assert!(used(&mut client) > 3 << 19);
    // Longer than the time after which the size is looked at periodically.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(number(&mut client, &["DBSIZE"]), 3000);
    assert_eq!(info(&mut client, "evicted_keys"), "0");
    run(&mut client, &["REPLICAOF", "NO", "ONE"]);
    sinks_to(&mut client, 1 << 20, "promoted");
    assert!(number(&mut client, &["DBSIZE"]) < 3000);
}

#[test]
fn a_key_that_is_made_again_begins_with_the_first_count_of_accesses() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lfu"]);
    let mut client = server.client();
    let mut freq = || -> i64 {
        redis::cmd("OBJECT").arg("FREQ").arg("k").query(&mut client).expect("a number")
    };
    let mut other = server.client();
    let mut run = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| _ = command.arg(word));
        command.query::<redis::Value>(&mut other).expect("it runs");
    };
    run(&["SET", "k", "1"]);
    assert_eq!(freq(), 5);
    for _ in 0..200 {
        run(&["GET", "k"]);
    }
    assert!(freq() > 6, "{}", freq());
    run(&["DEL", "k"]);
    run(&["GET", "k"]);
    run(&["SET", "k", "2"]);
    assert_eq!(freq(), 5, "the counts of the old value have gone with it");
    run(&["GET", "k"]);
    assert_eq!(freq(), 6, "the first access always counts");
}

#[test]
fn in_the_import_mode_no_key_is_evicted() {
    let server = Server::start(&[]);
    let mut client = server.client();
    run(&mut client, &["SET", "key", "value"]);
    set(&mut client, "import-mode", "yes");
    set(&mut client, "maxmemory-policy", "allkeys-lru");
    set(&mut client, "maxmemory", "1");
    let refused = redis::cmd("SET").arg("other").arg("value").query::<()>(&mut client);
    assert!(refused.expect_err("it is full").to_string().contains("OOM"));
    assert_eq!(number(&mut client, &["DBSIZE"]), 1);
    set(&mut client, "import-mode", "no");
    let deadline = Instant::now() + PATIENCE;
    while number(&mut client, &["DBSIZE"]) != 0 {
        assert!(Instant::now() < deadline, "the key stays");
    }
}
