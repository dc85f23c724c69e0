//! Commands that wait for keys: who gets what, when, and that nothing is lost or given twice.

use super::Server;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn start(workers: &str, fsync: &str) -> Server {
    let options = ["--workers", workers, "--shards", "6", "--appendfsync", fsync];
    Server::start(&[&options[..], &["--enable-debug-command", "yes"]].concat())
}

/// A client that shows replies as text: `[k v]` is an array, `(nil)` a null bulk string, `(none)` a
/// null array, `_` the null of RESP3.
struct Client {
    socket: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    fn new(server: &Server) -> Self {
        let socket = server.socket();
        socket.set_nodelay(true).expect("a socket");
        let reader = BufReader::new(socket.try_clone().expect("a socket"));
        Self { socket, reader }
    }

    /// A client that waits already.
    fn waiting(server: &Server, watcher: &mut Self, command: &str) -> Self {
        let before = watcher.info("blocked_clients");
        let mut client = Self::new(server);
        client.send(command);
        watcher.wait_info("blocked_clients", before + 1);
        client
    }

    /// Sends commands, one per line.
    fn send(&mut self, commands: &str) {
        let mut bytes = Vec::new();
        for command in commands.lines() {
            let args: Vec<&str> = command.split_whitespace().collect();
            bytes.extend(format!("*{}\r\n", args.len()).into_bytes());
            args.iter()
                .for_each(|arg| bytes.extend(format!("${}\r\n{arg}\r\n", arg.len()).bytes()));
        }
        self.socket.write_all(&bytes).expect("sent");
    }

    fn read(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("a reply");
        let line = line.trim_end();
        assert!(!line.is_empty(), "the connection is closed");
        let (kind, rest) = line.split_at(1);
        match (kind, rest) {
            ("$", "-1") => "(nil)".to_owned(),
            ("*", "-1") => "(none)".to_owned(),
            ("$", len) => {
                let mut bulk = vec![0; len.parse::<usize>().expect("a length") + 2];
                self.reader.read_exact(&mut bulk).expect("a bulk string");
                String::from_utf8_lossy(&bulk[..bulk.len() - 2]).into_owned()
            }
            ("*" | "%", len) => {
                let len: usize = len.parse().expect("a length");
                let items: Vec<_> =
                    (0..if kind == "%" { 2 * len } else { len }).map(|_| self.read()).collect();
                format!("[{}]", items.join(" "))
            }
            ("+" | ":" | ",", rest) => rest.to_owned(),
            _ => line.to_owned(),
        }
    }

    fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.read()
    }

    /// Returns true if the server has closed the connection.
    fn is_closed(&mut self) -> bool {
        matches!(self.reader.read(&mut [0]), Ok(0) | Err(_))
    }

    /// Nothing has been answered so far.
    fn is_silent(&mut self) -> bool {
        self.socket.set_nonblocking(true).expect("a socket");
        let silent = self.reader.buffer().is_empty() && self.socket.peek(&mut [0]).is_err();
        self.socket.set_nonblocking(false).expect("a socket");
        silent
    }

    fn info(&mut self, field: &str) -> u64 {
        let text = self.ask("INFO clients");
        redis::InfoDict::new(&text).get(field).expect("a number")
    }

    fn wait_info(&mut self, field: &str, want: u64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.info(field);
            if now == want {
                return;
            }
            assert!(Instant::now() < deadline, "{field} is {now}, not {want}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A server with three workers, one client that watches it, and one that writes.
fn with_clients() -> (Server, Client, Client) {
    let server = start("3", "no");
    let (watcher, writer) = (Client::new(&server), Client::new(&server));
    (server, watcher, writer)
}

#[test]
fn keys_are_waited_for_on_every_worker() {
    for workers in ["1", "2", "3"] {
        let server = start(workers, "no");
        let (mut watcher, mut writer) = (Client::new(&server), Client::new(&server));
        let mut clients: Vec<Client> = (0..24).map(|_| Client::new(&server)).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            client.send(&format!("BLPOP k{n} 0"));
        }
        watcher.wait_info("blocked_clients", 24);
        watcher.wait_info("total_blocking_keys", 24);
        let pushes: Vec<_> = (0..24).map(|n| format!("RPUSH k{n} e{n}")).collect();
        writer.send(&pushes.join("\n"));
        for (n, client) in clients.iter_mut().enumerate() {
            assert_eq!(writer.read(), "1");
            assert_eq!(client.read(), format!("[k{n} e{n}]"));
        }
        let keys: Vec<_> = (0..24).map(|n| format!("k{n}")).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            client.send(&format!("BZPOPMIN {} 0", keys.join(" ")));
            watcher.wait_info("blocked_clients", 1);
            assert_eq!(writer.ask(&format!("ZADD k{n} 1.5 m")), "1");
            assert_eq!(client.read(), format!("[k{n} m 1.5]"));
            watcher.wait_info("total_blocking_keys", 0);
        }
        assert_eq!(writer.ask("DBSIZE"), "0");
    }
}

