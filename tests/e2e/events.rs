//! Keyspace events.

use super::Server;
use redis::Value;
use std::time::Duration;

/// Runs commands one after the other; the events that come of each, `event key@db`.
fn events(server: &Server, commands: &[&str]) -> Vec<Vec<String>> {
    let (mut client, mut listener) = (server.client(), server.client());
    let mut listener = listener.as_pubsub();
    listener.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    listener.psubscribe("__keyevent@*").expect("subscribed");
    listener.subscribe("end").expect("subscribed");
    let mut all = Vec::new();
    for line in commands {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let _: Value = command.query(&mut client).expect("a reply");
        // Keys expire, and owners publish the changes that other workers have made.
        std::thread::sleep(Duration::from_millis(300));
        let heard: u64 =
            redis::cmd("PUBLISH").arg("end").arg("").query(&mut client).expect("a number");
        assert_eq!(heard, 1);
        let mut told = Vec::new();
        loop {
            let message = listener.get_message().expect("a message");
            let Some(rest) = message.get_channel_name().strip_prefix("__keyevent@") else { break };
            let (db, event) = rest.split_once("__:").expect("a channel");
            told.push(format!("{event} {}@{db}", message.get_payload::<String>().expect("a key")));
        }
        told.sort();
        all.push(told);
    }
    all
}

#[test]
fn commands_on_several_workers_tell_as_those_on_one_do() {
    let options = ["--workers", "2", "--shards", "2", "--notify-keyspace-events", "AEn"];
    let mut server = Server::start(&options);
    for (line, told) in [
        ("MSET {a}1 1 {b}1 2", &["new {a}1@0", "new {b}1@0", "set {a}1@0", "set {b}1@0"][..]),
        ("RENAME {a}1 {b}2", &["new {b}2@0", "rename_from {a}1@0", "rename_to {b}2@0"]),
        ("MOVE {b}2 3", &["move_from {b}2@0", "move_to {b}2@3", "new {b}2@3"]),
        ("DEL {a}1 {b}1 {b}2", &["del {b}1@0"]),
        ("RPUSH {a}l x", &["new {a}l@0", "rpush {a}l@0"]),
        ("RPOPLPUSH {a}l {b}l", &["del {a}l@0", "lpush {b}l@0", "new {b}l@0", "rpop {a}l@0"]),
        ("SET {a}e 1 PX 1", &["expire {a}e@0", "expired {a}e@0", "new {a}e@0", "set {a}e@0"]),
        ("FLUSHALL", &[]),
    ] {
        assert_eq!(events(&server, &[line])[0], told, "{line}");
    }
    let () = redis::cmd("MSET")
        .arg(&["{a}1", "1", "{b}1", "2"])
        .query(&mut server.client())
        .expect("stored");
    server.stop();
    server.restart();
    // Nothing is in memory, so the commands run more than once.
    let told =
        events(&server, &["INCR {a}1", "MSETNX {a}1 1 {b}3 1", "COPY {a}1 {b}3", "GET {b}1"]);
    let expected: [&[&str]; 4] = [&["incrby {a}1@0"], &[], &["copy_to {b}3@0", "new {b}3@0"], &[]];
    assert_eq!(told, expected);
}

#[test]
fn a_part_of_a_script_that_runs_again_tells_its_misses_once() {
    let server =
        Server::start(&["--workers", "2", "--shards", "2", "--notify-keyspace-events", "Em"]);
    let code = "redis.call('SWAPDB',5,6)redis.call('EXISTS','{a}x','{b}x','{a}y')return(redis.call('GET','{b}y'))";
    let told = &events(&server, &[&format!("EVAL {code} 0")])[0];
    assert_eq!(told, &["{a}x", "{a}y", "{b}x", "{b}y"].map(|key| format!("keymiss {key}@0")));
    let stats: String =
        redis::cmd("INFO").arg("stats").query(&mut server.client()).expect("the figures");
    assert!(stats.contains("keyspace_misses:4\r\n"), "{stats}");
}
