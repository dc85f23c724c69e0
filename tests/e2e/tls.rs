//! TLS: mutual authentication, live changes, clients that misbehave.

use super::certificates::{Authority, Files, Issued};
use super::{Server, free_port};
use redis::Commands;
use rustix::process::Signal;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use std::fs;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long something may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Settings of clients: the authority they trust, and their certificate.
fn trusting(authority: &Authority, own: Option<&Issued>) -> Arc<ClientConfig> {
    versions(authority, own, rustls::ALL_VERSIONS)
}

fn versions(
    authority: &Authority,
    own: Option<&Issued>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().into()).expect("an authority");
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_webpki_verifier(verifier.build().expect("a verifier"));
    Arc::new(match own {
        None => config.with_no_client_auth(),
        Some(Issued { certificate, key }) => {
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
            config
                .with_client_auth_cert(vec![certificate.expect("a certificate")], key)
                .expect("a client's certificate")
        }
    })
}

/// A client over TLS.
struct Client(StreamOwned<ClientConnection, TcpStream>);

impl Client {
    /// Connects, and asks for a reply, so that a refusal of the client's certificate is seen.
    fn connect(port: u16, config: &Arc<ClientConfig>) -> Result<Self> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(config.clone(), name).expect("a session");
        let mut client = Self(StreamOwned::new(session, socket));
        client.send(&["PING"])?;
        let reply = client.line()?;
        if reply == "+PONG" { Ok(client) } else { Err(std::io::Error::other(reply)) }
    }

    fn send(&mut self, words: &[&str]) -> Result<()> {
        let mut out = format!("*{}\r\n", words.len());
        for word in words {
            out += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.write_all(out.as_bytes())?;
        self.0.flush()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        Ok(String::from_utf8_lossy(&line).into_owned())
    }

    /// Runs a command; returns the line of its reply, or the bytes of a bulk string.
    fn call(&mut self, words: &[&str]) -> String {
        self.send(words).expect("sent");
        self.reply()
    }

    fn reply(&mut self) -> String {
        let line = self.line().expect("a reply");
        match line.strip_prefix('$').and_then(|len| len.parse::<usize>().ok()) {
            None => line,
            Some(len) => {
                let mut bytes = vec![0; len + 2];
                self.0.read_exact(&mut bytes).expect("the bytes");
                bytes.truncate(len);
                String::from_utf8_lossy(&bytes).into_owned()
            }
        }
    }

    /// The certificate that the server has shown.
    fn certificate(&self) -> Vec<u8> {
        self.0.conn.peer_certificates().expect("certificates")[0].to_vec()
    }
}

/// A server with TLS and a port without it.
struct Secured {
    server: Server,
    files: Files,
    port: u16,
    _dir: TempDir,
}

impl Secured {
    fn start(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (files, port) = (Files::in_dir(dir.path()), free_port());
        let (port_text, cert) = (port.to_string(), files.path("server.crt"));
        let (key, ca) = (files.path("server.key"), files.path("ca.crt"));
        let mut all = vec!["--tls-port", &port_text, "--tls-cert-file", &cert];
        all.extend(["--tls-key-file", &key, "--tls-ca-cert-file", &ca]);
        all.extend(options);
        let server = Server::start(&all);
        Self { server, files, port, _dir: dir }
    }

    fn config(&self) -> Arc<ClientConfig> {
        trusting(&self.files.authority, Some(&self.files.client))
    }

    fn client(&self) -> Client {
        Client::connect(self.port, &self.config()).expect("a connection")
    }

