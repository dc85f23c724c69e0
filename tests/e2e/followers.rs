//! This server as the primary of another one of its kind, and of clients that read the stream
//! themselves.

use super::Server;
use super::http::{Web, sample};
use redis::{Commands, Connection, Value, cmd};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long something may take that is about to happen.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(super) fn info(client: &mut Connection, field: &str) -> String {
    let all: String = cmd("INFO").arg("replication").query(client).expect("INFO");
    let found = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.unwrap_or_default().to_owned()
}

pub(super) fn offset(client: &mut Connection) -> u64 {
    info(client, "master_repl_offset").parse().expect("an offset")
}

/// Returns a counter of INFO stats.
pub(super) fn count(client: &mut Connection, field: &str) -> u64 {
    let all: String = cmd("INFO").arg("stats").query(client).expect("INFO");
    let found = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.and_then(|count| count.parse().ok()).expect("a counter")
}

/// Waits until a replica has applied all of its primary's stream.
pub(super) fn caught_up(primary: &mut Connection, replica: &mut Connection) {
    let _: Value = cmd("WAITAOF").arg(&[1, 0, 10_000]).query(primary).expect("WAITAOF");
    until("the replica catches up", || {
        info(replica, "master_link_status") == "up"
            && info(replica, "slave_repl_offset").parse::<u64>().ok() >= Some(offset(primary))
            && info(primary, "connected_slaves") != "0"
            && cmd("WAIT").arg(&[1, 5000]).query::<i64>(primary).expect("WAIT") >= 1
    });
}

/// Returns the type, expiry and serialized value of each key of a database.
pub(super) fn contents(client: &mut Connection, db: u32) -> Vec<(String, i64, Vec<u8>)> {
    let _: () = cmd("SELECT").arg(db).query(client).expect("SELECT");
    let mut keys: Vec<String> = cmd("KEYS").arg("*").query(client).expect("KEYS");
    keys.sort();
    let mut found = Vec::new();
    for key in keys {
        let at_ms = cmd("PEXPIRETIME").arg(&key).query(client).expect("PEXPIRETIME");
        let kind: String = cmd("TYPE").arg(&key).query(client).expect("TYPE");
        // Consumers of groups remember when they were seen by each server.
        let value = match kind.as_str() {
            "stream" => {
                let entries: Value =
                    cmd("XRANGE").arg(&[&key, "-", "+"]).query(client).expect("XRANGE");
                let pending: Value =
                    cmd("XPENDING").arg(&[&key, "g", "-", "+", "10"]).query(client).expect("it");
                let without_idle = format!("{pending:?}");
                let groups = without_idle.split("int").next().unwrap_or_default().to_owned();
                format!("{entries:?} {groups}").into_bytes()
            }
            _ => cmd("DUMP").arg(&key).query(client).expect("DUMP"),
        };
        found.push((key, at_ms, value));
    }
    let _: () = cmd("SELECT").arg(0).query(client).expect("SELECT");
    found
}

pub(super) fn follow(primary: &Server, args: &[&str]) -> Server {
    let primary = format!("127.0.0.1 {}", primary.port());
    let replica = ["--replicaof", &primary];
    Server::start(&[&replica[..], args].concat())
}

