//! Sorted sets that are not in memory.

use super::Server;
use redis::{Commands, Connection};

const MEMBERS: u32 = 4000;

fn name(n: u32) -> String {
    format!("m{n:05}")
}

/// Asks for the members in `left`, whose numbers are their scores, in order.
fn check(client: &mut Connection, left: &[u32]) {
    let len = left.len();
    assert_eq!(client.zcard("z"), Ok(len));
    for rank in [0, 1, len / 3, len / 2, len - 1] {
        let n = left[rank];
        assert_eq!(client.zrank("z", name(n)), Ok(rank));
        assert_eq!(client.zrevrank("z", name(n)), Ok(len - 1 - rank));
        assert_eq!(client.zscore("z", name(n)), Ok(f64::from(n)));
        let to = (rank + 300).min(len);
        let names: Vec<String> = left[rank..to].iter().map(|&n| name(n)).collect();
        assert_eq!(client.zrange("z", rank as isize, to as isize - 1), Ok(names.clone()));
        assert_eq!(client.zrangebyscore("z", n, left[to - 1]), Ok(names));
        assert_eq!(client.zcount("z", n, left[to - 1]), Ok(to - rank));
    }
}

fn pop(client: &mut Connection, command: &str) -> (String, f64) {
    redis::cmd(command).arg("z").query(client).expect("a member")
}

#[test]
fn sorted_sets_are_found_in_order_whatever_is_in_memory() {
    let options = ["--workers", "2", "--shards", "2", "--handover-interval-ms", "100"];
    let mut server = Server::start(&options);
    let mut client = server.client();
    let mut left: Vec<u32> = (0..MEMBERS).collect();
    for chunk in left.chunks(1000) {
        let pairs: Vec<(u32, String)> = chunk.iter().map(|&n| (n, name(n))).collect();
        let () = client.zadd_multiple("z", &pairs).expect("stored");
    }
    check(&mut client, &left);
    for round in 0..4u32 {
        // Killed at once, the server has cold data above all in the journal; later, in the engine.
        if round % 2 == 1 {
            std::thread::sleep(std::time::Duration::from_millis(400));
        }
        server.kill();
        server.restart();
        let mut client = server.client();
        // Changes come before anything was read.
        let n = left[left.len() / 2];
        assert_eq!(client.zrem("z", name(n)), Ok(1));
        left.retain(|&other| other != n);
        for _ in 0..300 {
            assert_eq!(pop(&mut client, "ZPOPMIN").0, name(left.remove(0)));
        }
        assert_eq!(pop(&mut client, "ZPOPMAX").0, name(left.pop().expect("there are more")));
        let (from, to) = (left[100], left[149]);
        assert_eq!(client.zrembyscore("z", from, to), Ok(50));
        left.drain(100..150);
        check(&mut client, &left);
    }
}

/// Ranks of members, each of which is then moved to another place.
const MOVES: &str = "local ranks = {}
    for n = 1, #ARGV, 2 do
        ranks[#ranks + 1] = redis.call('ZRANK', KEYS[1], ARGV[n])
        redis.call('ZADD', KEYS[1], ARGV[n + 1], ARGV[n])
    end
    return ranks";

#[test]
fn units_that_change_a_cold_sorted_set_and_count_in_it_run_as_if_it_were_in_memory() {
    for (workers, keys) in [("1", &["z"][..]), ("2", &["z"]), ("2", &["z", "{a}", "{b}"])] {
        let mut server = Server::start(&["--workers", workers, "--shards", "2"]);
        let mut client = server.client();
        // Members by score: the numbers are far apart, so that others go between them.
        let mut order: Vec<(u32, String)> = (0..MEMBERS).map(|n| (n * 1000, name(n))).collect();
        for chunk in order.chunks(1000) {
            let () = client.zadd_multiple("z", chunk).expect("stored");
        }
        for round in 0..3u32 {
            if round % 2 == 1 {
                server.stop();
            } else {
                server.kill();
            }
            server.restart();
            client = server.client();
            let mut moves = redis::cmd("EVAL");
            moves.arg(MOVES).arg(keys.len()).arg(keys);
            let mut expected = Vec::new();
            for step in 0..20u32 {
                let from = (step * 397 + round * 131) % MEMBERS;
                let score = ((step * 211 + round * 577) % MEMBERS) * 1000 + 1 + step + 100 * round;
                let (_, name) = order.remove(from as usize);
                moves.arg(&name).arg(score);
                expected.push(from);
                order.insert(order.partition_point(|(other, _)| *other < score), (score, name));
            }
            let ranks: Vec<u32> = moves.query(&mut client).expect("ranks");
            assert_eq!(ranks, expected, "round {round}, {workers} workers");
            // A transaction that changes it before it counts.
            let (low, high) = (order[1000].0, order[3000].0);
            let (count, middle): (u32, Vec<String>) = redis::pipe()
                .atomic()
                .zadd("z", &order[7].1, order[7].0)
                .ignore()
                .zincr("z", &order[2000].1, 0)
                .ignore()
                .zcount("z", low, high)
                .zrange("z", 1999, 2001)
                .query(&mut client)
                .expect("replies");
            assert_eq!(count, 2001);
            assert_eq!(middle, [1999, 2000, 2001].map(|at| order[at].1.clone()));
        }
        let all: Vec<(String, u32)> = client.zrange_withscores("z", 0, -1).expect("members");
        let all: Vec<(u32, String)> = all.into_iter().map(|(name, score)| (score, name)).collect();
        assert!(all == order, "{workers} workers");
    }
}