    /// Waits until the log has a text.
    fn logs(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.server.log().contains(text) {
            assert!(Instant::now() < deadline, "not logged: {text}: {}", self.server.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn config_set(server: &Server, name: &str, value: &str) -> redis::RedisResult<()> {
    redis::cmd("CONFIG").arg("SET").arg(name).arg(value).query(&mut server.client())
}

#[test]
fn commands_run_over_tls_alone() {
    for workers in ["1", "2"] {
        let secured = Secured::start(&["--port", "0", "--workers", workers, "--shards", "2"]);
        let mut client = secured.client();
        for n in 0..10 {
            assert_eq!(client.call(&["SET", &format!("k{n}"), "v"]), "+OK");
        }
        // More than sockets and records take at once, in both directions.
        let value: String = ('a'..='z').cycle().take(5_000_000).collect();
        assert_eq!(client.call(&["SET", "large", &value]), "+OK");
        assert!(client.call(&["GET", "large"]) == value);
        let list = client.call(&["CLIENT", "LIST"]);
        assert!(list.contains("addr=127.0.0.1:") && list.contains(" flags=N "), "{list}");
        let info = client.call(&["INFO", "server"]);
        let port = secured.port;
        assert!(info.contains(&format!("tcp_port:{port}\r\n")), "{info}");
        let listener = format!("listener0:name=tls,bind=127.0.0.1,port={port}\r\n");
        assert!(info.contains(&listener), "{info}");
        // A transaction, a blocked client, and a frame that nobody has asked for.
        assert_eq!(client.call(&["MULTI"]), "+OK");
        assert_eq!(client.call(&["INCR", "n"]), "+QUEUED");
        assert_eq!(client.call(&["EXEC"]), "*1");
        assert_eq!(client.reply(), ":1");
        let mut waiting = secured.client();
        waiting.send(&["BLPOP", "queue", "0"]).expect("sent");
        let mut subscriber = secured.client();
        assert_eq!(subscriber.call(&["SUBSCRIBE", "news"]), "*3");
        for _ in 0..3 {
            subscriber.reply();
        }
        assert_eq!(client.call(&["RPUSH", "queue", "job"]), ":1");
        assert_eq!(waiting.reply(), "*2");
        assert_eq!((waiting.reply(), waiting.reply()), ("queue".to_owned(), "job".to_owned()));
        assert_eq!(client.call(&["PUBLISH", "news", "hello"]), ":1");
        assert_eq!(subscriber.reply(), "*3");
        // The end is told: a cut connection would be an error.
        assert_eq!(client.call(&["QUIT"]), "+OK");
        assert_eq!(client.0.read(&mut [0; 10]).expect("close_notify"), 0);
    }
}

#[test]
fn pipelines_are_answered_in_order_and_to_the_end() {
    let secured = Secured::start(&["--workers", "2", "--shards", "2", "--appendfsync", "everysec"]);
    let mut client = secured.client();
    const COMMANDS: usize = 20_000;
    let mut all = String::new();
    for n in 0..COMMANDS {
        let key = format!("key:{}", n % 100);
        all += &format!("*3\r\n$6\r\nAPPEND\r\n${}\r\n{key}\r\n$1\r\nx\r\n", key.len());
    }
    client.0.write_all(all.as_bytes()).expect("sent");
    client.0.flush().expect("sent");
    // Its side is closed, as by a program that has nothing more to ask; the socket is not.
    client.0.conn.send_close_notify();
    client.0.flush().expect("sent");
    for n in 0..COMMANDS {
        assert_eq!(client.line().expect("a reply"), format!(":{}", n / 100 + 1));
    }
    assert_eq!(client.0.read(&mut [0; 10]).expect("close_notify"), 0);
}

#[test]
fn a_client_that_does_not_read_gets_all_of_it_later_or_is_closed() {
    let secured = Secured::start(&[]);
    let mut lazy = secured.client();
    let value = "v".repeat(1_000_000);
    assert_eq!(lazy.call(&["SET", "large", &value]), "+OK");
    for _ in 0..30 {
        lazy.send(&["GET", "large"]).expect("sent");
    }
    let mut other = secured.client();
    for _ in 0..100 {
        assert_eq!(other.call(&["PING"]), "+PONG");
    }
    for n in 0..30 {
        assert!(lazy.reply() == value, "{n}");
    }
    config_set(&secured.server, "client-output-buffer-limit", "pubsub 1mb 0 0").expect("set");
    assert_eq!(lazy.call(&["SUBSCRIBE", "news"]), "*3");
    for _ in 0..100 {
        other.call(&["PUBLISH", "news", &value]);
    }
    let deadline = Instant::now() + PATIENCE;
    while other.call(&["CLIENT", "LIST"]).contains(" sub=1 ") {
        assert!(Instant::now() < deadline, "it stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn clients_need_a_certificate_as_the_setting_says() {
    let secured = Secured::start(&[]);
    let (authority, server) = (&secured.files.authority, &secured.server);
    let stranger = Authority::new("stranger").issue("client");
    let without = trusting(authority, None);
    let foreign = trusting(authority, Some(&stranger));
    let known = secured.config();
    let works = |config| Client::connect(secured.port, config).is_ok();
    for (setting, expected) in [
        ("yes", [true, false, false]),
        ("optional", [true, true, false]),
        ("no", [true, true, true]),
    ] {
        config_set(server, "tls-auth-clients", setting).expect("set");
        let found = [works(&known), works(&without), works(&foreign)];
        assert_eq!(found, expected, "{setting}");
    }
    secured.logs("failed TLS handshakes (last: 127.0.0.1:");
    let mut client = secured.client();
    let info = client.call(&["INFO", "flagstone"]);
    assert!(info.contains("tls_failed_handshakes:3\r\n"), "{info}");
}

#[test]
fn versions_and_ciphers_are_those_of_the_settings() {
    let secured = Secured::start(&["--tls-protocols", "TLSv1.2"]);
    let (authority, own) = (&secured.files.authority, Some(&secured.files.client));
    let old = versions(authority, own, &[&rustls::version::TLS12]);
    let new = versions(authority, own, &[&rustls::version::TLS13]);
    let cipher = |config| {
        let client = Client::connect(secured.port, config).ok()?;
        client.0.conn.negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite()))
    };
    assert!(cipher(&old).is_some());
    assert_eq!(cipher(&new), None);
    let set = |name, value| config_set(&secured.server, name, value).expect("set");
    set("tls-ciphers", "ECDHE-ECDSA-CHACHA20-POLY1305");
    assert_eq!(cipher(&old).as_deref(), Some("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"));
    set("tls-protocols", "TLSv1.2 TLSv1.3");
    set("tls-ciphersuites", "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384");
    assert_eq!(cipher(&new).as_deref(), Some("TLS13_AES_256_GCM_SHA384"), "the client's choice");
    set("tls-prefer-server-ciphers", "yes");
    assert_eq!(cipher(&new).as_deref(), Some("TLS13_AES_128_GCM_SHA256"));
    for (name, value) in
        [("tls-ciphers", "RC4-SHA"), ("tls-ciphersuites", "TLS_AES_128_CCM_SHA256")]
    {
        let error = config_set(&secured.server, name, value).expect_err("no cipher").to_string();
        assert!(error.contains(name) && error.contains("ECDHE") | error.contains("CCM"), "{error}");
    }
    assert_eq!(cipher(&new).as_deref(), Some("TLS13_AES_128_GCM_SHA256"));
}

#[test]
fn sessions_are_resumed_as_the_settings_say() {
    let secured = Secured::start(&[]);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let (authority, own) = (&secured.files.authority, Some(&secured.files.client));
        let mut config = Arc::unwrap_or_clone(versions(authority, own, &[version]));
        config.resumption = Resumption::in_memory_sessions(8);
        let config = Arc::new(config);
        let kind = || {
            let mut client = Client::connect(secured.port, &config).expect("a connection");
            assert_eq!(client.call(&["PING"]), "+PONG");
            client.0.conn.handshake_kind()
        };
        config_set(&secured.server, "tls-session-caching", "yes").expect("set");
        assert_eq!(kind(), Some(HandshakeKind::Full));
        assert_eq!(kind(), Some(HandshakeKind::Resumed));
        config_set(&secured.server, "tls-session-caching", "no").expect("set");
        assert_ne!(kind(), Some(HandshakeKind::Resumed));
        assert_ne!(kind(), Some(HandshakeKind::Resumed));
    }
}

#[test]
fn certificates_change_live_and_a_bad_file_changes_nothing() {
    let secured = Secured::start(&[]);
    let mut old = secured.client();
    let first = old.certificate();
    let cert = secured.files.path("server.crt");
    // The same names, other contents.
    secured.files.renew();
    assert_eq!(secured.client().certificate(), first);
    config_set(&secured.server, "tls-cert-file", &cert).expect("loaded anew");
    let second = secured.client().certificate();
    assert_ne!(second, first);
    secured.files.renew();
    secured.server.signal(Signal::HUP);
    secured.logs("SIGHUP: certificates are loaded anew");
    let third = secured.client().certificate();
    assert_ne!(third, second);
    // Connections keep the certificates that they began with.
    assert_eq!(old.call(&["PING"]), "+PONG");

    let refused = |name: &str, value: &str, reason: &str| {
        let error = config_set(&secured.server, name, value).expect_err("refused").to_string();
        assert!(error.contains("Unable to update TLS configuration."), "{error}");
        assert!(error.contains(&format!("'{name}'")) && error.contains(reason), "{error}");
        assert!(error.contains(value), "{error}");
        assert_eq!(secured.client().certificate(), third, "{name} {value}");
    };
    let path = |name: &str, text: &str| {
        let path = secured.files.path(name);
        fs::write(&path, text).expect("written");
        path
    };
    refused("tls-cert-file", "/nowhere/a.crt", "No such file or directory");
    refused("tls-cert-file", &path("empty", ""), "no certificate in PEM");
    refused("tls-key-file", &path("none", "-----BEGIN"), "");
    let other = secured.files.authority.issue("other").key;
    refused("tls-key-file", &path("other.key", &other), "it is not the key of");
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----";
    refused("tls-key-file", &path("encrypted.key", encrypted), "the key is encrypted");
    refused("tls-ca-cert-file", &path("no-ca", "text"), "no certificate in PEM");
    refused("tls-ca-cert-dir", "/nowhere", "No such file or directory");
    let shown: (String, String) = redis::cmd("CONFIG")
        .arg("GET")
        .arg("tls-cert-file")
        .query(&mut secured.server.client())
        .expect("its value");
    assert_eq!(shown.1, cert);
    // Those for connections to other servers, too.
    config_set(&secured.server, "tls-replication", "yes").expect("taken");
    let alone = config_set(&secured.server, "tls-client-cert-file", "/nowhere/a.crt");
    assert!(alone.expect_err("refused").to_string().contains("belong together"));
    let mut both = redis::cmd("CONFIG");
    both.arg("SET").arg("tls-client-cert-file").arg("/nowhere/a.crt");
    both.arg("tls-client-key-file").arg(secured.files.path("server.key"));
    let error = both.query::<()>(&mut secured.server.client()).expect_err("refused").to_string();
    assert!(error.contains("'tls-client-cert-file'") && error.contains("No such file"), "{error}");
    fs::write(&cert, "garbage").expect("written");
    secured.server.signal(Signal::HUP);
    secured.logs("SIGHUP: the old certificates stay: tls-cert-file");
    assert_eq!(secured.client().certificate(), third);
}

#[test]
fn the_port_opens_and_closes_live() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = Files::in_dir(dir.path());
    let mut server = Server::start(&["--workers", "2", "--shards", "2"]);
    let port = free_port();
    let config = trusting(&files.authority, Some(&files.client));
    let opens = || config_set(&server, "tls-port", &port.to_string());
    let error = opens().expect_err("no certificate").to_string();
    assert!(error.contains("No tls-cert-file configured!"), "{error}");
    config_set(&server, "tls-cert-file", &files.path("server.crt")).expect("set");
    config_set(&server, "tls-key-file", &files.path("server.key")).expect("set");
    let error = opens().expect_err("no authority").to_string();
    assert!(error.contains("tls-ca-cert-file or tls-ca-cert-dir must be specified"), "{error}");
    let dir_of_ca = dir.path().join("ca");
    fs::create_dir(&dir_of_ca).expect("made");
    fs::write(dir_of_ca.join("a.pem"), files.authority.pem()).expect("written");
    fs::write(dir_of_ca.join("README"), "no certificate").expect("written");
    config_set(&server, "tls-ca-cert-dir", &dir_of_ca.display().to_string()).expect("set");
    opens().expect("opened");
    let mut client = Client::connect(port, &config).expect("a connection");
    // Away from the port without TLS, and back.
    let plain = server.port().to_string();
    assert_eq!(client.call(&["CONFIG", "SET", "port", "0"]), "+OK");
    assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
    assert_eq!(client.call(&["CONFIG", "SET", "port", &plain]), "+OK");
    config_set(&server, "tls-port", "0").expect("closed");
    assert!(Client::connect(port, &config).is_err());
    assert_eq!(client.call(&["PING"]), "+PONG");
    server.stop();
}

#[test]
fn a_start_without_usable_files_says_which() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = Files::in_dir(dir.path());
    let server = Server::start(&[]);
    let port = free_port().to_string();
    let (cert, key) = (files.path("server.crt"), files.path("server.key"));
    let refused = |more: &[&str], reason: &str| {
        let all = [&["--dir", "elsewhere", "--tls-port", &port], more].concat();
        let (status, text) = server.refusal(&all);
        assert_eq!(status, Some(2), "{text}");
        assert!(text.contains(reason), "{text}");
    };
    refused(&[], "tls-cert-file: No tls-cert-file configured!");
    refused(&["--tls-cert-file", &cert], "tls-key-file: No tls-key-file configured!");
    let both = ["--tls-cert-file", &cert, "--tls-key-file", &key];
    refused(&both, "tls-ca-cert-file: Either tls-ca-cert-file or tls-ca-cert-dir");
    let missing = ["--tls-cert-file", "/nowhere", "--tls-key-file", &key];
    refused(&missing, "tls-cert-file: /nowhere: No such file");
    refused(&["--tls-key-file-pass", "secret"], "encrypted keys are not supported");
    let (_, text) = server.refusal(&["--tls-key-file-pass", "secret"]);
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn those_at_the_wrong_port_are_closed_and_counted() {
    let secured = Secured::start(&[]);
    let mut plain = TcpStream::connect(("127.0.0.1", secured.port)).expect("a connection");
    plain.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    plain.write_all(b"*1\r\n$4\r\nPING\r\n").expect("sent");
    let mut told = Vec::new();
    plain.read_to_end(&mut told).expect("an orderly end");
    assert_eq!(told, b"");
    secured.logs("1 without TLS at tls-port (last: 127.0.0.1:");
    let error = Client::connect(secured.server.port(), &secured.config()).err().expect("no TLS");
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    secured.logs("1 with TLS at a port without it (last: 127.0.0.1:");
    assert_eq!(secured.client().call(&["PING"]), "+PONG");
}

#[test]
fn handshakes_that_are_not_completed_keep_nobody_out() {
    let secured = Secured::start(&["--maxclients", "20"]);
    // More than the half that is for those who have yet to authenticate.
    let silent: Vec<TcpStream> =
        (0..30).map(|_| TcpStream::connect(("127.0.0.1", secured.port)).expect("taken")).collect();
    let began = Instant::now();
    for _ in 0..3 {
        // The client waits for its place, and keeps it.
        let mut client = Client::connect(secured.port, &secured.config()).expect("taken");
        assert_eq!(client.call(&["PING"]), "+PONG");
    }
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    secured.logs("it made room for others");
    // The others are closed in time. Several threads accept, so the last ones may be any of them.
    for stream in &silent {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        assert_eq!((&mut &*stream).read(&mut [0; 1]).expect("an orderly end"), 0);
    }
    assert!(began.elapsed() > Duration::from_secs(8), "{:?}", began.elapsed());
    assert!(secured.server.client().get::<_, Option<String>>("k").is_ok());
}

/// Runs a subcommand; returns its status and all that it says.
fn subcommand(words: &[&str]) -> (bool, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_flagstone")).args(words).output().expect("it runs");
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    (run.status.success(), format!("{out}{err}"))
}

#[test]
fn subcommands_speak_tls_and_use_unix_sockets() {
    let secured = Secured::start(&["--port", "0", "--requirepass", "p@ss", "--unixsocket", "sock"]);
    let path = |name: &str| secured.files.path(name);
    let (ca, cert, key, file) =
        (path("ca.crt"), path("client.crt"), path("client.key"), path("x.rdb"));
    let socket = secured.server.dir().join("sock").display().to_string();
    let own = ["--cacert", &ca, "--cert", &cert, "--key", &key];
    let address = format!("rediss://:p%40ss@127.0.0.1:{}", secured.port);
    // Values that take many records, both ways.
    let unix = format!("unix://:p%40ss@{socket}");
    let source = Server::start(&[]);
    let value = "v".repeat(100_000);
    for n in 0..200 {
        let () = source.client().set(format!("k{n}"), &value).expect("stored");
    }
    let port = source.port().to_string();
    let (ok, text) = subcommand(&["export", &file, "-p", &port]);
    assert!(ok, "{text}");
    let (ok, text) = subcommand(&[&["import", &file, "--to", &address], &own[..]].concat());
    assert!(ok && text.contains("200"), "{text}");
    let (ok, text) = subcommand(&[&["export", &file, "--from", &address], &own[..]].concat());
    assert!(ok && text.contains("200"), "{text}");
    let (ok, text) = subcommand(&["import", &file, "--replace", "--to", &unix]);
    assert!(ok && text.contains("200"), "{text}");
    // By options; a name that the certificate has, and one that it has not.
    let port = secured.port.to_string();
    let options = ["-h", "127.0.0.1", "-p", &port, "-a", "p@ss", "--tls"];
    let export = ["export", file.as_str()];
    let (ok, text) = subcommand(&[&export[..], &options, &own, &["--sni", "localhost"]].concat());
    assert!(ok, "{text}");
    let (ok, text) = subcommand(&[&export[..], &options, &own, &["--sni", "example.com"]].concat());
    assert!(!ok && text.contains("not valid for name"), "{text}");
    let (ok, text) = subcommand(&[&export[..], &options, &own[2..], &["--insecure"]].concat());
    assert!(ok, "{text}");
    let (ok, text) = subcommand(&[&export[..], &options, &own[2..]].concat());
    assert!(!ok && text.contains("no TLS with 127.0.0.1:"), "{text}");
    let (ok, text) = subcommand(&[&export[..], &options, &own[..2]].concat());
    assert!(!ok && text.contains("CertificateRequired"), "{text}");
    let (ok, text) = subcommand(&[&export[..], &options, &["--cacert", "/nowhere"]].concat());
    assert!(!ok && text.contains("--cacert: /nowhere: No such file"), "{text}");
}

#[test]
fn garbage_harms_nobody() {
    let secured = Secured::start(&[]);
    let mut seed = 88_172_645_463_325_252_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut good = secured.client();
    // A handshake that a client really begins.
    let name = ServerName::try_from("localhost").expect("a name");
    let mut session = ClientConnection::new(secured.config(), name).expect("a session");
    let mut hello = Vec::new();
    session.write_tls(&mut hello).expect("a hello");
    for round in 0..300 {
        let mut bytes = hello.clone();
        match round % 3 {
            0 => {
                for _ in 0..=random() % 8 {
                    let at = random() as usize % bytes.len();
                    bytes[at] = random() as u8;
                }
            }
            1 => bytes.truncate(random() as usize % bytes.len()),
            _ => bytes = (0..random() % 20_000).map(|_| random() as u8).collect(),
        }
        let mut socket = TcpStream::connect(("127.0.0.1", secured.port)).expect("a connection");
        // The server may close before it has read everything.
        let _ = socket.write_all(&bytes);
        let _ = socket.shutdown(Shutdown::Write);
        if round % 50 == 0 {
            assert_eq!(good.call(&["PING"]), "+PONG");
        }
    }
    // In the middle of a connection.
    let mut client = secured.client();
    client.0.sock.write_all(b"\x17\x03\x03\x00\x40garbage").expect("sent");
    client.0.sock.write_all(&[7; 200]).expect("sent");
    assert!(client.line().is_err());
    assert_eq!(secured.client().call(&["PING"]), "+PONG");
}
