//! This server as the replica of another one: a small primary that speaks Redis's protocol of
//! replication, with a stream that outlives its replicas. The effects of a server's role on its
//! clients are in `roles`.

use super::Server;
use redis::{Commands, Connection};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Offset at which the primary's stream begins.
const BEGIN: u64 = 1000;
pub(super) const ID: &str = "0123456789abcdef0123456789abcdef01234567";

/// State of the primary.
#[derive(Default)]
pub(super) struct State {
    pub(super) stream: Vec<u8>,
    /// Number of data sets and of continuations that it has sent.
    pub(super) data_sets: usize,
    pub(super) continued: usize,
    /// The last position that a replica has acknowledged.
    pub(super) acknowledged: u64,
    /// Id by which a replica has asked for the stream last, and the one that it gets with the answer
    /// that the stream continues.
    pub(super) asked_by: String,
    /// Offset of the first byte that it has asked for.
    asked_from: String,
    pub(super) new_id: Option<&'static str>,
    /// Password that it wants.
    password: Option<&'static str>,
    /// Number of bytes of the stream that the data set has.
    data_set_at: u64,
    /// True to send the data set with a mark at its end.
    has_mark: bool,
    /// True to send no more of a data set that has begun.
    holds: bool,
    /// True to answer PSYNC with an error.
    refuses: bool,
    /// True to say nothing more.
    pub(super) is_silent: bool,
}

/// A primary; its threads end with the test's process.
#[derive(Clone)]
pub(super) struct Primary {
    state: Arc<Mutex<State>>,
    data_set: Arc<Mutex<Vec<u8>>>,
    pub(super) port: u16,
}

impl Primary {
    pub(super) fn serve(data_set: &[u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::default();
        let this = Self { state, data_set: Arc::new(Mutex::new(data_set.to_vec())), port };
        let primary = this.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let primary = primary.clone();
                thread::spawn(move || primary.serve_one(stream.expect("a connection")));
            }
        });
        this
    }

    pub(super) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no thread has panicked")
    }

    /// Has another data set from now on.
    pub(super) fn have(&self, data_set: &[u8]) {
        *self.data_set.lock().expect("no thread has panicked") = data_set.to_vec();
    }

    /// Appends commands to the stream.
    pub(super) fn say(&self, commands: &[&str]) {
        for command in commands {
            self.state().stream.extend(request(command));
        }
    }

    pub(super) fn end(&self) -> u64 {
        BEGIN + self.state().stream.len() as u64
    }

    fn serve_one(&self, mut stream: TcpStream) -> Option<()> {
        let mut input = BufReader::new(stream.try_clone().ok()?);
        let mut is_known = self.state().password.is_none();
        loop {
            let words = read_request(&mut input)?;
            match words[0].as_str() {
                "AUTH" => {
                    let is_right = words.last().map(String::as_str) == self.state().password;
                    is_known |= is_right;
                    let reply = if is_right { "+OK\r\n" } else { "-WRONGPASS no\r\n" };
                    stream.write_all(reply.as_bytes()).ok()?;
                }
                _ if !is_known => {
                    stream.write_all(b"-NOAUTH Authentication required.\r\n").ok()?;
                }
                "PING" => stream.write_all(b"+PONG\r\n").ok()?,
                "PSYNC" if self.state().refuses => {
                    stream.write_all(b"-NOMASTERLINK Can't SYNC while not connected\r\n").ok()?;
                }
                "PSYNC" => {
                    let from = self.begin(&words, &mut stream)?;
                    let reader = self.clone();
                    thread::spawn(move || reader.note_acknowledgements(&mut input));
                    return self.send_from(from, &mut stream);
                }
                _ => stream.write_all(b"+OK\r\n").ok()?,
            }
        }
    }

    /// Answers PSYNC; returns the offset from which the stream goes on.
    fn begin(&self, words: &[String], stream: &mut TcpStream) -> Option<u64> {
        self.state().asked_by = words[1].clone();
        self.state().asked_from = words[2].clone();
        let new_id = self.state().new_id;
        if words[1] == ID || new_id.is_some_and(|id| words[1] == id) {
            self.state().continued += 1;
            let id = new_id.map(|id| format!(" {id}")).unwrap_or_default();
            stream.write_all(format!("+CONTINUE{id}\r\n").as_bytes()).ok()?;
            return words[2].parse().ok();
        }
        self.state().data_sets += 1;
        let has_mark = self.state().has_mark;
        let data_set = self.data_set.lock().expect("no thread has panicked").clone();
        let offset = BEGIN + self.state().data_set_at;
        stream.write_all(format!("\n+FULLRESYNC {ID} {offset}\r\n").as_bytes()).ok()?;
        let mark = "m".repeat(40);
        let head = match has_mark {
            true => format!("$EOF:{mark}\r\n"),
            false => format!("\n${}\r\n", data_set.len()),
        };
        stream.write_all(head.as_bytes()).ok()?;
        // In pieces: the mark comes apart, too.
        for piece in data_set.chunks(data_set.len() / 3 + 1) {
            stream.write_all(piece).ok()?;
            thread::sleep(Duration::from_millis(5));
            while self.state().holds {
                thread::sleep(Duration::from_millis(2));
            }
        }
        if has_mark {
            stream.write_all(&mark.as_bytes()[..7]).ok()?;
            thread::sleep(Duration::from_millis(5));
            stream.write_all(&mark.as_bytes()[7..]).ok()?;
        }
        Some(offset + 1)
    }

    fn send_from(&self, from: u64, stream: &mut TcpStream) -> Option<()> {
        let mut at = usize::try_from(from - BEGIN - 1).ok()?;
        // The stream behind a mark begins once the replica says that it has the data set.
        while self.state().has_mark && self.state().acknowledged == 0 {
            thread::sleep(Duration::from_millis(2));
        }
        loop {
            // Few bytes at a time, so that a kill finds commands cut off.
            let piece = {
                let state = self.state();
                state.stream[at..].iter().copied().take(777).collect::<Vec<_>>()
            };
            if piece.is_empty() || self.state().is_silent {
                thread::sleep(Duration::from_millis(2));
                // Finds out that the replica has gone.
                stream.write_all(b"").ok()?;
                continue;
            }
            stream.write_all(&piece).ok()?;
            at += piece.len();
        }
    }

    fn note_acknowledgements(&self, input: &mut BufReader<TcpStream>) -> Option<()> {
        loop {
            let words = read_request(input)?;
            if words.get(1).is_some_and(|word| word == "ACK") {
                let offset = words[2].parse().ok()?;
                let mut state = self.state();
                state.acknowledged = state.acknowledged.max(offset);
            }
        }
    }

    /// Waits until a replica has acknowledged the whole stream.
    pub(super) fn wait(&self) {
        within(60, || {
            let end = self.end();
            self.state().acknowledged >= end
        });
    }
}

