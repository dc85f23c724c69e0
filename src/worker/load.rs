//! Cold reads of a worker. The requests of one tick are loaded together, so that they cost few
//! hand-overs to the background and, when the commands run again, few journal records. Many requests
//! are split into several loads: all commands of a load wait for the slowest of its reads.
//!
//! A read of some elements of a collection includes the elements that waiting commands on the same
//! key name: a pipeline of them costs one read. The command that reads holds the key's lock, so
//! elements that are read ahead stay current.

use super::parked::Parked;
use super::read_trouble::{ReadTrouble, TroubleLine};
use super::{Lock, Worker};
use flagstone_storage::latency::{LATENCY, LatencyEvent};
use flagstone_storage::slot::NotOwned;
use flagstone_storage::store::{Need, Part};
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::{Notify, oneshot};

/// Maximum number of waiting commands that one read considers, and of names that it reads ahead.
const LOOK_AHEAD: usize = 4096;

/// Number of loads that the requests of a tick are split into, and of requests that are not worth
/// splitting.
const LOADS: usize = 16;
const LEAST_TOGETHER: usize = 4;

/// Elements of a big collection that come into memory before other commands have a turn.
const APPLIED_AT_ONCE: usize = 4096;

/// A task or a command that waits for a load.
enum LoadWaiter {
    Task(oneshot::Sender<Result<(), String>>),
    Command(Lock, Box<Parked>),
}

impl LoadWaiter {
    /// Returns true if its client uses TLS; `None`: a task does not know that.
    fn secured(&self) -> Option<bool> {
        match self {
            Self::Task(_) => None,
            Self::Command(_, parked) => Some(parked.command.request.secured),
        }
    }
}

/// The request of one command.
struct LoadRequest {
    needs: Vec<Need>,
    waiter: LoadWaiter,
}

/// Requests that no load has taken up yet.
#[derive(Default)]
pub(super) struct ColdLoader {
    queue: RefCell<Vec<LoadRequest>>,
    due: Notify,
    trouble: ReadTrouble,
}

impl Worker {
    /// Loads entries that are not in memory; their keys are locked. Returns the error text for the
    /// client if that fails.
    pub(crate) async fn load(&self, needs: Vec<Need>) -> Result<(), String> {
        let (done, loaded) = oneshot::channel();
        self.request(needs, LoadWaiter::Task(done));
        loaded.await.unwrap_or_else(|_| Err("ERR the command was abandoned".into()))
    }

    /// Loads the data that a parked command needs; the command goes on afterwards.
    pub(super) fn load_for(&self, needs: Vec<Need>, lock: Lock, parked: Box<Parked>) {
        self.request(needs, LoadWaiter::Command(lock, parked));
    }

    fn request(&self, needs: Vec<Need>, waiter: LoadWaiter) {
        self.loader.queue.borrow_mut().push(LoadRequest { needs, waiter });
        self.loader.due.notify_one();
    }

    /// Loads the requests of each tick together, until the worker ends.
    pub(crate) async fn run_loader(self: Rc<Self>) {
        loop {
            self.loader.due.notified().await;
            let mut requests = self.loader.queue.take();
            let together = requests.len().div_ceil(LOADS).max(LEAST_TOGETHER);
            while !requests.is_empty() {
                let rest = requests.split_off(requests.len().min(together));
                tokio::task::spawn_local(self.clone().load_together(requests));
                requests = rest;
            }
        }
    }

    async fn load_together(self: Rc<Self>, requests: Vec<LoadRequest>) {
        let all: Vec<Need> =
            requests.iter().flat_map(|request| request.needs.iter().cloned()).collect();
        let ahead = self.named_behind(&all);
        let alone = requests.len() == 1 && ahead.is_empty();
        // If that fails, it is the only one.
        let secured = requests.first().and_then(|request| request.waiter.secured());
        let loaded = self.load_now(all.into_iter().chain(ahead).collect(), secured).await;
        let mut commands = Vec::with_capacity(requests.len());
        for LoadRequest { needs, waiter } in requests {
            let result = match &loaded {
                // Something cannot be read: loads each request by itself, so that only those that
                // need it fail.
                Err(_) if !alone => self.load_now(needs, waiter.secured()).await,
                loaded => loaded.clone(),
            };
            match (waiter, result) {
                // A task that has ended needs no answer.
                (LoadWaiter::Task(done), result) => drop(done.send(result)),
                (LoadWaiter::Command(lock, parked), Ok(())) => commands.push((lock, parked)),
                (LoadWaiter::Command(lock, parked), Err(text)) => parked.fail(lock, &text),
            }
        }
        self.go_on_with(commands.into_iter());
    }

