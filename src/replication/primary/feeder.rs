//! The task that feeds the stream: takes the words of durable records, sends pings, disconnects
//! replicas that are silent or too slow, and ends a stream that nobody has followed for long.

use super::begin::end_stream;
use crate::config::{AppendFsync, OutputBufferLimit, Settings};
use crate::followers::{FailoverStep, Follower, FollowerState, REPLICA_LEASE};
use crate::node::Node;
use crate::worker::{Peers, Worker, WorkerGone};
use flagstone_wire::resp::Reply;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Interval at which it looks after the replicas.
const PERIOD: Duration = Duration::from_millis(100);

/// Interval at which the lease of the replicas is renewed.
const RENEWAL: Duration = REPLICA_LEASE.checked_div(4).expect("it is no zero");

/// Worker whose rounds get what the server itself sends to replicas.
const SPEAKER: usize = 0;

/// Least memory for the stream that a limit leaves, in bytes: below, a replica would be disconnected
/// by a single record.
const LEAST_LIMIT: u64 = 16 << 20;

/// Part of the memory budget that the stream may take for a slow replica.
const BUDGET_PART: u64 = 4;

/// Part of `journal-max-size` up to which records are kept for the backlog of the next start.
const JOURNAL_PART: u64 = 4;

/// Sends a command to all replicas that changes no data: its record is in the journal.
///
/// # Errors
/// If the worker has ended.
async fn say_to_all(peers: &Peers, words: Vec<Vec<u8>>) -> Result<(), WorkerGone> {
    let say = move |worker: Rc<Worker>| async move {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        worker.say(0, &words);
    };
    peers.on_worker(SPEAKER, false, say).await
}

/// Returns the words that ask for the position of replicas.
fn question(text: &str) -> Vec<Vec<u8>> {
    [&b"REPLCONF"[..], b"GETACK", text.as_bytes()].map(<[u8]>::to_vec).into()
}

/// Asks all replicas for the position that they have applied.
///
/// # Errors
/// If the worker has ended.
pub(crate) async fn ask_for_acknowledgements(peers: &Peers) -> Result<(), WorkerGone> {
    say_to_all(peers, question("*")).await
}

/// The questions of `repl-ack` to the replicas.
struct Questions {
    /// When the last one was asked.
    asked: Instant,
    /// End of the stream at the last look, and behind the last question for replicas that do not tell by
    /// themselves.
    end: u64,
    behind: u64,
}

impl Questions {
    /// Asks for the lease, if that is due.
    async fn renew_lease(&mut self, node: &Node, peers: &Peers) {
        let acks = &node.followers.acks;
        if !acks.is_active() || !node.followers.has_online() {
            return;
        }
        if self.asked.elapsed() >= RENEWAL {
            self.asked = Instant::now();
            // At the shutdown nobody needs a lease.
            let _ = say_to_all(peers, question(acks.ask().text())).await;
        }
    }

    /// Asks replicas of another kind how far they are, if replies may wait for them.
    async fn ask_silent(&mut self, node: &Node, peers: &Peers) {
        let end = node.followers.figures().map_or(0, |figures| figures.end);
        if end < self.end {
            // Another stream.
            self.behind = 0;
        }
        self.end = end;
        if end <= self.behind || !node.followers.must_ask() {
            return;
        }
        self.behind = end + rendered(&question("*"));
        let _ = ask_for_acknowledgements(peers).await;
    }
}

/// Returns the number of bytes that a command has in the stream.
fn rendered(words: &[Vec<u8>]) -> u64 {
    let mut out = Reply::default();
    out.array(words.len());
    words.iter().for_each(|word| out.bulk(word));
    out.len() as u64
}

/// Feeds the stream until the process ends: replicas get what is stored during the shutdown, too.
pub(crate) async fn run(node: Arc<Node>, peers: Arc<Peers>) {
    let progress = Arc::new(Notify::new());
    let (feed, bell) = (node.followers.feed.clone(), progress.clone());
    node.journal.subscribe(Box::new(move || {
        if feed.is_on() {
            bell.notify_one();
        }
    }));
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pinged = Instant::now();
    let mut questions = Questions { asked: pinged, end: 0, behind: 0 };
    loop {
        tokio::select! {
            () = progress.notified() => {}
            _ = tick.tick() => {
                node.look_at_acks();
                questions.renew_lease(&node, &peers).await;
                look_after(&node, &peers, &mut pinged).await;
            }
        }
        if node.followers.feed.is_on() {
            let settings = node.config.settings();
            node.followers.take_durable(node.journal.durable(), settings.repl_backlog_size as u64);
            if node.followers.acks.is_active() {
                node.followers.confirm();
                questions.ask_silent(&node, &peers).await;
            }
        }
    }
}