#[test]
fn first_come_first_served() {
    let (server, mut watcher, mut writer) = with_clients();
    for key in ["a", "b", "c", "d"] {
        let commands = [
            format!("BLPOP {key} 0"),
            format!("BRPOP {key} 0"),
            // Nothing of this type comes, so nobody behind it waits for it.
            format!("BZPOPMAX {key} other 0"),
            format!("BLMPOP 0 1 {key} LEFT COUNT 2"),
            format!("BLPOP other {key} 0"),
        ];
        let mut clients = commands.map(|command| Client::waiting(&server, &mut watcher, &command));
        assert_eq!(writer.ask(&format!("RPUSH {key} 1 2 3 4 5 6")), "6");
        assert_eq!(clients[0].read(), format!("[{key} 1]"));
        assert_eq!(clients[1].read(), format!("[{key} 6]"));
        assert_eq!(clients[3].read(), format!("[{key} [2 3]]"));
        assert_eq!(clients[4].read(), format!("[{key} 4]"));
        assert_eq!(writer.ask(&format!("LRANGE {key} 0 -1")), "[5]");
        assert!(clients[2].is_silent());
        assert_eq!(writer.ask(&format!("DEL {key}")), "1");
        assert_eq!(writer.ask("ZADD other 1 x 2 y"), "2");
        assert_eq!(clients[2].read(), "[other y 2]");
        writer.ask("FLUSHALL");
    }
}

#[test]
fn a_client_that_waits_in_vain_gets_an_error() {
    let (server, mut watcher, mut writer) = with_clients();
    let nulls = [
        ("BLPOP a b c 0.01", "(none)"),
        ("BZMPOP 0.01 2 a b MIN", "(none)"),
        ("BLMOVE a b LEFT LEFT 0.01", "(none)"),
        ("BRPOPLPUSH a b 0.01", "(none)"),
    ];
    for (command, null) in nulls {
        assert_eq!(writer.ask(command), null, "{command}");
    }
    for command in ["MULTI", "BLMOVE a b LEFT LEFT 0.01"] {
        writer.ask(command);
    }
    assert_eq!(writer.ask("EXEC"), "[(nil)]", "one that may not wait");
    writer.ask("HELLO 3");
    for (command, _) in nulls {
        assert_eq!(writer.ask(command), "_", "{command}");
    }
    let waits = ["BLPOP a b c 0", "BLMOVE a b LEFT LEFT 0", "WAIT 1 0", "WAITAOF 0 1 0"];
    for (command, null) in waits.into_iter().zip(["(none)", "(none)", "0", "[0 0]"]) {
        let mut client = Client::new(&server);
        let id = client.ask("CLIENT ID");
        for (reason, reply) in
            [("", null), ("ERROR", "-UNBLOCKED client unblocked via CLIENT UNBLOCK")]
        {
            client.send(command);
            watcher.wait_info("blocked_clients", 1);
            assert_eq!(watcher.ask(&format!("CLIENT UNBLOCK {id} {reason}")), "1");
            let answered = client.read();
            let durable = answered.replace("[1 ", "[0 ");
            assert_eq!(durable, reply, "{command}");
            assert_eq!(watcher.ask(&format!("CLIENT UNBLOCK {id} {reason}")), "0");
            watcher.wait_info("blocked_clients", 0);
        }
    }
    watcher.wait_info("total_blocking_keys", 0);
}

