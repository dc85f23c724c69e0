//! Where the server listens: Unix sockets, and addresses that change while it runs.

use super::Server;
use super::config::moved_to_a_free_port;
use redis::Commands;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

fn connect(path: &Path) -> redis::Connection {
    let client = redis::Client::open(format!("redis+unix://{}", path.display()));
    client.expect("an address").get_connection().expect("a connection")
}

#[test]
fn a_unix_socket_serves_as_a_port_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let shown = path.display().to_string();
    let options =
        ["--unixsocket", &shown, "--unixsocketperm", "700", "--workers", "2", "--shards", "2"];
    let mut server = Server::start(&options);
    assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o700);
    let mut first = connect(&path);
    let mut second = connect(&path);
    for n in 0..20 {
        let () = first.set(n, n).expect("stored");
        assert_eq!(second.get::<_, i32>(n).expect("a value"), n);
        assert_eq!(server.client().get::<_, i32>(n).expect("a value"), n);
    }
    let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut first).expect("a list");
    let of_this =
        list.lines().filter(|line| line.contains(&format!("addr={shown}:0 laddr={shown}:0")));
    assert_eq!(of_this.clone().count(), 2, "{list}");
    assert!(of_this.clone().all(|line| line.contains(" flags=U ")), "{list}");
    let info: String = redis::cmd("INFO").arg("server").query(&mut first).expect("info");
    assert!(info.contains(&format!("listener1:name=unix,bind={shown}")), "{info}");
    // Larger than the socket takes at once, in both directions.
    let large = "x".repeat(8 << 20);
    let () = first.set("large", &large).expect("stored");
    assert_eq!(second.get::<_, String>("large").expect("a value"), large);
    // A socket that a killed server has left is no obstacle.
    server.kill();
    assert!(path.exists());
    server.restart();
    assert_eq!(connect(&path).get::<_, i32>(7).expect("a value"), 7);
    server.stop();
    assert!(!path.exists(), "the socket is left over");
}

#[test]
fn a_server_without_a_port_is_reached_by_its_socket() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let shown = path.display().to_string();
    let mut server = Server::start(&["--unixsocket", &shown, "--port", "0", "--requirepass", "p"]);
    let mut socket = UnixStream::connect(&path).expect("a connection");
    socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    socket.write_all(b"PING\r\nAUTH p\r\nPING\r\nQUIT\r\n").expect("sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("replies");
    assert!(text.starts_with("-NOAUTH"), "{text}");
    assert!(text.ends_with("+OK\r\n+PONG\r\n+OK\r\n"), "{text}");
    // A second server must not take it.
    let other = Server::start(&[]);
    let refusal = other.refused(&["--unixsocket", &shown, "--dir", "elsewhere", "--port", "0"]);
    assert!(refusal.contains("another process listens on it"), "{refusal}");
    server.stop();
}

#[test]
fn addresses_that_cannot_be_had_leave_the_old_ones() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let busy = taken.local_addr().expect("an address").port().to_string();
    for workers in ["1", "2"] {
        let server = Server::start(&["--workers", workers, "--shards", "2"]);
        let mut client = server.client();
        let set = |client: &mut redis::Connection, words: &[&str]| {
            redis::cmd("CONFIG").arg("SET").arg(words).query::<()>(client)
        };
        set(&mut client, &["port", &busy]).expect_err("a port that is taken");
        assert_eq!(
            redis::cmd("PING").query::<String>(&mut server.client()).expect("served"),
            "PONG"
        );
        // A connection that waits to be accepted is not lost with a change that fails.
        set(&mut client, &["bind", "127.0.0.1 192.0.2.1"]).expect_err("not of this machine");
        assert_eq!(
            redis::cmd("PING").query::<String>(&mut server.client()).expect("served"),
            "PONG"
        );
        let shown: (String, String) =
            redis::cmd("CONFIG").arg("GET").arg("bind").query(&mut client).expect("its value");
        assert_eq!(shown.1, "127.0.0.1");
        // From one address to all, which cover it, and back.
        set(&mut client, &["bind", "*"]).expect("all addresses");
        set(&mut client, &["bind", "127.0.0.1"]).expect("one address");
        let port = moved_to_a_free_port(&mut client);
        assert!(std::net::TcpStream::connect(("127.0.0.1", server.port())).is_err());
        let address = format!("redis://127.0.0.1:{port}/");
        let mut moved = redis::Client::open(address).expect("an address").get_connection();
        let moved = moved.as_mut().expect("a connection");
        assert_eq!(redis::cmd("PING").query::<String>(moved).expect("served"), "PONG");
    }
}
