//! The server's figures and settings have the names that the reference shows
//! (`data/shown_names.txt`).

use super::Server;
use redis::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// Names of the reference that are left out, as nothing true can be said.
const LEFT_OUT: &[&str] = &[
    // The tables of databases are counted with the values.
    "memory db.0",
    "memory overhead.db.hashtable.lut",
];

fn texts(value: Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.into_iter().flat_map(texts).collect(),
        Value::SimpleString(text) => vec![text],
        Value::BulkString(bytes) => vec![String::from_utf8_lossy(&bytes).into_owned()],
        other => vec![format!("{other:?}")],
    }
}

#[test]
fn names_that_the_reference_shows_are_shown() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let mut shown = BTreeSet::new();
    let info: String = redis::cmd("INFO").arg("everything").query(&mut client).expect("a text");
    let mut section = String::new();
    for line in info.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            section = title.to_lowercase();
        } else if let Some((name, _)) = line.split_once(':') {
            assert!(shown.insert(format!("info {section} {name}")), "{section} {name} twice");
        }
    }
    let stats: Value = redis::cmd("MEMORY").arg("STATS").query(&mut client).expect("a map");
    let Value::Array(stats) = stats else { panic!("{stats:?}") };
    for name in stats.into_iter().step_by(2).flat_map(texts) {
        shown.insert(format!("memory {name}"));
    }
    let wanted: BTreeSet<&str> = include_str!("../data/shown_names.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let commands: BTreeSet<&str> =
        wanted.iter().filter_map(|line| line.strip_prefix("help ")?.split(' ').next()).collect();
    for command in commands {
        let help: Value = redis::cmd(command).arg("HELP").query(&mut client).expect("a list");
        for line in texts(help).into_iter().skip(1).filter(|line| !line.starts_with(' ')) {
            shown.insert(format!("help {command} {line}"));
        }
    }
    let missing: Vec<&&str> =
        wanted.iter().filter(|name| !shown.contains(**name) && !LEFT_OUT.contains(*name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for name in LEFT_OUT {
        assert!(wanted.contains(name) && !shown.contains(*name), "{name} is shown");
    }
}

#[test]
fn the_figures_of_memory_stats_are_those_of_the_data() {
    let server = Server::start(&[]);
    let mut client = server.client();
    for key in 0..10 {
        let () = redis::cmd("SET").arg(key).arg("x").query(&mut client).expect("stored");
    }
    let () = redis::cmd("SELECT").arg(3).query(&mut client).expect("chosen");
    let () = redis::cmd("SET").arg("key").arg("x").query(&mut client).expect("stored");
    let stats: Value = redis::cmd("MEMORY").arg("STATS").query(&mut client).expect("a map");
    let texts = texts(stats);
    let at = texts.iter().position(|text| text == "keys.count").expect("the field");
    assert_eq!(texts[at + 1], "int(11)");
}

#[test]
fn statistics_of_a_client_count_ended_commands() {
    let server = Server::start(&["--workers", "2"]);
    let mut client = server.client();
    let mut ask = |words: &[&str]| -> Value {
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(word);
        });
        command.query(&mut client).unwrap_or(Value::Nil)
    };
    let mut total = |words: &[&[&str]]| -> u64 {
        for words in words {
            ask(words);
        }
        let info = texts(ask(&["CLIENT", "INFO"])).concat();
        let total = info.split("tot-cmds=").nth(1).and_then(|rest| rest.split(' ').next());
        total.expect("the field").trim().parse().expect("a number")
    };
    let first = total(&[]);
    // CLIENT INFO counts once it has ended.
    assert_eq!(total(&[]), first + 1);
    assert_eq!(total(&[&["SET", "a", "1"]]), first + 3);
    // An unknown command, or one with a wrong number of arguments, does not run; one that meets a
    // wrong type does.
    assert_eq!(total(&[&["NOSUCH"], &["GET"], &["LPUSH", "a", "1"]]), first + 5);
    let queued: &[&[&str]] = &[&["MULTI"], &["SET", "a", "1"], &["SET", "b", "1"], &["EXEC"]];
    assert_eq!(total(queued), first + 10);
    assert_eq!(total(&[&["BLPOP", "none", "0.01"]]), first + 12);
}

#[test]
fn a_client_whose_first_command_waits_for_the_end_of_a_pause_has_run_none() {
    let server = Server::start(&["--workers", "1"]);
    let mut client = server.client();
    let mut ask = |words: &[&str]| -> String {
        let answer: Value = redis::cmd(words[0]).arg(&words[1..]).query(&mut client).expect("it");
        texts(answer).concat()
    };
    let mut paused = server.socket();
    ask(&["CLIENT", "PAUSE", "100000", "WRITE"]);
    paused.write_all(b"SET k 1\r\n").expect("sent");
    let deadline = Instant::now() + Duration::from_secs(60);
    let line = loop {
        let list = ask(&["CLIENT", "LIST"]);
        if let Some(line) = list.lines().find(|line| line.contains(" flags=b ")) {
            break line.to_owned();
        }
        assert!(Instant::now() < deadline, "nobody waits: {list}");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(line.ends_with(" tot-cmds=0"), "{line}");
    ask(&["CLIENT", "UNPAUSE"]);
    let mut answer = [0; 5];
    paused.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"+OK\r\n");
    let list = ask(&["CLIENT", "LIST"]);
    assert!(list.lines().any(|line| line.ends_with(" tot-cmds=1")), "{list}");
}

#[test]
fn command_docs_tells_the_arguments() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let docs: Value = redis::cmd("COMMAND")
        .arg("DOCS")
        .arg("set")
        .arg("getset")
        .arg(&["migrate", "replconf", "restore-asking"])
        .query(&mut client)
        .expect("docs");
    let all = texts(docs);
    let shown = all.join(" ");
    for part in [
        "arguments name key type key display_text key key_spec_index int(0) name value type string",
        "name condition type oneof flags optional arguments name nx type pure-token display_text nx token NX since 2.6.12",
        "doc_flags deprecated deprecated_since 6.2.0 arguments",
        "name empty-string type pure-token display_text empty-string token  name destination-db",
        "since 3.0.0 group server complexity O(1) doc_flags syscmd",
        "since 3.0.0 group server complexity O(N) in the size of the value",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
}

#[test]
fn programs_find_the_version_in_lolwut() {
    let server = Server::start(&[]);
    let text: String = redis::cmd("LOLWUT").query(&mut server.client()).expect("a text");
    assert!(text.ends_with("\nRedis ver. 8.1.1\n"), "{text}");
}
