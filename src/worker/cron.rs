//! What a worker does by the clock, and how it ends.

use super::Worker;
use crate::node::Node;
use anyhow::{Result, bail};
use flagstone_storage::partition::Partition;
use flagstone_wire::client_memory::CLIENTS;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the cron runs each second.
pub const CRON_HZ: u32 = 10;
const PERIOD: Duration = Duration::from_millis(1000 / CRON_HZ as u64);

/// How long hand-overs may take to end.
const HANDING: Duration = Duration::from_secs(60);

/// How long connections may take to end.
const CLOSING: Duration = Duration::from_secs(5);

/// How often it is looked whether commands on several workers have ended.
const SETTLING_POLL: Duration = Duration::from_millis(2);

impl Worker {
    /// Runs the periodic work; as long as the worker.
    pub(crate) async fn run_cron(self: Rc<Self>) {
        let mut tick = tokio::time::interval(PERIOD);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.close_idle_clients();
            self.close_slow_clients();
            self.bound_tracking();
            // One command may have brought in more than its commit has dropped.
            self.evict();
            self.publish_stats();
            if self.id == 0 {
                self.node.clock.look();
                self.node.health.look_at_memory(&self.settings());
                self.turn_clients_away();
                self.sample_rates();
            }
        }
    }

    /// Closes connections that were silent for longer than `timeout`, but those that wait for
    /// something.
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

    /// Closes clients that give no password, or take too much memory, and tells of them.
    fn turn_clients_away(&self) {
        let (node, settings) = (&self.node, self.settings());
        let now_ms = node.clock.now_ms();
        let limit = Node::client_memory_limit(&settings);
        CLIENTS.set_limit(limit);
        node.clients.relieve(now_ms);
        node.clients.refusals.log(now_ms);
        if now_ms.saturating_sub(self.clients_seen_ms.get()) < 1000 {
            return;
        }
        self.clients_seen_ms.set(now_ms);
        if settings.requirepass.is_some() {
            node.clients.close_strangers(now_ms);
        }
        node.clients.evict(limit);
    }

    /// Closes this worker's connections that do not read what they are sent, once a second.
    fn close_slow_clients(&self) {
        let now_ms = self.node.clock.now_ms();
        if now_ms.saturating_sub(self.outboxes_checked_ms.get()) < 1000 {
            return;
        }
        self.outboxes_checked_ms.set(now_ms);
        let limits = self.settings().client_output_buffer_limit;
        for client in self.node.clients.all() {
            if client.worker == self.id {
                client.check_outbox(&limits, now_ms);
            }
        }
    }

    fn sample_rates(&self) {
        let mut totals = [0; 3];
        for stats in &self.node.stats {
            for (total, counter) in
                totals.iter_mut().zip([&stats.commands, &stats.bytes_in, &stats.bytes_out])
            {
                *total += counter.load(Ordering::Relaxed);
            }
        }
        self.node.rates.sample(totals);
    }

    /// Shows what the store has counted to everybody.
    pub(crate) fn publish_stats(&self) {
        let partition = self.partition.borrow();
        let store = &partition.store;
        let stats = self.stats();
        stats.hits.store(store.stats.hits, Ordering::Relaxed);
        stats.misses.store(store.stats.misses, Ordering::Relaxed);
        stats.expired.store(store.stats.expired, Ordering::Relaxed);
        stats.expired_fields.store(store.stats.expired_fields, Ordering::Relaxed);
        stats.changes.store(store.stats.changes, Ordering::Relaxed);
        stats.dropped.store(store.stats.dropped, Ordering::Relaxed);
        stats.hot_bytes.store(store.memory() as u64, Ordering::Relaxed);
    }

    /// Counts anew (CONFIG RESETSTAT).
    pub(crate) fn reset_stats(&self) {
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

    /// Ends accepting and the connections, commits what is open, and lets the background finish.
    /// False: a hand-over is still under way; the journal has everything, so the engines are left
    /// as after a crash.
    pub(crate) async fn stop(&self) -> bool {
        self.stop.cancel();
        for client in self.node.clients.all() {
            if client.worker == self.id {
                client.kill();
            }
        }
        self.connections.close();
        if tokio::time::timeout(CLOSING, self.connections.wait()).await.is_err() {
            tracing::warn!(worker = self.id, "some connections did not end in time");
        }
        // Coordinators end first, those of all workers: one that waits for a worker which is gone would
        // leave its locks on others for ever.
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
        let (_lock, granted) = self.locks.borrow_mut().enqueue_barrier();
        if tokio::time::timeout(CLOSING, granted).await.is_err() {
            tracing::warn!(worker = self.id, "some commands did not end in time");
        }
        self.commit();
        // On a full disk there is nothing to wait for.
        let handing = if self.node.journal.stats().refusing { CLOSING } else { HANDING };
        self.jobs_done(handing).await
    }

    /// The partition of a worker that has stopped.
    pub(crate) fn into_partition(self: Rc<Self>) -> Result<Partition> {
        if self.partition.try_borrow().is_err() {
            bail!("worker {} still runs a command", self.id);
        }
        Ok(self.partition.replace(Partition::empty(&self.node.layout, &self.node.journal)))
    }
}