fn request(command: &str) -> Vec<u8> {
    let words: Vec<&str> = command.split(' ').collect();
    let mut out = format!("*{}\r\n", words.len());
    for word in words {
        out += &format!("${}\r\n{word}\r\n", word.len());
    }
    out.into_bytes()
}

fn read_request(input: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let line = |input: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        (input.read_line(&mut line).ok()? > 0).then(|| line.trim_end().to_owned())
    };
    let mut head = line(input)?;
    while head.is_empty() {
        head = line(input)?;
    }
    let count: usize = head.strip_prefix('*')?.parse().ok()?;
    (0..count)
        .map(|_| {
            let len: usize = line(input)?.strip_prefix('$')?.parse().ok()?;
            let mut word = vec![0; len + 2];
            input.read_exact(&mut word).ok()?;
            word.truncate(len);
            String::from_utf8(word).ok()
        })
        .collect()
}

pub(super) fn within(seconds: u64, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(seconds), "it takes too long");
        thread::sleep(Duration::from_millis(5));
    }
}

fn data_set() -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/rdb/redis-7.0.rdb");
    std::fs::read(path).expect("the data set")
}

/// An RDB file without keys: magic, end, no checksum.
pub(super) const EMPTY: &[u8] = b"REDIS0009\xff\0\0\0\0\0\0\0\0";

pub(super) fn follow(client: &mut Connection, primary: &Primary) {
    let followed: String = redis::cmd("REPLICAOF")
        .arg("127.0.0.1")
        .arg(primary.port)
        .query(client)
        .expect("it follows");
    assert_eq!(followed, "OK");
}

pub(super) fn info(client: &mut Connection) -> String {
    redis::cmd("INFO").arg("replication").query(client).expect("INFO")
}

