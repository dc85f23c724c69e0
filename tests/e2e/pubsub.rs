//! Publish and subscribe, MONITOR, and readers that are too slow.

use super::Server;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long something that happens by itself may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client that shows the bytes that it receives as they are.
pub(super) struct Raw {
    socket: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Raw {
    pub(super) fn connect(server: &Server) -> Self {
        let socket = server.socket();
        let reader = BufReader::new(socket.try_clone().expect("another handle"));
        Self { socket, reader }
    }

    pub(super) fn send(&mut self, commands: &str) {
        self.socket.write_all(commands.as_bytes()).expect("sent");
    }

    /// The next lines, with blanks between them; a null is one line.
    pub(super) fn lines(&mut self, count: usize) -> String {
        let mut lines = Vec::new();
        for _ in 0..count {
            let mut line = String::new();
            self.reader.read_line(&mut line).expect("a line");
            assert!(line.ends_with("\r\n"), "the connection ended: {lines:?} {line:?}");
            lines.push(line.trim_end().to_owned());
        }
        lines.join(" ")
    }

    /// Sends commands, and compares all that comes for them.
    #[track_caller]
    pub(super) fn expect(&mut self, commands: &str, want: &str) {
        self.send(&format!("{commands}\r\n"));
        self.hear(want);
    }

    /// Compares the next bytes.
    #[track_caller]
    pub(super) fn hear(&mut self, want: &str) {
        assert_eq!(self.lines(want.split(' ').count()), want);
    }

    /// Returns true if the server closes the connection, whatever it sends before.
    pub(super) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        // A reset is an end too.
        self.reader
            .read_to_end(&mut rest)
            .map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |_| true)
    }
}

/// Two workers, and so many clients that both have some.
fn two_workers() -> Server {
    Server::start(&["--workers", "2", "--shards", "2", "--accept-mode", "round-robin"])
}