#[test]
fn a_client_that_has_gone_gets_nothing() {
    let (server, mut watcher, mut writer) = with_clients();
    let commands = ["BLPOP a b c d 0", "BLMOVE a b LEFT LEFT 0", "WAIT 1 0", "WAITAOF 0 1 0"];
    for command in commands {
        drop(Client::waiting(&server, &mut watcher, command));
        watcher.wait_info("blocked_clients", 0);
        let mut client = Client::new(&server);
        let id = client.ask("CLIENT ID");
        client.send(command);
        watcher.wait_info("blocked_clients", 1);
        assert_eq!(watcher.ask(&format!("CLIENT KILL ID {id}")), "1");
        watcher.wait_info("blocked_clients", 0);
        assert!(client.is_closed());
    }
    watcher.wait_info("total_blocking_keys", 0);
    for key in ["a", "b", "c", "d"] {
        assert_eq!(writer.ask(&format!("RPUSH {key} x")), "1");
        assert_eq!(writer.ask(&format!("LLEN {key}")), "1");
    }
    // Commands that wait for nothing are answered to a client that has ended its side.
    let mut client = Client::new(&server);
    client.send("DBSIZE\nRPUSH a y\nSCAN 0 COUNT 1000 TYPE zset");
    client.socket.shutdown(std::net::Shutdown::Write).expect("half closed");
    assert_eq!([client.read(), client.read(), client.read()], ["4", "2", "[0 []]"]);
}

#[test]
fn elements_pushed_behind_client_kill_are_not_for_the_killed_client() {
    let (server, mut watcher, mut writer) = with_clients();
    for number in 0..60 {
        let mut client = Client::new(&server);
        let id = client.ask("CLIENT ID");
        client.send(&format!("BLPOP k{number} 0"));
        watcher.wait_info("blocked_clients", 1);
        writer.send(&format!("CLIENT KILL ID {id}\nRPUSH k{number} x\nLLEN k{number}"));
        assert_eq!([writer.read(), writer.read(), writer.read()], ["1", "1", "1"], "{number}");
        assert!(client.is_closed());
        watcher.wait_info("blocked_clients", 0);
    }
}

#[test]
fn elements_are_moved_between_workers() {
    let (server, mut watcher, mut writer) = with_clients();
    let keys = ["k0", "k1", "k2", "k3", "k4", "k5"];
    for from in keys {
        for to in keys {
            let move_it = format!("BLMOVE {from} {to} LEFT RIGHT 0");
            let mut client = Client::waiting(&server, &mut watcher, &move_it);
            let mut next = Client::waiting(&server, &mut watcher, &format!("BRPOP {from} 0"));
            // Both elements are there before a worker serves a client by itself.
            writer.send(&format!("RPUSH {from} x y"));
            assert_eq!(writer.read(), "2");
            assert_eq!(client.read(), "x");
            assert_eq!(next.read(), format!("[{from} {}]", if from == to { "x" } else { "y" }));
            let rest = if from == to { "[y]" } else { "[x]" };
            assert_eq!(writer.ask(&format!("LRANGE {to} 0 -1")), rest);
            assert_eq!(writer.ask("FLUSHALL"), "OK");
        }
    }
    // A destination of another type is an error, and the next is served.
    writer.ask("SET k1 string");
    let mut wrong = Client::waiting(&server, &mut watcher, "BLMOVE k0 k1 LEFT LEFT 0");
    let mut right = Client::waiting(&server, &mut watcher, "BLMOVE k0 k2 LEFT LEFT 0");
    assert_eq!(writer.ask("RPUSH k0 x"), "1");
    assert!(wrong.read().starts_with("-WRONGTYPE"));
    assert_eq!(right.read(), "x");
    assert_eq!(writer.ask("EXISTS k0"), "0");
}

#[test]
fn chains_of_waiters_pass_an_element_on() {
    let (server, mut watcher, mut writer) = with_clients();
    for round in 0..5 {
        let mut last = Client::waiting(&server, &mut watcher, "BLPOP k9 0");
        let mut chain: Vec<Client> = (0..9)
            .map(|n| {
                let command = format!("BLMOVE k{n} k{} LEFT RIGHT 0", n + 1);
                Client::waiting(&server, &mut watcher, &command)
            })
            .collect();
        assert_eq!(writer.ask(&format!("RPUSH k0 e{round}")), "1");
        assert_eq!(last.read(), format!("[k9 e{round}]"));
        chain.iter_mut().for_each(|client| assert_eq!(client.read(), format!("e{round}")));
        assert_eq!(writer.ask("DBSIZE"), "0");
        watcher.wait_info("total_blocking_keys", 0);
    }
}

