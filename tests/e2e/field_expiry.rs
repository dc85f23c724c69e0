//! Fields of hashes that expire.

use super::Server;
use super::followers::{Reader, caught_up, contents, count, until};
use redis::{Commands, Connection, cmd};
use std::time::Duration;

const TWO: [&str; 4] = ["--workers", "2", "--shards", "2"];

fn run(client: &mut Connection, line: &str) -> redis::Value {
    let mut words = line.split(' ');
    let mut command = cmd(words.next().unwrap_or_default());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(client).expect("answered")
}

/// Sets a field that expires soon.
fn set_for(client: &mut Connection, key: &str, field: usize, ms: u64) {
    run(client, &format!("HSETEX {key} PX {ms} FIELDS 1 short{field} value"));
}

#[test]
fn fields_of_a_big_hash_that_is_not_in_memory_are_deleted_when_they_are_due() {
    const FIELDS: usize = 5000;
    let mut server = Server::start(&TWO);
    let mut client = server.client();
    for first in (0..FIELDS).step_by(500) {
        let pairs: Vec<(String, String)> =
            (first..first + 500).map(|n| (format!("field{n}"), "v".repeat(100))).collect();
        let () = client.hset_multiple("h", &pairs).expect("stored");
    }
    // Some are due after the restart, when the meta row has only the time of the first.
    (0..10).for_each(|n| set_for(&mut client, "h", n, 100 + 300 * n as u64));
    server.stop();
    server.restart();
    let mut client = server.client();
    let len = |client: &mut Connection| client.hlen::<_, usize>("h").expect("a length");
    until("the old ones are gone", || len(&mut client) == FIELDS);
    // Others come beside fields that are not in memory.
    (10..20).for_each(|n| set_for(&mut client, "h", n, 50));
    until("the new ones are gone", || len(&mut client) == FIELDS);
    run(&mut client, "HPEXPIRE h 50 FIELDS 2 field7 field4000");
    until("those that had no expiry are gone", || len(&mut client) == FIELDS - 2);
    assert_eq!(client.hget("h", "field7"), Ok(None::<String>));
    assert_eq!(client.hget("h", "field8"), Ok("v".repeat(100)));
    server.kill();
    server.restart();
    assert_eq!(len(&mut server.client()), FIELDS - 2);
}

#[test]
fn all_fields_of_a_cold_hash_are_deleted_although_more_are_due_than_a_walk_finds() {
    const FIELDS: usize = 12_000;
    const KEPT: usize = 1000;
    let mut server = Server::start(&TWO);
    let mut client = server.client();
    let name = |n: usize| format!("field{n}");
    for first in (0..FIELDS + KEPT).step_by(500) {
        let pairs: Vec<(String, String)> =
            (first..first + 500).map(|n| (name(n), "v".repeat(20))).collect();
        let () = client.hset_multiple("h", &pairs).expect("stored");
    }
    let far = |at: usize| if at.is_multiple_of(7) { 1_000_000 } else { 1000 + at as u64 % 10 };
    for first in (0..FIELDS).step_by(500) {
        for at in 0..10 {
            let names: Vec<String> =
                (first..first + 500).filter(|n| n % 10 == at).map(name).collect();
            let line = format!("HPEXPIRE h {} FIELDS {} ", far(at), names.len());
            run(&mut client, &(line + &names.join(" ")));
        }
    }
    server.kill();
    std::thread::sleep(Duration::from_secs(1));
    server.restart();
    let mut client = server.client();
    let left = FIELDS / 5 + KEPT;
    until("those that are due are gone", || client.hlen("h") == Ok(left));
    assert_eq!(client.hget("h", name(FIELDS + 1)), Ok("v".repeat(20)));
    let ttls: Vec<i64> =
        cmd("HPTTL").arg(&["h", "FIELDS", "2", "field7", "field12500"]).query(&mut client).unwrap();
    assert!(ttls[0] > 100_000 && ttls[1] == -1, "{ttls:?}");
}

/// Servers limit the arguments of a command, also of one from their primary.
#[test]
fn many_fields_go_by_several_commands_of_the_stream() {
    const FIELDS: usize = 2500;
    let server = Server::start(&TWO);
    let (mut client, mut reader) = (server.client(), Reader::connect(&server));
    assert!(reader.ask("PSYNC ? -1").starts_with("+FULLRESYNC"));
    reader.data_set();
    let names: Vec<String> = (0..FIELDS).map(|n| format!("f{n}")).collect();
    let pairs: Vec<(&str, u32)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    for how in ["HGETDEL h", "HPEXPIRE h 20"] {
        let () = client.hset_multiple("h", &pairs).expect("stored");
        run(&mut client, &format!("{how} FIELDS {FIELDS} {}", names.join(" ")));
        let mut deleted = Vec::new();
        while deleted.iter().sum::<usize>() < FIELDS {
            let said = reader.next();
            let fields = said.strip_prefix("HDEL h ").map(|names| names.split(' ').count());
            deleted.extend(fields);
        }
        assert_eq!(deleted, [1024, 1024, 452], "{how}");
    }
}