fn field(client: &mut redis::Connection, section: &str, name: &str) -> String {
    let info: String = redis::cmd("INFO").arg(section).query(client).expect("its figures");
    let found = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.expect("the field").to_owned()
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn replies_are_those_of_the_reference() {
    let server = two_workers();
    let mut two = Raw::connect(&server);
    two.expect("UNSUBSCRIBE", "*3 $11 unsubscribe $-1 :0");
    two.expect("PUNSUBSCRIBE x", "*3 $12 punsubscribe $1 x :0");
    two.expect("SUBSCRIBE a a", "*3 $9 subscribe $1 a :1 *3 $9 subscribe $1 a :1");
    two.expect("PSUBSCRIBE p*", "*3 $10 psubscribe $2 p* :2");
    two.expect("SSUBSCRIBE s", "*3 $10 ssubscribe $1 s :1");
    two.expect("PING", "*2 $4 pong $0 ");
    two.expect("PING hi", "*2 $4 pong $2 hi");
    two.send("GET k\r\n");
    assert_eq!(
        two.lines(1),
        "-ERR Can't execute 'get': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET \
        are allowed in this context"
    );
    let mut queued = Raw::connect(&server);
    queued.expect("MULTI\r\nSSUBSCRIBE s\r\nSUBSCRIBE zz", "+OK +QUEUED +QUEUED");
    queued.send("EXEC\r\n");
    let refused = "*2 -ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client";
    assert_eq!(queued.lines(2), refused);
    queued.hear("*3 $9 subscribe $2 zz :1");
    let mut three = Raw::connect(&server);
    three.send("HELLO 3\r\nECHO end\r\n");
    while three.lines(1) != "end" {}
    three.expect("SUNSUBSCRIBE", ">3 $12 sunsubscribe _ :0");
    three.expect("SUBSCRIBE a", ">3 $9 subscribe $1 a :1");
    three.expect("PUBSUB NUMSUB a nobody", "*4 $1 a :2 $6 nobody :0");
    three.expect("PUBSUB CHANNELS [a]", "*1 $1 a");
    three.expect("PUBSUB CHANNELS x*", "*0");
    three.expect("PUBSUB NUMPAT", ":1");
    three.expect("PUBSUB SHARDCHANNELS", "*1 $1 s");
    three.expect("PUBSUB SHARDNUMSUB s a", "*4 $1 s :1 $1 a :0");
    // The reply of a command comes before the message that it causes.
    three.expect("PUBLISH a hi", ":2 >3 $7 message $1 a $2 hi");
    two.hear("*3 $7 message $1 a $2 hi");
    three.expect("PUBLISH pp hi", ":1");
    two.hear("*4 $8 pmessage $2 p* $2 pp $2 hi");
    three.expect("SPUBLISH s hi", ":1");
    two.hear("*3 $8 smessage $1 s $2 hi");
    three.expect("SPUBLISH a hi", ":0");
    two.expect("RESET", "+RESET");
    two.expect("PING", "+PONG");
    three.expect("PUBSUB NUMSUB a", "*2 $1 a :1");
    three.expect("PUBSUB NUMPAT", ":0");
    three.expect("UNSUBSCRIBE", ">3 $11 unsubscribe $1 a :0");
    three.expect("QUIT", "+OK");
    assert!(three.is_closed());
}

#[test]
fn confirmations_come_even_where_replies_are_not_wanted() {
    let server = two_workers();
    let mut quiet = Raw::connect(&server);
    quiet.expect("CLIENT REPLY OFF\r\nSUBSCRIBE a", "*3 $9 subscribe $1 a :1");
    let mut other = Raw::connect(&server);
    other.expect("PUBLISH a hi", ":1");
    quiet.hear("*3 $7 message $1 a $2 hi");
    quiet.expect("UNSUBSCRIBE", "*3 $11 unsubscribe $1 a :0");
    quiet.expect("CLIENT REPLY ON", "+OK");
}

#[test]
fn messages_sent_before_an_unsubscribe_come_before_its_confirmation() {
    let server = two_workers();
    let mut listener = Raw::connect(&server);
    listener.expect("HELLO 3\r\nCLIENT SETNAME l", "%7");
    while listener.lines(1) != "+OK" {}
    listener.expect("SUBSCRIBE a", ">3 $9 subscribe $1 a :1");
    // In one read: its own messages are there when the subscription ends.
    listener.expect(
        "PUBLISH a 1\r\nPUBLISH a 2\r\nUNSUBSCRIBE a\r\nPUBLISH a 3",
        ":1 :1 >3 $7 message $1 a $1 1 >3 $7 message $1 a $1 2 >3 $11 unsubscribe $1 a :0 :0",
    );
    listener.expect("SUBSCRIBE a", ">3 $9 subscribe $1 a :1");
    listener.send("PUBLISH a 1\r\nHELLO 2\r\nPING\r\n");
    listener.hear(":1 >3 $7 message $1 a $1 1 *14");
    while listener.lines(1) != "pong" {}
    listener.hear("$0 ");
    listener.expect("RESET", "+RESET");
}

#[test]
fn all_hear_the_same_order_on_all_workers() {
    const MESSAGES: usize = 300;
    let server = two_workers();
    let mut listeners: Vec<Raw> = (0..6).map(|_| Raw::connect(&server)).collect();
    for (n, listener) in listeners.iter_mut().enumerate() {
        if n % 3 == 0 {
            listener.expect("PSUBSCRIBE c*", "*3 $10 psubscribe $2 c* :1");
        } else {
            listener.expect("SUBSCRIBE ch", "*3 $9 subscribe $2 ch :1");
        }
    }
    std::thread::scope(|scope| {
        for who in 0..4 {
            let mut publisher = Raw::connect(&server);
            scope.spawn(move || {
                let commands: String =
                    (0..MESSAGES).map(|n| format!("PUBLISH ch {who}:{n}\r\n")).collect();
                publisher.send(&commands);
                assert_eq!(publisher.lines(MESSAGES), vec![":6"; MESSAGES].join(" "));
            });
        }
    });
    let mut orders = listeners.iter_mut().map(|listener| {
        let mut heard = Vec::new();
        while heard.len() < 4 * MESSAGES {
            let line = listener.lines(1);
            if line.contains(':') {
                heard.push(line);
            }
        }
        heard
    });
    let first = orders.next().expect("there are listeners");
    assert!(orders.all(|order| order == first));
}

#[test]
fn the_end_of_a_connection_ends_its_subscriptions() {
    let server = two_workers();
    let mut client = server.client();
    let mut listeners: Vec<Raw> = (0..4).map(|_| Raw::connect(&server)).collect();
    for listener in &mut listeners {
        listener.expect("SUBSCRIBE a", "*3 $9 subscribe $1 a :1");
        listener.expect("PSUBSCRIBE b*", "*3 $10 psubscribe $2 b* :2");
        listener.expect("SSUBSCRIBE c", "*3 $10 ssubscribe $1 c :1");
    }
    assert_eq!(field(&mut client, "clients", "pubsub_clients"), "4");
    let list: String =
        redis::cmd("CLIENT").arg(&["LIST", "TYPE", "pubsub"]).query(&mut client).expect("a list");
    assert_eq!(list.lines().count(), 4);
    assert!(
        list.lines()
            .all(|line| line.contains(" flags=P ") && line.contains(" sub=1 psub=1 ssub=1 "))
    );
    drop(listeners.pop());
    let none_left = |client: &mut redis::Connection| {
        ["pubsub_channels", "pubsub_patterns", "pubsubshard_channels"]
            .iter()
            .all(|name| field(client, "stats", name) == "0")
    };
    eventually("three are left", || field(&mut client, "clients", "pubsub_clients") == "3");
    assert!(!none_left(&mut client));
    let killed: usize =
        redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).query(&mut client).expect("killed");
    assert_eq!(killed, 3);
    eventually("nothing is left", || none_left(&mut client));
    assert!(listeners.iter_mut().all(Raw::is_closed));
}

