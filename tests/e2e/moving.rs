//! Data that moves in and out: files that real servers have written (`tests/data/rdb`), and back.

use super::Server;
use super::checkpoints::done;
use super::servers::{Cluster, asked, client, shards_of};
use super::ways::{Passing, place, way_to};
use redis::{Commands, Connection, Value};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/rdb").join(name)
}

/// Runs a subcommand against a server.
fn run(server: &Server, command: &str, file: &Path, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flagstone"))
        .args([command, &file.display().to_string(), "-p", &server.port().to_string()])
        .args(options)
        .output()
        .expect("the binary runs")
}

fn import(server: &Server, file: &Path, options: &[&str]) -> String {
    let output = run(server, "import", file, options);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn refused(server: &Server, file: &Path, options: &[&str]) -> (String, String) {
    let output = run(server, "import", file, options);
    assert_eq!(output.status.code(), Some(1));
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(output.stdout), text(output.stderr))
}

/// The reply to a command, its words between blanks, as a line of text.
fn ask(client: &mut Connection, command: &str) -> String {
    let mut words = command.split(' ');
    let mut cmd = redis::cmd(words.next().expect("a name"));
    words.for_each(|word| {
        cmd.arg(word);
    });
    match cmd.query::<Value>(client) {
        Ok(reply) => line(&reply),
        Err(error) => error.to_string(),
    }
}

fn line(reply: &Value) -> String {
    match reply {
        Value::Nil => "nil".to_owned(),
        Value::Int(integer) => integer.to_string(),
        Value::BulkString(bytes) => bytes.escape_ascii().to_string(),
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".to_owned(),
        Value::Array(replies) => {
            let lines: Vec<_> = replies.iter().map(line).collect();
            format!("({})", lines.join(" "))
        }
        other => format!("{other:?}"),
    }
}

/// Checks the values that the files of all types hold.
fn check_types(client: &mut Connection) {
    for (command, expected) in [
        ("DBSIZE", "15"),
        ("GET text", "hello"),
        ("GET number", "12345"),
        ("GET empty", ""),
        ("STRLEN long", "86"),
        ("LRANGE list 0 -1", "(a 1 -5 300 70000 hello)"),
        ("LRANGE list:nodes 0 -1", "(a b c d e f g)"),
        ("SORT integers", "(-5 1 70000)"),
        ("SORT words ALPHA", "(3 a b)"),
        ("SORT words:table ALPHA", "(a b c)"),
        ("ZRANGE scores 0 -1 WITHSCORES", "(c -inf a 1 b 2.5 e 3 d inf)"),
        ("ZRANGE scores:skiplist 0 -1 WITHSCORES", "(a 1 b 2.5)"),
        ("HMGET hash name number", "(value 7)"),
        ("HMGET hash:table name other", "(value thing)"),
        ("XRANGE stream - +", "((1-1 (name a value 1)) (2-1 (other c)) (3-1 (name d value 4)))"),
        ("XPENDING stream group", "(2 1-1 2-1 ((alice 2)))"),
        ("PEXPIRETIME expiring", "4000000000123"),
        ("EXISTS expired", "0"),
        ("SELECT 5", "OK"),
        ("GET elsewhere", "yes"),
        ("DBSIZE", "1"),
        ("SELECT 0", "OK"),
    ] {
        assert_eq!(ask(client, command), expected, "{command}");
    }
    let stream = ask(client, "XINFO STREAM stream FULL");
    for part in ["max-deleted-entry-id 1-2", "entries-added 4", "last-generated-id 3-1", "name bob"]
    {
        assert!(stream.contains(part), "{part}: {stream}");
    }
}

