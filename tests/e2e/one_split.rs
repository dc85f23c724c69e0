//! Shards of a single server that are split while clients use them.

use super::Server;
use super::checkpoints::{done, run};
use super::servers::until;
use redis::{Commands, Connection, RedisResult, cmd};
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

const OPTIONS: &[&str] = &["--workers", "2", "--shards", "2", "--handover-interval-ms", "100"];

pub(crate) const KEYS: usize = 300;

fn data(server: &Server) -> PathBuf {
    server.dir().join("data")
}

fn name(n: usize) -> String {
    format!("key:{n}")
}

pub(crate) fn split(client: &mut Connection, words: &[&str]) -> RedisResult<u16> {
    cmd("FLAGSTONE").arg("SPLIT").arg(words).query(client)
}

/// Returns the slots of each shard, by INFO.
pub(crate) fn slots(client: &mut Connection) -> Vec<String> {
    let info: String = cmd("INFO").arg("shards").query(client).expect("answered");
    let slots = info.lines().filter_map(|line| line.split(",slots=").nth(1)?.split(',').next());
    slots.map(str::to_owned).collect()
}

/// Asserts that all keys are there once, whichever way they are counted, each with this value.
pub(crate) fn check(client: &mut Connection, value: usize) {
    assert_eq!(cmd("DBSIZE").query::<usize>(client).expect("a number"), KEYS);
    let names: Vec<String> = (0..KEYS).map(name).collect();
    let values: Vec<usize> = client.mget(&names).expect("values");
    assert!(values.iter().all(|found| *found == value), "not {value}: {values:?}");
    let all: Vec<String> = client.keys("*").expect("keys");
    assert_eq!(all.len(), KEYS);
    let scanned: Vec<String> =
        client.scan().expect("keys").map(|key| key.expect("a key")).collect();
    assert_eq!(scanned.len(), KEYS, "no key is seen twice");
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), names.into_iter().collect());
}

/// Looks at the whole keyspace until it is told to stop.
pub(crate) fn look(server: &Server, ended: &AtomicBool) {
    let mut client = server.client();
    while !ended.load(Ordering::Relaxed) {
        assert_eq!(cmd("DBSIZE").query::<usize>(&mut client).expect("a number"), KEYS);
        let keys: Vec<String> = client.keys("*").expect("keys");
        assert_eq!(keys.len(), KEYS, "none is missing, and none is there twice");
        let number = keys.into_iter().collect::<BTreeSet<_>>().len();
        assert_eq!(number, KEYS);
    }
}

/// Counts all keys up until it is told to stop; returns how often.
pub(crate) fn count(server: &Server, ended: &AtomicBool) -> usize {
    let (mut client, mut round) = (server.client(), 1);
    while !ended.load(Ordering::Relaxed) {
        round += 1;
        for n in 0..KEYS {
            let number: usize = client.incr(name(n), 1).expect("answered");
            assert_eq!(number, round, "{}", name(n));
        }
    }
    round
}

pub(crate) fn fill(client: &mut Connection) {
    let pairs: Vec<(String, usize)> = (0..KEYS).map(|n| (name(n), 1)).collect();
    let () = client.mset(&pairs).expect("stored");
}

