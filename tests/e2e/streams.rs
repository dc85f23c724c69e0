//! Streams that are not in memory.

use super::Server;
use redis::{Connection, Value};

/// Runs a command, its words between blanks.
fn run<T: redis::FromRedisValue>(client: &mut Connection, command: &str) -> T {
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().expect("a name"));
    words.for_each(|word| {
        cmd.arg(word);
    });
    cmd.query(client).expect("a reply")
}

type Entry = (String, Vec<(String, String)>);

fn entry(n: u32) -> Entry {
    (format!("{n}-1"), vec![("n".into(), n.to_string()), ("text".into(), "x".repeat(30))])
}

fn add(client: &mut Connection, numbers: std::ops::Range<u32>) {
    let mut pipe = redis::pipe();
    for n in numbers {
        pipe.cmd("XADD").arg("s").arg(format!("{n}-1")).arg("n").arg(n);
        pipe.arg("text").arg("x".repeat(30)).ignore();
    }
    let () = pipe.query(client).expect("stored");
}

/// Asks for the entries in `left`.
fn check(client: &mut Connection, left: &[u32]) {
    let len = left.len();
    assert_eq!(run::<usize>(client, "XLEN s"), len);
    for at in [0, 1, len / 3, len / 2, len - 1] {
        let (n, to) = (left[at], (at + 300).min(len));
        let want: Vec<Entry> = left[at..to].iter().map(|&n| entry(n)).collect();
        let range = format!("XRANGE s {n} {}", left[to - 1]);
        assert_eq!(run::<Vec<Entry>>(client, &range), want);
        let back = format!("XREVRANGE s {} - COUNT 1", left[to - 1]);
        assert_eq!(run::<Vec<Entry>>(client, &back), [entry(left[to - 1])]);
        let read: Vec<(String, Vec<Entry>)> =
            run(client, &format!("XREAD COUNT 300 STREAMS s {n}"));
        let want: Vec<Entry> = left[at..].iter().take(300).map(|&n| entry(n)).collect();
        assert_eq!(read[0].1, want);
    }
}

#[test]
fn streams_are_read_whatever_is_in_memory() {
    let options = ["--workers", "2", "--shards", "2", "--handover-interval-ms", "100"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    add(&mut client, 1..5001);
    let mut left: Vec<u32> = (1..5001).collect();
    check(&mut client, &left);
    for round in 0..4u32 {
        // Killed at once, the server has cold data above all in the journal; later, in the engine.
        if round % 2 == 1 {
            std::thread::sleep(std::time::Duration::from_millis(400));
        }
        server.kill();
        server.restart();
        let mut client = server.client();
        // Changes come before anything was read.
        let next = left.last().expect("there are some") + 1;
        add(&mut client, next..next + 50);
        left.extend(next..next + 50);
        let gone = left.remove(left.len() / 2);
        assert_eq!(run::<u32>(&mut client, &format!("XDEL s {gone}-1")), 1);
        let keep = left.len() - 333;
        assert_eq!(run::<u32>(&mut client, &format!("XTRIM s MAXLEN = {keep}")), 333);
        left.drain(..333);
        check(&mut client, &left);
    }
    let mut client = server.client();
    assert_eq!(run::<u32>(&mut client, "COPY s t"), 1);
    assert_eq!(run::<Value>(&mut client, "DUMP s"), run::<Value>(&mut client, "DUMP t"));
    assert_eq!(run::<usize>(&mut client, "XTRIM s MAXLEN 0"), left.len());
    server.kill();
    server.restart();
    let mut client = server.client();
    assert_eq!(run::<String>(&mut client, "TYPE s"), "stream");
    assert_eq!(run::<usize>(&mut client, "XLEN s"), 0);
    assert_eq!(run::<usize>(&mut client, "XLEN t"), left.len());
}
