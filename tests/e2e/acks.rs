//! Replies that wait for replicas (`repl-ack`).

use super::Server;
use super::failover::replicaof;
use super::followers::{Reader, caught_up, follow, info, run, until};
use redis::{Commands, Connection, RedisError, Value, cmd};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A time in which everything that need not wait is answered.
const SHORT: Duration = Duration::from_millis(700);

pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What a replica tells: that it has applied the stream, that it has it on disk, and that it does not
/// serve as a primary.
const APPLIED: u8 = 1;
const STORED: u8 = 2;
const LEASE: u8 = 4;

/// A replica that takes the stream, and tells of it what a test wants.
struct Fake {
    tells: Arc<AtomicU8>,
}

impl Fake {
    fn follow(server: &Server, tells: u8) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream.write_all(b"PSYNC ? -1\r\n").expect("to write");
        let mut input = BufReader::new(stream.try_clone().expect("a clone"));
        let reply = line(&mut input).expect("a reply");
        let offset = reply.split(' ').nth(2).and_then(|word| word.parse().ok()).expect("an offset");
        let length = line(&mut input).expect("the data set")[1..].parse().expect("a length");
        input.read_exact(&mut vec![0; length]).expect("the data set");
        let this = Self { tells: Arc::new(AtomicU8::new(tells)) };
        let tells = this.tells.clone();
        std::thread::spawn(move || serve(stream, input, offset, &tells));
        this
    }

    fn tell(&self, tells: u8) {
        self.tells.store(tells, Ordering::SeqCst);
    }
}

/// Returns the next line that is not empty; `None` at the end.
fn line(input: &mut impl BufRead) -> Option<String> {
    loop {
        let mut line = String::new();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if !line.trim().is_empty() {
            return Some(line.trim().to_owned());
        }
    }
}

/// Reads the stream, and answers each of its commands.
fn serve(
    mut stream: TcpStream,
    mut input: impl BufRead,
    mut offset: u64,
    tells: &AtomicU8,
) -> Option<()> {
    let (mut applied, mut stored, mut question) = (offset, 0, String::new());
    loop {
        let head = line(&mut input)?;
        let count: usize = head[1..].parse().ok()?;
        offset += head.len() as u64 + 2;
        let mut words = Vec::new();
        for _ in 0..count {
            let head = line(&mut input)?;
            let length: usize = head[1..].parse().ok()?;
            let mut word = vec![0; length + 2];
            input.read_exact(&mut word).ok()?;
            offset += (head.len() + 2 + word.len()) as u64;
            words.push(String::from_utf8_lossy(&word[..length]).into_owned());
        }
        if words[0] == "REPLCONF" && words[2].starts_with("sync-") {
            question.clone_from(&words[2]);
        }
        let tells = tells.load(Ordering::SeqCst);
        applied = if tells & APPLIED == 0 { applied } else { offset };
        stored = if tells & STORED == 0 { stored } else { offset };
        let mut ack = format!("REPLCONF ACK {applied} FACK {stored}");
        if tells & LEASE != 0 && !question.is_empty() {
            ack = format!("{ack} LEASE {question}");
        }
        stream.write_all(format!("{ack}\r\n").as_bytes()).ok()?;
    }
}

/// Runs a command in a thread.
pub(super) fn spawn(server: &Server, words: &[&str]) -> Receiver<Result<Value, RedisError>> {
    let mut client = server.client();
    let mut request = cmd(words[0]);
    request.arg(&words[1..]);
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let _ = sender.send(request.query(&mut client));
    });
    receiver
}

pub(super) fn text(result: Result<Value, RedisError>) -> String {
    match result {
        Ok(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Ok(value) => format!("{value:?}"),
        Err(error) => {
            format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default())
        }
    }
}

pub(super) fn ask(client: &mut Connection, words: &[&str]) -> String {
    let mut request = cmd(words[0]);
    request.arg(&words[1..]);
    text(request.query(client))
}

/// Returns true if there are so many keys, those that wait for replicas among them.
pub(super) fn has_keys(client: &mut Connection, keys: usize) -> bool {
    let all: String = cmd("INFO").arg("keyspace").query(client).expect("INFO");
    all.contains(&format!("db0:keys={keys},"))
}

fn owner(client: &mut Connection) -> bool {
    info(client, "repl_ack_owner") == "1"
}