pub(super) fn run(client: &mut Connection, commands: &[&str]) {
    for command in commands {
        let mut words = command.split(' ');
        let mut request = cmd(words.next().expect("a name"));
        words.for_each(|word| {
            request.arg(word);
        });
        let _: Value = request.query(client).unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

/// Commands of every family, of transactions, scripts and databases.
pub(super) const CHANGES: &[&str] = &[
    "SET s 1 EX 1000",
    "INCRBYFLOAT f 1.5",
    "MSET a 1 b 2 c 3 d 4",
    "RPUSH l 1 2 3",
    "LMOVE l m LEFT RIGHT",
    "SADD t a b c d e f",
    "SPOP t 2",
    "ZADD z 1 a 2 b 3 c",
    "ZPOPMIN z",
    "GEOADD g 13.361389 38.115556 Palermo",
    "HSET h f v g w",
    "HEXPIRE h 1000 FIELDS 1 f",
    "HINCRBYFLOAT h n 0.1",
    "DEL x",
    "XADD x * f v",
    "XGROUP CREATE x g 0",
    "XREADGROUP GROUP g c STREAMS x >",
    "PFADD p a b c",
    "PFCOUNT p",
    "SET e 1 PX 30",
    "MULTI",
    "INCR n1",
    "INCR n2",
    "INCR n3",
    "EXEC",
    "EVAL redis.call('incr',KEYS[1]);return(redis.call('rpush',KEYS[2],redis.call('time')[2])) 2 n1 l",
    "COPY s s2",
    "RENAME m m2",
    "SELECT 3",
    "SET other 1",
    "SWAPDB 3 4",
    "SELECT 0",
];

#[test]
fn a_replica_has_the_data_and_what_comes_behind_it() {
    for workers in ["1", "2"] {
        let primary = Server::start(&["--workers", workers, "--shards", "4"]);
        let mut client = primary.client();
        run(&mut client, CHANGES);
        let replica = follow(&primary, &["--workers", workers, "--shards", "3"]);
        let mut other = replica.client();
        caught_up(&mut client, &mut other);
        run(&mut client, CHANGES);
        run(&mut client, CHANGES);
        caught_up(&mut client, &mut other);
        std::thread::sleep(Duration::from_millis(40));
        let _: Value = client.get("e").expect("it has expired");
        caught_up(&mut client, &mut other);
        for db in [0, 3, 4] {
            assert_eq!(
                contents(&mut client, db),
                contents(&mut other, db),
                "{workers} workers, {db}"
            );
        }
        assert_eq!(client.get::<_, i64>("n1").expect("a counter"), 6);
        assert_eq!(info(&mut client, "connected_slaves"), "1");
        let role: (String, i64, Vec<(String, String, String)>) =
            cmd("ROLE").query(&mut client).expect("ROLE");
        assert_eq!((role.0.as_str(), role.2.len()), ("master", 1));
    }
}

/// Redis 7.0 refuses payloads of version 11, which are those of DUMP.
#[test]
fn restored_values_are_said_in_types_that_redis_7_0_knows() {
    let primary = Server::start(&[]);
    let mut client = primary.client();
    run(
        &mut client,
        &[
            "SADD s a b",
            "XADD x 1-1 f v",
            "XGROUP CREATE x g 0",
            "RPUSH l 1 2",
            "HSET h f v",
            "SET a 1",
        ],
    );
    let replica = follow(&primary, &[]);
    let mut other = replica.client();
    caught_up(&mut client, &mut other);
    let mut reader = Reader::connect(&primary);
    reader.ask("PSYNC ? -1");
    reader.data_set();
    let keys = ["s", "x", "l", "h", "a"];
    for (key, ttl) in keys.into_iter().zip([0, 100_000, 0, 100_000, 0]) {
        let payload: Vec<u8> = cmd("DUMP").arg(key).query(&mut client).expect("a payload");
        let mut restore = cmd("RESTORE");
        restore.arg(key).arg(ttl).arg(payload).arg("REPLACE");
        restore.exec(&mut client).expect("restored");
        let words = std::iter::repeat_with(|| reader.raw_words()).find(|it| it[0] == b"RESTORE");
        let said = words.expect("it goes on");
        let version = &said[3][said[3].len() - 10..][..2];
        assert_eq!((&said[1][..], version), (key.as_bytes(), &[10, 0][..]));
        assert_eq!(said.contains(&b"ABSTTL".to_vec()), ttl != 0);
    }
    caught_up(&mut client, &mut other);
    assert_eq!(contents(&mut client, 0), contents(&mut other, 0));
}

/// The limit of clients' strings may be smaller than that of the primary.
#[test]
fn strings_of_the_stream_may_be_as_long_as_those_of_the_primary() {
    let primary = Server::start(&[]);
    let mut client = primary.client();
    run(&mut client, &["SET a 1"]);
    let replica = follow(&primary, &["--proto-max-bulk-len", "1mb"]);
    let mut other = replica.client();
    caught_up(&mut client, &mut other);
    for _ in 0..3 {
        let () = client.append("a", vec![b'a'; 600 << 10]).expect("appended");
    }
    run(&mut client, &["SETRANGE b 3000000 x", "SETBIT c 24000000 1"]);
    caught_up(&mut client, &mut other);
    for (key, len) in [("a", (1800 << 10) + 1), ("b", 3_000_001), ("c", 3_000_001)] {
        assert_eq!(other.strlen::<_, usize>(key).expect("a length"), len, "{key}");
    }
}

#[test]
fn a_replica_goes_on_where_it_was_after_a_kill_of_its_primary() {
    let mut primary = Server::start(&["--workers", "2"]);
    let replica = follow(&primary, &[]);
    let mut other = replica.client();
    let mut client = primary.client();
    run(&mut client, CHANGES);
    caught_up(&mut client, &mut other);
    let id = info(&mut client, "master_replid");
    for round in 0..4 {
        for _ in 0..50 {
            let _: i64 = client.incr("count", 1).expect("INCR");
        }
        // A clean stop, too.
        match round % 2 {
            0 => primary.kill(),
            _ => primary.stop(),
        }
        primary.restart();
        client = primary.client();
        assert_eq!(info(&mut client, "master_replid"), id, "{round}");
        caught_up(&mut client, &mut other);
        assert_eq!(other.get::<_, i64>("count").expect("GET"), 50 * (round + 1));
    }
    assert_eq!(contents(&mut client, 0), contents(&mut other, 0));
    let syncs: String = cmd("INFO").arg("stats").query(&mut other).expect("INFO");
    assert!(!syncs.contains("replica_full_resyncs:2"), "{syncs}");
}

#[test]
fn a_stream_in_which_nothing_was_written_outlives_a_kill() {
    let mut primary = Server::start(&["--appendfsync", "everysec"]);
    run(&mut primary.client(), &["SET a 1"]);
    let replica = follow(&primary, &[]);
    let mut other = replica.client();
    until("it is up", || info(&mut other, "master_link_status") == "up");
    primary.kill();
    primary.restart();
    let mut client = primary.client();
    until("it is up again", || info(&mut client, "connected_slaves") == "1");
    caught_up(&mut client, &mut other);
    assert_eq!((count(&mut client, "sync_full"), count(&mut client, "sync_partial_ok")), (0, 1));
}

#[test]
fn the_backlog_keeps_to_its_size() {
    let server = Server::start(&["--appendfsync", "everysec", "--repl-backlog-size", "64kb"]);
    let mut client = server.client();
    let mut reader = Reader::connect(&server);
    reader.ask("PSYNC ? -1");
    drop(reader);
    let mut many = redis::pipe();
    (0..200).for_each(|n| {
        many.set(format!("k{n}"), "v".repeat(10_000)).ignore();
    });
    let _: () = many.query(&mut client).expect("SETs");
    let _: Value = cmd("WAITAOF").arg(&[1, 0, 10_000]).query(&mut client).expect("WAITAOF");
    // A part of it is at most 256 KiB, and a record.
    until("the backlog is short", || {
        let held: u64 = info(&mut client, "repl_backlog_histlen").parse().expect("a number");
        offset(&mut client) > 2_000_000 && held < 1_000_000
    });
}

#[test]
fn the_stream_goes_on_after_a_kill_before_much_of_it_was_stored() {
    let small = ["--appendfsync", "everysec", "--repl-backlog-size", "16kb"];
    let mut primary = Server::start(&small);
    let replica = follow(&primary, &[]);
    let (mut client, mut other) = (primary.client(), replica.client());
    run(&mut client, &["SET before 1"]);
    caught_up(&mut client, &mut other);
    let id = info(&mut client, "master_replid");
    // More than the backlog keeps, in less than the interval of syncs.
    let mut many = redis::pipe();
    (0..200).for_each(|n| {
        many.set(format!("k{n}"), "v".repeat(1000)).ignore();
    });
    let _: () = many.query(&mut client).expect("SETs");
    primary.kill();
    primary.restart();
    client = primary.client();
    assert_eq!(info(&mut client, "master_replid"), id);
    caught_up(&mut client, &mut other);
    assert_eq!(contents(&mut client, 0), contents(&mut other, 0));
    let syncs: String = cmd("INFO").arg("stats").query(&mut client).expect("INFO");
    assert!(syncs.contains("sync_full:0") && syncs.contains("sync_partial_ok:1"), "{syncs}");
}

#[test]
fn a_replica_has_acknowledged_no_more_than_it_was_sent() {
    let server = Server::start(&["--appendfsync", "always"]);
    let mut client = server.client();
    let mut reader = Reader::connect(&server);
    assert_eq!(reader.ask("REPLCONF capa eof"), "+OK");
    reader.ask("PSYNC ? -1");
    // It lies before it has the data set, and behind it.
    reader.say("REPLCONF ACK 9223372036854775807");
    let head = reader.line();
    let mark = head.strip_prefix("$EOF:").expect("a mark").as_bytes().to_vec();
    let mut data = vec![0];
    while !data.ends_with(&mark) {
        let mut byte = [0];
        reader.input.read_exact(&mut byte).expect("the data set");
        data.push(byte[0]);
    }
    reader.say("REPLCONF ACK 18446744073709551615 FACK 18446744073709551615");
    until("it is online", || info(&mut client, "slave0").contains("state=online"));
    run(&mut client, &["SET a 1"]);
    assert_eq!(reader.next(), "SET a 1");
    let sent = offset(&mut client);
    reader.say("REPLCONF ACK 18446744073709551615");
    until("the message is there", || {
        let shown = info(&mut client, "slave0");
        let of =
            |name: &str| shown.split(',').find_map(|word| word.strip_prefix(name)?.parse().ok());
        of("offset=").is_some_and(|shown: u64| shown >= sent && shown <= offset(&mut client))
    });
    let _: Value = client.set("a", "2").expect("SET");
    assert_eq!(cmd("WAITAOF").arg(&[0, 1, 50]).query::<(i64, i64)>(&mut client).expect("it").1, 0);
}

/// A connection that speaks the protocol of replicas.
pub(super) struct Reader {
    stream: TcpStream,
    input: BufReader<TcpStream>,
    has_begun: bool,
}

impl Reader {
    pub(super) fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let input = BufReader::new(stream.try_clone().expect("a clone"));
        Self { input, stream, has_begun: false }
    }

    pub(super) fn say(&mut self, line: &str) {
        self.stream.write_all(line.as_bytes()).expect("to write");
        self.stream.write_all(b"\r\n").expect("to write");
    }

    /// Returns the next line that is not empty.
    pub(super) fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.input.read_line(&mut line).expect("a line");
            assert!(read > 0, "the connection has ended");
            if !line.trim().is_empty() {
                return line.trim().to_owned();
            }
        }
    }

    pub(super) fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.line()
    }

    /// Reads a data set whose length is known.
    pub(super) fn data_set(&mut self) -> Vec<u8> {
        let head = self.line();
        let length = head.strip_prefix('$').and_then(|length| length.parse().ok());
        let mut data = vec![0; length.unwrap_or_else(|| panic!("no length: {head}"))];
        self.input.read_exact(&mut data).expect("the data set");
        data
    }

    fn words(&mut self) -> Vec<String> {
        let words = self.raw_words().into_iter();
        words.map(|word| String::from_utf8_lossy(&word).into_owned()).collect()
    }

    fn raw_words(&mut self) -> Vec<Vec<u8>> {
        let count: usize = self.line()[1..].parse().expect("a count");
        let mut words = Vec::new();
        for _ in 0..count {
            let length: usize = self.line()[1..].parse().expect("a length");
            let mut word = vec![0; length + 2];
            self.input.read_exact(&mut word).expect("a word");
            word.truncate(length);
            words.push(word);
        }
        words
    }

    /// Returns the next command that is no ping; the stream may begin in database 0.
    pub(super) fn next(&mut self) -> String {
        loop {
            let words = self.words().join(" ");
            let is_begin = !self.has_begun && words == "SELECT 0";
            self.has_begun |= words != "PING";
            if words != "PING" && !is_begin {
                return words;
            }
        }
    }
}