#[test]
fn files_of_real_servers_come_in_and_go_out_again() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    for (name, libraries) in [("valkey-8.1.rdb", 1), ("redis-7.0.rdb", 0)] {
        let said = import(&server, &fixture(name), &[]);
        assert!(said.starts_with("16 keys loaded"), "{said}");
        check_types(&mut client);
        assert_eq!(ask(&mut client, "FCALL shelf_ping 0") == "pong", libraries == 1);
        let exported = server.dir().join("exported.rdb");
        let output = run(&server, "export", &exported, &[]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.starts_with("16 keys written, "), "{said}{output:?}");
        assert!(said.contains("RDB version 11"), "{said}");
        ask(&mut client, "FLUSHALL");
        ask(&mut client, "FUNCTION FLUSH");
        import(&server, &exported, &[]);
        check_types(&mut client);
        assert_eq!(ask(&mut client, "FCALL shelf_ping 0") == "pong", libraries == 1);
        ask(&mut client, "FLUSHALL");
        ask(&mut client, "FUNCTION FLUSH");
    }
    let left = fs::read_dir(server.dir()).expect("the directory").flatten();
    let names: Vec<_> =
        left.map(|entry| entry.file_name().into_string().expect("a name")).collect();
    assert!(!names.iter().any(|name| name.ends_with(".part")), "{names:?}");
}

#[test]
fn fields_that_expire_come_in_and_go_out_again() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let check = |client: &mut Connection, large: &str, small: &str| {
        assert_eq!(ask(client, "HPEXPIRETIME large FIELDS 4 a b c d"), large);
        assert_eq!(ask(client, "HPEXPIRETIME small FIELDS 3 a b c"), small);
        assert_eq!(ask(client, "HMGET large a b c d"), "(1 2 3 4)");
    };
    let (large, small) =
        ("(-1 4000000000123 4000000000456 4000000000123)", "(-1 4000000000123 -1)");
    import(&server, &fixture("redis-8.0.rdb"), &[]);
    check(&mut client, large, small);
    assert_eq!(ask(&mut client, "HGETALL gone"), "(b 2)", "a field has expired");
    for (options, version, large, small) in [
        (&[][..], "RDB version 12", large, small),
        (&["--drop-field-expiry"], "RDB version 11", "(-1 -1 -1 -1)", "(-1 -1 -1)"),
    ] {
        let exported = server.dir().join("exported.rdb");
        let output = run(&server, "export", &exported, options);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(version) && said.contains("2 hashes"), "{said}{output:?}");
        import(&server, &exported, &["--replace"]);
        check(&mut client, large, small);
    }
}

#[test]
fn keys_that_are_there_are_an_error_or_replaced_or_skipped() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let file = fixture("redis-7.0.rdb");
    ask(&mut client, "SET list mine");
    let (_, error) = refused(&server, &file, &[]);
    assert!(error.contains("key \"list\" (database 0"), "{error}");
    assert!(error.contains("BUSYKEY"), "{error}");
    ask(&mut client, "FLUSHALL");
    ask(&mut client, "SET list mine");
    let said = import(&server, &file, &["--skip"]);
    assert!(said.starts_with("15 keys loaded, 1 left out since they are there"), "{said}");
    assert_eq!(ask(&mut client, "GET list"), "mine");
    let said = import(&server, &file, &["--replace"]);
    assert!(said.starts_with("16 keys loaded"), "{said}");
    check_types(&mut client);
    ask(&mut client, "FLUSHALL");
    import(&server, &file, &["--to", &format!("redis://127.0.0.1:{}/7", server.port())]);
    assert_eq!(ask(&mut client, "SELECT 7"), "OK");
    assert_eq!(ask(&mut client, "DBSIZE"), "16");
}

#[test]
fn a_damaged_file_is_named_with_the_offset_and_loaded_keys_stay() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let good = fs::read(fixture("redis-7.0.rdb")).expect("the fixture");
    let file = server.dir().join("damaged.rdb");
    fs::write(&file, &good[..good.len() / 2]).expect("written");
    let (said, error) = refused(&server, &file, &[]);
    assert!(error.contains("damaged at offset"), "{error}");
    assert!(error.contains("the file ends in the middle"), "{error}");
    let loaded: usize = said.split(' ').next().expect("a word").parse().expect("a number");
    assert_eq!(ask(&mut client, "DBSIZE"), loaded.to_string());
    assert!((1..16).contains(&loaded), "{said}");
    ask(&mut client, "FLUSHALL");
    let mut wrong = good.clone();
    let last = wrong.len() - 1;
    wrong[last] ^= 1;
    fs::write(&file, &wrong).expect("written");
    let (said, error) = refused(&server, &file, &[]);
    assert!(error.contains("the checksum is wrong") && said.starts_with("16 keys"), "{error}");
}

