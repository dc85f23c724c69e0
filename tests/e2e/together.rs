//! Commands of a pipeline on keys of several workers, which run in one loan: no client can tell.

use super::Server;
use super::followers::{caught_up, contents, follow};
use super::full_disk::full_server;
use super::neighbours::{TWO_WORKERS, encode, expect, info};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Commands; `$s` is a key with a string, `$h`, `$l`, `$t` and `$z` are keys with a hash, a list, a set
/// and a sorted set, `$k` is one of all but hashes, and `#` a number. Keys are on both workers.
const LINES: &[&str] = &[
    "MSET $s # $s #",
    "MSET $s # $s # $s #",
    "MSET $s # $s #",
    "MSETNX $s # $s #",
    "MGET $s $s $k",
    "MGET $s $s",
    "DEL $k $s",
    "UNLINK $l $t",
    "EXISTS $k $k $k",
    "TOUCH $k $k",
    "RENAME $k $k",
    "RENAMENX $s $s",
    "COPY $k $k REPLACE",
    "LMOVE $l $l LEFT RIGHT",
    "LMOVE $l $l RIGHT LEFT",
    "RPOPLPUSH $l $k",
    "LMPOP 2 $l $l LEFT COUNT 2",
    "RPUSH $l #",
    "LPUSH $l # #",
    "LRANGE $l 0 3",
    "LLEN $k",
    "SMOVE $t $t #",
    "SADD $t # # #",
    "SUNIONSTORE $t $t $k",
    "SINTERSTORE $t $t $t",
    "SINTERCARD 2 $t $t",
    "SCARD $t",
    "ZADD $z # m#",
    "ZUNIONSTORE $z 2 $z $t",
    "ZRANGESTORE $z $z 0 5",
    "ZRANGE $z 0 2",
    "SORT $t STORE $l",
    "SORT $t LIMIT 0 4 STORE $l",
    "BITOP OR $s $s $s",
    "PFADD p$s #",
    "PFMERGE p$s p$s p$s",
    "PFCOUNT p$s p$s",
    "LCS $s $s LEN",
    "HSET $h # #",
    "HGET $h #",
    "HDEL $h #",
    "TYPE $k",
    "PTTL $k",
    "INCR $s",
    "APPEND $s #",
    "GET $s",
    "SET $s #",
    "SELECT 1",
    "SELECT 0",
    "MULTI\nMSET $s # $s #\nINCR $s\nEXEC",
    "WATCH $k $k\nMSET $s # $s #\nMULTI\nDEL $s\nEXEC",
    "CLIENT REPLY SKIP\nMSET $s # $s #",
    "MSET $s",
    "NOSUCH $s $s",
    "EVAL return(redis.call('MSET',KEYS[1],1,KEYS[2],2)) 2 $s $s",
];

/// Numbers that look random, the same for every seed.
pub(super) struct Draws(pub(super) u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn key(&mut self, kind: char) -> String {
        let kind = if kind == 'k' { ['s', 'l', 't', 'z'][self.below(4)] } else { kind };
        format!("{kind}{{{}}}{}", ["a", "b"][self.below(2)], self.below(3))
    }

    pub(super) fn lines(&mut self) -> Vec<String> {
        let mut out = String::new();
        let mut template = LINES[self.below(LINES.len())].chars();
        while let Some(next) = template.next() {
            match next {
                '$' => out.push_str(&self.key(template.next().expect("a kind"))),
                '#' => out.push_str(&self.below(20).to_string()),
                other => out.push(other),
            }
        }
        out.lines().map(str::to_owned).collect()
    }
}

fn request(line: &str) -> Vec<u8> {
    encode(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>())
}

/// Sends lines in one piece, and returns the answers to them.
pub(super) fn answers(socket: &mut TcpStream, lines: &[String], end: &str) -> String {
    answers_to(socket, lines.iter().flat_map(|line| request(line)).collect(), end)
}

