//! Replies that a client does not want (CLIENT REPLY): its commands run as fast as others, and the replies
//! that it wants come in order.

use super::Server;
use super::blind::{info, run};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::io::{Read, Write};

/// Number of replies in a row that are not wanted.
const COMMANDS: usize = 20_000;

/// Mode of a client's replies.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    On,
    Off,
    Skip,
}

/// A client that sends commands of several kinds, and knows which replies must come.
struct Model {
    rng: StdRng,
    mode: Mode,
    /// The last number of each counter.
    counters: BTreeMap<usize, i64>,
    /// Counters of the commands in the open transaction.
    queue: Option<Vec<usize>>,
    sent: Vec<u8>,
    expected: String,
}

impl Model {
    fn reply(&mut self, text: &str) {
        match self.mode {
            Mode::On => self.expected.push_str(text),
            Mode::Skip => self.mode = Mode::On,
            Mode::Off => {}
        }
    }

    fn count(&mut self, key: usize) -> i64 {
        let number = self.counters.entry(key).or_default();
        *number += 1;
        *number
    }

    fn send(&mut self, line: &str) {
        self.sent.extend_from_slice(line.as_bytes());
        self.sent.extend_from_slice(b"\r\n");
    }

    fn set_mode(&mut self) {
        match self.rng.random_range(0..3) {
            0 => {
                self.send("CLIENT REPLY ON");
                self.mode = Mode::On;
                self.reply("+OK\r\n");
            }
            1 => {
                self.send("CLIENT REPLY OFF");
                self.mode = Mode::Off;
            }
            _ => {
                self.send("CLIENT REPLY SKIP");
                if self.mode != Mode::Off {
                    self.mode = Mode::Skip;
                }
            }
        }
    }

    fn step(&mut self) {
        let key = self.rng.random_range(0..20);
        match self.rng.random_range(0..14) {
            0 | 1 if self.queue.is_none() => self.set_mode(),
            2 if self.queue.is_none() => {
                self.send("PING");
                self.reply("+PONG\r\n");
            }
            3 => {
                self.send("CLIENT NO-SUCH-COMMAND");
                let is_queued = self.queue.take().is_some();
                self.reply("-ERR unknown subcommand 'NO-SUCH-COMMAND'. Try CLIENT HELP.\r\n");
                if is_queued {
                    self.send("EXEC");
                    self.reply("-EXECABORT Transaction discarded because of previous errors.\r\n");
                }
            }
            4 | 5 if self.queue.is_none() => {
                self.send("MULTI");
                self.queue = Some(Vec::new());
                self.reply("+OK\r\n");
            }
            4 | 5 => {
                self.send("EXEC");
                let keys = self.queue.take().unwrap_or_default();
                let numbers: Vec<_> = keys.iter().map(|key| self.count(*key)).collect();
                let numbers: String = numbers.iter().map(|n| format!(":{n}\r\n")).collect();
                self.reply(&format!("*{}\r\n{numbers}", keys.len()));
            }
            6 if self.queue.is_none() => {
                self.send(&format!("MGET k{key} k{} list", key + 1));
                let text = |key: usize| match self.counters.get(&key) {
                    Some(n) => format!("${}\r\n{n}\r\n", n.to_string().len()),
                    None => "$-1\r\n".to_owned(),
                };
                let reply = format!("*3\r\n{}{}$-1\r\n", text(key), text(key + 1));
                self.reply(&reply);
            }
            7 if self.queue.is_none() => {
                self.send("INCR list");
                self.reply(
                    "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
                );
            }
            _ => {
                self.send(&format!("INCR k{key}"));
                match &mut self.queue {
                    Some(queue) => {
                        queue.push(key);
                        self.reply("+QUEUED\r\n");
                    }
                    None => {
                        let number = self.count(key);
                        self.reply(&format!(":{number}\r\n"));
                    }
                }
            }
        }
    }
}

#[test]
fn the_replies_that_are_wanted_come_in_order() {
    for (seed, workers) in [(1, "1"), (2, "1"), (3, "2"), (4, "2")] {
        let server = Server::start(&["--workers", workers, "--shards", "3"]);
        run(&mut server.client(), &["RPUSH", "list", "x"]);
        let mut model = Model {
            rng: StdRng::seed_from_u64(seed),
            mode: Mode::On,
            counters: BTreeMap::new(),
            queue: None,
            sent: Vec::new(),
            expected: String::new(),
        };
        (0..3000).for_each(|_| model.step());
        if model.queue.is_some() {
            model.send("DISCARD");
            model.reply("+OK\r\n");
        }
        model.send("CLIENT REPLY ON");
        model.send("QUIT");
        model.expected.push_str("+OK\r\n+OK\r\n");
        let mut socket = server.socket();
        for piece in model.sent.chunks(1500) {
            socket.write_all(piece).expect("sent");
        }
        let mut got = String::new();
        socket.read_to_string(&mut got).expect("the replies");
        assert_eq!(got, model.expected, "seed {seed}, {workers} workers");
    }
}

