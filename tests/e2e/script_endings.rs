//! Scripts that somebody has written so that they cannot be ended: others go on all the while, and
//! SCRIPT KILL or SIGTERM ends each of them.

use super::Server;
use redis::{Connection, RedisResult, Value};
use std::io::{BufRead, BufReader, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, scope, sleep, spawn};
use std::time::{Duration, Instant};

/// How long the end of a script may take on a busy machine. One that is not ended runs for minutes,
/// or for ever.
const PATIENCE: Duration = Duration::from_secs(20);

/// Scripts that run at a time, each on a thread of its own.
const MAX_APART: usize = 8;

/// How long others may wait for an answer.
const NEIGHBOURS_WAIT: Duration = Duration::from_secs(5);

const OPTIONS: &[&str] = &["--workers", "2", "--shards", "2", "--busy-reply-threshold", "0"];

/// Scripts that loop where an error is caught or handled.
const CATCHING: &[&str] = &[
    "xpcall(function() while true do end end, function() while true do end end)",
    "while true do pcall(coroutine.wrap(function() while true do pcall(coroutine.wrap(function() while true do end end)) end end)) end",
    "local function f() while true do pcall(coroutine.wrap(f)) end end f()",
    "local t = setmetatable({}, {__index = function() while true do end end}) while true do pcall(function() return t.x end) end",
    "while true do load(function() while true do end end) end",
];

/// One call, or one reply, of much native work.
const NATIVE: &[&str] = &[
    "return string.find(string.rep('a', 30000), string.rep('a*', 30) .. 'b')",
    "return string.gsub(string.rep('a', 30000), string.rep('a-', 30) .. 'b', '')",
    "local s = string.rep('x', 1000000) local a, b, t = s .. 'a', s .. 'b', {} for i = 1, 50000 do t[i] = i % 2 == 0 and a or b end table.sort(t)",
    "while true do local t = {} for i = 1, 20 do t = {t, t} end cjson.encode(t) end",
    "local t = {} for i = 1, 100 do t = {t, t} end while true do pcall(cjson.encode, t) end",
];

/// Loops of calls and instructions that take long each.
const LOOPS: &[&str] = &[
    "local t = {} for i = 1, 20000 do t[i] = {i} end while true do cjson.encode(t) end",
    "while true do redis.pcall('LRANGE', 'list', 0, -1) end",
    "local s = string.rep('x', 1000000) while true do local t = s .. 'y' end",
    "local s = string.rep('x', 1000000) local a, b = s .. 'a', s .. 'b' while true do local c = a < b end",
    "while true do loadstring('while 1 do ' .. string.rep('do break end ', 20000) .. 'end') end",
    "local t = {} for i = 1, 20000 do t[i] = {} end while true do collectgarbage() end",
    "while true do redis.sha1hex(string.rep('x', 1000000)) end",
];

fn run(client: &mut Connection, words: &[&str]) -> RedisResult<Value> {
    redis::cmd(words[0]).arg(&words[1..]).query(client)
}

fn in_background(server: &Server, words: &[&str]) -> JoinHandle<RedisResult<Value>> {
    let mut client = server.client();
    let words: Vec<String> = words.iter().map(ToString::to_string).collect();
    spawn(move || redis::cmd(&words[0]).arg(&words[1..]).query(&mut client))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "this does not happen: {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Runs `attack` while another client writes and reads keys of all workers, which is never to wait
/// for long.
fn beside_others(server: &Server, what: &str, attack: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (mut client, stop) = (server.client(), AtomicBool::new(false));
    let mut longest = Duration::ZERO;
    scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                let began = Instant::now();
                let key = format!("neighbour:{}", n % 8);
                run(&mut client, &["SET", &key, "x"]).expect("written");
                run(&mut client, &["GET", &key]).expect("read");
                longest = longest.max(began.elapsed());
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let _stop = Stop(&stop);
        attack();
    });
    assert!(longest < NEIGHBOURS_WAIT, "{what}: others waited {longest:?}");
}