#[test]
fn every_command_that_makes_a_list_wakes_its_waiters() {
    let (server, mut watcher, mut writer) = with_clients();
    let payload = b"*4\r\n$7\r\nRESTORE\r\n$1\r\nk\r\n$1\r\n0\r\n";
    let others = ["a", "b", "c", "d"];
    for other in others {
        let commands = [
            format!("RPUSH {other} x\nRENAME {other} k"),
            format!("RPUSH {other} x\nCOPY {other} k"),
            format!("RPUSH {other} x\nLMOVE {other} k LEFT LEFT"),
            format!("RPUSH {other} x\nSORT {other} ALPHA STORE k"),
            format!("SET k string\nRPUSH {other} x\nDEL k\nRENAMENX {other} k"),
            "SET k string PX 1\nDEBUG SLEEP 0.005\nRPUSH k x".to_owned(),
            "SELECT 1\nRPUSH k x\nSWAPDB 0 1".to_owned(),
            "SELECT 1\nRPUSH k x\nMOVE k 0".to_owned(),
            "FLUSHALL\nRPUSH k x".to_owned(),
            "SADD k x\nSUNIONSTORE k none\nRPUSH k x\nHSET h f v".to_owned(),
        ];
        for command in commands {
            let mut client = Client::waiting(&server, &mut watcher, "BLPOP k 0");
            writer.send(&command);
            assert_eq!(client.read(), "[k x]", "{command}");
            for _ in command.lines() {
                let reply = writer.read();
                assert!(!reply.starts_with('-'), "{command}: {reply}");
            }
            writer.send("SELECT 0\nEXISTS k\nFLUSHALL");
            assert_eq!([writer.read(), writer.read(), writer.read()], ["OK", "0", "OK"]);
        }
    }
    // A sorted set of other keys; a list that is restored.
    let mut client = Client::waiting(&server, &mut watcher, "BZPOPMIN z 0");
    writer.send("ZADD a 1 x\nZUNIONSTORE z 1 a");
    assert_eq!(client.read(), "[z x 1]");
    assert_eq!([writer.read(), writer.read()], ["1", "1"]);
    let mut redis = server.client();
    let _: u64 = redis::cmd("RPUSH").arg("l").arg("x").query(&mut redis).expect("stored");
    let dump: Vec<u8> = redis::cmd("DUMP").arg("l").query(&mut redis).expect("a payload");
    let mut client = Client::waiting(&server, &mut watcher, "BLPOP k 0");
    let header = format!("${}\r\n", dump.len());
    let bytes = [&payload[..], header.as_bytes(), &dump, b"\r\n"].concat();
    writer.socket.write_all(&bytes).expect("sent");
    assert_eq!(writer.read(), "OK");
    assert_eq!(client.read(), "[k x]");
}

#[test]
fn commands_behind_a_wait_come_after_it() {
    let (server, mut watcher, mut writer) = with_clients();
    for key in ["a", "b", "c", "d"] {
        let commands = format!("BLPOP {key} 0\nRPUSH {key} own\nLPOP {key}\nPING");
        let mut client = Client::waiting(&server, &mut watcher, &commands);
        client.send("INCR n");
        assert!(client.is_silent());
        assert_eq!(writer.ask(&format!("RPUSH {key} x")), "1");
        let replies: Vec<_> = (0..5).map(|_| client.read()).collect();
        assert_eq!(replies[..4], [&format!("[{key} x]"), "1", "own", "PONG"]);
        // No replies are wanted: commands wait all the same.
        let mut quiet = Client::new(&server);
        quiet.send(&format!("CLIENT REPLY OFF\nBLPOP {key} 0\nRPUSH q {key}\nCLIENT REPLY ON"));
        watcher.wait_info("blocked_clients", 1);
        assert_eq!(writer.ask(&format!("RPUSH {key} x")), "1");
        assert_eq!(quiet.read(), "OK");
        assert_eq!(writer.ask("LPOP q"), key);
        assert_eq!(writer.ask(&format!("EXISTS {key}")), "0");
    }
}