#[test]
fn a_shard_is_split_while_it_is_written_read_and_counted() {
    let mut server = Server::start(OPTIONS);
    let mut client = server.client();
    fill(&mut client);
    let ended = AtomicBool::new(false);
    let mut rounds = 0;
    thread::scope(|scope| {
        let writer = scope.spawn(|| count(&server, &ended));
        scope.spawn(|| look(&server, &ended));
        for (shard, into) in [("0", 2), ("1", 3), ("2", 4), ("0", 5), ("3", 6)] {
            assert_eq!(split(&mut client, &[shard]), Ok(into));
            thread::sleep(Duration::from_millis(50));
        }
        ended.store(true, Ordering::Relaxed);
        rounds = writer.join().expect("it went on");
    });
    check(&mut client, rounds);
    let expected = ["0-2047", "8192-12287", "4096-6143", "12288-14335", "6144-8191", "2048-4095"];
    assert_eq!(slots(&mut client)[..6], expected);
    server.kill();
    server.restart();
    check(&mut server.client(), rounds);
    assert_eq!(split(&mut server.client(), &["6", "16000"]), Ok(7));
    check(&mut server.client(), rounds);
    server.stop();
    // As many as there are now, and as there were at first.
    for shards in ["8", "2"] {
        server.restart_with(&["--workers", "3", "--shards", shards]);
        check(&mut server.client(), rounds);
        server.stop();
    }
    let refused = server.refused(&["--shards", "7"]);
    assert!(refused.contains("has 8 shards"), "{refused}");
    let dir = data(&server);
    let checked = done(&["check", "--dir", dir.to_str().expect("a path")]);
    assert!(checked.contains("8 shards"), "{checked}");
}

/// Each change stores a position in a stream, without a command that would wait for the split.
#[test]
fn a_shard_is_split_while_the_role_of_the_server_changes() {
    let mut server = Server::start(OPTIONS);
    let mut client = server.client();
    fill(&mut client);
    // Nobody is there.
    let primary = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = primary.local_addr().expect("an address").port().to_string();
    drop(primary);
    let (ended, mut splits) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client();
            for pause in (0..8).cycle() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                for (host, port) in [("127.0.0.1", &*port), ("NO", "ONE")] {
                    let () = cmd("REPLICAOF").arg(host).arg(port).query(&mut client).expect("done");
                }
                thread::sleep(Duration::from_millis(20 + 20 * pause));
            }
        });
        // The positions may keep it from being flushed in time.
        let deadline = Instant::now() + Duration::from_secs(120);
        while splits < 5 && Instant::now() < deadline {
            splits += usize::from(split(&mut client, &["0"]).is_ok());
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(splits, 5, "{}", server.log());
    check(&mut client, 1);
    server.kill();
    server.restart();
    check(&mut server.client(), 1);
}

#[test]
fn clients_that_wait_or_watch_notice_nothing_of_a_split() {
    let server = Server::start(OPTIONS);
    let (mut client, mut watching) = (server.client(), server.client());
    fill(&mut client);
    // Slots 12182 and 12539 of shard 1 become those of another one; that of "bar" stays.
    let queues = ["foo", "bar", "zap"];
    let () = cmd("WATCH").arg("other{foo}").query(&mut watching).expect("watched");
    let waiting: Vec<_> = queues
        .map(|queue| {
            let mut waiting = server.client();
            thread::spawn(move || waiting.blpop::<_, (String, String)>(queue, 0.0))
        })
        .into();
    until("all wait", || {
        let info: String = cmd("INFO").arg("clients").query(&mut client).expect("answered");
        info.contains("blocked_clients:3")
    });
    let () = client.pset_ex("{foo}soon", "x", 400).expect("stored");
    for shard in ["0", "1"] {
        split(&mut client, &[shard]).expect("split");
    }
    for queue in queues {
        let () = client.rpush(queue, "value").expect("pushed");
    }
    for (queue, waiting) in queues.iter().zip(waiting) {
        let popped = waiting.join().expect("it went on").expect("popped");
        assert_eq!(popped, ((*queue).to_owned(), "value".to_owned()));
    }
    let mut unit = redis::pipe();
    unit.atomic().set("other{foo}", "mine").ignore();
    let done: Option<()> = unit.query(&mut watching).expect("answered");
    assert!(done.is_some(), "nobody has changed the key");
    until("it expires", || !client.exists::<_, bool>("{foo}soon").expect("answered"));
    until("it is gone", || {
        cmd("DBSIZE").query::<usize>(&mut client).expect("a number") == KEYS + 1
    });
}