/// Starts the command in `words`, and has it killed while others work.
fn attacked(server: &Server, words: &[&str], kill: &str) {
    let mut client = server.client();
    beside_others(server, words[1], || {
        let attack = in_background(server, words);
        // The command runs for a while.
        sleep(Duration::from_millis(20));
        until(words[1], || run(&mut client, &[kill, "KILL"]).is_ok() || attack.is_finished());
        until(words[1], || attack.is_finished());
        let text = attack.join().expect("joined").expect_err(words[1]).to_string();
        assert!(text.contains("killed by user"), "{}: {text}", words[1]);
    });
}

fn all_are_killed(scripts: &[&str]) {
    let server = Server::start(OPTIONS);
    let items: Vec<String> = (0..20_000).map(|n| n.to_string()).collect();
    let _: () =
        redis::cmd("RPUSH").arg("list").arg(items).query(&mut server.client()).expect("written");
    for script in scripts {
        attacked(&server, &["EVAL", script, "0"], "SCRIPT");
    }
}

#[test]
fn scripts_that_catch_errors_are_killed() {
    all_are_killed(CATCHING);
}

#[test]
fn scripts_in_native_work_are_killed() {
    all_are_killed(NATIVE);
}

#[test]
fn scripts_that_loop_over_native_work_are_killed() {
    all_are_killed(LOOPS);
}

#[test]
fn in_whatever_way_a_script_is_called_it_is_killed() {
    let server = Server::start(OPTIONS);
    let mut client = server.client();
    let reply = "local t = {} for i = 1, 40 do t = {t, t, t, t} end return t";
    let library = format!(
        "#!lua name=lib\nlocal function f() {} end\nredis.register_function{{function_name='f', \
         callback=f, flags={{'no-writes'}}}}",
        CATCHING[0]
    );
    run(&mut client, &["FUNCTION", "LOAD", &library]).expect("loaded");
    attacked(&server, &["EVAL_RO", CATCHING[1], "0"], "SCRIPT");
    attacked(&server, &["FCALL", "f", "1", "k"], "FUNCTION");
    attacked(&server, &["FCALL_RO", "f", "0"], "FUNCTION");
    attacked(&server, &["EVAL", CATCHING[0], "3", "a", "b", "c"], "SCRIPT");
    // The returned table may be small, and its rendering endless.
    let answer = run(&mut client, &["EVAL", reply, "0"]);
    assert!(answer.expect_err("refused").to_string().contains("memory"));
    let raised = "error(setmetatable({}, {__index = function() while true do end end}))";
    assert!(run(&mut client, &["EVAL", raised, "0"]).is_err());
    // Code of a library has half a second.
    for code in ["while true do end", "local s = ('a'):rep(30000):find(('a*'):rep(30) .. 'b')"] {
        let library = format!("#!lua name=endless\n{code}");
        let late = run(&mut client, &["FUNCTION", "LOAD", &library]).expect_err("late").to_string();
        assert!(late.contains("timeout"), "{late}");
    }
}

#[test]
fn a_text_that_takes_long_to_compile_is_refused() {
    let server = Server::start(OPTIONS);
    let script = format!("while 1 do {} end", "do break end ".repeat(300_000));
    for words in [&["EVAL", &script, "0"][..], &["SCRIPT", "LOAD", &script]] {
        beside_others(&server, words[0], || {
            let refused = run(&mut server.client(), words).expect_err("too long").to_string();
            assert!(refused.contains("it takes more than"), "{refused}");
        });
    }
    // A script that is long and simple is compiled.
    let script = format!("{} return 'done'", "local x = 1 x = x + 1 ".repeat(150));
    let long = script.replace("local", &format!("{}local", " ".repeat(400)));
    assert!(run(&mut server.client(), &["EVAL", &long, "0"]).is_ok());
    assert!(run(&mut server.client(), &["SCRIPT", "LOAD", &long]).is_ok());
}

/// Waits until so many clients are in a command.
fn until_in(client: &mut Connection, command: &str, clients: usize) {
    until(command, || {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(client).expect("listed");
        list.matches(&format!("cmd={command} ")).count() == clients
    });
    // The command is received. It needs some milliseconds until it waits or runs for long.
    sleep(Duration::from_millis(100));
}

