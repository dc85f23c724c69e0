//! Writers that are faster than the engine are slowed, not refused.

use super::Server;
use std::io::{Read, Write};

/// Bytes of a value, values of a pipeline, pipelines of a client, and clients: together many times
/// the room for pending rows.
const VALUE: usize = 8 << 10;
const PIPELINE: usize = 32;
const PIPELINES: usize = 60;
const CLIENTS: usize = 8;

fn number(info: &str, name: &str) -> u64 {
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name} is in {info}")).parse().expect("a number")
}

#[test]
fn writers_that_are_faster_than_the_engine_are_slowed_and_not_refused() {
    let server = Server::start(&["--workers", "2", "--shards", "2", "--memory-budget", "64mb"]);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let mut socket = server.socket();
            scope.spawn(move || {
                let value = "v".repeat(VALUE);
                for pipeline in 0..PIPELINES {
                    let mut bytes = String::new();
                    for n in 0..PIPELINE {
                        let key = format!("{client:04}{pipeline:04}{n:04}");
                        let head = format!("*3\r\n$3\r\nSET\r\n$12\r\n{key}\r\n${VALUE}\r\n");
                        bytes.push_str(&head);
                        bytes.push_str(&value);
                        bytes.push_str("\r\n");
                    }
                    socket.write_all(bytes.as_bytes()).expect("sent");
                    let mut replies = vec![0; 5 * PIPELINE];
                    socket.read_exact(&mut replies).expect("replies");
                    let replies = String::from_utf8_lossy(&replies);
                    assert_eq!(replies, "+OK\r\n".repeat(PIPELINE));
                }
            });
        }
    });
    let mut client = server.client();
    let info: String = redis::cmd("INFO").arg("flagstone").query(&mut client).expect("INFO");
    assert!(number(&info, "writers_paused_us") > 0, "{info}");
    let keys: usize = redis::cmd("DBSIZE").query(&mut client).expect("DBSIZE");
    assert_eq!(keys, CLIENTS * PIPELINES * PIPELINE);
}

/// Fields of a hash whose copy takes far more than the room for pending rows.
const FIELDS: usize = 200_000;

/// Replies that a reader has to get while one write waits.
const SEEN: usize = 5;

#[test]
fn readers_are_answered_while_writers_wait_for_room() {
    // One worker: a write that need not wait would be answered before what is asked after it.
    let server = Server::start(&["--workers", "1", "--shards", "1", "--memory-budget", "64mb"]);
    let mut reader = server.client();
    let is_full = |reader: &mut redis::Connection| {
        let info: String = redis::cmd("INFO").arg("flagstone").query(reader).expect("INFO");
        number(&info, "pending_bytes") > number(&info, "pending_limit_bytes")
    };
    let mut copier = server.client();
    for first in (0..FIELDS).step_by(1000) {
        let mut command = redis::cmd("HSET");
        command.arg("hash");
        for n in first..first + 1000 {
            command.arg(n).arg("v".repeat(50));
        }
        let () = command.query(&mut copier).expect("stored");
    }
    for round in 0..10 {
        let () = redis::cmd("COPY")
            .arg("hash")
            .arg(format!("copy:{round}"))
            .query(&mut copier)
            .expect("copied");
        let mut writer = server.socket();
        writer.set_nonblocking(true).expect("a socket that does not block");
        let (mut seen, mut answer, mut has_sent) = (0, [0; 5], false);
        while is_full(&mut reader) {
            if !has_sent {
                has_sent = true;
                writer.write_all(b"SET k v\r\n").expect("sent");
            } else if writer.peek(&mut answer).is_ok() {
                break;
            }
            seen += 1;
        }
        if has_sent {
            writer.set_nonblocking(false).expect("a socket that blocks");
            writer.read_exact(&mut answer).expect("the write's reply");
            assert_eq!(&answer, b"+OK\r\n");
        }
        if seen >= SEEN {
            return;
        }
    }
    panic!("no reader was answered several times while a writer waited for room");
}

#[test]
fn a_long_journal_is_flushed_soon_although_no_row_is_old() {
    let options = ["--workers", "1", "--shards", "2", "--handover-interval-ms", "3600000"];
    let journal = ["--journal-max-size", "4mb", "--journal-segment-size", "1mb"];
    let server = Server::start(&[&options[..], &journal].concat());
    let mut client = server.client();
    // Between three eighths of the journal and a half.
    for key in 0..220 {
        let () = redis::cmd("SET").arg(key).arg("v".repeat(VALUE)).query(&mut client).expect("OK");
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    // INFO is some milliseconds old: it has the operations first, then none.
    let mut seen = false;
    loop {
        let info: String = redis::cmd("INFO").arg("flagstone").query(&mut client).expect("INFO");
        match number(&info, "journal_unflushed_operations") {
            0 if seen => return,
            operations => seen |= operations > 0,
        }
        assert!(std::time::Instant::now() < deadline, "{info}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
