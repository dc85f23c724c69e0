//! The surroundings that an operator gives the server: a service manager, a proxy, other names of
//! commands, the form of the log, HTTPS.

use super::certificates::Files;
use super::{Server, free_port};
use redis::Commands;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Receives states until one has a text, which it returns.
fn told(socket: &UnixDatagram, text: &str) -> String {
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    loop {
        let mut bytes = [0; 1000];
        let n = socket.recv(&mut bytes).unwrap_or_else(|error| panic!("{text}: {error}"));
        let state = String::from_utf8_lossy(&bytes[..n]).into_owned();
        if state.contains(text) {
            return state;
        }
    }
}

#[test]
fn the_service_manager_hears_of_start_health_and_stop() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    let environment = |more: &[(&str, &str)]| {
        let mut all = vec![("NOTIFY_SOCKET".to_owned(), path.display().to_string())];
        all.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        all
    };
    let watched = environment(&[("WATCHDOG_USEC", "300000")]);
    let options = ["--supervised", "systemd", "--workers", "2", "--shards", "2"];
    let mut server = Server::start_in(watched, &options);
    told(&manager, "STATUS=Opening the data directory");
    told(&manager, "READY=1\nSTATUS=Ready to accept connections");
    let began = Instant::now();
    for _ in 0..4 {
        assert_eq!(told(&manager, "WATCHDOG=1"), "WATCHDOG=1");
    }
    assert!(began.elapsed() > Duration::from_millis(200), "{:?}", began.elapsed());
    let info: String = redis::cmd("INFO").arg("server").query(&mut server.client()).expect("info");
    assert!(info.contains("process_supervised:systemd\r\n"), "{info}");
    server.stop();
    told(&manager, "STOPPING=1");
    // Without a watchdog, or with one for another process, there are no signs of life.
    let mut other = Server::start_in(
        environment(&[("WATCHDOG_USEC", "50000"), ("WATCHDOG_PID", "1")]),
        &["--supervised", "auto"],
    );
    told(&manager, "READY=1");
    std::thread::sleep(Duration::from_millis(300));
    manager.set_nonblocking(true).expect("set");
    assert!(manager.recv(&mut [0; 100]).is_err());
    other.stop();
}

#[test]
fn without_a_service_manager_the_server_says_so() {
    let server = Server::start(&["--supervised", "systemd"]);
    assert!(server.log().contains("NOTIFY_SOCKET is not set"), "{}", server.log());
    let alone = Server::start(&["--supervised", "auto"]);
    assert!(!alone.log().contains("NOTIFY_SOCKET"), "{}", alone.log());
    let text = alone.refused(&["--supervised", "upstart", "--dir", "elsewhere"]);
    assert!(text.contains("upstart is not supported"), "{text}");
}

#[test]
fn the_log_has_the_form_that_is_set() {
    let server = Server::start(&["--log-format", "json", "--enable-debug-command", "yes"]);
    let log = |text: &str| {
        let mut client = server.client();
        redis::cmd("DEBUG").arg("LOG").arg(text).query::<()>(&mut client).expect("logged");
    };
    log("quoted \" and \x07 \x7f and é");
    for line in server.log().lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect(line);
        let has = |name: &str| value.get(name).is_some();
        assert!(has("time") && has("level") && has("message"), "{line}");
    }
    assert!(server.log().contains("\"level\":\"info\""), "{}", server.log());
    let set = |format: &str| {
        let mut client = server.client();
        redis::cmd("CONFIG").arg("SET").arg("log-format").arg(format).query::<()>(&mut client)
    };
    set("logfmt").expect("set");
    log("one two");
    let last = server.log().lines().last().map(str::to_owned).unwrap_or_default();
    assert!(last.contains("level=") && last.contains("one two\""), "{last}");
    set("text").expect("set");
    log("three");
    let last = server.log().lines().last().map(str::to_owned).unwrap_or_default();
    assert!(!last.contains("level=") && last.contains("three"), "{last}");
    assert!(set("xml").is_err());
}