    /// Returns the elements that waiting commands name, for keys of which elements are to be
    /// loaded.
    fn named_behind(&self, needs: &[Need]) -> Vec<Need> {
        let locks = self.locks.borrow();
        let mut partition = self.partition.borrow_mut();
        let mut seen = HashSet::new();
        let mut ahead = Vec::new();
        for need in needs {
            let (db, key) = (need.db, &*need.key);
            let in_part = need.part.as_ref().is_some_and(|part| *part != Part::All);
            if !in_part || !seen.insert((db, key)) {
                continue;
            }
            let waiting = locks.waiting(db, key).take(LOOK_AHEAD);
            let names = waiting.flat_map(|parked| parked.command.names(db, key)).take(LOOK_AHEAD);
            let names = partition.store.unknown(db, key, names);
            if !names.is_empty() {
                ahead.push(Need { db, key: key.into(), part: Some(Part::Fields(names)) });
            }
        }
        ahead
    }

    async fn load_now(&self, mut needs: Vec<Need>, secured: Option<bool>) -> Result<(), String> {
        let begun = Instant::now();
        {
            // A unit asks for all that it has missed so far, as it may have lost some of it.
            let store = &mut self.partition.borrow_mut().store;
            needs.retain(|need| !store.has_part(need));
        }
        if needs.is_empty() {
            return Ok(());
        }
        let (behind, loaded) = (self.parts_behind(&needs), needs.len());
        let mut finished = self.load_step(needs).await;
        if finished.is_ok() && !behind.is_empty() {
            finished = self.load_step(behind).await;
        }
        LATENCY.note(LatencyEvent::ColdRead, begun.elapsed());
        self.evict_after(loaded);
        match finished {
            Ok(()) => {
                if let Some(TroubleLine::Over) = self.loader.trouble.succeeded(Instant::now) {
                    tracing::info!("data can be read again");
                }
                Ok(())
            }
            Err(error) => {
                if let Some(what) = error.downcast_ref::<NotOwned>() {
                    return Err(self.node.not_owned(*what, secured).text);
                }
                if let Some(TroubleLine::Failing(reads)) =
                    self.loader.trouble.failed(Instant::now())
                {
                    tracing::error!(reads, "data cannot be read: {error:#}");
                }
                Err(format!("ERR the data could not be read: {error:#}"))
            }
        }
    }

    /// Returns the parts of values whose meta rows have to be loaded before. A unit that is rolled
    /// back needs both: if it ran with the meta rows alone, the values of which it has parts would
    /// be changed and discarded in turn, for ever.
    fn parts_behind(&self, needs: &[Need]) -> Vec<Need> {
        let mut partition = self.partition.borrow_mut();
        let mut is_behind =
            |need: &Need| need.part.is_some() && !partition.store.is_hot(need.db, &need.key);
        needs.iter().filter(|need| is_behind(need)).cloned().collect()
    }

    async fn load_step(&self, needs: Vec<Need>) -> anyhow::Result<()> {
        // Ranges of elements are read from pending rows and the engine, so these must have all
        // changes.
        if needs.iter().any(|need| need.part.is_some()) && self.partition.borrow().store.is_dirty()
        {
            self.commit();
        }
        let plan = self.partition.borrow_mut().plan_load(needs)?;
        let mut loaded = plan.run(&self.node.background).await;
        // The keys are locked, so nobody sees a part of a value.
        while self.partition.borrow_mut().apply_some(&mut loaded, APPLIED_AT_ONCE)? {
            tokio::task::yield_now().await;
        }
        self.partition.borrow_mut().finish_load(loaded)
    }
}