/// Gives replicas time on a slow machine.
const PATIENT: &[&str] = &["--min-replicas-max-lag", "60"];

const SYNC: &[&str] = &["--repl-ack", "sync", "--workers", "2", "--shards", "4"];

#[test]
fn a_reply_waits_until_a_replica_has_what_it_shows() {
    for (level, enough) in [("async", APPLIED), ("sync", STORED)] {
        for mode in ["always", "everysec"] {
            let args = ["--repl-ack", level, "--appendfsync", mode, "--serve-stale-data", "yes"];
            let shape = ["--workers", "2", "--shards", "4"];
            let server = Server::start(&[&args[..], &shape, PATIENT].concat());
            let mut client = server.client();
            let fake = Fake::follow(&server, APPLIED | STORED);
            until("writes are accepted", || client.set::<_, _, ()>("before", "1").is_ok());
            fake.tell((APPLIED | STORED) & !enough);
            let keys: Vec<String> = (0..8).map(|n| format!("k{n}")).collect();
            let mut waiting: Vec<_> =
                keys.iter().map(|key| spawn(&server, &["SET", key, "v"])).collect();
            waiting.push(spawn(&server, &["MSET", "m1", "v", "m2", "v", "m3", "v"]));
            waiting.push(spawn(&server, &["EVAL", "return redis.call('incr', KEYS[1])", "1", "n"]));
            until("all is written", || has_keys(&mut client, 13));
            // Reads that show them wait, too, and others do not.
            waiting.push(spawn(&server, &["GET", "k1"]));
            waiting.push(spawn(&server, &["MGET", "k2", "k3", "k4", "before"]));
            waiting.push(spawn(&server, &["DBSIZE"]));
            assert_eq!(ask(&mut client, &["GET", "before"]), "1");
            assert_eq!(ask(&mut client, &["GET", "none"]), "nil");
            // Who looks after the server does not wait.
            assert!(ask(&mut client, &["INFO"]).contains("db0:keys="));
            run(&mut client, &["PUBLISH c x", "MULTI", "CONFIG GET port", "ROLE", "EXEC"]);
            std::thread::sleep(SHORT);
            for reply in &waiting {
                assert!(reply.try_recv().is_err(), "{level} {mode}: a reply has not waited");
            }
            fake.tell(APPLIED | STORED);
            let replies: Vec<String> = waiting
                .iter()
                .map(|reply| text(reply.recv_timeout(PATIENCE).expect("it")))
                .collect();
            assert_eq!(replies[..10], [&["ok"; 9][..], &["int(1)"]].concat());
            assert_eq!(replies[10], "v");
            assert_eq!(replies[12], "int(13)");
        }
    }
}

/// Keys that a database loses, or gets from another one, are shown once that is confirmed.
#[test]
fn nothing_is_shown_of_databases_whose_exchange_is_not_confirmed() {
    let server = Server::start(&[SYNC, PATIENT, &["--serve-stale-data", "yes"]].concat());
    let mut client = server.client();
    let fake = Fake::follow(&server, APPLIED | STORED);
    until("writes are accepted", || ask(&mut client, &["SET", "a", "v"]) == "ok");
    run(&mut client, &["MSET b v c v d v"]);
    for exchange in [&["SWAPDB", "0", "1"][..], &["SWAPDB", "0", "1"], &["FLUSHDB"]] {
        let before = ask(&mut client, &["GET", "a"]);
        fake.tell(APPLIED);
        let changed = spawn(&server, exchange);
        let is_changed = |client: &mut Connection| {
            let all: String = cmd("INFO").arg("keyspace").query(client).expect("INFO");
            all.contains("db0:") != (before == "v")
        };
        until("it has happened", || is_changed(&mut client));
        let reads = ["GET a", "GET none", "EXISTS b c", "MGET a b c d none", "STRLEN d", "DBSIZE"];
        let reads = reads.iter().map(|read| read.split(' ').collect::<Vec<_>>());
        let mut waiting: Vec<_> = reads.map(|read| spawn(&server, &read)).collect();
        let script = "return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2])}";
        waiting.push(spawn(&server, &["EVAL", script, "2", "a", "b"]));
        std::thread::sleep(SHORT);
        assert!(changed.try_recv().is_err());
        for (n, reply) in waiting.iter().enumerate() {
            assert!(reply.try_recv().is_err(), "{exchange:?}: read {n} has not waited");
        }
        fake.tell(APPLIED | STORED);
        for reply in waiting.into_iter().chain([changed]) {
            let reply = text(reply.recv_timeout(PATIENCE).expect("a reply"));
            assert!(!reply.contains("NOREPLICAS"), "{reply}");
        }
        assert_ne!(ask(&mut client, &["GET", "a"]), before);
    }
}