/// `redis-cli --rdb -` leaves the mark of the end of the transfer behind the file.
#[test]
fn a_file_that_redis_cli_has_written_to_a_pipe_is_loaded() {
    let server = Server::start(&[]);
    let mut client = server.client();
    let good = fs::read(fixture("redis-7.0.rdb")).expect("the fixture");
    let file = server.dir().join("piped.rdb");
    let mark = b"3399c506234815788d879aca750eb64e226cf767";
    fs::write(&file, [&good[..], mark].concat()).expect("written");
    let said = import(&server, &file, &[]);
    assert!(said.starts_with("16 keys") && said.contains("redis-cli's mark of the end"), "{said}");
    for behind in [
        &mark[..39],
        &[mark, &b"0"[..]].concat(),
        &[b'x'; 40],
        b"\n",
        mark.to_ascii_uppercase().as_slice(),
    ] {
        ask(&mut client, "FLUSHALL");
        fs::write(&file, [&good[..], behind].concat()).expect("written");
        let (said, error) = refused(&server, &file, &[]);
        assert!(
            error.contains("something is behind the end") && said.starts_with("16 keys"),
            "{error}"
        );
    }
}

#[test]
fn an_append_only_directory_is_replayed() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    let check = |client: &mut Connection| {
        for (command, expected) in [
            ("GET before", "1"),
            ("LRANGE list 0 -1", "(b c)"),
            // Two keys have expired since the file was written; `kept` was made persistent before.
            ("EXISTS counter later", "0"),
            ("GET kept", "1"),
            ("PTTL kept", "-1"),
            ("DBSIZE", "3"),
            ("SELECT 3", "OK"),
            ("MGET x y", "(1 2)"),
            ("SELECT 0", "OK"),
        ] {
            assert_eq!(ask(client, command), expected, "{command}");
        }
    };
    import(&server, &fixture("appendonlydir"), &[]);
    check(&mut client);
    let (_, error) = refused(&server, &fixture("appendonlydir"), &[]);
    assert!(error.contains("the server holds keys"), "{error}");

    // The last file cut in every way within its last commands.
    let directory = server.dir().join("cut");
    fs::create_dir(&directory).expect("made");
    for entry in fs::read_dir(fixture("appendonlydir")).expect("the fixture").flatten() {
        fs::copy(entry.path(), directory.join(entry.file_name())).expect("copied");
    }
    let incr = directory.join("appendonly.aof.2.incr.aof");
    let whole = fs::read(&incr).expect("the file");
    let text = String::from_utf8_lossy(&whole).into_owned();
    let exec = text.find("EXEC").expect("a transaction");
    fs::write(&incr, &whole[..exec + 2]).expect("written");
    ask(&mut client, "FLUSHALL");
    let said = import(&server, &directory, &[]);
    assert!(said.contains("the file is cut"), "{said}");
    ask(&mut client, "SELECT 3");
    assert_eq!(ask(&mut client, "MGET x y"), "(nil nil)", "the transaction is not whole");
    ask(&mut client, "SELECT 0");
    assert_eq!(ask(&mut client, "LRANGE list 0 -1"), "(b c)");
}

/// Returns an append-only file with some commands.
fn append_only(commands: &[&[&[u8]]]) -> Vec<u8> {
    let mut file = Vec::new();
    for command in commands {
        file.extend(format!("*{}\r\n", command.len()).bytes());
        for word in *command {
            file.extend(format!("${}\r\n", word.len()).bytes());
            file.extend([*word, b"\r\n"].concat());
        }
    }
    file
}

