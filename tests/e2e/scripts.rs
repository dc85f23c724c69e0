//! Scripts that take long, or too much, or that somebody has written to do harm.

use super::Server;
use super::followers::{caught_up, follow};
use redis::{Connection, RedisResult, Value};
use std::io::{Read, Write};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Unit apart at the same time, as the server has it.
const MAX_APART: usize = 8;

fn start(workers: &str, more: &[&str]) -> Server {
    let options = ["--workers", workers, "--shards", "2", "--busy-reply-threshold", "50"];
    Server::start(&[&options[..], more].concat())
}

fn run(client: &mut Connection, words: &[&str]) -> RedisResult<Value> {
    redis::cmd(words[0]).arg(&words[1..]).query(client)
}

/// The error of a command.
fn error(client: &mut Connection, words: &[&str]) -> String {
    match run(client, words) {
        Err(error) => error.to_string(),
        Ok(value) => panic!("{words:?} was answered by {value:?}"),
    }
}

/// Runs a script on a connection of its own; joining returns its result.
fn in_background(server: &Server, script: &str, key: &str) -> JoinHandle<RedisResult<Value>> {
    let (mut client, script, key) = (server.client(), script.to_owned(), key.to_owned());
    spawn(move || redis::cmd("EVAL").arg(script).arg(1).arg(key).query(&mut client))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what} does not happen");
        sleep(Duration::from_millis(5));
    }
}

fn is_busy(client: &mut Connection) -> bool {
    run(client, &["GET", "other"]).is_err_and(|error| error.to_string().contains("BUSY"))
}

fn until_busy(client: &mut Connection) {
    until("BUSY", || is_busy(client));
}

fn get(client: &mut Connection, key: &str) -> Option<String> {
    redis::cmd("GET").arg(key).query(client).expect("an answer")
}

