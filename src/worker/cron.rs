//! Periodic work of a worker, and its shutdown.
//!
//! Ten times a second, each worker closes idle and slow clients, evicts entries, publishes its
//! counters, and releases clients that wait although the server may have lost its shards; worker 0 also
//! looks at the clock and at the memory of the process, and samples rates.
//! At the shutdown a worker ends its connections, waits for the coordinators of all workers,
//! commits, and lets the background jobs finish.

use super::Worker;
use crate::clients::ClientState;
use crate::command::Patience;
use crate::node::{Node, WorkerStats};
use anyhow::{Result, bail};
use flagstone_storage::partition::Partition;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of times that the cron runs each second.
pub const CRON_HZ: u32 = 10;
const PERIOD: Duration = Duration::from_millis(1000 / CRON_HZ as u64);

/// In each period the eviction examines as many entries as after a command that has loaded this
/// number.
const EVICTED_AT_ONCE: usize = 4096;

/// Maximum time that hand-overs may take to end at the shutdown.
const HANDING: Duration = Duration::from_secs(60);

/// Maximum time that clients may take to read their last replies, and connections to end.
const CLOSING: Duration = Duration::from_secs(5);

/// Interval at which the shutdown checks whether all coordinators have ended.
const SETTLING_POLL: Duration = Duration::from_millis(2);

