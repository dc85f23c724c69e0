//! Files that are damaged, gone, or cannot be written: everything ends in time, and says why.

use super::Server;
use super::replica::{EMPTY, Primary, info};
use redis::{Commands, Connection, RedisResult};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long any step may take on a busy machine. A step that hangs takes for ever.
const PATIENCE: Duration = Duration::from_secs(40);

const OPTIONS: [&str; 6] = ["--workers", "2", "--shards", "2", "--handover-interval-ms", "50"];

/// A key of each of two shards: the halves of the slots.
const OF_SHARD: [&str; 2] = ["{b}", "{a}"];

fn key(shard: usize, n: usize) -> String {
    format!("{}{n}", OF_SHARD[shard])
}

fn client(server: &Server) -> Connection {
    let client = server.client();
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    client
}

/// The biggest file with rows.
fn biggest(data: &Path) -> PathBuf {
    let files = ["shard-0", "shard-1"].iter().flat_map(|shard| {
        fs::read_dir(data.join(shard).join("db/compacted")).into_iter().flatten()
    });
    let files = files.map(|entry| entry.expect("an entry"));
    let biggest = files.max_by_key(|file| file.metadata().map_or(0, |metadata| metadata.len()));
    biggest.expect("a file").path()
}

fn cut(file: &Path, bytes: u64) {
    let opened = fs::File::options().write(true).open(file).expect("opened");
    opened.set_len(bytes).expect("cut");
}

#[test]
fn a_file_that_is_cut_short_or_gone_ends_starts_and_subcommands_with_its_name() {
    let mut server = Server::start(&OPTIONS);
    let mut pipe = redis::pipe();
    for n in 0..4000 {
        pipe.set(key(n % 2, n), "v".repeat(100)).ignore();
    }
    let () = pipe.query(&mut server.client()).expect("stored");
    server.stop();
    let data = server.dir().join("data");
    let file = biggest(&data);
    let name = file.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let whole = fs::read(&file).expect("read");
    let dir = data.to_str().expect("a path");
    for damage in ["half", "gone"] {
        match damage {
            "half" => cut(&file, whole.len() as u64 / 2),
            _ => fs::remove_file(&file).expect("removed"),
        }
        let to = server.dir().join("other");
        let to = to.to_str().expect("a path");
        for command in [
            &[][..],
            &["check", "--dir", dir],
            &["backup", "--dir", dir, "--to", to],
            &["branch", "--dir", dir, "--to", to],
            &["reshard", "--dir", dir, "--shards", "3"],
        ] {
            let text = server.fails_in_time(command, PATIENCE);
            assert!(text.contains(&name), "{damage}, {command:?}: {text}");
        }
        fs::write(&file, &whole).expect("written");
    }
    server.restart();
    let () = server.client().set(key(0, 0), "new").expect("stored");
    server.stop();
}

#[test]
fn a_file_that_is_cut_short_under_a_server_ends_commands_with_its_name() {
    let mut server = Server::start(&OPTIONS);
    let mut pipe = redis::pipe();
    for n in 0..20_000 {
        pipe.set(key(n % 2, n), "v".repeat(100)).ignore();
    }
    let () = pipe.query(&mut server.client()).expect("stored");
    server.stop();
    server.restart();
    let mut client = client(&server);
    let file = biggest(&server.dir().join("data"));
    let name = file.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    cut(&file, 0);
    let mut errors = Vec::new();
    let mut run = |command: redis::Cmd| {
        let done: RedisResult<redis::Value> = command.query(&mut client);
        if let Err(error) = done {
            let text = error.to_string();
            assert!(text.contains("the data could not be read"), "{text}");
            errors.push(text);
        }
    };
    for n in (0..20_000).step_by(1000) {
        run(redis::cmd("GET").arg(key(0, n)).clone());
        run(redis::cmd("GET").arg(key(1, n + 1)).clone());
        run(redis::cmd("SET").arg(key(0, n + 2)).arg("x").clone());
        run(redis::cmd("SET").arg(key(1, n + 3)).arg("x").clone());
    }
    run(redis::cmd("SCAN").arg(0).arg("COUNT").arg(30_000).clone());
    run(redis::cmd("DBSIZE"));
    run(redis::cmd("FLUSHDB"));
    run(redis::cmd("SET").arg(key(0, 1)).arg("x").clone());
    run(redis::cmd("SET").arg(key(1, 1)).arg("x").clone());
    assert!(errors.iter().any(|text| text.contains(&name)), "{errors:?}");
}

