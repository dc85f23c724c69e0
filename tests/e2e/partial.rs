//! Collections of which a part is in memory, under pipelines of many connections: elements that are
//! read ahead for commands that wait never show an outdated state.

use super::Server;
use redis::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Elements of a collection: more than memory keeps of it.
const NAMES: u64 = 6000;

/// Padding that makes an element large.
const PAD: &str =
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";

const TYPES: [&str; 3] = ["set", "hash", "zset"];

/// Numbers that look random.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// The expected keys: type, and elements with their values.
type Model = BTreeMap<String, (&'static str, BTreeMap<String, i64>)>;

fn name(lane: &str, n: u64) -> String {
    format!("{lane}:{n}:{PAD}")
}

/// A command in words, and its reply.
type Step = (Vec<String>, Value);

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}

fn bulk(value: i64) -> Value {
    Value::BulkString(value.to_string().into_bytes())
}

/// The elements of a model's key for a change; the key is there for the first.
fn elements<'a>(
    model: &'a mut Model,
    key: &str,
    kind: &'static str,
) -> &'a mut BTreeMap<String, i64> {
    &mut model.entry(key.into()).or_insert_with(|| (kind, BTreeMap::new())).1
}

/// A command on one element.
fn one(draws: &mut Draws, model: &mut Model, key: &str, kind: &'static str, name: &str) -> Step {
    let held = elements(model, key, kind);
    let value = draws.below(1000) as i64;
    let text = value.to_string();
    let old = held.get(name).copied();
    let has = Value::Int(i64::from(old.is_some()));
    let step = match (kind, draws.below(4)) {
        (_, 0) => {
            held.remove(name);
            let verb = match kind {
                "set" => "SREM",
                "hash" => "HDEL",
                _ => "ZREM",
            };
            (words(&[verb, key, name]), has)
        }
        ("set", 1) => (words(&["SISMEMBER", key, name]), has),
        ("hash", 1) => (words(&["HGET", key, name]), old.map_or(Value::Nil, bulk)),
        (_, 1) => (words(&["ZSCORE", key, name]), old.map_or(Value::Nil, bulk)),
        ("hash", 2) => {
            held.insert(name.into(), old.unwrap_or(0) + value);
            (words(&["HINCRBY", key, name, &text]), Value::Int(old.unwrap_or(0) + value))
        }
        ("zset", 2) => {
            held.insert(name.into(), old.unwrap_or(0) + value);
            (words(&["ZINCRBY", key, &text, name]), bulk(old.unwrap_or(0) + value))
        }
        _ => {
            held.insert(name.into(), value);
            let new = Value::Int(i64::from(old.is_none()));
            match kind {
                "set" => (words(&["SADD", key, name]), new),
                "hash" => (words(&["HSET", key, name, &text]), new),
                _ => (words(&["ZADD", key, &text, name]), new),
            }
        }
    };
    model.retain(|_, (_, held)| !held.is_empty());
    step
}

/// Adds many elements at once.
fn fill(model: &mut Model, key: &str, kind: &'static str, lane: &str) -> Step {
    let held = elements(model, key, kind);
    let before = held.len();
    let verb = match kind {
        "set" => "SADD",
        "hash" => "HSET",
        _ => "ZADD",
    };
    let mut command = words(&[verb, key]);
    for n in 0..NAMES {
        let name = name(lane, n);
        match kind {
            "set" => command.push(name.clone()),
            "hash" => command.extend([name.clone(), n.to_string()]),
            _ => command.extend([n.to_string(), name.clone()]),
        }
        held.insert(name, n as i64);
    }
    (command, Value::Int((held.len() - before) as i64))
}