/// Only replies wait for replicas: no key is locked so long, whatever workers a command needs.
#[test]
fn commands_run_on_what_is_not_confirmed_and_their_replies_wait() {
    let server = Server::start(&[SYNC, PATIENT, &["--serve-stale-data", "yes"]].concat());
    let mut client = server.client();
    let fake = Fake::follow(&server, APPLIED | STORED);
    until("writes are accepted", || ask(&mut client, &["SET", "before", "v"]) == "ok");
    fake.tell(APPLIED);
    // Each of their connections belongs to one worker or the other.
    let on_each = |words: &[&str]| -> Vec<_> {
        let of = |n: u32| words.iter().map(move |word| word.replace('#', &n.to_string()));
        let all = (0..8).map(|n| of(n).collect::<Vec<_>>());
        all.map(|words| spawn(&server, &words.iter().map(|word| &**word).collect::<Vec<_>>()))
            .collect()
    };
    let mut waiting = on_each(&["SET", "a#", "v"]);
    until("all is written", || has_keys(&mut client, 9));
    waiting.extend(on_each(&["COPY", "a#", "b#"]));
    until("it is copied", || has_keys(&mut client, 17));
    let copies = "for i = 2, 3 do redis.call('copy', KEYS[1], KEYS[i]) end return redis.call('get', KEYS[2])";
    waiting.extend(on_each(&["EVAL", copies, "3", "b#", "c#", "d#"]));
    until("scripts have copied it", || has_keys(&mut client, 33));
    // Commands that only read wait, too; so do errors that tell of a value.
    let tells = "error(redis.call('get',KEYS[1]))";
    waiting.extend(on_each(&["EVAL", tells, "1", "c#"]));
    waiting.extend(on_each(&["MGET", "a#", "before"]));
    waiting.extend(on_each(&["INCR", "d#"]));
    std::thread::sleep(SHORT);
    assert!(waiting.iter().all(|reply| reply.try_recv().is_err()), "a reply has not waited");
    // Nothing is in the middle.
    assert_eq!(ask(&mut client, &["CLIENT", "PAUSE", "1", "WRITE"]), "ok");
    fake.tell(APPLIED | STORED);
    let expected = ["ok", "int(1)", "v", "user_script", "v", "not an integer"];
    for (n, reply) in waiting.into_iter().enumerate() {
        let reply = text(reply.recv_timeout(PATIENCE).expect("a reply"));
        assert!(reply.contains(expected[n / 8]), "{n}: {reply}");
    }
}

#[test]
fn without_a_replica_nothing_is_written_and_nothing_is_shown() {
    let server = Server::start(SYNC);
    let mut client = server.client();
    for words in [&["SET", "a", "1"][..], &["EVAL", "return redis.call('set', 'a', 1)", "0"]] {
        let reply = ask(&mut client, words);
        let refusals = ["NOREPLICAS", "MASTERDOWN No replica confirms"];
        assert!(refusals.iter().any(|text| reply.starts_with(text)), "{reply}");
    }
    let reply = ask(&mut client, &["GET", "a"]);
    assert!(reply.contains("No replica confirms that this server is still the primary"), "{reply}");
    assert_eq!(info(&mut client, "repl_ack"), "sync");
    // Who looks after the server does not need data.
    run(&mut client, &["INFO", "PUBLISH c x", "MULTI", "CONFIG GET port", "ROLE", "EXEC"]);
    run(&mut client, &["CONFIG SET serve-stale-data yes"]);
    assert_eq!(ask(&mut client, &["GET", "a"]), "nil");
    run(&mut client, &["CONFIG SET serve-stale-data no", "CONFIG SET repl-ack none"]);
    run(&mut client, &["SET a 1", "SET short 1 PX 300"]);
    assert_eq!(ask(&mut client, &["GET", "a"]), "1");
    run(&mut client, &["CONFIG SET repl-ack sync", "CONFIG SET serve-stale-data yes"]);
    // An expired key is absent at once: its deletion is not written.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ask(&mut client, &["GET", "short"]), "nil");
    run(&mut client, &["CONFIG SET serve-stale-data no"]);
    // A replica that has all of that makes it a primary again.
    let fake = Fake::follow(&server, APPLIED | LEASE);
    until("it is online", || info(&mut client, "slave0").contains("online"));
    std::thread::sleep(SHORT);
    assert!(!owner(&mut client), "the replica may lack what is shown");
    fake.tell(APPLIED | STORED | LEASE);
    until("it owns the data", || owner(&mut client));
    until("it shows the data", || ask(&mut client, &["GET", "a"]) == "1");
    until("writes are accepted", || ask(&mut client, &["SET", "a", "2"]) == "ok");
    // Without its promises there is no lease.
    fake.tell(APPLIED | STORED);
    until("the lease has run out", || !owner(&mut client));
    let reply = ask(&mut client, &["GET", "a"]);
    assert!(reply.starts_with("MASTERDOWN"), "{reply}");
    fake.tell(APPLIED | STORED | LEASE);
    until("it owns the data again", || ask(&mut client, &["GET", "a"]) == "2");
}

