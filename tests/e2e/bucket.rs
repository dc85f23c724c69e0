//! Data in a bucket whose store stops answering: an object store of the tests' own, in memory.

use super::Server;
use super::checkpoints::done;
use redis::Commands;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An object with the number of its version, which is its ETag.
type Objects = BTreeMap<String, (u64, Vec<u8>)>;

/// A bucket that speaks as much of S3 as the server asks for.
pub(crate) struct Bucket {
    port: u16,
    objects: Arc<Mutex<Objects>>,
    away: Arc<AtomicBool>,
    full: Arc<AtomicBool>,
    shards: Arc<HeldShards>,
}

/// Files of shards that wait to be stored, while that is held up.
#[derive(Default)]
struct HeldShards {
    is_on: AtomicBool,
    waiting: AtomicUsize,
}

impl HeldShards {
    /// Waits with a request that stores a file of a shard.
    fn hold(&self, request: &Request) {
        if request.method != "PUT" && request.method != "POST"
            || !request.path.contains("/db/compacted/")
        {
            return;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while self.is_on.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Bucket {
    pub(crate) fn start() -> Self {
        Self::over(Arc::default())
    }

    /// The same objects at another port, which answers or is away by itself.
    pub(crate) fn door(&self) -> Self {
        Self::over(self.objects.clone())
    }

    fn over(objects: Arc<Mutex<Objects>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let away = Arc::new(AtomicBool::new(false));
        let full = Arc::new(AtomicBool::new(false));
        let shards = Arc::<HeldShards>::default();
        let (is_away, is_full, kept) = (away.clone(), full.clone(), objects.clone());
        let held = shards.clone();
        // It ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (objects, away) = (objects.clone(), is_away.clone());
                let (full, shards) = (is_full.clone(), held.clone());
                thread::spawn(move || serve(&stream, &objects, &away, (&full, &shards)));
            }
        });
        Self { port, objects: kept, away, full, shards }
    }

    /// From now on it takes requests and does not answer them, or does again.
    pub(crate) fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }

    /// From now on it answers, and refuses to store anything.
    pub(crate) fn fill(&self) {
        self.full.store(true, Ordering::SeqCst);
    }

    /// From now on it answers nothing that stores a file of a shard, or does again.
    fn hold_shards(&self, on: bool) {
        self.shards.is_on.store(on, Ordering::SeqCst);
    }

    /// Returns true if a file of a shard waits to be stored.
    fn holds_some(&self) -> bool {
        self.shards.waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns true if there is an object whose name begins so.
    pub(crate) fn has(&self, prefix: &str) -> bool {
        let objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        objects.range(prefix.to_owned()..).next().is_some_and(|(key, _)| key.starts_with(prefix))
    }

    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        [
            ("AWS_ENDPOINT", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }
}

fn serve(
    stream: &TcpStream,
    objects: &Mutex<Objects>,
    away: &AtomicBool,
    (full, shards): (&AtomicBool, &HeldShards),
) {
    let mut input = BufReader::new(stream);
    while let Some(request) = read_request(&mut input) {
        shards.hold(&request);
        let (status, headers, body) = match request.method.as_str() {
            "PUT" | "POST" if full.load(Ordering::SeqCst) => {
                ("507 Insufficient Storage", Vec::new(), Vec::new())
            }
            _ => answer(&request, objects),
        };
        while away.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        let mut text = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        text.push_str("\r\n");
        let is_head = request.method == "HEAD";
        let sent = (&mut &*stream).write_all(text.as_bytes());
        if sent.is_err() || (!is_head && (&mut &*stream).write_all(&body).is_err()) {
            return;
        }
    }
}

fn read_request(input: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    input.read_line(&mut line).ok().filter(|&len| len > 0)?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        input.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let len = headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    let mut body = vec![0; len];
    input.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = query.map(|(name, value)| (name.to_owned(), decoded(value))).collect();
    Some(Request { method, path: decoded(path), query, headers, body })
}

/// Without percent signs.
fn decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let hex = (byte == b'%').then(|| str::from_utf8(behind.get(..2)?).ok()).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &behind[2..];
            }
            None => {
                out.push(byte);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

type Response = (&'static str, Vec<(&'static str, String)>, Vec<u8>);

const MODIFIED: &str = "Mon, 01 Jan 2024 00:00:00 GMT";

