//! Shards that leave running workers, and come back, while clients use their keys.

use super::*;
use crate::clients::ClientState;
use crate::config::Startup;
use flagstone_storage::directory::Locks;
use flagstone_storage::partition::DetachedShard;
use flagstone_storage::slot::slot_of;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{RwLock, RwLockWriteGuard};

/// Time after which a reply is given up.
const SOON: Duration = Duration::from_secs(20);

/// A server in this process, with two workers and four shards: a shard `n` is on worker `n % 2`.
struct TestServer {
    node: Arc<Node>,
    peers: Arc<Peers>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<Result<Partition>>>,
    background: Runtime,
    _handshakes: Runtime,
    socket: PathBuf,
    _listening: Listening,
    _locks: Locks,
    _root: tempfile::TempDir,
}

const SHARDS: u16 = 4;

/// Threads of the background.
const BACKGROUND: usize = 2;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(BACKGROUND).enable_all().build().unwrap()
}

impl TestServer {
    fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("socket");
        let (dir, path) = (root.path().join("data"), socket.to_str().unwrap());
        let args = ["--port", "0", "--unixsocket", path, "--dir", dir.to_str().unwrap()];
        let sizes = ["--workers", "2", "--shards", "4", "--databases", "1"];
        let args = args.iter().chain(&sizes).map(|arg| (*arg).to_owned());
        let Ok(Startup::Run(config)) = Config::load(args, std::iter::empty()) else {
            panic!("the arguments are valid");
        };
        commands::install(&[]).unwrap();
        let settings = config.settings();
        let options = open_options(&settings).unwrap();
        let accounts = load_accounts(&config, Budget::new(&settings).users).unwrap();
        let (background, handshakes, clock) = (runtime(), runtime(), Clock::default());
        let archive = options.location().archive();
        let opening = background.spawn(Directory::open(options, clock.clone()));
        let mut opened = background.block_on(opening).unwrap().unwrap();
        assert_eq!(opened.layout.shards(), SHARDS);
        let surroundings = Surroundings {
            background: background.handle().clone(),
            handshakes: handshakes.handle().clone(),
            tls: Arc::new(TlsSlot::new(tls::load(&settings).unwrap())),
        };
        let source = checkpoint_source(&opened, &settings, clock);
        let node = Node::new(NodeParts {
            config: Arc::new(config),
            accounts: Arc::new(accounts),
            checkpoints: Checkpoints::new(source, archive),
            workers: 2,
            shard_workers: 2,
            next_generation: opened.generations.next,
            requests: [&opened.store, &opened.journal_place].map(|at| at.requests().clone()),
            stored: stored_state(&mut opened),
            splitter: opened.splitter.take(),
            joined: None,
            surroundings,
        });
        let node = Arc::new(node.unwrap());
        let (mailboxes, inboxes): (Vec<Mailbox>, Vec<Inbox>) = (0..2).map(|_| mailbox()).unzip();
        let peers = Arc::new(Peers::new(mailboxes, 2));
        let (_listening, sockets) = Listening::begin(settings, 0..2).unwrap();
        let (stop, stopped) = watch::channel(false);
        let (partitions, _locks) = opened.into_partitions(2, 2);
        let common = Common { node: node.clone(), peers: peers.clone(), net: 0..2, stopped };
        let threads = common.spawn_workers(inboxes, partitions, sockets).unwrap();
        Self {
            node,
            peers,
            stop,
            threads,
            background,
            _handshakes: handshakes,
            socket,
            _listening,
            _locks,
            _root: root,
        }
    }

    fn client(&self) -> TestClient {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        TestClient(BufReader::new(stream))
    }

    /// Runs a job on the worker of a shard.
    fn on<T, F, Fut>(&self, shard: u16, job: F) -> T
    where
        T: Send + 'static,
        F: FnOnce(Rc<Worker>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let done = self.peers.on_worker(usize::from(shard % 2), false, job);
        self.background.block_on(done).ok().unwrap()
    }

    fn detach(&self, shard: u16) -> DetachedShard {
        let detach = move |worker: Rc<Worker>| async move {
            let elsewhere =
                |slot, secured| format!("MOVED {slot} elsewhere:{}", 1 + u8::from(secured));
            worker.detach_shard(shard, elsewhere).await
        };
        self.on(shard, detach).unwrap()
    }

    fn attach(&self, detached: DetachedShard) {
        let (id, shard) = (detached.id(), detached.into_shard());
        let attach = move |worker: Rc<Worker>| async move { worker.attach_shard(shard).await };
        self.on(id, attach).unwrap();
    }

    /// Returns the `n`-th key of a shard.
    fn key(&self, shard: u16, n: usize) -> String {
        let all = (0u32..).map(|n| format!("k{n}"));
        let mut own = all.filter(|key| self.node.layout.shard_of(slot_of(key.as_bytes())) == shard);
        own.nth(n).unwrap()
    }

    /// Returns the error for a key whose shard is away.
    fn away(&self, key: &str) -> String {
        let slot = slot_of(key.as_bytes());
        format!("-TRYAGAIN The shard of slot {slot} is not served here at present")
    }

    /// Stops as a server does, and returns the keys of its shards.
    fn end(self) -> u64 {
        self.stop.send_replace(true);
        let mut keys = 0;
        for thread in self.threads {
            let partition = thread.join().unwrap().unwrap();
            keys += partition.totals(0).0;
            self.background.block_on(partition.close()).unwrap();
        }
        self.node.journal.close().unwrap();
        keys
    }
}

