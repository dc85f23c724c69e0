//! The tracking of one connection.

use super::Prefixes;
use crate::clients::{Client, state};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Which of its reads are remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    All,
    /// Those behind CLIENT CACHING YES.
    OptIn,
    /// Those that are not behind CLIENT CACHING NO.
    OptOut,
    /// None: it hears of all keys with its prefixes.
    Broadcast,
}

/// A connection's tracking; it ends when it is dropped.
pub struct Tracked {
    all_prefixes: Arc<Prefixes>,
    /// Clients that want to hear of changes, of which this is one.
    listeners: Arc<AtomicUsize>,
    client: Arc<Client>,
    mode: Mode,
    /// CLIENT CACHING was given for the next command.
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

    /// Sets the mode, whether it hears of its own changes (`noloop`: not), and where its messages
    /// go (0: to itself).
    pub fn set(&mut self, mode: Mode, noloop: bool, redirect: u64) {
        self.mode = mode;
        self.client.set_redirect(redirect);
        self.client.set(state::BROKEN_REDIRECT, false);
        self.client.set(state::BROADCAST, mode == Mode::Broadcast);
        self.client.set(state::NOLOOP, noloop);
        self.client.set(state::TRACKING, true);
    }

    /// Begins to listen to a prefix.
    pub fn add_prefix(&mut self, prefix: &[u8]) {
        if !self.prefixes.contains(prefix) {
            let prefix = Bytes::copy_from_slice(prefix);
            self.prefixes.insert(prefix.clone());
            self.all_prefixes.add(prefix, &self.client);
        }
    }

    /// The prefixes it listens to.
    pub fn prefixes(&self) -> &BTreeSet<Bytes> {
        &self.prefixes
    }

    /// Whether what the next command reads is to be remembered.
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
        let states = state::TRACKING | state::BROKEN_REDIRECT | state::BROADCAST | state::NOLOOP;
        self.client.set(states, false);
        self.client.set_redirect(0);
        for prefix in &self.prefixes {
            self.all_prefixes.remove(prefix, &self.client);
        }
        self.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}
