//! The process: signals, its output, its status, the files it writes about itself.

use super::{Server, free_port};
use redis::Commands;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FLAGSTONE: &str = env!("CARGO_BIN_EXE_flagstone");

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn ping(server: &Server) -> String {
    redis::cmd("PING").query(&mut server.client()).expect("an answer")
}

#[test]
fn a_signal_that_is_not_for_the_server_does_not_end_it() {
    let mut server = Server::start(&["--appendfsync", "everysec"]);
    let () = server.client().set("key", "value").expect("stored");
    let stray = [Signal::HUP, Signal::PIPE, Signal::USR1, Signal::USR2, Signal::XFSZ];
    for signal in stray {
        server.signal(signal);
        assert_eq!(ping(&server), "PONG", "{signal:?}");
    }
    server.stop_by(Signal::QUIT);
    server.restart();
    assert_eq!(server.client().get::<_, String>("key").expect("a value"), "value");
    // A second request to stop is no emergency.
    server.signal(Signal::TERM);
    server.stop();
}

/// As after `flagstone 2>&1 | head -1`, or in a terminal that was closed.
#[test]
fn a_server_whose_output_is_not_read_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let port = free_port();
    let mut child = Command::new(FLAGSTONE)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--enable-debug-command", "yes"])
        .args(["--dir", dir.path().join("data").to_str().expect("a path")])
        .args(["--journal-segment-size", "4mb", "--memory-budget", "256mb"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the server's binary starts");
    // Closed before it writes anything.
    drop(child.stderr.take());
    drop(child.stdout.take());
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).expect("an address");
    let deadline = Instant::now() + PATIENCE;
    let mut client = loop {
        match client.get_connection() {
            Ok(connection) => break connection,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    for _ in 0..3 {
        let () = redis::cmd("DEBUG").arg("LOG").arg("x").query(&mut client).expect("logged");
    }
    let () = client.set("key", "value").expect("stored");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("the signal is sent");
    assert!(child.wait().expect("its status").success());
}

/// Runs the program with no reader at the other end of its output; returns its status and its
/// complaints.
fn unheard(args: &[&str]) -> (Option<i32>, String) {
    let mut child = Command::new(FLAGSTONE)
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let mut complaint = String::new();
    let mut err = child.stderr.take().expect("its errors");
    err.read_to_string(&mut complaint).expect("text");
    (child.wait().expect("its status").code(), complaint)
}

#[test]
fn help_that_is_not_read_to_its_end_is_no_error() {
    assert_eq!(unheard(&["--help"]), (Some(0), String::new()));
    assert_eq!(unheard(&["--version"]), (Some(0), String::new()));
    let help = Command::new(FLAGSTONE).arg("--help").output().expect("it runs");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands"))
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(commands.contains(&"backup") && commands.contains(&"import"), "{help}");
    for command in commands {
        assert_eq!(unheard(&[command, "--help"]), (Some(0), String::new()), "{command}");
    }
    // A subcommand that reports its work.
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let mut server = Server::start(&["--dir", data.to_str().expect("a path")]);
    server.stop();
    let check = unheard(&["check", "--dir", data.to_str().expect("a path")]);
    assert_eq!(check.0, Some(0), "{}", check.1);
}

/// Each directive in `--help` has an effect: one that can only be left alone is not in it.
#[test]
fn help_describes_directives_and_commands() {
    let help = Command::new(FLAGSTONE).arg("--help").output().expect("it runs");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for absent in ["--dbfilename ", "--cluster-node-timeout "] {
        assert!(!help.contains(absent), "{absent}");
    }
    for present in ["--port ", "--logfile ", "--pidfile ", "--maxmemory ", "--loglevel "] {
        assert!(help.contains(present), "{present}");
    }
}

#[test]
fn a_refused_configuration_is_status_2_and_names_the_directive() {
    let mut server = Server::start(&[]);
    server.stop();
    let cases: &[(&[&str], &str)] = &[
        (&["--aclfile", "missing.acl"], "missing.acl"),
        (&["--user", "alice", "+nothing"], "alice"),
        (&["--aclfile", "a", "--user", "alice", "on"], "aclfile"),
        (&["--rename-command", "NOSUCH", "x"], "rename-command"),
        (&["--replicaof", "127.0.0.1", "x"], "replicaof"),
        (&["--port", "0"], "port"),
        (&["--port", "x"], "port"),
        (&["--bind", "no.such.host.invalid"], "bind"),
        (&["--bind", ""], "bind"),
        (&["--store", "ftp://bucket/prefix"], "store"),
        (&["--logfile", "/no/such/directory/log"], "logfile"),
        (&["--unixsocket", "/no/such/directory/socket"], "unixsocket"),
        (&["--unixsocket", &"long/".repeat(50)], "unixsocket"),
        (&["--unixsocket", "/dev/null"], "the file exists, and is no socket"),
        (&["--unixsocket", "s", "--unixsocketgroup", "no such group"], "unixsocketgroup"),
        (&["--aclfile", "/dev/zero"], "it is no regular file"),
    ];
    for (options, name) in cases {
        let (status, text) = server.refusal(options);
        assert_eq!(status, Some(2), "{options:?}: {text}");
        assert!(text.contains(name), "{options:?}: {text}");
    }
    // The configuration is right, and something else is wrong.
    let busy = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = busy.local_addr().expect("its address").port().to_string();
    let (status, text) = server.refusal(&["--port", &port]);
    assert_eq!(status, Some(1), "{text}");
}

#[test]
fn the_pid_file_is_there_as_long_as_the_server() {
    let mut server = Server::start(&["--pidfile", "server.pid"]);
    let path = server.dir().join("server.pid");
    let text = fs::read_to_string(&path).expect("the file");
    assert_eq!(text, format!("{}\n", server.pid()));
    server.stop();
    assert!(!path.exists());
}

fn log_of(server: &Server) -> String {
    fs::read_to_string(server.dir().join("log")).unwrap_or_default()
}

#[test]
fn a_log_file_takes_the_lines_and_may_be_moved_away() {
    let mut server = Server::start(&["--logfile", "log", "--enable-debug-command", "yes"]);
    let mut client = server.client();
    let mut say = |text: &str| {
        let () = redis::cmd("DEBUG").arg("LOG").arg(text).query(&mut client).expect("logged");
    };
    say("first");
    assert!(log_of(&server).contains("DEBUG LOG: first"), "{}", log_of(&server));
    fs::rename(server.dir().join("log"), server.dir().join("log.1")).expect("moved");
    say("second");
    let log = log_of(&server);
    assert!(log.contains("DEBUG LOG: second") && !log.contains("first"), "{log}");
    server.stop();
    let (status, _) = server.refusal(&["--shards", "3"]);
    assert_eq!(status, Some(1));
    assert!(log_of(&server).contains("shards, and that is fixed"), "{}", log_of(&server));
}

/// Lines as an operator, or a program, would take them for the server's.
#[test]
fn clients_cannot_forge_a_line_of_the_log() {
    let server = Server::start(&["--logfile", "log", "--enable-debug-command", "yes"]);
    let mut client = server.client();
    let forged = "x\r\n2026-01-01T00:00:00.000000Z ERROR forged\x1b[2J";
    let script = redis::Script::new("redis.log(redis.LOG_WARNING, ARGV[1]) return 1");
    let _: i64 = script.arg(forged).invoke(&mut client).expect("run");
    let () = redis::cmd("DEBUG").arg("LOG").arg(forged).query(&mut client).expect("logged");
    let name =
        redis::cmd("CONFIG").arg("SET").arg("port\r\nforged").arg("1").query::<()>(&mut client);
    assert!(name.is_err());
    let log = log_of(&server);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("forged")).collect();
    assert_eq!(lines.len(), 2, "{log}");
    for line in lines {
        assert!(line.contains("WARN"), "{line}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
}

/// A start, a use and a stop in which nothing goes wrong: no line that asks to be looked at.
#[test]
fn when_all_is_well_the_log_is_short_and_calm() {
    let mut server = Server::start(&["--logfile", "log", "--maxmemory", "10gb"]);
    let () = server.client().set("key", "value").expect("stored");
    server.stop();
    let log = log_of(&server);
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    assert!(log.lines().count() <= 5, "{log}");
    assert!(
        log.contains("SIGTERM: shutting down") && log.contains("everything is stored"),
        "{log}"
    );
}

/// CLIENT PAUSE … ALL holds every command but the one that ends it.
#[test]
fn a_pause_of_everything_can_be_ended() {
    let server = Server::start(&["--workers", "2"]);
    let mut admin = server.client();
    let pause = |ms: &str, admin: &mut redis::Connection| {
        let () = redis::cmd("CLIENT").arg("PAUSE").arg(ms).arg("ALL").query(admin).expect("paused");
    };
    pause("100000000", &mut admin);
    let waiting = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ping(&server));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        let mut other = server.socket();
        other.write_all(b"CLIENT UNPAUSE\r\nPING\r\n").expect("sent");
        let mut replies = BufReader::new(&other).lines();
        assert_eq!(replies.next().expect("a reply").expect("text"), "+OK");
        assert_eq!(replies.next().expect("a reply").expect("text"), "+PONG");
        waiting.join().expect("its answer")
    });
    assert_eq!(waiting, "PONG");
    // The connection that has begun it, too.
    pause("100000000", &mut admin);
    let () = redis::cmd("CLIENT").arg("UNPAUSE").query(&mut admin).expect("ended");
    assert_eq!(ping(&server), "PONG");
}
