//! Pipelines: commands are parsed ahead of the one that runs, and no client can tell.

use super::Server;
use std::io::{Read, Write};

/// Commands that change the meaning of those behind them, or that run by themselves.
const LINES: &[&str] = &[
    "FLUSHALL",
    "SET a 1",
    "APPEND a 2",
    "GET a",
    "SELECT 1",
    "GET a",
    "SET a x",
    "SELECT 0",
    "MGET a b a",
    "MSET a 5 b 6 c 7 d 8",
    "BLPOP list 0.01",
    "RPUSH list 1 2 3",
    "BLPOP list 0",
    "NOSUCH a",
    "GET",
    "MULTI",
    "INCR a",
    "LPUSH a x",
    "EXEC",
    "WATCH a",
    "MULTI",
    "SET a 9",
    "DISCARD",
    "SADD set m n o m",
    "SISMEMBER set n",
    "HSET hash f 1 g 2",
    "HMGET hash f g h",
    "ZADD zset 1 m 2 n",
    "ZSCORE zset n",
    "CLIENT REPLY SKIP",
    "SET unseen 1",
    "GET unseen",
    "EVAL redis.call('INCR',KEYS[1]);return(redis.call('GET',KEYS[1])) 1 a",
    "DEL a b c d",
    "EXISTS a b c d",
    "CONFIG SET requirepass secret",
    "RESET",
    "GET unseen",
    "AUTH wrong",
    "AUTH secret",
    "GET unseen",
    "CONFIG SET requirepass secret2",
    "AUTH secret2",
    "CONFIG SET requirepass \"\"",
    "SWAPDB 0 1",
    "GET a",
    "DBSIZE",
    "QUIT",
];

/// Returns a line as a client library sends it.
fn request(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').map(|w| if w == "\"\"" { "" } else { w }).collect();
    let bulks = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    [format!("*{}\r\n", words.len()), bulks.collect()].concat()
}

/// The same as a client library sends it; every fifth as it stands, inline. Before each is an empty
/// request.
fn requests() -> Vec<Vec<u8>> {
    let numbered = |(n, line): (usize, &&str)| {
        let empty = if n % 2 == 0 { "\r\n" } else { "*0\r\n" };
        if n % 5 == 4 {
            return format!("{empty}{line}\r\n").into_bytes();
        }
        [empty, &request(line)].concat().into_bytes()
    };
    LINES.iter().enumerate().map(numbered).collect()
}

/// Returns the server's answers to pieces that are sent one after the other.
fn answers<'a>(server: &Server, pieces: impl Iterator<Item = &'a [u8]>) -> String {
    let mut socket = server.socket();
    socket.set_nodelay(true).expect("set");
    for piece in pieces {
        // QUIT may have been answered.
        if socket.write_all(piece).is_err() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
    let mut out = Vec::new();
    let _ = socket.read_to_end(&mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[test]
fn replies_are_the_same_however_a_pipeline_is_cut() {
    for workers in ["1", "2"] {
        let server = Server::start(&["--workers", workers, "--shards", "2"]);
        let requests = requests();
        let whole = requests.concat();
        let one_by_one = answers(&server, requests.iter().map(|request| &request[..]));
        assert!(one_by_one.contains("NOAUTH") && one_by_one.ends_with("+OK\r\n"), "{one_by_one}");
        for size in [whole.len(), 1, 2, 3, 7, 16, 50, 64, 100, 333, 1000] {
            let got = answers(&server, whole.chunks(size));
            assert_eq!(got, one_by_one, "{size} bytes at a time, {workers} workers");
        }
    }
}

#[test]
fn the_count_of_commands_includes_all_that_stand_before() {
    let server = Server::start(&["--workers", "1"]);
    let lines = "INFO stats|SET a 1|GET a|INFO stats|GET a|EVAL return(redis.call('INFO','stats')) 0|INFO stats|\
                 GET a|COMMAND COUNT|MULTI|GET a|INFO stats|EXEC|PING|INFO stats|\
                 GET a|CONFIG RESETSTAT|INFO stats|QUIT";
    let pipeline: String = lines.split('|').map(request).collect();
    let got = answers(&server, std::iter::once(pipeline.as_bytes()));
    let counts: Vec<u64> = got
        .split("total_commands_processed:")
        .skip(1)
        .filter_map(|rest| rest.split('\r').next()?.parse().ok())
        .collect();
    let since_reset = counts.last().copied();
    let before = &counts[..counts.len() - 1];
    let since_before: Vec<u64> = before.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!((since_before, since_reset), (vec![3, 2, 2, 6, 2], Some(1)), "{got}");
}
