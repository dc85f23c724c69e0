//! A worker serves those who wait for its keys.

use super::Waiter;
use crate::commands::Block;
use crate::resp::Reply;
use crate::routing;
use crate::worker::{Blocked, Ran, Worker};
use flagstone_storage::need::Key;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What became of a waiter.
enum Tried {
    /// It has its reply.
    Served,
    /// There is nothing for it.
    Nothing,
    /// A task of its own goes on with it.
    Apart,
}

impl Worker {
    /// Leaves a waiter with this worker, and looks whether there is something for it by now.
    pub(super) fn add_waiter(self: &Rc<Self>, waiter: &Arc<Waiter>) {
        self.waiting.borrow_mut().add(waiter, |(_, key)| self.owns(key));
        self.count_awaited();
        self.serve_waiters();
    }

    /// A waiter waits no more.
    pub(super) fn remove_waiter(&self, waiter: &Waiter) {
        self.waiting.borrow_mut().remove(waiter);
        self.count_awaited();
    }

    fn count_awaited(&self) {
        let (keys, absent) = self.waiting.borrow().len();
        self.stats().awaited_keys.store(keys as u64, Ordering::Relaxed);
        self.stats().awaited_absent_keys.store(absent as u64, Ordering::Relaxed);
    }

    /// Keys have changed.
    pub(crate) fn touch_waiters<'a>(&self, keys: impl Iterator<Item = (u32, &'a [u8])>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.is_empty() {
            keys.for_each(|(db, key)| waiting.touch(&(db, key.into())));
        }
    }

    /// All keys of some databases have changed.
    pub(crate) fn touch_all_waiters(&self, dbs: &[u32]) {
        self.waiting.borrow_mut().touch_all(dbs);
    }

    /// Serves the waiters of the keys that have changed.
    pub(crate) fn serve_waiters(self: &Rc<Self>) {
        // Commands that run for waiters change keys too: these come behind.
        if self.serving.replace(true) {
            return;
        }
        loop {
            let ready = self.waiting.borrow_mut().next_ready();
            let Some(key) = ready else { break };
            self.serve_key(&key);
        }
        self.serving.set(false);
    }

    fn serve_key(self: &Rc<Self>, key: &Key) {
        let mut n = 0;
        loop {
            let holds = self.type_of(key);
            let next = self.waiting.borrow().next_waiter(key, n, holds);
            let Some((at, waiter)) = next else { return };
            n = at;
            if !waiter.turn.claim() {
                n += 1;
                continue;
            }
            match self.try_serve(&waiter, key) {
                Tried::Served => {}
                Tried::Nothing => {
                    self.release(&waiter);
                    n += 1;
                }
                Tried::Apart => return,
            }
        }
    }

    /// The type of what a key holds; `None`: it is not in memory.
    fn type_of(&self, (db, key): &Key) -> Option<&'static str> {
        let store = &mut self.partition.borrow_mut().store;
        store.begin(self.node.clock.now_ms(), false);
        let found = store.peek(*db, key).ok()?;
        Some(found.map_or("none", |entry| entry.value.type_name()))
    }

    /// Runs the command of a waiter, whose turn is claimed.
    fn try_serve(self: &Rc<Self>, waiter: &Arc<Waiter>, key: &Key) -> Tried {
        let command = &waiter.command;
        if !self.can_serve(waiter) {
            self.serve_apart(waiter, key, None);
            return Tried::Apart;
        }
        let mut out = Reply::new(command.request.proto);
        self.start_watch();
        let ran = self.execute(
            command.command,
            command.args(),
            command.request,
            None,
            self.node.clock.now_ms(),
            &self.settings(),
            &mut out,
        );
        match ran {
            Ok(seen) => {
                self.remove_waiter(waiter);
                self.deliver(waiter, Ran { reply: out.into_bytes(), seen, block: None });
                Tried::Served
            }
            Err(Blocked::Empty(_)) => Tried::Nothing,
            Err(blocked) => {
                self.serve_apart(waiter, key, Some(blocked));
                Tried::Apart
            }
        }
    }

    /// Whether this worker alone can run a waiter's command: it has all keys, or the command can
    /// do with those that are here.
    fn can_serve(&self, waiter: &Waiter) -> bool {
        let keys = waiter.command.lock_keys();
        keys.iter().all(|key| waiter.keys.contains(key))
            || keys.iter().all(|(_, key)| self.owns(key))
    }

    /// Runs the command of a waiter in a task, as it has to wait for locks, data or other workers.
    fn serve_apart(self: &Rc<Self>, waiter: &Arc<Waiter>, key: &Key, blocked: Option<Blocked>) {
        self.waiting.borrow_mut().set_busy(key, true);
        let (worker, waiter, key) = (self.clone(), waiter.clone(), key.clone());
        // Locks are queued for now.
        let parked = blocked.map(|blocked| self.park(waiter.command.clone(), blocked));
        tokio::task::spawn_local(async move {
            let ran = match parked {
                Some(done) => done.await.unwrap_or_else(|_| Ran::abandoned()),
                None => routing::coordinate(&worker, &waiter.command, Vec::new()).await,
            };
            if ran.block.is_some() {
                worker.release(&waiter);
            } else {
                worker.remove_waiter(&waiter);
                worker.deliver(&waiter, ran);
            }
            worker.waiting.borrow_mut().set_busy(&key, false);
            worker.serve_waiters();
        });
    }

    /// Gives a waiter its reply, as soon as what it shows may be shown.
    fn deliver(self: &Rc<Self>, waiter: &Arc<Waiter>, ran: Ran) {
        let (worker, waiter) = (self.clone(), waiter.clone());
        tokio::task::spawn_local(async move {
            match worker.wait_shown(ran.seen).await {
                Ok(()) => waiter.turn.serve(ran.reply),
                Err(error) => waiter.turn.serve(format!("-{}\r\n", error.0).into_bytes()),
            }
        });
    }

    /// There was nothing for a waiter after all.
    fn release(self: &Rc<Self>, waiter: &Arc<Waiter>) {
        if waiter.turn.release() {
            super::wait::look_again(&self.node, waiter);
        }
    }
}

/// For the connection: a command that found nothing here, and waits.
pub(super) fn waiter_of(command: &crate::worker::OwnedCommand, block: &Block) -> Arc<Waiter> {
    Arc::new(Waiter::new(command, block))
}