#[test]
fn the_stream_has_units_whole_and_databases_selected() {
    let server = Server::start(&["--workers", "2", "--appendfsync", "always"]);
    let mut client = server.client();
    run(&mut client, &["SET before 1"]);
    let mut reader = Reader::connect(&server);
    assert_eq!(reader.ask("REPLCONF listening-port 1234 ip-address 10.0.0.1"), "+OK");
    let reply = reader.ask("PSYNC ? -1");
    assert!(reply.starts_with("+FULLRESYNC "), "{reply}");
    let data = reader.data_set();
    assert!(data.starts_with(b"REDIS0010") && data.windows(6).any(|w| w == b"before"));
    run(
        &mut client,
        &["SET a 1", "MULTI", "INCR a", "INCR b", "EXEC", "SELECT 2", "SADD s x", "SPOP s"],
    );
    assert_eq!(reader.next(), "SET a 1");
    let unit: Vec<String> = (0..4).map(|_| reader.next()).collect();
    assert_eq!(unit, ["MULTI", "INCR a", "INCR b", "EXEC"]);
    run(&mut client, &["MULTI", "SELECT 3", "INCR a", "SELECT 0", "INCR a", "EXEC", "INCR a"]);
    let rest: Vec<String> = (0..10).map(|_| reader.next()).collect();
    let moves = ["SELECT 2", "SADD s x", "SREM s x"];
    let unit = ["MULTI", "SELECT 3", "INCR a", "SELECT 0", "INCR a", "EXEC", "INCR a"];
    assert_eq!(rest, [&moves[..], &unit].concat());
    // One that comes later begins with the database of its first command.
    let mut later = Reader::connect(&server);
    later.ask("PSYNC ? -1");
    let data = later.data_set();
    assert!(data.windows(16).any(|w| w == b"repl-stream-db\xc0\0" || w == b"repl-stream-db\x010"));
    run(&mut client, &["SELECT 2", "INCR a", "INCR a"]);
    assert_eq!([later.next(), later.next(), later.next()], ["SELECT 2", "INCR a", "INCR a"]);
    drop(later);
    until("the later one is gone", || info(&mut client, "connected_slaves") == "1");
    let list: String =
        cmd("CLIENT").arg(&["LIST", "TYPE", "replica"]).query(&mut client).expect("LIST");
    assert!(list.contains("flags=S "), "{list}");
    let clients: String = cmd("INFO").arg("clients").query(&mut client).expect("INFO");
    assert!(clients.contains("connected_clients:1\r\n"), "a replica is none: {clients}");
    assert!(info(&mut client, "slave0").starts_with("ip=10.0.0.1,port=1234,state=online,"));
    let killed: i64 =
        cmd("CLIENT").arg(&["KILL", "TYPE", "replica"]).query(&mut client).expect("KILL");
    assert_eq!(killed, 1);
    until("the replica is gone", || info(&mut client, "connected_slaves") == "0");
}

