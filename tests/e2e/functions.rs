//! Functions: libraries are stored like data, and known to every worker at once.

use super::Server;
use redis::{Connection, RedisResult, Value};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn start(mode: &str, workers: &str) -> Server {
    let handover = ["--handover-interval-ms", "50"];
    let options = ["--appendfsync", mode, "--workers", workers, "--shards", "2"];
    Server::start(&[&options[..], &handover].concat())
}

/// A library with one function of its name, which answers `answer`.
pub(super) fn library(name: &str, answer: u64) -> String {
    format!(
        "#!lua name={name}\nredis.register_function('{name}', function() return {answer} end)\n"
    )
}

pub(super) fn function<T: redis::FromRedisValue>(
    client: &mut Connection,
    args: &[&str],
) -> RedisResult<T> {
    redis::cmd("FUNCTION").arg(args).query(client)
}

fn load(client: &mut Connection, code: &str) {
    let _: String = function(client, &["LOAD", "REPLACE", code]).expect("loaded");
}

pub(super) fn fcall<T: redis::FromRedisValue>(
    client: &mut Connection,
    args: &[&str],
) -> RedisResult<T> {
    redis::cmd("FCALL").arg(args).query(client)
}

pub(super) fn names(client: &mut Connection) -> Vec<String> {
    let libraries: Vec<Vec<Value>> = function(client, &["LIST"]).expect("a list");
    let name = |library: &Vec<Value>| redis::from_redis_value_ref(&library[1]).expect("a name");
    libraries.iter().map(name).collect()
}

#[test]
fn libraries_survive_a_kill_and_a_stop() {
    for workers in ["1", "2"] {
        let mut server = start("always", workers);
        let mut client = server.client();
        load(&mut client, &library("one", 1));
        load(&mut client, &library("gone", 1));
        let payload: Vec<u8> =
            redis::cmd("FUNCTION").arg("DUMP").query(&mut client).expect("a payload");
        let _: String = function(&mut client, &["DELETE", "gone"]).expect("deleted");
        load(&mut client, &library("two", 2));
        let _: String = redis::cmd("FLUSHALL").query(&mut client).expect("flushed");
        server.kill();

        server.restart();
        let mut client = server.client();
        assert_eq!(names(&mut client), ["one", "two"]);
        assert_eq!(fcall::<u64>(&mut client, &["TWO", "0"]).expect("an answer"), 2);
        let restore = |policy: &str, client: &mut Connection| -> RedisResult<String> {
            redis::cmd("FUNCTION").arg("RESTORE").arg(&payload).arg(policy).query(client)
        };
        assert!(restore("APPEND", &mut client).is_err(), "one is there");
        assert_eq!(names(&mut client), ["one", "two"], "all or nothing");
        restore("FLUSH", &mut client).expect("restored");
        server.stop();

        server.restart();
        let mut client = server.client();
        assert_eq!(names(&mut client), ["gone", "one"]);
        assert_eq!(fcall::<u64>(&mut client, &["gone", "0"]).expect("an answer"), 1);
        // By now the libraries are in the engine, and FLUSH deletes them there, too.
        std::thread::sleep(Duration::from_millis(300));
        let _: String = function(&mut client, &["FLUSH"]).expect("flushed");
        server.kill();

        server.restart();
        let mut client = server.client();
        assert_eq!(names(&mut client), [""; 0]);
        assert!(fcall::<u64>(&mut client, &["one", "0"]).is_err());
    }
}

/// Restores two libraries of the same number together until the connection breaks; notes which
/// numbers were acknowledged.
fn restore_until_killed(server: &Server, payloads: &[Vec<u8>], acked: &AtomicU64) {
    let mut client = server.client();
    for n in 0u64.. {
        let payload = &payloads[n as usize % payloads.len()];
        let restored: RedisResult<String> =
            redis::cmd("FUNCTION").arg("RESTORE").arg(payload).arg("REPLACE").query(&mut client);
        if restored.is_err() {
            return;
        }
        acked.store(n, Ordering::Relaxed);
    }
}

