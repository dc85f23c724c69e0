//! Scripts that end with an error, or are ended.

use super::Server;
use redis::{Connection, RedisResult, Value};
use std::time::{Duration, Instant};

fn eval(client: &mut Connection, code: &str, keys: &[&str]) -> RedisResult<Value> {
    redis::cmd("EVAL").arg(code).arg(keys.len()).arg(keys).query(client)
}

fn figure(client: &mut Connection, name: &str) -> u64 {
    let info: String = redis::cmd("INFO").arg("flagstone").query(client).expect("its figures");
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect(name).parse().expect("a number")
}

#[test]
fn the_error_of_a_script_comes_when_its_writes_are_on_disk() {
    let server = Server::start(&["--workers", "2", "--shards", "2", "--appendfsync", "always"]);
    let mut client = server.client();
    for keys in [&["{a}"][..], &["{b}"], &["{a}", "{b}"]] {
        let code = "for _, key in ipairs(KEYS) do redis.call('INCR', key) end error('end')";
        for round in 0..50 {
            let before = figure(&mut client, "journal_end_lsn");
            eval(&mut client, code, keys).expect_err("its error");
            let durable = figure(&mut client, "journal_durable_lsn");
            assert!(durable > before, "round {round} of {keys:?}");
        }
    }
}

#[test]
fn changes_of_an_ended_script_are_taken_back_and_it_is_answered() {
    for workers in ["1", "2"] {
        let limit = ["--script-instruction-limit", "15000"];
        let options = ["--workers", workers, "--shards", "2"];
        let server = Server::start(&[&options[..], &limit].concat());
        let mut client = server.client();
        let mut listener = server.client();
        let mut listener = listener.as_pubsub();
        listener.subscribe("news").expect("subscribed");
        listener.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        client.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        for keys in [&["{a}"][..], &["{b}"], &["{a}", "{b}"]] {
            let code = "for _, key in ipairs(KEYS) do redis.call('SET', key, 1) end
                redis.call('PUBLISH', 'news', 'it has run') while true do end";
            let error = eval(&mut client, code, keys).expect_err("ended").to_string();
            assert!(error.contains("script-instruction-limit"), "{error}");
            let there: u64 = redis::cmd("EXISTS").arg(keys).query(&mut client).expect("a count");
            assert_eq!(there, 0, "{keys:?}");
        }
        let _: u64 = redis::cmd("PUBLISH").arg(&["news", "end"]).query(&mut client).expect("sent");
        let heard: String = listener.get_message().expect("a message").get_payload().expect("text");
        assert_eq!(heard, "end");
    }
}

#[test]
fn one_kill_ends_a_script_that_catches_everything() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    let code = "while true do
        local call = coroutine.wrap(function()
            while true do pcall(redis.call, 'GET', '{a}') pcall(redis.call, 'GET', '{b}') end
        end)
        pcall(call)
    end";
    std::thread::scope(|scope| {
        let spinning = scope.spawn(|| {
            let mut client = server.client();
            client.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
            eval(&mut client, code, &[])
        });
        let deadline = Instant::now() + Duration::from_secs(20);
        while redis::cmd("SCRIPT").arg("KILL").query::<String>(&mut client).is_err() {
            assert!(Instant::now() < deadline, "it does not run");
        }
        let error = spinning.join().expect("no panic").expect_err("killed").to_string();
        let killed = "killed by user with SCRIPT KILL. script: ";
        assert!(error.contains(killed) && error.contains(", on @user_script:"), "{error}");
    });
}