/// Repeats SCRIPT KILL until all of these have ended.
fn kill_all(client: &mut Connection, attacks: Vec<JoinHandle<RedisResult<Value>>>) {
    until("all are killed", || {
        let _ = run(client, &["SCRIPT", "KILL"]);
        attacks.iter().all(JoinHandle::is_finished)
    });
    for attack in attacks {
        let text = attack.join().expect("joined").expect_err("killed").to_string();
        assert!(text.contains("killed by user"), "{text}");
    }
}

#[test]
fn scripts_that_wait_to_begin_run_behind_those_that_are_killed_or_end_with_their_client() {
    let server = Server::start(OPTIONS);
    let mut client = server.client();
    // SCRIPT KILL ends no function.
    let library = "#!lua name=ghosts\nredis.register_function('ghost', function(keys) \
                   redis.call('SET', keys[1], 1) for i = 1, 20000000 do local x = i end end)";
    run(&mut client, &["FUNCTION", "LOAD", library]).expect("loaded");
    let endless: Vec<_> = (0..10).map(|n| ["EVAL", CATCHING[n % 5], "0"]).collect();
    let attacks: Vec<_> = endless.iter().map(|words| in_background(&server, words)).collect();
    until_in(&mut client, "eval", 10);
    // More than may run wait before it.
    let mut last = server.client();
    let id: u64 = redis::cmd("CLIENT").arg("ID").query(&mut last).expect("its id");
    let last = spawn(move || run(&mut last, &["FCALL", "ghost", "1", "ghost"]));
    until_in(&mut client, "fcall", 1);
    run(&mut client, &["CLIENT", "KILL", "ID", &id.to_string()]).expect("closed");
    assert!(last.join().expect("joined").is_err());
    beside_others(&server, "ten that are killed", || kill_all(&mut client, attacks));
    // If it ran, this waited for it.
    let ghost: Option<String> = redis::cmd("GET").arg("ghost").query(&mut client).expect("read");
    assert_eq!(ghost, None, "a script has begun whose client was closed before");
}

#[test]
fn scripts_in_transactions_are_killed_and_nothing_is_half_written() {
    let server = Server::start(OPTIONS);
    let mut client = server.client();
    for script in [CATCHING[0], CATCHING[4], NATIVE[0], LOOPS[6]] {
        run(&mut client, &["DEL", "a", "b", "c"]).expect("deleted");
        let mut other = server.client();
        let script_ = script.to_owned();
        beside_others(&server, script, || {
            let attack = spawn(move || -> RedisResult<Value> {
                run(&mut other, &["MULTI"])?;
                run(&mut other, &["SET", "a", "1"])?;
                run(&mut other, &["EVAL", &script_, "1", "c"])?;
                run(&mut other, &["SET", "b", "1"])?;
                run(&mut other, &["EXEC"])
            });
            until_in(&mut client, "exec", 1);
            until(script, || {
                let _ = run(&mut client, &["SCRIPT", "KILL"]);
                attack.is_finished()
            });
            let reply = format!("{:?}", attack.join().expect("joined"));
            assert!(reply.contains("killed by user"), "{script}: {reply}");
            let written: Vec<Option<String>> =
                redis::cmd("MGET").arg(&["a", "b", "c"]).query(&mut client).expect("read");
            let whole = [Some("1".to_owned()), Some("1".to_owned()), None];
            assert!(written == whole || written == [None, None, None], "{script}: {written:?}");
        });
    }
}

