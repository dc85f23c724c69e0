//! Clients that cache the keys that they have read.

use super::Server;
use super::blind::{info, run};
use super::pubsub::Raw;
use redis::{Commands, PushInfo, PushKind, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Keys in different shards of two.
const LEFT: &str = "{a}";
const RIGHT: &str = "{b}";

const TWO: [&str; 4] = ["--workers", "2", "--shards", "2"];

/// How long it may take until everything is told.
const PATIENCE: Duration = Duration::from_secs(20);

/// A client that keeps the values that it reads until an invalidation tells it to forget them.
pub(crate) struct Keeper {
    client: redis::Connection,
    pushes: Receiver<PushInfo>,
    kept: HashMap<String, Option<String>>,
}

impl Keeper {
    pub(crate) fn new(server: &Server, options: &[&str]) -> Self {
        let url = format!("redis://127.0.0.1:{}/?protocol=resp3", server.port());
        let client = redis::Client::open(url).expect("an address");
        let mut client = client.get_connection().expect("a connection");
        let (sender, pushes) = channel();
        client.set_push_sender(sender);
        let mut tracking = redis::cmd("CLIENT");
        tracking.arg("TRACKING").arg("ON").arg(options);
        let () = tracking.query(&mut client).expect("tracked");
        Self { client, pushes, kept: HashMap::new() }
    }

    /// Forgets the keys that were invalidated up to the last reply; returns them ("*": all), in
    /// order.
    pub(crate) fn hear(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        for push in self.pushes.try_iter().filter(|push| push.kind == PushKind::Invalidate) {
            match &push.data[..] {
                [Value::Nil] => {
                    self.kept.clear();
                    told.push("*".to_owned());
                }
                [keys] => {
                    let keys: Vec<String> = redis::from_redis_value_ref(keys).expect("keys");
                    keys.iter().for_each(|key| drop(self.kept.remove(key)));
                    told.extend(keys);
                }
                other => panic!("{other:?}"),
            }
        }
        told
    }

    /// Reads keys with one command and keeps their values.
    pub(crate) fn read(&mut self, keys: &[&str]) {
        let values: Vec<Option<String>> = if let [key] = keys {
            vec![self.client.get(*key).expect("a value")]
        } else {
            self.client.mget(keys).expect("values")
        };
        // Invalidations before the reply are about older values.
        self.hear();
        self.kept.extend(keys.iter().map(ToString::to_string).zip(values));
    }

    /// Waits for a reply, so that `hear` gets all messages that were sent before it.
    pub(crate) fn ping(&mut self) {
        let pong: String = redis::cmd("PING").query(&mut self.client).expect("PONG");
        assert_eq!(pong, "PONG");
    }

    /// Waits until it has been told of all changes so far, which come before that of a key which it reads here and
    /// `other` changes; of which keys, in the order of their names.
    fn wait_told_of_all(&mut self, other: &mut redis::Connection) -> Vec<String> {
        let mut told = Vec::new();
        // Keys of every worker.
        for last in (0..8).map(|n| format!("last{n}")) {
            let _: Option<u64> = self.client.get(&last).expect("a value");
            let () = other.incr(&last, 1).expect("a number");
            let deadline = Instant::now() + PATIENCE;
            while !told.contains(&last) && Instant::now() < deadline {
                self.ping();
                told.append(&mut self.hear());
            }
        }
        told.retain(|key| !key.starts_with("last"));
        told.sort();
        told
    }

    /// Waits until it has been told of so many keys; which, in the order of their names.
    pub(crate) fn wait_told(&mut self, count: usize) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut told = Vec::new();
        while told.len() < count && Instant::now() < deadline {
            self.ping();
            told.append(&mut self.hear());
        }
        told.sort();
        told
    }
}

