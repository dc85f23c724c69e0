//! Shards of a single server in a bucket that are split while clients use them.

use super::Server;
use super::bucket::Bucket;
use super::checkpoints::{done, run};
use super::one_split::{KEYS, check, count, fill, look, slots, split};
use super::servers::until;
use redis::{Commands, RedisResult, cmd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

const OPTIONS: &[&str] = &["--workers", "2", "--shards", "2", "--handover-interval-ms", "100"];

/// A directory that is used like a bucket.
struct TestBucket(tempfile::TempDir);

impl TestBucket {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn url(&self) -> String {
        format!("bucket+file://{}", self.path("bucket"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("a path").to_owned()
    }

    fn start(&self) -> Server {
        Server::start(&[OPTIONS, &["--store", &self.url()]].concat())
    }

    /// Returns the number of shards that have a manifest.
    fn homes(&self) -> usize {
        let listed = fs::read_dir(self.path("bucket")).expect("a directory");
        let homes = listed.map(|entry| entry.expect("a name").path().join("db/manifest"));
        let is_whole = |name: &std::ffi::OsStr| !name.to_string_lossy().contains('#');
        let has_any = |home: &Path| {
            let files = fs::read_dir(home).into_iter().flatten();
            files.into_iter().any(|file| is_whole(&file.expect("a name").file_name()))
        };
        homes.filter(|home| has_any(home)).count()
    }
}

#[test]
fn a_shard_in_a_bucket_is_split_while_it_is_written_read_and_counted() {
    let bucket = TestBucket::new();
    let mut server = bucket.start();
    let mut client = server.client();
    fill(&mut client);
    let ended = AtomicBool::new(false);
    let mut rounds = 0;
    thread::scope(|scope| {
        let writer = scope.spawn(|| count(&server, &ended));
        scope.spawn(|| look(&server, &ended));
        for (shard, into) in [("0", 2), ("1", 3), ("0", 4)] {
            assert_eq!(split(&mut client, &[shard]), Ok(into));
            thread::sleep(Duration::from_millis(50));
        }
        // It reads files of the shard that it was split from.
        let refused = split(&mut client, &["3"]).unwrap_err().to_string();
        assert!(refused.contains("it still reads files of the shard"), "{refused}");
        ended.store(true, Ordering::Relaxed);
        rounds = writer.join().expect("it went on");
    });
    check(&mut client, rounds);
    let expected = ["0-2047", "8192-12287", "4096-8191", "12288-16383", "2048-4095"];
    assert_eq!(slots(&mut client), expected);
    server.kill();
    server.restart();
    check(&mut server.client(), rounds);
    // The newest copy of all that, in a local directory and in a bucket, without the server and with it.
    let (to, dir) = (bucket.path("backups"), bucket.path("restored"));
    let port = server.port().to_string();
    done(&["backup", "--dir", &bucket.url(), "--to", &to, "--port", &port]);
    let branch = format!("{}-branch", bucket.url());
    done(&["branch", "--dir", &bucket.url(), "--to", &branch, "--port", &port]);
    done(&["restore", "--from", &to, "--dir", &dir]);
    server.stop();
    done(&["check", "--dir", &bucket.url()]);
    for copy in [&dir, &branch] {
        done(&["check", "--dir", copy]);
        let mut other = Server::start(&["--store", copy, "--dir", &bucket.path("work")]);
        check(&mut other.client(), rounds);
        assert_eq!(slots(&mut other.client()), expected);
        other.stop();
    }
    let resharded = bucket.path("resharded");
    done(&["reshard", "--dir", &bucket.url(), "--to", &resharded, "--shards", "3"]);
    let mut other = Server::start(&["--dir", &resharded]);
    check(&mut other.client(), rounds);
    other.stop();
    server.restart_with(&["--store", &bucket.url(), "--workers", "3", "--shards", "5"]);
    check(&mut server.client(), rounds);
}

#[test]
fn a_split_in_a_bucket_that_is_cut_off_leaves_one_shard_or_two() {
    let bucket = TestBucket::new();
    let mut server = bucket.start();
    fill(&mut server.client());
    for round in 0..6 {
        let shard = (round % 2).to_string();
        thread::scope(|scope| {
            let splitting = scope.spawn(|| split(&mut server.client(), &[&shard]));
            thread::sleep(Duration::from_millis(15 + 35 * round));
            server.kill_shared();
            let _ = splitting.join();
        });
        server.kill();
        server.restart();
        let mut client = server.client();
        check(&mut client, 1);
        assert_eq!(bucket.homes(), slots(&mut client).len(), "nothing is left of a split");
    }
    assert!(split(&mut server.client(), &["0"]).is_ok());
    check(&mut server.client(), 1);
}

#[test]
fn another_server_takes_the_bucket_over_while_a_shard_is_split() {
    let bucket = TestBucket::new();
    let mut former = bucket.start();
    fill(&mut former.client());
    for round in 0..4 {
        let mut client = former.client();
        let splitting = thread::spawn(move || split(&mut client, &["0"]));
        thread::sleep(Duration::from_millis(40 * round));
        // It waits for the former one's lease.
        let later = bucket.start();
        let answer = splitting.join().expect("it went on");
        let mut client = later.client();
        check(&mut client, 1);
        let found = slots(&mut client).len();
        let split_again = split(&mut client, &["1"]);
        assert!(split_again.is_ok(), "after {answer:?}: {split_again:?}");
        check(&mut client, 1);
        assert_eq!(bucket.homes(), found + 1);
        former = later;
    }
    former.stop();
    done(&["check", "--dir", &bucket.url()]);
}

#[test]
fn split_data_in_a_bucket_becomes_a_clusters() {
    let bucket = TestBucket::new();
    let mut server = bucket.start();
    fill(&mut server.client());
    for shard in ["0", "1", "0"] {
        split(&mut server.client(), &[shard]).expect("split");
    }
    let _: usize = cmd("INCR").arg("{key:7}later").query(&mut server.client()).expect("stored");
    server.kill();
    let url = bucket.url();
    let said = done(&["cluster", "convert", "--store", &url]);
    assert!(said.contains(&format!("{} keys, 5 shards", KEYS + 1)), "{said}");
    let map = done(&["cluster", "status", "--store", &url]);
    assert!(map.contains("4096-8191") && map.contains("2048-4095"), "{map}");
    let refused = server.refused(&["--store", &url]);
    assert!(refused.contains("is the data of a cluster"), "{refused}");
    let cluster = ["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"];
    let mut server = Server::start(&[&["--store", &*url], &cluster[..]].concat());
    for _ in 0..2 {
        let keys: usize = cmd("DBSIZE").query(&mut server.client()).expect("a number");
        assert_eq!(keys, KEYS + 1);
        server.kill();
        server.restart();
    }
    let keys: Vec<String> = cmd("KEYS").arg("*").query(&mut server.client()).expect("keys");
    assert_eq!(keys.len(), KEYS + 1);
}

/// Commands wait for the bucket as long as they are told to; the split is called off, or the server ends.
#[test]
fn a_bucket_that_goes_away_in_a_split_holds_no_command_for_long() {
    const LIMIT: Duration = Duration::from_millis(3500);
    let bucket = Bucket::start();
    let limit = LIMIT.as_millis().to_string();
    let store = ["--store", "s3://bucket/data", "--store-timeout-ms", &limit];
    let mut server = Server::start_in(bucket.environment(), &[OPTIONS, &store].concat());
    fill(&mut server.client());
    for round in 0..3 {
        let into = format!("data/shard-{}-", slots(&mut server.client()).len());
        let mut waiting = server.client();
        thread::scope(|scope| {
            let splitting = scope.spawn(|| split(&mut server.client(), &["0"]));
            until("the new shard is made", || bucket.has(&into));
            thread::sleep(Duration::from_millis(3 * round));
            bucket.set_away(true);
            let begun = Instant::now();
            // An answer or an error, or the end of the server.
            let _: RedisResult<Option<usize>> = waiting.get("{foo}0");
            assert!(begun.elapsed() < 4 * LIMIT, "{:?}", begun.elapsed());
            bucket.set_away(false);
            let _ = splitting.join();
        });
        server.kill();
        server.restart();
        check(&mut server.client(), 1);
    }
    assert!(split(&mut server.client(), &["0"]).is_ok());
    check(&mut server.client(), 1);
}

/// Both the other shard's files and the list of them are found under the new path.
#[test]
fn a_bucket_whose_shards_were_split_may_be_moved_and_copied() {
    let bucket = TestBucket::new();
    let mut server = bucket.start();
    fill(&mut server.client());
    for shard in ["0", "1"] {
        split(&mut server.client(), &[shard]).expect("split");
    }
    server.stop();
    let (from, to) = (bucket.path("bucket"), bucket.path("deeper/copy"));
    copy_tree(Path::new(&from), Path::new(&to));
    let moved = bucket.path("moved");
    fs::rename(&from, &moved).expect("moved");
    for place in [to, moved] {
        let store = format!("bucket+file://{place}");
        let mut other = Server::start(&[OPTIONS, &["--store", &store]].concat());
        check(&mut other.client(), 1);
        other.kill();
        other.restart();
        check(&mut other.client(), 1);
        let log = other.log();
        assert!(!log.contains("nothing is kept"), "it is kept for the new shard: {log}");
        other.stop();
        done(&["check", "--dir", &store]);
    }
}

/// The files of the first shard are those of before the split: a start refuses them, and removes nothing.
#[test]
fn an_older_copy_of_the_first_shard_is_refused() {
    let bucket = TestBucket::new();
    let mut server = bucket.start();
    fill(&mut server.client());
    server.stop();
    let (first, copy) = (bucket.path("bucket/shard-0"), bucket.path("copy"));
    copy_tree(Path::new(&first), Path::new(&copy));
    server.restart();
    split(&mut server.client(), &["1"]).expect("split");
    server.stop();
    fs::rename(&first, bucket.path("newer")).expect("moved");
    copy_tree(Path::new(&copy), Path::new(&first));
    let refused = server.refused(&[]);
    assert!(refused.contains("shard 0 knows of 0"), "{refused}");
    let checked = run(&["check", "--dir", &bucket.url()]);
    assert!(!checked.status.success());
    assert_eq!(bucket.homes(), 3);
    fs::remove_dir_all(&first).expect("removed");
    fs::rename(bucket.path("newer"), &first).expect("moved");
    server.restart();
    check(&mut server.client(), 1);
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy_tree(&path, &target);
        } else {
            fs::copy(&path, &target).expect("copied");
        }
    }
}