#[test]
fn scripts_that_read_cold_data_are_killed() {
    let mut server = Server::start(OPTIONS);
    let mut load = redis::pipe();
    for n in 0..20_000 {
        load.set(format!("cold:{n}"), "x".repeat(100)).ignore();
    }
    let () = load.query(&mut server.client()).expect("written");
    let each = "local n = 0 while true do n = (n + 1) % 20000 redis.CALL('GET', 'cold:' .. n) end";
    for call in ["call", "pcall"] {
        server.stop();
        server.restart();
        attacked(&server, &["EVAL", &each.replace("CALL", call), "0"], "SCRIPT");
        let written = "redis.call('SET', KEYS[1], 1) local n = 0 while true do n = n + 1 \
                       redis.call('EXISTS', 'cold:' .. n % 20000) end";
        let mut client = server.client();
        // The script has written: only the end of the server ends it, and undoes its writes.
        let attack = in_background(&server, &["EVAL", written, "1", "half"]);
        until_in(&mut client, "eval", 1);
        until("it has written", || {
            let refused = run(&mut client, &["SCRIPT", "KILL"]).map_err(|error| error.to_string());
            refused.is_err_and(|text| text.to_lowercase().contains("unkillable"))
        });
        server.stop();
        assert!(attack.join().expect("joined").is_err());
        server.restart();
        let half: Option<String> =
            redis::cmd("GET").arg("half").query(&mut server.client()).expect("read");
        assert_eq!(half, None, "what a script has written that was ended");
    }
}

#[test]
fn a_client_that_is_killed_while_its_wait_begins_leaves_no_lock() {
    let server = Server::start(OPTIONS);
    let mut client = server.client();
    client.set_read_timeout(Some(PATIENCE)).expect("set");
    let keys: Vec<String> = (0..8).map(|n| format!("k{n}")).collect();
    for held in &keys[..4] {
        let attack = in_background(&server, &["EVAL", CATCHING[0], "1", held]);
        until_in(&mut client, "eval", 1);
        let mut blocked = server.client();
        let id: u64 = redis::cmd("CLIENT").arg("ID").query(&mut blocked).expect("its id");
        let words = keys.clone();
        let blocked = spawn(move || -> RedisResult<Value> {
            redis::cmd("BLPOP").arg(words).arg(0).query(&mut blocked)
        });
        // BLPOP holds the keys of one worker, or waits for them.
        until_in(&mut client, "blpop", 1);
        run(&mut client, &["CLIENT", "KILL", "ID", &id.to_string()]).expect("closed");
        assert!(blocked.join().expect("joined").is_err());
        kill_all(&mut client, vec![attack]);
        for key in &keys {
            run(&mut client, &["EXISTS", key]).expect("nobody holds the key");
        }
    }
}

#[test]
fn commands_that_wait_for_a_script_are_refused_once_it_is_busy() {
    for workers in ["1", "2"] {
        let options = ["--workers", workers, "--shards", "2", "--busy-reply-threshold", "1500"];
        let server = Server::start(&options);
        let mut client = server.client();
        // The script ends up with a hold on every worker.
        let script =
            "local n = 0 while true do n = n + 1 redis.call('GET', KEYS[1] .. n % 100) end";
        let attack = in_background(&server, &["EVAL", script, "1", "{k}"]);
        until_in(&mut client, "eval", 1);
        sleep(Duration::from_millis(300));
        let waiting = [
            in_background(&server, &["SET", "{k}", "1"]),
            in_background(&server, &["GET", "{k}50"]),
            in_background(&server, &["MSET", "a", "1", "b", "2", "c", "3", "{k}", "4"]),
            in_background(&server, &["EVAL", "redis.call('SET', KEYS[1], 5)", "1", "{k}"]),
            in_background(&server, &["FLUSHALL"]),
        ];
        let mut other = server.client();
        let exec = spawn(move || {
            run(&mut other, &["MULTI"]).expect("begun");
            run(&mut other, &["SET", "{k}", "6"]).expect("queued");
            run(&mut other, &["EXEC"])
        });
        for reply in waiting {
            let error = reply.join().expect("joined").expect_err("the script is busy");
            assert_eq!(error.code(), Some("BUSY"), "{error}");
        }
        let error = exec.join().expect("joined").expect_err("the script is busy").to_string();
        assert!(error.contains("discarded because of: BUSY Valkey is busy"), "{error}");
        let error = run(&mut client, &["GET", "{k}"]).expect_err("so is one that comes later");
        assert_eq!(error.code(), Some("BUSY"));
        kill_all(&mut client, vec![attack]);
        for key in ["{k}", "a", "b", "c"] {
            let found = run(&mut client, &["EXISTS", key]).expect("nobody holds a key");
            assert_eq!(found, Value::Int(0), "{key}");
        }
        run(&mut client, &["MSET", "a", "1", "b", "2", "c", "3", "{k}", "4"]).expect("stored");
    }
}

