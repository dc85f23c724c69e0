//! Shards come to a worker, and leave it, while it runs.
//!
//! Both take the barrier of the worker, so no command of it is under way, and close the open round.
//! Dropping the future gives the barrier up, and nothing has changed.

use super::{Lock, Worker};
use crate::blocking::Waiter;
use crate::command::{Answer, Outcome, Patience};
use crate::pubsub::SubscriptionKind;
use flagstone_storage::partition::{DetachedShard, RefusedShard, ShardRefusal};
use flagstone_storage::shard::Shard;
use flagstone_storage::slot::slot_of;
use std::rc::Rc;
use std::sync::atomic::Ordering;

impl Worker {
    /// Takes a shard in: its keys may be asked for from now on.
    ///
    /// # Errors
    /// If it may not be attached; it is returned.
    pub async fn attach_shard(self: &Rc<Self>, shard: Shard) -> Result<(), Box<RefusedShard>> {
        let _whole = self.whole().await;
        // No generation of a flush was ever used in the shard.
        let next = u64::from(shard.generations().next);
        self.node.next_generation.fetch_max(next, Ordering::Relaxed);
        self.commit();
        let (id, engine) = (shard.id, shard.engine().clone());
        self.partition.borrow_mut().attach(shard)?;
        self.node.engines.add(id, engine);
        // What it shows may have to become durable with this round.
        self.commit_soon();
        Ok(())
    }

    /// Gives a shard away, which the caller flushes and closes, or attaches again. `elsewhere`:
    /// returns the error text for a client that waits for a key of one of its slots, and uses TLS or
    /// not. Watched keys count as changed, and tracked keys are invalidated. Commands that come later, or have waited
    /// for the barrier, end with [`Node::not_owned`](crate::node::Node::not_owned).
    ///
    /// # Errors
    /// If it may not be detached; it stays.
    pub async fn detach_shard(
        self: &Rc<Self>,
        id: u16,
        elsewhere: impl Fn(u16, bool) -> String,
    ) -> Result<DetachedShard, ShardRefusal> {
        let _whole = self.whole().await;
        self.commit();
        let mut partition = self.partition.borrow_mut();
        let stay = partition.stay(id).ok_or(ShardRefusal::NotHere)?;
        let mut detached = partition.detach(id)?;
        drop(partition);
        self.node.engines.remove(id);
        self.passes.jobs.borrow_mut().remove(&stay);
        // Who waits for exact counters looks at the other shards.
        self.passes.ended.notify_waiters();
        self.node.health.stalls.set(id, None, 0);
        let entries = detached.take_entries();
        self.node.background.spawn_blocking(move || drop(entries));
        let slots = self.node.layout.slots_of(id);
        let is_gone = |key: &[u8]| slots.contains(&slot_of(key));
        self.observers.watching.borrow().touch_where(is_gone);
        self.forget_reads_of(is_gone);
        self.hot_keys.forget(is_gone);
        self.end_waiters(is_gone, elsewhere);
        Ok(detached)
    }

    /// Locks the whole worker.
    pub(super) async fn whole(self: &Rc<Self>) -> Lock {
        let (lock, granted) = self.lock_all(Patience::Endless);
        // Endless patience is not refused.
        let _ = granted.await;
        lock
    }

    /// Ends all waits for keys, and on the first worker all subscriptions to shard channels, while other servers
    /// of the cluster may have taken the shards over: their clients wait there then. Clients that track keys forget
    /// what they have read, as nobody tells them of changes there. Called again and again, as one that was admitted
    /// before may begin to wait later, or read.
    pub(super) fn release_if_lost(self: &Rc<Self>) {
        let Some(cluster) = &self.node.cluster else { return };
        let lost = self.node.health.lost_shards();
        if lost.is_none() {
            self.observers.has_told_of_loss.set(false);
        }
        let listeners = &self.node.broadcast;
        let has_waiters = !self.waiters.table.borrow().is_empty();
        let has_listeners = self.id == 0 && listeners.pubsub.count(SubscriptionKind::Shard) > 0;
        let has_readers = self.observers.tracking.borrow().len() > 0;
        let has_prefixes = self.id == 0 && listeners.listeners.prefixes.any();
        if !has_waiters && !has_listeners && !has_readers && !has_prefixes {
            return;
        }
        let Some(text) = lost else {
            // Nobody asks for data, so nobody else may have noticed.
            if cluster.is_out_of_touch() {
                self.node.health.want_lease();
            }
            return;
        };
        self.end_waiters(|_| true, |_, _| text.to_owned());
        if has_readers {
            self.forget_read_keys(|_| true);
        }
        if has_prefixes && !self.observers.has_told_of_loss.replace(true) {
            self.node.audience(&self.settings()).invalidate_prefixes();
        }
        if has_listeners {
            let (settings, now_ms) = (self.settings(), self.node.clock.now_ms());
            let limits = &settings.client_output_buffer_limit;
            listeners.pubsub.end_shard_channels(|_| true, limits, now_ms);
        }
    }

    /// Ends a waiter, whose turn is claimed, with an error.
    pub(super) fn refuse_waiter(&self, waiter: &Waiter, text: String) {
        let command = &waiter.command;
        self.stats().refused(Some(command.command), text.as_bytes());
        let mut answer = Answer::failed(command.request.proto, text);
        answer.outcome = Outcome::Refused;
        waiter.turn.serve(answer);
    }

    /// Ends the waits for keys that are gone.
    fn end_waiters(
        self: &Rc<Self>,
        is_gone: impl Fn(&[u8]) -> bool,
        elsewhere: impl Fn(u16, bool) -> String,
    ) {
        let waiting = self.waiters.table.borrow().waiting_for(is_gone);
        for (waiter, key) in waiting {
            if waiter.turn.claim(self.id) {
                let command = &waiter.command;
                self.refuse_waiter(&waiter, elsewhere(slot_of(&key.1), command.request.secured));
            }
            // Another worker may be serving it: then this one looks again if there is nothing.
            if waiter.turn.is_over() {
                self.waiters.table.borrow_mut().remove(&waiter, std::slice::from_ref(&key));
            }
        }
        self.count_awaited();
    }
}
