//! Checkpoints of a running server: one cut over all shards, whatever goes on meanwhile.

use super::Server;
use redis::Commands;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ACCOUNTS: u64 = 24;
const EACH: i64 = 1000;

const OPTIONS: &[&str] = &[
    "--workers",
    "2",
    "--shards",
    "4",
    "--handover-interval-ms",
    "50",
    "--appendfsync",
    "everysec",
    "--enable-protected-configs",
    "local",
];

fn account(n: u64) -> String {
    format!("account:{n}")
}

fn open_accounts(server: &Server) {
    let mut client = server.client();
    let pairs: Vec<(String, i64)> = (0..ACCOUNTS).map(|n| (account(n), EACH)).collect();
    let () = client.mset(&pairs).expect("stored");
}

/// Moves money until it is told to stop, or the server is gone; each move adds to a total.
fn move_money(server: &Server, lane: u64, stop: &AtomicBool) {
    let mut client = server.client();
    let mut n = lane;
    while !stop.load(Ordering::Relaxed) {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (from, to) = ((n >> 33) % ACCOUNTS, (n >> 45) % ACCOUNTS);
        let moved = redis::pipe()
            .atomic()
            .decr(account(from), 7)
            .incr(account(to), 7)
            .incr(format!("moves:{lane}"), 1)
            .incr(format!("total:{lane}"), 1)
            .query::<redis::Value>(&mut client);
        if moved.is_err() {
            return;
        }
    }
}

/// The money in a data directory, and that every move is in it whole.
fn check(dir: &Path, lanes: u64) {
    let options = [OPTIONS, &["--dir", dir.to_str().expect("a path")]].concat();
    let mut server = Server::start(&options);
    let mut client = server.client();
    let names: Vec<String> = (0..ACCOUNTS).map(account).collect();
    let balances: Vec<i64> = client.mget(&names).expect("balances");
    assert_eq!(balances.iter().sum::<i64>(), EACH * ACCOUNTS as i64, "{}", dir.display());
    for lane in 0..lanes {
        let pair = [format!("moves:{lane}"), format!("total:{lane}")];
        let counts: Vec<Option<i64>> = client.mget(&pair).expect("counts");
        assert_eq!(counts[0], counts[1], "{}", dir.display());
    }
    drop(client);
    server.stop();
}

fn branch(client: &mut redis::Connection, dir: &Path) {
    let path = dir.to_str().expect("a path");
    let made = redis::cmd("FLAGSTONE").arg("BRANCH").arg(path).query::<String>(client);
    assert_eq!(made.expect("a branch"), "OK");
}

pub(crate) fn run(args: &[&str]) -> Output {
    let done = Command::new(env!("CARGO_BIN_EXE_flagstone")).args(args).output();
    done.expect("the program runs")
}

pub(crate) fn done(args: &[&str]) -> String {
    let output = run(args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn every_branch_under_load_is_one_cut() {
    const LANES: u64 = 3;
    let server = Server::start(OPTIONS);
    open_accounts(&server);
    let stop = AtomicBool::new(false);
    let made = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || move_money(server, lane, stop));
        }
        let mut client = server.client();
        for n in 0..6 {
            std::thread::sleep(Duration::from_millis(120));
            branch(&mut client, &server.dir().join(format!("branch{n}")));
            made.fetch_add(1, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
    });
    for n in 0..made.into_inner() {
        check(&server.dir().join(format!("branch{n}")), LANES);
    }
}

