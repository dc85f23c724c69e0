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