#[test]
fn renamed_commands_are_known_by_their_new_names_everywhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("flagstone.conf");
    let text =
        "rename-command FLUSHALL \"\"\nrename-command get obtain\nrename-command INFO tell\n";
    fs::write(&file, text).expect("written");
    let include = file.display().to_string();
    let server = Server::start(&[
        "--include",
        &include,
        "--rename-command",
        "MULTI",
        "together",
        "--workers",
        "2",
        "--shards",
        "2",
    ]);
    let mut client = server.client();
    let mut run = |line: &str| {
        let mut words = line.split(' ');
        let mut command = redis::cmd(words.next().unwrap_or_default());
        for word in words {
            command.arg(word);
        }
        command.query::<redis::Value>(&mut client).map_err(|error| error.to_string())
    };
    run("SET k v").expect("stored");
    assert!(run("FLUSHALL").is_err_and(|error| error.contains("unknown command")));
    assert!(run("GET k").is_err_and(|error| error.contains("unknown command")));
    assert_eq!(run("OBTAIN k").expect("its value"), redis::Value::BulkString(b"v".to_vec()));
    run("together").expect("begun");
    run("obtain k").expect("queued");
    assert_eq!(
        run("EXEC").expect("run"),
        redis::Value::Array(vec![redis::Value::BulkString(b"v".to_vec())])
    );
    let script = |body: &str| {
        redis::cmd("EVAL").arg(body).arg(1).arg("k").query::<String>(&mut server.client())
    };
    assert_eq!(script("return redis.call('Obtain', KEYS[1])").expect("run"), "v");
    let error = script("return redis.call('get', KEYS[1])").expect_err("gone").to_string();
    assert!(error.contains("Unknown command"), "{error}");
    let error = script("return redis.call('flushall')").expect_err("gone").to_string();
    assert!(error.contains("Unknown command"), "{error}");
    assert_eq!(
        run("COMMAND INFO flushall").expect("a reply"),
        redis::Value::Array(vec![redis::Value::Nil])
    );
    assert_ne!(
        run("COMMAND INFO obtain").expect("a reply"),
        redis::Value::Array(vec![redis::Value::Nil])
    );
    let listed: Vec<String> =
        redis::cmd("COMMAND").arg("LIST").query(&mut server.client()).expect("names");
    assert!(!listed.contains(&"flushall".to_owned()));
    assert!(run("tell server").is_ok());
}

#[test]
fn users_of_a_server_with_renamed_commands_are_there_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("users.acl");
    fs::write(&file, "user first on nopass ~* +get -flushall +config|get\n").expect("written");
    let path = file.display().to_string();
    let renamed = ["GET", "obtain", "FLUSHALL", "", "CONFIG", "cfg"];
    let mut options = vec!["--aclfile", &path];
    for pair in renamed.chunks(2) {
        options.extend(["--rename-command", pair[0], pair[1]]);
    }
    let mut server = Server::start(&options);
    let run = |server: &Server, words: &[&str]| {
        redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut server.client())
    };
    let second =
        ["ACL", "SETUSER", "second", "on", "nopass", "~*", "+get", "(+CONFIG|Get +set ~s)"];
    run(&server, &second).expect("set");
    let error = run(&server, &["ACL", "SETUSER", "third", "+obtain"]).expect_err("no such command");
    assert!(error.to_string().contains("Unknown command or category name in ACL"), "{error}");
    let list = run(&server, &["ACL", "LIST"]).expect("listed");
    run(&server, &["ACL", "SAVE"]).expect("saved");
    server.kill();
    server.restart();
    assert_eq!(run(&server, &["ACL", "LIST"]).expect("listed"), list);
    run(&server, &["ACL", "LOAD"]).expect("loaded");
    let mut client = server.client();
    let mut ask =
        |words: &[&str]| redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut client);
    ask(&["AUTH", "second", "any"]).expect("known");
    ask(&["obtain", "k"]).expect("allowed");
    ask(&["cfg", "GET", "port"]).expect("allowed");
    assert!(ask(&["cfg", "SET", "port", "1"]).is_err_and(|error| error.code() == Some("NOPERM")));
}

#[test]
fn what_the_server_runs_itself_does_not_depend_on_names() {
    let http = free_port().to_string();
    let server = Server::start(&[
        "--rename-command",
        "EXISTS",
        "",
        "--rename-command",
        "INFO",
        "tell",
        "--http-port",
        &http,
    ]);
    let mut client = server.client();
    let () = redis::cmd("SET").arg(&["gone", "v", "PX", "20"]).query(&mut client).expect("stored");
    let deadline = Instant::now() + PATIENCE;
    while redis::cmd("DBSIZE").query::<u64>(&mut client).expect("a number") != 0 {
        assert!(Instant::now() < deadline, "it does not expire");
    }
    let mut http = TcpStream::connect(format!("127.0.0.1:{http}")).expect("a connection");
    http.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut text = String::new();
    http.read_to_string(&mut text).expect("a page");
    assert!(text.starts_with("HTTP/1.1 200"), "{}", &text[..text.len().min(300)]);
    for (words, reason) in [
        (["--rename-command", "nosuch", "x"], "No such command in rename-command"),
        (["--rename-command", "GET", "set"], "Target command name already exists"),
    ] {
        let refused = server.refused(&[&words[..], &["--dir", "elsewhere"]].concat());
        assert!(refused.contains(reason), "{refused}");
    }
}

/// A connection that begins with a header.
fn proxied(server: &Server, header: &str) -> TcpStream {
    let mut socket = server.socket();
    socket.write_all(header.as_bytes()).expect("sent");
    socket
}

/// Sends a line, and returns everything that the server sends until the connection ends.
fn conversation(mut socket: TcpStream, text: &str) -> String {
    // The server may have closed already.
    let _ = socket.write_all(text.as_bytes());
    let mut told = String::new();
    let _ = socket.read_to_string(&mut told);
    told
}