#[test]
fn a_tool_that_asks_in_the_old_way_gets_the_data_set_and_the_stream() {
    let server = Server::start(&["--appendfsync", "always"]);
    let mut client = server.client();
    run(&mut client, &["SET before 1"]);
    let mut reader = Reader::connect(&server);
    reader.say("SYNC");
    let data = reader.data_set();
    assert!(data.starts_with(b"REDIS0010") && data.windows(6).any(|w| w == b"before"));
    run(&mut client, &["SET a 1"]);
    assert_eq!(reader.next(), "SET a 1");
}

#[test]
fn a_reader_goes_on_from_the_backlog_or_begins_anew() {
    let server = Server::start(&["--repl-backlog-size", "20000", "--appendfsync", "always"]);
    let mut client = server.client();
    let mut reader = Reader::connect(&server);
    let reply = reader.ask("PSYNC ? -1");
    let words: Vec<&str> = reply.split(' ').collect();
    let (id, begin): (String, u64) = (words[1].to_owned(), words[2].parse().expect("an offset"));
    reader.data_set();
    run(&mut client, &["SET a 1", "SET b 2"]);
    assert_eq!((reader.next(), reader.next()), ("SET a 1".to_owned(), "SET b 2".to_owned()));
    drop(reader);
    let mut reader = Reader::connect(&server);
    let select = "*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n".len() as u64;
    let one = select + "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n".len() as u64;
    let reply = reader.ask(&format!("PSYNC {id} {}", begin + one + 1));
    assert_eq!(reply, format!("+CONTINUE {id}"));
    assert_eq!(reader.next(), "SET b 2");
    drop(reader);
    // Beyond the end, of another stream, and what the backlog has lost.
    for (id, from) in [(&*id, begin + 1_000_000), (&*"0".repeat(40), begin + 1)] {
        let reply = Reader::connect(&server).ask(&format!("PSYNC {id} {from}"));
        assert!(reply.starts_with("+FULLRESYNC"), "{reply}");
    }
    until("no replica is there", || info(&mut client, "connected_slaves") == "0");
    let _: () = client.set("long", "x".repeat(100_000)).expect("SET");
    run(&mut client, &["SET a 1", "SET a 1"]);
    until("the backlog has lost the beginning", || {
        info(&mut client, "repl_backlog_first_byte_offset")
            .parse::<u64>()
            .is_ok_and(|first| first > begin + 1)
    });
    let reply = Reader::connect(&server).ask(&format!("PSYNC {id} {}", begin + 1));
    assert!(reply.starts_with("+FULLRESYNC"), "{reply}");
}