pub(super) fn text(client: &mut Connection, command: &[&str]) -> String {
    let mut cmd = redis::cmd(command[0]);
    command[1..].iter().for_each(|word| {
        cmd.arg(*word);
    });
    match cmd.query::<redis::Value>(client) {
        Ok(redis::Value::Nil) => "nil".into(),
        Ok(redis::Value::Int(n)) => n.to_string(),
        Ok(redis::Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Ok(other) => format!("{other:?}"),
        Err(error) => [error.code().unwrap_or("ERR"), error.detail().unwrap_or_default()].join(" "),
    }
}

#[test]
fn a_replica_has_the_data_set_and_the_stream_behind_it() {
    for has_mark in [false, true] {
        let primary = Primary::serve(&data_set());
        primary.state().has_mark = has_mark;
        primary.say(&["SELECT 0", "SET text new", "MULTI", "INCR number", "LPUSH list x", "EXEC"]);
        primary.say(&["SELECT 5", "DEL elsewhere", "SELECT 0", "PING", "REPLCONF GETACK *"]);
        let server = Server::start(&["--workers", "2", "--shards", "4"]);
        let mut client = server.client();
        let _: () = client.set("own", "data").expect("SET");
        follow(&mut client, &primary);
        primary.wait();
        for (command, expected) in [
            (&["GET", "own"][..], "nil"),
            (&["GET", "text"], "new"),
            (&["GET", "number"], "12346"),
            (&["LINDEX", "list", "0"], "x"),
            (&["HGET", "hash", "name"], "value"),
            (&["XLEN", "stream"], "3"),
            (&["PEXPIRETIME", "expiring"], "4000000000123"),
        ] {
            assert_eq!(text(&mut client, command), expected, "{command:?}");
        }
        let refused = "READONLY You can't write against a read only replica.";
        assert_eq!(text(&mut client, &["SET", "a", "b"]), refused);
        let script = text(&mut client, &["EVAL", "return redis.call('set','a','b')", "0"]);
        assert!(script.starts_with(refused), "{script}");
        let shown = info(&mut client);
        for line in ["role:slave", "master_link_status:up", "master_sync_in_progress:0"] {
            assert!(shown.contains(line), "{line} in {shown}");
        }
        let role = text(&mut client, &["ROLE"]);
        assert!(role.contains("slave") && role.contains("connected"), "{role}");
        let promoted = text(&mut client, &["REPLICAOF", "NO", "ONE"]);
        assert!(promoted == "ok", "{promoted}");
        assert_eq!(text(&mut client, &["SET", "a", "b"]), "ok");
        assert!(info(&mut client).contains("role:master"));
    }
}

/// A data set whose receipt has begun is not loaded any more once another role was chosen.
#[test]
fn a_data_set_on_its_way_is_given_up_with_its_primary() {
    let left = Primary::serve(&data_set());
    let other = Primary::serve(EMPTY);
    other.say(&["SELECT 0", "SET other 1"]);
    let server = Server::start(&["--workers", "2", "--shards", "4"]);
    let mut client = server.client();
    for round in 0..4 {
        let _: () = client.set("own", round).expect("SET");
        left.state().holds = true;
        let before = left.state().data_sets;
        follow(&mut client, &left);
        within(60, || left.state().data_sets > before && receives(&mut client));
        if round % 2 == 0 {
            assert_eq!(text(&mut client, &["REPLICAOF", "NO", "ONE"]), "ok");
            // The receipt does not wait for the rest, or for repl-timeout, a minute.
            within(20, || !receives_a_file(&server));
            left.state().holds = false;
            thread::sleep(Duration::from_millis(100));
            assert_eq!(text(&mut client, &["GET", "own"]), round.to_string());
            assert_eq!(text(&mut client, &["SET", "a", "b"]), "ok");
            assert!(info(&mut client).contains("role:master"));
        } else {
            follow(&mut client, &other);
            other.wait();
            left.state().holds = false;
            thread::sleep(Duration::from_millis(100));
            assert_eq!(text(&mut client, &["GET", "other"]), "1");
            assert_eq!(text(&mut client, &["GET", "text"]), "nil");
            other.state().acknowledged = 0;
            assert_eq!(text(&mut client, &["REPLICAOF", "NO", "ONE"]), "ok");
        }
        assert!(!receives_a_file(&server));
    }
}

/// Returns true if there is a file of a data set that comes, or came.
fn receives_a_file(server: &Server) -> bool {
    let files = std::fs::read_dir(server.dir().join("data")).expect("the directory").flatten();
    files
        .map(|file| file.file_name())
        .any(|name| name.to_string_lossy().starts_with("replica-sync"))
}

/// Returns true while a data set comes.
fn receives(client: &mut Connection) -> bool {
    let shown = info(client);
    let read = shown.lines().find_map(|line| line.strip_prefix("master_sync_read_bytes:"));
    read.is_some_and(|bytes| bytes != "0")
}

/// Rounds of commands between two kills.
const ROUNDS: u64 = 400;

#[test]
fn no_command_is_applied_twice_or_left_out_however_often_the_replica_is_killed() {
    let primary = Primary::serve(EMPTY);
    let port = primary.port.to_string();
    let options = ["--workers", "2", "--shards", "4", "--replicaof", &format!("127.0.0.1 {port}")];
    let mut server = Server::start(&options);
    for kill in 0..6 {
        for n in 0..ROUNDS {
            primary.say(&[
                "INCR one",
                "MULTI",
                "INCR two",
                "RPUSH list x",
                "INCRBY three 3",
                "EXEC",
            ]);
            primary.say(&[&format!("SADD set {kill}:{n}"), "SWAPDB 1 2"]);
        }
        primary.say(&["SELECT 1", &format!("SET swapped {kill}"), "SELECT 0"]);
        let before = primary.state().acknowledged;
        // Even on a busy machine, no kill comes before the data set is there.
        within(60, || primary.state().acknowledged > before);
        thread::sleep(Duration::from_millis(40 * kill));
        server.kill();
        server.restart();
    }
    primary.wait();
    let mut client = server.client();
    let all = 6 * ROUNDS;
    for (command, expected) in [
        (&["GET", "one"][..], all),
        (&["GET", "two"], all),
        (&["GET", "three"], 3 * all),
        (&["LLEN", "list"], all),
        (&["SCARD", "set"], all),
    ] {
        assert_eq!(text(&mut client, command), expected.to_string(), "{command:?}");
    }
    // A replica that had all of it before the last kill may not have come back yet.
    within(60, || primary.state().continued >= 6);
    assert_eq!(primary.state().data_sets, 1);
    // An even number of swaps: the last value is where it was set.
    let _: () = redis::cmd("SELECT").arg(1).query(&mut client).expect("SELECT");
    assert_eq!(text(&mut client, &["GET", "swapped"]), "5");
}

/// It has told its primary that it has them. They are made on one worker, and on several.
#[test]
fn a_replica_that_was_killed_knows_of_changes_that_have_undone_each_other() {
    for workers in ["1", "2"] {
        let primary = Primary::serve(EMPTY);
        let source = format!("127.0.0.1 {}", primary.port);
        let options = ["--workers", workers, "--shards", "4", "--replicaof", &source];
        let mut server = Server::start(&options);
        primary.say(&["SELECT 0", "MULTI", "MSET a 1 b 1 c 1 d 1", "DEL a b c d", "EXEC"]);
        primary.wait();
        server.kill();
        server.restart();
        within(60, || primary.state().continued > 0);
        // Each of them locks the state until the end of its statement.
        let end = primary.end();
        assert_eq!(primary.state().asked_from, (end + 1).to_string());
        primary.say(&["SET e 1"]);
        primary.wait();
        assert_eq!(text(&mut server.client(), &["DBSIZE"]), "1");
    }
}

#[test]
fn a_transaction_beyond_the_budget_is_replaced_by_the_data_set_behind_it() {
    let primary = Primary::serve(EMPTY);
    let server = Server::start(&["--memory-budget", "32mb"]);
    let mut client = server.client();
    follow(&mut client, &primary);
    primary.say(&["SET before 1"]);
    primary.wait();
    let value = "v".repeat(1 << 20);
    let commands = (0..8).map(|n| format!("SET part:{n} {value}"));
    let commands: Vec<String> =
        ["MULTI".into()].into_iter().chain(commands).chain(["EXEC".into()]).collect();
    primary.say(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    within(60, || primary.state().data_sets >= 2);
    let mut part = text(&mut client, &["EXISTS", "part:0"]);
    // The next data set may be on its way into memory.
    within(60, || {
        part = text(&mut client, &["EXISTS", "part:0"]);
        !part.starts_with("LOADING")
    });
    assert_eq!(part, "0");
    // Its data set has all of it.
    primary.have(&data_set());
    let bytes = primary.state().stream.len() as u64;
    primary.state().data_set_at = bytes;
    within(60, || text(&mut client, &["DBSIZE"]).parse::<u64>().is_ok_and(|keys| keys > 1));
    primary.say(&["SET behind 1"]);
    primary.wait();
    assert_eq!(text(&mut client, &["GET", "behind"]), "1");
}

#[test]
fn keys_stay_until_the_primary_deletes_them() {
    let primary = Primary::serve(EMPTY);
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    follow(&mut client, &primary);
    // The time is past when the replica gets it, but the primary has changed the key before.
    primary.say(&["SELECT 0", "SET n 5", "PEXPIREAT n 1000", "INCR n", "PERSIST n"]);
    primary.say(&["SET due 1", "PEXPIREAT due 1000"]);
    primary.wait();
    assert_eq!(text(&mut client, &["GET", "n"]), "6");
    assert_eq!(text(&mut client, &["GET", "due"]), "nil");
    assert_eq!(text(&mut client, &["DBSIZE"]), "2");
    primary.say(&["INCR due", "PERSIST due"]);
    primary.wait();
    assert_eq!(text(&mut client, &["GET", "due"]), "2");
}

#[test]
fn a_link_is_tried_again_and_says_why_it_is_down() {
    let primary = Primary::serve(EMPTY);
    primary.state().password = Some("secret");
    let server = Server::start(&["--replica-serve-stale-data", "no"]);
    let mut client = server.client();
    follow(&mut client, &primary);
    within(60, || server.log().contains("password"));
    let down = info(&mut client);
    assert!(down.contains("master_link_status:down"));
    assert!(down.contains("master_link_down_reason:it wants a password (primaryauth"), "{down}");
    assert!(text(&mut client, &["GET", "a"]).contains("MASTERDOWN"));
    // A transaction may run on stale data only if all of its commands may.
    for (queued, refused) in [("PING", true), ("MULTI", false)] {
        let mut fresh = server.client();
        assert_eq!(text(&mut fresh, &["MULTI"]), "ok");
        let said = text(&mut fresh, &[queued]);
        assert_eq!(said.contains("MASTERDOWN"), refused, "{said}");
        let said = text(&mut fresh, &["EXEC"]);
        assert!(said.contains("EXECABORT"), "{said}");
    }
    let _: () = redis::cmd("CONFIG")
        .arg(&["SET", "masterauth", "secret"])
        .query(&mut client)
        .expect("CONFIG SET");
    primary.state().refuses = true;
    within(60, || server.log().contains("NOMASTERLINK"));
    primary.say(&["SELECT 0", "SET a b"]);
    primary.state().refuses = false;
    primary.wait();
    assert_eq!(text(&mut client, &["GET", "a"]), "b");
    // A blocked client would take elements that the primary pushes.
    assert!(text(&mut client, &["BLPOP", "a", "0"]).contains("READONLY"));
}

#[test]
fn libraries_come_with_the_stream() {
    let primary = Primary::serve(EMPTY);
    let mut server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    follow(&mut client, &primary);
    let code = "#!lua name=lib\nredis.register_function{function_name='f',callback=function()return(7)end,flags={'no-writes'}}";
    let code = format!("*3\r\n$8\r\nFUNCTION\r\n$4\r\nLOAD\r\n${}\r\n{code}\r\n", code.len());
    primary.say(&["SELECT 0", "SET a 1"]);
    primary.state().stream.extend(code.bytes());
    primary.say(&["INCR a"]);
    primary.wait();
    assert_eq!(text(&mut client, &["FCALL", "f", "0"]), "7");
    // As when the server is killed before the position behind them is stored.
    primary.state().stream.extend(code.bytes());
    primary.say(&["FUNCTION DELETE other", "PING"]);
    primary.wait();
    assert_eq!(text(&mut client, &["FCALL", "f", "0"]), "7");
    assert!(!server.log().contains("has failed here"), "{}", server.log());
    drop(client);
    server.kill();
    server.restart_with(&["--replicaof", &format!("127.0.0.1 {}", primary.port)]);
    primary.say(&["INCR a"]);
    primary.wait();
    let mut client = server.client();
    assert_eq!(text(&mut client, &["FCALL", "f", "0"]), "7");
    assert_eq!(text(&mut client, &["GET", "a"]), "3");
    assert_eq!(primary.state().data_sets, 1);
}