#[test]
fn keys_of_an_append_only_file_end_with_the_expiry_that_they_had() {
    /// A time of the year 2999.
    const FAR: &[u8] = b"32500000000000";
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    let far = String::from_utf8_lossy(FAR).into_owned();
    ask(&mut client, &format!("SET there 1 PXAT {far}"));
    ask(&mut client, "SET five 5");
    let payload: Vec<u8> = redis::cmd("DUMP").arg("five").query(&mut client).expect("a payload");
    let file = server.dir().join("some.aof");
    let commands: [&[&[u8]]; 10] = [
        &[b"SET", b"far", b"1"],
        &[b"PEXPIREAT", b"far", FAR],
        &[b"SET", b"counter", b"1"],
        &[b"PEXPIREAT", b"counter", b"1000", b"NX"],
        &[b"PEXPIREAT", b"counter", FAR, b"GT"],
        &[b"INCR", b"counter"],
        &[b"RESTORE-ASKING", b"restored", b"1000", &payload, b"ABSTTL"],
        &[b"INCR", b"restored"],
        &[b"PERSIST", b"restored"],
        &[b"SET", b"gone", b"1", b"PXAT", b"1000"],
    ];
    fs::write(&file, append_only(&commands)).expect("written");
    import(&server, &file, &["--replace"]);
    for (command, expected) in [
        ("PEXPIRETIME there", &*far),
        ("PEXPIRETIME far", &far),
        ("PEXPIRETIME counter", &far),
        ("GET counter", "2"),
        ("GET restored", "6"),
        ("PTTL restored", "-1"),
        ("EXISTS gone", "0"),
    ] {
        assert_eq!(ask(&mut client, command), expected, "{command}");
    }
}

#[test]
fn an_export_of_a_server_of_a_cluster_shows_its_slots_and_fails_if_these_change() {
    let cluster = Cluster::with_lease(Duration::from_secs(3));
    let servers = cluster.servers(2);
    let mut client = client(&servers.iter().collect::<Vec<_>>());
    for n in 0..200 {
        let () = client.set(format!("key:{n}"), n).expect("stored");
    }
    let file = cluster.bucket.path().join("dump.rdb");
    let output = run(&servers[0], "export", &file, &[]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("the server has the slots "), "{said}");
    let own = asked(&servers[0], ["CLUSTER", "NODES"]);
    let own = own.lines().find(|line| line.contains("myself")).expect("its line").to_owned();
    let ranges: Vec<&str> = own.split(' ').skip(8).collect();
    assert!(said.contains(&ranges.join(" ")), "{said}: {own}");
    fs::remove_file(&file).expect("removed");

    // A shard leaves before the first keys are asked for.
    let shard = shards_of(&cluster.map(), &asked(&servers[0], ["CLUSTER", "MYID"]))[0].to_string();
    let (store, to) = (cluster.store(), format!("127.0.0.1:{}", servers[1].port()));
    let way = way_to(servers[0].port(), move || {
        let (shard, store, to) = (shard.clone(), store.clone(), to.clone());
        let mut has_moved = false;
        Box::new(move |passing| {
            if let Passing::Request(bytes) = passing
                && place(b"SCAN", bytes).is_some()
                && !std::mem::replace(&mut has_moved, true)
            {
                done(&["cluster", "move", &shard, "--to", &to, "--store", &store]);
            }
            true
        })
    });
    let output = Command::new(env!("CARGO_BIN_EXE_flagstone"))
        .args(["export", &file.display().to_string(), "-p", &way.to_string()])
        .output()
        .expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("has left it"), "{said}");
    let left = fs::read_dir(cluster.bucket.path()).expect("listed").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).filter(|name| name != "data").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_export_pairs_each_value_with_its_own_expiry() {
    const KEYS: u32 = 2000;
    let server = Server::start(&["--workers", "2", "--shards", "2", "--appendfsync", "no"]);
    let write = |client: &mut Connection, expires: bool| {
        let mut pipe = redis::pipe();
        for n in 0..KEYS {
            let set = pipe.cmd("SET").arg(n);
            match expires {
                true => set.arg("expires").arg("PXAT").arg(4_000_000_000_000_u64),
                false => set.arg("stays"),
            };
        }
        pipe.query::<Vec<Value>>(client).expect("written");
    };
    write(&mut server.client(), true);
    let stop = AtomicBool::new(false);
    let exported = server.dir().join("exported.rdb");
    let other = Server::start(&[]);
    let mut there = other.client();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client();
            while !stop.load(Ordering::Relaxed) {
                write(&mut client, false);
                write(&mut client, true);
            }
        });
        let done = StopAtEnd(&stop);
        for _ in 0..5 {
            assert!(run(&server, "export", &exported, &[]).status.success());
            import(&other, &exported, &["--replace"]);
            for n in 0..KEYS {
                let pair = ask(&mut there, &format!("GET {n}"))
                    + &ask(&mut there, &format!("PEXPIRETIME {n}"));
                assert!(["expires4000000000000", "stays-1"].contains(&&*pair), "{n}: {pair}");
            }
        }
        drop(done);
    });
}