/// A batch of a primary that flushes a database runs on a thread of its own, and reads values in parts.
#[test]
fn a_replica_leaves_no_command_of_its_primary_out_while_data_cannot_be_read() {
    const FIELDS: usize = 20_000;
    let primary = Primary::serve(EMPTY);
    let from = format!("127.0.0.1 {}", primary.port);
    let mut server = Server::start(&[&OPTIONS[..], &["--replicaof", &from]].concat());
    let (hash, number) = (key(0, 0), key(0, 1));
    primary.say(&["SELECT 0", &format!("SET {number} 10")]);
    for first in (0..FIELDS).step_by(500) {
        let pairs: Vec<String> = (first..first + 500).map(|n| format!("f{n} {n}")).collect();
        primary.say(&[&format!("HSET {hash} {}", pairs.join(" "))]);
    }
    primary.wait();
    server.stop();
    server.restart();
    let mut client = client(&server);
    wait_for("the link is up", || info(&mut client).contains("master_link_status:up"));
    // Both keys come into memory, without the fields.
    assert_eq!(client.hlen::<_, usize>(&hash).expect("a size"), FIELDS);
    assert_eq!(client.get::<_, u64>(&number).expect("a number"), 10);
    let files = fs::read_dir(server.dir().join("data/shard-0/db/compacted")).expect("listed");
    let files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    let whole: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).expect("read")).collect();
    files.iter().for_each(|file| cut(file, 0));
    primary.say(&["MULTI", &format!("INCR {number}"), "SELECT 5", "FLUSHDB", "SELECT 0"]);
    primary.say(&[&format!("HINCRBY {hash} f7777 1"), "EXEC"]);
    wait_for("the link ends", || info(&mut client).contains("master_link_status:down"));
    for (file, bytes) in files.iter().zip(&whole) {
        // The server has the file open.
        let mut open = fs::File::options().write(true).open(file).expect("opened");
        std::io::Write::write_all(&mut open, bytes).expect("written");
    }
    primary.wait();
    assert_eq!(client.hget::<_, _, u64>(&hash, "f7777").expect("a number"), 7778);
    assert_eq!(client.get::<_, u64>(&number).expect("a number"), 11);
    assert!(!server.log().contains("has failed here"), "{}", server.log());
}

fn stalled_shards(client: &mut Connection) -> String {
    let info: String = redis::cmd("INFO").arg("flagstone").query(client).expect("an answer");
    let found = info.lines().find_map(|line| line.strip_prefix("stalled_shards:"));
    found.expect("the field").trim().to_owned()
}