/// Starts a server on which a script holds the key `{k}` without end.
fn with_endless_script(
    workers: &str,
    busy_ms: &str,
) -> (Server, Connection, JoinHandle<RedisResult<Value>>) {
    let options = ["--workers", workers, "--shards", "2", "--busy-reply-threshold", busy_ms];
    let server = Server::start(&options);
    let mut client = server.client();
    let endless = ["EVAL", "while true do redis.call('GET', KEYS[1]) end", "1", "{k}"];
    let attack = in_background(&server, &endless);
    until_in(&mut client, "eval", 1);
    (server, client, attack)
}

#[test]
fn no_script_waits_behind_busy_ones_for_a_thread() {
    for workers in ["1", "2"] {
        let (server, mut client, attack) = with_endless_script(workers, "3000");
        let others = ["EVAL", "while true do end", "0"];
        let mut attacks = vec![attack];
        attacks.extend((1..MAX_APART).map(|_| in_background(&server, &others)));
        until_in(&mut client, "eval", MAX_APART);
        let waiting = [in_background(&server, &others), in_background(&server, &others)];
        for reply in waiting {
            let error = reply.join().expect("joined").expect_err("a script is busy");
            assert_eq!(error.code(), Some("BUSY"), "{error}");
        }
        kill_all(&mut client, attacks);
    }
}

#[test]
fn deletions_that_take_all_room_for_keys_do_not_wait_for_a_busy_script() {
    let (server, mut client, attack) = with_endless_script("2", "3000");
    // There is room for one at a time: the next one waits for the lock when the first is refused.
    let names: Vec<String> = (0..15_000).map(|n| format!("{{k}}{n}")).collect();
    let mut del = vec!["DEL", "{k}", "a", "b"];
    del.extend(names.iter().map(String::as_str));
    let waiting: Vec<_> = (0..3).map(|_| in_background(&server, &del)).collect();
    for reply in waiting {
        let error = reply.join().expect("joined").expect_err("a script is busy");
        assert_eq!(error.code(), Some("BUSY"), "{error}");
    }
    kill_all(&mut client, vec![attack]);
    run(&mut client, &del).expect("there is room again");
}

#[test]
fn watch_does_not_wait_for_a_busy_script_and_exec_fails() {
    for workers in ["1", "2"] {
        let (server, mut client, attack) = with_endless_script(workers, "1500");
        let mut early = server.client();
        assert_eq!(run(&mut early, &["WATCH", "{k}", "other"]), Ok(Value::Okay));
        let busy = run(&mut client, &["GET", "{k}"]).expect_err("it has waited until then");
        assert_eq!(busy.code(), Some("BUSY"));
        let mut late = server.client();
        assert_eq!(run(&mut late, &["WATCH", "{k}"]), Ok(Value::Okay));
        kill_all(&mut client, vec![attack]);
        for watcher in [&mut early, &mut late] {
            for want in [Value::Nil, Value::Array(vec![Value::Okay])] {
                run(watcher, &["MULTI"]).expect("begun");
                run(watcher, &["SET", "{k}", "1"]).expect("queued");
                assert_eq!(run(watcher, &["EXEC"]), Ok(want));
                run(watcher, &["WATCH", "{k}"]).expect("watched");
            }
        }
    }
}

#[test]
fn a_server_that_is_told_to_end_ends_whatever_scripts_do() {
    let mut server = Server::start(OPTIONS);
    for round in 0..2 {
        let mut client = server.client();
        let written = format!("redis.call('SET', KEYS[1], '{round}') {}", CATCHING[0]);
        let attacks = [
            in_background(&server, &["EVAL", CATCHING[round], "0"]),
            in_background(&server, &["EVAL", NATIVE[round], "0"]),
            in_background(&server, &["EVAL", LOOPS[round], "0"]),
            in_background(&server, &["EVAL", &written, "1", "written"]),
        ];
        run(&mut client, &["SET", "before", "1"]).expect("written");
        sleep(Duration::from_millis(100));
        server.stop();
        for attack in attacks {
            assert!(attack.join().expect("joined").is_err());
        }
        server.restart();
        let mut client = server.client();
        let written: Option<String> = redis::cmd("GET").arg("written").query(&mut client).unwrap();
        assert_eq!(written, None, "what a script has written that was ended");
        let before: Option<String> = redis::cmd("GET").arg("before").query(&mut client).unwrap();
        assert_eq!(before.as_deref(), Some("1"));
    }
}