/// A client; replies are texts, those in arrays behind each other.
struct TestClient(BufReader<UnixStream>);

impl TestClient {
    fn send(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.reply()
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let line = line.trim_end();
        let count = || line[1..].parse::<i64>().unwrap();
        match &line[..1] {
            "$" if count() >= 0 => {
                let mut text = vec![0; count() as usize + 2];
                self.0.read_exact(&mut text).unwrap();
                text.truncate(text.len() - 2);
                String::from_utf8(text).unwrap()
            }
            "*" | ">" if count() >= 0 => {
                (0..count()).map(|_| self.reply()).collect::<Vec<_>>().join(" ")
            }
            "%" => (0..2 * count()).map(|_| self.reply()).collect::<Vec<_>>().join(" "),
            _ => line.to_owned(),
        }
    }
}

#[test]
fn the_keys_of_a_shard_that_is_away_are_refused_and_all_others_served() {
    let server = TestServer::start();
    let mut client = server.client();
    for shard in 0..SHARDS {
        for n in 0..20 {
            let key = server.key(shard, n);
            assert_eq!(client.ask(&format!("SET {key} {n}")), "+OK");
        }
    }
    let [gone, fresh] = [3, 70].map(|n| server.key(1, n));
    let others: Vec<String> = [0, 2, 3].map(|shard| server.key(shard, 0)).into();
    let same = server.key(3, 1);
    let detached = server.detach(1);
    let away = server.away(&gone);
    let list = server.key(3, 30);
    assert_eq!(client.ask(&format!("RPUSH {list} x")), ":1");
    for line in [
        format!("GET {gone}"),
        format!("SET {gone} x"),
        format!("APPEND {gone} x"),
        format!("DEL {gone}"),
        format!("LPUSH {gone} x"),
        format!("EXPIRE {gone} 100"),
        format!("WATCH {gone}"),
        format!("BLPOP {gone} 0"),
        format!("EVAL \"return redis.call('GET', KEYS[1])\" 1 {gone}"),
        format!("EVAL \"redis.call('SET', KEYS[1], 'x') redis.pcall('GET', '{gone}')\" 1 {same}"),
        // Of the same worker, and of both.
        format!("MSET {same} x {gone} x"),
        format!("MSET {} x {gone} x", others[0]),
        format!("RENAME {} {gone}", others[0]),
        format!("BLMOVE {list} {gone} LEFT LEFT 0"),
    ] {
        assert_eq!(client.ask(&line), away, "{line}");
    }
    assert_eq!(client.ask(&format!("LPOP {list}")), "x");
    assert_eq!(client.ask("UNWATCH"), "+OK");
    assert_eq!(client.ask(&format!("GET {fresh}")), server.away(&fresh), "one that never was");
    assert_eq!(client.ask("MULTI"), "+OK");
    for line in [format!("SET {same} y"), format!("SET {gone} y")] {
        assert_eq!(client.ask(&line), "+QUEUED");
    }
    assert_eq!(client.ask("EXEC"), away);
    assert_eq!(client.ask(&format!("GET {same}")), "1", "no part of a refused unit counts");
    for key in &others {
        assert_eq!(client.ask(&format!("GET {key}")), "0");
    }
    assert_eq!(client.ask("DBSIZE"), ":60");
    let keys = client.ask("KEYS *");
    assert_eq!(keys.split(' ').count(), 60);
    assert!(!keys.split(' ').any(|key| key == gone));
    for _ in 0..20 {
        let key = client.ask("RANDOMKEY");
        assert_ne!(server.node.layout.shard_of(slot_of(key.as_bytes())), 1, "{key}");
    }
    server.attach(detached);
    assert_eq!(client.ask(&format!("GET {gone}")), "3");
    assert_eq!(client.ask(&format!("GET {fresh}")), "$-1");
    assert_eq!(client.ask(&format!("MSET {same} x {gone} x {fresh} x")), "+OK");
    assert_eq!(client.ask("DBSIZE"), ":81");
    assert_eq!(client.ask("KEYS *").split(' ').count(), 81);
    drop(client);
    assert_eq!(server.end(), 81);
}

