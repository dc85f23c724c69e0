//! Input that breaks the protocol or wants to hurt.

use super::Server;
use std::io::{Read, Write};

fn answer(server: &Server, bytes: &[u8]) -> String {
    let mut socket = server.socket();
    socket.write_all(bytes).expect("sent");
    socket.shutdown(std::net::Shutdown::Write).expect("shut");
    let mut out = Vec::new();
    // The server may reset the connection after its answer.
    let _ = socket.read_to_end(&mut out);
    String::from_utf8_lossy(&out).into_owned()
}

#[test]
fn broken_protocol_gets_redis_errors() {
    let server = Server::start(&[]);
    for (bytes, want) in [
        (&b"*1000000000000\r\n"[..], "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1\r\n$-5\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*1\r\nPING\r\n", "-ERR Protocol error: expected '$', got 'P'\r\n"),
        (b"SET \"k\r\n", "-ERR Protocol error: unbalanced quotes in request\r\n"),
        (b"PING\r\nECHO hi\r\n", "+PONG\r\n$2\r\nhi\r\n"),
        (b"\r\n\r\nPING\r\n", "+PONG\r\n"),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\nSET k v\r\n", ""),
        (b"GET\r\n", "-ERR wrong number of arguments for 'get' command\r\n"),
        (
            b"NOSUCH a b\r\n",
            "-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' \r\n",
        ),
    ] {
        assert_eq!(answer(&server, bytes), want, "{}", String::from_utf8_lossy(bytes));
    }
    assert_eq!(answer(&server, b"PING\r\n"), "+PONG\r\n");
}

#[test]
fn errors_show_what_was_sent_byte_by_byte_up_to_a_nul() {
    let server = Server::start(&[]);
    for (bytes, want) in [
        (
            &b"*2\r\n$6\r\nxgroup\r\n$4\r\n\xff\xfe\0x\r\n"[..],
            &b"-ERR unknown subcommand '\xff\xfe'. Try XGROUP HELP.\r\n"[..],
        ),
        (
            b"*2\r\n$4\r\nN\xffO\0\r\n$5\r\na\xff\r\0b\r\n",
            b"-ERR unknown command 'N\xffO', with args beginning with: 'a\xff ' \r\n",
        ),
    ] {
        let mut socket = server.socket();
        socket.write_all(bytes).expect("sent");
        let mut got = vec![0; want.len()];
        socket.read_exact(&mut got).expect("answered");
        assert_eq!(got, want, "{}", String::from_utf8_lossy(&got));
    }
}

#[test]
fn lengths_in_headers_take_no_memory() {
    let server = Server::start(&[]);
    assert_eq!(answer(&server, b"PING\r\n"), "+PONG\r\n");
    let before = server.rss();
    let mut sockets = Vec::new();
    for _ in 0..50 {
        for header in [&b"*1000000\r\n"[..], b"*2\r\n$3\r\nGET\r\n$536870912\r\n"] {
            let mut socket = server.socket();
            socket.write_all(header).expect("sent");
            sockets.push(socket);
        }
    }
    assert_eq!(answer(&server, b"PING\r\n"), "+PONG\r\n");
    let grown = server.rss().saturating_sub(before);
    assert!(grown < 16 << 20, "the memory grew by {grown} bytes");
}

#[test]
fn a_key_too_long_for_the_engine_is_refused_and_disturbs_nobody() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let long = "k".repeat(70_000);
    let error =
        redis::cmd("SET").arg(&long).arg("v").query::<()>(&mut client).expect_err("refused");
    assert!(error.to_string().contains("key is too long"), "{error}");
    let longest = "k".repeat(65_000);
    let () = redis::cmd("SET").arg(&longest).arg("v").query(&mut client).expect("stored");
    let field = "f".repeat(100_000);
    for _ in 0..2 {
        let () = redis::cmd("HSET").arg("h").arg(&field).arg(1).query(&mut client).expect("stored");
    }
    let value: u32 = redis::cmd("HGET").arg("h").arg(&field).query(&mut client).expect("found");
    assert_eq!(value, 1);
}

#[test]
fn a_client_that_never_reads_does_not_disturb_others() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let value = "x".repeat(100_000);
    let () = redis::cmd("SET").arg("big").arg(&value).query(&mut client).expect("stored");
    let mut deaf = server.socket();
    deaf.set_nonblocking(true).expect("set");
    let before = server.rss();
    for _ in 0..20_000 {
        // Full buffers refuse more: the requests that they took are enough.
        let _ = deaf.write(b"GET big\r\n");
    }
    for _ in 0..200 {
        let pong: String = redis::cmd("PING").query(&mut client).expect("an answer");
        assert_eq!(pong, "PONG");
    }
    let grown = server.rss().saturating_sub(before);
    assert!(grown < 96 << 20, "the memory grew by {grown} bytes");
}

#[test]
fn a_unit_takes_no_more_memory_than_all_data_may() {
    for workers in ["1", "2"] {
        let options = ["--workers", workers, "--shards", "2", "--memory-budget", "32mb"];
        let server = Server::start(&options);
        let mut client = server.client();
        // So many values of 100,000 bytes.
        let make = "local value = string.rep('x', 100000)
            for n = 1, ARGV[1] do redis.call('SET', ARGV[2] .. n, value) end
            return redis.call('DBSIZE')";
        let read = "for n = 1, ARGV[1] do redis.call('GET', ARGV[2] .. n) end return 'read'";
        let run = |client: &mut redis::Connection, script: &str, count: u32, name: &str| {
            let mut eval = redis::cmd("EVAL");
            eval.arg(script).arg(0).arg(count).arg(name);
            eval.query::<String>(client).map_err(|error| error.to_string())
        };
        let refused = run(&mut client, make, 4000, "k").expect_err("400 MB");
        assert!(refused.contains("take more memory than memory-budget"), "{refused}");
        assert_eq!(redis::cmd("DBSIZE").query::<u32>(&mut client).expect("a number"), 0);
        for n in 1..=3 {
            let (name, keys) = (format!("k{n}-"), (n * 120).to_string());
            assert_eq!(run(&mut client, make, 120, &name), Ok(keys), "{workers} workers");
            assert_eq!(run(&mut client, read, 120, &name).as_deref(), Ok("read"));
        }
        let mut read_all = redis::cmd("EVAL");
        read_all
            .arg("for n = 1, 360 do redis.call('GET', 'k' .. math.ceil(n / 120) .. '-' .. n % 120 + 1) end")
            .arg(0);
        let refused = read_all.query::<()>(&mut client).expect_err("36 MB").to_string();
        assert!(refused.contains("take more memory than memory-budget"), "{refused}");
        // The limit is on what is in memory at a time, not on what is done.
        let again = "for n = 1, ARGV[1] do redis.call('SET', ARGV[2], string.rep('x', 100000)) end return 'made'";
        assert_eq!(run(&mut client, again, 800, "one").as_deref(), Ok("made"));
        let peak = server.peak_rss() >> 20;
        assert!(peak < 250, "{workers} workers: {peak} MiB");
    }
}