fn answer(request: &Request, objects: &Mutex<Objects>) -> Response {
    let mut objects = objects.lock().unwrap_or_else(PoisonError::into_inner);
    // The bucket's name is its first part.
    let key = request.path.splitn(3, '/').nth(2).unwrap_or_default().to_owned();
    let status = |status: &'static str| (status, Vec::new(), Vec::new());
    match request.method.as_str() {
        "PUT" => {
            let found = objects.get(&key).map(|(version, _)| format!("\"{version}\""));
            let wrong =
                match (request.headers.get("if-none-match"), request.headers.get("if-match")) {
                    (Some(_), _) => found.is_some(),
                    (None, Some(tag)) => found.as_ref() != Some(tag),
                    (None, None) => false,
                };
            if wrong {
                return status("412 Precondition Failed");
            }
            let version = objects.values().map(|(version, _)| *version).max().unwrap_or(0) + 1;
            objects.insert(key, (version, request.body.clone()));
            ("200 OK", vec![("ETag", format!("\"{version}\""))], Vec::new())
        }
        "GET" if key.is_empty() => list(&objects, &request.query),
        "GET" | "HEAD" => match objects.get(&key) {
            Some((version, body)) => read(request, *version, body),
            None => status("404 Not Found"),
        },
        "DELETE" => {
            objects.remove(&key);
            status("204 No Content")
        }
        "POST" if request.query.contains_key("delete") => {
            let text = String::from_utf8_lossy(&request.body).into_owned();
            let mut deleted = String::new();
            for part in text.split("<Key>").skip(1) {
                let key = part.split("</Key>").next().unwrap_or_default();
                objects.remove(key);
                let _ = write!(deleted, "<Deleted><Key>{key}</Key></Deleted>");
            }
            let body = format!("<DeleteResult>{deleted}</DeleteResult>");
            ("200 OK", Vec::new(), body.into_bytes())
        }
        _ => status("501 Not Implemented"),
    }
}

fn read(request: &Request, version: u64, body: &[u8]) -> Response {
    let mut headers =
        vec![("ETag", format!("\"{version}\"")), ("Last-Modified", MODIFIED.to_owned())];
    let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
    let Some((from, to)) = range.and_then(|range| range.split_once('-')) else {
        return ("200 OK", headers, body.to_vec());
    };
    let (from, to) = match (from.parse::<usize>(), to.parse::<usize>()) {
        (Ok(from), Ok(to)) => (from, (to + 1).min(body.len())),
        (Ok(from), Err(_)) => (from, body.len()),
        (Err(_), Ok(suffix)) => (body.len().saturating_sub(suffix), body.len()),
        (Err(_), Err(_)) => (0, body.len()),
    };
    if from >= to {
        return ("416 Range Not Satisfiable", headers, Vec::new());
    }
    let shown = format!("bytes {from}-{}/{}", to - 1, body.len());
    headers.push(("Content-Range", shown));
    ("206 Partial Content", headers, body[from..to].to_vec())
}

fn list(objects: &Objects, query: &BTreeMap<String, String>) -> Response {
    let text = |name: &str| query.get(name).cloned().unwrap_or_default();
    let (prefix, delimiter, after) = (text("prefix"), text("delimiter"), text("start-after"));
    let mut contents = String::new();
    let mut folders = BTreeSet::new();
    for (key, (version, body)) in objects.range(prefix.clone()..) {
        if !key.starts_with(&prefix) {
            break;
        }
        let folder = (!delimiter.is_empty())
            .then(|| key[prefix.len()..].find(&delimiter))
            .flatten()
            .map(|at| key[..prefix.len() + at + delimiter.len()].to_owned());
        if let Some(folder) = folder {
            folders.insert(folder);
        } else if *key > after {
            let _ = write!(
                contents,
                "<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>\
                <ETag>\"{version}\"</ETag><Size>{}</Size></Contents>",
                body.len()
            );
        }
    }
    for folder in folders {
        let _ = write!(contents, "<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>");
    }
    let body = format!(
        "<ListBucketResult><Name>bucket</Name><Prefix>{prefix}</Prefix>\
        <IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"
    );
    ("200 OK", vec![("Content-Type", "application/xml".to_owned())], body.into_bytes())
}

fn log_of(server: &Server) -> String {
    fs::read_to_string(server.dir().join("log")).unwrap_or_default()
}

