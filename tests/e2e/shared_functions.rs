//! Libraries of functions in a cluster of several servers: a change on one counts on all.

use super::Server;
use super::functions::{fcall, function, library, names};
use super::servers::{Cluster, client, settle, until};
use redis::{Commands, RedisResult, Value};
use std::time::{Duration, Instant};

/// Loads a library without REPLACE.
fn load(server: &Server, code: &str) -> RedisResult<String> {
    function(&mut server.client(), &["LOAD", code])
}

fn names_on(server: &Server) -> Vec<String> {
    names(&mut server.client())
}

fn call(server: &Server, name: &str) -> RedisResult<u64> {
    fcall(&mut server.client(), &[name, "0"])
}

/// Waits until servers have these libraries.
fn have(servers: &[&Server], expected: &[&str]) {
    until("the servers have the libraries", || {
        servers.iter().all(|server| names_on(server) == expected)
    });
}

/// Returns the paths of the objects of libraries in the cluster's store.
fn objects(cluster: &Cluster) -> Vec<std::path::PathBuf> {
    let dir = cluster.bucket.path().join("data/cluster/functions");
    let Ok(listed) = std::fs::read_dir(dir) else { return Vec::new() };
    listed.map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn a_change_on_one_server_counts_on_all() {
    let cluster = Cluster::new();
    let servers = cluster.servers(3);
    let [a, b, c] = [&servers[0], &servers[1], &servers[2]];
    assert_eq!(load(a, &library("one", 1)).expect("loaded"), "one");
    assert_eq!(call(a, "one").expect("an answer"), 1);
    have(&[b, c], &["one"]);
    assert_eq!([b, c].map(|it| call(it, "ONE").expect("an answer")), [1, 1]);
    let replaced: String =
        function(&mut b.client(), &["LOAD", "REPLACE", &library("one", 2)]).expect("replaced");
    assert_eq!(replaced, "one");
    assert_eq!(call(b, "one").expect("an answer"), 2);
    until("all have the new one", || {
        [a, c].into_iter().all(|it| call(it, "one").expect("an answer") == 2)
    });
    load(c, &library("two", 3)).expect("loaded");
    have(&[a, b, c], &["one", "two"]);
    let payload: Vec<u8> =
        redis::cmd("FUNCTION").arg("DUMP").query(&mut a.client()).expect("a payload");
    let deleted: String = function(&mut a.client(), &["DELETE", "one"]).expect("deleted");
    assert_eq!((deleted.as_str(), names_on(a)), ("OK", vec!["two".to_owned()]));
    have(&[b, c], &["two"]);
    assert!(call(b, "one").expect_err("refused").to_string().contains("Function not found"));
    let _: String = function(&mut b.client(), &["FLUSH"]).expect("flushed");
    assert!(names_on(b).is_empty());
    have(&[a, c], &[]);
    let restored: RedisResult<String> =
        redis::cmd("FUNCTION").arg("RESTORE").arg(&payload).query(&mut c.client());
    restored.expect("restored");
    have(&[a, b, c], &["one", "two"]);
    // In a transaction, and on a key at its server.
    let mut pipe = redis::pipe();
    pipe.atomic().cmd("FCALL").arg("two").arg(0).cmd("FCALL").arg("one").arg(0);
    assert_eq!(pipe.query::<Vec<u64>>(&mut b.client()).expect("answers"), [3, 2]);
    let setter = "#!lua name=setter\nredis.register_function('setter', function(keys, args) \
                  return redis.call('SET', keys[1], args[1]) end)\n";
    load(a, setter).expect("loaded");
    have(&[a, b, c], &["one", "setter", "two"]);
    let mut of_all = client(&[a, b, c]);
    for n in 0..20 {
        let key = format!("key:{n}");
        let _: String = redis::cmd("FCALL")
            .arg("setter")
            .arg(1)
            .arg(&key)
            .arg(n)
            .query(&mut of_all)
            .expect("set");
        assert_eq!(of_all.get::<_, usize>(&key).expect("answered"), n);
    }
    until("former objects are deleted", || objects(&cluster).len() == 1);
}

#[test]
fn a_server_that_joins_or_comes_back_has_the_libraries_from_its_first_command_on() {
    let cluster = Cluster::new();
    let mut servers = cluster.servers(2);
    load(&servers[0], &library("one", 1)).expect("loaded");
    let joined = cluster.server();
    // Not even once is there no such function.
    assert_eq!(call(&joined, "one").expect("an answer"), 1);
    servers[1].kill();
    let loaded: String =
        function(&mut servers[0].client(), &["LOAD", "REPLACE", &library("one", 2)])
            .expect("loaded");
    assert_eq!(loaded, "one");
    servers[1].restart();
    assert_eq!(call(&servers[1], "one").expect("an answer"), 2);
    servers.push(joined);
    settle(&servers.iter().collect::<Vec<_>>());
    // When all have ended nobody has them in memory.
    for server in &mut servers {
        server.stop();
    }
    servers[1].restart();
    assert_eq!(call(&servers[1], "one").expect("an answer"), 2);
    assert_eq!(names_on(&servers[1]), ["one"]);
}

#[test]
fn servers_that_load_at_the_same_time_lose_no_library() {
    let cluster = Cluster::new();
    let servers = cluster.servers(3);
    std::thread::scope(|scope| {
        for (at, server) in servers.iter().enumerate() {
            scope.spawn(move || {
                for n in 0..6 {
                    load(server, &library(&format!("lib_{at}_{n}"), n)).expect("loaded");
                    // What it has loaded is there, whatever others do.
                    assert_eq!(call(server, &format!("lib_{at}_{n}")).expect("an answer"), n);
                }
            });
        }
    });
    let expected: Vec<String> =
        (0..3).flat_map(|at| (0..6).map(move |n| format!("lib_{at}_{n}"))).collect();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    have(&servers.iter().collect::<Vec<_>>(), &expected);
}

#[test]
fn a_command_that_a_client_sends_to_all_servers_succeeds_on_all() {
    let cluster = Cluster::new();
    let servers = cluster.servers(3);
    let all: Vec<&Server> = servers.iter().collect();
    let code = library("one", 1);
    for server in &all {
        assert_eq!(load(server, &code).expect("the same"), "one");
    }
    let error = load(all[1], &library("one", 2)).expect_err("another code");
    assert!(error.to_string().contains("Library 'one' already exists"), "{error}");
    let error =
        load(all[2], &code.replace("name=one", "name=other")).expect_err("a function twice");
    assert!(error.to_string().contains("Function one already exists"), "{error}");
    let payload: Vec<u8> =
        redis::cmd("FUNCTION").arg("DUMP").query(&mut all[0].client()).expect("a payload");
    for policy in ["FLUSH", "REPLACE", "APPEND"] {
        for server in &all {
            let restored: RedisResult<String> = redis::cmd("FUNCTION")
                .arg("RESTORE")
                .arg(&payload)
                .arg(policy)
                .query(&mut server.client());
            restored.expect(policy);
        }
    }
    let delete = |server: &Server| -> RedisResult<String> {
        function(&mut server.client(), &["DELETE", "one"])
    };
    for server in &all {
        assert_eq!(delete(server).expect("deleted here, or there"), "OK");
    }
    // Once on each.
    for server in &all {
        let error = delete(server).expect_err("there is none");
        assert!(error.to_string().contains("Library not found"), "{error}");
    }
    // A client that sends them to all at once.
    let mut of_all = client(&all);
    let mut ask = |words: &[&str]| {
        redis::cmd("FUNCTION").arg(words).query::<Value>(&mut of_all).unwrap_or_else(|error| {
            panic!("{words:?}: {error}");
        })
    };
    for round in 0..5 {
        let code = library("two", round);
        ask(&["LOAD", &code]);
        assert!(all.iter().all(|server| call(server, "two").expect("an answer") == round));
        ask(&["LOAD", "REPLACE", &library("two", round + 10)]);
        assert!(all.iter().all(|server| call(server, "two").expect("an answer") == round + 10));
        ask(&["DELETE", "two"]);
        assert!(all.iter().all(|server| names_on(server).is_empty()));
    }
    ask(&["FLUSH"]);
}

#[test]
fn a_server_that_cannot_load_the_libraries_denies_none_and_a_flush_mends_it() {
    let cluster = Cluster::new();
    let servers = cluster.servers(1);
    load(&servers[0], &library("one", 1)).expect("loaded");
    let [object] = &objects(&cluster)[..] else { panic!("one object") };
    let whole = std::fs::read(object).expect("an object");
    let mut damaged = whole.clone();
    damaged[20] ^= 1;
    std::fs::write(object, &damaged).expect("damaged");
    let joined = cluster.server();
    let begun = Instant::now();
    let error = call(&joined, "one").expect_err("not loaded");
    assert_eq!(error.code(), Some("TRYAGAIN"), "{error}");
    assert!(begun.elapsed() >= Duration::from_secs(5), "it waits");
    let error = load(&joined, &library("two", 2)).expect_err("refused");
    assert!(error.to_string().contains("checksum is wrong"), "{error}");
    // Those that have them are not concerned, and the object may come back.
    assert_eq!(call(&servers[0], "one").expect("an answer"), 1);
    std::fs::write(object, &whole).expect("mended");
    assert_eq!(call(&joined, "one").expect("an answer"), 1);
    std::fs::remove_file(object).expect("removed");
    let last = cluster.server();
    let error = load(&last, &library("two", 2)).expect_err("refused");
    assert!(error.to_string().contains("is gone"), "{error}");
    let _: String = function(&mut last.client(), &["FLUSH"]).expect("flushed");
    load(&last, &library("two", 2)).expect("loaded");
    have(&[&servers[0], &joined, &last], &["two"]);
}
