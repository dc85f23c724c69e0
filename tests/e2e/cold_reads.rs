//! Reads of data that is not in memory, and of which much more is asked for at once than fits there: they
//! take turns, and each command gets all of its data.

use super::Server;
use super::blind::info;
use super::bucket::wait_until;
use super::large_replies::{most_beside, refused};
use redis::cmd;
use std::io::{BufRead, BufReader, Write};
use std::thread;

const MIB: usize = 1 << 20;

/// Bytes that pipelines of reads may take beside what the server has: the strings have far more.
const MOST: u64 = 120 << 20;

/// Returns a server that has none of so many strings in memory. Those of `n` are of the byte `n`.
fn with_strings(workers: &str, strings: usize, bytes: usize) -> Server {
    let options = ["--workers", workers, "--shards", "2", "--memory-budget", "64mb"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    for n in 0..strings {
        let set = cmd("SET").arg(name(n)).arg(vec![n as u8; bytes]).exec(&mut client);
        set.expect("stored");
    }
    drop(client);
    server.stop();
    server.restart();
    server
}

fn name(n: usize) -> String {
    format!("string:{n}")
}

/// Sends a GET of each string at once.
fn ask_for_all(server: &Server, strings: usize) -> std::net::TcpStream {
    let mut socket = server.socket();
    let asked: String = (0..strings).map(|n| format!("GET {}\r\n", name(n))).collect();
    socket.write_all(asked.as_bytes()).expect("sent");
    socket
}

/// Reads the values of all strings.
fn read_all(server: &Server, strings: usize, bytes: usize) {
    let mut input = BufReader::new(ask_for_all(server, strings));
    for n in 0..strings {
        let mut head = String::new();
        input.read_line(&mut head).expect("a reply");
        assert_eq!(head, format!("${bytes}\r\n"), "{n}");
        let mut value = vec![0; bytes + 2];
        std::io::Read::read_exact(&mut input, &mut value).expect("a value");
        assert!(value[..bytes].iter().all(|byte| *byte == n as u8), "{n}");
    }
}

const LARGE: usize = 5 * MIB;

const MANY: usize = 40;

#[track_caller]
fn takes_little(workers: &str) {
    let mut server = with_strings(workers, MANY, LARGE);
    let taken = most_beside(&server, || read_all(&server, MANY, LARGE));
    assert!(taken < MOST, "{taken}");
    // Nobody reads the replies.
    let taken = most_beside(&server, || {
        (0..2).for_each(|_| drop(ask_for_all(&server, MANY)));
        // Their replies leave no room for others until the server has noticed.
        wait_until("no other clients", || info(&mut server.client(), "connected_clients") == "1");
        read_all(&server, MANY, LARGE);
    });
    assert!(taken < MOST, "closed connections: {taken}");
    let mut client = server.client();
    let taken = most_beside(&server, || {
        refused(&mut client, cmd("MGET").arg((0..MANY).map(name).collect::<Vec<_>>()));
    });
    assert!(taken < MOST / 2, "MGET: {taken}");
    // Reads wait while the server stops.
    let waiting = ask_for_all(&server, MANY);
    server.stop();
    drop(waiting);
    server.restart();
    let keys: usize = cmd("DBSIZE").query(&mut server.client()).expect("counted");
    assert_eq!(keys, MANY);
}

#[test]
fn a_pipeline_of_large_strings_takes_the_memory_of_a_few() {
    takes_little("1");
}

#[test]
fn a_pipeline_of_large_strings_of_several_workers_does_so_too() {
    takes_little("2");
}

const KEYS: usize = 6;

/// Returns the names of a transaction of a client.
fn names(client: usize, round: usize, strings: usize) -> Vec<String> {
    (0..KEYS).map(|n| name((7 * round + n * (client + 1)) % strings)).collect()
}

/// Transactions and scripts, each of which needs more at once than reads may take, beside pipelines.
#[test]
fn a_transaction_gets_all_of_its_keys() {
    let (strings, bytes) = (40, 600 << 10);
    let server = &with_strings("2", strings, bytes);
    thread::scope(|scope| {
        for client in 0..3 {
            scope.spawn(move || {
                let mut connection = server.client();
                for round in 0..20 {
                    let keys = names(client, round, strings);
                    if round % 2 == 0 {
                        let watched = cmd("WATCH").arg(&keys).exec(&mut connection);
                        watched.expect("watched");
                    }
                    let mut transaction = redis::pipe();
                    transaction.atomic();
                    keys.iter().for_each(|key| _ = transaction.cmd("GET").arg(key));
                    let found: Vec<Vec<u8>> = transaction.query(&mut connection).expect("run");
                    assert!(found.len() == KEYS && found.iter().all(|it| it.len() == bytes));
                }
            });
        }
        scope.spawn(move || {
            // A script may hold less than all values itself.
            let script = "local n = 0
                for _, key in ipairs(KEYS) do
                    if redis.call('BITCOUNT', key) >= 0 then n = n + 1 end
                end
                return n";
            let mut connection = server.client();
            for round in 0..20 {
                let keys = names(5, round, strings);
                let found: usize = cmd("EVAL")
                    .arg(script)
                    .arg(KEYS)
                    .arg(&keys)
                    .query(&mut connection)
                    .expect("run");
                assert_eq!(found, KEYS);
            }
        });
        scope.spawn(move || (0..4).for_each(|_| read_all(server, strings, bytes)));
    });
}

/// Hashes whose fields HMGET loads in several rounds, 8 MiB at a time.
const HASHES: usize = 16;
const FIELDS: usize = 24;

/// A command keeps what it has loaded until it has run. Those of many clients end one after the other: otherwise
/// each of them would have most of its fields in memory at the same time.
#[test]
fn reads_of_many_rounds_end_one_after_the_other() {
    let options = "--workers 1 --shards 2 --memory-budget 64mb --maxmemory-clients 0";
    let mut server = Server::start(&options.split(' ').collect::<Vec<_>>());
    let mut client = server.client();
    for n in 0..HASHES {
        for field in 0..FIELDS {
            let set = cmd("HSET").arg(name(n)).arg(field).arg(vec![n as u8; MIB]).exec(&mut client);
            set.expect("stored");
        }
    }
    drop(client);
    server.stop();
    server.restart();
    let server = &server;
    let ask = |n: usize| {
        let mut ask = cmd("HMGET");
        let found: Vec<Vec<u8>> = ask
            .arg(name(n))
            .arg((0..FIELDS).collect::<Vec<_>>())
            .query(&mut server.client())
            .expect("found");
        assert_eq!(found.len(), FIELDS);
        assert!(found.iter().all(|it| it.len() == MIB && it.iter().all(|byte| *byte == n as u8)));
    };
    let taken = most_beside(server, || {
        thread::scope(|scope| {
            (0..HASHES).for_each(|n| _ = scope.spawn(move || ask(n)));
        });
    });
    // In turns they would take two thirds of all fields, 256 MiB, or more.
    assert!(taken < 160 << 20, "{taken}");
}

#[test]
fn sort_loads_no_strings_for_a_reply_that_does_not_fit() {
    let server = with_strings("1", MANY, LARGE);
    let mut client = server.client();
    let numbers: Vec<usize> = (0..MANY).collect();
    cmd("RPUSH").arg("numbers").arg(numbers).exec(&mut client).expect("pushed");
    let taken = most_beside(&server, || {
        refused(&mut client, cmd("SORT").arg(&["numbers", "BY", "nosort", "GET", "string:*"]));
    });
    assert!(taken < MOST / 2, "{taken}");
    let words = ["SORT", "numbers", "BY", "nosort", "GET", "string:*", "STORE", "list"];
    let mut sort = cmd(words[0]);
    let error = sort.arg(&words[1..]).exec(&mut client).expect_err("it is too large");
    assert!(error.to_string().contains("more memory than a command may make"), "{error}");
}