#[test]
fn a_key_whose_fields_have_all_expired_keeps_its_own_expiry_on_replicas_too() {
    let server = Server::start(&[&TWO[..], &["--enable-debug-command", "yes"]].concat());
    let of = ["--replicaof", &format!("127.0.0.1 {}", server.port())];
    let replica = Server::start(&[&TWO[..], &of].concat());
    let (mut client, mut behind) = (server.client(), replica.client());
    caught_up(&mut client, &mut behind);
    // The fields stay until a command meets them.
    run(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
    let writes = [
        "HSET % short0 new",
        "HSET % short0 new short0 again",
        "HSETNX % short0 new",
        "HINCRBY % short0 3",
        "HINCRBYFLOAT % short0 2.5",
        "HSETEX % FIELDS 1 short0 new",
        "HSETEX % KEEPTTL FIELDS 1 short0 new",
        "HSETEX % PX 1000000 FIELDS 1 short0 new",
        "HSETEX % FNX FIELDS 1 short0 new",
        "HSETEX % FXX FIELDS 1 short0 new",
        "HSET % other new",
        "EVAL return(redis.call('HSET',KEYS[1],'short0','new')) 1 %",
    ];
    for (n, _) in writes.iter().enumerate() {
        let key = format!("h{n}");
        set_for(&mut client, &key, 0, 20);
        run(&mut client, &format!("EXPIRE {key} 1000"));
    }
    std::thread::sleep(Duration::from_millis(30));
    for (n, write) in writes.iter().enumerate() {
        run(&mut client, &write.replace('%', &format!("h{n}")));
    }
    caught_up(&mut client, &mut behind);
    assert!(count(&mut client, "expired_subkeys") > 0);
    for (n, write) in writes.iter().enumerate() {
        let key = format!("h{n}");
        let of = |client: &mut Connection| {
            let fields: Vec<(String, String)> = client.hgetall(&key).expect("fields");
            (cmd("PEXPIRETIME").arg(&key).query::<i64>(client).expect("a time"), fields)
        };
        assert_eq!(of(&mut client), of(&mut behind), "{write}");
    }
    let exists = |client: &mut Connection| contents(client, 0).len();
    assert_eq!(exists(&mut client), exists(&mut behind));
}

/// A replica has fields that have expired until its primary says that they go.
#[test]
fn replicas_have_the_result_of_commands_that_meet_expired_fields_or_keep_expiries() {
    let server = Server::start(&[&TWO[..], &["--enable-debug-command", "yes"]].concat());
    let of = ["--replicaof", &format!("127.0.0.1 {}", server.port())];
    let replica = Server::start(&[&TWO[..], &of].concat());
    let (mut client, mut behind) = (server.client(), replica.client());
    caught_up(&mut client, &mut behind);
    run(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
    run(&mut client, "SADD s 1 2 3");
    for n in 1..=3 {
        run(&mut client, &format!("HSET h_{n} weight {n} text text{n}"));
    }
    run(&mut client, "HSETEX h_3 PX 20 FIELDS 2 weight 9 text gone");
    run(&mut client, "HSET dumped stays 1");
    run(&mut client, "CONFIG SET rdbcompression no");
    // A payload that comes late has no field that has expired.
    let payload = loop {
        set_for(&mut client, "dumped", 0, 100);
        let payload: Vec<u8> = cmd("DUMP").arg("dumped").query(&mut client).expect("a payload");
        if payload.windows(6).any(|bytes| bytes == b"short0") {
            break payload;
        }
    };
    run(&mut client, "HSET counts n 1 m 1 f 1");
    run(&mut client, "HPEXPIREAT counts 4000000000000 FIELDS 2 n f");
    std::thread::sleep(Duration::from_millis(130));
    run(&mut client, "SORT s BY h_*->weight STORE by");
    run(&mut client, "SORT s GET h_*->text STORE get");
    run(&mut client, "RPUSH none x");
    run(&mut client, "SORT s BY h_*->weight LIMIT 7 1 STORE none");
    let restore = |key: &str| cmd("RESTORE").arg(key).arg(0).arg(&payload).to_owned();
    restore("restored").exec(&mut client).expect("restored");
    run(&mut client, "HINCRBYFLOAT counts f 1.5");
    run(&mut client, "HINCRBYFLOAT counts m 1.5");
    run(&mut client, "HINCRBY counts n 1");
    caught_up(&mut client, &mut behind);
    let of = |client: &mut Connection| {
        let list = |client: &mut Connection, key| -> Vec<String> {
            client.lrange(key, 0, -1).expect("elements")
        };
        let lists = [list(client, "by"), list(client, "get")];
        let times: Vec<i64> = cmd("HPEXPIRETIME")
            .arg(&["counts", "FIELDS", "3", "n", "m", "f"])
            .query(client)
            .expect("times");
        let fields: Vec<String> =
            cmd("HMGET").arg(&["counts", "n", "m", "f"]).query(client).expect("values");
        (lists, times, fields, client.hlen::<_, u64>("restored"), client.exists::<_, u64>("none"))
    };
    let text = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let far = 4_000_000_000_000;
    let expected = (
        [text(&["3", "1", "2"]), text(&["text1", "text2", ""])],
        vec![far, -1, far],
        text(&["2", "2.5", "2.5"]),
        Ok(1),
        Ok(0),
    );
    assert_eq!(of(&mut client), expected);
    assert_eq!(of(&mut behind), expected);
}