#[test]
fn clients_that_wait_watch_or_cache_hear_that_a_shard_is_away() {
    let server = TestServer::start();
    let [a, b, c] = [0, 1, 2].map(|n| server.key(1, n));
    let [near, far] = [3, 2].map(|shard| server.key(shard, 0));
    let mut waiting: Vec<TestClient> = Vec::new();
    for line in [
        format!("BLPOP {a} 0"),
        format!("BLPOP {far} {a} 0"),
        format!("BZPOPMIN {near} {b} 0"),
        format!("XREAD BLOCK 0 STREAMS {c} $"),
        format!("BLPOP {far} {near} 0"),
    ] {
        let mut client = server.client();
        client.send(&line);
        waiting.push(client);
    }
    let mut watching = server.client();
    assert_eq!(watching.ask(&format!("WATCH {b}")), "+OK");
    assert_eq!(watching.ask("MULTI"), "+OK");
    assert_eq!(watching.ask(&format!("SET {near} x")), "+QUEUED");
    let mut caching = server.client();
    caching.ask("HELLO 3");
    assert_eq!(caching.ask("CLIENT TRACKING ON"), "+OK");
    for key in [&a, &far] {
        assert_eq!(caching.ask(&format!("GET {key}")), "_");
    }
    let mut client = server.client();
    let begun = std::time::Instant::now();
    while !client.ask("INFO clients").contains("blocked_clients:5") {
        assert!(begun.elapsed() < SOON);
    }
    let detached = server.detach(1);
    for (client, key) in waiting.iter_mut().zip([&a, &a, &b, &c]) {
        assert_eq!(client.reply(), format!("-MOVED {} elsewhere:1", slot_of(key.as_bytes())));
    }
    assert_eq!(watching.ask("EXEC"), "*-1");
    assert_eq!(caching.reply(), format!("invalidate {a}"));
    assert_eq!(client.ask(&format!("LPUSH {near} x")), ":1");
    assert_eq!(waiting[4].reply(), format!("{near} x"));
    server.attach(detached);
    // It waits again, and is served.
    waiting[0].send(&format!("BLPOP {a} 0"));
    while !client.ask("INFO clients").contains("blocked_clients:1") {
        assert!(begun.elapsed() < SOON);
    }
    assert_eq!(client.ask(&format!("LPUSH {a} y")), ":1");
    assert_eq!(waiting[0].reply(), format!("{a} y"));
    drop((client, waiting, watching, caching));
    server.end();
}

