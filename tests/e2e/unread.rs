//! Replies that a client has not read: some are kept for it, so that it may send much before it reads,
//! and its commands wait for more, unless `maxmemory-clients` asks for it to be closed.

use super::Server;
use super::blind::{info, run};
use super::pubsub::Raw;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Length of the value of the key `k`, and of the reply to GET.
const VALUE: usize = 10_000;
const REPLY: usize = VALUE + "$10000\r\n\r\n".len();

/// Starts a server that has the key `k`.
fn start(options: &[&str]) -> Server {
    let server = Server::start(options);
    run(&mut server.client(), &["SET", "k", &"v".repeat(VALUE)]);
    server
}

/// Returns a connection that gives up after some time.
fn connect(server: &Server) -> TcpStream {
    let socket = server.socket();
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// Returns the reply to CLIENT LIST.
fn list(client: &mut redis::Connection) -> String {
    redis::cmd("CLIENT").arg("LIST").query(client).expect("the list")
}

/// Returns the sum of a field of some clients.
fn sum<'a>(clients: impl Iterator<Item = &'a str>, field: &str) -> u64 {
    let fields = clients.flat_map(|line| line.split(' '));
    let numbers = fields.filter_map(|it| it.strip_prefix(field));
    numbers.map(|number| number.parse::<u64>().expect("a number")).sum()
}

/// Returns the bytes of unread replies of all clients `lazy`.
fn unread(client: &mut redis::Connection) -> u64 {
    sum(list(client).lines().filter(|line| line.contains(" name=lazy ")), "omem=")
}

/// Returns the bytes of unread replies of all clients.
fn unread_of_all(client: &mut redis::Connection) -> u64 {
    sum(list(client).lines(), "omem=")
}

#[test]
fn a_client_may_send_much_before_it_reads() {
    // The greatest number of replies takes more than each client is sure to get.
    for (workers, budget, gets) in [("1", "64mb", 1200), ("2", "64mb", 1200), ("2", "1gb", 2800)] {
        let server = start(&["--workers", workers, "--shards", "2", "--memory-budget", budget]);
        let mut socket = connect(&server);
        // More replies than the sockets hold, then more commands than they hold.
        let sets = 24_000;
        let mut commands = b"GET k\r\n".repeat(gets);
        let set = format!("*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$1000\r\n{}\r\n", "w".repeat(1000));
        commands.extend(set.into_bytes().repeat(sets));
        socket.write_all(&commands).expect("all is taken before anything is read");
        let mut replies = vec![0; gets * REPLY + sets * "+OK\r\n".len()];
        socket.read_exact(&mut replies).expect("all replies");
        assert!(replies.ends_with(&b"+OK\r\n".repeat(sets)), "{workers}");
        assert!(replies.starts_with(b"$10000\r\nvvv"), "{workers}");
    }
}

#[test]
fn the_last_replies_come_although_the_client_has_sent_its_end() {
    let server = start(&[]);
    for last in ["", "QUIT\r\n"] {
        let mut socket = connect(&server);
        socket.write_all(&b"GET k\r\n".repeat(1200)).expect("sent");
        socket.write_all(last.as_bytes()).expect("sent");
        socket.shutdown(std::net::Shutdown::Write).expect("the end is sent");
        std::thread::sleep(Duration::from_millis(300));
        let mut replies = Vec::new();
        socket.read_to_end(&mut replies).expect("all replies");
        let end = if last.is_empty() { 0 } else { "+OK\r\n".len() };
        assert_eq!(replies.len(), 1200 * REPLY + end, "{last}");
    }
}

