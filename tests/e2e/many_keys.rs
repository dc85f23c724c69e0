//! Commands on very many keys of several workers: the memory that they take while they run, while
//! they wait, and afterwards.

use super::Server;
use super::neighbours::{TWO_WORKERS, encode, expect, info, send};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A command on so many keys, which are on both workers.
fn on_many_keys(name: &str, tag: usize, count: usize, rest: &[&[u8]]) -> Vec<u8> {
    let keys: Vec<Vec<u8>> = (0..count).map(|n| format!("{tag}:{n}").into_bytes()).collect();
    let mut words: Vec<&[u8]> = vec![name.as_bytes()];
    words.extend(keys.iter().map(|key| &key[..]));
    words.extend(rest);
    encode(&words)
}

#[test]
fn commands_on_very_many_keys_take_their_memory_one_after_the_other() {
    let options = [&TWO_WORKERS[..], &["--memory-budget", "128mb"]].concat();
    let server = Server::start(&options);
    let one = {
        let (before, mut socket) = (server.rss(), server.socket());
        socket.write_all(&on_many_keys("DEL", 0, 50_000, &[])).expect("sent");
        expect(&mut socket, b":0\r\n");
        server.peak_rss().saturating_sub(before)
    };
    let mut sockets: Vec<TcpStream> = (1..=6).map(|_| server.socket()).collect();
    for (n, socket) in sockets.iter_mut().enumerate() {
        socket.write_all(&on_many_keys("DEL", n + 1, 50_000, &[])).expect("sent");
    }
    // A client that gives up while it waits is in no other client's way.
    drop(sockets.pop());
    let mut client = server.client();
    let pair: Vec<Option<String>> =
        redis::cmd("MGET").arg(&["0:1", "0:2", "0:3", "0:4"]).query(&mut client).expect("answered");
    assert_eq!(pair, [const { None }; 4]);
    for socket in &mut sockets {
        expect(socket, b":0\r\n");
    }
    // The arguments of the waiting commands, and memory that the allocator keeps, come on top.
    let all = server.peak_rss();
    assert!(all < 2 * one + (64 << 20), "{} MiB, one {} MiB", all >> 20, one >> 20);
}