/// Until it holds, within reason.
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_shard_that_cannot_be_written_is_refused_writes_and_the_others_are_not() {
    let mut server = Server::start(&OPTIONS);
    let mut client = client(&server);
    let value = vec![b'v'; 200_000];
    let () = client.set(key(0, 0), "first").expect("stored");
    let () = client.set(key(1, 0), "first").expect("stored");
    // Where its files are to be there is no directory any more.
    let files = server.dir().join("data/shard-0/db/compacted");
    let away = files.with_file_name("away");
    fs::create_dir_all(&files).expect("there");
    fs::rename(&files, &away).expect("moved");
    fs::write(&files, "").expect("written");
    let mut stored = 0;
    let refused = loop {
        stored += 1;
        match client.set::<_, _, ()>(key(0, stored), &value) {
            Ok(()) => assert!(stored < 2000, "nothing is refused"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(refused.contains("Shard 0 cannot store rows"), "{refused}");
    assert!(refused.contains("compacted"), "{refused}");
    assert_eq!(stalled_shards(&mut client), "0");
    for n in 1..100 {
        let () = client.set(key(1, n), &value).expect("the other shard goes on");
    }
    let found: String = client.get(key(0, 0)).expect("it is read");
    assert_eq!(found, "first");
    let script = redis::Script::new("return redis.call('set', ARGV[1], 'x')");
    script.arg(key(0, 0)).invoke::<()>(&mut client).expect_err("no write of a script");
    let mut both = redis::pipe();
    both.atomic().set(key(1, 0), "x").set(key(0, 0), "x");
    both.query::<()>(&mut client).expect_err("nor of a transaction");
    let found: String = client.get(key(1, 0)).expect("an answer");
    assert_eq!(found, "first");
    // SAVE does not wait for a hand-over that the disk does not take.
    let began = Instant::now();
    redis::cmd("SAVE").query::<()>(&mut client).expect_err("no checkpoint");
    assert!(began.elapsed() < Duration::from_secs(25), "after {:?}", began.elapsed());

    fs::remove_file(&files).expect("removed");
    fs::rename(&away, &files).expect("moved");
    wait_for("writes are taken", || client.set::<_, _, ()>(key(0, 0), "last").is_ok());
    wait_for("it is well", || stalled_shards(&mut client).is_empty());
    let keys = stored + 100;
    assert_eq!(redis::cmd("DBSIZE").query::<usize>(&mut client).expect("an answer"), keys);
    drop(client);
    server.stop();
    server.restart();
    let mut client = server.client();
    assert_eq!(redis::cmd("DBSIZE").query::<usize>(&mut client).expect("an answer"), keys);
    assert_eq!(client.get::<_, String>(key(0, 0)).expect("an answer"), "last");
    assert_eq!(client.strlen::<_, usize>(key(0, stored - 1)).expect("an answer"), value.len());
}

#[test]
fn an_engine_that_has_closed_itself_is_opened_again_while_the_server_runs() {
    let mut server = Server::start(&OPTIONS);
    let mut client = client(&server);
    for n in 0..200 {
        let () = client.set(key(n % 2, n), "old").expect("stored");
    }
    // A manifest that SlateDB does not understand, behind the newest.
    let manifests = server.dir().join("data/shard-0/db/manifest");
    let listed = fs::read_dir(&manifests).expect("listed").map(|file| file.expect("a file"));
    let newest = listed.map(|file| file.file_name()).max().expect("a manifest");
    let number: u64 = newest.to_str().and_then(|name| name[..20].parse().ok()).expect("a number");
    let bad = manifests.join(format!("{:020}.manifest", number + 1));
    fs::write(&bad, "garbage").expect("written");
    wait_for("it is noticed", || stalled_shards(&mut client) == "0");
    for n in 0..200 {
        let () = client.set(key(n % 2, n), "new").expect("stored");
        if n % 4 < 2 {
            let () = client.set(key(n % 2, 1000 + n), "more").expect("stored");
        }
    }
    fs::remove_file(&bad).expect("removed");
    wait_for("it is open again", || stalled_shards(&mut client).is_empty());
    // The engine takes rows, and is read: big values are not kept in memory.
    for round in 0..2 {
        for n in 0..200 {
            assert_eq!(client.get::<_, String>(key(n % 2, n)).expect("an answer"), "new");
        }
        assert_eq!(redis::cmd("DBSIZE").query::<usize>(&mut client).expect("an answer"), 300);
        if round == 0 {
            drop(client);
            server.stop();
            server.restart();
            client = self::client(&server);
        }
    }
}

/// Starts a server whose rows are all in files, and returns the biggest one.
fn with_rows_in_files() -> (Server, PathBuf) {
    let mut server = Server::start(&OPTIONS);
    let mut pipe = redis::pipe();
    for n in 0..20_000 {
        pipe.set(key(n % 2, n), "v".repeat(100)).ignore();
    }
    let () = pipe.query(&mut server.client()).expect("stored");
    server.stop();
    server.restart();
    let file = biggest(&server.dir().join("data"));
    (server, file)
}

/// Writes to keys without a look at their rows, some of which cannot be read any more.
fn write_beside_lost_rows(client: &mut Connection) {
    let lost = (4000..8000).filter(|n| client.get::<_, String>(key(n % 2, *n)).is_err()).count();
    assert!(lost > 0, "no key of the part is among those");
    let mut pipe = redis::pipe();
    for n in 0..4000 {
        pipe.set(key(n % 2, n), n).ignore();
    }
    let () = pipe.query(client).expect("stored without a look at what was there");
    assert_eq!(redis::cmd("DBSIZE").query::<usize>(client), Ok(20_000));
}

fn has_what_was_written(client: &mut Connection) {
    for n in 0..4000 {
        assert_eq!(client.get::<_, usize>(key(n % 2, n)), Ok(n));
    }
}

#[test]
fn a_damaged_block_does_not_keep_its_shard_from_storing_new_values() {
    let (mut server, file) = with_rows_in_files();
    let mut bytes = fs::read(&file).expect("read");
    let third = bytes.len() / 3;
    bytes[third..third + 100].fill(0);
    // The server has the file open.
    let mut open = fs::File::options().write(true).open(&file).expect("opened");
    std::io::Write::write_all(&mut open, &bytes).expect("damaged");
    write_beside_lost_rows(&mut client(&server));
    server.stop();
    server.restart();
    has_what_was_written(&mut server.client());
    server.stop();
}

/// The server has the file open while it is cut.
#[test]
fn a_file_that_is_cut_short_does_not_keep_its_shard_from_storing_new_values() {
    let (mut server, file) = with_rows_in_files();
    let whole = fs::read(&file).expect("read");
    cut(&file, whole.len() as u64 / 3);
    let mut client = client(&server);
    write_beside_lost_rows(&mut client);
    assert_eq!(stalled_shards(&mut client), "");
    server.stop();
    assert!(server.log().contains("replaced rows are damaged"), "{}", server.log());
    // A start refuses the cut file.
    fs::write(&file, &whole).expect("written");
    server.restart();
    let mut client = server.client();
    has_what_was_written(&mut client);
    assert_eq!(redis::cmd("DBSIZE").query::<usize>(&mut client), Ok(20_000));
    server.stop();
}

#[test]
fn a_start_whose_rows_find_no_room_ends_with_the_reason_and_the_next_one_has_all() {
    const KEYS: usize = 20_000;
    // Files of rows get larger than that, segments of the journal do not.
    const MOST: u64 = 1 << 20;
    let segment = MOST.to_string();
    let mut server = Server::start(
        &[
            &OPTIONS[..4],
            &[
                "--journal-segment-size",
                &segment,
                "--compression",
                "none",
                "--memory-budget",
                "1gb",
            ],
        ]
        .concat(),
    );
    for first in (0..KEYS).step_by(1000) {
        let mut pipe = redis::pipe();
        for n in first..first + 1000 {
            pipe.set(n, format!("{n:01000}")).ignore();
        }
        let () = pipe.query(&mut server.client()).expect("stored");
    }
    server.kill();
    // The journal has more rows than this budget keeps in memory.
    let small = ["--memory-budget", "32mb"];
    let text = server.fails_with_files_of(MOST, &small, PATIENCE * 2);
    assert!(text.contains("the start waits until rows can be written"), "{text}");
    assert!(text.contains("takes no rows: for 30 s") && text.contains("File too large"), "{text}");
    server.restart();
    let mut client = server.client();
    assert_eq!(redis::cmd("DBSIZE").query::<usize>(&mut client).expect("a number"), KEYS);
    for n in (0..KEYS).step_by(97) {
        assert_eq!(client.get::<_, String>(n), Ok(format!("{n:01000}")));
    }
    server.stop();
}
