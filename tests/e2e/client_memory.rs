//! The memory of all clients together is bounded (`maxmemory-clients`).

use super::Server;
use super::neighbours::{MIB, PATIENCE, TWO_WORKERS};
use super::neighbours::{encode, expect, info, is_closed, send, store_values};
use redis::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn clients_that_take_most_memory_are_closed_and_the_others_stay() {
    let server = Server::start(&["--maxmemory-clients", "8mb"]);
    let mut good = server.socket();
    send(&mut good, &[b"PING"]);
    expect(&mut good, b"+PONG\r\n");
    // A value that never ends.
    let mut half = server.socket();
    half.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$400000000\r\n").expect("sent");
    let chunk = vec![b'h'; MIB];
    assert!((0..64).any(|_| half.write_all(&chunk).is_err()) || is_closed(&mut half));
    // A transaction that is never run.
    let mut queue = server.socket();
    send(&mut queue, &[b"MULTI"]);
    let set = encode(&[b"SET", b"k", &chunk]);
    assert!((0..64).any(|_| queue.write_all(&set).is_err()) || is_closed(&mut queue));
    // Names.
    let mut named = server.socket();
    let name = vec![b'n'; 12 * MIB];
    let _ = named.write_all(&encode(&[b"CLIENT", b"SETNAME", &name]));
    assert!(is_closed(&mut named));
    assert!(info(&server, "stats", "evicted_clients") >= 3);
    send(&mut good, &[b"PING"]);
    expect(&mut good, b"+PONG\r\n");
}

#[test]
fn closed_clients_that_reconnect_at_once_come_back_at_a_bounded_pace() {
    let server = Server::start(&["--maxmemory-clients", "4mb", "--workers", "2"]);
    let began = Instant::now();
    let end = began + Duration::from_secs(3);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let chunk = vec![b'h'; MIB];
                while Instant::now() < end {
                    let mut half = server.socket();
                    half.set_write_timeout(Some(Duration::from_secs(10))).expect("set");
                    let head = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$400000000\r\n";
                    let mut sent = half.write_all(head);
                    while sent.is_ok() && Instant::now() < end {
                        sent = half.write_all(&chunk);
                    }
                }
            });
        }
    });
    let evicted = info(&server, "stats", "evicted_clients");
    // The first at once, then one in 100 ms.
    let most = 16 + began.elapsed().as_millis() as u64 / 100 + 8;
    assert!((8..=most).contains(&evicted), "{evicted} were closed in {:?}", began.elapsed());
}

#[test]
fn a_client_that_said_no_evict_is_spared() {
    let server = Server::start(&["--maxmemory-clients", "4mb"]);
    let mut spared = server.socket();
    send(&mut spared, &[b"CLIENT", b"NO-EVICT", b"ON"]);
    expect(&mut spared, b"+OK\r\n");
    let value = vec![b'v'; 6 * MIB];
    send(&mut spared, &[b"SET", b"k", &value]);
    expect(&mut spared, b"+OK\r\n");
    send(&mut spared, &[b"MULTI"]);
    expect(&mut spared, b"+OK\r\n");
    send(&mut spared, &[b"SET", b"k", &value]);
    expect(&mut spared, b"+QUEUED\r\n");
    std::thread::sleep(Duration::from_millis(300));
    send(&mut spared, &[b"EXEC"]);
    expect(&mut spared, b"*1\r\n+OK\r\n");
}

#[test]
fn a_client_that_said_no_evict_gets_its_replies_whatever_the_limit_is() {
    for workers in ["1", "2"] {
        let server = Server::start(&["--workers", workers, "--shards", "2"]);
        store_values(&server, 4, MIB);
        let mut spared = server.socket();
        spared.set_read_timeout(Some(PATIENCE)).expect("set");
        send(&mut spared, &[b"CLIENT", b"NO-EVICT", b"ON"]);
        expect(&mut spared, b"+OK\r\n");
        send(&mut spared, &[b"CONFIG", b"SET", b"maxmemory-clients", b"1"]);
        expect(&mut spared, b"+OK\r\n");
        let mut reply = vec![0; format!("${MIB}\r\n").len() + MIB + 2];
        for key in ["k0", "k1", "k2", "k3"] {
            send(&mut spared, &[b"GET", key.as_bytes()]);
            spared.read_exact(&mut reply).expect("the value");
            assert!(reply.starts_with(format!("${MIB}\r\n").as_bytes()), "{workers}: {key}");
        }
        send(&mut spared, &[b"MGET", b"k0", b"k1", b"k2", b"k3"]);
        expect(&mut spared, b"*4\r\n");
        for _ in 0..4 {
            spared.read_exact(&mut reply).expect("the value");
        }
        send(&mut spared, &[b"CLIENT", b"NO-EVICT", b"OFF"]);
        assert!(is_closed(&mut spared), "{workers}");
    }
}