/// A command on a whole key of a lane.
fn whole(draws: &mut Draws, model: &mut Model, lane: &str) -> Vec<Step> {
    let kind = TYPES[draws.below(3) as usize];
    let (key, other) = (format!("{{{lane}}}{kind}"), format!("{{{lane}}}kept{kind}"));
    let there = model.get(&key).map(|(_, held)| held.len());
    match draws.below(4) {
        0 => {
            model.remove(&key);
            let gone = (words(&["DEL", &key]), Value::Int(i64::from(there.is_some())));
            vec![gone, fill(model, &key, kind, lane)]
        }
        1 if there.is_some() => {
            // There and back: the value that comes back has the same rows.
            let element = name(lane, draws.below(NAMES));
            let ok = || Value::Okay;
            let mut steps = vec![(words(&["RENAME", &key, &other]), ok())];
            let held = model.remove(&key).expect("it is there");
            model.insert(other.clone(), held);
            steps.push(one(draws, model, &other, kind, &element));
            steps.push((words(&["RENAME", &other, &key]), ok()));
            let held = model.remove(&other).expect("it is there");
            model.insert(key.clone(), held);
            steps.push(one(draws, model, &key, kind, &element));
            steps
        }
        2 => {
            // A transaction that is taken back as often as it misses something.
            let mut steps = vec![(words(&["MULTI"]), Value::Okay)];
            let mut replies = Vec::new();
            for _ in 0..4 {
                let element = name(lane, draws.below(NAMES));
                let (command, reply) = one(draws, model, &key, kind, &element);
                steps.push((command, Value::SimpleString("QUEUED".into())));
                replies.push(reply);
            }
            steps.push((words(&["EXEC"]), Value::Array(replies)));
            steps
        }
        _ => {
            let len = Value::Int(there.unwrap_or(0) as i64);
            let verb = match kind {
                "set" => "SCARD",
                "hash" => "HLEN",
                _ => "ZCARD",
            };
            vec![(words(&[verb, &key]), len)]
        }
    }
}

fn send(client: &mut redis::Connection, steps: &[Step]) {
    let mut pipe = Vec::new();
    for (command, _) in steps {
        let mut packed = redis::Cmd::new();
        for word in command {
            packed.arg(word);
        }
        pipe.extend_from_slice(&packed.get_packed_command());
    }
    client.send_packed_command(&pipe).expect("sent");
    for (command, reply) in steps {
        let got = client.recv_response().expect("a reply");
        let shown: Vec<&str> = command.iter().take(4).map(|w| &w[..w.len().min(20)]).collect();
        assert_eq!(&got, reply, "{shown:?}");
    }
}

/// Pipelines on keys of its own, and on its own elements of keys that all share.
fn hammer(server: &Server, lane: u64, rounds: u64) {
    let mut draws = Draws(0x9E37_79B9 + lane * 77);
    let mut client = server.client();
    let lane = format!("lane{lane}");
    let (mut own, mut shared) = (Model::new(), Model::new());
    for kind in TYPES {
        send(&mut client, &[fill(&mut own, &format!("{{{lane}}}{kind}"), kind, &lane)]);
        send(&mut client, &[fill(&mut shared, kind, kind, &lane)]);
    }
    for _ in 0..rounds {
        let mut steps = Vec::new();
        // Few names of many: the same ones come again within a pipeline.
        let (from, near) = (draws.below(NAMES), 1 + draws.below(40));
        for _ in 0..1 + draws.below(60) {
            let kind = TYPES[draws.below(3) as usize];
            let element = name(&lane, (from + draws.below(near)) % NAMES);
            match draws.below(40) {
                0 => steps.extend(whole(&mut draws, &mut own, &lane)),
                1..20 => {
                    let key = format!("{{{lane}}}{kind}");
                    steps.push(one(&mut draws, &mut own, &key, kind, &element));
                }
                _ => steps.push(one(&mut draws, &mut shared, kind, kind, &element)),
            }
        }
        send(&mut client, &steps);
    }
    for (key, (kind, held)) in &own {
        let verb = match *kind {
            "set" => "SCARD",
            "hash" => "HLEN",
            _ => "ZCARD",
        };
        send(&mut client, &[(words(&[verb, key]), Value::Int(held.len() as i64))]);
    }
}

