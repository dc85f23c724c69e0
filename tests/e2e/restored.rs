//! Values that come by RESTORE, whose payloads take less than the values do.

use super::Server;
use redis::{Commands, Connection, cmd};

const MIB: usize = 1 << 20;

fn restored(client: &mut Connection, from: &str, to: &str) -> Result<(), redis::RedisError> {
    let payload: Vec<u8> = cmd("DUMP").arg(from).query(client).expect("a payload");
    cmd("RESTORE").arg(to).arg(0).arg(payload).exec(client)
}

/// A stream takes many times as much while its entries are decoded as it does in memory.
#[test]
fn a_stream_of_many_small_fields_is_restored_with_a_small_budget() {
    const ENTRIES: usize = 150_000;
    let server = Server::start(&["--workers", "1", "--memory-budget", "64mb"]);
    let mut client = server.client();
    let pairs: Vec<String> = (0..10).flat_map(|n| [format!("f{n}"), n.to_string()]).collect();
    for first in (1..=ENTRIES).step_by(1000) {
        let mut adds = redis::pipe();
        for n in first..first + 1000 {
            adds.cmd("XADD").arg("stream").arg(format!("{n}-1")).arg(&pairs).ignore();
        }
        adds.exec(&mut client).expect("added");
    }
    cmd("XGROUP").arg(&["CREATE", "stream", "g", "7-1"]).exec(&mut client).expect("made");
    restored(&mut client, "stream", "copy").expect("restored");
    let both = |client: &mut Connection, ask: &[&str]| {
        ["stream", "copy"].map(|key| {
            let mut it = cmd(ask[0]);
            it.arg(key).arg(&ask[1..]);
            it.query::<redis::Value>(client).expect("answered")
        })
    };
    for ask in [&["XLEN"][..], &["XRANGE", "149990-1", "+"], &["XRANGE", "-", "10-1"]] {
        let [old, new] = both(&mut client, ask);
        assert_eq!(old, new, "{ask:?}");
    }
}

/// SET takes such a string, too.
#[test]
fn a_long_string_is_restored_although_it_takes_more_than_other_values_may() {
    let server = Server::start(&["--workers", "1", "--memory-budget", "64mb"]);
    let mut client = server.client();
    let () = client.setrange("string", 100 * MIB as isize - 1, "x").expect("set");
    restored(&mut client, "string", "copy").expect("restored");
    assert_eq!(client.strlen("copy"), Ok(100 * MIB));
    assert_eq!(client.getrange("copy", -2, -1), Ok(b"\0x".to_vec()));
    cmd("CONFIG").arg(&["SET", "proto-max-bulk-len", "20mb"]).exec(&mut client).expect("set");
    let error = restored(&mut client, "string", "other").expect_err("it is too long");
    assert!(error.to_string().contains("more memory than a command may make"), "{error}");
}