async fn look_after(node: &Node, peers: &Peers, pinged: &mut Instant) {
    let followers = &node.followers;
    let kept = node.config.settings().journal_max_size / JOURNAL_PART;
    followers.feed.keep(&*node.journal, followers.first_lsn(), kept);
    let now_ms = node.clock.now_ms();
    let settings = node.config.settings();
    node.count_good_replicas();
    // The servers of a group compare their positions in it.
    let ttl_s = if settings.is_in_group() { 0 } else { settings.repl_backlog_ttl_seconds };
    if followers.alone_ms(now_ms).is_some_and(|ms| ttl_s != 0 && ms >= ttl_s.saturating_mul(1000)) {
        return end_stream(node, peers).await;
    }
    if settings.appendfsync != AppendFsync::Always
        && followers.feed.is_on()
        && node.journal.durable() < node.journal.end()
    {
        // No other syncs it soon: replicas would lag, and the words wait in memory.
        node.journal.request_sync(node.journal.end());
    }
    let all = followers.all();
    if all.is_empty() {
        return;
    }
    let lasting = all.iter().filter(|follower| !follower.facts.data_set_only).count();
    followers.acks.look_at_group(lasting, settings.repl_group_size);
    let end = followers.figures().map_or(0, |figures| figures.end);
    for follower in &all {
        if let Some(reason) = complaint(follower, &settings, end, now_ms)
            && let Some(client) = node.clients.get(follower.client)
        {
            tracing::warn!(client = follower.client, addr = %client.addr, reason, "a replica is disconnected");
            client.kill();
        }
    }
    let period = Duration::from_secs(settings.repl_ping_replica_period_seconds);
    // A replica that is to take over is behind while it is pinged.
    let is_calm = followers.failover.step() == FailoverStep::None;
    if is_calm && pinged.elapsed() >= period {
        *pinged = Instant::now();
        // At the shutdown nobody needs a ping.
        let _ = say_to_all(peers, vec![b"PING".to_vec()]).await;
    }
}

/// Returns the reason why a replica is disconnected, if there is one.
fn complaint(
    follower: &Follower,
    settings: &Settings,
    end: u64,
    now_ms: u64,
) -> Option<&'static str> {
    if follower.lag_s(now_ms) > settings.repl_timeout_seconds {
        return Some("nothing has come from it for repl-timeout");
    }
    if follower.state() == FollowerState::WaitsForData && follower.needs() == u64::MAX {
        return None;
    }
    let behind = end.saturating_sub(follower.needs());
    let limit = &settings.client_output_buffer_limit.replica;
    let is_soft = limit.soft_bytes != 0 && behind > limit.soft_bytes;
    if !is_soft {
        follower.slow_since_ms.store(0, Ordering::Relaxed);
    }
    if behind > hard_bytes(limit, settings) {
        return Some("it is too far behind (client-output-buffer-limit)");
    }
    if !is_soft {
        return None;
    }
    let since = &follower.slow_since_ms;
    let _ = since.compare_exchange(0, now_ms, Ordering::Relaxed, Ordering::Relaxed);
    let since_ms = since.load(Ordering::Relaxed);
    let is_over = now_ms.saturating_sub(since_ms) > u64::from(limit.soft_seconds) * 1000;
    is_over.then_some("it is too far behind for too long (client-output-buffer-limit)")
}

/// Returns the bytes by which a replica may be behind: its limit, and a part of the memory budget,
/// but not less than the backlog.
fn hard_bytes(limit: &OutputBufferLimit, settings: &Settings) -> u64 {
    let budget = (settings.memory_budget / BUDGET_PART).max(LEAST_LIMIT);
    let hard = if limit.hard_bytes == 0 { budget } else { limit.hard_bytes.min(budget) };
    hard.max(settings.repl_backlog_size as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::followers::FollowerFacts;

    #[test]
    fn a_replica_is_disconnected_when_it_is_silent_or_too_far_behind() {
        let follower = Follower::new(1, FollowerFacts::default(), 1000);
        let mut settings = Settings { memory_budget: 1 << 30, ..Settings::default() };
        let limit = &mut settings.client_output_buffer_limit.replica;
        (limit.hard_bytes, limit.soft_bytes, limit.soft_seconds) = (100 << 20, 50 << 20, 60);
        follower.set_state(FollowerState::Online);
        follower.set_needs(0);
        let says = |end, now_ms| complaint(&follower, &settings, end, now_ms).is_some();
        assert!(!says(1, 61_000) && says(1, 62_000));
        follower.heard(None, None, 100_000);
        assert!(!says(50 << 20, 100_000));
        assert!(says((100 << 20) + 1, 100_000));
        assert!(!says((50 << 20) + 1, 100_000));
        follower.heard(None, None, 160_000);
        assert!(!says((50 << 20) + 1, 160_000));
        assert!(says((50 << 20) + 1, 160_001));
        assert!(!says(1, 160_001) && !says((50 << 20) + 1, 160_001), "it has caught up meanwhile");
    }
}