#[test]
fn others_are_told_that_a_script_is_busy() {
    for workers in ["1", "2"] {
        let server = start(workers, &[]);
        let (mut client, mut queuing) = (server.client(), server.client());
        let _: Value = run(&mut queuing, &["MULTI"]).expect("begun");
        let _: Value = run(&mut queuing, &["SET", "queued", "1"]).expect("queued");
        let mut blocked = server.client();
        let blocked = spawn(move || run(&mut blocked, &["BLPOP", "list", "0"]));
        let slow = in_background(&server, "while true do end", "k");
        until_busy(&mut client);

        for words in [&["PING"][..], &["SET", "k", "1"], &["GET", "k"], &["EVAL", "return 1", "0"]]
        {
            assert!(error(&mut client, words).contains("BUSY"), "{words:?}");
        }
        // A client that has queued commands learns it from EXEC.
        let aborted = error(&mut queuing, &["EXEC"]);
        assert!(aborted.contains("BUSY"), "{aborted}");
        for words in [&["MULTI"][..], &["DISCARD"], &["UNWATCH"], &["HELLO", "2"], &["RESET"]] {
            run(&mut client, words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        }

        run(&mut client, &["SCRIPT", "KILL"]).expect("killed");
        let killed = slow.join().expect("joined").expect_err("killed").to_string();
        assert!(killed.contains("killed by user with SCRIPT KILL"), "{killed}");
        until("the end of BUSY", || run(&mut client, &["GET", "k"]).is_ok());
        assert!(error(&mut client, &["SCRIPT", "KILL"]).contains("No scripts in execution"));
        assert_eq!(get(&mut client, "queued"), None);
        // The client that was blocked all the while is served.
        run(&mut client, &["RPUSH", "list", "x"]).expect("pushed");
        blocked.join().expect("joined").expect("popped");
    }
}

#[test]
fn whatever_a_script_catches_it_is_killed() {
    let server = start("2", &[]);
    let mut client = server.client();
    for script in [
        "while true do pcall(function() while true do end end) end",
        "while true do redis.pcall('GET', KEYS[1]) end",
        "local f = coroutine.wrap(function() while true do end end) f()",
        "while true do pcall(coroutine.wrap(function() while true do end end)) end",
        "local s = string.rep('a', 200) while true do string.find(s, '.-.-b') end",
        "while true do string.gsub('aaaa', 'a', function() return 'b' end) end",
        "local t = setmetatable({}, {__index = function(t, k) return t[k + 1] end}) \
         while true do pcall(function() return t[1] end) end",
        "while true do pcall(table.sort, {3, 2, 1}, function(a, b) while true do end end) end",
        "while true do cjson.decode(cjson.encode({1, 2, 3})) end",
    ] {
        let slow = in_background(&server, script, "k");
        until(script, || slow.is_finished() || is_busy(&mut client));
        assert!(!slow.is_finished(), "{script}: {:?}", slow.join());
        run(&mut client, &["SCRIPT", "KILL"]).expect(script);
        assert!(slow.join().expect("joined").is_err(), "{script}");
        until("the end of BUSY", || run(&mut client, &["SET", "k", "1"]).is_ok());
    }
}

#[test]
fn one_that_has_written_is_not_killed_and_nothing_of_it_is_kept() {
    for workers in ["1", "2"] {
        let mut server = start(workers, &["--appendfsync", "always"]);
        let mut client = server.client();
        run(&mut client, &["SET", "before", "1"]).expect("written");
        let script = "redis.call('SET', KEYS[1], 'x') while true do end";
        let slow = in_background(&server, script, "written");
        until_busy(&mut client);
        assert!(error(&mut client, &["SCRIPT", "KILL"]).contains("UNKILLABLE"));
        assert!(error(&mut client, &["SHUTDOWN"]).contains("BUSY"));
        let _ = run(&mut client, &["SHUTDOWN", "NOSAVE"]);
        server.reap();
        assert!(slow.join().expect("joined").is_err());

        server.restart();
        let mut client = server.client();
        assert_eq!(get(&mut client, "written"), None);
        assert_eq!(get(&mut client, "before").as_deref(), Some("1"));
    }
}

#[test]
fn a_script_goes_on_when_its_client_is_gone() {
    let server = start("2", &[]);
    let mut client = server.client();
    let mut socket = server.socket();
    let script = "for i = 1, 20000000 do end return redis.call('SET', KEYS[1], 'x')";
    write!(socket, "*4\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n1\r\n$1\r\nk\r\n", script.len())
        .expect("sent");
    drop(socket);
    until(
        "its write",
        || matches!(run(&mut client, &["GET", "k"]), Ok(Value::BulkString(value)) if value == b"x"),
    );
}

#[test]
fn a_script_has_a_number_of_instructions() {
    for workers in ["1", "2"] {
        let server = start(workers, &["--script-instruction-limit", "1000000"]);
        let mut client = server.client();
        let script = "redis.call('SET', KEYS[1], 'x') while true do pcall(function() end) end";
        let text = error(&mut client, &["EVAL", script, "1", "k"]);
        assert!(text.contains("script-instruction-limit"), "{text}");
        assert_eq!(get(&mut client, "k"), None, "it is taken back");
    }
}

#[test]
fn memory_that_scripts_take_is_bounded() {
    let server = start("2", &["--busy-reply-threshold", "5000"]);
    let mut client = server.client();
    run(&mut client, &["EVAL", "return 1", "0"]).expect("an answer");
    let before = server.rss();
    for script in [
        "local s = 'x' while true do s = s .. s end",
        "local s = 'x' while true do s = string.rep(s, 2) end",
        "local t = {} while true do t[#t + 1] = string.rep('x', 1000) end",
        "return string.rep('x', 1e10)",
        "local s = string.rep('x', 1e6) local t = {} for i = 1, 7000 do t[i] = s end \
         return redis.call('SADD', KEYS[1], unpack(t))",
        "local s = string.rep('x', 1e6) local t = {} for i = 1, 7000 do t[i] = s end return t",
        "local s = string.rep('x', 1e6) while true do redis.call('PUBLISH', 'c', s) end",
        "local t = {} for i = 1, 1e5 do t = {t} end return cjson.encode(t)",
        "local s = string.rep('[', 1e6) return cjson.decode(s)",
        "local function f() return f() + 1 end return f()",
        "local s = string.rep('a', 1e6) return string.gsub(s, '', s)",
        "return struct.pack('>I1000000000', 1)",
        "return table.concat(setmetatable({}, {__index = function() return 'x' end}), 'x', 1, 1e9)",
    ] {
        let result = run(&mut client, &["EVAL", script, "1", "k"]);
        assert!(result.is_err(), "{script}: {:?}", result.map(|_| ()));
        assert_eq!(get(&mut client, "k"), None, "{script}");
    }
    // Each VM may have a sixteenth of the budget of 256 MB; the allocator keeps some.
    let grown = server.rss().saturating_sub(before);
    assert!(grown < 256 << 20, "{grown} bytes more");
}

#[test]
fn a_string_that_is_logged_or_checked_many_times_is_not_copied_as_often() {
    let server = start("1", &["--busy-reply-threshold", "5000"]);
    let mut client = server.client();
    let strings = "local s, t = string.rep('x', 1e6), {} for i = 1, 2000 do t[i] = s end";
    let eval = |client: &mut Connection, end: &str| {
        run(client, &["EVAL", &format!("{strings} {end}"), "0"])
    };
    eval(&mut client, "return redis.sha1hex(s)").expect("an answer");
    let before = server.peak_rss();
    eval(&mut client, "redis.log(redis.LOG_NOTICE, unpack(t))").expect("logged");
    let refused = eval(&mut client, "return redis.acl_check_cmd('DEL', unpack(t))");
    let text = refused.expect_err("too many bytes").to_string();
    assert!(text.contains("more memory than a script may have"), "{text}");
    // The strings have 2 GB together.
    let grown = server.peak_rss().saturating_sub(before);
    assert!(grown < 256 << 20, "{grown} bytes more");
}

#[test]
fn words_for_replicas_and_events_of_a_unit_take_no_more_memory_than_all_data_may() {
    let options = ["--memory-budget", "32mb", "--busy-reply-threshold", "0"];
    let server = start("1", &options);
    let mut client = server.client();
    // The data is one value, however long the loop is.
    let writes = "for n = 1, 800 do redis.call('SET', KEYS[1], string.rep('x', 100000)) end";
    let fires = "for n = 1, 800 do for m = 1, 100 do redis.call('SET', KEYS[1], 'x') end end";
    let key = "k".repeat(1000);
    let refused = |client: &mut Connection, script: &str, key: &str| {
        let text = error(client, &["EVAL", script, "1", key]);
        assert!(text.contains("take more memory than memory-budget"), "{text}");
        assert_eq!(get(client, key), None, "it is taken back");
    };
    for script in [writes, fires] {
        run(&mut client, &["EVAL", script, "1", &key]).expect("nobody hears of it");
        run(&mut client, &["DEL", &key]).expect("deleted");
    }
    run(&mut client, &["CONFIG", "SET", "notify-keyspace-events", "KEA"]).expect("set");
    refused(&mut client, fires, &key);
    run(&mut client, &["CONFIG", "SET", "notify-keyspace-events", ""]).expect("set");
    let replica = follow(&server, &[]);
    caught_up(&mut client, &mut replica.client());
    refused(&mut client, writes, "k");
}

#[test]
fn many_slow_scripts_take_turns() {
    for workers in ["1", "2"] {
        let server = start(workers, &["--busy-reply-threshold", "0"]);
        let mut client = server.client();
        let script = "redis.call('INCR', KEYS[1]) for i = 1, 3000000 do end return 1";
        // Some on the same key, most on others.
        let slow: Vec<_> = (0..4 * MAX_APART)
            .map(|n| in_background(&server, script, &format!("k{}", n % 20)))
            .collect();
        // Others go on meanwhile, and so do scripts that are quick.
        for n in 0..100 {
            run(&mut client, &["SET", "mine", &n.to_string()]).expect("written");
            run(&mut client, &["EVAL", "return redis.call('GET', KEYS[1])", "1", "mine"])
                .expect("read");
        }
        slow.into_iter().for_each(|slow| assert!(slow.join().expect("joined").is_ok()));
        let sum: u64 = (0..20)
            .filter_map(|n| get(&mut client, &format!("k{n}")))
            .map(|value| value.parse::<u64>().expect("a number"))
            .sum();
        assert_eq!(sum, 4 * MAX_APART as u64, "each has run once");
    }
}

#[test]
fn only_clients_that_want_the_keys_of_a_slow_script_wait() {
    let server = start("1", &["--busy-reply-threshold", "0"]);
    let mut client = server.client();
    run(&mut client, &["SET", "k", "0"]).expect("written");
    let script = "redis.call('SET', KEYS[1], 'x') while true do end";
    let slow = in_background(&server, script, "k");
    // The script is taken back from the worker's thread, and runs on its own: then it has its key
    // locked.
    sleep(Duration::from_millis(200));
    let mut longest = Duration::ZERO;
    for n in 0..500 {
        let began = Instant::now();
        run(&mut client, &["SET", "other", &n.to_string()]).expect("written");
        longest = longest.max(began.elapsed());
    }
    assert!(longest < Duration::from_secs(2), "{longest:?}");
    let mut reader = server.client();
    let reader = spawn(move || get(&mut reader, "k"));
    sleep(Duration::from_millis(100));
    assert!(!reader.is_finished(), "it waits for the script");
    drop(server);
    assert!(slow.join().expect("joined").is_err());
    assert!(reader.join().is_err());
}

#[test]
fn nothing_of_a_script_gets_out_of_it() {
    let server = start("2", &[]);
    let mut client = server.client();
    for script in [
        "return os.execute('true')",
        "return os.getenv('PATH')",
        "return io.open('/etc/passwd')",
        "return require('os')",
        "return package.loaded",
        "return dofile('/etc/passwd')",
        "return loadfile('/etc/passwd')",
        "return debug.getregistry()",
        "return loadstring(string.char(27) .. 'Lua')()",
        "return load(function() return nil end)(1)(2)",
        "string.dump(function() end)() return 1",
        "getfenv(0).x = 1 return 1",
        "setfenv(0, {}) return 1",
        "redis.call = nil return 1",
        "getmetatable('').__index = nil return 1",
        "_G.print = 1 return 1",
        "newproxy(true) return 1",
        "return redis.call('EVAL', 'return 1', 0)",
        "return redis.call('SHUTDOWN')",
        "return redis.call('CONFIG', 'SET', 'maxmemory', '1')",
        "return redis.call('CLIENT', 'KILL', 'TYPE', 'normal')",
        "return redis.call('MULTI')",
        "return redis.call('SUBSCRIBE', 'c')",
        "return redis.call('DEBUG', 'SLEEP', '0')",
    ] {
        let result = run(&mut client, &["EVAL", script, "0"]);
        assert!(result.is_err(), "{script}: {result:?}");
    }
    let answer = run(&mut client, &["EVAL", "return redis.call('PING')", "0"]);
    assert_eq!(answer.expect("an answer"), Value::SimpleString("PONG".into()));
}

#[test]
fn errors_of_scripts_are_one_line() {
    let server = start("1", &[]);
    let mut socket = server.socket();
    for script in [
        "return redis.error_reply('A\\r\\n+OK\\r\\n')",
        "return {err = 'A\\r\\n+OK'}",
        "error('A\\r\\n+OK')",
        "error({err = 'A\\r\\n+OK'})",
        "return redis.status_reply('A\\r\\n-ERR b')",
        "return {ok = 'A\\r\\n-ERR b'}",
        "return redis.call('\\r\\n+OK')",
    ] {
        write!(socket, "*3\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n0\r\nPING\r\n", script.len())
            .expect("sent");
        let mut seen = Vec::new();
        while seen.iter().filter(|byte| **byte == b'\n').count() < 2 {
            let mut bytes = [0; 256];
            let len = socket.read(&mut bytes).expect("an answer");
            assert!(len > 0, "{script}: closed");
            seen.extend_from_slice(&bytes[..len]);
        }
        let text = String::from_utf8_lossy(&seen);
        assert!(text.ends_with("\r\n+PONG\r\n"), "{script}: {text:?}");
    }
}

#[test]
fn writes_are_refused_beyond_maxmemory() {
    for workers in ["1", "2"] {
        let server = start(workers, &[]);
        let mut client = server.client();
        run(&mut client, &["SET", "k", "1"]).expect("written");
        run(&mut client, &["MULTI"]).expect("begun");
        run(&mut client, &["SET", "k", "2"]).expect("queued");
        let mut other = server.client();
        run(&mut other, &["CONFIG", "SET", "maxmemory", "1"]).expect("set");
        let text = error(&mut client, &["EXEC"]);
        assert!(text.contains("discarded because of: OOM command not allowed"), "{text}");
        assert!(error(&mut client, &["SET", "k", "2"]).contains("OOM"));
        assert_eq!(get(&mut client, "k").as_deref(), Some("1"));
        run(&mut client, &["DEL", "k"]).expect("that needs no memory");
        run(&mut other, &["CONFIG", "SET", "maxmemory", "2mb", "maxmemory-policy", "allkeys-lru"])
            .expect("set");
        run(&mut client, &["SET", "k", "3"]).expect("written");

        run(&mut other, &["CONFIG", "SET", "maxmemory", "0", "min-replicas-to-write", "1"])
            .expect("set");
        for words in [&["SET", "k", "4"][..], &["EVAL", "redis.call('SET', 'k', '4')", "1", "k"]] {
            assert!(error(&mut client, words).contains("NOREPLICAS"), "{words:?}");
        }
        assert_eq!(get(&mut client, "k").as_deref(), Some("3"));
    }
}

#[test]
fn flushed_scripts_leave_no_memory_of_their_machines() {
    let server = start("2", &[]);
    let mut client = server.client();
    let memory = |client: &mut Connection| -> u64 {
        let info: String = redis::cmd("INFO").arg("memory").query(client).expect("INFO");
        let found = info.lines().find_map(|line| line.strip_prefix("used_memory_vm_eval:"));
        found.and_then(|bytes| bytes.parse().ok()).expect("the field")
    };
    // Long ones, which run on threads of their own, several at once.
    let script = "local t = {} for i = 1, 2000000 do t[i % 100] = i end return 1";
    let running: Vec<_> =
        (0..3).map(|n| in_background(&server, script, &format!("k{n}"))).collect();
    for one in running {
        one.join().expect("joined").expect("it ran");
    }
    let () = redis::cmd("EVAL").arg("return 1").arg(0).query(&mut client).expect("EVAL");
    assert!(memory(&mut client) > 0);
    run(&mut client, &["SCRIPT", "FLUSH"]).expect("SCRIPT FLUSH");
    until("they are gone", || memory(&mut client) == 0);
    // Libraries that were replaced leave nothing, either.
    for n in 0..500 {
        let body = format!("return '{n}{}'", "x".repeat(2000));
        let code = format!("#!lua name=l\nredis.register_function('f', function() {body} end)");
        run(&mut client, &["FUNCTION", "LOAD", "REPLACE", &code]).expect("FUNCTION LOAD");
        run(&mut client, &["FCALL", "f", "1", "k"]).expect("FCALL");
    }
    let left = memory(&mut client);
    assert!(left < 200_000, "{left}");
}

#[test]
fn scripts_read_first_elements_of_keys_that_they_do_not_declare() {
    let server = start("2", &[]);
    let mut client = server.client();
    let of = |client: &mut Connection, words: &[&str]| -> Value {
        run(client, words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    };
    let script = "return redis.call(unpack(ARGV))";
    // Some of the keys are another worker's than that of the connection.
    for n in 0..16 {
        let (list, zset) = (format!("list{n}"), format!("zset{n}"));
        let (stream, other) = (format!("stream{n}"), format!("other{n}"));
        of(&mut client, &["RPUSH", &list, "1", "2", "3", "4"]);
        of(&mut client, &["ZADD", &zset, "1", "a", "2", "b"]);
        of(&mut client, &["XADD", &stream, "1-1", "f", "v"]);
        of(&mut client, &["XGROUP", "CREATE", &stream, "g", "0"]);
        for command in [
            &["BLPOP", &list, "0"][..],
            &["BLMPOP", "0", "1", &list, "LEFT"],
            &["BLMOVE", &list, &other, "LEFT", "LEFT", "0"],
            &["BRPOPLPUSH", &list, &other, "0"],
            &["BZPOPMIN", &zset, "0"],
            &["BZMPOP", "0", "1", &zset, "MAX"],
            &["XREAD", "STREAMS", &stream, "0"],
            &["XREADGROUP", "GROUP", "g", "c", "STREAMS", &stream, ">"],
        ] {
            let found = of(&mut client, &[&["EVAL", script, "0"][..], command].concat());
            assert_ne!(found, Value::Nil, "{command:?}");
        }
        let left = of(&mut client, &["EXISTS", &list, &zset]);
        assert_eq!(left, Value::Int(0), "{n}");
    }
}
