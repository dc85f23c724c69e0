//! `flagstone import --follow`: a server that runs moves in, from Flagstone to Flagstone.

use super::certificates::Files;
use super::followers::{CHANGES, info, run, until};
use super::ways::{Passing, place, way_to};
use super::{Server, free_port};
use redis::{Connection, Value, cmd};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long the command may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The command that moves a server in.
fn command(target: &Server, source: &str, options: &[&str]) -> Command {
    command_at(target.port(), source, options)
}

fn command_at(target: u16, source: &str, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flagstone"));
    command
        .args(["import", "--follow", source, "-p", &target.to_string()])
        .args(options)
        .env_remove("REDISCLI_AUTH");
    command
}

fn uri(source: &Server) -> String {
    format!("redis://127.0.0.1:{}", source.port())
}

/// Runs the command to its end, and returns its status and all that it says.
fn moved(target: &Server, source: &str, options: &[&str]) -> (Option<i32>, String) {
    said(&command(target, source, options).output().expect("the binary runs"))
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// The command while it runs.
struct Moving {
    child: Child,
    path: PathBuf,
}

impl Moving {
    fn start(target: &Server, source: &str, options: &[&str]) -> Self {
        Self::begin(target, command(target, source, options))
    }

    fn begin(target: &Server, mut command: Command) -> Self {
        let path = target.dir().join("said");
        let out = File::create(&path).expect("a file");
        let both = out.try_clone().expect("the same file");
        let child = command.stdout(out).stderr(both).stdin(Stdio::null()).spawn();
        Self { child: child.expect("the binary starts"), path }
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.path).expect("what it says")
    }

    fn until_says(&mut self, text: &str) {
        let begun = Instant::now();
        while !self.text().contains(text) {
            let ended = self.child.try_wait().expect("its status");
            assert!(ended.is_none() && begun.elapsed() < PATIENCE, "{text}: {}", self.text());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ctrl-C. Returns its status and all that it said.
    fn interrupt(self) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("the signal is sent");
        self.ended()
    }

    /// Waits for its end. Returns its status and all that it said.
    fn ended(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().expect("its status");
        (status.code(), self.text())
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn role(client: &mut Connection) -> String {
    info(client, "role")
}

fn setting(client: &mut Connection, name: &str) -> String {
    let all: Vec<String> = cmd("CONFIG").arg("GET").arg(name).query(client).expect("CONFIG GET");
    all.into_iter().nth(1).unwrap_or_default()
}

fn paused(client: &mut Connection) -> String {
    let all: String = cmd("INFO").arg("clients").query(client).expect("INFO");
    let found = all.lines().find_map(|line| line.strip_prefix("paused_actions:"));
    found.unwrap_or_default().to_owned()
}

/// A writer of a source; returns the number of acknowledged increments.
fn writer(source: &Server, password: &str) -> (Arc<AtomicBool>, thread::JoinHandle<i64>) {
    let is_over = Arc::new(AtomicBool::new(false));
    let address = format!("redis://:{password}@127.0.0.1:{}/2", source.port());
    let over = Arc::clone(&is_over);
    let thread = thread::spawn(move || {
        let client = redis::Client::open(address).expect("an address");
        let mut client = client.get_connection().expect("a connection");
        client.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let mut acknowledged = 0;
        while !over.load(Ordering::Relaxed) {
            // Behind the switch it waits, until its connection is closed.
            match cmd("INCR").arg("counter").query::<i64>(&mut client) {
                Ok(count) => acknowledged = count,
                Err(_) => break,
            }
        }
        acknowledged
    });
    (is_over, thread)
}

/// Larger values than are read at once, of all types.
fn large_values(client: &mut Connection) {
    let mut pipe = redis::pipe();
    pipe.cmd("SET").arg("large:string").arg("0123456789abcdef".repeat(100_000)).ignore();
    for n in 0..1500 {
        let text = format!("{n}:{}", "x".repeat(900));
        pipe.cmd("RPUSH").arg("large:list").arg(&text).ignore();
        pipe.cmd("SADD").arg("large:set").arg(&text).ignore();
        pipe.cmd("ZADD").arg("large:zset").arg(f64::from(n) / 7.0).arg(&text).ignore();
        pipe.cmd("HSET").arg("large:hash").arg(n).arg(&text).ignore();
        pipe.cmd("XADD").arg("large:stream").arg(format!("{}-1", n + 1)).arg("f").arg(n).ignore();
    }
    pipe.cmd("HPEXPIREAT").arg("large:hash").arg(4_000_000_000_123u64);
    pipe.arg("FIELDS").arg(1).arg(7).ignore();
    pipe.cmd("PEXPIREAT").arg("large:list").arg(4_000_000_000_456u64).ignore();
    let () = pipe.query(client).expect("stored");
}

#[test]
fn a_server_moves_in_under_writes_and_is_switched_to() {
    let source = Server::start(&["--workers", "2", "--requirepass", "secret"]);
    let address = format!("redis://:secret@127.0.0.1:{}", source.port());
    let client = redis::Client::open(address.clone()).expect("an address");
    let mut old = client.get_connection().expect("a connection");
    run(&mut old, CHANGES);
    large_values(&mut old);
    let (is_over, thread) = writer(&source, "secret");
    let target = Server::start(&["--workers", "2", "--shards", "3"]);
    let mut new = target.client();
    let (status, text) = moved(&target, &address, &["--switch"]);
    assert_eq!(status, Some(0), "{text}");
    for part in [
        "follows the source 127.0.0.1:",
        "in step",
        "before the switch: ",
        "are held",
        "keys compared: 0 different, 0 missing, 0 extra\n",
        "is a primary now",
        "min-replicas-to-write",
        " UTC",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("secret"), "{text}");
    assert_eq!((role(&mut new).as_str(), paused(&mut old).as_str()), ("master", "write"));
    assert_eq!(setting(&mut new, "masterauth"), "");
    is_over.store(true, Ordering::Relaxed);
    run(&mut old, &["CLIENT KILL TYPE normal"]);
    let acknowledged = thread.join().expect("the writer's count");
    run(&mut new, &["SELECT 2"]);
    let count: i64 = cmd("GET").arg("counter").query(&mut new).expect("the counter");
    assert!(acknowledged > 0);
    assert_eq!(count, acknowledged, "an acknowledged write is lost, or one came later");
    run(&mut new, &["INCR counter"]);
}

#[test]
fn it_follows_until_ctrl_c_and_goes_on_later() {
    let source = Server::start(&[]);
    let mut old = source.client();
    run(&mut old, CHANGES);
    let target = Server::start(&[]);
    let mut new = target.client();
    let mut moving = Moving::start(&target, &uri(&source), &[]);
    moving.until_says("Ctrl-C ends this command");
    let (status, text) = moving.interrupt();
    assert_eq!(status, Some(0), "{text}");
    for part in ["follows the source", " on.", "--switch -h 127.0.0.1 -p ", "REPLICAOF NO ONE"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!((role(&mut new), paused(&mut old)), ("slave".to_owned(), "none".to_owned()));
    run(&mut old, CHANGES);
    let (status, text) = moved(&target, &uri(&source), &["--compare"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("keys compared: 0 different, 0 missing, 0 extra"), "{text}");
    assert_eq!(role(&mut new), "slave");
    // It goes on with what it has: there is no second data set.
    let (status, text) = moved(&target, &uri(&source), &["--switch", "--quiet"]);
    assert_eq!((status, role(&mut new).as_str()), (Some(0), "master"), "{text}");
    let syncs: String = cmd("INFO").arg("stats").query(&mut old).expect("INFO");
    assert!(syncs.contains("sync_full:1\r\n"), "{syncs}");
}

#[test]
fn servers_that_differ_are_not_switched() {
    let source = Server::start(&[]);
    let mut old = source.client();
    let many: Vec<String> = (0..30).map(|n| format!("SET key:{n} value")).collect();
    run(&mut old, &many.iter().map(String::as_str).collect::<Vec<_>>());
    run(&mut old, CHANGES);
    let target = Server::start(&[]);
    let mut new = target.client();
    let mut moving = Moving::start(&target, &uri(&source), &[]);
    moving.until_says("Ctrl-C ends this command");
    drop(moving);
    // The last one takes the expiry.
    run(
        &mut new,
        &[
            "CONFIG SET replica-read-only no",
            "SET key:7 other",
            "DEL key:8",
            "SADD key:new 1",
            "PERSIST s",
            "SELECT 5",
            "SET only 1",
            "SELECT 0",
        ],
    );
    for options in [["--compare"], ["--switch"]] {
        let (status, text) = moved(&target, &uri(&source), &options);
        assert_eq!(status, Some(1), "{text}");
        for part in [
            "2 different, 1 missing, 2 extra",
            "\"key:7\" (database 0) has another value",
            "\"key:8\" (database 0) is missing at the target",
            "\"key:new\" (database 0) is at the target only",
            "\"s\" (database 0) has another expiry",
            "\"only\" (database 5) is at the target only",
            "the servers differ",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!((role(&mut new), paused(&mut old)), ("slave".to_owned(), "none".to_owned()));
    }
    run(&mut old, &["SET key:7 again"]);
}

#[test]
fn large_values_that_differ_are_found_while_writers_are_held() {
    let source = Server::start(&["--workers", "2"]);
    let mut old = source.client();
    large_values(&mut old);
    let target = Server::start(&["--workers", "2"]);
    let mut new = target.client();
    let mut moving = Moving::start(&target, &uri(&source), &[]);
    moving.until_says("Ctrl-C ends this command");
    drop(moving);
    let member = format!("700:{}", "x".repeat(900));
    run(
        &mut new,
        &[
            "CONFIG SET replica-read-only no",
            "SETRANGE large:string 800000 Z",
            "LSET large:list 1400 other",
            &format!("SREM large:set {member}"),
            "SADD large:set other",
            &format!("ZINCRBY large:zset 0.5 {member}"),
            "HSET large:hash 1499 other",
            "XGROUP CREATE large:stream group 0",
        ],
    );
    let (status, text) = moved(&target, &uri(&source), &["--switch"]);
    assert_eq!(status, Some(1), "{text}");
    for part in [
        "before the switch: 6 keys compared: 0 different, 0 missing, 0 extra, 6 written too often",
        "are held\n6 keys compared: 6 different, 0 missing, 0 extra\n",
        "\"large:stream\" (database 0) has another value",
        "stays the primary, its writers go on, and the target",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!((role(&mut new), paused(&mut old)), ("slave".to_owned(), "none".to_owned()));
}

#[test]
fn a_source_that_dies_meanwhile_is_waited_for() {
    let mut source = Server::start(&["--enable-debug-command", "yes"]);
    run(&mut source.client(), &["DEBUG POPULATE 3000 key 1000"]);
    let target = Server::start(&[]);
    let mut moving = Moving::start(&target, &uri(&source), &[]);
    moving.until_says("follows the source");
    source.kill();
    moving.until_says("the link is down: ");
    source.restart();
    let mut new = target.client();
    until("the link is up", || info(&mut new, "master_link_status") == "up");
    moving.until_says("Ctrl-C ends this command");
    let (status, text) = moving.interrupt();
    assert_eq!(status, Some(0), "{text}");
    let (status, text) = moved(&target, &uri(&source), &["--switch"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("3000 keys compared: 0 different"), "{text}");
}

/// A Redis server that becomes a replica has the name of the stream that its own replicas see.
#[test]
fn a_source_that_has_become_a_replica_or_restarted_holds_nobody() {
    for (shown, other, reason) in [
        ("role:master", "role:slave ", "is itself a replica now"),
        ("run_id:", "run_ID:", "has restarted"),
    ] {
        let (source, target) = (Server::start(&[]), Server::start(&[]));
        let (mut old, mut new) = (source.client(), target.client());
        run(&mut old, &["SET a 1"]);
        let port = way_to(source.port(), move || {
            let mut is_held = false;
            Box::new(move |passing| {
                match passing {
                    Passing::Request(bytes) => is_held |= place(b"PAUSE", bytes).is_some(),
                    Passing::Reply(bytes) if is_held => {
                        if let Some(at) = place(shown.as_bytes(), bytes) {
                            bytes[at..at + other.len()].copy_from_slice(other.as_bytes());
                        }
                    }
                    Passing::Reply(_) => {}
                }
                true
            })
        });
        let address = format!("redis://127.0.0.1:{port}");
        let (status, text) = moved(&target, &address, &["--switch"]);
        assert_eq!(status, Some(1), "{text}");
        for part in [reason, "are held", "stays the primary, its writers go on, and the target"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!((role(&mut new), paused(&mut old)), ("slave".to_owned(), "none".to_owned()));
    }
}

#[test]
fn a_target_whose_reply_to_its_promotion_is_lost_is_waited_for() {
    let (source, target) = (Server::start(&[]), Server::start(&[]));
    let (mut old, mut new) = (source.client(), target.client());
    run(&mut old, &["SET a 1"]);
    let is_lost = Arc::new(AtomicBool::new(false));
    let told = is_lost.clone();
    let port = way_to(target.port(), move || {
        let told = told.clone();
        Box::new(move |passing| match passing {
            Passing::Request(bytes) if place(b"$3\r\nONE\r\n", bytes).is_some() => {
                told.store(true, Ordering::SeqCst);
                false
            }
            _ => true,
        })
    });
    let mut moving = Moving::begin(&target, command_at(port, &uri(&source), &["--switch"]));
    until("it is told to become a primary", || is_lost.load(Ordering::SeqCst));
    moving.until_says("is at work on it");
    assert_eq!((role(&mut new), paused(&mut old)), ("slave".to_owned(), "write".to_owned()));
    run(&mut new, &["REPLICAOF NO ONE"]);
    let (status, text) = moving.ended();
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("is a primary now"), "{text}");
    assert_eq!((role(&mut new), paused(&mut old)), ("master".to_owned(), "write".to_owned()));
}

#[test]
fn a_switch_that_is_interrupted_before_its_end_is_known_keeps_writers_held() {
    let (source, target) = (Server::start(&[]), Server::start(&[]));
    let (mut old, mut new) = (source.client(), target.client());
    run(&mut old, &["SET a 1"]);
    let port = way_to(target.port(), || {
        Box::new(|passing| match passing {
            Passing::Request(bytes) => place(b"$3\r\nONE\r\n", bytes).is_none(),
            Passing::Reply(_) => true,
        })
    });
    let mut moving = Moving::begin(&target, command_at(port, &uri(&source), &["--switch"]));
    moving.until_says("is at work on it");
    let (status, text) = moving.interrupt();
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.contains("and is none yet. The writers of") && text.contains("its ROLE"),
        "{text}"
    );
    assert_eq!((role(&mut new), paused(&mut old)), ("slave".to_owned(), "write".to_owned()));
}

#[test]
fn refusals_name_the_server_and_the_remedy() {
    let source = Server::start(&["--requirepass", "secret", "--databases", "20"]);
    let target = Server::start(&[]);
    let port = source.port();
    let right = format!("redis://:secret@127.0.0.1:{port}");
    let client = redis::Client::open(right.clone()).expect("an address");
    let mut old = client.get_connection().expect("a connection");
    let mut new = target.client();
    let refused = |source: &str, options: &[&str], parts: &[&str]| {
        let (status, text) = moved(&target, source, options);
        assert_eq!(status, Some(1), "{text}");
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("secret") && !text.contains("wrong@"), "{text}");
    };
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    refused(&nobody, &[], &["the source 127.0.0.1:", "no connection"]);
    refused(&format!("redis://:wrong@127.0.0.1:{port}"), &[], &["WRONGPASS", "stand in the URI"]);
    refused(&format!("redis://127.0.0.1:{port}"), &[], &["NOAUTH", "stand in the URI"]);
    refused(&uri(&target), &[], &["are the same server", "--port"]);
    refused(&format!("{right}/3"), &[], &["all databases"]);
    run(&mut old, &["SELECT 18", "SET a 1"]);
    refused(&right, &[], &["database 18", "16 databases", "`databases 19`"]);
    run(&mut old, &["DEL a"]);
    run(&mut new, &["SET mine 1"]);
    refused(&right, &["--switch"], &["has 1 keys", "--replace"]);
    run(&mut new, &["DEL mine"]);
    let library = "#!lua name=own\nredis.register_function('own', function() return 1 end)";
    cmd("FUNCTION").arg(&["LOAD", library]).exec(&mut new).expect("loaded");
    refused(&right, &["--switch"], &["has 1 libraries of functions", "--replace"]);
    run(&mut new, &["FUNCTION FLUSH", "SET mine 1"]);
    run(&mut new, &["ACL SETUSER limited on >pw ~* +@all -replicaof"]);
    refused(
        &right,
        &["--replace", "--user", "limited", "--pass", "pw"],
        &["NOPERM", "REPLICAOF", "the user needs the right"],
    );
    assert_eq!((role(&mut new).as_str(), setting(&mut new, "masterauth").as_str()), ("master", ""));
    run(&mut new, &[&format!("REPLICAOF 127.0.0.1 {}", free_port())]);
    refused(&right, &[], &["follows 127.0.0.1:", "already"]);
    refused(&uri(&target), &["--compare"], &["are the same server"]);
    let (status, text) = moved(&target, &right, &["--switch", "--replace", "--quiet"]);
    assert_eq!((status, role(&mut new).as_str()), (Some(0), "master"), "{text}");
    let gone: Value = cmd("GET").arg("mine").query(&mut new).expect("GET");
    assert_eq!(gone, Value::Nil);
}

#[test]
fn a_source_with_tls_moves_in() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = Files::in_dir(dir.path());
    let (port, ca) = (free_port().to_string(), files.path("ca.crt"));
    let (certificate, key) = (files.path("server.crt"), files.path("server.key"));
    let mut options = vec!["--tls-port", &port, "--tls-cert-file", &certificate];
    options.extend(["--tls-key-file", &key, "--tls-ca-cert-file", &ca, "--tls-auth-clients", "no"]);
    let source = Server::start(&options);
    run(&mut source.client(), CHANGES);
    let target = Server::start(&["--tls-ca-cert-file", &ca]);
    let mut new = target.client();
    let address = format!("rediss://127.0.0.1:{port}");
    // No authority of the system vouches for it.
    let (status, text) = moved(&target, &address, &[]);
    assert!(status == Some(1) && text.contains("no TLS with 127.0.0.1:"), "{text}");
    let options = ["--cacert", &ca, "--sni", "localhost", "--switch"];
    let (status, text) = moved(&target, &address, &options);
    assert_eq!((status, role(&mut new).as_str()), (Some(0), "master"), "{text}");
    assert_eq!(setting(&mut new, "tls-replication"), "no");
}

#[test]
fn arguments_that_do_not_fit_are_status_2() {
    for words in [
        &["import"][..],
        &["import", "file", "--follow", "redis://h"],
        &["import", "file", "--switch"],
        &["import", "--follow", "redis://h", "--switch", "--compare"],
        &["import", "--follow", "redis://h", "--skip"],
        &["import", "--follow", "redis://h", "--hold", "9"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_flagstone")).args(words).output();
        let (status, text) = said(&output.expect("the binary runs"));
        assert_eq!(status, Some(2), "{words:?}: {text}");
    }
}

#[test]
fn a_cluster_and_a_replica_are_refused() {
    let source = Server::start(&[]);
    let cluster = Server::start(&["--cluster-enabled", "yes"]);
    let (status, text) = moved(&cluster, &uri(&source), &[]);
    assert!(status == Some(1) && text.contains("in cluster mode"), "{text}");
    let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {}", source.port())]);
    let mut client = replica.client();
    until("it is up", || info(&mut client, "master_link_status") == "up");
    let target = Server::start(&[]);
    let (status, text) = moved(&target, &uri(&replica), &["--switch"]);
    let primary = format!("move from 127.0.0.1:{}", source.port());
    assert!(status == Some(1) && text.contains(&primary), "{text}");
}
