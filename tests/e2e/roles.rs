//! The effects of a server's role on its clients: becoming a replica and a primary again, data sets
//! that fail or are cut off, and the commands that a replica refuses.

use super::Server;
use super::certificates::{Authority, Files};
use super::neighbours::{expect, send};
use super::replica::{EMPTY, ID, Primary, follow, info, text, within};
use redis::Commands;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream as AsyncTcpStream};
use tokio_rustls::TlsAcceptor;

/// The head of an RDB file, and its end without a checksum.
const HEAD: &[u8] = b"REDIS0009";
const END: &[u8] = b"\xff\0\0\0\0\0\0\0\0";

fn short(text: &str) -> Vec<u8> {
    [&[text.len() as u8][..], text.as_bytes()].concat()
}

/// Strings as keys of an RDB file.
fn strings(names: impl Iterator<Item = String>) -> Vec<u8> {
    names.flat_map(|name| [vec![0], short(&name), short("value")].concat()).collect()
}

fn local_only(command: &str) -> String {
    format!(
        "ERR {command} cannot be used with replica instances. Please also note that writes to \
         replicas are just local and are not propagated."
    )
}

#[test]
fn a_promoted_server_has_its_own_id_and_gets_all_data_when_it_follows_again() {
    let primary = Primary::serve(EMPTY);
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    let own = info(&mut client);
    assert!(own.contains("role:master") && !own.contains(ID), "{own}");
    follow(&mut client, &primary);
    primary.say(&["SELECT 0", "SET a 1"]);
    primary.wait();
    let same = text(&mut client, &["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
    assert!(same.contains("OK Already connected to specified master"), "{same}");
    assert!(info(&mut client).contains(&format!("master_replid:{ID}")));
    for (command, error) in [
        (&["WAIT", "1", "10"][..], &*local_only("WAIT")),
        (&["WAITAOF", "1", "0", "10"], &local_only("WAITAOF")),
        (&["FAILOVER"], "ERR FAILOVER is not valid when server is a replica."),
        (&["REPLICAOF", "host", "65536"], "ERR Invalid master port"),
        (&["REPLICAOF", "host", "x"], "ERR Invalid master port"),
    ] {
        assert_eq!(text(&mut client, command), error);
    }
    assert_eq!(text(&mut client, &["REPLICAOF", "NO", "ONE"]), "ok");
    assert_eq!(text(&mut client, &["REPLICAOF", "NO", "ONE"]), "ok");
    let promoted = info(&mut client);
    let end = primary.state().acknowledged;
    assert!(promoted.contains("role:master"), "{promoted}");
    assert!(!promoted.contains(&format!("master_replid:{ID}")), "{promoted}");
    assert!(promoted.contains(&format!("master_replid2:{ID}")), "{promoted}");
    assert!(promoted.contains(&format!("second_repl_offset:{}", end + 1)), "{promoted}");
    assert_eq!(text(&mut client, &["SET", "own", "1"]), "ok");
    assert_eq!(text(&mut client, &["FAILOVER"]), "ERR FAILOVER requires connected replicas.");
    assert_eq!(text(&mut client, &["FAILOVER", "ABORT"]), "ERR No failover in progress.");
    follow(&mut client, &primary);
    within(60, || primary.state().data_sets == 2);
    primary.say(&["SET b 1"]);
    primary.wait();
    assert_eq!(text(&mut client, &["GET", "own"]), "nil");
    assert_eq!(text(&mut client, &["GET", "a"]), "1");
}

#[test]
fn a_server_that_was_a_replica_asks_for_all_after_it_was_a_primary() {
    let primary = Primary::serve(EMPTY);
    let options = ["--replicaof", &format!("127.0.0.1 {}", primary.port)];
    let mut server = Server::start(&options);
    primary.say(&["SELECT 0", "SET a 1"]);
    primary.wait();
    server.kill();
    server.restart_with(&[]);
    let mut client = server.client();
    assert_eq!(text(&mut client, &["SET", "a", "own"]), "ok");
    drop(client);
    server.kill();
    server.restart_with(&options);
    within(60, || primary.state().data_sets == 2);
    primary.say(&["INCR n"]);
    primary.wait();
    assert_eq!(text(&mut server.client(), &["GET", "a"]), "1");
}

#[test]
fn clients_that_wait_are_told_when_the_server_becomes_a_replica() {
    let primary = Primary::serve(EMPTY);
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let waiting = |command: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it connects");
        stream.write_all(command.as_bytes()).expect("it is sent");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        stream
    };
    let streams = [waiting("BLPOP list 0\r\n"), waiting("WAIT 1 0\r\n")];
    let mut client = server.client();
    within(60, || {
        let mut client = server.client();
        let shown: String = redis::cmd("CLIENT").arg("LIST").query(&mut client).expect("a list");
        shown.matches("flags=b").count() == 2
    });
    follow(&mut client, &primary);
    for mut stream in streams {
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("the connection ends");
        let error = "-UNBLOCKED force unblock from blocking operation, instance state changed \
                     (master -> replica?)\r\n";
        assert_eq!(reply, error);
    }
    primary.say(&["SELECT 0", "RPUSH list x"]);
    primary.wait();
    assert_eq!(text(&mut client, &["LLEN", "list"]), "1");
}

/// Waits until a script holds a key, so that a read of it waits, too.
fn until_held(server: &Server, key: &str) {
    let mut client = server.client();
    let mut parked = || -> u64 {
        let all = text(&mut client, &["INFO", "flagstone"]);
        let found = all.lines().find_map(|line| line.strip_prefix("commands_parked:"));
        found.and_then(|count| count.parse().ok()).expect("a counter")
    };
    within(60, || {
        let before = parked();
        let mut probe = server.socket();
        send(&mut probe, &[b"GET", key.as_bytes()]);
        probe.set_nonblocking(true).expect("it does not block");
        loop {
            if probe.peek(&mut [0]).is_ok() {
                return false;
            }
            if parked() > before {
                return true;
            }
        }
    });
}

#[test]
fn writes_that_wait_when_the_server_becomes_a_replica_are_refused() {
    for workers in ["1", "2"] {
        let options = ["--workers", workers, "--shards", "2", "--busy-reply-threshold", "3600000"];
        let server = Server::start(&[&options[..], &["--script-instruction-limit", "0"]].concat());
        let mut holder = server.socket();
        // Both keys are on different shards.
        let endless = "while true do redis.call('GET', KEYS[1]) end";
        send(&mut holder, &[b"EVAL", endless.as_bytes(), b"2", b"a", b"b"]);
        until_held(&server, "a");
        until_held(&server, "b");
        let set: &[&[u8]] = &[b"SET", b"a", b"1"];
        let mset: &[&[u8]] = &[b"MSET", b"a", b"1", b"b", b"2"];
        let (multi, exec): (&[&[u8]], &[&[u8]]) = (&[b"MULTI"], &[b"EXEC"]);
        let refused = "-READONLY You can't write against a read only replica.\r\n";
        let queued = ["+OK\r\n+QUEUED\r\n", refused].concat();
        let library = b"#!lua name=l\nredis.register_function('f', function() end)";
        let cases: [(&[&[&[u8]]], &str); 7] = [
            (&[set], refused),
            (&[mset], refused),
            (&[&[b"FLUSHALL"]], refused),
            (&[&[b"SWAPDB", b"0", b"1"]], refused),
            (&[&[b"FUNCTION", b"LOAD", library]], refused),
            (&[multi, set, exec], &queued),
            (&[&[b"STRLEN", b"a"]], ":0\r\n"),
        ];
        let mut waiting: Vec<_> = cases
            .iter()
            .map(|(commands, reply)| {
                let mut socket = server.socket();
                commands.iter().for_each(|command| send(&mut socket, command));
                (socket, reply)
            })
            .collect();
        let mut client = server.client();
        within(60, || {
            let list = text(&mut client, &["CLIENT", "LIST"]);
            let is_there = |name: &str| list.contains(&format!(" cmd={name} "));
            let names = ["set", "mset", "flushall", "swapdb", "function|load", "exec", "strlen"];
            names.into_iter().all(is_there)
        });
        assert_eq!(text(&mut client, &["REPLICAOF", "127.0.0.1", "1"]), "ok");
        assert_eq!(text(&mut client, &["SCRIPT", "KILL"]), "ok");
        for (socket, reply) in &mut waiting {
            expect(socket, reply.as_bytes());
        }
        assert_eq!(text(&mut client, &["DBSIZE"]), "0", "{workers} workers");
    }
}

#[test]
fn a_data_set_that_cannot_be_loaded_leaves_nothing() {
    // A string, then a type that does not exist.
    let broken = [HEAD, &strings(["whole".to_owned()].into_iter()), b"\x63\x01k", END].concat();
    let primary = Primary::serve(&broken);
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    let _: () = client.set("own", "data").expect("SET");
    follow(&mut client, &primary);
    within(60, || server.log().contains("cannot be loaded"));
    within(60, || server.log().contains("it was a part"));
    within(60, || text(&mut server.client(), &["DBSIZE"]) == "0");
    assert!(info(&mut client).contains("master_link_status:down"));
    primary.have(EMPTY);
    primary.say(&["SELECT 0", "SET a 1"]);
    primary.wait();
    assert_eq!(text(&mut client, &["GET", "a"]), "1");
}

/// Kills a server while it loads a data set of so many keys; `None` if the load was over before.
fn cut_off(keys: usize) -> Option<(Server, Primary)> {
    let data_set = [HEAD, &strings((0..keys).map(|n| format!("key {n}"))), END].concat();
    let primary = Primary::serve(&data_set);
    let mut server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    let _: () = client.set("own", "data").expect("SET");
    follow(&mut client, &primary);
    let is_over = || server.log().contains("the data set is there");
    within(60, || is_over() || text(&mut client, &["INFO", "persistence"]).contains("loading:1"));
    let (read, written) =
        (text(&mut client, &["GET", "own"]), text(&mut client, &["SET", "own", "x"]));
    within(60, || is_over() || text(&mut client, &["INFO", "keyspace"]).contains("keys="));
    server.kill();
    if server.log().contains("the data set is there") {
        return None;
    }
    assert!(read.starts_with("LOADING"), "{read}");
    assert!(written.starts_with("READONLY"), "{written}");
    Some((server, primary))
}

#[test]
fn a_data_set_that_a_kill_has_cut_off_is_deleted_before_anybody_is_served() {
    let tries = [100_000, 400_000, 1_600_000].into_iter();
    let found = tries.filter_map(|keys| Some((keys, cut_off(keys)?))).next();
    let (keys, (mut server, primary)) = found.expect("a kill comes in time");
    // As a primary: the part must not be taken for its data.
    server.restart();
    let mut client = server.client();
    assert_eq!(text(&mut client, &["DBSIZE"]), "0");
    assert!(server.log().contains("it was a part"));
    assert_eq!(text(&mut client, &["SET", "a", "b"]), "ok");
    // And it can follow again.
    follow(&mut client, &primary);
    within(60, || info(&mut server.client()).contains("master_link_status:up"));
    assert_eq!(text(&mut client, &["DBSIZE"]), keys.to_string());
}

#[test]
fn commands_that_fail_here_are_told_and_the_stream_goes_on() {
    let primary = Primary::serve(EMPTY);
    let server =
        Server::start(&["--workers", "2", "--shards", "2", "--rename-command", "INCR", "rise"]);
    let mut client = server.client();
    follow(&mut client, &primary);
    primary.say(&["SELECT 0", "SET text x", "MULTI", "LPUSH text 1", "INCR n", "EXEC"]);
    primary.say(&["MODULE.SET x", "INCR n", "MULTI", "MODULE.SET y", "INCR n", "EXEC"]);
    primary.wait();
    assert_eq!(text(&mut client, &["GET", "n"]), "3", "clients call INCR by another name");
    let log = server.log();
    assert!(log.contains("the command lpush of the primary has failed here"), "{log}");
    assert!(log.contains("MODULE.SET"), "{log}");
}

#[test]
fn a_server_parts_from_a_stream_whose_script_does_not_end() {
    for (workers, has_other) in [("1", false), ("2", false), ("2", true)] {
        let (primary, other) = (Primary::serve(EMPTY), Primary::serve(EMPTY));
        let options = ["--workers", workers, "--shards", "2", "--busy-reply-threshold", "300"];
        let server = Server::start(&options);
        let mut client = server.client();
        follow(&mut client, &primary);
        for both in [&primary, &other] {
            both.say(&["SELECT 0", "SET a 1", "SET k 1"]);
        }
        primary.wait();
        primary.say(&["EVAL while(1)do(redis.call)('INCR',KEYS[1])end 1 k"]);
        within(60, || text(&mut client, &["GET", "k"]).starts_with("BUSY"));
        if has_other {
            other.say(&["SET b 2"]);
            follow(&mut client, &other);
            within(60, || text(&mut client, &["GET", "b"]) == "2");
        }
        assert_eq!(text(&mut client, &["REPLICAOF", "NO", "ONE"]), "ok");
        assert!(info(&mut client).contains("role:master"));
        assert_eq!(text(&mut client, &["GET", "k"]), "1", "nothing of the script stays");
        assert_eq!(text(&mut client, &["SET", "k", "own"]), "ok");
    }
}

#[test]
fn commands_on_the_server_itself_are_no_part_of_a_stream() {
    let primary = Primary::serve(EMPTY);
    let server = Server::start(&["--enable-debug-command", "yes"]);
    let mut client = server.client();
    follow(&mut client, &primary);
    primary.say(&["SELECT 0", "DEBUG SLEEP 1000000", "REPLICAOF NO ONE", "SHUTDOWN NOSAVE"]);
    primary.say(&["CONFIG SET maxclients 1", "MULTI", "DEBUG SLEEP 1000000", "SET a 1", "EXEC"]);
    primary.wait();
    assert_eq!(text(&mut client, &["GET", "a"]), "1");
    assert!(info(&mut client).contains("role:slave"));
    let log = server.log();
    for name in ["DEBUG", "REPLICAOF", "SHUTDOWN", "CONFIG"] {
        assert_eq!(log.matches(&format!("left out name={name}")).count(), 1, "{log}");
    }
}

#[test]
fn the_stream_goes_on_under_another_id() {
    let new_id = "fedcba9876543210fedcba9876543210fedcba98";
    let primary = Primary::serve(EMPTY);
    let options = ["--replicaof", &format!("127.0.0.1 {}", primary.port)];
    let mut server = Server::start(&options);
    primary.say(&["SELECT 0", "INCR n"]);
    primary.wait();
    primary.state().new_id = Some(new_id);
    for id in [ID, new_id] {
        server.kill();
        server.restart();
        within(60, || primary.state().asked_by == id);
        within(60, || info(&mut server.client()).contains(&format!("master_replid:{new_id}")));
    }
    primary.say(&["INCR n"]);
    primary.wait();
    assert_eq!(text(&mut server.client(), &["GET", "n"]), "2");
    assert_eq!(primary.state().data_sets, 1);
}

#[test]
fn the_stream_of_a_primary_that_is_a_replica_begins_in_its_database() {
    let aux = [&b"\xfa"[..], &short("repl-stream-db"), &short("3")].concat();
    let primary = Primary::serve(&[HEAD, &aux, END].concat());
    let server = Server::start(&[]);
    follow(&mut server.client(), &primary);
    primary.say(&["SET a 1"]);
    primary.wait();
    assert!(text(&mut server.client(), &["INFO", "keyspace"]).contains("db3:keys=1"));
}

#[test]
fn fields_stay_until_the_primary_deletes_them() {
    let primary = Primary::serve(EMPTY);
    let server = Server::start(&["--workers", "2", "--shards", "2"]);
    let mut client = server.client();
    follow(&mut client, &primary);
    primary.say(&["SELECT 0", "HSET h n 5 due 1", "HPEXPIREAT h 1000 FIELDS 2 n due"]);
    primary.wait();
    assert_eq!(text(&mut client, &["HGET", "h", "n"]), "nil");
    assert_eq!(text(&mut client, &["HRANDFIELD", "h"]), "nil");
    primary.say(&["HINCRBY h n 1", "HPERSIST h FIELDS 1 n"]);
    primary.wait();
    assert_eq!(text(&mut client, &["HGET", "h", "n"]), "6");
    assert_eq!(text(&mut client, &["HRANDFIELD", "h"]), "n");
    primary.say(&["HDEL h due n"]);
    primary.wait();
    assert_eq!(text(&mut client, &["EXISTS", "h"]), "0");
}

#[test]
fn a_silent_primary_is_given_up_and_a_server_that_follows_itself_says_why() {
    let primary = Primary::serve(EMPTY);
    let server = Server::start(&["--repl-timeout", "1"]);
    let mut client = server.client();
    follow(&mut client, &primary);
    primary.say(&["SELECT 0", "SET a 1"]);
    primary.wait();
    primary.state().is_silent = true;
    within(60, || server.log().contains("nothing has come for 1 s (repl-timeout)"));
    primary.state().is_silent = false;
    within(60, || primary.state().continued > 0);
    assert_eq!(text(&mut client, &["REPLICAOF", "127.0.0.1", &server.port().to_string()]), "ok");
    within(60, || server.log().contains("NOMASTERLINK"));
    assert_eq!(text(&mut client, &["GET", "a"]), "1");
}

#[test]
fn settings_of_a_replica_take_effect_at_once() {
    let primary = Primary::serve(EMPTY);
    let server = Server::start(&[]);
    let mut client = server.client();
    follow(&mut client, &primary);
    primary.say(&["SELECT 0", "SET a 1"]);
    primary.wait();
    let set = |name: &str, value: &str| {
        assert_eq!(text(&mut server.client(), &["CONFIG", "SET", name, value]), "ok");
    };
    set("replica-read-only", "no");
    assert_eq!(text(&mut client, &["SET", "own", "1"]), "ok");
    assert!(info(&mut client).contains("slave_read_only:0"));
    set("replica-read-only", "yes");
    assert!(text(&mut client, &["SET", "own", "2"]).starts_with("READONLY"));
    set("replica-priority", "7");
    assert!(info(&mut client).contains("slave_priority:7"));
    set("repl-timeout", "1");
    primary.state().is_silent = true;
    within(60, || server.log().contains("nothing has come for 1 s (repl-timeout)"));
    set("replica-serve-stale-data", "no");
    within(60, || {
        let reply = text(&mut server.client(), &["GET", "a"]);
        reply == "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
    });
    set("replica-serve-stale-data", "yes");
    assert_eq!(text(&mut client, &["GET", "a"]), "1");
}

#[test]
fn a_full_disk_ends_the_link_and_nothing_is_left_out() {
    let primary = Primary::serve(EMPTY);
    let from = format!("127.0.0.1 {}", primary.port);
    let mut server = Server::start(&["--workers", "2", "--shards", "2", "--replicaof", &from]);
    primary.say(&["SELECT 0", "INCR n"]);
    primary.wait();
    // Files cannot grow any more, that of the log neither: there is room for a segment of 4 MiB.
    server.limit_files(Some(0));
    let large = "x".repeat(1 << 20);
    for _ in 0..20 {
        primary.say(&["MULTI", "INCR n", "RPUSH list x", &format!("SET large {large}"), "EXEC"]);
    }
    within(60, || info(&mut server.client()).contains("master_link_status:down"));
    let acknowledged = primary.state().acknowledged;
    assert!(acknowledged < primary.end(), "not all of it could be stored");
    // The journal cannot go on before a restart: its file may have a torn record.
    server.kill();
    server.restart();
    let mut client = server.client();
    primary.wait();
    assert_eq!(text(&mut client, &["GET", "n"]), "21");
    assert_eq!(text(&mut client, &["LLEN", "list"]), "20");
    assert_eq!(primary.state().data_sets, 1);
}

/// TLS in front of a primary, at an address that is not in its certificate; clients need one, too.
/// It ends with the test's process. Returns its port.
fn secured(authority: &Authority, primary: &Primary) -> u16 {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.der().into()).expect("an authority");
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let issued = authority.issue("primary");
    let chain = CertificateDer::from_pem_slice(issued.certificate.as_bytes());
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).expect("a key");
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier.expect("a verifier"))
        .with_single_cert(vec![chain.expect("a certificate")], key);
    let acceptor = TlsAcceptor::from(Arc::new(config.expect("a configuration")));
    let port = primary.port;
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async move {
            let listener = TcpListener::bind("127.0.0.2:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            sender.send(address.port()).expect("it is awaited");
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut plain =
                    AsyncTcpStream::connect(("127.0.0.1", port)).await.expect("it is there");
                tokio::spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut plain).await;
                });
            }
        });
    });
    receiver.recv().expect("its port")
}

#[test]
fn the_link_is_secured_and_trusts_authorities_not_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let files = Files::in_dir(dir.path());
    let primary = Primary::serve(EMPTY);
    primary.say(&["SELECT 0", "SET a 1"]);
    let port = secured(&files.authority, &primary);
    let stranger = tempfile::tempdir().expect("a directory");
    let other = Files::in_dir(stranger.path());
    let server = Server::start(&[
        "--tls-replication",
        "yes",
        "--tls-ca-cert-file",
        &other.path("ca.crt"),
        "--tls-client-cert-file",
        &files.path("client.crt"),
        "--tls-client-key-file",
        &files.path("client.key"),
        "--replicaof",
        &format!("127.0.0.2 {port}"),
    ]);
    within(60, || server.log().contains("no TLS"));
    assert_eq!(primary.state().data_sets, 0);
    let mut client = server.client();
    assert_eq!(
        text(&mut client, &["CONFIG", "SET", "tls-ca-cert-file", &files.path("ca.crt")]),
        "ok"
    );
    primary.wait();
    assert_eq!(text(&mut client, &["GET", "a"]), "1");
}