#[test]
fn a_client_that_waits_by_tls_is_sent_to_the_port_for_that() {
    let server = TestServer::start();
    let key = server.key(1, 0);
    let (mut plain, mut secured, mut client) = (server.client(), server.client(), server.client());
    let id = secured.ask("CLIENT ID");
    let id: u64 = id.trim_start_matches(':').parse().unwrap();
    server.node.clients.get(id).unwrap().set(ClientState::SECURED, true);
    for waiting in [&mut plain, &mut secured] {
        waiting.send(&format!("BLPOP {key} 0"));
    }
    let begun = std::time::Instant::now();
    while !client.ask("INFO clients").contains("blocked_clients:2") {
        assert!(begun.elapsed() < SOON);
    }
    let detached = server.detach(1);
    let slot = slot_of(key.as_bytes());
    assert_eq!(plain.reply(), format!("-MOVED {slot} elsewhere:1"));
    assert_eq!(secured.reply(), format!("-MOVED {slot} elsewhere:2"));
    server.attach(detached);
    drop((plain, secured, client));
    server.end();
}

/// The load that looks for an element of a list does not know which client waits.
#[test]
fn a_client_that_waits_for_a_key_whose_shard_left_before_the_load_is_refused() {
    let server = TestServer::start();
    let key = server.key(1, 0);
    let (mut waiting, mut client) = (server.client(), server.client());
    waiting.send(&format!("BLPOP {key} 0"));
    let begun = std::time::Instant::now();
    while !client.ask("INFO clients").contains("blocked_clients:1") {
        assert!(begun.elapsed() < SOON);
    }
    let name = key.clone();
    let leave = move |worker: Rc<Worker>| async move {
        worker.commit();
        let detached = worker.partition.borrow_mut().detach(1).unwrap();
        crate::blocking::Serves::fetch(&worker, &(0, name.as_bytes().into()));
        detached
    };
    let detached = server.on(1, leave);
    assert_eq!(waiting.reply(), server.away(&key));
    let stats = client.ask("INFO commandstats");
    let of_blpop = stats.lines().find(|line| line.contains("cmdstat_blpop")).expect(&stats);
    assert!(of_blpop.contains("rejected_calls=1,failed_calls=0"), "{of_blpop}");
    server.attach(detached);
    drop((waiting, client));
    server.end();
}

#[test]
fn a_watch_ends_at_the_worker_that_watches_whoever_owns_the_key_then() {
    let server = TestServer::start();
    let key = server.key(1, 0);
    let mut watching = server.client();
    let watched = || server.on(1, |worker| async move { worker.watches_any() });
    assert_eq!(watching.ask(&format!("WATCH {key}")), "+OK");
    assert!(watched());
    let detached = server.detach(1);
    // As after a split, whose second part may be that of another worker.
    server.node.give_shard(1, 0);
    assert_eq!(watching.ask("UNWATCH"), "+OK");
    let begun = std::time::Instant::now();
    while watched() {
        assert!(begun.elapsed() < SOON, "the key stays watched");
    }
    server.node.give_shard(1, 1);
    server.attach(detached);
    drop(watching);
    server.end();
}

impl TestServer {
    /// Hands the rows of a shard over to its engine, and takes a key out of memory: the engine is asked for it
    /// in the background.
    fn make_cold(&self, shard: u16, key: &str) {
        let begun = std::time::Instant::now();
        let is_handed_over = move |worker: Rc<Worker>| async move {
            let partition = worker.partition.borrow();
            let shard = &partition.shards[&shard];
            shard.pending_rows() == 0 && shard.handing().is_none()
        };
        while !self.on(shard, is_handed_over) {
            assert!(begun.elapsed() < SOON, "the rows stay");
        }
        let key = key.as_bytes().to_vec();
        let forget = move |worker: Rc<Worker>| async move {
            worker.partition.borrow_mut().forget(0, &key);
        };
        self.on(shard, forget);
    }

    /// Keeps all threads of the background busy until the lock is dropped.
    fn occupy<'a>(&self, lock: &'a Arc<RwLock<()>>) -> RwLockWriteGuard<'a, ()> {
        let (guard, busy) = (lock.write().unwrap(), Arc::new(AtomicUsize::new(0)));
        for _ in 0..BACKGROUND {
            let (lock, busy) = (lock.clone(), busy.clone());
            self.background.spawn(async move {
                busy.fetch_add(1, Ordering::SeqCst);
                drop(lock.read());
            });
        }
        let begun = std::time::Instant::now();
        while busy.load(Ordering::SeqCst) < BACKGROUND {
            assert!(begun.elapsed() < SOON, "the background does not run");
        }
        guard
    }
}