#[test]
fn a_replica_that_does_not_read_is_disconnected() {
    let limits = ["--client-output-buffer-limit", "replica 1mb 0 0", "--repl-backlog-size", "64kb"];
    let server = Server::start(&limits);
    let mut client = server.client();
    let mut reader = Reader::connect(&server);
    reader.ask("PSYNC ? -1");
    reader.data_set();
    let value = "x".repeat(1 << 20);
    until("it is disconnected", || {
        let _: () = client.set("k", &value).expect("SET");
        info(&mut client, "connected_slaves") == "0"
    });
    drop(reader);
}

#[test]
fn writes_wait_for_replicas_and_need_them() {
    let primary = Server::start(&["--appendfsync", "everysec"]);
    let mut client = primary.client();
    run(&mut client, &["SET k 1"]);
    assert_eq!(cmd("WAIT").arg(&[1, 50]).query::<i64>(&mut client).expect("WAIT"), 0);
    run(&mut client, &["CONFIG SET min-replicas-to-write 1"]);
    let refused = client.set::<_, _, ()>("k", 2).expect_err("there is no replica");
    assert!(refused.to_string().contains("NOREPLICAS"), "{refused}");
    let replica = follow(&primary, &["--appendfsync", "always"]);
    let mut other = replica.client();
    until("the replica counts", || client.set::<_, _, ()>("k", 3).is_ok());
    assert_eq!(cmd("WAIT").arg(&[1, 20_000]).query::<i64>(&mut client).expect("WAIT"), 1);
    assert_eq!(other.get::<_, i64>("k").expect("GET"), 3);
    // The question to the replicas, and pings, are no writes for which a replica is waited for.
    assert_eq!(cmd("WAIT").arg(&[2, 500]).query::<i64>(&mut client).expect("WAIT"), 1);
}