#[test]
fn one_that_has_quit_is_a_client_until_it_has_read_its_replies() {
    let server = start(&["--memory-budget", "1gb"]);
    let mut other = server.client();
    let (mut tracking, mut late) = (server.client(), server.client());
    let mut lazy = Raw::connect(&server);
    lazy.expect("CLIENT SETNAME lazy", "+OK");
    lazy.send("CLIENT ID\r\n");
    let id = lazy.lines(1).split_off(1);
    run(&mut tracking, &["CLIENT", "TRACKING", "ON", "REDIRECT", &id]);
    run(&mut tracking, &["GET", "x"]);
    lazy.send(&format!("{}QUIT\r\n", "GET k\r\n".repeat(1600)));
    let deadline = Instant::now() + PATIENCE;
    while !list(&mut other).contains(" cmd=quit ") || unread(&mut other) < 1 << 20 {
        assert!(Instant::now() < deadline, "it is not listed: {}", list(&mut other));
        std::thread::sleep(Duration::from_millis(5));
    }
    // No message is redirected to it.
    let mut redirected = redis::cmd("CLIENT");
    redirected.arg(&["TRACKING", "ON", "REDIRECT", &id]);
    let error = redirected.exec(&mut late).expect_err("refused").to_string();
    assert!(error.contains("does not exist"), "{error}");
    run(&mut other, &["SET", "x", "1"]);
    let is_broken = |client: &mut redis::Connection| {
        format!("{:?}", run(client, &["CLIENT", "TRACKINGINFO"])).contains("broken_redirect")
    };
    while !is_broken(&mut tracking) {
        assert!(Instant::now() < deadline, "the redirection goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    run(&mut tracking, &["CLIENT", "TRACKING", "OFF"]);
    assert_eq!(run(&mut other, &["CLIENT", "KILL", "ID", &id]), redis::Value::Int(1));
    assert!(!list(&mut other).contains(" name=lazy "));
    assert!(lazy.is_closed());
}

#[test]
fn commands_wait_when_enough_is_unread_and_nobody_is_closed() {
    let server = start(&["--memory-budget", "64mb"]);
    let mut client = server.client();
    let mut lazy: Vec<TcpStream> = (0..4).map(|_| connect(&server)).collect();
    for socket in &mut lazy {
        socket.write_all(b"CLIENT SETNAME lazy\r\n").expect("sent");
        socket.write_all(&b"GET k\r\n".repeat(4000)).expect("sent");
    }
    let deadline = Instant::now() + PATIENCE;
    // Half of 32 MiB, without the replies that each worker is about to write, and the ends of blocks.
    while unread(&mut client) < 4 << 20 {
        assert!(Instant::now() < deadline, "{} bytes are kept", unread(&mut client));
        std::thread::sleep(Duration::from_millis(20));
    }
    // Longer than the time between two looks at the memory of clients.
    std::thread::sleep(Duration::from_millis(1500));
    let taken = info(&mut client, "mem_clients_normal").parse::<u64>().expect("a number");
    assert!(taken <= 24 << 20, "half of 32 MiB, and what is being written: {taken}");
    assert_eq!(info(&mut client, "evicted_clients"), "0");
    for socket in &mut lazy {
        let mut replies = vec![0; "+OK\r\n".len() + 4000 * REPLY];
        socket.read_exact(&mut replies).expect("all replies");
    }
}

#[test]
fn with_a_limit_for_clients_one_that_does_not_read_is_closed() {
    let server = start(&["--maxmemory-clients", "3mb"]);
    let mut client = server.client();
    let mut lazy = connect(&server);
    lazy.write_all(b"CLIENT SETNAME lazy\r\n").expect("sent");
    let deadline = Instant::now() + PATIENCE;
    let mut most = 0;
    loop {
        match lazy.write_all(&b"GET k\r\n".repeat(20)) {
            Ok(()) => {}
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                break;
            }
            Err(error) => panic!("{error}"),
        }
        most = most.max(unread(&mut client));
        assert!(Instant::now() < deadline, "it stays, with {most} bytes");
    }
    assert!(most <= 8 << 20, "it had {most} bytes");
    // It was evicted, or there was no memory for its next reply.
    assert_eq!(unread(&mut client), 0);
}

#[test]
fn with_a_limit_for_clients_those_that_are_spared_may_still_read_late() {
    let server = start(&["--memory-budget", "64mb", "--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    run(&mut client, &["CLIENT", "NO-EVICT", "ON"]);
    // On both workers, of which one has the key.
    let mut lazy: Vec<TcpStream> = (0..4).map(|_| connect(&server)).collect();
    for socket in &mut lazy {
        socket.write_all(b"CLIENT NO-EVICT ON\r\nCLIENT SETNAME lazy\r\n").expect("sent");
        socket.read_exact(&mut [0; 2 * "+OK\r\n".len()]).expect("it is spared");
    }
    run(&mut client, &["CONFIG", "SET", "maxmemory-clients", "1"]);
    for socket in &mut lazy {
        socket.write_all(&b"GET k\r\n".repeat(1500)).expect("sent");
    }
    let deadline = Instant::now() + PATIENCE;
    while unread(&mut client) < 4 << 20 {
        assert!(Instant::now() < deadline, "{} bytes are kept", unread(&mut client));
        std::thread::sleep(Duration::from_millis(20));
    }
    for socket in &mut lazy {
        socket.read_exact(&mut vec![0; 1500 * REPLY]).expect("all replies");
    }
    assert_eq!(info(&mut client, "evicted_clients"), "0");
    // They are closed as others are when they are spared no longer.
    for socket in &mut lazy {
        socket.write_all(&b"GET k\r\n".repeat(200)).expect("sent");
        socket.write_all(b"CLIENT NO-EVICT OFF\r\n").expect("sent");
    }
    while list(&mut client).contains(" name=lazy ") {
        assert!(Instant::now() < deadline, "they stay, with {} bytes", unread(&mut client));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_request_that_lowers_the_limit_does_not_count() {
    for workers in ["1", "2"] {
        let server = start(&["--memory-budget", "64mb", "--workers", workers, "--shards", "2"]);
        let mut client = server.client();
        run(&mut client, &["CLIENT", "NO-EVICT", "ON"]);
        // Requests whose ends are missing.
        let begun = |mib: usize| {
            let mut socket = connect(&server);
            let head = format!("CLIENT SETNAME {mib}\r\n*2\r\n${}\r\n", mib << 20);
            let request = [head.into_bytes(), vec![b'v'; mib << 20]].concat();
            socket.write_all(&request).expect("sent");
            socket
        };
        let _sockets: Vec<TcpStream> = [1, 1, 1, 3, 3, 3].into_iter().map(begun).collect();
        let deadline = Instant::now() + PATIENCE;
        let limit = loop {
            let list = list(&mut client);
            if sum(list.lines(), "qbuf=") >= 12 << 20 {
                break sum(list.lines().filter(|line| !line.contains(" name=3 ")), "tot-mem=");
            }
            assert!(Instant::now() < deadline, "not all is read: {list}");
        };
        run(&mut client, &["CONFIG", "SET", "maxmemory-clients", &limit.to_string()]);
        let list = loop {
            let list = list(&mut client);
            if !list.contains(" name=3 ") {
                break list;
            }
            assert!(Instant::now() < deadline, "they stay: {list}");
        };
        assert_eq!(list.matches(" name=1 ").count(), 3, "{workers}: {list}");
    }
}

/// Reads all replies, in a moment.
fn read_later(mut socket: TcpStream) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        let mut replies = Vec::new();
        // A reset behind the last reply tells that further commands came.
        let _ = socket.read_to_end(&mut replies);
        replies
    })
}

#[test]
fn a_server_that_ends_gives_the_replies_of_the_commands_that_ran() {
    for workers in ["1", "2"] {
        let mut server = start(&["--workers", workers, "--shards", "2", "--memory-budget", "1gb"]);
        let socket = connect(&server);
        let mut sender = socket.try_clone().expect("a second handle");
        // More commands than the sockets hold: some are sent while the server ends.
        let sending = std::thread::spawn(move || {
            let _ = sender.write_all(&b"INCR n\r\nGET k\r\n".repeat(400_000));
        });
        // A blocked one gets the replies before.
        let mut blocked = connect(&server);
        blocked.write_all(&b"GET k\r\n".repeat(1200)).expect("sent");
        blocked.write_all(b"BLPOP none 0\r\n").expect("sent");
        let mut client = server.client();
        let deadline = Instant::now() + PATIENCE;
        while unread_of_all(&mut client) < 12 << 20 || info(&mut client, "blocked_clients") != "1" {
            assert!(Instant::now() < deadline, "nothing is kept");
            std::thread::sleep(Duration::from_millis(20));
        }
        let [replies, of_blocked] = [socket, blocked].map(read_later);
        server.stop();
        sending.join().expect("the sender ends");
        let replies = replies.join().expect("the replies");
        let of_blocked = of_blocked.join().expect("the replies");
        assert_eq!(of_blocked.len(), 1200 * REPLY, "{workers}");
        server.restart();
        let ran = run(&mut server.client(), &["GET", "n"]);
        let answered = replies.windows(3).filter(|bytes| bytes[..3] == *b"\r\n:").count();
        let answered = answered + usize::from(replies.starts_with(b":"));
        assert_eq!(ran, redis::Value::BulkString(answered.to_string().into_bytes()), "{workers}");
    }
}
