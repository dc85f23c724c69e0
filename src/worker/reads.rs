//! Records which tracking clients have read which keys of this worker (see [`crate::tracking`]).

use super::{News, Worker};
use crate::clients::ClientState;
use crate::command::Invocation;
use crate::tracking::Changes;
use flagstone_commands::flag;
use flagstone_storage::notes::{Note, NoteKind};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Maximum number of keys that are evicted at once when there are too many.
const EFFORT: usize = 100;

impl Worker {
    /// Records the keys that a command of a tracking client has read here. `has_news`: the
    /// command's own changes are the next news.
    #[cold]
    pub(crate) fn remember_read(&self, run: &Invocation<'_>, has_news: bool) {
        let &Invocation { command, args, request, .. } = run;
        if command.spec.has(flag!(READONLY)) {
            let told = self.announced.count.get() + u64::from(has_news);
            let keys = command.keys(args, request.db);
            self.remember(keys.into_iter().map(|(_, key)| key), request.client, told);
        }
    }

    /// Records the keys that a unit of a client has read here, each behind so many of its notes, which are the
    /// next news.
    pub(super) fn remember_reads_of_unit(
        &self,
        read: &[(Box<[u8]>, usize)],
        notes: &[Note],
        client: u64,
    ) {
        let visible = notes.iter().enumerate().filter(|(_, note)| note.what.is_visible());
        let last_change: HashMap<&[u8], usize> =
            visible.map(|(at, note)| (&*note.key, at)).collect();
        let before = self.announced.count.get();
        let after = before + u64::from(!notes.is_empty());
        for (key, noted) in read {
            // The unit itself has changed the key since.
            let is_old = last_change.get(&**key).is_some_and(|at| at >= noted);
            let told = if is_old { before } else { after };
            self.remember(std::iter::once(&**key), client, told);
        }
    }

    /// Records the keys of this worker that a unit has read at a coordinator. `has_news`: its changes are the next
    /// news.
    pub(super) fn remember_reads_of_coordinator(
        &self,
        read: &[Box<[u8]>],
        client: u64,
        has_news: bool,
    ) {
        if read.is_empty() {
            return;
        }
        let wants_no_own =
            self.node.clients.get(client).is_some_and(|client| client.is(ClientState::NOLOOP));
        // It may have read a key before it changed it. A client that hears of its own changes is told, even if it
        // has read the key again since; the others hear of the next change.
        let told = self.announced.count.get() + u64::from(has_news && wants_no_own);
        self.remember(read.iter().map(|key| &**key), client, told);
    }

    /// Records that a client has read these keys of this worker, after `told` news.
    pub(crate) fn remember<'a>(
        &self,
        keys: impl Iterator<Item = &'a [u8]>,
        client: u64,
        told: u64,
    ) {
        let mut table = self.observers.tracking.borrow_mut();
        for key in keys {
            table.add(key, client, told, |id| self.node.clients.get(id).is_some());
        }
        drop(table);
        self.bound_tracking();
    }

    /// Evicts keys while there are too many: their readers are told that they have changed.
    pub(crate) fn bound_tracking(&self) {
        let settings = self.settings();
        let max_keys = self.share(settings.tracking_table_max_keys);
        let max_bytes = self.node.pressure.budget.tracking / self.node.shard_workers;
        for _ in 0..EFFORT {
            let forgotten = self.observers.tracking.borrow_mut().evict(max_keys, max_bytes);
            let Some((key, readers)) = forgotten else { break };
            self.node.audience(&settings).invalidate(&key, &readers);
        }
        self.show_tracking();
    }

    /// Returns this worker's share of the maximum number of keys; 0 means no maximum.
    fn share(&self, max_keys: usize) -> usize {
        let workers = self.node.shard_workers;
        match max_keys {
            0 => usize::MAX,
            // A worker's share may be none, so that all together do not exceed the maximum.
            max => max / workers + usize::from(self.id < max % workers),
        }
    }

    /// Discards all recorded reads, because all keys have changed.
    pub(crate) fn forget_reads(&self) {
        self.observers.tracking.borrow_mut().clear();
        self.show_tracking();
    }

    /// Discards the recorded reads of keys that are gone, and tells their readers. Clients that track prefixes
    /// may have read any.
    pub(super) fn forget_reads_of(&self, is_gone: impl Fn(&[u8]) -> bool) {
        self.forget_read_keys(is_gone);
        if self.node.broadcast.listeners.prefixes.any() {
            self.node.audience(&self.settings()).invalidate_prefixes();
        }
    }

    /// Discards the recorded reads of keys that are gone, and tells their readers.
    pub(super) fn forget_read_keys(&self, is_gone: impl Fn(&[u8]) -> bool) {
        let gone = self.observers.tracking.borrow_mut().take_where(is_gone);
        let settings = self.settings();
        let audience = self.node.audience(&settings);
        gone.iter().for_each(|(key, readers)| audience.invalidate(key, readers));
        self.show_tracking();
    }

    /// Tells the readers of a key that a command has changed it.
    pub(crate) fn tell_change(&self, news: &News, note: &Note, changes: &mut Changes) {
        // No client has caused an expiry.
        let by = if note.what == NoteKind::Expired { 0 } else { news.client };
        if self.node.broadcast.listeners.prefixes.any() {
            changes.add(&note.key, by);
        }
        let wants_no_own = |id| {
            id == by
                && self.node.clients.get(id).is_some_and(|client| client.is(ClientState::NOLOOP))
        };
        let readers =
            self.observers.tracking.borrow_mut().take(&note.key, news.number, wants_no_own);
        if !readers.is_empty() {
            self.node.audience(&self.settings()).invalidate(&note.key, &readers);
            self.show_tracking();
        }
    }

    fn show_tracking(&self) {
        let table = self.observers.tracking.borrow();
        self.stats().audience.tracked_keys.store(table.len() as u64, Ordering::Relaxed);
        self.stats().audience.tracked_reads.store(table.reads() as u64, Ordering::Relaxed);
    }
}