pub(super) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn no_command_waits_longer_for_a_bucket_than_it_is_told_to() {
    /// Milliseconds: `store-timeout-ms`. By then the lease on the data, of three seconds, has run out.
    const TIMEOUT: u64 = 3500;
    let bucket = Bucket::start();
    let mut server = Server::start_in(
        bucket.environment(),
        &[
            "--store",
            "s3://bucket/data",
            "--store-timeout-ms",
            &TIMEOUT.to_string(),
            "--logfile",
            "log",
        ],
    );
    let mut client = server.client();
    let () = client.set("key", "value").expect("stored");
    bucket.set_away(true);
    let began = Instant::now();
    let lost = client.set::<_, _, ()>("key", "other").expect_err("nobody stores it");
    let took = began.elapsed();
    assert!(lost.to_string().contains("MISCONF"), "{lost}");
    assert!(took >= Duration::from_millis(TIMEOUT) / 2, "{took:?}");
    assert!(took < Duration::from_millis(2 * TIMEOUT), "it has waited twice: {took:?}");
    // Reads need the lease.
    wait_until("reads are refused", || client.get::<_, String>("key").is_err());
    wait_until("reads are told of", || log_of(&server).contains("reads are refused"));
    let log = log_of(&server);
    for line in ["requests to the journal's store fail", "writes are refused", "reads are refused"]
    {
        assert_eq!(log.matches(line).count(), 1, "{line}: {log}");
    }
    bucket.set_away(false);
    wait_until("writes are accepted again", || client.set::<_, _, ()>("key", "last").is_ok());
    assert_eq!(client.get::<_, String>("key").expect("a value"), "last");
    let log = log_of(&server);
    for line in
        ["the journal's store answers again", "writes are accepted again", "reads are answered"]
    {
        assert_eq!(log.matches(line).count(), 1, "{line}: {log}");
    }
    assert!(log.lines().count() < 20, "{log}");
    server.stop();
}

/// A script's error may show data, whatever its text: it is not sent once another server may own
/// the data.
#[test]
fn a_script_cannot_pass_data_off_as_an_error_of_the_server() {
    let bucket = Bucket::start();
    let options = ["--store", "s3://bucket/data", "--store-timeout-ms", "1000"];
    let mut server = Server::start_in(bucket.environment(), &options);
    let mut client = server.client();
    let () = client.set("key", "secret").expect("stored");
    let script = "local value = redis.call('get', KEYS[1]) local began = os.clock() \
        while os.clock() < began + ARGV[1] do end \
        return redis.error_reply('MISCONF ' .. value)";
    let mut told_after = |seconds: u64| {
        let mut eval = redis::cmd("EVAL");
        eval.arg(script).arg(1).arg("key").arg(seconds);
        eval.query::<String>(&mut client).expect_err("an error").to_string()
    };
    let told = told_after(0);
    assert!(told.contains("MISCONF") && told.contains("secret"), "{told}");
    bucket.set_away(true);
    // By then the lease on the data, of three seconds, has run out.
    let told = told_after(4);
    assert!(told.contains("another server") && !told.contains("secret"), "{told}");
    bucket.set_away(false);
    wait_until("data is shown again", || client.get::<_, String>("key").is_ok());
    server.stop();
}

/// A terminal that is closed is no reason to lose writes that `everysec` has not stored yet.
#[test]
fn a_closed_terminal_loses_nothing_that_was_acknowledged() {
    let bucket = Bucket::start();
    let options = ["--store", "s3://bucket/data", "--appendfsync", "everysec"];
    let mut server = Server::start_in(bucket.environment(), &options);
    let mut client = server.client();
    for n in 0..500 {
        let () = client.set(n, n).expect("acknowledged");
    }
    server.signal(Signal::HUP);
    thread::sleep(Duration::from_millis(100));
    let () = client.set("after", 1).expect("it goes on");
    server.stop();
    server.restart();
    let keys: u64 = redis::cmd("DBSIZE").query(&mut server.client()).expect("a number");
    assert_eq!(keys, 501);
    server.stop();
}

/// A directory of several machines is used like a bucket.
#[test]
fn a_directory_used_like_a_bucket_is_taken_over() {
    let shared = tempfile::tempdir().expect("a directory");
    let url = format!("bucket+file://{}", shared.path().join("data").display());
    let options = ["--store", &url, "--appendfsync", "always"];
    let mut first = Server::start(&options);
    let mut client = first.client();
    for n in 0..100 {
        let () = client.set(n, n).expect("stored");
    }
    // A second one takes over from one that lives, ...
    let mut second = Server::start(&options);
    let error = client.set::<_, _, ()>(0, "late").expect_err("it owns nothing any more");
    assert!(!error.to_string().is_empty());
    let mut client = second.client();
    assert_eq!(redis::cmd("DBSIZE").query::<u64>(&mut client).expect("a number"), 100);
    let () = client.set(100, 100).expect("stored");
    // ... and from one that was killed.
    second.kill();
    let mut third = Server::start(&options);
    let mut client = third.client();
    for n in 0..=100 {
        assert_eq!(client.get::<_, u64>(n).expect("a value"), n);
    }
    third.stop();
    assert_ne!(first.reap(), Some(0), "it has lost its data to another");
}