#[test]
fn commands_on_very_many_keys_leave_no_more_in_memory_than_there_may_be() {
    let options = [&TWO_WORKERS[..], &["--memory-budget", "64mb"]].concat();
    let mut server = Server::start(&options);
    let decoded = |server: &Server| info(server, "flagstone", "hot_bytes");
    // A quarter of the budget is for the process, five sixteenths of the rest for decoded values.
    let most = (48 << 20) / 16 * 5;
    let mut socket = server.socket();
    for n in 0..8 {
        socket.write_all(&on_many_keys("DEL", n, 20_000, &[])).expect("sent");
        expect(&mut socket, b":0\r\n");
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(decoded(&server) < 2 << 20, "{} bytes of what does not exist", decoded(&server));
    // The same of keys that exist, in a server that writes nothing.
    for n in 0..8 {
        let pairs: Vec<Vec<u8>> =
            (0..20_000).map(|key| format!("{n}:{key}").into_bytes()).collect();
        let mut words: Vec<&[u8]> = vec![b"MSET"];
        words.extend(pairs.iter().flat_map(|key| [&key[..], b"value"]));
        socket.write_all(&encode(&words)).expect("sent");
        expect(&mut socket, b"+OK\r\n");
    }
    drop(socket);
    server.stop();
    server.restart();
    let mut socket = server.socket();
    for n in 0..8 {
        socket.write_all(&on_many_keys("EXISTS", n, 20_000, &[])).expect("sent");
        expect(&mut socket, b":20000\r\n");
    }
    let deadline = Instant::now() + Duration::from_secs(3);
    while decoded(&server) > most {
        assert!(Instant::now() < deadline, "{} of {most} bytes", decoded(&server));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn keys_that_clients_wait_for_are_bounded() {
    let options = [&TWO_WORKERS[..], &["--memory-budget", "64mb"]].concat();
    let server = Server::start(&options);
    let wait_for_blocked = |count: u64| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while info(&server, "clients", "blocked_clients") != count {
            assert!(Instant::now() < deadline, "not {count} clients wait");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let mut first = server.socket();
    first.write_all(&on_many_keys("BLPOP", 1, 7000, &[b"0"])).expect("sent");
    wait_for_blocked(1);
    let mut second = server.socket();
    second.write_all(&on_many_keys("BLPOP", 2, 7000, &[b"0"])).expect("sent");
    expect(&mut second, b"-OOM the keys that clients wait for take all the memory they may\r\n");
    // A client may wait for few keys, and a transaction does not wait.
    let mut few = server.socket();
    few.write_all(&on_many_keys("BLPOP", 3, 16, &[b"0"])).expect("sent");
    wait_for_blocked(2);
    second.write_all(b"MULTI\r\n").expect("sent");
    second.write_all(&on_many_keys("BLPOP", 2, 7000, &[b"0"])).expect("sent");
    second.write_all(b"EXEC\r\n").expect("sent");
    expect(&mut second, b"+OK\r\n+QUEUED\r\n*1\r\n*-1\r\n");
    // A pushed element is there for the next client.
    send(&mut second, &[b"RPUSH", b"2:5", b"x"]);
    expect(&mut second, b":1\r\n");
    send(&mut second, &[b"RPUSH", b"1:6999", b"x"]);
    expect(&mut second, b":1\r\n");
    expect(&mut first, b"*2\r\n$6\r\n1:6999\r\n$1\r\nx\r\n");
    second.write_all(&on_many_keys("BLPOP", 4, 7000, &[b"0"])).expect("sent");
    wait_for_blocked(2);
    drop(second);
    wait_for_blocked(1);
    second = server.socket();
    second.write_all(&on_many_keys("BLPOP", 5, 7000, &[b"0"])).expect("sent");
    wait_for_blocked(2);
}

#[test]
fn connections_that_wait_for_one_key_take_a_bounded_part_of_the_budget() {
    let options = [
        &["--workers", "1", "--memory-budget", "64mb", "--maxmemory-clients", "0"][..],
        &["--busy-reply-threshold", "3600000", "--script-instruction-limit", "0"],
    ];
    let server = Server::start(&options.concat());
    let mut holder = server.socket();
    send(&mut holder, &[b"EVAL", b"while true do redis.call('GET', KEYS[1]) end", b"1", b"hot"]);
    let mut killer = server.client();
    let holds = |killer: &mut redis::Connection| {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(killer).expect("a list");
        list.contains("cmd=eval ")
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds(&mut killer) {
        assert!(Instant::now() < deadline, "the script does not run");
    }
    // After some milliseconds it has a thread of its own, and holds the key.
    std::thread::sleep(Duration::from_millis(200));
    let before = server.rss();
    // Each takes more memory while it is parked than in the socket.
    let pipeline = encode(&[b"GET", b"hot"]).repeat(3000);
    let mut waiting: Vec<TcpStream> = (0..300).map(|_| server.socket()).collect();
    for socket in &mut waiting {
        socket.set_nonblocking(true).expect("set");
        // Bytes that the server does not take stay in the socket.
        let mut sent = 0;
        while let Ok(more) = socket.write(&pipeline[sent..]) {
            sent += more;
            if sent == pipeline.len() {
                break;
            }
        }
    }
    let grown = super::neighbours::peak_beside(&server, Duration::from_secs(3));
    let grown = grown.saturating_sub(before);
    assert!(grown < 64 << 20, "the memory grew by {} MiB", grown >> 20);
    let () = redis::cmd("SCRIPT").arg("KILL").query(&mut killer).expect("killed");
    let mut first = waiting.swap_remove(0);
    first.set_nonblocking(false).expect("set");
    expect(&mut first, b"$-1\r\n$-1\r\n");
}