#[test]
fn a_value_larger_than_the_memory_budget_is_exported() {
    let options = "--workers 1 --shards 1 --memory-budget 32mb --handover-interval-ms 50";
    let server = Server::start(&options.split(' ').collect::<Vec<_>>());
    let mut client = server.client();
    for _ in 0..48 {
        let mut push = redis::cmd("RPUSH");
        push.arg("list").arg(vec![vec![b'e'; 48 << 10]; 22]).exec(&mut client).expect("stored");
    }
    ask(&mut client, "PEXPIREAT list 4000000000123");
    ask(&mut client, "SET small 1");
    let exported = server.dir().join("exported.rdb");
    // No more rights than these, and that to read the keys.
    let user = "reader on >secret ~* +info +select +scan +dump +pexpiretime +function|dump \
        +client|setname";
    assert_eq!(ask(&mut client, &format!("ACL SETUSER {user}")), "OK");
    let output = run(&server, "export", &exported, &["--user", "reader", "-a", "secret"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with("2 keys written"), "{said}{output:?}");
    let other = Server::start(&[]);
    import(&other, &exported, &[]);
    let mut there = other.client();
    assert_eq!(ask(&mut there, "LLEN list"), (48 * 22).to_string());
    assert_eq!(ask(&mut there, "PEXPIRETIME list"), "4000000000123");
    assert_eq!(ask(&mut there, "GET small"), "1");
}

/// Ends the writers of a test, also if it fails.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_export_replaces_files_only() {
    let server = Server::start(&[]);
    let (directory, link) = (server.dir().join("directory"), server.dir().join("link"));
    fs::create_dir(&directory).expect("made");
    for (place, text) in [
        (Path::new("-"), "name a file"),
        (&directory, "is no regular file"),
        (Path::new("/dev/full"), "is no regular file"),
    ] {
        let output = run(&server, "export", place, &[]);
        assert_eq!(output.status.code(), Some(1), "{}", place.display());
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains(text), "{told}");
    }
    assert!(directory.is_dir() && !Path::new("/dev/full").is_file());
    // The file behind a link.
    let file = directory.join("file");
    fs::write(&file, "x").expect("written");
    std::os::unix::fs::symlink(&file, &link).expect("linked");
    assert!(run(&server, "export", &link, &[]).status.success());
    assert!(link.is_symlink());
    assert!(fs::read(&file).expect("it is there").starts_with(b"REDIS"));
}