/// Sends requests, and returns the answers to them.
pub(super) fn answers_to(socket: &mut TcpStream, mut bytes: Vec<u8>, end: &str) -> String {
    bytes.extend(request(&format!("ECHO {end}")));
    socket.write_all(&bytes).expect("sent");
    let (mut out, end) = (Vec::new(), format!("{end}\r\n"));
    while !out.ends_with(end.as_bytes()) {
        let mut piece = [0; 4096];
        let n = socket.read(&mut piece).expect("an answer");
        assert_ne!(n, 0, "closed behind {}", String::from_utf8_lossy(&out));
        out.extend_from_slice(&piece[..n]);
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Collections of which a restarted server reads parts only.
fn fill(server: &Server) {
    let mut socket = server.socket();
    for (name, kind) in [("RPUSH", 'l'), ("SADD", 't'), ("ZADD", 'z')] {
        for tag in ["a", "b"] {
            let mut line = format!("{name} {kind}{{{tag}}}0");
            for n in 0..1500 {
                line.push_str(&if kind == 'z' { format!(" {n} m{n}") } else { format!(" {n}") });
            }
            answers(&mut socket, &[line], "filled");
        }
    }
}

/// Events that a listener has heard, by key.
fn heard(listener: &mut TcpStream) -> BTreeMap<String, Vec<String>> {
    listener.set_read_timeout(Some(Duration::from_millis(400))).expect("set");
    let (mut out, mut piece) = (Vec::new(), [0; 65536]);
    while let Ok(n @ 1..) = listener.read(&mut piece) {
        out.extend_from_slice(&piece[..n]);
    }
    let text = String::from_utf8(out).expect("text");
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in text.split("*4\r\n").filter(|message| message.contains("pmessage")) {
        let words: Vec<&str> = message.split("\r\n").collect();
        by_key.entry(words[7].to_owned()).or_default().push(words[5].to_owned());
    }
    by_key
}

fn listener(server: &Server) -> TcpStream {
    let mut socket = server.socket();
    socket.write_all(&request("PSUBSCRIBE __keyevent*")).expect("sent");
    expect(&mut socket, b"*3\r\n$10\r\npsubscribe\r\n$11\r\n__keyevent*\r\n:1\r\n");
    socket
}

/// Runs the same pipelines on one worker and on two: the answers, the events and the data are the
/// same; those of a replica, too.
#[test]
fn pipelines_on_several_workers_answer_and_store_as_on_one() {
    let events = ["--notify-keyspace-events", "KEA"];
    let one = Server::start(&[&["--workers", "1", "--shards", "2"], &events[..]].concat());
    let mut two = Server::start(&[&TWO_WORKERS[..], &events].concat());
    let replica = follow(&two, &TWO_WORKERS);
    fill(&one);
    fill(&two);
    let mut draws = Draws(88_172_645_463_325_252);
    for life in 0..3 {
        let mut listeners = [&one, &two].map(listener);
        let mut sockets = [&one, &two].map(Server::socket);
        for n in 0..60 {
            let count = 1 + draws.below(40);
            let lines: Vec<String> = (0..count).flat_map(|_| draws.lines()).collect();
            let [want, got] =
                sockets.each_mut().map(|socket| answers(socket, &lines, &format!("end{n}")));
            assert_eq!(got, want, "pipeline {n} of life {life}: {lines:#?}");
        }
        let [want, got] = listeners.each_mut().map(heard);
        assert!(!want.is_empty());
        for (key, events) in &want {
            assert_eq!(got.get(key), Some(events), "events of {key} in life {life}");
        }
        let mut clients = [&one, &two, &replica].map(Server::client);
        let [_, primary, copy] = &mut clients;
        caught_up(primary, copy);
        for db in 0..2 {
            let [want, got, copied] = clients.each_mut().map(|client| contents(client, db));
            assert_eq!(got, want, "database {db} in life {life}");
            assert_eq!(copied, want, "the replica's database {db} in life {life}");
        }
        drop((clients, sockets));
        // All is read from the disk again: commands miss what they need, and run more than once.
        two.kill();
        two.restart();
    }
}

#[test]
fn a_client_that_waits_gets_the_first_element_of_a_pipeline() {
    let server = Server::start(&TWO_WORKERS);
    let (mut first, mut waiting) = (server.socket(), server.socket());
    answers(&mut first, &lines("RPUSH {a} 1 2 3"), "filled");
    waiting.write_all(&request("BLPOP {b} 0")).expect("sent");
    let deadline = Instant::now() + Duration::from_secs(20);
    while info(&server, "clients", "blocked_clients") != 1 {
        assert!(Instant::now() < deadline, "nobody waits");
    }
    // With its locks held on, the waiting client would get 3 from the head of the list.
    let moves = "EXISTS {a} {b}|LMOVE {a} {b} LEFT LEFT|LMOVE {a} {b} LEFT LEFT|LMOVE {a} {b} LEFT LEFT|LRANGE {b} 0 -1";
    let got = answers(&mut first, &lines(moves), "moved");
    let want = ":1|$1|1|$1|2|$1|3|*2|$1|3|$1|2|$5|moved|";
    assert_eq!(got.replace("\r\n", "|"), want);
    expect(&mut waiting, b"*2\r\n$3\r\n{b}\r\n$1\r\n1\r\n");
}

#[test]
fn every_command_of_a_loan_that_is_not_stored_fails() {
    let mut server = full_server("always", "2");
    let mut socket = server.socket();
    server.limit_files(None);
    let set = lines("MSET {a} 1 {b} 1|MSET {a}c 1 {b}c 1");
    let deadline = Instant::now() + Duration::from_secs(30);
    while !answers(&mut socket, &set, "set").starts_with("+OK\r\n+OK\r\n") {
        assert!(Instant::now() < deadline, "there is room again");
    }
    server.limit_files(Some(1));
    let value = "x".repeat(20_000);
    let large = format!("MSET {{a}} {value} {{b}} 2|MSET {{a}}c 2 {{b}}c {value}|GET {{a}}c z");
    let deadline = Instant::now() + Duration::from_secs(30);
    let got = loop {
        let got = answers(&mut socket, &lines(&large), "large");
        if !got.contains("+OK") {
            break got;
        }
        assert!(Instant::now() < deadline, "{got}");
    };
    let errors: Vec<&str> = got.lines().filter(|line| line.starts_with('-')).collect();
    assert_eq!(errors.len(), 3, "{got}");
    server.limit_files(None);
    let before = answers(&mut socket, &lines("MGET {a} {b}|MGET {a}c {b}c"), "before");
    server.kill();
    server.restart();
    let after = answers(&mut server.socket(), &lines("MGET {a} {b}|MGET {a}c {b}c"), "before");
    assert_eq!(after, before, "what was shown is there after a crash");
}

/// Nothing is stored, but the keys' entries are of a round that nothing else closes.
#[test]
fn keys_that_several_workers_made_and_deleted_again_can_be_read() {
    let server = Server::start(&TWO_WORKERS);
    for made in [
        "EXISTS {a}n {b}n|LPUSH {a} x|LPUSH {b} x|LMPOP 2 {a} {b} LEFT|LMPOP 2 {a} {b} LEFT",
        "MSET {a}n 1 {b}n 1|DEL {a}n {b}n",
        "MULTI|MSET {a}m 1 {b}m 1|DEL {a}m {b}m|EXEC",
        "EVAL redis.call('SET',KEYS[1],1)redis.call('SET',KEYS[2],1)redis.call('DEL',KEYS[1],KEYS[2]) 2 {a}e {b}e",
    ] {
        answers(&mut server.socket(), &lines(made), "made");
        for key in ["{a}", "{b}", "{a}n", "{b}n", "{a}m", "{b}m", "{a}e", "{b}e"] {
            let mut reader = server.socket();
            reader.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
            let got = answers(&mut reader, &[format!("LLEN {key}")], "read");
            assert_eq!(got, ":0\r\n$4\r\nread\r\n", "{key} after {made}");
        }
    }
}

#[test]
fn commands_of_a_loan_are_counted_and_shown_one_by_one() {
    let options = [&TWO_WORKERS[..], &["--slowlog-log-slower-than", "0"]].concat();
    let server = Server::start(&options);
    let (mut socket, mut monitor) = (server.socket(), server.socket());
    monitor.write_all(&request("MONITOR")).expect("sent");
    expect(&mut monitor, b"+OK\r\n");
    let mut counted = |line: &dyn Fn(usize) -> String| {
        let lines: Vec<String> = (0..20).map(line).collect();
        let before = info(&server, "stats", "total_commands_processed");
        answers(&mut socket, &lines, "twenty");
        info(&server, "stats", "total_commands_processed") - before
    };
    let one_by_one = counted(&|n| format!("SET {{a}} {n}"));
    assert_eq!(counted(&|n| format!("MSET {{a}} {n} {{b}} {n}")), one_by_one);
    let text: String =
        redis::cmd("INFO").arg("commandstats").query(&mut server.client()).expect("told");
    assert!(text.contains("cmdstat_mset:calls=20,"), "{text}");
    monitor.set_read_timeout(Some(Duration::from_millis(500))).expect("set");
    let (mut shown, mut piece) = (Vec::new(), [0; 65536]);
    while let Ok(n @ 1..) = monitor.read(&mut piece) {
        shown.extend_from_slice(&piece[..n]);
    }
    let shown = String::from_utf8(shown).expect("text");
    let seen: Vec<&str> = shown.lines().filter(|line| line.contains("MSET")).collect();
    let want: Vec<String> =
        (0..20).map(|n| format!("\"MSET\" \"{{a}}\" \"{n}\" \"{{b}}\" \"{n}\"")).collect();
    assert_eq!(seen.len(), 20, "{shown}");
    assert!(seen.iter().zip(&want).all(|(seen, want)| seen.ends_with(want)), "{shown}");
    let slow: Vec<redis::Value> =
        redis::cmd("SLOWLOG").arg("GET").arg(100).query(&mut server.client()).expect("told");
    assert!(slow.len() >= 20, "{}", slow.len());
}

#[test]
fn client_caching_no_is_for_one_command_of_a_pipeline() {
    let server = Server::start(&TWO_WORKERS);
    let (mut reader, mut writer) = (server.socket(), server.socket());
    answers(&mut reader, &lines("HELLO 3|CLIENT TRACKING ON OPTOUT"), "on");
    let reads = "CLIENT CACHING NO|MGET {a} {b}|MGET {a}c {b}c|MGET {a}d {b}d";
    answers(&mut reader, &lines(reads), "read");
    answers(&mut writer, &lines("SET {a} 1|SET {b} 1"), "written");
    for key in ["{b}c", "{a}d"] {
        answers(&mut writer, &[format!("SET {key} 1")], "written");
        let push = format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n$4\r\n{key}\r\n");
        expect(&mut reader, push.as_bytes());
    }
}

fn lines(text: &str) -> Vec<String> {
    text.split('|').map(str::to_owned).collect()
}

/// Keeps a key of the second worker locked for a while: calls `meanwhile` before its end.
fn while_locked(server: &Server, meanwhile: impl FnOnce()) {
    let mut holder = server.socket();
    let script = "redis.call('SET',KEYS[1],1) redis.call('SET',KEYS[2],1) local ends=os.clock()+ARGV[1] \
        while os.clock()<ends do end return 1";
    let words = ["EVAL", script, "2", "{b}x", "{a}z", "1.5"];
    holder.write_all(&encode(&words.map(str::as_bytes))).expect("sent");
    std::thread::sleep(Duration::from_millis(300));
    meanwhile();
    expect(&mut holder, b":1\r\n");
}

fn id_of(socket: &mut TcpStream) -> String {
    let told = answers(socket, &lines("CLIENT ID"), "told");
    told.lines().next().expect("a number")[1..].to_owned()
}

#[test]
fn nothing_runs_of_a_client_that_was_killed_while_its_commands_waited() {
    let server = Server::start(&[&TWO_WORKERS[..], &["--busy-reply-threshold", "600000"]].concat());
    let [mut killed, mut killer] = [(); 2].map(|()| server.socket());
    let id = id_of(&mut killed);
    while_locked(&server, || {
        let pipeline = ["MSET {a}x 9 {b}x 9"; 8].join("|");
        let bytes: Vec<u8> = lines(&pipeline).iter().flat_map(|line| request(line)).collect();
        killed.write_all(&bytes).expect("sent");
        std::thread::sleep(Duration::from_millis(200));
        let got = answers(&mut killer, &lines(&format!("CLIENT KILL ID {id}")), "killed");
        assert!(got.starts_with(":1\r\n"), "{got}");
    });
    let got = answers(&mut killer, &lines("MGET {a}x {b}x"), "end");
    assert_eq!(got, "*2\r\n$-1\r\n$1\r\n1\r\n$3\r\nend\r\n");
}

#[test]
fn rights_that_end_while_commands_wait_end_for_all_of_them() {
    let server = Server::start(&[&TWO_WORKERS[..], &["--busy-reply-threshold", "600000"]].concat());
    let [mut user, mut admin] = [(); 2].map(|()| server.socket());
    answers(&mut admin, &lines("ACL SETUSER u on nopass ~* +@all"), "made");
    answers(&mut user, &lines("AUTH u x"), "in");
    while_locked(&server, || {
        let pipeline = ["MSET {a}x 9 {b}x 9"; 3].join("|");
        let bytes: Vec<u8> = lines(&pipeline).iter().flat_map(|line| request(line)).collect();
        user.write_all(&bytes).expect("sent");
        std::thread::sleep(Duration::from_millis(200));
        let got = answers(&mut admin, &lines("ACL SETUSER u -mset"), "changed");
        assert!(got.starts_with("+OK\r\n"), "{got}");
    });
    let got = answers(&mut user, &[], "end");
    assert_eq!(got.matches("-NOPERM").count(), 3, "{got}");
}

#[test]
fn a_loan_is_refused_logged_and_counted_as_its_commands_are() {
    let server = Server::start(&TWO_WORKERS);
    let [mut user, mut admin] = [(); 2].map(|()| server.socket());
    answers(&mut admin, &lines("ACL SETUSER u on nopass ~* +@all -get"), "made");
    answers(&mut user, &lines("AUTH u x"), "in");
    answers(&mut user, &lines("MGET {a} {b}|MGET {a} {b}|GET {a}|MGET {a} {b}"), "refused");
    let log = answers(&mut admin, &lines("ACL LOG"), "log");
    assert!(log.contains("$5\r\ncount\r\n:1\r\n"), "{log}");
    let total = |socket: &mut TcpStream| {
        let told = answers(socket, &lines("CLIENT INFO"), "told");
        let rest = told.split("tot-cmds=").nth(1).expect("a counter");
        let digits = rest.chars().take_while(char::is_ascii_digit).collect::<String>();
        digits.parse::<u64>().expect("a number")
    };
    let before = total(&mut user);
    answers(&mut user, &lines("DEL {a} {b}|DEL {a} {b}|LPUSH {a} 1"), "three");
    // CLIENT INFO and both ECHO come on top.
    assert_eq!(total(&mut user) - before, 3 + 3);
}

#[test]
fn hits_are_counted_once_although_commands_run_again() {
    let mut server = Server::start(&TWO_WORKERS);
    fill(&server);
    let mset = "MSET s{a} 1 s{b} 1";
    answers(&mut server.socket(), &lines(mset), "set");
    server.stop();
    server.restart();
    let reads =
        "MGET s{a} s{b}|SINTERCARD 2 t{a}0 t{b}0|MGET s{a} s{b}|LINDEX l{a}0 700|HGET none f";
    answers(&mut server.socket(), &lines(reads), "read");
    let count = |field| info(&server, "stats", field);
    assert_eq!([count("keyspace_hits"), count("keyspace_misses")], [7, 1]);
}

/// Transactions on both workers, in one piece, and the replies to them.
fn transactions(count: usize) -> (Vec<String>, String) {
    let sent = vec!["MULTI|SET {a}q 1|SET {b}q 1|EXEC"; count].join("|");
    (lines(&sent), "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n".repeat(count))
}

#[test]
fn replies_to_transactions_of_a_pipeline_leave_together() {
    let server = Server::start(&TWO_WORKERS);
    let mut socket = server.socket();
    answers(&mut socket, &[], "connected");
    let (sent, expected) = transactions(16);
    let mut fewest = u64::MAX;
    // Two for each, if none left together. On a busy machine they may take longer than replies wait.
    let deadline = Instant::now() + Duration::from_secs(20);
    while fewest >= 20 && Instant::now() < deadline {
        let before = info(&server, "stats", "total_writes_processed");
        assert_eq!(answers(&mut socket, &sent, "end"), format!("{expected}$3\r\nend\r\n"));
        // The figures of both workers, and the connections of `info`.
        fewest = fewest.min(info(&server, "stats", "total_writes_processed") - before);
    }
    assert!(fewest < 20, "{fewest} writes for 16 transactions");
}

#[test]
fn no_client_is_closed_for_replies_that_wait() {
    let server = Server::start(&[&TWO_WORKERS[..], &["--maxmemory-clients", "1mb"]].concat());
    let (sent, expected) = transactions(16);
    let expected = format!("{expected}$3\r\nend\r\n");
    std::thread::scope(|scope| {
        for _ in 0..60 {
            scope.spawn(|| {
                let mut socket = server.socket();
                for _ in 0..5 {
                    assert_eq!(answers(&mut socket, &sent, "end"), expected);
                }
            });
        }
    });
    assert_eq!(info(&server, "stats", "evicted_clients"), 0);
    // Where clients may be closed for their memory, each reply leaves at once.
    let mut socket = server.socket();
    answers(&mut socket, &[], "connected");
    let before = info(&server, "stats", "total_writes_processed");
    answers(&mut socket, &sent, "end");
    let writes = info(&server, "stats", "total_writes_processed") - before;
    assert!(writes >= 16, "{writes} writes for 16 transactions");
}

#[test]
fn replies_do_not_wait_for_a_command_that_waits() {
    let server = Server::start(&[&TWO_WORKERS[..], &["--busy-reply-threshold", "600000"]].concat());
    for behind in
        ["MULTI|GET {a}x|GET {b}x|EXEC", "MGET {a}x {b}x", "GET {b}x", "GET {a}q|INCR {b}x"]
    {
        let mut socket = server.socket();
        let (mut sent, expected) = transactions(2);
        sent.extend(lines(behind));
        while_locked(&server, || {
            let bytes: Vec<u8> = sent.iter().flat_map(|line| request(line)).collect();
            socket.write_all(&bytes).expect("sent");
            socket.set_read_timeout(Some(Duration::from_millis(600))).expect("set");
            expect(&mut socket, expected.as_bytes());
        });
    }
}