#[test]
fn a_kill_while_checkpoints_are_taken_leaves_whole_ones_only() {
    const LANES: u64 = 2;
    let mut server = Server::start(OPTIONS);
    open_accounts(&server);
    let saved = AtomicU64::new(0);
    for kill in 0..4u64 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for lane in 0..LANES {
                let (server, stop) = (&server, &stop);
                scope.spawn(move || move_money(server, lane, stop));
            }
            let (server, stop, saved) = (&server, &stop, &saved);
            scope.spawn(move || {
                let mut client = server.client();
                while redis::cmd("SAVE").query::<String>(&mut client).is_ok() {
                    saved.fetch_add(1, Ordering::Relaxed);
                }
            });
            std::thread::sleep(Duration::from_millis(150 + 70 * kill));
            // A machine may be slow.
            let deadline = Instant::now() + Duration::from_secs(30);
            while saved.load(Ordering::Relaxed) == 0 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            server.kill_shared();
            stop.store(true, Ordering::Relaxed);
        });
        server.reap();
        server.restart();
    }
    server.stop();
    let data = server.dir().join("data");
    let shown = data.display().to_string();
    let listed = done(&["checkpoints", "--dir", &shown]);
    assert!(listed.lines().count() >= 1, "{listed}");
    for (n, line) in listed.lines().enumerate() {
        let id = line.split_whitespace().next().expect("an id");
        let to = server.dir().join(format!("kept{n}"));
        let args = ["branch", "--dir", &shown, "--checkpoint", id, "--to"];
        done(&[&args[..], &[to.to_str().expect("a path")]].concat());
        check(&to, LANES);
    }
    // Nothing is left of those that were not finished.
    let names = std::fs::read_dir(data.join("checkpoints")).expect("the directory");
    let names: Vec<String> =
        names.map(|n| n.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(names.len(), 2 * listed.lines().count(), "{names:?}");
    let checked = done(&["check", "--dir", &shown]);
    assert!(checked.contains("shards"), "{checked}");
}

#[test]
fn a_backup_is_taken_of_a_server_that_runs_or_is_stopped() {
    let mut server = Server::start(OPTIONS);
    open_accounts(&server);
    let mut client = server.client();
    let data = server.dir().join("data").display().to_string();
    let to = server.dir().join("backups").display().to_string();
    let port = server.port().to_string();
    let backup = ["backup", "--dir", &data, "--to", &to, "--port", &port];
    done(&backup);
    let () = client.set("later", "there").expect("stored");
    // The subcommand finds the server by its directory, too.
    done(&backup[..5]);
    drop(client);
    server.stop();
    done(&backup);
    let listed = done(&["checkpoints", "--from", &to]);
    let ids: Vec<&str> = listed.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(ids.len(), 3, "{listed}");
    for (id, has) in [(ids[0], false), (ids[1], true), (ids[2], true)] {
        let dir = server.dir().join(format!("restored-{id}"));
        let path = dir.to_str().expect("a path");
        done(&["restore", "--from", &to, "--backup", id, "--dir", path]);
        check(&dir, 0);
        let again = run(&["restore", "--from", &to, "--dir", path]);
        assert!(String::from_utf8_lossy(&again.stderr).contains("is not empty"));
        let mut restored = Server::start(&[OPTIONS, &["--dir", path]].concat());
        let found: bool = restored.client().exists("later").expect("an answer");
        assert_eq!(found, has, "{id}");
        restored.stop();
    }
}

#[test]
fn a_wrong_place_is_an_error_of_a_list_too() {
    let empty = tempfile::tempdir().expect("a directory");
    let missing = empty.path().join("missing").display().to_string();
    let empty = empty.path().display().to_string();
    for (option, text) in [("--dir", "is no data directory"), ("--from", "there are no backups in")]
    {
        for place in [&empty, &missing] {
            let ended = run(&["checkpoints", option, place]);
            let told = String::from_utf8_lossy(&ended.stderr);
            assert_eq!(ended.status.code(), Some(1), "{option} {place}: {told}");
            assert!(told.contains(text) && told.contains(place.as_str()), "{told}");
        }
        assert!(!Path::new(&missing).exists());
    }
}