/// Returns a figure of a server.
fn figure(server: &Server, name: &str) -> u64 {
    let info: redis::InfoDict =
        redis::cmd("INFO").arg("flagstone").query(&mut server.client()).expect("figures");
    info.get(name).expect("a number")
}

/// Returns its puts so far.
fn puts_of(server: &Server) -> u64 {
    figure(server, "store_puts")
}

/// Sets a key, and returns how long that took.
fn timed_set(client: &mut redis::Connection) -> Duration {
    let began = Instant::now();
    let () = client.set("key", "value").expect("stored");
    began.elapsed()
}

fn set_window(server: &Server, ms: &str) {
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("journal-commit-window-ms").arg(ms);
    let () = set.query(&mut server.client()).expect(ms);
}

#[test]
fn writes_gather_for_the_commit_window_of_now() {
    const WINDOW: Duration = Duration::from_millis(200);
    let bucket = Bucket::start();
    let options = ["--store", "s3://bucket/data", "--journal-commit-window-ms", "200"];
    let mut server = Server::start_in(bucket.environment(), &options);
    let (before, began) = (puts_of(&server), Instant::now());
    thread::scope(|scope| {
        for _ in 0..8 {
            let mut client = server.client();
            scope.spawn(move || (0..5).for_each(|_| assert!(timed_set(&mut client) > WINDOW / 2)));
        }
    });
    // Objects that renew the lease, and that of another window at each end.
    let windows = began.elapsed().as_millis() / WINDOW.as_millis() + 2;
    let put = puts_of(&server) - before;
    let renewals = began.elapsed().as_secs() + 1;
    assert!(put <= u64::try_from(windows).expect("few") + renewals, "{put} in {windows} windows");
    assert!(put < 40, "each write had an object of its own");
    // A transaction and WAITAOF wait as a write does, and not twice as long for each command.
    let mut client = server.client();
    let began = Instant::now();
    let mut unit = redis::pipe();
    unit.atomic().set("a", 1).set("b", 2).incr("a", 1);
    let (.., a): (String, String, u64) = unit.query(&mut client).expect("stored");
    assert!(a == 2 && began.elapsed() >= WINDOW / 2, "{:?}", began.elapsed());
    let local: (u64, u64) =
        redis::cmd("WAITAOF").arg(1).arg(0).arg(0).query(&mut client).expect("stored");
    assert_eq!(local.0, 1);
    // A change holds for a write that waits.
    let fastest = (0..5).map(|_| {
        let mut client = server.client();
        set_window(&server, "0");
        // It renews the lease, which would put what gathers a second later.
        timed_set(&mut client);
        set_window(&server, "1000");
        let waiting = thread::spawn(move || timed_set(&mut client));
        thread::sleep(WINDOW / 4);
        set_window(&server, "0");
        waiting.join().expect("stored")
    });
    let fastest = fastest.min().expect("one of them");
    assert!(fastest < Duration::from_millis(700), "{fastest:?}");
    for wrong in ["-1", "1001", "soon"] {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("journal-commit-window-ms").arg(wrong);
        assert!(set.query::<()>(&mut server.client()).is_err(), "{wrong}");
    }
    server.stop();
}

#[test]
fn a_stop_puts_what_gathers_at_once() {
    let bucket = Bucket::start();
    let options = ["--store", "s3://bucket/data", "--journal-commit-window-ms", "1000"];
    let mut server = Server::start_in(bucket.environment(), &options);
    let stops = (0..4).map(|n| {
        let mut client = server.client();
        // It renews the lease, which would put what gathers a second later.
        timed_set(&mut client);
        // It is answered, or closed: the write is there in any case.
        let waiting = thread::spawn(move || client.set::<_, _, ()>(n, n).is_ok());
        thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        server.stop();
        let took = began.elapsed();
        waiting.join().expect("an end");
        server.restart();
        assert_eq!(server.client().get::<_, i32>(n).expect("a value"), n);
        took
    });
    let fastest = stops.min().expect("one of them");
    assert!(fastest < Duration::from_millis(700), "a stop waits for the window: {fastest:?}");
    server.stop();
}