/// The lines that a client sees which watches while `words` run.
fn shown(server: &Server, commands: &[&[&str]]) -> Vec<String> {
    let (mut client, mut watcher) = (server.client(), server.socket());
    watcher.write_all(b"MONITOR\r\n").expect("sent");
    let mut lines = BufReader::new(watcher).lines().map(|line| line.expect("a line"));
    assert_eq!(lines.next().as_deref(), Some("+OK"));
    for words in commands {
        let _ = run(&mut client, words);
    }
    let _ = run(&mut client, &["ECHO", "end"]);
    let lines = lines.take_while(|line| !line.contains("\"ECHO\""));
    lines
        .map(|line| {
            let (head, text) = line.split_once("] ").expect("a command");
            let source = if head.ends_with(" lua") { "lua: " } else { "" };
            format!("{source}{text}")
        })
        .collect()
}

#[test]
fn monitors_are_shown_scripts_that_fail() {
    let server = Server::start(OPTIONS);
    let sha = "f".repeat(40);
    let commands: &[&[&str]] = &[
        &["evalSHA", "abc", "0"],
        &["EVALSHA", &sha, "0"],
        &["evalsha", &sha, "x"],
        &["fcall", "nofn", "0"],
        &["FCALL_RO", "nofn", "x"],
        &["eval", "syntax error(", "0"],
        &["eval", "return 1", "5"],
        &["eval_ro", "return redis.call('SET', 'k', 1)", "1", "k"],
        &["eval", "redis.call('GET', 'k') error('x')", "1", "k"],
        &["MULTI"],
        &["SET", "a", "1"],
        &["fcall", "nofn", "0"],
        &["ExeC"],
        &["EXEC"],
    ];
    assert_eq!(
        shown(&server, commands),
        [
            r#""evalSHA" "abc" "0""#.to_owned(),
            format!(r#""EVALSHA" "{sha}" "0""#),
            format!(r#""evalsha" "{sha}" "x""#),
            r#""fcall" "nofn" "0""#.to_owned(),
            r#""FCALL_RO" "nofn" "x""#.to_owned(),
            r#""eval" "syntax error(" "0""#.to_owned(),
            r#""eval" "return 1" "5""#.to_owned(),
            r#""eval_ro" "return redis.call('SET', 'k', 1)" "1" "k""#.to_owned(),
            r#""eval" "redis.call('GET', 'k') error('x')" "1" "k""#.to_owned(),
            r#"lua: "GET" "k""#.to_owned(),
            r#""MULTI""#.to_owned(),
            r#""SET" "a" "1""#.to_owned(),
            r#""fcall" "nofn" "0""#.to_owned(),
            r#""ExeC""#.to_owned(),
            r#""EXEC""#.to_owned(),
        ]
    );
}

#[test]
fn commands_of_a_script_are_in_the_slow_log_before_it() {
    let server = Server::start(&[OPTIONS, &["--slowlog-log-slower-than", "0"]].concat());
    let mut client = server.client();
    // In place, and at a coordinator.
    for keys in [&["k"][..], &["k", "a", "b", "c", "d"]] {
        run(&mut client, &["SLOWLOG", "RESET"]).expect("reset");
        let script = "redis.call('SET', KEYS[1], 1) return redis.call('GET', KEYS[1])";
        let count = keys.len().to_string();
        run(&mut client, &[&["EVAL", script, &count], keys].concat()).expect("run");
        type Entry = (u64, u64, u64, Vec<String>, String, String);
        let log: Vec<Entry> =
            redis::cmd("SLOWLOG").arg("GET").arg(3).query(&mut client).expect("the log");
        let names: Vec<&str> = log.iter().map(|entry| &*entry.3[0]).collect();
        assert_eq!(names, ["EVAL", "GET", "SET"], "the latest first");
    }
}