#[test]
fn settings_of_a_primary_take_effect_at_once() {
    let server = Server::start(&["--appendfsync", "always"]);
    let mut client = server.client();
    for (diskless, head) in [("yes", "$EOF:"), ("no", "$")] {
        run(&mut client, &[&format!("CONFIG SET repl-diskless-sync {diskless}")]);
        let mut reader = Reader::connect(&server);
        assert_eq!(reader.ask("REPLCONF capa eof"), "+OK");
        reader.ask("PSYNC ? -1");
        let line = reader.line();
        assert!(line.starts_with(head) && line.starts_with("$EOF:") == (head == "$EOF:"), "{line}");
    }
    run(&mut client, &["CONFIG SET repl-ping-replica-period 1"]);
    let mut reader = Reader::connect(&server);
    reader.ask("PSYNC ? -1");
    reader.data_set();
    assert_eq!(reader.words(), ["PING"]);
    drop(reader);
    assert_eq!(info(&mut client, "repl_backlog_active"), "1");
    run(&mut client, &["CONFIG SET repl-backlog-ttl 1"]);
    until("the stream ends", || info(&mut client, "repl_backlog_active") == "0");
    run(&mut client, &["SET k 1"]);
    let reply = Reader::connect(&server).ask("PSYNC ? -1");
    assert!(reply.starts_with("+FULLRESYNC"), "another stream begins: {reply}");
}

#[test]
fn replicas_get_the_rest_of_the_stream_before_their_primary_becomes_a_replica() {
    let server = Server::start(&["--workers", "2"]);
    let (mut client, mut idle) = (server.client(), Reader::connect(&server));
    // One that does not read is not waited for.
    idle.ask("PSYNC ? -1");
    idle.data_set();
    let mut readers = [(); 2].map(|()| Reader::connect(&server));
    for reader in &mut readers {
        reader.ask("PSYNC ? -1");
        reader.data_set();
    }
    // More than is sent at once, and than the buffers of a connection hold.
    let _: () = client.set("k", "x".repeat(4 << 20)).expect("SET");
    let reading = readers.map(|mut reader| std::thread::spawn(move || reader.next().len()));
    let _: () = cmd("REPLICAOF").arg(&["127.0.0.1", "1"]).query(&mut client).expect("REPLICAOF");
    for reader in reading {
        assert_eq!(reader.join().expect("the whole command"), "SET k ".len() + (4 << 20));
    }
    until("they are disconnected", || info(&mut client, "connected_slaves") == "0");
}

