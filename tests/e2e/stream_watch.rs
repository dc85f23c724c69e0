//! Changes by consumer groups are no changes of the stream for clients that watch or track it, as
//! in the reference.

use super::Server;
use redis::{Connection, Value};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Keys in different shards of two.
const STREAM: &str = "{a}";
const OTHER: &str = "{b}";

const PATIENCE: Duration = Duration::from_secs(20);

/// How long something that must not come is waited for.
const SILENCE: Duration = Duration::from_millis(30);

const QUIET: &[&str] = &[
    "XSETID {a} 9-0",
    "XGROUP CREATE {a} h 0",
    "XGROUP SETID {a} g 0",
    "XGROUP CREATECONSUMER {a} g other",
    "XGROUP DELCONSUMER {a} g c",
    "XGROUP DESTROY {a} g",
    "XREADGROUP GROUP g c COUNT 1 STREAMS {a} >",
    "XREADGROUP GROUP g new COUNT 1 NOACK STREAMS {a} >",
    "XCLAIM {a} g other 0 1-0",
    "XAUTOCLAIM {a} g other 0 0",
    "XACK {a} g 1-0",
];

const LOUD: &[&str] = &["XADD {a} 10-0 f v", "XDEL {a} 2-0", "XTRIM {a} MAXLEN 1", "DEL {a}"];

fn run(client: &mut Connection, line: &str) -> Value {
    let words: Vec<&str> = line.split(' ').collect();
    redis::cmd(words[0]).arg(&words[1..]).query(client).unwrap_or_else(|e| panic!("{line}: {e}"))
}

/// A stream with a group, whose consumer has two of its entries.
fn begin(client: &mut Connection) {
    run(client, &format!("DEL {STREAM} {OTHER}"));
    for id in 1..=4 {
        run(client, &format!("XADD {STREAM} {id}-0 f v"));
    }
    run(client, &format!("XGROUP CREATE {STREAM} g 0"));
    run(client, &format!("XREADGROUP GROUP g c COUNT 2 STREAMS {STREAM} >"));
}

/// Runs a command by itself, or in a transaction over several workers.
fn change(client: &mut Connection, line: &str, across: bool) {
    if across {
        run(client, "MULTI");
        run(client, &format!("SET {OTHER} 1"));
    }
    run(client, line);
    if across {
        assert!(matches!(run(client, "EXEC"), Value::Array(_)));
    }
}

#[test]
fn groups_do_not_break_watches() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let (mut client, mut watcher) = (server.client(), server.client());
    for across in [false, true] {
        for (lines, goes_on) in [(QUIET, true), (LOUD, false)] {
            for line in lines {
                begin(&mut client);
                run(&mut watcher, &format!("WATCH {STREAM}"));
                change(&mut client, line, across);
                run(&mut watcher, "MULTI");
                run(&mut watcher, "PING");
                let is_run = matches!(run(&mut watcher, "EXEC"), Value::Array(_));
                assert_eq!(is_run, goes_on, "{line}, {across}");
            }
        }
        run(&mut client, &format!("DEL {STREAM}"));
        run(&mut watcher, &format!("WATCH {STREAM}"));
        change(&mut client, &format!("XGROUP CREATE {STREAM} g $ MKSTREAM"), across);
        run(&mut watcher, "MULTI");
        assert_eq!(run(&mut watcher, "EXEC"), Value::Nil, "it was not there");
    }
}

/// Returns true if a client that has read the stream is told that it has changed.
fn is_told(server: &Server, expected: bool, make_change: impl FnOnce()) -> bool {
    let mut socket = server.socket();
    let mut text = Vec::new();
    let mut ask = |command: &str, answer: &str| {
        write!(socket, "{command}\r\n").expect("sent");
        let from = text.len();
        while !String::from_utf8_lossy(&text[from..]).contains(answer) {
            let mut more = [0; 4096];
            let len = socket.read(&mut more).expect("an answer");
            assert!(len > 0, "the connection has ended");
            text.extend_from_slice(&more[..len]);
        }
        String::from_utf8_lossy(&text).contains("invalidate")
    };
    ask("HELLO 3", "modules");
    ask("CLIENT TRACKING ON", "OK");
    ask(&format!("XLEN {STREAM}"), ":4");
    make_change();
    let deadline = Instant::now() + if expected { PATIENCE } else { SILENCE };
    loop {
        if ask("PING", "PONG") {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn groups_do_not_invalidate_cached_keys() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    for across in [false, true] {
        for (lines, is_change) in [(QUIET, false), (LOUD, true)] {
            for line in lines {
                begin(&mut client);
                let told = is_told(&server, is_change, || change(&mut client, line, across));
                assert_eq!(told, is_change, "{line}, {across}");
            }
        }
    }
}

#[test]
fn a_client_that_waits_for_a_group_hears_of_its_end() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    for across in [false, true] {
        let (mut client, mut reader) = (server.client(), server.client());
        begin(&mut client);
        run(&mut client, &format!("XREADGROUP GROUP g c STREAMS {STREAM} >"));
        let waiting = std::thread::spawn(move || {
            let words = ["GROUP", "g", "c", "BLOCK", "0", "STREAMS", STREAM, ">"];
            redis::cmd("XREADGROUP").arg(&words).query::<Value>(&mut reader)
        });
        let deadline = Instant::now() + PATIENCE;
        let info = || redis::cmd("INFO").arg("clients").query::<String>(&mut server.client());
        while !info().expect("figures").contains("blocked_clients:1") {
            assert!(Instant::now() < deadline, "it does not wait");
        }
        change(&mut client, &format!("XGROUP DESTROY {STREAM} g"), across);
        assert!(waiting.join().expect("joined").is_err(), "{across}");
    }
}