#[test]
fn keys_that_a_killed_client_has_begun_to_watch_stay_locked_until_they_are_loaded() {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(client.ask("CONFIG SET handover-interval-ms 10"), "+OK");
    // One of them is of the worker that serves the client.
    for shard in 0..2 {
        let key = server.key(shard, 0);
        let name = Arc::new(key.as_bytes().to_vec());
        let is_locked = || {
            let name = name.clone();
            let look =
                move |worker: Rc<Worker>| async move { worker.locks.borrow().is_locked(0, &name) };
            server.on(shard, look)
        };
        assert_eq!(client.ask(&format!("SET {key} 1")), "+OK");
        server.make_cold(shard, &key);
        let mut watching = server.client();
        let id = watching.ask("CLIENT ID");
        let lock = Arc::new(RwLock::new(()));
        let busy = server.occupy(&lock);
        watching.send(&format!("WATCH {key}"));
        let begun = std::time::Instant::now();
        while !is_locked() {
            assert!(begun.elapsed() < SOON, "it is in memory");
        }
        // The load begins.
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(client.ask(&format!("CLIENT KILL ID {}", &id[1..])), ":1");
        let mut rest = Vec::new();
        let _ = watching.0.read_to_end(&mut rest);
        assert_eq!(rest, b"", "it is closed without a reply");
        assert!(is_locked(), "the load is under way");
        drop(busy);
        while is_locked() {
            assert!(begun.elapsed() < SOON, "the lock stays");
        }
        assert!(!server.on(shard, |worker| async move { worker.watches_any() }));
        assert_eq!(client.ask(&format!("INCR {key}")), ":2");
    }
    drop(client);
    server.end();
}

#[test]
fn commands_behind_the_barrier_end_with_an_error_or_run() {
    let server = TestServer::start();
    let [held, gone, other] = [(1, 0), (1, 1), (3, 0)].map(|(shard, n)| server.key(shard, n));
    let mut client = server.client();
    for key in [&held, &gone, &other] {
        assert_eq!(client.ask(&format!("SET {key} 1")), "+OK");
    }
    // A command holds the lock of a key; the shard's leave waits for it, and others behind it.
    let key = held.clone();
    let (release, released) = tokio::sync::oneshot::channel();
    let hold = move |worker: Rc<Worker>| async move {
        let (lock, granted) = worker.lock([&(0, key.as_bytes().into())]);
        granted.await.unwrap();
        tokio::task::spawn_local(async move {
            let _ = released.await;
            drop(lock);
        });
    };
    server.on(1, hold);
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| server.detach(1));
        let is_waiting =
            |worker: Rc<Worker>| async move { worker.locks.borrow().blocks(0, std::iter::empty()) };
        while !server.on(1, is_waiting) {}
        let mut clients: Vec<TestClient> = Vec::new();
        for line in [
            format!("GET {gone}"),
            format!("INCR {held}"),
            format!("GET {other}"),
            format!("MSET {other} 2 {gone} 2"),
        ] {
            let mut client = server.client();
            client.send(&line);
            clients.push(client);
        }
        let parked = || server.node.figures.stats[1].parked.load(Ordering::Relaxed);
        let begun = std::time::Instant::now();
        while parked() < 4 {
            assert!(begun.elapsed() < SOON);
            std::thread::yield_now();
        }
        release.send(()).unwrap();
        let detached = leaving.join().unwrap();
        let replies = clients.iter_mut().map(TestClient::reply);
        let expected = [server.away(&gone), server.away(&held), "1".into(), server.away(&gone)];
        assert_eq!(replies.collect::<Vec<_>>(), expected);
        server.attach(detached);
    });
    for key in [&held, &gone, &other] {
        assert_eq!(client.ask(&format!("GET {key}")), "1");
    }
    drop(client);
    server.end();
}