#[test]
fn writes_that_replicas_do_not_confirm_are_answered_in_time() {
    let args = ["--min-replicas-max-lag", "1", "--serve-stale-data", "yes"];
    let server = Server::start(&[SYNC, &args].concat());
    let mut client = server.client();
    let fake = Fake::follow(&server, APPLIED | STORED | LEASE);
    until("writes are accepted", || ask(&mut client, &["SET", "a", "1"]) == "ok");
    run(&mut client, &["CONFIG SET notify-keyspace-events KEA"]);
    let mut listener = server.client();
    let mut listening = listener.as_pubsub();
    listening.set_read_timeout(Some(PATIENCE)).expect("a limit");
    listening.subscribe("__keyspace@0__:a").expect("SUBSCRIBE");
    fake.tell(APPLIED | LEASE);
    // One that finds the replica late is refused at once, and changes nothing.
    until("a write waits", || {
        let begun = Instant::now();
        let reply = ask(&mut client, &["SET", "a", "2"]);
        assert!(reply.contains("NOREPLICAS"), "{reply}");
        let has_waited = reply.contains("not known");
        assert!(!has_waited || begun.elapsed() >= Duration::from_secs(1));
        has_waited
    });
    let reply = ask(&mut client, &["SET", "a", "3"]);
    assert!(reply.contains("Not enough good replicas"), "{reply}");
    let reply = ask(&mut client, &["GET", "a"]);
    assert!(reply.contains("not known"), "it may be taken back: {reply}");
    // On every worker, and while the replica confirms nothing at all.
    for _ in 0..2 {
        let several = [
            &["MGET", "a", "b", "c", "d"][..],
            &["EVAL", "return redis.call('DBSIZE')", "0"],
            &["EXISTS", "a", "b", "c", "d"],
            &["DBSIZE"],
            &["KEYS", "*"],
            &["LCS", "a", "d"],
        ];
        for read in several {
            let replies: Vec<_> = (0..4).map(|_| spawn(&server, read)).collect();
            for reply in replies {
                let reply = text(reply.recv_timeout(PATIENCE).expect("a reply"));
                assert!(reply.contains("not known"), "{read:?}: {reply}");
            }
        }
        fake.tell(LEASE);
    }
    fake.tell(APPLIED | STORED | LEASE);
    until("writes are accepted again", || ask(&mut client, &["SET", "b", "1"]) == "ok");
    assert_eq!(ask(&mut client, &["GET", "a"]), "2");
    // The write has happened, late.
    let event = listening.get_message().expect("an event");
    assert_eq!(event.get_payload::<String>().expect("a text"), "set");
    let log = server.log();
    for line in ["writes are refused: replicas have not confirmed", "writes are accepted again"] {
        assert!(log.contains(line), "{log}");
    }
}

