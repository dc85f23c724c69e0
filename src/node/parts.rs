//! The node's state by subject. Each part is handed to those who need no other.

use super::{
    Budget, ChangeListeners, ListenChange, MAX_DETACHED, Pace, Squeeze, StartFacts, WorkerStats,
};
use crate::acl::{Accounts, DenialLog};
use crate::commandlog::CommandLogs;
use crate::functions::{Functions, SharedLibraries};
use crate::monitor::Monitors;
use crate::pubsub::PubSub;
use crate::rates::Rates;
use crate::scripts::Scripts;
use crate::tls::TlsSlot;
use flagstone_storage::clock::Clock;
use flagstone_storage::encoding::Library;
use flagstone_storage::place::Requests;
use std::sync::{Arc, OnceLock};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};

/// Users, and what they were denied.
pub struct Access {
    pub accounts: Arc<Accounts>,
    pub denials: DenialLog,
}

/// Clients that hear of the commands of others.
pub struct Broadcast {
    /// Clients that hear of changed keys.
    pub listeners: ChangeListeners,
    pub pubsub: Arc<PubSub>,
    pub monitors: Arc<Monitors>,
}

/// Scripts and functions of the clients.
pub struct Code {
    pub scripts: Scripts,
    pub functions: Functions,
    /// The libraries of its cluster of several servers, if it is in one.
    pub shared: Option<Arc<SharedLibraries>>,
    /// Permits for units that run on threads of their own.
    pub detached_permits: Semaphore,
}

impl Code {
    /// Creates the code at the start of the process: the libraries of stored rows, or those of a
    /// cluster, which are not loaded yet.
    ///
    /// # Errors
    /// If the rows cannot be together.
    pub(super) fn new(
        libraries: Vec<Library>,
        shared: Option<SharedLibraries>,
        budget: &Budget,
    ) -> Result<Self, String> {
        Ok(Self {
            scripts: Scripts::new(budget.scripts, budget.script_vm),
            functions: Functions::new(libraries, budget.functions)?,
            shared: shared.map(Arc::new),
            detached_permits: Semaphore::new(MAX_DETACHED),
        })
    }
}

/// Counters, logs and facts that INFO and metrics show.
pub struct Figures {
    /// By worker.
    pub stats: Vec<Arc<WorkerStats>>,
    pub rates: Rates,
    pub command_logs: CommandLogs,
    /// Requests to the bucket of the data, and to that of the journal, which may be the same.
    pub requests: [Arc<Requests>; 2],
    pub start: StartFacts,
}

impl Figures {
    pub(super) fn new(workers: usize, requests: [Arc<Requests>; 2], clock: &Clock) -> Self {
        Self {
            stats: (0..workers).map(|_| Arc::default()).collect(),
            rates: Rates::default(),
            command_logs: CommandLogs::default(),
            requests,
            start: StartFacts::now(clock.now_ms()),
        }
    }
}

/// Limits of memory, and the means that keep commands within them.
pub struct Pressure {
    pub budget: Budget,
    /// Slows writers while the engines fall behind.
    pub pace: Pace,
    /// Takes memory from decoded values while the process exceeds its budget.
    pub squeeze: Squeeze,
    /// Permits for the keys of commands that have very many.
    pub key_permits: Semaphore,
}

/// Listening addresses and TLS.
pub struct Ports {
    /// Sender of changes to the listening addresses.
    pub(super) listener: OnceLock<mpsc::Sender<ListenChange>>,
    /// TLS for new connections.
    pub tls: Arc<TlsSlot>,
    /// Tokio runtime of TLS handshakes: one thread, which takes no more than a CPU.
    pub handshakes: Handle,
}