#[test]
fn the_commit_window_in_force_is_shown() {
    const FIGURE: &str = "journal_commit_window_ms";
    let bucket = Bucket::start();
    let options = ["--store", "s3://bucket/data", "--store-timeout-ms", "1000"];
    let mut server = Server::start_in(bucket.environment(), &options);
    assert_eq!(figure(&server, FIGURE), 0);
    for (window, in_force) in [("20", 20), ("1000", 500)] {
        set_window(&server, window);
        assert_eq!(figure(&server, FIGURE), in_force);
    }
    server.stop();
    // On a disk there is none.
    let mut server = Server::start(&["--journal-commit-window-ms", "200", "--logfile", "log"]);
    assert_eq!(figure(&server, FIGURE), 0);
    assert!(log_of(&server).contains("writes gather for 0 ms"), "{}", log_of(&server));
    server.stop();
}

/// Emptied directories are no objects, and a branch has files of its parent.
#[test]
fn tools_work_again_and_again_in_a_directory_used_like_a_bucket() {
    let shared = tempfile::tempdir().expect("a directory");
    let place = |name: &str| format!("bucket+file://{}", shared.path().join(name).display());
    let mut server = Server::start(&["--store", &place("data"), "--shards", "2"]);
    let mut client = server.client();
    for n in 0..300 {
        let () = client.set(n, n).expect("stored");
    }
    drop(client);
    server.stop();
    let has_all = |told: &str| assert!(told.contains("300 keys"), "{told}");
    for _ in 0..2 {
        has_all(&done(&["check", "--dir", &place("data")]));
    }
    done(&["branch", "--dir", &place("data"), "--to", &place("branch"), "--stopped"]);
    let resharded = ["reshard", "--dir", &place("branch"), "--to", &place("new"), "--shards", "3"];
    has_all(&done(&resharded));
    has_all(&done(&["check", "--dir", &place("new")]));
    // What is deleted leaves an empty place.
    done(&["backup", "--dir", &place("new"), "--to", &place("backups"), "--stopped"]);
    fs::remove_dir_all(shared.path().join("new")).expect("removed");
    done(&["restore", "--from", &place("backups"), "--to", &place("new")]);
    has_all(&done(&["check", "--dir", &place("new")]));
}

/// How long a stop in order would wait for shards that cannot be stored is more than this.
const NOW: Duration = Duration::from_secs(25);

/// Keys that fill three eighths of the journal: then the engines are made to flush.
const KEYS: u64 = 48;

/// Starts a server whose shards are being stored, which does not get on.
fn storing_slowly(bucket: &Bucket) -> Server {
    let options = [
        ["--store", "s3://bucket/data"],
        ["--store-timeout-ms", "120000"],
        ["--handover-interval-ms", "10"],
        ["--journal-max-size", "4mb"],
    ];
    let server = Server::start_in(bucket.environment(), options.as_flattened());
    bucket.hold_shards(true);
    let value = "v".repeat(1 << 16);
    let all: Vec<(u64, &str)> = (0..KEYS).map(|n| (n, &*value)).collect();
    let () = server.client().mset(&all).expect("stored in the journal");
    wait_until("the shards are being stored", || bucket.holds_some());
    server
}

/// Checks that a server has ended in order, and that its next life has all keys.
fn ends_now(bucket: &Bucket, mut server: Server, since: Instant) {
    assert_eq!(server.reap(), Some(0), "{}", server.log());
    assert!(since.elapsed() < NOW, "it has waited for the shards: {:?}", since.elapsed());
    let log = server.log();
    assert!(log.contains("the last of it in the journal only"), "{log}");
    bucket.hold_shards(false);
    server.restart();
    let keys: u64 = redis::cmd("DBSIZE").query(&mut server.client()).expect("a number");
    assert_eq!(keys, KEYS);
    server.stop();
}

#[test]
fn shutdown_now_does_not_wait_for_shards_that_are_being_stored() {
    let bucket = Bucket::start();
    let server = storing_slowly(&bucket);
    let began = Instant::now();
    let gone: redis::RedisResult<()> =
        redis::cmd("SHUTDOWN").arg("NOW").query(&mut server.client());
    assert!(gone.is_err(), "the connection ends");
    ends_now(&bucket, server, began);
}

#[test]
fn a_second_interrupt_ends_the_hand_over_of_a_stop() {
    let bucket = Bucket::start();
    let server = storing_slowly(&bucket);
    server.signal(Signal::TERM);
    // Within a second, a further signal counts as the same one.
    thread::sleep(Duration::from_secs(2));
    let began = Instant::now();
    server.signal(Signal::INT);
    ends_now(&bucket, server, began);
}