#[test]
fn a_changed_rule_gives_no_reply_that_waits() {
    let server = Server::start(&[SYNC, PATIENT, &["--serve-stale-data", "yes"]].concat());
    let mut client = server.client();
    let fake = Fake::follow(&server, APPLIED | STORED);
    until("writes are accepted", || ask(&mut client, &["SET", "a", "1"]) == "ok");
    fake.tell(APPLIED);
    let waiting = spawn(&server, &["SET", "b", "2"]);
    until("it is written", || has_keys(&mut client, 2));
    for change in ["min-replicas-to-write 2", "min-replicas-to-write 1", "appendfsync everysec"] {
        run(&mut client, &[&format!("CONFIG SET {change}")]);
        assert!(waiting.recv_timeout(SHORT).is_err(), "{change}: no replica has it on disk");
    }
    // A replica has applied it.
    run(&mut client, &["CONFIG SET repl-ack async"]);
    assert_eq!(text(waiting.recv_timeout(PATIENCE).expect("a reply")), "ok");
}

#[test]
fn replies_that_wait_while_the_server_becomes_a_replica_are_not_known() {
    let server = Server::start(&[SYNC, PATIENT, &["--serve-stale-data", "yes"]].concat());
    let other = Server::start(&[]);
    let mut client = server.client();
    let fake = Fake::follow(&server, APPLIED | STORED);
    until("writes are accepted", || ask(&mut client, &["SET", "a", "1"]) == "ok");
    fake.tell(APPLIED);
    let mut waiting = vec![spawn(&server, &["MSET", "m1", "v", "m2", "v", "m3", "v"])];
    waiting.extend((0..8).map(|n| spawn(&server, &["SET", &format!("k{n}"), "v"])));
    until("all is written", || has_keys(&mut client, 12));
    replicaof(&mut client, other.port());
    for reply in waiting {
        let reply = text(reply.recv_timeout(PATIENCE).expect("a reply"));
        assert!(reply.contains("not known"), "{reply}");
    }
    until("it follows", || info(&mut client, "master_link_status") == "up");
    assert_eq!(ask(&mut client, &["GET", "k1"]), "nil");
    run(&mut other.client(), &["SET late 1"]);
    until("it has what is new", || ask(&mut client, &["GET", "late"]) == "1");
}

#[test]
fn a_primary_that_slept_shows_nothing_that_its_successor_has_changed() {
    let old = Server::start(SYNC);
    let new = follow(&old, &["--repl-ack", "none", "--workers", "2"]);
    let (mut client, mut other) = (old.client(), new.client());
    until("writes are accepted", || ask(&mut client, &["SET", "a", "1"]) == "ok");
    until("it owns the data", || ask(&mut client, &["GET", "a"]) == "1");
    let mut waiting = old.client();
    old.signal(Signal::STOP);
    // It waits until the promise is over that it gave last: what follows finds no lease.
    run(&mut other, &["REPLICAOF NO ONE"]);
    assert_eq!(ask(&mut other, &["SET", "a", "2"]), "ok");
    old.signal(Signal::CONT);
    let reply = ask(&mut waiting, &["GET", "a"]);
    assert!(reply.starts_with("MASTERDOWN"), "{reply}");
    let reply = ask(&mut client, &["SET", "a", "3"]);
    assert!(reply.contains("NOREPLICAS"), "{reply}");
    replicaof(&mut client, new.port());
    until("it follows", || info(&mut client, "master_link_status") == "up");
    until("it has the new value", || ask(&mut client, &["GET", "a"]) == "2");
}

#[test]
fn a_replica_vouches_for_one_primary_at_a_time() {
    let (old, other) = (Server::start(SYNC), Server::start(SYNC));
    let replica = follow(&old, SYNC);
    let (mut client, mut third) = (old.client(), replica.client());
    until("it owns the data", || owner(&mut client));
    old.signal(Signal::STOP);
    replicaof(&mut third, other.port());
    let mut next = other.client();
    until("the other one owns the data", || owner(&mut next));
    old.signal(Signal::CONT);
    assert!(!owner(&mut client), "the first may show data still");
}