impl Worker {
    /// Runs the periodic work, until the worker ends.
    pub(crate) async fn run_cron(self: Rc<Self>) {
        let mut tick = tokio::time::interval(PERIOD);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let began = Instant::now();
            self.look_at_clock();
            self.close_idle_clients();
            self.close_slow_clients();
            self.bound_tracking();
            // A command may have loaded more entries than the eviction after it has dropped.
            self.evict_after(EVICTED_AT_ONCE);
            self.publish_stats();
            self.hot_keys.turn(self.node.clock.now_ms());
            self.partition.borrow_mut().store.refresh_big_keys();
            self.look_at_data_set();
            self.release_if_lost();
            if self.id == 0 {
                self.node.clock.look();
                self.turn_clients_away();
                self.sample_rates();
            }
            self.upkeep.turns.cron_ran(began.elapsed());
        }
    }

    /// Notes that the thread has woken.
    pub(super) fn begin_loop(&self) {
        self.upkeep.turns.wakes(self.stats().commands.load(Ordering::Relaxed));
    }

    /// Notes that the thread has nothing more to do.
    pub(super) fn end_loop(&self) {
        self.upkeep.turns.sleeps(self.stats().commands.load(Ordering::Relaxed));
    }

    /// Closes connections that were idle for longer than `timeout`, except those that are blocked
    /// or subscribed: they have sent nothing, taken nothing of their replies, and run no command.
    fn close_idle_clients(&self) {
        let timeout_ms = u64::from(self.settings().timeout_seconds) * 1000;
        if timeout_ms == 0 || self.id != 0 {
            return;
        }
        let now_ms = self.node.clock.now_ms();
        for client in self.node.clients.all() {
            if !client.may_be_idle() && now_ms.saturating_sub(client.last_ms()) > timeout_ms {
                client.kill();
            }
        }
    }

    /// Closes clients that do not authenticate in time or take too much memory, and logs them.
    fn turn_clients_away(&self) {
        let (node, settings) = (&self.node, self.settings());
        let now_ms = node.clock.now_ms();
        let limit = Node::client_memory_limit(&settings);
        Node::limit_client_memory(&settings);
        node.clients.relieve(now_ms);
        node.clients.refusals.log(now_ms);
        if now_ms.saturating_sub(self.upkeep.clients_seen_ms.get()) < 1000 {
            return;
        }
        self.upkeep.clients_seen_ms.set(now_ms);
        if node.access.accounts.needs_password() {
            node.clients.close_strangers(now_ms);
        }
        node.clients.evict(limit);
    }

    /// Closes this worker's connections that read their replies or messages too slowly, once a
    /// second.
    fn close_slow_clients(&self) {
        let now_ms = self.node.clock.now_ms();
        if now_ms.saturating_sub(self.upkeep.outboxes_checked_ms.get()) < 1000 {
            return;
        }
        self.upkeep.outboxes_checked_ms.set(now_ms);
        let limits = self.settings().client_output_buffer_limit;
        for client in self.node.clients.all() {
            if client.worker == self.id {
                client.check_outbox(&limits, now_ms);
            }
        }
    }

    fn sample_rates(&self) {
        let node = &self.node;
        let [read, sent] = [&node.health.replica.bytes_in, &node.followers.bytes_out];
        let [read, sent] = [read, sent].map(|counter| counter.load(Ordering::Relaxed));
        let sum = |counter: fn(&WorkerStats) -> &AtomicU64| {
            let stats = node.figures.stats.iter();
            stats.map(|stats| counter(stats).load(Ordering::Relaxed)).sum()
        };
        node.figures.rates.sample([
            sum(|s| &s.commands),
            sum(|s| &s.bytes_in),
            sum(|s| &s.bytes_out),
            read,
            sent,
            sum(|s| &s.turns.cycles),
            sum(|s| &s.turns.busy_us),
        ]);
    }

    /// Publishes the store's counters for other threads.
    pub(crate) fn publish_stats(&self) {
        let partition = self.partition.borrow();
        let store = &partition.store;
        let stats = &self.stats().store;
        stats.hits.store(store.stats.hits, Ordering::Relaxed);
        stats.misses.store(store.stats.misses, Ordering::Relaxed);
        stats.expired.store(store.stats.expired, Ordering::Relaxed);
        stats.expired_fields.store(store.stats.expired_fields, Ordering::Relaxed);
        stats.changes.store(store.stats.changes, Ordering::Relaxed);
        stats.dropped.store(store.stats.dropped, Ordering::Relaxed);
        stats.evicted.store(store.stats.evicted, Ordering::Relaxed);
        stats.hot_bytes.store(store.memory() as u64, Ordering::Relaxed);
        self.node.health.data_set.publish(self.id, partition.data_set());
        let [cycles, busy_us] = self.upkeep.turns.since_reset();
        self.stats().turns.cycles.store(cycles, Ordering::Relaxed);
        self.stats().turns.busy_us.store(busy_us, Ordering::Relaxed);
        let [longest_us, cron_us, most_commands] = self.upkeep.turns.extremes();
        self.stats().turns.longest_us.store(longest_us, Ordering::Relaxed);
        self.stats().turns.cron_us.store(cron_us, Ordering::Relaxed);
        self.stats().turns.most_commands.store(most_commands, Ordering::Relaxed);
    }

    /// Resets the store's counters (CONFIG RESETSTAT).
    pub(crate) fn reset_stats(&self) {
        self.upkeep.turns.reset();
        let mut partition = self.partition.borrow_mut();
        let changes = partition.store.stats.changes;
        partition.store.stats =
            flagstone_storage::store::StoreStats { changes, ..Default::default() };
    }

    /// Runs a connection's task.
    pub(crate) fn spawn_connection(&self, task: impl Future<Output = ()> + 'static) {
        self.connections.spawn_local(task);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Resolves when the worker begins to stop.
    pub(crate) async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// Ends the connections once the commands that run are answered; after some time, at once.
    async fn end_connections(&self) {
        let own = || self.node.clients.all().into_iter().filter(|client| client.worker == self.id);
        for client in own() {
            // The stream of a replica or of another server has no end.
            if client.is(ClientState::REPLICA) || client.is(ClientState::SERVER) {
                client.kill();
            } else {
                client.end();
            }
        }
        self.connections.close();
        if tokio::time::timeout(CLOSING, self.connections.wait()).await.is_ok() {
            return;
        }
        let late = own().map(|client| client.kill()).count();
        tracing::warn!(
            worker = self.id,
            clients = late,
            "some clients did not read their last replies in time"
        );
        if tokio::time::timeout(CLOSING, self.connections.wait()).await.is_err() {
            tracing::warn!(worker = self.id, "some connections did not end in time");
        }
    }

    /// Stops accepting, ends the connections, commits the open round, and lets the background
    /// finish. Returns false if a hand-over is still running, although the stop was not to end it: the
    /// journal has everything, so the engines are left as after a crash.
    pub(crate) async fn stop(&self) -> bool {
        self.stop.cancel();
        self.end_connections().await;
        // The coordinators of all workers end first: one that waits for a worker which has ended
        // would never release its locks on others.
        self.node.ending.is_quiet();
        let settled = async {
            while !self.node.ending.is_settled() {
                tokio::time::sleep(SETTLING_POLL).await;
            }
        };
        if tokio::time::timeout(CLOSING + CLOSING, settled).await.is_err() {
            tracing::warn!(
                worker = self.id,
                "some commands on several workers did not end in time"
            );
        }
        let (_lock, granted) = self.locks.borrow_mut().enqueue_barrier(Patience::Endless);
        if tokio::time::timeout(CLOSING, granted).await.is_err() {
            tracing::warn!(worker = self.id, "some commands did not end in time");
        }
        self.commit();
        // On a full disk, a hand-over cannot finish, and behind a journal that has failed none ever does.
        let handing = match (self.node.journal.failed(), self.node.journal.stats().refusing) {
            (Some(_), _) => Duration::ZERO,
            (None, true) => CLOSING,
            (None, false) => HANDING,
        };
        self.jobs_done(handing).await || self.node.ending.is_hurried()
    }

    /// Returns the partition of a worker that has stopped.
    pub(crate) fn into_partition(self: Rc<Self>) -> Result<Partition> {
        if self.partition.try_borrow().is_err() {
            bail!("worker {} still runs a command", self.id);
        }
        Ok(self.partition.replace(Partition::empty(&self.node.layout, &self.node.journal)))
    }
}
