//! Tracking of one connection.

use super::Prefixes;
use super::broadcast::prefix_weight;
use crate::clients::{Client, ClientState};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Selection of the reads that are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    All,
    /// Reads behind CLIENT CACHING YES.
    OptIn,
    /// Reads that are not behind CLIENT CACHING NO.
    OptOut,
    /// No reads: it is told of all changed keys with its prefixes.
    Broadcast,
}

/// A connection's tracking, which ends when this is dropped.
pub struct Tracked {
    all_prefixes: Arc<Prefixes>,
    /// Number of clients that listen for changes; this one is included.
    listeners: Arc<AtomicUsize>,
    client: Arc<Client>,
    mode: Mode,
    /// True if CLIENT CACHING was given for the next command.
    pub caching: bool,
    prefixes: BTreeSet<Bytes>,
}

impl std::fmt::Debug for Tracked {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tracked").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl Tracked {
    /// Begins to track.
    pub fn new(
        prefixes: &Arc<Prefixes>,
        listeners: &Arc<AtomicUsize>,
        client: &Arc<Client>,
    ) -> Self {
        listeners.fetch_add(1, Ordering::Relaxed);
        Self {
            all_prefixes: prefixes.clone(),
            listeners: listeners.clone(),
            client: client.clone(),
            mode: Mode::default(),
            caching: false,
            prefixes: BTreeSet::new(),
        }
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Sets the mode, whether it ignores its own changes (`noloop`), and the client that receives
    /// its messages (0: itself).
    pub fn set(&mut self, mode: Mode, noloop: bool, redirect: u64) {
        self.mode = mode;
        self.client.set_redirect(redirect);
        self.client.set(ClientState::BROKEN_REDIRECT, false);
        self.client.set(ClientState::BROADCAST, mode == Mode::Broadcast);
        self.client.set(ClientState::NOLOOP, noloop);
        self.client.set(ClientState::TRACKING, true);
    }

    /// Adds a prefix.
    pub fn add_prefix(&mut self, prefix: &[u8]) {
        if !self.prefixes.contains(prefix) {
            let prefix = Bytes::copy_from_slice(prefix);
            self.prefixes.insert(prefix.clone());
            self.client.hold(prefix_weight(&prefix));
            self.all_prefixes.add(prefix, &self.client);
        }
    }

    /// Returns its prefixes.
    pub fn prefixes(&self) -> &BTreeSet<Bytes> {
        &self.prefixes
    }

    /// Returns true if the reads of the next command are to be recorded.
    pub fn remembers(&self) -> bool {
        match self.mode {
            Mode::All => true,
            Mode::OptIn => self.caching,
            Mode::OptOut => !self.caching,
            Mode::Broadcast => false,
        }
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        let states = ClientState::TRACKING
            | ClientState::BROKEN_REDIRECT
            | ClientState::BROADCAST
            | ClientState::NOLOOP;
        self.client.set(states, false);
        self.client.set_redirect(0);
        for prefix in &self.prefixes {
            self.all_prefixes.remove(prefix, &self.client);
            self.client.release(prefix_weight(prefix));
        }
        self.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}
