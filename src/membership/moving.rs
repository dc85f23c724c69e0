//! Gives shards away: to a server that has too few, to one that a user names, or to all others when this
//! one leaves.

use super::beats::tell_next;
use super::{Agent, Handled, Seated, ShardChange, on_worker};
use crate::cluster::ServedState;
use crate::node::ShutdownRequest;
use crate::worker::Worker;
use anyhow::{Result, bail};
use flagstone_storage::cluster::{ClusterMap, Life, MapRefusal};
use flagstone_storage::partition::DetachedShard;
use flagstone_storage::slot::slot_of;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long commands may wait for the last flush. After that the shard stays.
const HELD: Duration = Duration::from_secs(2);

/// Pause between two looks at a flush.
const POLL: Duration = Duration::from_millis(20);

/// How long a shard's next owner has to hear of the map that makes it the owner, before clients are sent
/// there.
const TOLD: Duration = Duration::from_millis(250);

/// Shards that a leaving server gives away at a time.
const AT_ONCE: usize = 4;

/// Leases that leaving may take; shards that are left are taken over by others.
pub(super) const LEAVING: u32 = 20;

impl Agent {
    /// Begins to give shards away that are to move: all if this server leaves, else one, as asked for or
    /// because it has too many.
    pub(super) fn move_some(&mut self, map: &ClusterMap) {
        match self.is_leaving(map) {
            true => self.give_all(map),
            false => self.move_one(map),
        }
    }

    /// Returns true if all shards are to leave: this server ends, or a user drains it.
    pub(super) fn is_leaving(&self, map: &ClusterMap) -> bool {
        self.ending.is_some() || map.member(self.life()).is_some_and(|member| member.leaving)
    }

    fn move_one(&mut self, map: &ClusterMap) {
        if !self.busy.is_empty() {
            return;
        }
        let life = self.life();
        let free = map.owned_by(life).filter(|it| self.can_give(it.id));
        let free: Vec<_> = free.collect();
        let asked = free.iter().find_map(|it| Some((it.id, it.moving_to?)));
        let surplus = || {
            let allotments = map.balance();
            allotments.iter().find(|one| one.life == life && one.surplus() > 0)?;
            let answers = |to: Life| self.suspicion.heard().answers(to, self.lease());
            let lacking = allotments.iter().filter(|one| one.lack() > 0 && answers(one.life));
            let to = lacking.max_by_key(|one| one.lack())?.life;
            Some((free.iter().find(|it| !it.is_pinned)?.id, to))
        };
        if let Some((shard, to)) = asked.or_else(surplus) {
            self.begin_giving(shard, Some(to));
        }
    }

    pub(super) fn can_give(&self, shard: u16) -> bool {
        self.own.cluster.state(shard) == ServedState::Served && self.is_free(shard)
    }

    fn begin_giving(&mut self, shard: u16, to: Option<Life>) {
        self.busy.insert(shard);
        let giving = give(self.own.clone(), shard, to);
        self.tasks.spawn(async move { Handled { shards: vec![shard], outcome: giving.await } });
    }

    /// Gives all shards away: to the servers that answer, or to nobody if there are none.
    pub(super) async fn leave(&mut self) -> Result<()> {
        self.ending = Some(Instant::now());
        let (deadline, life) = (Instant::now() + LEAVING * self.lease(), self.life());
        self.change("leaving", |draft| draft.leave(life)).await?;
        loop {
            let map = self.own.cluster.map();
            let owned: Vec<u16> = map.owned_by(life).map(|it| it.id).collect();
            let is_late = Instant::now() > deadline;
            // The task of the last shard still tells the next owner, and this server's clients.
            if owned.is_empty() && (self.tasks.is_empty() || is_late) {
                return Ok(());
            }
            if is_late {
                tracing::warn!(shards = ?owned, "this server leaves the cluster before all its shards");
                return Ok(());
            }
            // Some may have come just before it began to leave.
            if self.follow_role(&map).await? {
                self.follow_division(&map).await?;
                self.take_what_is_given(&map);
                self.move_some(&map);
            }
            match timeout(self.lease(), self.tasks.join_next()).await {
                Ok(Some(handled)) => {
                    let has_failed = handled.as_ref().map_or(true, |one| one.outcome.is_err());
                    self.ended(handled);
                    if has_failed {
                        // The next owner may have ended.
                        self.look().await;
                    }
                }
                Ok(None) if self.own.cluster.newer_map().is_some() => self.look().await,
                Ok(None) => tokio::time::sleep(POLL).await,
                Err(_) => self.look().await,
            }
            let now = Instant::now();
            self.again.retain(|_, at| *at > now);
        }
    }

    /// Begins to give away some of the shards that are served: to servers that answer. If there are
    /// none the shards stay, but a process that ends leaves them to nobody, unless a standby becomes an
    /// owner within a lease.
    fn give_all(&mut self, map: &ClusterMap) {
        let mut heirs = self.heirs(map);
        let is_late = self.ending.is_some_and(|since| since.elapsed() > self.lease());
        let leaves_to_nobody = self.ending.is_some() && (is_late || !self.awaits_standby(map));
        if heirs.is_empty() && !leaves_to_nobody {
            return;
        }
        for entry in map.owned_by(self.life()) {
            if self.tasks.len() >= AT_ONCE || !self.can_give(entry.id) {
                continue;
            }
            let asked = entry.moving_to.filter(|to| heirs.contains_key(to));
            let least = heirs.iter_mut().min_by_key(|(life, shards)| (**shards, **life));
            let to = asked.or_else(|| {
                let (life, shards) = least?;
                *shards += 1;
                Some(*life)
            });
            self.begin_giving(entry.id, to);
        }
    }

