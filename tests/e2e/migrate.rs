//! MIGRATE: keys go to another server, and none is lost.

use super::Server;
use super::blind::{number, run};
use super::certificates::Files;
use redis::{Connection, Value};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

fn error(client: &mut Connection, words: &[&str]) -> String {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(*word));
    command.query::<Value>(client).expect_err("refused").to_string()
}

fn migrate(port: u16, key: &str, more: &[&str]) -> Vec<String> {
    let port = port.to_string();
    let words = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
    words.iter().chain(more).map(ToString::to_string).collect()
}

fn words(owned: &[String]) -> Vec<&str> {
    owned.iter().map(String::as_str).collect()
}

#[test]
fn keys_of_every_type_arrive_and_go() {
    let (from, to) = (Server::start(&["--workers", "2"]), Server::start(&["--workers", "1"]));
    let (mut here, mut there) = (from.client(), to.client());
    run(&mut here, &["SET", "s", "v", "EX", "1000"]);
    run(&mut here, &["HSET", "h", "a", "1", "b", "2"]);
    run(&mut here, &["RPUSH", "l", "a", "b"]);
    run(&mut here, &["SADD", "set", "1", "2"]);
    run(&mut here, &["ZADD", "z", "1", "a"]);
    run(&mut here, &["XADD", "x", "1-1", "f", "v"]);
    run(&mut here, &["SET", "big", &"b".repeat(100_000)]);
    let names = ["s", "h", "l", "set", "z", "x", "big", "missing"];
    let all: Vec<Value> = names.iter().map(|name| run(&mut here, &["DUMP", name])).collect();
    let mut more = vec!["KEYS"];
    more.extend(names);
    assert_eq!(run(&mut here, &words(&migrate(to.port(), "", &more))), Value::Okay);
    assert_eq!(number(&mut here, &["DBSIZE"]), 0);
    let arrived: Vec<Value> = names.iter().map(|name| run(&mut there, &["DUMP", name])).collect();
    assert_eq!(arrived, all);
    assert!((990..=1000).contains(&number(&mut there, &["TTL", "s"])));
    let none = run(&mut here, &words(&migrate(to.port(), "s", &[])));
    assert_eq!(none, Value::SimpleString("NOKEY".into()));
}

#[test]
fn keys_go_over_tls() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = Files::in_dir(dir.path());
    let file = |name: &str| files.path(name);
    let (ca, cert, key) = (file("ca.crt"), file("server.crt"), file("server.key"));
    let (own_cert, own_key) = (file("client.crt"), file("client.key"));
    let secure = super::free_port().to_string();
    let to = Server::start(
        &[
            &["--tls-port", &secure, "--tls-cert-file", &cert][..],
            &["--tls-key-file", &key, "--tls-ca-cert-file", &ca],
        ]
        .concat(),
    );
    let from = Server::start(&["--tls-ca-cert-file", &ca, "--workers", "2"]);
    let (mut here, mut there) = (from.client(), to.client());
    for n in 0..20 {
        run(&mut here, &["SET", &format!("k{n}"), "v"]);
    }
    let names: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let mut more = vec!["KEYS"];
    more.extend(names.iter().map(String::as_str));
    let secure: u16 = secure.parse().expect("a port");
    let (plainly, securely) = (migrate(to.port(), "", &more), migrate(secure, "", &more));
    // The server knows no TLS there, and asks for a certificate here.
    run(&mut here, &["CONFIG", "SET", "tls-cluster", "yes"]);
    assert!(error(&mut here, &words(&plainly)).contains("IOERR"));
    assert!(error(&mut here, &words(&securely)).contains("IOERR"));
    let certificate = ["tls-client-cert-file", &own_cert, "tls-client-key-file", &own_key];
    run(&mut here, &[&["CONFIG", "SET"], &certificate[..]].concat());
    assert_eq!(number(&mut here, &["DBSIZE"]), 20);
    assert_eq!(run(&mut here, &words(&securely)), Value::Okay);
    assert_eq!((number(&mut here, &["DBSIZE"]), number(&mut there, &["DBSIZE"])), (0, 20));
    run(&mut here, &["CONFIG", "SET", "tls-cluster", "no"]);
    run(&mut here, &["SET", "k", "v"]);
    assert!(error(&mut here, &words(&migrate(secure, "k", &[]))).contains("IOERR"));
    assert_eq!(run(&mut here, &words(&migrate(to.port(), "k", &[]))), Value::Okay);
}