#[test]
fn pipelines_on_collections_partly_in_memory_see_all_elements() {
    for workers in ["1", "2"] {
        let options = ["--workers", workers, "--shards", "2", "--memory-budget", "16mb"];
        let server = Server::start(&[&options[..], &["--handover-interval-ms", "100"]].concat());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..5)
                .map(|lane| {
                    let server = &server;
                    scope.spawn(move || hammer(server, lane, 20))
                })
                .collect();
            // Other keys drive everything out of memory.
            scope.spawn(|| {
                let mut client = server.client();
                let mut n = 0u64;
                while !done.load(Ordering::Relaxed) {
                    n += 1;
                    let key = format!("fill{}", n % 3000);
                    let () = redis::cmd("SET")
                        .arg(&[key, "x".repeat(3000)])
                        .query(&mut client)
                        .expect("stored");
                }
            });
            let ends: Vec<_> = lanes.into_iter().map(|lane| lane.join()).collect();
            done.store(true, Ordering::Relaxed);
            ends.into_iter().for_each(|end| end.expect("all replies are right"));
        });
        let mut client = server.client();
        let info: redis::InfoDict =
            redis::cmd("INFO").arg("everything").query(&mut client).expect("a reply");
        let dropped: u64 = info.get("hot_dropped_entries").expect("a number");
        assert!(dropped > 0, "everything was in memory");
    }
}

#[test]
fn a_transaction_ends_although_its_commands_miss_parts_of_values_in_turn() {
    let trim = redis::cmd("LTRIM").arg("list").arg(15).arg(-1).clone();
    let delete = redis::cmd("XDEL").arg("stream").arg("6061-0").arg("9001-0").clone();
    for workers in ["1", "2"] {
        let options = ["--workers", workers, "--shards", "2", "--memory-budget", "64mb"];
        let mut server = Server::start(&options);
        let mut pipe = redis::pipe();
        for n in 0..NAMES {
            let id = format!("{}-0", 3 * n + 1);
            pipe.cmd("XADD").arg("stream").arg(id).arg("field").arg(PAD).ignore();
            pipe.cmd("RPUSH").arg("list").arg(PAD).ignore();
        }
        let () = pipe.query(&mut server.client()).expect("stored");
        for commands in [[&delete, &trim], [&trim, &delete]] {
            // Behind a restart, nothing is in memory.
            server.stop();
            server.restart();
            let mut client = server.client();
            let patience = std::time::Duration::from_secs(20);
            client.set_read_timeout(Some(patience)).expect("a timeout");
            let mut pipe = redis::pipe();
            pipe.atomic();
            commands.iter().for_each(|command| _ = pipe.add_command((*command).clone()));
            let done: redis::RedisResult<Vec<Value>> = pipe.query(&mut client);
            assert_eq!(done.expect("it ends").len(), 2, "{workers} workers");
        }
        let mut client = server.client();
        let left: u64 = redis::cmd("XLEN").arg("stream").query(&mut client).expect("a number");
        assert_eq!(left, NAMES - 2);
        let left: u64 = redis::cmd("LLEN").arg("list").query(&mut client).expect("a number");
        assert_eq!(left, NAMES - 30);
    }
}

/// Operations of one BITFIELD run once, whatever of the string is on disk only.
#[test]
fn the_operations_of_a_bitfield_on_a_string_on_disk_run_once() {
    let mut server = Server::start(&["--workers", "2"]);
    let kib = 8 * 1024;
    // The string grows within its last chunk, to the next one, and far.
    for (len, end) in
        [(100_000, 101_000), (100_000, 120_000), (100_000, 1_000_000), (1_500_000, 1_600_000)]
    {
        let mut client = server.client();
        let () = redis::cmd("SET").arg("s").arg(vec![0u8; len]).query(&mut client).expect("SET");
        drop(client);
        server.stop();
        server.restart();
        let mut client = server.client();
        let mut field = redis::cmd("BITFIELD");
        field.arg("s").arg(&["INCRBY", "u16", "16"]).arg(12);
        field.arg(&["INCRBY", "u16"]).arg(20 * kib).arg(3);
        field.arg(&["GET", "u8"]).arg(8 * (end - 10));
        field.arg(&["SET", "u8"]).arg(8 * end).arg(5).arg(&["GET", "u8"]).arg(8 * (end - 1));
        let replies: Vec<i64> = field.query(&mut client).expect("BITFIELD");
        assert_eq!(replies, [12, 3, 0, 0, 0], "{len} {end}");
        let all: Vec<u8> = redis::cmd("GET").arg("s").query(&mut client).expect("GET");
        let expected = |at: usize| match at {
            3 => 12,
            at if at == 20 * 1024 + 1 => 3,
            at if at == end => 5,
            _ => 0,
        };
        assert_eq!(all.len(), end + 1);
        assert!(all.iter().enumerate().all(|(at, byte)| *byte == expected(at)), "{len} {end}");
    }
}