#[test]
fn a_subscriber_that_does_not_read_is_closed() {
    let server = two_workers();
    let mut client = server.client();
    let set = |client: &mut redis::Connection, limit: &str| {
        let () = redis::cmd("CONFIG")
            .arg(&["SET", "client-output-buffer-limit", limit])
            .query(client)
            .expect("set");
    };
    set(&mut client, "pubsub 1mb 0 0");
    let mut slow: Vec<Raw> = (0..2).map(|_| Raw::connect(&server)).collect();
    let mut fast = Raw::connect(&server);
    for listener in slow.iter_mut().chain([&mut fast]) {
        listener.expect("SUBSCRIBE a", "*3 $9 subscribe $1 a :1");
    }
    let publish = |client: &mut redis::Connection, fast: &mut Raw, bytes: usize| -> usize {
        let payload = "x".repeat(bytes);
        let heard = redis::cmd("PUBLISH").arg("a").arg(&payload).query(client).expect("sent");
        fast.hear(&format!("*3 $7 message $1 a ${bytes} {payload}"));
        heard
    };
    // First the sockets' buffers are full, then the limit is reached.
    let before = server.rss();
    let mut sent = 0;
    while publish(&mut client, &mut fast, 100_000) > 1 {
        sent += 100_000;
        assert!(sent < 200 << 20, "slow readers are never closed");
    }
    assert!(server.rss() < before + (24 << 20), "what is not read takes memory");
    assert!(slow.iter_mut().all(Raw::is_closed));
    let closed = "client_output_buffer_limit_disconnections";
    assert_eq!(field(&mut client, "stats", closed), "2");

    // The soft limit: less than the hard one, but for too long; nothing is sent meanwhile.
    set(&mut client, "pubsub 0 200000 1");
    let mut slow = Raw::connect(&server);
    slow.expect("CLIENT SETNAME slow\r\nSUBSCRIBE a", "+OK *3 $9 subscribe $1 a :1");
    let unsent = |client: &mut redis::Connection| -> Option<usize> {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(client).expect("a list");
        let line = list.lines().find(|line| line.contains("name=slow"))?.to_owned();
        let omem = line.split(' ').find_map(|word| word.strip_prefix("omem="))?;
        omem.parse().ok()
    };
    // The sockets' buffers may grow and take the unsent bytes; then the time begins anew.
    eventually("the slow one is gone", || match unsent(&mut client) {
        None => true,
        Some(bytes) => {
            if bytes < 250_000 {
                publish(&mut client, &mut fast, 100_000);
            }
            false
        }
    });
    assert!(slow.is_closed());
    assert_eq!(field(&mut client, "stats", closed), "3");
    fast.expect("PING", "*2 $4 pong $0 ");
}

#[test]
fn replies_beyond_the_limit_of_normal_clients_are_not_sent() {
    let server = two_workers();
    let mut client = server.client();
    let limit = ["SET", "client-output-buffer-limit", "normal 100000 0 0"];
    let () = redis::cmd("CONFIG").arg(&limit).query(&mut client).expect("set");
    let () = redis::cmd("SET").arg("k").arg("x".repeat(50_000)).query(&mut client).expect("set");
    let mut one = Raw::connect(&server);
    one.send("GET k\r\n");
    assert_eq!(one.lines(2).len(), "$50000 ".len() + 50_000);
    one.send("GET k\r\nGET k\r\n");
    let mut rest = Vec::new();
    // The server may reset the connection.
    let _ = one.reader.read_to_end(&mut rest);
    assert_eq!(rest.len(), 0);
    eventually("it is counted", || {
        field(&mut client, "stats", "client_output_buffer_limit_disconnections") == "1"
    });
}