#[test]
fn clients_that_have_read_keys_of_any_worker_are_told() {
    let server = Server::start(&TWO);
    let mut keeper = Keeper::new(&server, &[]);
    let mut other = server.client();
    keeper.read(&[LEFT]);
    keeper.read(&[RIGHT]);
    let () = other.set(LEFT, 1).expect("stored");
    assert_eq!(keeper.wait_told(1), [LEFT]);
    let () = other.set(RIGHT, 1).expect("stored");
    assert_eq!(keeper.wait_told(1), [RIGHT]);
    // Once told it is told no more.
    let () = other.mset(&[(LEFT, 2), (RIGHT, 2)]).expect("stored");
    keeper.read(&[LEFT, RIGHT]);
    let () = other.mset(&[(LEFT, 3), (RIGHT, 3)]).expect("stored");
    assert_eq!(keeper.wait_told(2), [LEFT, RIGHT]);
    keeper.read(&[LEFT, RIGHT, "{a}none", "{b}none"]);
    let () = other.rename(LEFT, "{b}none").expect("renamed");
    assert_eq!(keeper.wait_told(2), [LEFT, "{b}none"]);
    let () = redis::cmd("FLUSHALL").query(&mut other).expect("flushed");
    assert_eq!(keeper.wait_told(1), ["*"]);
    keeper.read(&[RIGHT]);
    let () = redis::cmd("SWAPDB").arg(0).arg(1).query(&mut other).expect("swapped");
    assert_eq!(keeper.wait_told(1), ["*"]);
    let () = other.pset_ex(RIGHT, 1, 300).expect("stored");
    keeper.read(&[RIGHT]);
    assert_eq!(keeper.wait_told(1), [RIGHT], "it has expired");
}

#[test]
fn broadcast_clients_are_told_of_all_keys_with_a_prefix() {
    let server = Server::start(&TWO);
    let mut all = Keeper::new(&server, &["BCAST"]);
    let mut some = Keeper::new(&server, &["BCAST", "PREFIX", "{b}", "NOLOOP"]);
    let mut other = server.client();
    let () = other.mset(&[("{a}1", 1), ("{b}1", 1), ("c", 1)]).expect("stored");
    let () = some.client.mset(&[("{a}2", 1), ("{b}2", 1)]).expect("stored");
    let () = other.set("{b}3", 1).expect("stored");
    assert_eq!(all.wait_told(6), ["c", "{a}1", "{a}2", "{b}1", "{b}2", "{b}3"]);
    assert_eq!(some.wait_told(2), ["{b}1", "{b}3"]);
}

#[test]
fn no_more_keys_are_remembered_than_may_be() {
    let server = Server::start(&[&TWO[..], &["--tracking-table-max-keys", "10"]].concat());
    let mut keeper = Keeper::new(&server, &[]);
    let keys: Vec<String> = (0..50).map(|n| format!("k{n}")).collect();
    for key in &keys {
        keeper.read(&[key.as_str()]);
    }
    keeper.ping();
    keeper.hear();
    let info: String = redis::cmd("INFO").arg("stats").query(&mut keeper.client).expect("info");
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.parse::<usize>().expect("a number")
    };
    assert_eq!(field("tracking_total_keys:"), keeper.kept.len());
    assert_eq!(field("tracking_total_items:"), keeper.kept.len());
    assert!((5..=10).contains(&keeper.kept.len()), "{}", keeper.kept.len());
    let mut other = server.client();
    let kept = keeper.kept.len();
    for key in &keys {
        let () = other.set(key, 1).expect("stored");
    }
    assert_eq!(keeper.wait_told(kept).len(), kept);
    drop(keeper);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let info: String = redis::cmd("INFO").arg("clients").query(&mut other).expect("info");
        if info.contains("tracking_clients:0") {
            return;
        }
        assert!(Instant::now() < deadline, "{info}");
    }
}

/// Numbers that look random, the same for every seed.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }

    fn key(&mut self) -> String {
        let side = [LEFT, RIGHT][self.below(2) as usize];
        format!("{side}{}", self.below(8))
    }
}

/// Changes keys in all kinds of ways until it is told to stop.
fn write(server: &Server, seed: u64, stop: &AtomicBool) {
    let mut draws = Draws(seed);
    let mut client = server.client();
    while !stop.load(Ordering::Relaxed) {
        let (a, b, value) = (draws.key(), draws.key(), draws.below(1_000_000));
        match draws.below(60) {
            0 => redis::cmd("FLUSHALL").query::<()>(&mut client).expect("flushed"),
            1..10 => client.mset(&[(&a, value), (&b, value)]).expect("stored"),
            10..15 => client.del::<_, u64>(&[a, b]).map(drop).expect("deleted"),
            15..20 => client.pset_ex(a, value, 1 + value % 20).expect("stored"),
            20..25 => {
                // There may be nothing to rename.
                let _ = client.rename::<_, _, ()>(a, b);
            }
            25..30 => redis::cmd("COPY")
                .arg(&[a.as_str(), b.as_str(), "REPLACE"])
                .query::<Value>(&mut client)
                .map(drop)
                .unwrap_or_default(),
            30..40 => client.append::<_, _, u64>(a, "x").map(drop).expect("appended"),
            _ => client.set(a, value).expect("stored"),
        }
    }
}

