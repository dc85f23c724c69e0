//! Large replies take little more than their own memory, and next to none if they do not fit.

use super::Server;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Returns the bytes that the server takes beyond its present memory while `ask` runs.
pub(crate) fn most_beside(server: &Server, ask: impl FnOnce()) -> u64 {
    // The peak begins anew.
    std::fs::write(format!("/proc/{}/clear_refs", server.pid()), "5").expect("written");
    let before = server.rss();
    ask();
    server.peak_rss().saturating_sub(before)
}

#[track_caller]
pub(crate) fn refused(client: &mut redis::Connection, ask: &redis::Cmd) {
    let error = ask.query::<()>(client).expect_err("it does not fit");
    assert!(error.to_string().contains("maxmemory-clients"), "{error}");
}

/// Returns a server with a string of 48 MiB, 16 strings of 2 MiB, and a list of 20 MiB in elements of
/// 64 bytes, which have been read, and a connection.
fn with_large_values() -> (Server, redis::Connection) {
    let options = ["--workers", "1", "--memory-budget", "1gb"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    let set = |client: &mut redis::Connection, key: &str, bytes: usize| {
        let () = redis::cmd("SET").arg(key).arg(vec![b'v'; bytes]).query(client).expect("SET");
    };
    set(&mut client, "large", 48 * MIB);
    (0..16).for_each(|n| set(&mut client, &format!("k{n}"), 2 * MIB));
    for _ in 0..20 {
        let items = vec![vec![b'e'; 64]; MIB / 64];
        let () = redis::cmd("RPUSH").arg("list").arg(items).query(&mut client).expect("RPUSH");
    }
    drop(client);
    // What is on its way to the disk changes the memory meanwhile.
    server.stop();
    server.restart();
    let mut client = server.client();
    let all = keys().into_iter().map(|key| redis::cmd("GET").arg(key).clone());
    let all = all.chain([redis::cmd("GET").arg("large").clone(), lrange()]);
    all.for_each(|ask| ask.exec(&mut client).expect("read"));
    (server, client)
}

fn keys() -> Vec<String> {
    (0..16).map(|n| format!("k{n}")).collect()
}

fn lrange() -> redis::Cmd {
    redis::cmd("LRANGE").arg("list").arg(0).arg(-1).clone()
}

#[test]
fn a_large_value_is_copied_once_into_its_reply() {
    let (server, mut client) = with_large_values();
    let mut most = |ask: &redis::Cmd| {
        // The least of several tries: files may be merged meanwhile.
        let mut once = || most_beside(&server, || ask.exec(&mut client).expect("it fits"));
        (0..3).map(|_| once()).min().expect("there are some") as usize / MIB
    };
    let taken = most(redis::cmd("GET").arg("large"));
    assert!(taken < 72, "GET: {taken} MiB for 48");
    let taken = most(redis::cmd("GETRANGE").arg("large").arg(1).arg(-1));
    assert!(taken < 72, "GETRANGE: {taken} MiB for 48");
    let taken = most(redis::cmd("MGET").arg(keys()));
    assert!(taken < 40, "MGET: {taken} MiB for 32");
    let taken = most(&lrange());
    assert!(taken < 30, "LRANGE: {taken} MiB for 22");
}

#[test]
fn a_reply_that_does_not_fit_is_not_begun() {
    let (server, mut client) = with_large_values();
    let () = redis::cmd("CONFIG")
        .arg(&["SET", "maxmemory-clients", "12mb"])
        .query(&mut client)
        .expect("CONFIG SET");
    let all = [redis::cmd("GET").arg("large").clone(), redis::cmd("MGET").arg(keys()).clone()];
    for ask in all {
        // The least of several tries: files may be merged meanwhile.
        let tries = (0..5).map(|_| most_beside(&server, || refused(&mut client, &ask)));
        let taken = tries.min().expect("there are some") as usize / MIB;
        // The replies have 48 and 32.
        assert!(taken < 12, "{taken} MiB");
    }
}

/// Sizes of the values of a pipeline: several of them are more than there is room for.
const SIZES: [usize; 4] = [100 << 10, MIB, 5 * MIB, 15 * MIB];

/// Reads a reply to a GET: a value, whose bytes are all the same one, or `None` for the error that says that it does
/// not fit.
fn value(input: &mut impl BufRead) -> std::io::Result<Option<(usize, u8)>> {
    let mut head = String::new();
    if input.read_line(&mut head)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    if head.starts_with('-') {
        assert!(head.contains("maxmemory-clients"), "{head}");
        return Ok(None);
    }
    let len: usize = head[1..].trim().parse().expect("a length");
    let mut bytes = vec![0; len + 2];
    input.read_exact(&mut bytes)?;
    assert!(bytes[..len] == vec![bytes[0]; len], "one value");
    Ok(Some((len, bytes[0])))
}

/// A client asks for more than there is memory for, and reads late: each reply is that of its command, or an
/// error, or there is none and the connection is closed.
#[test]
fn no_reply_takes_the_place_of_another_one_that_does_not_fit() {
    let server = Server::start(&["--workers", "2", "--memory-budget", "256mb"]);
    let mut client = server.client();
    let sizes = SIZES.into_iter().cycle().take(12);
    for (n, size) in sizes.enumerate() {
        let value = vec![b'a' + n as u8; size];
        let () = redis::cmd("SET").arg(format!("b{n}")).arg(value).query(&mut client).expect("SET");
    }
    let ask = |seed: usize| {
        let mut draw = seed as u64 + 1;
        for _ in 0..3 {
            let keys = std::iter::repeat_with(|| {
                draw = draw.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (draw >> 40) as usize % 12
            });
            let keys: Vec<usize> = keys.take(40).collect();
            let mut socket = TcpStream::connect(("127.0.0.1", server.port())).expect("connected");
            socket.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
            let gets: String = keys.iter().map(|n| format!("GET b{n}\r\n")).collect();
            socket.write_all(gets.as_bytes()).expect("sent");
            std::thread::sleep(Duration::from_millis(300 * (seed as u64 % 3)));
            let mut input = BufReader::new(socket);
            for n in keys {
                match value(&mut input) {
                    Ok(Some(found)) => assert_eq!(found, (SIZES[n % 4], b'a' + n as u8)),
                    Ok(None) => {}
                    Err(error) => {
                        assert_ne!(
                            error.kind(),
                            std::io::ErrorKind::WouldBlock,
                            "a reply is missing"
                        );
                        break;
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..6).map(|seed| scope.spawn(move || ask(seed))).collect();
        asking.into_iter().for_each(|one| one.join().expect("every reply is in its place"));
    });
}