/// Sends commands until the server closes the connection. It may refuse some before, as there are
/// too many watched keys until it counts the clients' memory again.
fn send_until_closed(socket: &mut TcpStream, command: impl Fn(usize) -> Vec<u8>) {
    socket.set_read_timeout(Some(PATIENCE)).expect("set");
    let (began, mut reply) = (Instant::now(), [0; 4096]);
    for n in 0.. {
        assert!(began.elapsed() < PATIENCE, "it is still open after {n} commands");
        let answered = socket.write_all(&command(n)).and_then(|()| socket.read(&mut reply));
        match answered {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

#[test]
fn watched_keys_subscriptions_and_prefixes_count_as_a_clients_memory() {
    let server = Server::start(&[&TWO_WORKERS[..], &["--maxmemory-clients", "200000"]].concat());
    let numbered = |n: usize| format!("{n:09}").into_bytes();
    send_until_closed(&mut server.socket(), |n| encode(&[b"WATCH", &numbered(n)]));
    for subscribe in ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"] {
        let words = |n| encode(&[subscribe.as_bytes(), &numbered(n)]);
        send_until_closed(&mut server.socket(), words);
    }
    send_until_closed(&mut server.socket(), |n| {
        encode(&[b"CLIENT", b"TRACKING", b"ON", b"PREFIX", &numbered(n), b"BCAST"])
    });
    assert_eq!(info(&server, "stats", "evicted_clients"), 5);
    // What was unwatched and unsubscribed does not count.
    let mut good = server.socket();
    for n in 0..2000 {
        send(&mut good, &[b"WATCH", &numbered(n)]);
        expect(&mut good, b"+OK\r\n");
        send(&mut good, &[b"UNWATCH"]);
        expect(&mut good, b"+OK\r\n");
    }
    std::thread::sleep(Duration::from_millis(1200));
    send(&mut good, &[b"PING"]);
    expect(&mut good, b"+PONG\r\n");
}

/// A field of CLIENT LIST for the client of this name.
fn listed(client: &mut redis::Connection, name: &str, field: &str) -> Option<u64> {
    let list: String = redis::cmd("CLIENT").arg("LIST").query(client).expect("answered");
    let line = list.lines().find(|line| line.contains(&format!(" name={name} ")))?;
    let value = line.split(' ').find_map(|pair| pair.strip_prefix(field)?.strip_prefix('='));
    value.expect("the field").parse().ok()
}

#[test]
fn the_largest_clients_go_when_the_limit_is_lowered() {
    let server = Server::start(&[&TWO_WORKERS[..], &["--maxmemory-clients", "0"]].concat());
    let mut client = server.client();
    let sizes = [128 << 10, MIB, 3 * MIB];
    let mut sockets = Vec::new();
    for (at, size) in sizes.iter().enumerate() {
        for n in 0..2 {
            let (mut socket, name) = (server.socket(), format!("c{at}-{n}"));
            send(&mut socket, &[b"CLIENT", b"SETNAME", name.as_bytes()]);
            expect(&mut socket, b"+OK\r\n");
            socket.write_all(format!("*2\r\n${size}\r\n").as_bytes()).expect("sent");
            socket.write_all(&vec![b'v'; *size]).expect("sent");
            sockets.push(socket);
            let began = Instant::now();
            // The header of the argument is not part of it.
            while listed(&mut client, &name, "qbuf") != Some(*size as u64) {
                assert!(began.elapsed() < PATIENCE, "{:?}", listed(&mut client, &name, "qbuf"));
                std::thread::sleep(Duration::from_millis(5));
            }
            let memory = listed(&mut client, &name, "tot-mem").expect("listed");
            assert!((*size as u64..*size as u64 * 5 / 4 + 4096).contains(&memory), "{memory}");
        }
    }
    for (limit, left) in [(4 * MIB, 2), (MIB, 1)] {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory-clients").arg(limit).query::<()>(&mut client).expect("set");
        for at in 0..sizes.len() {
            for n in 0..2 {
                let is_there = listed(&mut client, &format!("c{at}-{n}"), "id").is_some();
                assert_eq!(is_there, at < left, "c{at}-{n} with {limit} bytes");
            }
        }
    }
    assert_eq!(info(&server, "stats", "evicted_clients"), 4);
}

#[test]
fn a_queue_of_many_commands_keeps_to_the_limit_of_all_clients_and_one_of_a_long_value_need_not() {
    // The limit is 32 MiB.
    let server = Server::start(&["--memory-budget", "256mb"]);
    let mut client = server.client();
    let _: Value = redis::cmd("MULTI").query(&mut client).expect("OK");
    let value = vec![b'x'; 1 << 20];
    let queued = (0..200)
        .take_while(|n| redis::cmd("SET").arg(n).arg(&value).query::<Value>(&mut client).is_ok());
    // Buffers that grow have up to twice what is in them, and clients are looked at now and then.
    assert!(queued.count() < 100);
    assert_eq!(info(&server, "stats", "evicted_clients"), 1);
    let mut client = server.client();
    let long = vec![b'x'; 80 << 20];
    let _: Value = redis::pipe()
        .atomic()
        .cmd("SET")
        .arg("k")
        .arg(&long)
        .cmd("SET")
        .arg("l")
        .arg(&value)
        .query(&mut client)
        .expect("it runs");
    assert_eq!(redis::cmd("STRLEN").arg("k").query::<usize>(&mut client).expect("it"), long.len());
    assert_eq!(info(&server, "stats", "evicted_clients"), 1);
}