#[test]
fn a_split_that_is_cut_off_leaves_one_shard_or_two() {
    let mut server = Server::start(OPTIONS);
    let mut client = server.client();
    fill(&mut client);
    for round in 0..8 {
        let (ended, shard) = (AtomicBool::new(false), (round % 3).to_string());
        thread::scope(|scope| {
            let splitting = scope.spawn(|| split(&mut server.client(), &[&shard]));
            thread::sleep(Duration::from_millis(20 + 20 * round));
            server.kill_shared();
            // It may have been split before.
            let _ = splitting.join();
            ended.store(true, Ordering::Relaxed);
        });
        server.kill();
        server.restart();
        let mut client = server.client();
        check(&mut client, 1);
        let all = slots(&mut client).len();
        let homes = fs::read_dir(data(&server)).expect("a directory");
        let is_home = |name: &str| name.starts_with("shard-");
        let homes =
            homes.filter(|it| is_home(&it.as_ref().expect("a name").file_name().to_string_lossy()));
        assert_eq!(homes.count(), all, "nothing is left of a split that was cut off");
    }
    assert!(split(&mut server.client(), &["0"]).is_ok());
    check(&mut server.client(), 1);
}

/// Moves a directory's `flagstone.json` aside, for a copy of an earlier time.
fn put_back(dir: &Path, earlier: &[u8]) {
    fs::write(dir.join("flagstone.json"), earlier).expect("written");
}