#[test]
fn a_flush_is_of_the_shards_that_are_here() {
    let server = TestServer::start();
    let keys: Vec<String> = (0..SHARDS).map(|shard| server.key(shard, 0)).collect();
    let mut client = server.client();
    for key in &keys {
        assert_eq!(client.ask(&format!("SET {key} 1")), "+OK");
    }
    let detached = server.detach(1);
    assert_eq!(client.ask("FLUSHALL"), "+OK");
    // As in a process that knows of no flush of the shard.
    let next = server.node.next_generation.swap(1, Ordering::Relaxed);
    server.attach(detached);
    assert!((2..=next).contains(&server.node.next_generation.load(Ordering::Relaxed)));
    server.node.next_generation.store(next, Ordering::Relaxed);
    let detached = server.detach(2);
    let all = |client: &mut TestClient| {
        keys.iter().map(|key| client.ask(&format!("GET {key}"))).collect::<Vec<_>>()
    };
    assert_eq!(all(&mut client), ["$-1", "1", &server.away(&keys[2]), "$-1"]);
    server.attach(detached);
    assert_eq!(all(&mut client), ["$-1", "1", "$-1", "$-1"]);
    assert_eq!(client.ask(&format!("MSET {} 2 {} 2", keys[0], keys[1])), "+OK");
    assert_eq!(all(&mut client), ["2", "2", "$-1", "$-1"]);
    assert_eq!(client.ask(&format!("SET {} 2", server.key(1, 1))), "+OK");
    assert_eq!(client.ask("DBSIZE"), ":3");
    // In a unit, before and behind the flush.
    assert_eq!(client.ask("MULTI"), "+OK");
    for line in [format!("DEL {}", keys[1]), "FLUSHALL".into(), format!("SET {} 3", keys[1])] {
        assert_eq!(client.ask(&line), "+QUEUED");
    }
    assert_eq!(client.ask("EXEC"), ":1 +OK +OK");
    assert_eq!(all(&mut client), ["$-1", "3", "$-1", "$-1"]);
    assert_eq!(client.ask("DBSIZE"), ":1");
    let counted = |worker: Rc<Worker>| async move { worker.partition.borrow().data_set().keys };
    assert_eq!(server.on(0, counted) + server.on(1, counted), 1, "the dead are not counted");
    drop(client);
    assert_eq!(server.end(), 1);
}

/// The shard leaves with rows in every stage, is flushed and closed while the server goes on.
#[test]
fn a_shard_is_closed_while_the_others_go_on() {
    let server = TestServer::start();
    let keys: Vec<String> = (0..300).map(|n| server.key(1, n)).collect();
    let mut client = server.client();
    for key in &keys {
        assert_eq!(client.ask(&format!("SET {key} {}", "x".repeat(1000))), "+OK");
    }
    let mut detached = server.detach(1);
    server.background.block_on(detached.flush(&server.node.journal)).unwrap();
    server.attach(detached);
    for key in keys.iter().step_by(2) {
        assert_eq!(client.ask(&format!("SET {key} 1 EX 1000")), "+OK");
    }
    assert_eq!(client.ask("DBSIZE"), ":300", "replaced rows were looked for");
    let detached = server.detach(1);
    let engine = server.node.checkpoints.source.engines()[1].clone();
    server.background.block_on(detached.close(&server.node.journal)).unwrap();
    assert!(engine.closed().is_some());
    let other = server.key(3, 0);
    assert_eq!(client.ask(&format!("SET {other} 1")), "+OK");
    let shown = client.ask("INFO shards");
    assert!(
        shown.contains("shard0:") && !shown.contains("shard1:"),
        "those of a shard that is here"
    );
    drop(client);
    assert_eq!(server.end(), 1);
}

