//! When the journal gets no more room, nothing is answered OK that is not stored, and operators are
//! told. The room ends where a file may have: no segment can be prepared, as on a full disk.

use super::Server;
use rustix::process::Signal;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SEGMENT: u64 = 1 << 20;

/// Keys that belong to the two workers.
const TAGS: [&str; 2] = ["{a}", "{b}"];

/// More than is left in the journal.
const LARGE: usize = 20_000;

/// Failed rounds of each worker while commands wait.
const FAILURES: u64 = 1100;

#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Text(String),
    Error(String),
    Nil,
    Array(Vec<Answer>),
}

impl Answer {
    fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn of(server: &Server) -> Self {
        Self(BufReader::new(server.socket()))
    }

    fn send(&mut self, commands: &[&[&str]]) {
        let mut bytes = Vec::new();
        for command in commands {
            bytes.extend(format!("*{}\r\n", command.len()).bytes());
            for word in *command {
                bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
            }
        }
        self.0.get_mut().write_all(&bytes).expect("sent");
    }

    fn answer(&mut self) -> Answer {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "-" => Answer::Error(rest.to_owned()),
            "$" | "*" if rest == "-1" => Answer::Nil,
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.0.read_exact(&mut bytes).expect("a bulk");
                bytes.truncate(bytes.len() - 2);
                Answer::Text(String::from_utf8(bytes).expect("text"))
            }
            "*" => {
                let count = rest.parse::<usize>().expect("a count");
                Answer::Array((0..count).map(|_| self.answer()).collect())
            }
            _ => Answer::Text(rest.to_owned()),
        }
    }

    fn run(&mut self, command: &[&str]) -> Answer {
        self.send(&[command]);
        self.answer()
    }

    fn info(&mut self) -> HashMap<String, String> {
        let Answer::Text(text) = self.run(&["INFO", "everything"]) else { panic!("no INFO") };
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

/// A server whose journal has room for small writes only.
pub(super) fn full_server(mode: &str, workers: &str) -> Server {
    let server = Server::start(
        &[
            ["--appendfsync", mode],
            ["--workers", workers],
            ["--shards", "2"],
            ["--journal-segment-size", &SEGMENT.to_string()],
            ["--busy-reply-threshold", "600000"],
        ]
        .concat(),
    );
    fill(&server);
    server
}

fn fill(server: &Server) {
    server.limit_files(Some(SEGMENT - 1));
    let mut client = Client::of(server);
    for size in [10 * LARGE, LARGE] {
        let value = "f".repeat(size);
        let mut writes = 0;
        // The rows do not fit into a file, so that no flush makes room.
        while !client.run(&["SET", &format!("{}filler{size}.{writes}", TAGS[0]), &value]).is_error()
        {
            writes += 1;
            assert!(writes < 1000, "the journal does not get full");
        }
    }
}

/// Writes that fail, one round each, until they are told to end.
fn fail_writes(server: &Server, tag: &str, ended: &AtomicBool, failures: &AtomicU64) {
    let (mut client, value) = (Client::of(server), "x".repeat(LARGE));
    while !ended.load(Ordering::Relaxed) {
        assert!(client.run(&["SET", &format!("{tag}failing"), &value]).is_error());
        failures.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs until so many ms of processor time have gone by. Meanwhile its keys are locked.
const LOOP: &str = "local ends = os.clock() + ARGV[1] / 1000 \
    while os.clock() < ends do end return 1";

/// Sends writes in front of reads that wait for a script's locks, while other writes fail; the answers
/// to the writes, and how many others have failed at each worker.
fn write_before_parked(server: &Server, value: &str, script_ms: u64) -> (Vec<Answer>, u64) {
    let ended = AtomicBool::new(false);
    let failures = [AtomicU64::new(0), AtomicU64::new(0)];
    let locked = TAGS.map(|tag| format!("{tag}locked"));
    let hot = TAGS.map(|tag| format!("{tag}hot"));
    let answers = std::thread::scope(|scope| {
        for (tag, failures) in TAGS.iter().zip(&failures) {
            for _ in 0..2 {
                scope.spawn(|| fail_writes(server, tag, &ended, failures));
            }
        }
        let mut holder = Client::of(server);
        holder.send(&[&["EVAL", LOOP, "2", &locked[0], &locked[1], &script_ms.to_string()]]);
        std::thread::sleep(Duration::from_millis(50));
        let mut writer = Client::of(server);
        writer.send(&[
            &["SET", &hot[0], value],
            &["GET", &locked[0]],
            &["SET", &hot[1], value],
            &["GET", &locked[1]],
        ]);
        let answers: Vec<_> = (0..4).map(|_| writer.answer()).collect();
        ended.store(true, Ordering::Relaxed);
        assert!(!holder.answer().is_error());
        answers
    });
    let writes = vec![answers[0].clone(), answers[2].clone()];
    (writes, failures.into_iter().map(AtomicU64::into_inner).min().unwrap_or(0))
}

#[test]
fn a_failed_write_in_front_of_one_that_waits_is_an_error_after_a_thousand_others() {
    for workers in ["1", "2"] {
        let server = full_server("always", workers);
        let mut client = Client::of(&server);
        for tag in TAGS {
            assert!(!client.run(&["SET", &format!("{tag}hot"), "old"]).is_error(), "it is small");
        }
        let value = "v".repeat(LARGE);
        let mut script_ms = 500;
        let failures = loop {
            let (writes, failures) = write_before_parked(&server, &value, script_ms);
            for (tag, write) in TAGS.iter().zip(writes) {
                assert!(write.is_error(), "a write was acknowledged that has failed: {write:?}");
                let stored = client.run(&["GET", &format!("{tag}hot")]);
                assert_eq!(stored, Answer::Text("old".into()));
            }
            if failures >= FAILURES || script_ms > 10_000 {
                break failures;
            }
            script_ms *= 2;
        };
        assert!(failures >= FAILURES, "only {failures} writes have failed meanwhile");
    }
}

/// Writes on all ways, none of which can be stored; how many errors clients have got.
fn refuse_on_all_ways(server: &Server, client: &mut Client) -> u64 {
    let value = "x".repeat(LARGE);
    let (mut errors, mut blocked) = (0, 0);
    let mut expect_errors =
        |client: &mut Client, commands: &[&[&str]], expected: RangeInclusive<u64>| {
            client.send(commands);
            let answers: Vec<_> = commands.iter().map(|_| client.answer()).collect();
            let refused = answers.iter().filter(|answer| answer.is_error()).count() as u64;
            assert!(expected.contains(&refused), "{:?}: {answers:?}", commands[0]);
            errors += refused;
        };
    for tag in TAGS {
        let key = |name: &str| format!("{tag}{name}");
        let (one, two, list) = (key("one"), key("two"), key("list"));
        let set: &[&str] = &["SET", &one, &value];
        expect_errors(client, &[set], 1..=1);
        // A read of a value that is not stored gets the error, too, unless it arrives after the
        // undoing.
        expect_errors(client, &[set, &["GET", &two], set, &["GET", &one]], 2..=3);
        expect_errors(client, &[&["MULTI"], set, &["SET", &two, "1"], &["EXEC"]], 1..=1);
        expect_errors(client, &[&["MULTI"], set, &["SELECT", "1"], &["EXEC"]], 1..=1);
        let Answer::Text(own) = client.run(&["CLIENT", "INFO"]) else { panic!("no text") };
        assert!(own.contains(" db=0 "), "it has selected another database: {own}");
        let script = "return redis.call('SET', KEYS[1], ARGV[1])";
        expect_errors(client, &[&["EVAL", script, "1", &one, &value]], 1..=1);
        let mut waiting = Client::of(server);
        waiting.send(&[&["BLPOP", &list, "0"]]);
        wait_for_blocked(client);
        expect_errors(client, &[&["RPUSH", &list, &value, &value]], 1..=1);
        assert!(waiting.answer().is_error(), "it was given what is not stored");
        blocked += 1;
        assert_eq!(client.run(&["EXISTS", &one, &two, &list]), Answer::Text("0".into()));
    }
    let [a, b] = TAGS;
    let mset = ["MSET", &format!("{a}one"), &value, &format!("{b}one"), &value];
    client.send(&[&mset]);
    assert!(client.answer().is_error());
    errors + blocked + 1
}

fn wait_for_blocked(client: &mut Client) {
    while client.info()["blocked_clients"] == "0" {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Error replies, those of code ERR, and failed calls of all commands, as INFO has them.
fn counted(info: &HashMap<String, String>) -> [u64; 3] {
    let field = |text: &str, name: &str| {
        let value = text.split(',').find_map(|field| field.strip_prefix(name));
        value.map_or(0, |value| value.parse::<u64>().expect("a number"))
    };
    let total = info["total_error_replies"].parse().expect("a number");
    let of_code = info.get("errorstat_ERR").map_or(0, |text| field(text, "count="));
    let commands = info.iter().filter(|(name, _)| name.starts_with("cmdstat_"));
    let failed = commands.map(|(_, text)| field(text, "failed_calls=")).sum();
    [total, of_code, failed]
}

/// Writes until that is possible again.
fn write_again(client: &mut Client) {
    let (began, value) = (Instant::now(), "y".repeat(LARGE));
    while client.run(&["SET", "{a}again", &value]).is_error() {
        assert!(began.elapsed() < Duration::from_secs(30), "writes are not accepted again");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn keys(client: &mut Client) -> u64 {
    let Answer::Text(keys) = client.run(&["DBSIZE"]) else { panic!("no number") };
    keys.parse().expect("a number")
}

fn refuses_and_recovers(mode: &str, workers: &str) {
    let mut server = full_server(mode, workers);
    let mut client = Client::of(&server);
    let filled = keys(&mut client);
    assert!(!client.run(&["SET", "{b}stored", "1"]).is_error(), "it is small");
    let before = counted(&client.info());
    let errors = refuse_on_all_ways(&server, &mut client);
    let info = client.info();
    assert_eq!(counted(&info), before.map(|count| count + errors), "{mode} {workers}");
    assert_eq!(info["aof_last_write_status"], "err");
    assert_eq!(info["journal_refusing"], "1");
    assert_eq!(info["evicted_keys"], "0");
    server.limit_files(None);
    write_again(&mut client);
    let info = client.info();
    assert_eq!(info["aof_last_write_status"], "ok");
    assert_eq!(keys(&mut client), filled + 2);
    server.kill();
    let log = server.log();
    let is_trouble = |line: &&str| line.contains("WARN") || line.contains("ERROR");
    // The flush fails as well, if it takes long enough.
    let is_of_flush = |line: &&str| line.contains("a shard cannot store rows");
    let trouble = log.lines().filter(is_trouble).filter(|line| !is_of_flush(line));
    // The start has its own to say, as of limits of the process.
    let told: Vec<_> = trouble.skip_while(|line| !line.contains("writes are refused: ")).collect();
    assert_eq!(told.len(), 2, "{log}");
    assert!(told[1].contains("writes are accepted again"), "{log}");
    server.restart();
    let mut client = Client::of(&server);
    let found = client.run(&["EXISTS", "{b}stored", "{a}again"]);
    assert_eq!(found, Answer::Text("2".into()));
    assert_eq!(keys(&mut client), filled + 2);
}

#[test]
fn every_refused_write_is_counted_and_operators_are_told_once() {
    refuses_and_recovers("always", "2");
    refuses_and_recovers("everysec", "1");
    refuses_and_recovers("no", "2");
}

#[test]
fn keys_of_debug_populate_that_are_not_stored_are_an_error() {
    let segment = SEGMENT.to_string();
    let options = ["--enable-debug-command", "yes", "--journal-segment-size", &segment];
    let server = Server::start(&options);
    fill(&server);
    let mut client = Client::of(&server);
    let filled = keys(&mut client);
    let populate = ["DEBUG", "POPULATE", "3", "{a}", &LARGE.to_string()];
    let Answer::Error(text) = client.run(&populate) else { panic!("nothing is stored") };
    assert!(text.starts_with("ERR the write could not be stored"), "{text}");
    assert_eq!(keys(&mut client), filled);
}

#[test]
fn a_waiter_is_served_when_the_deletion_of_its_key_could_not_be_stored() {
    let server = full_server("always", "1");
    let (mut busy, mut writer) = (Client::of(&server), Client::of(&server));
    let (mut waiter, mut client) = (Client::of(&server), Client::of(&server));
    let (value, list) = ("x".repeat(LARGE), "{a}list");
    let push = |client: &mut Client| assert!(!client.run(&["RPUSH", list, "1"]).is_error());
    push(&mut client);
    let mut served = 0;
    for _ in 0..30 {
        // The journal has no room for many more.
        if served == 3 {
            break;
        }
        // While the worker is busy both come in, so that they run in the same round.
        busy.send(&[&["EVAL", LOOP, "0", "3"]]);
        std::thread::sleep(Duration::from_millis(1));
        writer.send(&[&["SET", "{a}big", &value], &["DEL", list]]);
        waiter.send(&[&["BLPOP", list, "2"]]);
        assert!(writer.answer().is_error());
        let deleted = writer.answer();
        assert!(!busy.answer().is_error());
        if !deleted.is_error() {
            push(&mut client);
        }
        // The waiter has popped the element that was there, or its pop could not be stored.
        let answer = waiter.answer();
        assert_ne!(answer, Answer::Nil, "it waits for a list that is there");
        if !answer.is_error() {
            served += u32::from(deleted.is_error());
            push(&mut client);
        }
    }
    assert!(served > 0, "no deletion has failed in front of a command that waits");
}

/// A directory that is moved away takes no harm, nor does one in its place: once the server has to make files, it
/// refuses writes, until its directory is back.
#[test]
fn a_directory_that_was_moved_away_is_written_to_no_more() {
    let mut server =
        Server::start(&["--journal-segment-size", "1mb", "--handover-interval-ms", "200"]);
    let mut client = server.client();
    let (data, away) = (server.dir().join("data"), server.dir().join("away"));
    let value = "v".repeat(LARGE);
    let mut acknowledged = 0;
    let mut set = |client: &mut redis::Connection, until_refused: bool| {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < Duration::from_secs(60), "it goes on");
            let done = redis::cmd("SET").arg(acknowledged).arg(&value).query::<()>(client);
            acknowledged += u32::from(done.is_ok());
            match done {
                Err(error) if until_refused => return error.to_string(),
                Ok(()) if !until_refused && acknowledged % 50 == 0 => return String::new(),
                _ => {}
            }
        }
    };
    set(&mut client, false);
    std::fs::rename(&data, &away).expect("it is moved");
    std::fs::create_dir(&data).expect("another one");
    let refused = set(&mut client, true);
    assert!(refused.contains("was moved, removed or replaced"), "{refused}");
    let read: String = redis::cmd("GET").arg(0).query(&mut client).expect("it is there");
    assert_eq!(read, value);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(std::fs::read_dir(&data).expect("the other one").count(), 0);
    assert!(server.log().contains("was moved, removed or replaced while it is in use"));
    std::fs::remove_dir(&data).expect("it is empty");
    std::fs::rename(&away, &data).expect("it is back");
    set(&mut client, false);
    // At the end, too, nothing is made elsewhere; the end says so.
    std::fs::rename(&data, &away).expect("it is moved");
    drop(client);
    server.signal(Signal::TERM);
    assert_eq!(server.reap(), Some(1));
    assert!(!data.exists());
    std::fs::rename(&away, &data).expect("it is back");
    server.restart();
    let count: u32 = redis::cmd("DBSIZE").query(&mut server.client()).expect("DBSIZE");
    assert_eq!(count, acknowledged);
}

/// It removes data: it is stored where there is room for its record, and fails at once where there is none.
#[test]
fn a_flush_on_a_full_disk_is_done_or_an_error() {
    for workers in ["1", "2"] {
        let server = full_server("always", workers);
        let mut client = Client::of(&server);
        let mut writes = 0;
        while !client.run(&["SET", &format!("{}tiny.{writes}", TAGS[0]), "x"]).is_error() {
            writes += 1;
            assert!(writes < 10_000, "the journal does not get full");
        }
        let filled = keys(&mut client);
        // A reply that does not come ends the test.
        let left = match client.run(&["FLUSHALL"]) {
            Answer::Text(ok) if ok == "OK" => 0,
            refused if refused.is_error() => filled,
            other => panic!("{other:?}"),
        };
        assert_eq!(keys(&mut client), left, "{workers} workers");
        server.limit_files(None);
        write_again(&mut client);
        assert_eq!(client.run(&["FLUSHALL"]), Answer::Text("OK".into()));
        assert_eq!(keys(&mut client), 0);
    }
}
