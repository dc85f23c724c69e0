//! The registry of connections: what CLIENT LIST shows and CLIENT KILL ends.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Text a client has given of itself.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    /// CLIENT SETNAME.
    pub name: String,
    /// CLIENT SETINFO LIB-NAME.
    pub lib_name: String,
    /// CLIENT SETINFO LIB-VER.
    pub lib_ver: String,
    /// Full name of the last command, "client|list".
    pub last_command: &'static str,
}

/// The part of a connection that others may see.
#[derive(Debug)]
pub struct Client {
    pub id: u64,
    pub addr: SocketAddr,
    pub laddr: SocketAddr,
    pub worker: usize,
    pub created_ms: u64,
    last_ms: AtomicU64,
    db: AtomicU32,
    /// RESP version: 2 or 3.
    resp: AtomicU32,
    pub commands: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub no_evict: AtomicBool,
    pub no_touch: AtomicBool,
    killed: AtomicBool,
    kill: Notify,
    labels: Mutex<Labels>,
}

impl Client {
    pub fn new(id: u64, addr: SocketAddr, laddr: SocketAddr, worker: usize, now_ms: u64) -> Self {
        Self {
            id,
            addr,
            laddr,
            worker,
            created_ms: now_ms,
            last_ms: AtomicU64::new(now_ms),
            db: AtomicU32::new(0),
            resp: AtomicU32::new(2),
            commands: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            no_evict: AtomicBool::new(false),
            no_touch: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            kill: Notify::new(),
            labels: Mutex::new(Labels { last_command: "NULL", ..Labels::default() }),
        }
    }

    /// Whether it runs on the same machine.
    pub fn is_local(&self) -> bool {
        self.addr.ip().to_canonical().is_loopback()
    }

    pub fn labels(&self) -> MutexGuard<'_, Labels> {
        self.labels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn db(&self) -> u32 {
        self.db.load(Ordering::Relaxed)
    }

    pub fn set_db(&self, db: u32) {
        self.db.store(db, Ordering::Relaxed);
    }

    pub fn resp(&self) -> u32 {
        self.resp.load(Ordering::Relaxed)
    }

    pub fn set_resp(&self, version: u32) {
        self.resp.store(version, Ordering::Relaxed);
    }

    /// The time of its last command, ms since the Unix epoch.
    pub fn last_ms(&self) -> u64 {
        self.last_ms.load(Ordering::Relaxed)
    }

    pub fn seen_at(&self, now_ms: u64) {
        self.last_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Forgets what RESET forgets.
    pub(crate) fn reset(&self) {
        self.set_db(0);
        self.set_resp(2);
        self.no_evict.store(false, Ordering::Relaxed);
        self.no_touch.store(false, Ordering::Relaxed);
        let mut labels = self.labels();
        labels.name.clear();
    }

    /// Asks the connection's task to close it.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        self.kill.notify_one();
    }

    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// Resolves when the connection shall be closed.
    pub async fn killed(&self) {
        while !self.is_killed() {
            self.kill.notified().await;
        }
    }
}

/// All connections of the node, by id.
#[derive(Debug, Default)]
pub struct Clients {
    next_id: AtomicU64,
    map: Mutex<BTreeMap<u64, Arc<Client>>>,
    pub accepted: AtomicU64,
    pub rejected: AtomicU64,
}

impl Clients {
    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn len(&self) -> usize {
        self.map().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Registers a connection, unless there are `max` already.
    pub fn admit(&self, max: usize, make: impl FnOnce(u64) -> Client) -> Option<Arc<Client>> {
        let mut map = self.map();
        if map.len() >= max {
            self.rejected.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let client = Arc::new(make(id));
        map.insert(id, client.clone());
        Some(client)
    }

    pub fn remove(&self, id: u64) {
        self.map().remove(&id);
    }

    pub fn get(&self, id: u64) -> Option<Arc<Client>> {
        self.map().get(&id).cloned()
    }

    /// All of them, oldest first.
    pub fn all(&self) -> Vec<Arc<Client>> {
        self.map().values().cloned().collect()
    }
}