#[test]
fn large_values_are_sent_in_pieces_and_are_the_same() {
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    let mut pipe = redis::pipe();
    pipe.cmd("SET").arg("string").arg("abcdefghijklmnop".repeat(200_000)).ignore();
    pipe.cmd("SET").arg("random").arg(noise(0, 3_000_000)).ignore();
    for n in 0..6000u32 {
        let text = noise(n, 250 + n as usize % 100);
        pipe.cmd("RPUSH").arg("list").arg(&text).ignore();
        pipe.cmd("SADD").arg("set").arg(&text).ignore();
        pipe.cmd("ZADD").arg("zset").arg(f64::from(n) / 7.0).arg(&text).ignore();
        pipe.cmd("HSET").arg("hash").arg(n).arg(noise(n, 300)).ignore();
        pipe.cmd("XADD").arg("stream").arg(format!("{}-1", n + 1)).arg("text").arg(noise(n, 900));
    }
    pipe.cmd("HPEXPIREAT").arg("hash").arg(4_000_000_000_123u64).arg("FIELDS").arg(1).arg(7);
    pipe.cmd("PEXPIREAT").arg("list").arg(4_000_000_000_456u64).ignore();
    let () = pipe.query(&mut client).expect("stored");
    for command in [
        "XGROUP CREATE stream group 0",
        "XREADGROUP GROUP group alice COUNT 3000 STREAMS stream >",
        "XGROUP CREATECONSUMER stream group bob",
        "XDEL stream 500-1 6000-1",
    ] {
        ask(&mut client, command);
    }
    let exported = server.dir().join("exported.rdb");
    assert!(run(&server, "export", &exported, &[]).status.success());

    let other = Server::start(&["--workers", "1", "--shards", "1"]);
    let mut there = other.client();
    let said = import(&other, &exported, &[]);
    let left_out = "1 pending entries of streams left out since the entries are deleted";
    assert_eq!(said.trim(), format!("7 keys loaded, {left_out}"));
    for command in [
        "GET string",
        "GET random",
        "LRANGE list 0 -1",
        "ZRANGE zset 0 -1 WITHSCORES",
        "SORT set ALPHA",
        "HLEN hash",
        "HPEXPIRETIME hash FIELDS 2 7 8",
        "PEXPIRETIME list",
        "XRANGE stream - +",
        "XPENDING stream group 501-1 + 5000 alice",
    ] {
        let (here, there) = (ask(&mut client, command), ask(&mut there, command));
        // The time since the delivery goes on.
        let here = if command.starts_with("XPENDING") { without_idle(&here) } else { here };
        let there = if command.starts_with("XPENDING") { without_idle(&there) } else { there };
        assert!(here == there, "{command}: {} and {} bytes", here.len(), there.len());
    }
    for part in ["last-generated-id 6000-1", "max-deleted-entry-id 6000-1", "entries-added 6000"] {
        let info = ask(&mut there, "XINFO STREAM stream FULL COUNT 1");
        assert!(info.contains(part), "{part}: {info}");
    }
    // A value that is damaged behind its first pieces leaves nothing.
    let file = fs::read(&exported).expect("the file");
    let at = file.windows(7).position(|w| w == b"\x06random").expect("the key") + 2_000_000;
    let cut = server.dir().join("cut.rdb");
    fs::write(&cut, &file[..at]).expect("written");
    ask(&mut there, "FLUSHALL");
    let (_, error) = refused(&other, &cut, &[]);
    assert!(error.contains("in key \"random\""), "{error}");
    assert_eq!(ask(&mut there, "EXISTS random"), "0");
}

/// Bytes that do not get shorter by compression.
fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(u64::from(seed) + 1);
    let byte = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(byte).collect()
}

/// Returns the entries of XPENDING without the times since their delivery.
fn without_idle(pending: &str) -> String {
    let words: Vec<&str> = pending.split(' ').collect();
    let kept = words.chunks(4).flat_map(|entry| entry.iter().take(2).chain(entry.get(3)));
    kept.copied().collect::<Vec<_>>().join(" ")
}

#[test]
fn only_the_names_of_subcommands_are_taken() {
    let program = || Command::new(env!("CARGO_BIN_EXE_flagstone"));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let help = program().arg("--help").output().expect("the binary runs");
    let help = text(help.stdout);
    for part in ["flagstone COMMAND", "--port 6379", "   import ", "   export "] {
        assert!(help.contains(part), "{part}: {help}");
    }
    let help = program().args(["import", "--help"]).output().expect("the binary runs");
    assert!(help.status.success());
    assert!(text(help.stdout).contains("--replace"));
    let refused = program().args(["import", "--nonsense"]).output().expect("the binary runs");
    assert_eq!(refused.status.code(), Some(2));
    // Anything else is a file of the server's.
    let refused = program().arg("./import").output().expect("the binary runs");
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(refused.stderr).contains("can't open config file"));
}