#[test]
fn remains_of_a_split_are_removed_and_an_older_description_is_refused() {
    let mut server = Server::start(OPTIONS);
    fill(&mut server.client());
    let dir = data(&server);
    let earlier = fs::read(dir.join("flagstone.json")).expect("there");
    split(&mut server.client(), &["0"]).expect("split");
    server.stop();
    let newer = fs::read(dir.join("flagstone.json")).expect("there");
    put_back(&dir, &earlier);
    let refused = server.refused(OPTIONS);
    assert!(refused.contains("shard-2 is there, but flagstone.json has 2 shards"), "{refused}");
    let checked = run(&["check", "--dir", dir.to_str().expect("a path")]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(!checked.status.success() && said.contains("shard-2 is there"), "{said}");
    let refused = |server: &Server, text: &str| {
        let refused = split(&mut server.client(), &["0"]).unwrap_err().to_string();
        assert!(refused.contains(text), "{refused}");
    };
    // Nor without the directory: the other shard has not all of its rows any more.
    fs::rename(dir.join("shard-2"), dir.join("away")).expect("moved");
    let refused_too = server.refused(OPTIONS);
    assert!(
        refused_too.contains("shard-0 was split, and has the slots 0 to 4095 only"),
        "{refused_too}"
    );
    fs::rename(dir.join("away"), dir.join("shard-2")).expect("moved");
    let mark = dir.join("shard-2/unfinished");
    fs::write(&mark, "").expect("marked");
    put_back(&dir, &newer);
    // Neither a new directory that has no name yet, nor one that was being removed.
    let nameless = dir.join("splitting");
    fs::create_dir_all(nameless.join("db")).expect("made");
    server.restart();
    check(&mut server.client(), 1);
    assert!(!mark.exists(), "a kill may come right behind the split");
    assert!(!nameless.exists());
    let other = dir.join("shard-3");
    fs::create_dir_all(other.join("db")).expect("made");
    refused(&server, "shard-3 is there, but flagstone.json does not name it");
    assert!(other.join("db").exists(), "it is somebody else's");
    check(&mut server.client(), 1);
    fs::write(other.join("unfinished"), "").expect("marked");
    assert_eq!(split(&mut server.client(), &["2"]), Ok(3));
    check(&mut server.client(), 1);
}

#[test]
fn a_server_that_ends_does_not_wait_for_a_split() {
    let mut server = Server::start(OPTIONS);
    for round in 0..4 {
        fill(&mut server.client());
        let mut client = server.client();
        thread::scope(|scope| {
            let splitting = scope.spawn(move || split(&mut client, &["0"]));
            thread::sleep(Duration::from_millis(15 * round));
            server.stop();
            // It may have been split before.
            let _ = splitting.join();
        });
        assert!(!server.log().contains("did not end in time"), "{}", server.log());
        server.restart();
        check(&mut server.client(), 1);
    }
}

#[test]
fn data_of_shards_that_were_split_becomes_a_clusters() {
    let mut server = Server::start(OPTIONS);
    fill(&mut server.client());
    for shard in ["0", "1", "2"] {
        split(&mut server.client(), &[shard]).expect("split");
    }
    server.stop();
    let root = server.dir().display();
    let (dir, to) = (format!("{root}/data"), format!("{root}/backups"));
    let store = format!("bucket+file://{root}/bucket");
    done(&["backup", "--dir", &dir, "--to", &to, "--stopped"]);
    done(&["restore", "--from", &to, "--to", &store]);
    let mut single = Server::start(&["--store", &store]);
    for n in 0..3 {
        let _: usize = single.client().incr(format!("{{key:{n}}}later"), 1).expect("stored");
    }
    single.kill();
    let said = done(&["cluster", "convert", "--store", &store]);
    assert!(said.contains(&format!("{} keys, 5 shards", KEYS + 3)), "{said}");
    let map = done(&["cluster", "status", "--store", &store]);
    assert!(map.contains("2      4096-6143"), "{map}");
}

#[test]
fn checkpoints_backups_and_moments_are_restored_from_before_and_behind_a_split() {
    let kept = ["--journal-archive-retention", "3600", "--checkpoint-keep", "9"];
    let mut server = Server::start(&[OPTIONS, &kept].concat());
    let mut client = server.client();
    fill(&mut client);
    let dir = data(&server).to_str().expect("a path").to_owned();
    let at = |name: &str| format!("{dir}-{name}");
    let port = server.port().to_string();
    let (to, port) = (at("backups"), &*port);
    let backup = ["backup", "--dir", &dir, "--to", &to, "--port", port];
    done(&backup);
    split(&mut client, &["0"]).expect("split");
    let _: usize = client.incr("{foo}later", 1).expect("stored");
    let _: usize = client.incr("{key:7}later", 1).expect("stored");
    let _: usize = client.incr("{key:8}later", 1).expect("stored");
    let info: String = cmd("INFO").arg("durability").query(&mut client).expect("answered");
    let lsn = info.lines().find_map(|line| line.strip_prefix("durable_lsn:")).expect("an lsn");
    let behind = format!("lsn:{lsn}");
    let _: usize = client.incr("{foo}last", 1).expect("stored");
    done(&backup);
    let () = cmd("FLUSHALL").query(&mut client).expect("flushed");
    server.stop();
    let listed = done(&["checkpoints", "--from", &to]);
    let first = listed.split_whitespace().next().expect("an id");
    // The newest backup; the moment before it, from the checkpoint before the split; and the first backup.
    let wanted: [(&str, &[&str], usize); 3] = [
        ("newest", &["--from", &to], KEYS + 4),
        ("moment", &["--from", &dir, "--as-of", &behind], KEYS + 3),
        ("first", &["--from", &to, "--backup", first], KEYS),
    ];
    for (name, from, keys) in wanted {
        let path = at(name);
        done(&[&["restore"], from, &["--dir", &path]].concat());
        let mut restored = Server::start(&["--dir", &path]);
        let found: usize = cmd("DBSIZE").query(&mut restored.client()).expect("a number");
        assert_eq!(found, keys, "{name}");
        restored.stop();
        done(&["check", "--dir", &path]);
        fs::remove_dir_all(&path).expect("removed");
    }
    fs::remove_dir_all(&to).expect("removed");
}