#[test]
fn a_restore_that_is_killed_is_whole_or_not_there() {
    let mut server = start("always", "2");
    let payload = |n: u64| {
        let mut client = server.client();
        load(&mut client, &library("a", n));
        load(&mut client, &library("b", n));
        redis::cmd("FUNCTION").arg("DUMP").query(&mut client).expect("a payload")
    };
    let payloads: Vec<Vec<u8>> = (0..50).map(payload).collect();
    for _ in 0..3 {
        let acked = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| restore_until_killed(&server, &payloads, &acked));
            while acked.load(Ordering::Relaxed) < 40 {
                std::thread::sleep(Duration::from_millis(1));
            }
            server.kill_shared();
        });
        server.reap();
        server.restart();
        let mut client = server.client();
        let acked = acked.load(Ordering::Relaxed);
        let a: u64 = fcall(&mut client, &["a", "0"]).expect("an answer");
        let b: u64 = fcall(&mut client, &["b", "0"]).expect("an answer");
        assert_eq!(a, b, "half of a restore");
        let count = payloads.len() as u64;
        assert!(a == acked % count || a == (acked + 1) % count, "{a} after {acked}");
    }
}

#[test]
fn every_worker_runs_the_new_library_at_once() {
    let server = start("no", "2");
    let mut clients: Vec<_> = (0..6).map(|_| server.client()).collect();
    for n in 0..40 {
        load(&mut clients[n % 6], &library("f", n as u64));
        for client in &mut clients {
            assert_eq!(fcall::<u64>(client, &["f", "0"]).expect("an answer"), n as u64);
        }
    }
}

#[test]
fn a_function_on_keys_of_several_workers_is_one_command() {
    let server = start("no", "2");
    let mut client = server.client();
    let code = "#!lua name=lib
        redis.register_function('move', function(keys, args)
            for _, key in ipairs(keys) do redis.call('INCRBY', key, args[1]) end
            return redis.call('MGET', unpack(keys))
        end)
        redis.register_function('fail', function(keys)
            redis.call('SET', keys[1], 'x')
            return redis.call('INCR', keys[1])
        end)
        redis.register_function{
            function_name = 'read', flags = {'no-writes'},
            callback = function(keys) return redis.call('SET', keys[1], 1) end,
        }";
    load(&mut client, code);
    let keys = ["k1", "k2", "k3", "k4"];
    let call = [&["move", "4"][..], &keys, &["5"]].concat();
    assert_eq!(fcall::<Vec<u64>>(&mut client, &call).expect("an answer"), [5; 4]);
    let error = fcall::<Value>(&mut client, &["fail", "1", "k1"]).expect_err("an error");
    assert!(error.to_string().contains("not an integer"), "{error}");
    let error = fcall::<Value>(&mut client, &["read", "1", "k1"]).expect_err("an error");
    assert!(error.to_string().contains("read-only scripts"), "{error}");
    let read_only: RedisResult<Value> =
        redis::cmd("FCALL_RO").arg(&["fail", "1", "k1"]).query(&mut client);
    let error = read_only.expect_err("an error").to_string();
    assert!(error.contains("Can not execute a script with write flag using *_ro command"));
}

#[test]
fn a_function_does_not_see_the_keys_and_arguments_of_scripts() {
    let server = start("no", "1");
    let mut client = server.client();
    let code = "#!lua name=lib
        redis.register_function('keys', function() return KEYS[1] end)
        redis.register_function('args', function() return ARGV[1] end)";
    load(&mut client, code);
    for script in ["return KEYS[1] .. ARGV[1]", "return redis.call('nonsense')", "error('x')"] {
        let mut eval = redis::cmd("EVAL");
        let _: RedisResult<Value> = eval.arg(&[script, "1", "key", "secret"]).query(&mut client);
        for (name, global) in [("keys", "KEYS"), ("args", "ARGV")] {
            let error = fcall::<Value>(&mut client, &[name, "0"]).expect_err("an error");
            let expected = format!("attempted to access nonexistent global variable '{global}'");
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }
}

#[test]
fn a_function_that_does_not_end_is_killed() {
    let server = start("no", "2");
    let mut client = server.client();
    let config = ["SET", "busy-reply-threshold", "20"];
    let _: String = redis::cmd("CONFIG").arg(&config).query(&mut client).expect("set");
    load(
        &mut client,
        "#!lua name=lib\nredis.register_function('spin', function() while true do end end)",
    );
    std::thread::scope(|scope| {
        let spinning = scope.spawn(|| fcall::<Value>(&mut server.client(), &["spin", "0", "arg"]));
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let stats: Vec<Value> = function(&mut client, &["STATS"]).expect("figures");
            if stats[1] != Value::Nil {
                let running: Vec<Value> = redis::from_redis_value_ref(&stats[1]).expect("a map");
                let command: Vec<String> = redis::from_redis_value_ref(&running[3]).expect("words");
                assert_eq!(command, ["FCALL", "spin", "0", "arg"]);
                break;
            }
            assert!(Instant::now() < deadline, "it does not run");
            std::thread::sleep(Duration::from_millis(5));
        }
        let _: String = function(&mut client, &["KILL"]).expect("killed");
        let error = spinning.join().expect("no panic").expect_err("an error");
        let killed = "Script killed by user with FUNCTION KILL. script: spin, on @user_function:";
        assert!(error.to_string().contains(killed), "{error}");
    });
    let error = function::<Value>(&mut client, &["KILL"]).expect_err("nothing runs");
    assert!(error.to_string().contains("NOTBUSY") || error.to_string().contains("No scripts"));
}