/// Reads at random for a while, then waits until it keeps only the values that the server has.
fn keep(server: &Server, seed: u64, options: &[&str], until: Instant) {
    let mut draws = Draws(seed);
    let mut keeper = Keeper::new(server, options);
    let mut told = 0;
    while Instant::now() < until {
        let keys = [draws.key(), draws.key()];
        match draws.below(12) {
            0..4 => keeper.read(&[keys[0].as_str(), keys[1].as_str()]),
            4 => {
                // With NOLOOP the client is not told of its own writes.
                let () = keeper.client.set(&keys[0], seed).expect("stored");
                keeper.hear();
                keeper.kept.remove(&keys[0]);
            }
            _ => keeper.read(&[keys[0].as_str()]),
        }
        keeper.ping();
        told += keeper.hear().len();
    }
    assert!(told > 0);
    // The writers may be at their last commands.
    let mut fresh = server.client();
    let deadline = Instant::now() + PATIENCE;
    loop {
        keeper.ping();
        keeper.hear();
        let wrong = keeper.kept.iter().find(|(key, kept)| {
            let now: Option<String> = fresh.get(key).expect("a value");
            now != **kept
        });
        let Some((key, kept)) = wrong else { return };
        assert!(Instant::now() < deadline, "{key} is kept as {kept:?}, seed {seed}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn cached_keys_that_were_not_invalidated_are_current() {
    for (mode, seed) in [("always", 1), ("everysec", 2), ("no", 3)] {
        let server = Server::start(&[&TWO[..], &["--appendfsync", mode]].concat());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let until = Instant::now() + Duration::from_secs(3);
            let (server, stop) = (&server, &stop);
            for lane in 0..2 {
                scope.spawn(move || write(server, seed * 100 + lane, stop));
                scope.spawn(move || {
                    let options = [&["NOLOOP"][..], &[]][lane as usize];
                    keep(server, seed * 100 + 50 + lane, options, until);
                });
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn a_client_is_told_of_keys_that_its_own_unit_has_read_and_then_changed() {
    for workers in ["1", "3"] {
        let server = Server::start(&["--workers", workers, "--shards", "6"]);
        let (mut keeper, mut other) = (Keeper::new(&server, &[]), server.client());
        let mut run = |units: &[&str]| {
            for line in units {
                let words: Vec<&str> = line.split(' ').collect();
                let _: Value =
                    redis::cmd(words[0]).arg(&words[1..]).query(&mut keeper.client).expect("done");
            }
            keeper.wait_told_of_all(&mut other)
        };
        let scripted = "redis.call('GET','k')redis.call('SET','k',2)";
        let again = "redis.call('SET','k',1)redis.call('GET','k')redis.call('SET','k',2)";
        for unit in [
            &["MULTI", "GET k", "SET k 2", "EXEC"][..],
            &["MULTI", "SET k 1", "GET k", "SET k 2", "EXEC"],
            &["MULTI", "GET k", "SET k 2", "SET other 3", "GET k", "EXEC"],
            &["MULTI", "MGET k l", "MSET k 1 m 2", "EXEC"],
            &["MULTI", "GET k", "GETDEL k", "EXEC"],
            &[&format!("EVAL {scripted} 0")],
            &[&format!("EVAL {scripted} 1 k")],
            &[&format!("EVAL {again} 1 k")],
        ] {
            run(&["SET k 1"]);
            let told = run(unit);
            assert!(told.contains(&"k".to_owned()), "{unit:?}, {workers} workers: {told:?}");
        }
        // One that has read the new value only need not forget it, and is told of the next change.
        run(&["SET k 1"]);
        if workers == "1" {
            assert!(run(&["MULTI", "SET k 2", "GET k", "EXEC"]).is_empty());
        }
        run(&["GET k"]);
        let () = server.client().set("k", 3).expect("stored");
        assert_eq!(run(&[]), ["k"], "{workers} workers");
    }
}

#[test]
fn reads_of_units_at_a_coordinator_are_remembered() {
    const READ: &str = "return(redis.call('MGET','a','b'))";
    const DECLARED: &str = "return(redis.call('MGET',KEYS[1],KEYS[2]))";
    const BOTH: &str =
        "redis.call('MSET',KEYS[1],5,KEYS[2],5)return(redis.call('MGET',KEYS[1],KEYS[2]))";
    // Two workers, and one that has the keys not in memory.
    for workers in ["2", "1"] {
        let mut server = Server::start(&["--workers", workers, "--shards", "2"]);
        let () = server.client().mset(&[("a", 1), ("b", 1)]).expect("stored");
        for (options, unit) in [
            (&[][..], &["MULTI", &format!("EVAL_RO {READ} 0"), "EXEC"][..]),
            (&[], &["MULTI", &format!("EVAL {DECLARED} 2 a b"), "EXEC"]),
            (&[], &[&format!("EVAL_RO {READ} 1 a")]),
            (&["NOLOOP"], &["MULTI", "MSET a 5 b 5", "MGET a b", "EXEC"]),
            (&["NOLOOP"], &[&format!("EVAL {BOTH} 2 a b")]),
            (&["NOLOOP"], &["MULTI", "RENAME a b", "SET a 4", "MGET a b", "EXEC"]),
        ] {
            if workers == "1" {
                server.stop();
                server.restart();
            }
            let (mut keeper, mut other) = (Keeper::new(&server, options), server.client());
            for line in unit {
                let words: Vec<&str> = line.split(' ').collect();
                let _: Value =
                    redis::cmd(words[0]).arg(&words[1..]).query(&mut keeper.client).expect("done");
            }
            keeper.wait_told_of_all(&mut other);
            let () = other.mset(&[("a", 9), ("b", 9)]).expect("stored");
            let told = keeper.wait_told_of_all(&mut other);
            assert_eq!(told, ["a", "b"], "{workers} workers, {options:?}, {unit:?}");
        }
    }
}

#[test]
fn a_client_that_waited_hears_of_changes_behind_its_reply() {
    let options = ["--workers", "2", "--shards", "2", "--accept-mode", "round-robin"];
    let server = Server::start(&options);
    let mut writer = server.client();
    // Both workers have one.
    let mut waiting = [Raw::connect(&server), Raw::connect(&server)];
    for client in &mut waiting {
        client.send("HELLO 3\r\nCLIENT TRACKING ON\r\n");
        while client.lines(1) != "+OK" {}
    }
    for round in 0..200 {
        for client in &mut waiting {
            client.send("XREAD BLOCK 0 STREAMS s $\r\n");
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while info(&mut writer, "blocked_clients") != "2" {
            assert!(Instant::now() < deadline, "they do not wait");
        }
        // The first entry is what they are shown, and the second one changes that in the same round.
        let mut entries = redis::pipe();
        (0..2).for_each(|_| _ = entries.cmd("XADD").arg(&["s", "*", "f", "v"]));
        let () = entries.query(&mut writer).expect("added");
        for client in &mut waiting {
            let first = client.lines(1);
            assert_eq!(first, "%1", "round {round}: its reply comes first");
            client.lines(11);
        }
        // Nothing that they have read is current.
        run(&mut writer, &["XADD", "s", "*", "f", "v"]);
        for client in &mut waiting {
            client.send("PING\r\n");
            while client.lines(1) != "+PONG" {}
        }
    }
}

#[test]
fn a_client_that_is_reset_gets_no_message_of_its_former_protocol() {
    let options = ["--workers", "2", "--shards", "2", "--accept-mode", "round-robin"];
    let server = Server::start(&options);
    let (mut target, mut tracking) = (Raw::connect(&server), server.client());
    target.send("CLIENT ID\r\n");
    let id = target.lines(1).split_off(1);
    run(&mut tracking, &["CLIENT", "TRACKING", "ON", "REDIRECT", &id, "BCAST"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = server.client();
            while !stop.load(Ordering::Relaxed) {
                run(&mut writer, &["SET", "x", "v"]);
            }
        });
        for round in 0..300 {
            target.send("HELLO 3\r\nPING\r\n");
            while target.lines(1) != "+PONG" {}
            target.send("RESET\r\n");
            while target.lines(1) != "+RESET" {}
            target.send("PING\r\n");
            let next = target.lines(1);
            // A failure must end the writer, too.
            stop.fetch_or(next != "+PONG", Ordering::Relaxed);
            assert_eq!(next, "+PONG", "round {round}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}