#[test]
fn the_last_choice_of_a_role_counts_while_a_promotion_waits() {
    let (old, other) = (Server::start(SYNC), Server::start(&[]));
    run(&mut other.client(), &["SET here 1"]);
    let replica = follow(&old, SYNC);
    let (mut client, mut third) = (old.client(), replica.client());
    until("it owns the data", || owner(&mut client));
    let promoted = spawn(&replica, &["REPLICAOF", "NO", "ONE"]);
    until("it has begun", || {
        let list: String = cmd("CLIENT").arg("LIST").query(&mut third).expect("a list");
        list.contains(" cmd=replicaof ")
    });
    replicaof(&mut third, other.port());
    assert_eq!(text(promoted.recv_timeout(PATIENCE).expect("a reply")), "ok");
    until("it follows the other one", || info(&mut third, "master_link_status") == "up");
    until("it has its data", || ask(&mut third, &["GET", "here"]) == "1");
}

/// A change of the role that has begun comes to its end.
#[test]
fn a_promotion_outlives_the_client_that_has_ordered_it() {
    let old = Server::start(SYNC);
    let replica = follow(&old, SYNC);
    let (mut client, mut other) = (old.client(), replica.client());
    until("it owns the data", || owner(&mut client));
    let mut ordering = Reader::connect(&replica);
    let id = ordering.ask("CLIENT ID");
    // It waits for the end of a promise.
    ordering.say("REPLICAOF NO ONE");
    let is_primary = |other: &mut Connection| info(other, "role") == "master";
    until("the link has ended", || {
        info(&mut other, "master_link_status") == "down" || is_primary(&mut other)
    });
    run(&mut other, &[&format!("CLIENT KILL ID {}", &id[1..])]);
    until("it is a primary", || is_primary(&mut other));
    until("it is so after a start, too", || {
        let configured: Vec<String> =
            cmd("CONFIG").arg(&["GET", "replicaof"]).query(&mut other).expect("it");
        configured[1].is_empty()
    });
}

#[test]
fn what_was_confirmed_outlives_the_primary() {
    for level in ["async", "sync"] {
        let common = ["--repl-ack", level, "--workers", "2", "--appendfsync", "everysec"];
        let common = [&common[..], PATIENT].concat();
        let mut old = Server::start(&common);
        let mut new = follow(&old, &common);
        let (mut client, mut other) = (old.client(), new.client());
        until("writes are accepted", || ask(&mut client, &["SET", "a", "0"]) == "ok");
        for n in 1..=200 {
            assert_eq!(ask(&mut client, &["INCR", "a"]), format!("int({n})"));
            assert_eq!(ask(&mut client, &["RPUSH", "l", "x"]), format!("int({n})"));
        }
        old.kill();
        if level == "sync" {
            // It has them on disk.
            new.kill();
            new.restart();
            other = new.client();
        }
        run(&mut other, &["REPLICAOF NO ONE", "CONFIG SET serve-stale-data yes"]);
        assert_eq!(ask(&mut other, &["GET", "a"]), "200");
        assert_eq!(ask(&mut other, &["LLEN", "l"]), "int(200)");
        // The former primary comes back.
        old.restart();
        let mut client = old.client();
        let reply = ask(&mut client, &["GET", "a"]);
        assert!(reply.starts_with("MASTERDOWN"), "{reply}");
        replicaof(&mut client, new.port());
        until("writes are accepted", || ask(&mut other, &["INCR", "a"]) == "int(201)");
        caught_up(&mut other, &mut client);
        assert_eq!(ask(&mut client, &["GET", "a"]), "201");
    }
}

#[test]
fn a_failover_needs_no_lease_to_run_out() {
    let old = Server::start(&[SYNC, &["--appendfsync", "everysec"]].concat());
    let new = follow(&old, SYNC);
    let (mut client, mut other) = (old.client(), new.client());
    until("writes are accepted", || ask(&mut client, &["SET", "a", "1"]) == "ok");
    let writes: Vec<_> = (0..8).map(|n| spawn(&old, &["SET", &format!("k{n}"), "v"])).collect();
    run(&mut client, &["FAILOVER"]);
    until("the roles are exchanged", || {
        info(&mut other, "role") == "master" && info(&mut client, "master_link_status") == "up"
    });
    until("writes are accepted", || ask(&mut other, &["SET", "b", "1"]) == "ok");
    for (n, write) in writes.into_iter().enumerate() {
        let reply = text(write.recv_timeout(PATIENCE).expect("a reply"));
        let is_there = ask(&mut other, &["GET", &format!("k{n}")]) == "v";
        assert!(reply != "ok" || is_there, "k{n}: {reply}");
    }
    assert_eq!(ask(&mut other, &["GET", "a"]), "1");
}
