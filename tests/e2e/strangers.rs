//! Clients without the password, or with a wrong one, take little from those that have it.

use super::Server;
use super::neighbours::{PATIENCE, expect, send};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn clients_without_a_password_get_little() {
    let server = Server::start(&["--requirepass", "right"]);
    let mut stranger = server.socket();
    stranger.write_all(&b"x\r\n".repeat(20_000)).expect("sent");
    stranger.set_read_timeout(Some(Duration::from_millis(1500))).expect("set");
    let mut told = Vec::new();
    // More does not come; the rest of its time it is left alone.
    assert!(stranger.read_to_end(&mut told).is_err());
    assert!((10_000..20_000).contains(&told.len()), "{} bytes", told.len());
}

#[test]
fn a_client_that_has_had_the_password_once_may_read_what_it_likes() {
    let server = Server::start(&["--requirepass", "right"]);
    let mut known = server.socket();
    known.set_read_timeout(Some(PATIENCE)).expect("set");
    send(&mut known, &[b"AUTH", b"right"]);
    expect(&mut known, b"+OK\r\n");
    send(&mut known, &[b"RESET"]);
    expect(&mut known, b"+RESET\r\n");
    known.write_all(&b"PING\r\n".repeat(2000)).expect("sent");
    expect(&mut known, &b"-NOAUTH Authentication required.\r\n".repeat(2000));
}

#[test]
fn half_of_the_places_are_for_clients_with_the_password() {
    let server = Server::start(&["--requirepass", "right", "--maxclients", "8"]);
    let mut silent: Vec<TcpStream> = (0..4).map(|_| server.socket()).collect();
    for socket in &mut silent {
        send(socket, &[b"PING"]);
        expect(socket, b"-NOAUTH Authentication required.\r\n");
    }
    let mut refused = server.socket();
    expect(&mut refused, b"-ERR max number of clients reached\r\n");
    send(&mut silent[0], &[b"AUTH", b"right"]);
    expect(&mut silent[0], b"+OK\r\n");
    let mut next = server.socket();
    send(&mut next, &[b"AUTH", b"right"]);
    expect(&mut next, b"+OK\r\n");
}

#[test]
fn wrong_passwords_take_longer_and_longer_and_other_clients_do_not_wait() {
    let server = Server::start(&["--requirepass", "right", "--workers", "1"]);
    let mut other = server.socket();
    send(&mut other, &[b"AUTH", b"right"]);
    expect(&mut other, b"+OK\r\n");
    let mut guesser = server.socket();
    let began = Instant::now();
    for _ in 0..4 {
        send(&mut guesser, &[b"AUTH", b"wrong"]);
    }
    let mut waits = Vec::new();
    for _ in 0..20 {
        let asked = Instant::now();
        send(&mut other, &[b"PING"]);
        expect(&mut other, b"+PONG\r\n");
        waits.push(asked.elapsed());
    }
    waits.sort_unstable();
    assert!(waits[10] < Duration::from_millis(40), "{waits:?}");
    for _ in 0..4 {
        expect(&mut guesser, b"-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    }
    // 50, 100, 200, 400 ms.
    assert!(began.elapsed() > Duration::from_millis(700), "{:?}", began.elapsed());
    send(&mut guesser, &[b"AUTH", b"right"]);
    expect(&mut guesser, b"+OK\r\n");
}