/// A change of the role that has begun comes to its end.
#[test]
fn a_primary_becomes_a_replica_though_the_client_that_has_ordered_it_is_killed() {
    let (server, other) = (Server::start(&["--workers", "2"]), Server::start(&[]));
    let (mut client, mut idle) = (server.client(), Reader::connect(&server));
    // It does not read: the server waits for it for a second when it is a replica, before the link begins.
    idle.ask("PSYNC ? -1");
    idle.data_set();
    let _: () = client.set("k", "x".repeat(4 << 20)).expect("SET");
    let mut ordering = Reader::connect(&server);
    let id = ordering.ask("CLIENT ID");
    ordering.say(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
    until("it is a replica", || info(&mut client, "role") == "slave");
    run(&mut client, &[&format!("CLIENT KILL ID {}", &id[1..])]);
    until("it follows", || info(&mut client, "master_link_status") == "up");
}

/// A replica that gets another data set passes no part of it on, be it that it is killed meanwhile.
#[test]
fn replicas_of_a_replica_keep_their_data_while_it_loads() {
    const KEYS: i64 = 8000;
    let primaries = [(); 2].map(|()| Server::start(&["--enable-debug-command", "local"]));
    for primary in &primaries {
        let _: () =
            cmd("DEBUG").arg(&["POPULATE", "8000"]).query(&mut primary.client()).expect("DEBUG");
    }
    let mut middle = follow(&primaries[0], &["--workers", "2"]);
    let last = follow(&middle, &["--workers", "2"]);
    let (mut client, mut looking) = (last.client(), last.client());
    let size = |client: &mut Connection| cmd("DBSIZE").query::<i64>(client);
    let is_up = |client: &mut Connection| info(client, "master_link_status") == "up";
    until("both have the data", || is_up(&mut client) && size(&mut client).ok() == Some(KEYS));
    // While it loads the data set itself, it says so.
    let look = |client: &mut Connection| match size(client) {
        Ok(keys) => assert_eq!(keys, KEYS, "a part is shown"),
        Err(error) => assert!(error.to_string().contains("loading"), "{error}"),
    };
    let is_loading = |client: &mut Connection| {
        let all: String = cmd("INFO").arg("persistence").query(client).expect("INFO");
        all.contains("loading:1")
    };
    for (is_killed, next) in [(false, 1), (true, 0)] {
        let port = primaries[next].port().to_string();
        let mut other = middle.client();
        let _: () = cmd("REPLICAOF").arg(&["127.0.0.1", &port]).query(&mut other).expect("it");
        until("it loads", || {
            look(&mut looking);
            is_loading(&mut other) || info(&mut other, "connected_slaves") == "0"
        });
        if is_killed {
            middle.kill();
            middle.restart_with(&["--replicaof", &format!("127.0.0.1 {port}")]);
        }
        let mut other = middle.client();
        let mut is_whole = || {
            look(&mut looking);
            is_up(&mut other) && info(&mut other, "connected_slaves") == "1" && is_up(&mut client)
        };
        while !is_whole() {
            std::thread::sleep(Duration::from_millis(2));
        }
        // It has got all of it, and not the rest of an older stream.
        assert!(count(&mut middle.client(), "sync_full") > 0);
    }
}

#[test]
fn a_changed_id_ends_the_stream() {
    let server = Server::start(&["--enable-debug-command", "local"]);
    let mut client = server.client();
    run(&mut client, &["DEBUG CHANGE-REPL-ID"]);
    let mut reader = Reader::connect(&server);
    reader.ask("PSYNC ? -1");
    reader.data_set();
    let id = info(&mut client, "master_replid");
    run(&mut client, &["DEBUG CHANGE-REPL-ID"]);
    until("the replica is disconnected", || info(&mut client, "connected_slaves") == "0");
    let reply = Reader::connect(&server).ask(&format!("PSYNC {id} 1"));
    assert!(reply.starts_with("+FULLRESYNC"), "{reply}");
    assert_ne!(info(&mut client, "master_replid"), id);
}

#[test]
fn replconf_is_checked() {
    let server = Server::start(&[]);
    let mut reader = Reader::connect(&server);
    assert_eq!(reader.ask("REPLCONF capa"), "-ERR syntax error");
    assert_eq!(
        reader.ask("REPLCONF listening-port x"),
        "-ERR value is not an integer or out of range"
    );
    assert_eq!(reader.ask("REPLCONF what 1"), "-ERR Unrecognized REPLCONF option: what");
    assert_eq!(reader.ask("REPLCONF capa eof capa psync2"), "+OK");
    assert_eq!(reader.ask("PSYNC ? x"), "-ERR value is not an integer or out of range");
    reader.say("REPLCONF ACK 1");
    assert_eq!(reader.ask("PING"), "+PONG", "an acknowledgement has no reply");
    assert_eq!(reader.ask("MULTI"), "+OK");
    assert_eq!(reader.ask("PSYNC ? -1"), "-ERR Command not allowed inside a transaction");
}

/// Returns a word of the stream as the file of words has it.
fn shown(word: &str) -> String {
    let is_time = |text: &str| {
        let is_now = text.starts_with("16") || text.starts_with("17") || text.starts_with("18");
        text.len() == 13 && is_now && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    match word.split_once('-') {
        _ if is_time(word) => "<ms>".to_owned(),
        Some((ms, _)) if is_time(ms) => "<id>".to_owned(),
        _ => word.to_owned(),
    }
}

/// Returns the commands before a mark, without those that say nothing about data.
fn words_before(reader: &mut Reader, mark: &str) -> Vec<String> {
    let mut found = Vec::new();
    loop {
        let mut words = reader.words();
        words[0] = words[0].to_uppercase();
        if words == ["SET", "mark", mark] {
            return found;
        }
        if !["PING", "SELECT", "REPLCONF"].contains(&words[0].as_str()) {
            found.push(words.iter().map(|word| shown(word)).collect::<Vec<_>>().join(" "));
        }
    }
}

#[test]
fn commands_become_the_words_that_the_file_has() {
    let cases = include_str!("../data/stream_words.txt");
    for workers in ["1", "2"] {
        let options = ["--workers", workers, "--shards", "4", "--appendfsync", "always"];
        let server = Server::start(&[&options[..], &["--enable-debug-command", "local"]].concat());
        let mut client = server.client();
        let mut reader = Reader::connect(&server);
        reader.ask("PSYNC ? -1");
        reader.data_set();
        let mut count = 0;
        for line in cases.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (left, right) = line.split_once(" => ").expect("words");
            let expected = right.split(" !! ").next().unwrap_or_default();
            let (setup, command) = left.rsplit_once(" ; ").unwrap_or(("", left));
            run(&mut client, &["FLUSHALL"]);
            run(&mut client, &setup.split(" ; ").filter(|one| !one.is_empty()).collect::<Vec<_>>());
            run(&mut client, &["SET mark begin"]);
            run(&mut client, &command.split(" & ").collect::<Vec<_>>());
            run(&mut client, &["SET mark end"]);
            words_before(&mut reader, "begin");
            let words = words_before(&mut reader, "end").join(" | ");
            let words = if words.is_empty() { "nothing" } else { &words };
            assert_eq!(words, expected, "{left}, {workers} workers");
            count += 1;
        }
        assert!(count > 150, "{count}");
    }
}

#[test]
fn removals_are_sent_as_the_settings_say() {
    let options = ["--appendfsync", "always", "--enable-debug-command", "local"];
    let lazy = ["--lazyfree-lazy-expire", "no", "--maxmemory-policy", "allkeys-random"];
    let server = Server::start(&[&options[..], &lazy].concat());
    let mut client = server.client();
    let mut reader = Reader::connect(&server);
    reader.ask("PSYNC ? -1");
    reader.data_set();
    run(&mut client, &["DEBUG SET-ACTIVE-EXPIRE 0", "SET mark begin"]);
    words_before(&mut reader, "begin");
    let restore =
        "EVAL return(redis.call('restore','r',9,redis.call('dump','r'),'replace','absttl')) 0";
    let mut said = |commands: &[&str]| {
        run(&mut client, commands);
        run(&mut client, &["SET mark end"]);
        words_before(&mut reader, "end").join(" | ")
    };
    let removals: &[&str] = &["SET k 1", "EXPIRE k -1", "SADD s a", "SPOP s 5", "SET r 1", restore];
    let set = ["SET k 1", "SADD s a", "SET r 1"];
    let expected = |[k, s, r]: [&str; 3]| {
        format!("{} | {k} k | {} | {s} s | {} | {r} r", set[0], set[1], set[2])
    };
    assert_eq!(said(removals), expected(["DEL", "UNLINK", "UNLINK"]));
    run(&mut server.client(), &["CONFIG SET lazyfree-lazy-server-del no"]);
    assert_eq!(said(removals), expected(["DEL", "DEL", "DEL"]));
    run(&mut server.client(), &["CONFIG SET lazyfree-lazy-expire yes"]);
    assert_eq!(said(removals), expected(["UNLINK", "DEL", "DEL"]));
    // One that is found expired, then keys that are evicted.
    assert!(said(&["SET k 1 PX 1", "DEBUG SLEEP 0.01", "GET k"]).ends_with(" | UNLINK k"));
    run(&mut server.client(), &["CONFIG SET lazyfree-lazy-expire no"]);
    assert!(said(&["SET k 1 PX 1", "DEBUG SLEEP 0.01", "GET k"]).ends_with(" | DEL k"));
    for (lazy, word) in [("yes", "UNLINK mark"), ("no", "DEL mark")] {
        let change = format!("CONFIG SET lazyfree-lazy-eviction {lazy}");
        let mut admin = server.client();
        run(&mut admin, &[&change, "CONFIG SET maxmemory 1"]);
        until("it is evicted", || cmd("DBSIZE").query::<u64>(&mut admin).expect("it") == 0);
        run(&mut admin, &["CONFIG SET maxmemory 0"]);
        assert_eq!(said(&[]), word, "the only key");
    }
    // Keys that went to another server.
    let to = Server::start(&[]);
    let migrate = format!("MIGRATE 127.0.0.1 {}  0 5000 KEYS {{t}}a {{t}}b", to.port());
    assert!(said(&["MSET {t}a 1 {t}b 2", &migrate]).ends_with(" | DEL {t}a {t}b"));
}

#[test]
fn metrics_of_both_sides_tell_of_replicas_and_links() {
    let primary = Web::start(&[]);
    let address = format!("127.0.0.1 {}", primary.server.port());
    let mut replica = Web::start(&["--replicaof", &address]);
    let mut client = primary.server.client();
    caught_up(&mut client, &mut replica.server.client());
    let _: () = client.set("k", "v".repeat(1000)).expect("SET");
    caught_up(&mut client, &mut replica.server.client());
    let of = |web: &Web| web.get("/metrics").body;
    until("the primary shows the replica", || {
        let text = of(&primary);
        sample(&text, "flagstone_replicas{state=\"online\"}") == 1.0
            && sample(&text, "flagstone_replicas_behind_bytes") == 0.0
    });
    let (there, here) = (of(&primary), of(&replica));
    assert_eq!(sample(&here, "flagstone_replica_link_up"), 1.0);
    assert!(sample(&here, "flagstone_replica_offset_bytes") > 1000.0);
    assert!(sample(&there, "flagstone_replication_offset_bytes") > 1000.0);
    assert!(replica.get("/status").body.contains(&format!("\"primary\":\"{address}\"")));
    assert!(primary.get("/status").body.contains("\"primary\":null"));
    drop(primary);
    until("the link is down", || sample(&of(&replica), "flagstone_replica_link_up") == 0.0);
    replica.server.stop();
}

#[test]
fn a_stop_while_data_sets_are_made_is_calm() {
    let mut server = Server::start(&["--workers", "2", "--shards", "4"]);
    let script = "for n = 1, 5000 do redis.call('set', n, n) end";
    let _: Value = cmd("EVAL").arg(script).arg(0).query(&mut server.client()).expect("EVAL");
    for (round, pause_ms) in [0, 20, 60, 150].into_iter().enumerate() {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let mut reader = server.socket();
                reader.write_all(b"PSYNC ? -1\r\n").expect("to write");
                reader
            })
            .collect();
        std::thread::sleep(Duration::from_millis(pause_ms));
        server.stop();
        let log = server.log();
        assert!(!log.contains("panicked"), "{log}");
        assert_eq!(log.matches("; bye").count(), round + 1, "{log}");
        drop(readers);
        server.restart();
    }
}