#[test]
fn options_mean_what_they_mean_in_the_reference() {
    let from = Server::start(&["--workers", "2"]);
    let to = Server::start(&["--requirepass", "secret"]);
    let mut here = from.client();
    run(&mut here, &["MSET", "a", "1", "b", "2"]);
    let plain = migrate(to.port(), "a", &["COPY"]);
    assert!(
        error(&mut here, &words(&plain)).contains("Target instance replied with error: NOAUTH")
    );
    let copy = migrate(to.port(), "a", &["COPY", "AUTH", "secret"]);
    assert_eq!(run(&mut here, &words(&copy)), Value::Okay);
    assert_eq!(number(&mut here, &["EXISTS", "a"]), 1);
    let again = migrate(to.port(), "a", &["AUTH2", "default", "secret"]);
    assert!(error(&mut here, &words(&again)).contains("BUSYKEY"));
    assert_eq!(number(&mut here, &["EXISTS", "a"]), 1, "it was not taken");
    // Of several keys, those that were taken go.
    let both = migrate(to.port(), "", &["AUTH", "secret", "KEYS", "a", "b"]);
    assert!(error(&mut here, &words(&both)).contains("BUSYKEY"));
    assert_eq!(number(&mut here, &["EXISTS", "a"]), 1);
    assert_eq!(number(&mut here, &["EXISTS", "b"]), 0);
    let replace = migrate(to.port(), "a", &["REPLACE", "AUTH", "secret"]);
    assert_eq!(run(&mut here, &words(&replace)), Value::Okay);
    assert_eq!(number(&mut here, &["DBSIZE"]), 0);
    run(&mut here, &["SET", "a", "1"]);
    let keys = migrate(to.port(), "a", &["KEYS", "a"]);
    assert!(error(&mut here, &words(&keys)).contains("must be set to the empty string"));
    assert!(error(&mut here, &words(&migrate(to.port(), "a", &["WHAT"]))).contains("syntax error"));
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = nobody.local_addr().expect("its address").port();
    drop(nobody);
    let lost = error(&mut here, &words(&migrate(port, "a", &[])));
    assert!(lost.contains("error or timeout connecting to the client"), "{lost}");
    assert_eq!(number(&mut here, &["EXISTS", "a"]), 1);
}

#[test]
fn a_key_stays_if_nobody_says_that_it_has_arrived() {
    let from = Server::start(&["--workers", "2"]);
    let mut here = from.client();
    run(&mut here, &["SET", "k", "v"]);
    // A server that takes the key and never answers, and one that closes the connection.
    for answers in [false, true] {
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = silent.local_addr().expect("its address").port().to_string();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = silent.accept().expect("a connection");
            let mut bytes = [0; 4096];
            if answers {
                let _ = stream.read(&mut bytes);
                let _ = stream.write_all(b"+OK\r\n");
                let _ = stream.read(&mut bytes);
                return;
            }
            std::thread::sleep(Duration::from_millis(1500));
        });
        let request = ["MIGRATE", "127.0.0.1", &port, "k", "0", "500"];
        let said = error(&mut here, &request);
        assert!(said.contains("error or timeout reading to target instance"), "{said}");
        serving.join().expect("served");
        assert_eq!(number(&mut here, &["EXISTS", "k"]), 1);
    }
    // Its lock is gone.
    run(&mut here, &["SET", "k", "w"]);
}

#[test]
fn no_write_between_is_lost() {
    let (from, to) = (Server::start(&["--workers", "2"]), Server::start(&["--workers", "2"]));
    let mut here = from.client();
    let writer = {
        let mut client = from.client();
        std::thread::spawn(move || {
            (0..2000).for_each(|_| drop(run(&mut client, &["INCR", "n"])));
        })
    };
    let mut there = to.client();
    let mut moved = 0;
    while !writer.is_finished() {
        let reply = run(&mut here, &words(&migrate(to.port(), "n", &["REPLACE"])));
        if reply == Value::Okay {
            let got: i64 = redis::cmd("GETDEL").arg("n").query(&mut there).expect("a number");
            moved += got;
        }
    }
    writer.join().expect("written");
    let left = run(&mut here, &["GET", "n"]);
    if let Value::BulkString(left) = left {
        moved += String::from_utf8(left).expect("a text").parse::<i64>().expect("a number");
    }
    assert_eq!(moved, 2000);
}

/// A key that another server has taken cannot be taken back with a script or a transaction.
#[test]
fn keys_go_in_no_transaction_and_no_script() {
    let (from, to) = (Server::start(&[]), Server::start(&[]));
    let mut here = from.client();
    run(&mut here, &["SET", "k", "v"]);
    let port = to.port().to_string();
    let migrate = format!("return redis.call('MIGRATE', '127.0.0.1', '{port}', 'k', '0', '1000')");
    for keys in [&["0"][..], &["1", "k"]] {
        let words = [&["EVAL", &migrate][..], keys].concat();
        assert!(error(&mut here, &words).contains("not allowed from script"));
    }
    assert_eq!(run(&mut here, &["MULTI"]), Value::Okay);
    let refused = error(&mut here, &words(&self::migrate(to.port(), "k", &[])));
    assert!(refused.contains("not allowed inside a transaction"), "{refused}");
    assert!(error(&mut here, &["EXEC"]).contains("discarded"));
    assert_eq!(number(&mut here, &["EXISTS", "k"]), 1);
}
