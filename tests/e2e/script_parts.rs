//! Commands in scripts do what they do by themselves.

use super::Server;
use super::followers::contents;
use super::neighbours::{TWO_WORKERS, encode};
use super::together::{Draws, answers, answers_to};

/// Runs each argument as a command, and returns their replies.
const SCRIPT: &str = "local out={} for i,line in ipairs(ARGV) do local words={} \
    for word in string.gmatch(line,'%S+') do words[#words+1]=word end \
    out[i]=redis.pcall(unpack(words)) end return out";

/// Commands that scripts may not run, or whose errors are others there.
const OTHERS: &[&str] = &["SELECT", "MULTI", "EXEC", "WATCH", "CLIENT", "EVAL", "NOSUCH"];

fn runs_in_scripts(line: &str) -> bool {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    !OTHERS.contains(&name) && (name, words.count()) != ("MSET", 1)
}

/// Runs commands of the same names and lengths behind each other, so that those of a script find their
/// arguments where those of earlier ones were.
fn compare(options: &[&str]) {
    let plain = Server::start(&["--workers", "1", "--shards", "2"]);
    let mut scripted = Server::start(options);
    let mut draws = Draws(0x9e37_79b9_7f4a_7c15);
    for life in 0..3 {
        let mut sockets = [&plain, &scripted].map(Server::socket);
        for n in 0..80 {
            let mut lines = Vec::new();
            while lines.len() < 2 + n % 6 {
                lines.extend(draws.lines().into_iter().filter(|line| runs_in_scripts(line)));
            }
            let mut words = vec![&b"EVAL"[..], SCRIPT.as_bytes(), b"0"];
            words.extend(lines.iter().map(|line| line.as_bytes()));
            let end = format!("end{n}");
            let want = answers(&mut sockets[0], &lines, &end).replace("*-1\r\n", "$-1\r\n");
            let got = answers_to(&mut sockets[1], encode(&words), &end);
            let want = format!("*{}\r\n{want}", lines.len());
            assert_eq!(got, want, "script {n} of life {life}: {lines:#?}");
        }
        let [want, got] = [&plain, &scripted].map(|server| contents(&mut server.client(), 0));
        assert_eq!(got, want, "the data in life {life}");
        // All is read from the disk again.
        scripted.kill();
        scripted.restart();
    }
}

#[test]
fn commands_in_scripts_answer_and_store_as_by_themselves() {
    compare(&["--workers", "1", "--shards", "2"]);
}

#[test]
fn commands_in_scripts_on_several_workers_answer_and_store_as_by_themselves() {
    compare(&TWO_WORKERS);
}

/// A script has its arguments where those of the command before were.
#[test]
fn the_hash_of_a_key_is_not_taken_for_that_of_the_next_command() {
    let server = Server::start(&["--workers", "1", "--shards", "2"]);
    let script = b"redis.call('MSET',KEYS[1],1) return redis.call('SADD',KEYS[2],1)";
    let request = encode(&[b"EVAL", script, b"2", b"a", b"b"]);
    assert!(answers_to(&mut server.socket(), request, "added").starts_with(":1\r\n"));
    let got = answers(&mut server.socket(), &["SCARD b".to_owned(), "GET a".to_owned()], "there");
    assert!(got.starts_with(":1\r\n$1\r\n1\r\n"), "{got}");
}

/// Commands before a script run before it, whatever keys it needs and on whichever worker.
#[test]
fn a_script_waits_for_the_commands_before_it() {
    let server = Server::start(&TWO_WORKERS);
    let library = "#!lua name=l\nredis.register_function('set',\
        function(keys,args) return redis.call('SET',args[1],args[2]) end)";
    let load = encode(&[b"FUNCTION", b"LOAD", library.as_bytes()]);
    answers_to(&mut server.socket(), load, "loaded");
    let mut socket = server.socket();
    let script = "return redis.call('SET',ARGV[1],ARGV[2])";
    for n in 0..40 {
        let (key, number) = (format!("k{n}"), n.to_string());
        for words in [
            &["EVAL", script, "0", &key, &number][..],
            &["EVAL", script, "1", "other", &key, &number],
            &["FCALL", "set", "0", &key, &number],
        ] {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            let old = encode(&[b"SET", key.as_bytes(), b"old"]);
            let plain = [old.clone(), encode(&words)].concat();
            let queued = [old, encode(&[b"MULTI"]), encode(&words), encode(&[b"EXEC"])].concat();
            for pipeline in [plain, queued] {
                let got = answers_to(&mut socket, pipeline, "set");
                assert!(!got.contains('-'), "{got}");
                let got = answers(&mut socket, &[format!("GET {key}")], "got");
                let want = format!("${}\r\n{number}\r\n$3\r\ngot\r\n", number.len());
                assert_eq!(got, want, "behind {}", String::from_utf8_lossy(words[0]));
            }
        }
    }
}