    /// Returns the other servers that answer, with the number of their shards.
    fn heirs(&self, map: &ClusterMap) -> BTreeMap<Life, usize> {
        let answers = |life: Life| self.suspicion.heard().answers(life, self.lease());
        let stays = |life: Life| map.member(life).is_some_and(|member| member.takes_shards());
        let all = map.balance().into_iter();
        let heirs = all.filter(|one| stays(one.life) && answers(one.life));
        heirs.filter(|one| one.life != self.life()).map(|one| (one.life, one.shards)).collect()
    }
}

/// Gives a shard to another life, or to nobody.
async fn give(own: Seated, shard: u16, to: Option<Life>) -> Result<ShardChange> {
    let begun = Instant::now();
    flush_ahead(&own, shard).await?;
    let held = Instant::now();
    own.cluster.begin_giving(shard, to);
    let outcome = hand_over(&own, shard, to).await;
    if !settle(&own, shard, outcome.is_ok()).await? {
        end_subscriptions(&own, shard);
    }
    outcome?;
    let (held_ms, took_ms) = (held.elapsed().as_millis(), begun.elapsed().as_millis());
    tracing::info!(shard, to = to.map(|it| it.0), held_ms, took_ms, "gave a shard away");
    Ok(ShardChange::Given)
}

/// Notes what became of a shard that was to leave. `has_left`: it has; else it may be served still, or is to
/// be taken again. Returns true if it is served.
pub(super) async fn settle(own: &Seated, shard: u16, has_left: bool) -> Result<bool> {
    let look = move |worker: Rc<Worker>| async move { worker.has_shard(shard) };
    let is_here = !has_left && on_worker(own, shard, look).await?;
    let state = if is_here { ServedState::Served } else { ServedState::Elsewhere };
    own.cluster.set(shard, state);
    Ok(is_here)
}

/// Ends the subscriptions to the channels of a shard that has left, and tells the clients.
fn end_subscriptions(own: &Seated, shard: u16) {
    let (layout, settings) = (&own.node.layout, own.node.config.settings());
    let is_gone = |channel: &[u8]| layout.shard_of(slot_of(channel)) == shard;
    let (limits, now_ms) = (&settings.client_output_buffer_limit, own.node.clock.now_ms());
    own.node.broadcast.pubsub.end_shard_channels(is_gone, limits, now_ms);
}

/// Flushes a shard that is served, so that little is left to flush while commands wait.
pub(super) async fn flush_ahead(own: &Seated, shard: u16) -> Result<()> {
    let flush = move |worker: Rc<Worker>| async move { worker.flush_ahead(shard).await };
    let flushed = on_worker(own, shard, flush).await?;
    flushed.map_err(|why| anyhow::anyhow!("{why}: the shard stays here"))
}

/// Takes a shard from its worker, and stores all of it in its engine. `elsewhere`: returns the error text for
/// a client that waits for a key of one of its slots.
///
/// # Errors
/// If not all of it is stored: it is served on.
pub(super) async fn stop_serving(
    own: &Seated,
    shard: u16,
    elsewhere: impl Fn(u16, bool) -> String + Send + 'static,
) -> Result<DetachedShard> {
    let detach =
        move |worker: Rc<Worker>| async move { worker.detach_shard(shard, elsewhere).await };
    let mut detached = on_worker(own, shard, detach).await??;
    let flushed = timeout(HELD, detached.flush(&own.node.journal)).await;
    let trouble = match flushed {
        Ok(flushed) => flushed.err(),
        Err(_) => Some(anyhow::anyhow!("its rows are not stored within {} s", HELD.as_secs())),
    };
    if let Some(error) = trouble {
        let attach = move |worker: Rc<Worker>| async move {
            worker.attach_shard(detached.into_shard()).await
        };
        if let Err(refused) = on_worker(own, shard, attach).await? {
            // Rows that only this server's journal has are not in memory any more. A successor reads
            // them there; this life would not.
            own.node.ending.end(ShutdownRequest { now: true });
            bail!("the shard cannot be served any more, so this server ends: {}", refused.why);
        }
        return Err(error.context("the shard stays here"));
    }
    Ok(detached)
}

/// Takes a shard from its worker, completes its engine, and changes the map.
async fn hand_over(own: &Seated, shard: u16, to: Option<Life>) -> Result<()> {
    let cluster = own.cluster.clone();
    let elsewhere = move |slot, secured| cluster.refusal(slot, secured);
    let detached = stop_serving(own, shard, elsewhere).await?;
    let (journal, stored) = (own.node.journal.clone(), detached.stored());
    if let Err(error) = detached.close(&journal).await {
        // All its rows are stored all the same.
        tracing::warn!(shard, "its engine did not close: {error:#}");
    }
    let life = own.seat.life();
    let given = own.seat.amend(|draft| {
        draft.note_stored(shard, life, stored)?;
        match to {
            Some(to) => draft.give(shard, life, to),
            None => draft.park(shard, life),
        }
    });
    match given.await? {
        Ok(map) => {
            own.cluster.learn(&map);
            // Its clients wait there from now on, and are not sent back.
            if let Some(next) = to.and_then(|life| map.member(life)) {
                let _ = timeout(TOLD, tell_next(own, next)).await;
            }
        }
        Err(MapRefusal::NotOpen(life)) => bail!("life {life} has ended"),
        Err(refusal) => bail!("{refusal}"),
    }
    Ok(())
}