#[test]
fn a_trusted_proxy_names_its_clients_and_nobody_else_does() {
    let server = Server::start(&["--requirepass", "p"]);
    let header = "PROXY TCP4 203.0.113.7 10.0.0.1 4711 6379\r\n";
    // By default it is a command like any other, which does not exist.
    let told = conversation(proxied(&server, header), "QUIT\r\n");
    assert!(told.starts_with("-NOAUTH") || told.starts_with("-ERR unknown command"), "{told}");
    let set = |value: &str| {
        let mut client = redis::Client::open(format!("redis://:p@127.0.0.1:{}/", server.port()))
            .expect("an address")
            .get_connection()
            .expect("a connection");
        redis::cmd("CONFIG").arg("SET").arg("proxy-protocol").arg(value).query::<()>(&mut client)
    };
    let error = set("yes").expect_err("everybody").to_string();
    assert!(error.contains("any client could choose its address"), "{error}");
    // A client from elsewhere must not be taken for a proxy.
    set("10.0.0.0/8").expect("set");
    let told = conversation(proxied(&server, header), "QUIT\r\n");
    assert!(told.starts_with("-"), "{told}");
    set("10.0.0.0/8 127.0.0.0/8").expect("set");
    let told = conversation(proxied(&server, header), "AUTH p\r\nCLIENT INFO\r\nQUIT\r\n");
    assert!(told.contains("addr=203.0.113.7:4711 laddr=127.0.0.1:"), "{told}");
    let told =
        conversation(proxied(&server, "PROXY UNKNOWN\r\n"), "AUTH p\r\nCLIENT INFO\r\nQUIT\r\n");
    assert!(told.contains("addr=127.0.0.1:"), "{told}");
    // Without a header there is no connection from there.
    assert_eq!(conversation(server.socket(), "AUTH p\r\nPING\r\n"), "");
    let deadline = Instant::now() + PATIENCE;
    while !server
        .log()
        .contains("of proxies (proxy-protocol) that named no client (last: 127.0.0.1:")
    {
        assert!(Instant::now() < deadline, "{}", server.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_header_that_never_ends_is_closed_in_time_and_keeps_nobody_out() {
    let server = Server::start(&["--proxy-protocol", "127.0.0.1", "--maxclients", "20"]);
    let began = Instant::now();
    let begun = ["", "PROXY TCP4 203.0.", "\r\n\r\n\0\r\nQUIT\n\x21\x11"];
    // More than the places that there are.
    let silent: Vec<TcpStream> =
        (0..15).map(|n| proxied(&server, begun[n % begun.len()])).collect();
    let header = "PROXY TCP4 127.0.0.1 10.0.0.1 4711 6379\r\n";
    for _ in 0..3 {
        let told = conversation(proxied(&server, header), "PING\r\nQUIT\r\n");
        assert_eq!(told, "+PONG\r\n+OK\r\n");
    }
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    for mut socket in silent {
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // Bytes that the server has not read make it a reset.
        match socket.read(&mut [0; 1]) {
            Ok(bytes) => assert_eq!(bytes, 0),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    let took = began.elapsed();
    assert!((Duration::from_secs(8)..PATIENCE).contains(&took), "{took:?}");
}

#[test]
fn protected_mode_sees_the_client_behind_the_proxy() {
    let server = Server::start(&["--proxy-protocol", "127.0.0.1"]);
    let from = |address: &str, text: &str| {
        let header = format!("PROXY TCP4 {address} 127.0.0.1 4711 6379\r\n");
        conversation(proxied(&server, &header), text)
    };
    assert!(from("203.0.113.7", "").starts_with("-DENIED"));
    assert!(from("127.0.0.1", "PING\r\nQUIT\r\n").starts_with("+PONG"));
}

#[test]
fn the_http_port_speaks_https_if_that_is_set() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = Files::in_dir(dir.path());
    let port = free_port();
    let (cert, key) = (files.path("server.crt"), files.path("server.key"));
    let port_text = port.to_string();
    let server = Server::start(&[
        "--http-port",
        &port_text,
        "--http-tls",
        "yes",
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
    ]);
    let mut roots = RootCertStore::empty();
    roots.add(files.authority.der().into()).expect("an authority");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let get = || {
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(config.clone(), name).expect("a session");
        let socket = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let mut stream = StreamOwned::new(session, socket);
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("a page");
        let certificate = stream.conn.peer_certificates().expect("certificates")[0].to_vec();
        (text, certificate)
    };
    let (text, first) = get();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    // The plain protocol is not served there.
    let mut plain = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut bytes = Vec::new();
    let _ = plain.read_to_end(&mut bytes);
    assert!(!bytes.starts_with(b"HTTP"));
    files.renew();
    let () = redis::cmd("CONFIG")
        .arg("SET")
        .arg("tls-cert-file")
        .arg(&cert)
        .query(&mut server.client())
        .expect("loaded anew");
    assert_ne!(get().1, first);
    let () = server.client().set("k", "v").expect("stored");
    let refused = server.refused(&[
        "--http-port",
        "1",
        "--http-tls",
        "mutual",
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--dir",
        "elsewhere",
    ]);
    assert!(refused.contains("tls-ca-cert-file or tls-ca-cert-dir must be specified"), "{refused}");
}
