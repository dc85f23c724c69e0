//! Files of packages that speak to the server: the health check of the image, and what Prometheus needs.

use super::http::Web;
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn file(name: &str) -> String {
    fs::read_to_string(format!("{}/{name}", env!("CARGO_MANIFEST_DIR"))).expect("the file")
}

/// Runs the health check of the image for a server on another port.
fn is_healthy(port: u16) -> bool {
    let dockerfile = file("Dockerfile");
    let (_, rest) = dockerfile.split_once("HEALTHCHECK").expect("a health check");
    let (_, rest) = rest.split_once("CMD \\\n").expect("its command");
    let line = rest.lines().next().expect("a line");
    let words: Vec<String> = serde_json::from_str(line.trim()).expect("an array of words");
    let script = words[2].replace("/6379", &format!("/{port}"));
    assert!(script.contains(&format!("/127.0.0.1/{port} ")), "{script}");
    let mut check = Command::new(&words[0]);
    check.args([&words[1], &script]).stderr(Stdio::null());
    check.status().expect("it runs").success()
}

fn client(web: &Web, password: &str) -> redis::Connection {
    redis::Client::open(format!("redis://{password}127.0.0.1:{}/", web.server.port()))
        .and_then(|client| client.get_connection())
        .expect("a connection")
}

#[test]
fn a_server_that_lives_is_healthy_whatever_it_answers() {
    let mut web = Web::start(&["--busy-reply-threshold", "100", "--maxclients", "4"]);
    let port = web.server.port();
    assert!(is_healthy(port));
    let (mut running, mut asking) = (client(&web, ""), client(&web, ""));
    let script = std::thread::spawn(move || {
        redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut running)
    });
    let deadline = Instant::now() + Duration::from_secs(30);
    while redis::cmd("GET").arg("k").exec(&mut asking).is_ok() {
        assert!(Instant::now() < deadline, "the script is not told of");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(is_healthy(port), "BUSY");
    redis::cmd("SCRIPT").arg("KILL").exec(&mut asking).expect("killed");
    script.join().expect("joined").expect_err("killed");

    // Sockets until there is no place.
    let mut sockets = Vec::new();
    loop {
        let mut socket = web.server.socket();
        let _ = socket.write_all(b"PING\r\n");
        let mut first = [0];
        socket.read_exact(&mut first).expect("an answer");
        if first == *b"-" {
            break;
        }
        sockets.push(socket);
        assert!(sockets.len() < 5, "there is always a place");
    }
    assert!(is_healthy(port), "too many clients");
    sockets.clear();
    let deadline = Instant::now() + Duration::from_secs(30);
    // The server may count them for a while, and refuse the check without a look at the pause.
    let counts = |asking: &mut redis::Connection| {
        redis::cmd("INFO").arg("clients").query::<String>(asking).expect("answered")
    };
    while !counts(&mut asking).contains("connected_clients:1\r\n") {
        assert!(Instant::now() < deadline, "no place is given back");
        std::thread::sleep(Duration::from_millis(20));
    }

    redis::cmd("CLIENT").arg(&["PAUSE", "600000", "ALL"]).exec(&mut asking).expect("paused");
    assert!(is_healthy(port), "paused");
    web.server.stop();
    assert!(!is_healthy(port), "it has ended");
    let web = Web::start(&["--requirepass", "secret"]);
    assert!(is_healthy(web.server.port()), "NOAUTH");
}

#[test]
fn prometheus_is_told_to_send_the_password_of_a_user_that_may_run_info() {
    assert!(!file("packaging/kubernetes.yaml").contains("prometheus.io/scrape:"));
    let readme = file("docs/monitoring/README.md");
    assert!(readme.contains("authorization: {credentials_file: "));
    let rules = "ACL SETUSER metrics on >PASSWORD +info";
    assert!(readme.contains(rules));
    let web = Web::start(&["--requirepass", "secret"]);
    let words: Vec<&str> = rules.split(' ').collect();
    let mut acl = redis::cmd(words[0]);
    acl.arg(&words[1..]).exec(&mut client(&web, ":secret@")).expect("set");
    let login = ["Authorization: Bearer metrics:PASSWORD"];
    assert_eq!(web.ask("GET", "/metrics", &login, "").status, 200);
    web.ask("GET", "/get/x", &login, "").refused(403, "NOPERM");
}