#[test]
fn elements_given_to_a_waiter_are_gone_after_a_crash() {
    for fsync in ["always", "everysec"] {
        let mut server = start("3", fsync);
        for round in 0..6 {
            let (mut watcher, mut writer) = (Client::new(&server), Client::new(&server));
            let (key, to) = (format!("k{round}"), format!("to{}", round % 3));
            let mut client = Client::waiting(&server, &mut watcher, &format!("BLPOP {key} 0"));
            let move_it = format!("BLMOVE {key} {to} LEFT LEFT 0");
            let mut mover = Client::waiting(&server, &mut watcher, &move_it);
            writer.send(&format!("RPUSH {key} x{round} y{round}"));
            assert_eq!(client.read(), format!("[{key} x{round}]"));
            assert_eq!(mover.read(), format!("y{round}"));
            server.kill();
            server.restart();
            let mut reader = Client::new(&server);
            assert_eq!(reader.ask(&format!("EXISTS {key}")), "0");
            assert_eq!(reader.ask(&format!("LINDEX {to} 0")), format!("y{round}"));
        }
        let mut reader = Client::new(&server);
        for n in 0..3 {
            assert_eq!(reader.ask(&format!("LLEN to{n}")), "2");
        }
    }
}

#[test]
fn settings_and_pauses_respect_waiting_clients() {
    let (server, mut watcher, mut writer) = with_clients();
    assert_eq!(watcher.ask("CONFIG SET timeout 1 client-query-buffer-limit 1mb"), "OK");
    let mut client = Client::waiting(&server, &mut watcher, "BLPOP a b 100");
    let mut greedy = Client::waiting(&server, &mut watcher, "BLPOP c 0");
    let since = Instant::now();
    watcher.wait_info("clients_in_timeout_table", 1);
    watcher.wait_info("total_blocking_keys", 3);
    watcher.wait_info("total_blocking_keys_on_nokey", 0);
    // Paused clients wait too; clients that waited before are served.
    assert_eq!(writer.ask("CLIENT PAUSE 100000 WRITE"), "OK");
    let paused = Client::waiting(&server, &mut watcher, "BLPOP d 0");
    watcher.wait_info("total_blocking_keys", 3);
    drop(paused);
    watcher.wait_info("blocked_clients", 2);
    assert_eq!(writer.ask("CLIENT UNPAUSE"), "OK");
    let filler = vec![b'x'; 2 << 20];
    // The server may close the connection before all is sent.
    let _ = greedy.socket.write_all(&filler);
    watcher.wait_info("blocked_clients", 1);
    assert!(greedy.is_closed());
    while since.elapsed() < Duration::from_millis(2500) {
        assert_eq!(writer.ask("PING"), "PONG");
        watcher.wait_info("blocked_clients", 1);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(writer.ask("RPUSH b x"), "1");
    assert_eq!(client.read(), "[b x]");
    assert_eq!(client.ask("PING"), "PONG");
}

#[test]
fn waiters_see_a_transaction_when_all_of_its_commands_have_run() {
    for workers in ["1", "2"] {
        let server = start(workers, "everysec");
        let mut client = Client::new(&server);
        let keys: Vec<String> = (0..8).map(|n| format!("k{n}")).collect();
        for key in &keys {
            let mut waiter = Client::waiting(&server, &mut client, &format!("BLPOP {key} 0"));
            client.wait_info("total_blocking_keys", 1);
            // The element expires in the transaction.
            let sleep = "DEBUG SLEEP 0.15";
            for queued in [&format!("RPUSH {key} a"), &format!("PEXPIRE {key} 30"), sleep] {
                if queued.starts_with("RPUSH") {
                    assert_eq!(client.ask("MULTI"), "OK");
                }
                assert_eq!(client.ask(queued), "QUEUED");
            }
            assert_eq!(client.ask("EXEC"), "[1 1 OK]", "{workers}");
            assert!(waiter.is_silent(), "{workers}");
            assert_eq!(client.ask("MULTI"), "OK");
            assert_eq!(client.ask(&format!("RPUSH {key} b c")), "QUEUED");
            assert_eq!(client.ask("CLIENT SETNAME one"), "QUEUED");
            assert_eq!(client.ask("EXEC"), "[2 OK]", "{workers}");
            assert_eq!(waiter.read(), format!("[{key} b]"), "{workers}");
            assert_eq!(client.ask(&format!("LPOP {key}")), "c");
        }
        client.wait_info("blocked_clients", 0);
    }
}

#[test]
fn a_stream_or_a_group_that_takes_the_place_of_an_equal_one_wakes_its_waiters() {
    let (server, mut watcher, mut writer) = with_clients();
    let delivered = "[[s [[1-1 [f v]]]]]";
    for (changes, told) in [
        ("XGROUP DESTROY s g\nXGROUP CREATE s g 0", delivered),
        ("XGROUP DESTROY s g\nXGROUP CREATE s h 0", "-NOGROUP"),
        ("DEL s\nXADD s 1-1 f v\nXGROUP CREATE s g 0", delivered),
        ("RENAME t s", delivered),
        ("COPY t s REPLACE", delivered),
    ] {
        let fill =
            "DEL s t\nXADD s 1-1 f v\nXGROUP CREATE s g $\nXADD t 1-1 f v\nXGROUP CREATE t g 0";
        fill.lines().for_each(|command| _ = writer.ask(command));
        let command = "XREADGROUP GROUP g c BLOCK 0 STREAMS s >";
        let mut waiting = Client::waiting(&server, &mut watcher, command);
        // It has looked, and found nothing.
        watcher.wait_info("total_blocking_keys", 1);
        assert_eq!(writer.ask("MULTI"), "OK");
        changes.lines().for_each(|command| assert_eq!(writer.ask(command), "QUEUED"));
        let ran = writer.ask("EXEC");
        assert!(!ran.contains("ERR"), "{changes}: {ran}");
        let got = waiting.read();
        assert!(got.starts_with(told), "{changes}: {got}");
        watcher.wait_info("total_blocking_keys", 0);
    }
}

#[test]
fn every_element_is_delivered_once_however_clients_come_and_go() {
    const ELEMENTS: usize = 3000;
    const KEYS: usize = 8;
    let server = start("3", "no");
    let keys: Vec<_> = (0..KEYS).map(|n| format!("k{n}")).collect();
    let (taken, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let pop = |command: &str, taken: &AtomicUsize| {
        let mut client = Client::new(&server);
        let mut got = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let reply = client.ask(command);
            if let Some(element) = reply.trim_matches(['[', ']']).split(' ').nth(1) {
                got.push(element.to_owned());
                taken.fetch_add(1, Ordering::Relaxed);
            }
        }
        got
    };
    let elements = std::thread::scope(|scope| {
        let waiters: Vec<_> = ["0.3", "0.001", "0.002"]
            .iter()
            .flat_map(|timeout| {
                [1, KEYS - 1].map(|from| {
                    let mut keys = keys.clone();
                    keys.rotate_left(from);
                    format!("BLPOP {} {timeout}", keys.join(" "))
                })
            })
            .map(|command| {
                let (pop, taken) = (&pop, &taken);
                scope.spawn(move || pop(&command, taken))
            })
            .collect();
        // They take no element for good: an element that they move comes back to a key that clients
        // wait for.
        for n in 0..2 {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                let mut client = Client::new(server);
                for at in (n..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let (from, to) = (at % KEYS, (at + 3) % KEYS);
                    client.ask(&format!("BLMOVE k{from} k{to} LEFT RIGHT 0.001"));
                }
            });
        }
        let mut writer = Client::new(&server);
        for n in 0..ELEMENTS {
            writer.ask(&format!("RPUSH k{} {n}", n * 7 % KEYS));
        }
        let deadline = Instant::now() + PATIENCE;
        while taken.load(Ordering::Relaxed) < ELEMENTS && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        stop.store(true, Ordering::Relaxed);
        let got = waiters.into_iter().flat_map(|waiter| waiter.join().expect("no panic"));
        got.collect::<Vec<_>>()
    });
    let each: BTreeSet<_> = elements.iter().collect();
    assert_eq!((elements.len(), each.len()), (ELEMENTS, ELEMENTS));
    let mut watcher = Client::new(&server);
    watcher.wait_info("blocked_clients", 0);
    watcher.wait_info("total_blocking_keys", 0);
    assert_eq!(watcher.ask("DBSIZE"), "0");
}