#[test]
fn a_pause_of_writes_holds_back_functions_that_may_write() {
    let server = start("no", "2");
    let (mut client, mut other) = (server.client(), server.client());
    let code = "#!lua name=lib
        local answer = function() return 1 end
        redis.register_function('write', answer)
        redis.register_function{function_name = 'read', callback = answer, flags = {'no-writes'}}";
    load(&mut client, code);
    let pause = |client: &mut Connection, args: &[&str]| {
        let _: String = redis::cmd("CLIENT").arg(args).query(client).expect("an answer");
    };
    pause(&mut client, &["PAUSE", "100000", "WRITE"]);
    for command in ["FCALL", "FCALL_RO"] {
        let answer: u64 =
            redis::cmd(command).arg(&["read", "0"]).query(&mut client).expect("an answer");
        assert_eq!(answer, 1);
    }
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || fcall::<u64>(&mut other, &["write", "0"]));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!writing.is_finished(), "it is held back");
        pause(&mut client, &["UNPAUSE"]);
        assert_eq!(writing.join().expect("no panic").expect("an answer"), 1);
    });
}

#[test]
fn a_small_vm_is_not_filled_by_scripts_and_libraries_of_the_past() {
    let server = Server::start(&["--memory-budget", "32mb", "--workers", "1", "--shards", "1"]);
    let mut client = server.client();
    for round in 0..700 {
        load(&mut client, &library("f", round));
        let found: RedisResult<u64> = fcall(&mut client, &["f", "0"]);
        assert_eq!(found.unwrap_or_else(|error| panic!("library {round}: {error}")), round);
    }
    // Each takes some kilobytes when it is compiled.
    let body = "a = a + 1; ".repeat(400);
    for round in 0..700 {
        let code = format!("local a = {round}; {body} return a");
        let found: RedisResult<u64> = redis::cmd("EVAL").arg(code).arg(0).query(&mut client);
        assert_eq!(found.unwrap_or_else(|error| panic!("script {round}: {error}")), round + 400);
    }
}

/// They wait until no command runs: a script that calls them would wait for itself.
#[test]
fn no_script_changes_libraries_whatever_else_it_may_call() {
    for workers in ["1", "2"] {
        let server = Server::start(&["--workers", workers, "--enable-debug-command", "yes"]);
        let mut client = server.client();
        load(&mut client, &library("one", 1));
        let mut allow = redis::cmd("DEBUG");
        let () = allow.arg("SET-DISABLE-DENY-SCRIPTS").arg(1).query(&mut client).expect("allowed");
        for call in [
            "'FUNCTION', 'LOAD', ARGV[1]",
            "'FUNCTION', 'DELETE', 'one'",
            "'FUNCTION', 'FLUSH'",
            "'FUNCTION', 'RESTORE', ARGV[1]",
            "'CLIENT', 'PAUSE', '1'",
            "'REPLICAOF', 'NO', 'ONE'",
        ] {
            let script = format!("return redis.call({call})");
            let mut eval = redis::cmd("EVAL");
            eval.arg(&script).arg(0).arg(library("two", 2));
            let refused = eval.query::<Value>(&mut client).expect_err(call).to_string();
            assert!(refused.contains("not allowed from script"), "{call}: {refused}");
        }
        assert_eq!(names(&mut client), ["one"]);
        load(&mut client, &library("two", 2));
        assert_eq!(fcall::<u64>(&mut client, &["two", "0"]).expect("a number"), 2);
    }
}
