//! Compression of the engines' files: INFO tells its effect, and all files stay readable when the
//! setting changes.

use super::Server;
use std::time::{Duration, Instant};

const KEYS: usize = 4000;

fn options(compression: &str) -> Vec<String> {
    let fixed = "--workers 2 --shards 2 --memory-budget 32mb --handover-interval-ms 50 \
                 --enable-protected-configs local --compression";
    fixed.split_whitespace().chain([compression]).map(str::to_owned).collect()
}

/// Returns a value that can be compressed; it names its life.
fn value(life: usize, n: usize) -> String {
    format!("{{\"life\": {life}, \"number\": {n}, \"text\": \"{}\"}}", "again and ".repeat(40))
}

/// Returns a number of INFO.
fn number(client: &mut redis::Connection, field: &str) -> u64 {
    let text: String = redis::cmd("INFO").arg("flagstone").query(client).expect("a text");
    let found = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {field}")).parse().expect("a number")
}

/// Writes keys of this life only, and keys that all lives write, most of them to files.
fn write(server: &Server, life: usize) {
    let mut client = server.client();
    for begin in (0..KEYS).step_by(500) {
        let mut pipe = redis::pipe();
        for n in begin..begin + 500 {
            pipe.set(format!("life{life}:{n}"), value(life, n)).ignore();
            pipe.set(format!("all:{n}"), value(life, n)).ignore();
        }
        let () = pipe.query(&mut client).expect("stored");
    }
    let branch = server.dir().join(format!("branch{life}"));
    let branch = branch.to_str().expect("a path");
    let _: String =
        redis::cmd("FLAGSTONE").arg("BRANCH").arg(branch).query(&mut client).expect("a branch");
}

/// Reads everything; nothing of it is in memory directly after a start.
fn check(server: &Server, lives: usize) {
    let mut client = server.client();
    for begin in (0..KEYS).step_by(100).rev() {
        let mut pipe = redis::pipe();
        let mut expected = Vec::new();
        for n in begin..begin + 100 {
            for life in 0..lives {
                pipe.get(format!("life{life}:{n}"));
                expected.push(value(life, n));
            }
            pipe.get(format!("all:{n}"));
            expected.push(value(lives - 1, n));
        }
        let found: Vec<String> = pipe.query(&mut client).expect("values");
        assert!(found == expected, "{begin} after {lives} lives");
    }
}

#[test]
fn files_of_every_setting_are_read_when_it_changes_between_kills() {
    let lives = ["lz4", "none", "zstd", "none", "lz4"];
    let words = options(lives[0]);
    let mut server = Server::start(&words.iter().map(String::as_str).collect::<Vec<_>>());
    for (life, compression) in lives.iter().enumerate() {
        if life > 0 {
            let words = options(compression);
            server.restart_with(&words.iter().map(String::as_str).collect::<Vec<_>>());
            check(&server, life);
        }
        write(&server, life);
        check(&server, life + 1);
        server.kill();
    }
    server.restart();
    check(&server, lives.len());
}

#[test]
fn info_tells_ratio_and_cost() {
    for compression in ["none", "lz4", "zstd"] {
        let words = options(compression);
        let mut server = Server::start(&words.iter().map(String::as_str).collect::<Vec<_>>());
        write(&server, 0);
        // All rows are in files then.
        server.stop();
        server.restart();
        let mut client = server.client();
        let begun = Instant::now();
        while number(&mut client, "engine_plain_bytes") < (KEYS * 2 * 400) as u64 {
            assert!(begun.elapsed() < Duration::from_secs(20), "{compression}: no files are open");
            std::thread::sleep(Duration::from_millis(20));
        }
        let ratio = number(&mut client, "engine_packed_permille");
        let cost = ["compress_us_per_mib", "decompress_us_per_mib"];
        let cost = cost.map(|field| number(&mut client, field));
        if compression == "none" {
            assert!((950..1100).contains(&ratio) && cost == [0, 0], "{ratio} {cost:?}");
        } else {
            assert!((1..500).contains(&ratio), "{compression}: {ratio}");
            assert!(cost.iter().all(|us| *us > 0), "{compression}: {cost:?}");
        }
    }
}