/// Shards leave and come back while jobs of the background are under way for them: hand-overs,
/// passes over blind writes, expiry.
#[test]
fn nothing_is_lost_however_often_shards_move_under_load() {
    const KEYS: usize = 24;
    const MOVES: u64 = 120;
    let server = TestServer::start();
    assert_eq!(server.client().ask("CONFIG SET handover-interval-ms 60"), "+OK");
    let names: Vec<String> = (0..SHARDS)
        .flat_map(|shard| (0..KEYS).map(move |n| (shard, n)))
        .map(|(s, n)| server.key(s, n))
        .collect();
    let over = AtomicBool::new(false);
    let begun = std::time::Instant::now();
    let is_over = || over.load(Ordering::Relaxed) || begun.elapsed() > 3 * SOON;
    let write = |seed: u64| {
        let mut draw = StdRng::seed_from_u64(seed);
        let mut client = server.client();
        // Each client has keys of its own.
        let names: Vec<&String> = names.iter().skip(seed as usize).step_by(2).collect();
        let mut model = vec![0; names.len()];
        let mut refused = 0;
        while !is_over() {
            let n = draw.random_range(0..names.len());
            let (line, value) = match draw.random_range(0..3) {
                0 => (format!("INCR {}", names[n]), model[n] + 1),
                1 => (format!("SET {} {}", names[n], n), n),
                _ => (format!("SET {} 7 EX 1000", names[n]), 7),
            };
            let reply = client.ask(&line);
            if reply.starts_with("-TRYAGAIN") {
                refused += 1;
                continue;
            }
            assert!(reply == "+OK" || reply == format!(":{value}"), "{line}: {reply}");
            model[n] = value;
        }
        for (name, value) in names.iter().zip(&model) {
            let shown = client.ask(&format!("GET {name}"));
            assert!(
                shown == value.to_string() || (shown == "$-1" && *value == 0),
                "{name}: {shown}"
            );
        }
        refused
    };
    let count = || {
        let mut client = server.client();
        while !is_over() {
            assert!(client.ask("DBSIZE").starts_with(':'));
        }
    };
    std::thread::scope(|scope| {
        let writers = [0, 1].map(|seed| scope.spawn(move || write(seed)));
        scope.spawn(count);
        let mut draw = StdRng::seed_from_u64(9);
        for n in 0..MOVES {
            let shard = draw.random_range(0..SHARDS);
            let mut detached = server.detach(shard);
            if n % 4 == 0 {
                server.background.block_on(detached.flush(&server.node.journal)).unwrap();
            }
            std::thread::sleep(Duration::from_millis(draw.random_range(0..4)));
            server.attach(detached);
            std::thread::sleep(Duration::from_millis(draw.random_range(0..30)));
        }
        over.store(true, Ordering::Relaxed);
        let refused: usize = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        assert!(refused > 0, "no command has met a shard that was away");
    });
    let mut client = server.client();
    let all: u64 = client.ask("DBSIZE")[1..].parse().unwrap();
    assert_eq!(client.ask("KEYS *").split(' ').count() as u64, all);
    drop(client);
    assert_eq!(server.end(), all);
}

/// A shard that is split has the turn of checkpoints for as long as its rows take to get to the store.
#[test]
fn a_checkpoint_that_waits_for_its_turn_can_be_cancelled() {
    let server = TestServer::start();
    let mut client = server.client();
    let turn = server.background.block_on(server.node.checkpoints.turn.lock());
    assert_eq!(client.ask("BGSAVE"), "+Background saving started");
    let is_running = |client: &mut TestClient| {
        client.ask("INFO persistence").contains("rdb_bgsave_in_progress:1")
    };
    assert!(is_running(&mut client));
    assert_eq!(client.ask("BGSAVE CANCEL"), "+Background saving cancelled");
    let begun = std::time::Instant::now();
    while is_running(&mut client) {
        assert!(begun.elapsed() < SOON, "it goes on to wait");
    }
    assert!(client.ask("INFO persistence").contains("rdb_last_bgsave_status:err"));
    drop(turn);
    // The next one is another one.
    assert_eq!(client.ask("SAVE"), "+OK");
    drop(client);
    server.end();
}

#[test]
fn a_branch_for_a_replica_leaves_no_checkpoint_whether_it_is_made_or_not() {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(client.ask("SET key value"), "+OK");
    let source = &server.node.checkpoints.source;
    let dir = source.store.dir().unwrap();
    let branched = |to: PathBuf| {
        let to = Place::local(to).unwrap();
        server.background.block_on(crate::checkpoints::branch_at(&server.node, to))
    };
    // The data is in the way.
    for _ in 0..2 {
        branched(dir.to_owned()).unwrap_err();
    }
    branched(dir.with_file_name("branch")).unwrap();
    let left = server.background.block_on(Catalog::of(&source.store).list()).unwrap();
    assert!(left.is_empty(), "{left:?}");
    drop(client);
    server.end();
}
