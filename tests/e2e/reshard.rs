//! Another number of shards, by the command.

use super::Server;
use super::checkpoints::{done, run};
use std::collections::BTreeMap;

const OPTIONS: &[&str] = &["--workers", "2", "--appendfsync", "everysec"];

/// Returns the content of each key; sets and hashes in an order of their own.
fn contents(server: &Server) -> BTreeMap<String, Vec<String>> {
    let mut client = server.client();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut client).expect("keys");
    let mut read = |key: String| {
        let (command, options): (&str, &[&str]) = match &key[..1] {
            "s" => ("MGET", &[]),
            "h" => ("HKEYS", &[]),
            "l" => ("LRANGE", &["0", "-1"]),
            "z" => ("ZRANGE", &["0", "-1", "WITHSCORES"]),
            _ => ("SMEMBERS", &[]),
        };
        let mut command = redis::cmd(command);
        let mut found: Vec<String> =
            command.arg(&key).arg(options).query(&mut client).expect("its content");
        if matches!(&key[..1], "h" | "t") {
            found.sort_unstable();
        }
        (key, found)
    };
    keys.into_iter().map(&mut read).collect()
}

#[test]
fn a_directory_gets_another_number_of_shards() {
    let mut server = Server::start(&[OPTIONS, &["--shards", "2"]].concat());
    let mut client = server.client();
    for n in 0..300 {
        let mut pipe = redis::pipe();
        pipe.set(format!("s{n}"), n).hset(format!("h{}", n % 7), n, "x").rpush("l", n);
        pipe.zadd("z", n, n).sadd(format!("t{}", n % 5), "m".repeat(n)).pexpire("h1", 1_000_000);
        let () = pipe.query(&mut client).expect("stored");
    }
    let before = contents(&server);
    drop(client);
    let dir = server.dir().join("data").display().to_string();
    let reshard = ["reshard", "--dir", &dir, "--quiet", "--shards"];
    let refused = run(&[&reshard[..], &["5"]].concat());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("in use by another process"));
    // The journal's tail is part of the data.
    server.kill();
    let told = done(&[&reshard[..], &["5", "--keep"]].concat());
    assert!(told.starts_with(&format!("{} keys in ", before.len())), "{told}");
    assert!(server.dir().join("data.before/shard-1").is_dir());
    server.restart_with(&[OPTIONS, &["--shards", "5"]].concat());
    assert!(contents(&server) == before, "the content differs");
    server.stop();
    let refused = run(&[&reshard[..], &["1", "--keep"]].concat());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("data.before is there"));
    done(&[&reshard[..], &["1"]].concat());
    assert!(server.dir().join("data.before").exists());
    assert!(!server.dir().join("data.resharding").exists());
    server.restart_with(OPTIONS);
    assert!(contents(&server) == before, "the content differs");
    let count: u64 = redis::cmd("DBSIZE").query(&mut server.client()).expect("a number");
    assert_eq!(count, before.len() as u64);
}

/// A run that is killed after the exchange leaves the old directory, or a part of it.
#[test]
fn an_interrupted_resharding_is_repeated_with_the_same_command() {
    let mut server = Server::start(&[OPTIONS, &["--shards", "3"]].concat());
    let () = redis::cmd("SET").arg("key").arg("value").query(&mut server.client()).expect("set");
    server.stop();
    let (data, left) = (server.dir().join("data"), server.dir().join("data.resharding"));
    let dir = data.display().to_string();
    let reshard = |shards: &str| run(&["reshard", "--dir", &dir, "--quiet", "--shards", shards]);
    // Files of others stay in the directory.
    let others = [data.join("users.acl"), data.join("mine/precious")];
    std::fs::create_dir(data.join("mine")).expect("made");
    others.iter().for_each(|path| std::fs::write(path, "x").expect("written"));
    let are_there = || others.iter().all(|path| path.is_file());
    for (shards, is_partial) in [("2", false), ("2", true), ("4", true)] {
        done(&["reshard", "--dir", &dir, "--quiet", "--shards", "2", "--keep"]);
        assert!(are_there());
        std::fs::rename(server.dir().join("data.before"), &left).expect("renamed");
        std::fs::rename(data.join("mine"), left.join("mine")).expect("moved");
        if is_partial {
            std::fs::remove_dir_all(left.join("shard-0")).expect("removed");
        }
        let again = reshard(shards);
        assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
        assert!(!left.exists() && are_there());
    }
    // Other data of that name are left alone.
    let mut other = Server::start(OPTIONS);
    other.stop();
    std::fs::rename(other.dir().join("data"), &left).expect("renamed");
    let refused = reshard("2");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("of other data"));
    assert!(left.join("shard-0").is_dir() && data.join("shard-3").is_dir());
    std::fs::remove_dir_all(&left).expect("removed");
    server.restart_with(OPTIONS);
    let value: String = redis::cmd("GET").arg("key").query(&mut server.client()).expect("a value");
    assert_eq!(value, "value");
    server.stop();
}