#[test]
fn monitors_see_the_commands_of_a_connection_in_order() {
    let server = two_workers();
    let mut lister = server.client();
    let mut monitors: Vec<Raw> = (0..2).map(|_| Raw::connect(&server)).collect();
    for monitor in &mut monitors {
        monitor.expect("MONITOR\r\nMONITOR", "+OK");
    }
    let mut client = Raw::connect(&server);
    let address = client.socket.local_addr().expect("its address");
    let mut commands = String::new();
    // Keys of both workers, barriers, errors, and commands that MONITOR does not show.
    for n in 0..100 {
        commands
            .push_str(&format!("SET k{n} v\r\nMSET a{n} 1 b{n} 2\r\nDBSIZE\r\nLPUSH k{n} x\r\n"));
        commands.push_str("NOSUCH\r\nCONFIG GET port\r\nPING\r\n");
    }
    commands.push_str("AUTH default secret\r\nSELECT 3\r\nECHO \"a\\\"b\\x00\"\r\n");
    client.send(&commands);
    let mut wanted = Vec::new();
    for n in 0..100 {
        wanted.push(format!("0 \"SET\" \"k{n}\" \"v\""));
        wanted.push(format!("0 \"MSET\" \"a{n}\" \"1\" \"b{n}\" \"2\""));
        wanted.push("0 \"DBSIZE\"".to_owned());
        wanted.push(format!("0 \"LPUSH\" \"k{n}\" \"x\""));
        wanted.push("0 \"PING\"".to_owned());
    }
    wanted.push("0 \"AUTH\" \"(redacted)\" \"(redacted)\"".to_owned());
    wanted.push("3 \"SELECT\" \"3\"".to_owned());
    wanted.push("3 \"ECHO\" \"a\\\"b\\x00\"".to_owned());
    for monitor in &mut monitors {
        for want in &wanted {
            let line = monitor.lines(1);
            let (db, command) = want.split_once(' ').expect("two parts");
            let (time, rest) = line.split_once(' ').expect("a time");
            let (seconds, micros) = time[1..].split_once('.').expect("a point");
            assert!(line.starts_with('+') && seconds.parse::<u64>().is_ok() && micros.len() == 6);
            assert_eq!(rest, format!("[{db} {address}] {command}"));
        }
    }
    let listed: String =
        redis::cmd("CLIENT").arg(&["LIST", "TYPE", "normal"]).query(&mut lister).expect("a list");
    assert_eq!(listed.lines().filter(|line| line.contains(" flags=O ")).count(), 2);
    // The other's RESET is shown, its own is not.
    let mut one = monitors.pop().expect("two");
    one.expect("RESET\r\nPING", "+RESET +PONG");
    let mut other = monitors.pop().expect("one");
    assert!(other.lines(1).ends_with("\"RESET\""));
    assert!(other.lines(1).ends_with("\"PING\""));
}

/// Commands on keys run first, as one unit, and those on the connection behind it; the replies are
/// in the order of the queue.
#[test]
fn a_mixed_transaction_answers_in_the_order_of_its_queue() {
    let server = two_workers();
    for other_key in ["{a}", "{b}"] {
        // One of two clients is on the worker of the key.
        for _ in 0..2 {
            let (mut client, mut other) = (Raw::connect(&server), Raw::connect(&server));
            other.expect("DEL {a} {a}none {b}none", ":0");
            client.send(&format!(
                "MULTI\r\nSET {{a}} 1\r\nCLIENT SETNAME me\r\nINCR {{a}}\r\nLPUSH {{a}} x\r\n\
                CLIENT GETNAME\r\nGET {other_key}none\r\nEXEC\r\n"
            ));
            assert_eq!(client.lines(8), format!("+OK{} *6", " +QUEUED".repeat(6)));
            assert_eq!(client.lines(3), "+OK +OK :2");
            let error = client.lines(1);
            assert!(error.starts_with("-WRONGTYPE "), "{error}");
            assert_eq!(client.lines(3), "$2 me $-1");
            // An array that is the reply of one command is not taken apart.
            client.send("MULTI\r\nMGET {a} {a}none\r\nCLIENT GETNAME\r\nEXEC\r\n");
            assert_eq!(client.lines(10), "+OK +QUEUED +QUEUED *2 *2 $1 2 $-1 $2 me");
            client.expect("WATCH {a}", "+OK");
            other.expect("SET {a} 3", "+OK");
            client.send("MULTI\r\nSELECT 1\r\nSET {a} 4\r\nEXEC\r\nGET {a}\r\n");
            assert_eq!(client.lines(6), "+OK +QUEUED +QUEUED *-1 $1 3");
            other.expect("DEL {a}", ":1");
        }
    }
}
