//! No client slows the others down: its memory and time are bounded, and those of all together.

use super::Server;
use redis::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) const TWO_WORKERS: [&str; 4] = ["--workers", "2", "--shards", "2"];
pub(super) const MIB: usize = 1 << 20;

/// How long something may take on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

pub(crate) fn send(socket: &mut TcpStream, words: &[&[u8]]) {
    socket.write_all(&encode(words)).expect("sent");
}

pub(crate) fn expect(socket: &mut TcpStream, want: &[u8]) {
    let mut got = vec![0; want.len()];
    socket.read_exact(&mut got).expect("an answer");
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(want));
}

/// One field of INFO.
pub(crate) fn info(server: &Server, section: &str, field: &str) -> u64 {
    let mut client = server.client();
    let text: String = redis::cmd("INFO").arg(section).query(&mut client).expect("answered");
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.expect("the field").parse().expect("a number")
}

/// Returns true if the server has closed it.
pub(super) fn is_closed(socket: &mut TcpStream) -> bool {
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let mut bytes = [0; 4096];
    loop {
        match socket.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Values of so many bytes, some on each worker.
pub(super) fn store_values(server: &Server, keys: usize, bytes: usize) {
    let mut client = server.client();
    for n in 0..keys {
        let value = vec![b'a' + n as u8; bytes];
        let () =
            redis::cmd("SET").arg(format!("k{n}")).arg(value).query(&mut client).expect("stored");
    }
}

/// The most memory within some time, while others are answered.
pub(super) fn peak_beside(server: &Server, time: Duration) -> u64 {
    let mut client = server.client();
    let (end, mut peak) = (Instant::now() + time, 0);
    while Instant::now() < end {
        let pong: String = redis::cmd("PING").query(&mut client).expect("an answer");
        assert_eq!(pong, "PONG");
        peak = peak.max(server.rss());
        std::thread::sleep(Duration::from_millis(10));
    }
    peak
}

#[test]
fn replies_of_other_workers_wait_for_their_reader() {
    let options = [&TWO_WORKERS[..], &["--maxmemory-clients", "0"]].concat();
    let server = Server::start(&options);
    store_values(&server, 8, 2 * MIB);
    let before = server.rss();
    let mut deaf: Vec<TcpStream> = (0..8).map(|_| server.socket()).collect();
    for (n, socket) in deaf.iter_mut().enumerate() {
        let get = encode(&[b"GET", format!("k{n}").as_bytes()]);
        socket.write_all(&get.repeat(100)).expect("sent");
    }
    let grown = peak_beside(&server, Duration::from_secs(2)).saturating_sub(before);
    // Of the 1600 MiB, 16 MiB are kept for each client; some more are being written.
    assert!(grown < 224 << 20, "the memory grew by {grown} bytes");
}

#[test]
fn replies_that_come_in_parts_are_whole_and_in_order() {
    let mut server = Server::start(&TWO_WORKERS);
    store_values(&server, 8, MIB / 2);
    for round in 0..3 {
        if round == 1 {
            // Commands on cold keys are parked, and put off there.
            server.stop();
            server.restart();
        }
        let mut socket = server.socket();
        let (mut sent, mut want) = (Vec::new(), Vec::new());
        for n in 0..60 {
            let (key, fill) = (format!("k{}", n * 5 % 8), b'a' + (n * 5 % 8) as u8);
            sent.extend(encode(&[b"GET", key.as_bytes()]));
            want.extend(format!("${}\r\n", MIB / 2).into_bytes());
            want.extend(vec![fill; MIB / 2]);
            want.extend(b"\r\n");
            let counter = format!("n{}:{round}", n % 3);
            sent.extend(encode(&[b"INCR", counter.as_bytes()]));
            want.extend(format!(":{}\r\n", n / 3 + 1).into_bytes());
            // A write behind a read of the same key that may be put off.
            sent.extend(encode(&[b"SETRANGE", key.as_bytes(), b"0", &[fill]]));
            want.extend(format!(":{}\r\n", MIB / 2).into_bytes());
        }
        let mut writer = socket.try_clone().expect("cloned");
        let writer = std::thread::spawn(move || writer.write_all(&sent).expect("sent"));
        let mut got = vec![0; want.len()];
        socket.read_exact(&mut got).expect("answered");
        assert!(got == want, "round {round}");
        writer.join().expect("sent");
    }
}

/// The bytes of the keys, as they have to be.
type Model = std::collections::BTreeMap<String, Vec<u8>>;

/// A command on large values of random keys, and its reply.
fn random_command(
    random: &mut impl FnMut(usize) -> usize,
    model: &mut Model,
) -> (Vec<u8>, Vec<u8>) {
    let bulk = |value: &[u8]| [format!("${}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat();
    let key = format!("k{}", random(8));
    let fill = vec![b'a' + random(26) as u8; 1 + random(2000)];
    let words: Vec<&[u8]>;
    let reply = match random(6) {
        0 | 1 => {
            words = vec![b"GET", key.as_bytes()];
            bulk(&model[&key])
        }
        2 => {
            let value = model.get_mut(&key).expect("there");
            value.extend_from_slice(&fill);
            words = vec![b"APPEND", key.as_bytes(), &fill];
            format!(":{}\r\n", value.len()).into_bytes()
        }
        3 => {
            words = vec![b"STRLEN", key.as_bytes()];
            format!(":{}\r\n", model[&key].len()).into_bytes()
        }
        4 => {
            words = vec![b"MGET", b"k0", b"k1", key.as_bytes()];
            let values = ["k0", "k1", &key].map(|key| bulk(&model[key]));
            [b"*3\r\n", &values.concat()[..]].concat()
        }
        _ => {
            let sent = [
                encode(&[b"MULTI"]),
                encode(&[b"GET", key.as_bytes()]),
                encode(&[b"APPEND", key.as_bytes(), b"+"]),
                encode(&[b"EXEC"]),
            ];
            let value = model.get_mut(&key).expect("there");
            let got = bulk(value);
            value.push(b'+');
            let len = format!(":{}\r\n", value.len());
            let queued = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n";
            return (sent.concat(), [queued, &got[..], len.as_bytes()].concat());
        }
    };
    (encode(&words), reply)
}

#[test]
fn pipelines_of_large_and_small_replies_are_answered_as_one_by_one() {
    let mut server = Server::start(&[&TWO_WORKERS[..], &["--memory-budget", "16mb"]].concat());
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut model: Model = (0..8).map(|n| (format!("k{n}"), vec![b'a' + n; 150_000])).collect();
    store_values(&server, 8, 150_000);
    for round in 0..6 {
        if round % 2 == 1 {
            server.stop();
            server.restart();
        }
        let (mut sent, mut want) = (Vec::new(), Vec::new());
        for _ in 0..120 {
            let (command, reply) = random_command(&mut random, &mut model);
            sent.extend(command);
            want.extend(reply);
        }
        let mut socket = server.socket();
        let mut writer = socket.try_clone().expect("cloned");
        let writer = std::thread::spawn(move || writer.write_all(&sent).expect("sent"));
        let mut got = vec![0; want.len()];
        socket.read_exact(&mut got).expect("answered");
        let first = got.iter().zip(&want).position(|(got, want)| got != want);
        assert_eq!(first, None, "round {round} of {} bytes", want.len());
        writer.join().expect("sent");
    }
}

#[test]
fn senders_of_garbage_keep_no_client_waiting() {
    let server = Server::start(&["--workers", "1"]);
    let mut client = server.client();
    let garbage = b"x\r\n".repeat(100_000);
    let mut deaf: Vec<TcpStream> = (0..100).map(|_| server.socket()).collect();
    for socket in &mut deaf {
        socket.set_nonblocking(true).expect("set");
        // The bytes that the buffers take are enough.
        let _ = socket.write(&garbage);
    }
    let began = Instant::now();
    for _ in 0..5 {
        let pong: String = redis::cmd("PING").query(&mut client).expect("an answer");
        assert_eq!(pong, "PONG");
    }
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[test]
fn a_reply_that_does_not_fit_is_an_error_and_closes_no_client() {
    let server = Server::start(&[&TWO_WORKERS[..], &["--maxmemory-clients", "8mb"]].concat());
    store_values(&server, 4, MIB);
    let before = server.rss();
    let mut client = server.client();
    let keys: Vec<String> = (0..200).map(|n| format!("k{}", n % 4)).collect();
    let same: Vec<&str> = std::iter::repeat_n("k1", 200).collect();
    let refused = |error: redis::RedisError| {
        assert!(error.to_string().contains("maxmemory-clients"), "{error}");
    };
    let mut mget = redis::cmd("MGET");
    refused(mget.arg(&keys).query::<()>(&mut client).expect_err("keys of all workers"));
    let mut mget = redis::cmd("MGET");
    refused(mget.arg(&same).query::<()>(&mut client).expect_err("keys of one worker"));
    let script =
        "for n = 1, 200 do redis.call('GET', KEYS[1]) end return redis.call('MGET', unpack(ARGV))";
    let mut eval = redis::cmd("EVAL");
    let error = eval.arg(script).arg(1).arg("k1").arg(&same).query::<()>(&mut client);
    assert!(error.is_err());
    let mut pipe = redis::pipe();
    pipe.atomic();
    for _ in 0..100 {
        pipe.cmd("GET").arg("k1");
    }
    assert!(pipe.query::<Vec<Vec<u8>>>(&mut client).is_err());
    let value: Vec<u8> = redis::cmd("GET").arg("k1").query(&mut client).expect("what fits comes");
    assert_eq!(value.len(), MIB);
    let grown = server.rss().saturating_sub(before);
    assert!(grown < 96 << 20, "the memory grew by {grown} bytes");
}

/// Runs commands in a transaction, whose reply is dropped.
fn transaction(
    client: &mut redis::Connection,
    commands: &[redis::Cmd],
) -> Result<(), redis::RedisError> {
    redis::cmd("MULTI").exec(client)?;
    commands.iter().try_for_each(|command| command.exec(client))?;
    redis::cmd("EXEC").exec(client)
}

#[test]
fn replies_of_many_large_values_keep_to_the_limit_and_one_very_large_value_comes() {
    for workers in ["1", "2"] {
        let options = ["--workers", workers, "--shards", "2", "--memory-budget", "128mb"];
        let server = Server::start(&options);
        store_values(&server, 8, 8 * MIB);
        let mut client = server.client();
        let () = redis::cmd("SET")
            .arg("large")
            .arg(vec![b'x'; 64 * MIB])
            .query(&mut client)
            .expect("SET");
        let keys: Vec<String> = (0..64).map(|n| format!("k{}", n % 8)).collect();
        let get = |key: &String| redis::cmd("GET").arg(key).clone();
        let gets: Vec<redis::Cmd> = keys.iter().map(get).collect();
        let before = server.peak_rss();
        let error = transaction(&mut client, &gets).expect_err("512 MiB");
        assert!(error.to_string().contains("maxmemory-clients"), "{error}");
        let error = redis::cmd("MGET").arg(&keys).query::<()>(&mut client).expect_err("512 MiB");
        assert!(error.to_string().contains("maxmemory-clients"), "{error}");
        let grown = server.peak_rss().saturating_sub(before);
        assert!(grown < 256 << 20, "the memory grew by {} MiB", grown >> 20);
        let value: Vec<u8> = redis::cmd("GET").arg("large").query(&mut client).expect("one value");
        assert_eq!(value.len(), 64 * MIB);
    }
}

#[test]
fn a_client_whose_replies_find_no_room_pauses_between_its_tries() {
    let mut server = Server::start(&[&TWO_WORKERS[..], &["--maxmemory-clients", "2mb"]].concat());
    let mut client = server.client();
    for list in 0..4 {
        for _ in 0..4 {
            let (key, items) = (format!("l{list}"), vec![vec![b'y'; 500]; 2000]);
            let () = redis::cmd("RPUSH").arg(key).arg(items).query(&mut client).expect("RPUSH");
        }
    }
    drop(client);
    for is_cold in [false, true] {
        if is_cold {
            server.stop();
            server.restart();
        }
        let (began, before) = (Instant::now(), calls_of_lrange(&server));
        let mut sockets: Vec<TcpStream> = (0..4).map(|_| server.socket()).collect();
        for (list, socket) in sockets.iter_mut().enumerate() {
            let ask = encode(&[b"LRANGE", format!("l{list}").as_bytes(), b"0", b"-1"]);
            socket.write_all(&ask.repeat(100)).expect("sent");
            let mut first = [0; 24];
            socket.read_exact(&mut first).expect("answered");
            assert_eq!(&first, b"-ERR the command has run");
        }
        std::thread::sleep(Duration::from_millis(300));
        // Of each client one at once (two, if they wait for data together), and one a second.
        let most = 4 * (1 + u64::from(is_cold) + began.elapsed().as_secs());
        let calls = calls_of_lrange(&server) - before;
        assert!(calls <= most, "{calls} calls, cold: {is_cold}");
    }
}

fn calls_of_lrange(server: &Server) -> u64 {
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query(&mut server.client()).expect("INFO");
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_lrange:calls="));
    line.map_or(0, |rest| rest.split(',').next().expect("calls").parse().expect("a number"))
}

#[test]
fn all_commands_of_a_transaction_run_if_a_reply_does_not_fit() {
    let server = Server::start(&[&TWO_WORKERS[..], &["--maxmemory-clients", "2mb"]].concat());
    let mut client = server.client();
    for _ in 0..4 {
        let items = vec![vec![b'y'; 500]; 2000];
        let () = redis::cmd("RPUSH").arg("list").arg(items).query(&mut client).expect("RPUSH");
    }
    let mut socket = server.socket();
    // CLIENT makes the connection run a part of it, and INCR may be on another worker.
    for named in [false, true] {
        send(&mut socket, &[b"MULTI"]);
        expect(&mut socket, b"+OK\r\n");
        let mut queue = vec![vec![&b"LRANGE"[..], b"list", b"0", b"-1"]; 3];
        queue.push(vec![b"INCR", b"count"]);
        queue.push(vec![b"SELECT", b"1"]);
        if named {
            queue.push(vec![b"CLIENT", b"SETNAME", b"renamed"]);
        }
        for words in &queue {
            send(&mut socket, words);
            expect(&mut socket, b"+QUEUED\r\n");
        }
        send(&mut socket, &[b"EXEC"]);
        let error = "-ERR the command has run, but its reply takes more memory than there is for clients \
             (maxmemory-clients)\r\n";
        let count = 1 + u8::from(named);
        let mut reply = format!("*{}\r\n{}:{count}\r\n+OK\r\n", queue.len(), error.repeat(3));
        if named {
            reply.push_str("+OK\r\n");
        }
        expect(&mut socket, reply.as_bytes());
        send(&mut socket, &[b"SELECT", b"0"]);
        expect(&mut socket, b"+OK\r\n");
    }
    send(&mut socket, &[b"GET", b"count"]);
    expect(&mut socket, b"$1\r\n2\r\n");
    send(&mut socket, &[b"CLIENT", b"GETNAME"]);
    expect(&mut socket, b"$7\r\nrenamed\r\n");
}

#[test]
fn monitors_that_do_not_read_take_little_all_together() {
    let server = Server::start(&["--maxmemory-clients", "16mb"]);
    let mut deaf: Vec<TcpStream> = (0..40).map(|_| server.socket()).collect();
    for socket in &mut deaf {
        send(socket, &[b"MONITOR"]);
        expect(socket, b"+OK\r\n");
    }
    let before = server.rss();
    let mut client = server.client();
    let text = "m".repeat(3000);
    for _ in 0..40 {
        let mut pipe = redis::pipe();
        for _ in 0..100 {
            pipe.cmd("ECHO").arg(&text).ignore();
        }
        let () = pipe.query(&mut client).expect("answered");
    }
    let grown = server.rss().saturating_sub(before);
    assert!(grown < 128 << 20, "the memory grew by {grown} bytes");
}

#[test]
fn a_large_value_takes_little_more_than_itself_and_its_copy() {
    // With the key on the connection's worker, and on one that has no connections.
    for net_workers in ["0", "1"] {
        let options = ["--workers", "1", "--net-workers", net_workers, "--memory-budget", "64mb"];
        let server = Server::start(&options);
        let (before, length) = (server.rss(), 160 * MIB);
        let mut socket = server.socket();
        let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${length}\r\n");
        socket.write_all(head.as_bytes()).expect("sent");
        for n in 0..length / MIB {
            socket.write_all(&[n as u8; MIB]).expect("sent");
        }
        socket.write_all(b"\r\n").expect("sent");
        expect(&mut socket, b"+OK\r\n");
        let grown = server.peak_rss().saturating_sub(before);
        let most = length as u64 * 12 / 5;
        assert!(grown < most, "{} MiB with {net_workers}", grown >> 20);
    }
}

#[test]
fn a_value_that_is_half_sent_takes_what_was_sent() {
    let server = Server::start(&["--workers", "1", "--memory-budget", "64mb"]);
    let (before, length) = (server.rss(), 200 * MIB);
    let mut socket = server.socket();
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${length}\r\n");
    socket.write_all(head.as_bytes()).expect("sent");
    // The buffer has grown several times, the last time with more than 128 MiB in it.
    let sent = length - MIB;
    for n in 0..sent / MIB {
        socket.write_all(&[n as u8; MIB]).expect("sent");
    }
    let query = || info(&server, "clients", "client_recent_max_input_buffer");
    let deadline = Instant::now() + PATIENCE;
    while (query() as usize) < sent && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let grown = server.peak_rss().saturating_sub(before);
    assert!(grown < sent as u64 * 5 / 4, "{} MiB", grown >> 20);
    socket.write_all(&vec![0; MIB + 2]).expect("sent");
    drop(socket);
}

#[test]
fn the_slow_log_keeps_little_of_a_name() {
    let server = Server::start(&["--slowlog-log-slower-than", "0", "--workers", "1"]);
    let mut client = server.client();
    let name = "n".repeat(2 * MIB);
    let () = redis::cmd("CLIENT").arg("SETNAME").arg(&name).query(&mut client).expect("named");
    for _ in 0..130 {
        let () = redis::cmd("PING").query(&mut client).expect("answered");
    }
    let log: Value = redis::cmd("SLOWLOG").arg("GET").arg(1).query(&mut client).expect("log");
    let shown = format!("{log:?}");
    assert!(shown.len() < 2000 && shown.contains("more bytes"), "{} bytes", shown.len());
}

#[test]
fn a_client_that_was_closed_runs_nothing_that_it_sends_later() {
    let server = Server::start(&TWO_WORKERS);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // On a worker that is busy, the order to close and the command are found together.
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = server.client();
                let mut pipe = redis::pipe();
                (0..500).for_each(|n| _ = pipe.set(n, "v").ignore());
                while !is_over.load(Ordering::Relaxed) {
                    let () = pipe.query(&mut client).expect("stored");
                }
            });
        }
        let mut admin = server.client();
        for _ in 0..100 {
            let mut closed = server.client();
            let id: u64 = redis::cmd("CLIENT").arg("ID").query(&mut closed).expect("its id");
            let kill: u64 = redis::cmd("CLIENT")
                .arg(&["KILL", "ID", &id.to_string()])
                .query(&mut admin)
                .expect("answered");
            let told = redis::cmd("PING").query::<String>(&mut closed);
            if kill != 1 || told.is_ok() {
                is_over.store(true, Ordering::Relaxed);
                panic!("{kill} closed, and told {told:?}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_client_hears_of_its_own_write_with_the_reply() {
    for mode in ["always", "everysec"] {
        hears_of_its_own_writes(&[&TWO_WORKERS[..], &["--appendfsync", mode]].concat());
    }
}

fn hears_of_its_own_writes(options: &[&str]) {
    let server = Server::start(options);
    let mut socket = server.socket();
    send(&mut socket, &[b"HELLO", b"3"]);
    let mut bytes = [0; 4096];
    assert!(socket.read(&mut bytes).expect("answered") > 0);
    send(&mut socket, &[b"CLIENT", b"TRACKING", b"ON"]);
    expect(&mut socket, b"+OK\r\n");
    for n in 0..100 {
        // On either worker, by one command or by a transaction.
        let key = format!("k{}", n % 8);
        send(&mut socket, &[b"GET", key.as_bytes()]);
        assert!(socket.read(&mut bytes).expect("answered") > 0);
        let push = format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n$2\r\n{key}\r\n");
        let set = encode(&[b"SET", key.as_bytes(), b"v"]);
        let (sent, reply) = match n % 3 {
            0 => (
                [&encode(&[b"MULTI"])[..], &set, &encode(&[b"EXEC"])].concat(),
                "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n",
            ),
            _ => (set, "+OK\r\n"),
        };
        socket.write_all(&sent).expect("sent");
        // The last reply brings it; those before may come earlier.
        let mut got = Vec::new();
        while got.len() < reply.len() {
            let read = socket.read(&mut bytes).expect("answered");
            assert!(read > 0, "{n}: it was closed");
            got.extend_from_slice(&bytes[..read]);
        }
        assert_eq!(String::from_utf8_lossy(&got), format!("{reply}{push}"), "{n}");
    }
}