#[test]
fn a_file_that_may_not_get_so_long_is_an_error_of_a_backup_or_a_restore() {
    let server = Server::start(OPTIONS);
    open_accounts(&server);
    let long: Vec<u8> =
        (0..1_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let () = server.client().set("long", long).expect("stored");
    let path = |name: &str| server.dir().join(name).display().to_string();
    let (data, backups) = (path("data"), path("backups"));
    done(&["backup", "--dir", &data, "--to", &backups]);
    let commands = [
        ["backup", "--dir", &data, "--to", &path("others")],
        ["restore", "--from", &backups, "--dir", &path("restored")],
    ];
    for command in commands {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -f 100; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_flagstone")]);
        let ended = limited.args(command).output().expect("it runs");
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{command:?}: {told}");
        assert!(told.contains("File too large"), "{command:?}: {told}");
    }
}

#[test]
fn save_commands_answer_as_they_should() {
    let mut server = Server::start(OPTIONS);
    let mut client = server.client();
    let mut ask = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        match command.query::<redis::Value>(&mut client) {
            Ok(redis::Value::SimpleString(text)) => text,
            Ok(redis::Value::Okay) => "OK".to_owned(),
            Ok(redis::Value::Int(n)) => n.to_string(),
            Ok(other) => format!("{other:?}"),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(ask(&["SAVE"]), "OK");
    for schedule in [&["BGSAVE"][..], &["BGSAVE", "SCHEDULE"]] {
        assert_eq!(ask(schedule), "Background saving started");
        let deadline = Instant::now() + Duration::from_secs(30);
        while ask(&["INFO", "persistence"]).contains("rdb_bgsave_in_progress:1") {
            assert!(Instant::now() < deadline, "it does not end");
        }
    }
    assert!(ask(&["BGSAVE", "NOW"]).contains("syntax error"));
    let saved: i64 = ask(&["LASTSAVE"]).parse().expect("a time");
    assert!(saved > 1_700_000_000);
    let data = server.dir().join("data").display().to_string();
    let listed =
        || done(&["checkpoints", "--dir", &data]).lines().map(str::to_owned).collect::<Vec<_>>();
    let before = listed();
    assert_eq!(before.len(), 2, "checkpoint-keep is 2: {before:?}");
    assert_ne!(ask(&["SHUTDOWN", "SAVE"]), "OK");
    server.reap();
    let after = listed();
    assert!(after.last() != before.last(), "{before:?} {after:?}");
}

#[test]
fn a_backup_is_not_made_in_the_data_and_leaves_nothing_if_it_fails() {
    let root = tempfile::tempdir().expect("a directory");
    let data = root.path().join("data");
    let of = |path: &Path| path.to_str().expect("a path").to_owned();
    let mut server = Server::start(&["--dir", &of(&data)]);
    let () = server.client().set("key", "value").expect("stored");
    server.stop();
    let link = root.path().join("link");
    std::os::unix::fs::symlink(&data, &link).expect("a link");
    let backup = |to: &Path, more: &[&str]| {
        let (data, to) = (of(&data), of(to));
        run(&[&["backup", "--dir", &data, "--to", &to], more].concat())
    };
    let before = std::fs::read_dir(&data).expect("the directory").count();
    for inside in ["data", "data/backups", "data/journal/a/b", "link/backups", "other/../data/x"] {
        let refused = backup(&root.path().join(inside), &[]);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && text.contains("backups belong elsewhere"), "{text}");
    }
    let after = std::fs::read_dir(&data).expect("the directory").count();
    assert_eq!(after, before, "no checkpoint is taken for a backup that is refused");
    let to = root.path().join("backups");
    assert!(!backup(&to, &["--checkpoint", "none"]).status.success());
    assert!(!to.exists());
    std::fs::create_dir(&to).expect("a directory");
    assert!(!backup(&to, &["--checkpoint", "none"]).status.success());
    assert_eq!(std::fs::read_dir(&to).expect("it stays").count(), 0);
    let made = backup(&to, &[]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let listed = done(&["checkpoints", "--from", &of(&to)]);
    assert_eq!(listed.lines().count(), 1, "{listed}");
}