#[test]
fn writes_whose_replies_are_not_wanted_share_syncs() {
    for (workers, modes) in [("1", ["OFF", "SKIP"]), ("2", ["OFF", "OFF"])] {
        let options = ["--workers", workers, "--shards", "2", "--appendfsync", "always"];
        let server = Server::start(&options);
        let mut client = server.client();
        for (n, mode) in modes.into_iter().enumerate() {
            let syncs =
                |client: &mut _| info(client, "journal_syncs").parse::<usize>().expect("a number");
            let before = syncs(&mut client);
            let mut commands = b"CLIENT REPLY OFF\r\n".to_vec();
            if mode == "OFF" {
                commands.extend(b"INCR n\r\nINCR m\r\n".repeat(COMMANDS / 2));
                commands.extend(b"CLIENT REPLY ON\r\n");
            } else {
                commands = b"CLIENT REPLY SKIP\r\nINCR n\r\nCLIENT REPLY SKIP\r\nINCR m\r\n"
                    .repeat(COMMANDS / 2);
                commands.extend(b"CLIENT REPLY ON\r\n");
            }
            commands.extend(b"MGET n m\r\n");
            let mut socket = server.socket();
            socket.write_all(&commands).expect("sent");
            let number = ((n + 1) * COMMANDS / 2).to_string();
            let expected = format!("+OK\r\n*2\r\n$5\r\n{number}\r\n$5\r\n{number}\r\n");
            let mut got = vec![0; expected.len()];
            socket.read_exact(&mut got).expect("the replies");
            assert_eq!(String::from_utf8_lossy(&got), expected);
            let used = syncs(&mut client) - before;
            assert!(used < COMMANDS / 8, "{used} syncs, {mode}, {workers} workers");
        }
    }
}

#[test]
fn the_reply_of_a_reset_is_skipped_too() {
    let server = Server::start(&[]);
    for (mode, first) in [("SKIP", ""), ("OFF", "+RESET\r\n")] {
        let mut socket = server.socket();
        let commands = format!("CLIENT REPLY {mode}\r\nRESET\r\nECHO 1\r\nQUIT\r\n");
        socket.write_all(commands.as_bytes()).expect("sent");
        let mut got = String::new();
        socket.read_to_string(&mut got).expect("the replies");
        assert_eq!(got, format!("{first}$1\r\n1\r\n+OK\r\n"), "{mode}");
    }
}

/// In the reference, EXEC runs CLIENT REPLY with the others: its own reply is announced as an array of all
/// commands, ends where OFF runs, begins where ON runs, and SKIP is for the reply behind that of EXEC.
#[test]
fn a_transaction_changes_which_replies_are_wanted_where_it_does_so() {
    let queued = |n: usize| "+QUEUED\r\n".repeat(n);
    let cases = [
        (
            "INCR n|CLIENT REPLY SKIP|INCR n",
            format!("+OK\r\n{}*3\r\n:1\r\n:2\r\n", queued(3)),
            false,
        ),
        ("INCR n|CLIENT REPLY OFF|INCR n", format!("+OK\r\n{}*3\r\n:1\r\n", queued(3)), true),
        (
            "CLIENT REPLY OFF|INCR n|CLIENT REPLY ON|INCR n",
            format!("+OK\r\n{}*4\r\n+OK\r\n:2\r\n", queued(4)),
            true,
        ),
        (
            "CLIENT REPLY SKIP|CLIENT REPLY ON|INCR n",
            format!("+OK\r\n{}*3\r\n+OK\r\n:1\r\n", queued(3)),
            false,
        ),
    ];
    for (workers, (commands, expected, is_next_told)) in
        ["1", "2"].iter().flat_map(|workers| cases.iter().map(move |case| (workers, case)))
    {
        let server = Server::start(&["--workers", workers]);
        let ends_off = commands.contains("OFF") && !commands.contains("ON");
        let next = if *is_next_told && !ends_off { "+PONG\r\n" } else { "" };
        let mut sent = String::from("MULTI\r\n");
        commands.split('|').for_each(|command| sent += &format!("{command}\r\n"));
        sent += "EXEC\r\nPING\r\nCLIENT REPLY ON\r\nECHO end\r\nQUIT\r\n";
        let mut socket = server.socket();
        socket.write_all(sent.as_bytes()).expect("sent");
        let mut got = String::new();
        socket.read_to_string(&mut got).expect("the replies");
        let expected = format!("{expected}{next}+OK\r\n$3\r\nend\r\n+OK\r\n");
        assert_eq!(got, expected, "{commands}, {workers} workers");
    }
    // Replies are off before EXEC, and on from within it.
    let server = Server::start(&[]);
    let mut socket = server.socket();
    let sent = b"CLIENT REPLY OFF\r\nMULTI\r\nINCR n\r\nCLIENT REPLY ON\r\nINCR n\r\nEXEC\r\nPING\r\nQUIT\r\n";
    socket.write_all(sent).expect("sent");
    let mut got = String::new();
    socket.read_to_string(&mut got).expect("the replies");
    assert_eq!(got, "+OK\r\n:2\r\n+PONG\r\n+OK\r\n");
}
