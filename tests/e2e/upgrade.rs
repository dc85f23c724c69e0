//! Directories that earlier versions have written. `tests/data/directories` keeps one for each version
//! of the format: `stopped` was closed, `killed` was not.

use super::Server;
use super::blind::{info, number, run};
use super::checkpoints::done;
use redis::Value;
use std::process::Command;

/// Kept directories, by the version of the journal, and one whose shards were split.
const KEPT: &[&str] = &["journal-2", "journal-3", "split"];

/// Starts a server on a kept directory.
fn on(kept: &str, which: &str) -> Server {
    let mut server = Server::start(&["--workers", "2"]);
    server.stop();
    let data = server.dir().join("data");
    std::fs::remove_dir_all(&data).expect("removed");
    let archive = format!("{}/tests/data/directories/{kept}.tar.xz", env!("CARGO_MANIFEST_DIR"));
    let unpacked = Command::new("tar")
        .args(["xJf", &archive, "-C"])
        .arg(server.dir())
        .arg(which)
        .status()
        .expect("tar runs");
    assert!(unpacked.success());
    std::fs::rename(server.dir().join(which), &data).expect("renamed");
    server.restart();
    server
}

fn text(client: &mut redis::Connection, words: &[&str]) -> String {
    match run(client, words) {
        Value::BulkString(bytes) => String::from_utf8(bytes).expect("a text"),
        other => panic!("{words:?}: {other:?}"),
    }
}

/// Checks that everything is there.
fn is_whole(client: &mut redis::Connection) {
    assert_eq!(number(client, &["DBSIZE"]), 243);
    for n in (0..40).filter(|n| *n != 1) {
        assert_eq!(text(client, &["GET", &format!("s{n}")]), "v1".repeat(n + 1));
        let expires = number(client, &["EXPIRETIME", &format!("s{n}")]);
        assert_eq!(expires, if n % 3 == 0 { 4_102_444_800 } else { -1 });
        assert_eq!(text(client, &["HGET", &format!("h{n}"), "a"]), "1");
        assert_eq!(number(client, &["LLEN", &format!("l{n}")]), 4);
        assert_eq!(number(client, &["SCARD", &format!("set{n}")]), 3);
        assert_eq!(text(client, &["ZSCORE", &format!("z{n}"), "a"]), "1");
        assert_eq!(number(client, &["XLEN", &format!("x{n}")]), 2);
    }
    assert_eq!(number(client, &["HLEN", "bighash"]), 700);
    assert_eq!(text(client, &["HGET", "bighash", "f699"]), "1-699");
    assert_eq!(text(client, &["ZSCORE", "bigzset", "m699"]), "700");
    assert_eq!(number(client, &["SCARD", "bigset"]), 1400);
    assert_eq!(number(client, &["XLEN", "bigstream"]), 600);
    assert_eq!(number(client, &["STRLEN", "bigstring"]), 40_004);
    run(client, &["SELECT", "3"]);
    assert_eq!(text(client, &["GET", "other"]), "1");
    run(client, &["SELECT", "0"]);
}

#[test]
fn directories_of_earlier_versions_are_served_on() {
    for kept in KEPT {
        for which in ["stopped", "killed"] {
            let mut server = on(kept, which);
            let mut client = server.client();
            is_whole(&mut client);
            // An earlier version has not counted sizes: they are guessed, and go with their keys.
            let used =
                || info(&mut server.client(), "used_memory").parse::<u64>().expect("a number");
            let before = used();
            assert!(before > (1 << 20) + 10_000, "{before}");
            run(&mut client, &["SET", "new", &"n".repeat(10_000)]);
            assert!(used() > before + 9_000);
            run(&mut client, &["DEL", "new"]);
            drop(client);
            server.kill();
            server.restart();
            is_whole(&mut server.client());
            server.stop();
            done(&["check", "--dir", &server.dir().join("data").display().to_string()]);
            server.restart();
            let mut client = server.client();
            is_whole(&mut client);
            run(&mut client, &["FLUSHALL"]);
            assert_eq!(info(&mut client, "used_memory"), (1 << 20).to_string());
        }
    }
}
