//! Cold reads of a worker. The requests of one tick are loaded together, so that they cost few
//! hand-overs to the background and, when the commands run again, few journal records. Many requests
//! are split into several loads: all commands of a load wait for the slowest of its reads.
//!
//! A read of some elements of a collection includes the elements that waiting commands on the same
//! key name: a pipeline of them costs one read. The command that reads holds the key's lock, so
//! elements that are read ahead stay current.
//!
//! Requests beyond a share of the memory wait in order ([`LoadVolume`]): what commands have asked for
//! together may be any number of times as large as the memory. A command that has loaded some of its
//! data goes before those that have none yet, and before those that began earlier: commands of many
//! rounds end one after the other. A task goes on in turn with those that have none yet: tasks that begin
//! all the time would keep others from their data.
//!
//! A huge request, of more than others can wait for, has a load of its own, and one is read at a time.
//! While it is, others like it wait aside, and small ones go past them. When it has ended, the first that
//! waits aside comes before all requests of those that have not begun: it waits for one load like that.

use super::parked::Parked;
use super::read_trouble::{ReadTrouble, TroubleLine};
use super::volume::{LoadShare, LoadVolume};
use super::{Lock, Worker};
use flagstone_storage::Store;
use flagstone_storage::latency::{LATENCY, LatencyEvent};
use flagstone_storage::slot::NotOwned;
use flagstone_storage::store::{Need, Part};
use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::time::Instant;
use tokio::sync::oneshot;

/// Maximum number of waiting commands that one read considers, and of names that it reads ahead.
const LOOK_AHEAD: usize = 4096;

/// Names that are read ahead at first if those of a value may be more than there is room for; and how
/// many times as many follow, while they are small.
const AHEAD_AT_FIRST: usize = 16;
const AHEAD_GROWTH: usize = 8;

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
    /// True if it is a further one of a command or task that has some data already.
    has_begun: bool,
}

impl LoadRequest {
    fn is_of_begun_command(&self) -> bool {
        self.has_begun && matches!(self.waiter, LoadWaiter::Command(..))
    }
}

/// Requests that no load has taken up yet.
#[derive(Default)]
pub(super) struct ColdLoader {
    queue: RefCell<VecDeque<LoadRequest>>,
    /// Further requests of tasks that have some data already.
    further: RefCell<VecDeque<LoadRequest>>,
    /// True if the last request was one of [`further`](Self::further): one of the others is next.
    is_turn_of_others: Cell<bool>,
    /// Huge requests that wait for the end of the one that is read.
    huge: RefCell<VecDeque<LoadRequest>>,
    pub(super) volume: Rc<LoadVolume>,
    trouble: ReadTrouble,
}

impl ColdLoader {
    fn put(&self, request: LoadRequest) {
        match request.waiter {
            LoadWaiter::Task(_) if request.has_begun => {
                self.further.borrow_mut().push_back(request);
            }
            _ => Self::put_in(&self.queue, request),
        }
    }

    fn put_in(queue: &RefCell<VecDeque<LoadRequest>>, request: LoadRequest) {
        let mut queue = queue.borrow_mut();
        if request.is_of_begun_command() {
            queue.push_front(request);
        } else {
            queue.push_back(request);
        }
    }

    /// Returns the request whose turn it is.
    fn next(&self) -> Option<LoadRequest> {
        let mut queue = self.queue.borrow_mut();
        if queue.front().is_some_and(LoadRequest::is_of_begun_command) {
            return queue.pop_front();
        }
        let mut further = self.further.borrow_mut();
        if !self.is_turn_of_others.take()
            && let Some(request) = further.pop_front()
        {
            self.is_turn_of_others.set(true);
            return Some(request);
        }
        let huge = if self.volume.has_huge() { None } else { self.huge.borrow_mut().pop_front() };
        huge.or_else(|| queue.pop_front()).or_else(|| further.pop_front())
    }

    fn is_awaited(&self) -> bool {
        [&self.queue, &self.further, &self.huge].iter().any(|queue| !queue.borrow().is_empty())
    }
}

impl Worker {
    /// Loads entries that are not in memory; their keys are locked. Returns the error text for the
    /// client if that fails.
    pub(crate) async fn load(&self, needs: Vec<Need>) -> Result<(), String> {
        self.load_in_turn(needs, false).await
    }

    /// Like [`load`](Self::load). `has_begun`: the task has some of its data already, and others wait for
    /// the locks that it holds.
    pub(super) async fn load_in_turn(
        &self,
        needs: Vec<Need>,
        has_begun: bool,
    ) -> Result<(), String> {
        let (done, loaded) = oneshot::channel();
        self.request(needs, LoadWaiter::Task(done), has_begun);
        loaded.await.unwrap_or_else(|_| Err("ERR the command was abandoned".into()))
    }

    /// Loads the data that a parked command needs; the command goes on afterwards.
    pub(super) fn load_for(&self, needs: Vec<Need>, lock: Lock, parked: Box<Parked>) {
        let has_begun = parked.rest();
        self.request(needs, LoadWaiter::Command(lock, parked), has_begun);
    }

    fn request(&self, needs: Vec<Need>, waiter: LoadWaiter, has_begun: bool) {
        self.loader.put(LoadRequest { needs, waiter, has_begun });
        self.loader.volume.wake();
    }

    /// Loads the requests of each tick together, until the worker ends.
    pub(crate) async fn run_loader(self: Rc<Self>) {
        loop {
            self.loader.volume.changed().await;
            let (huge, mut admitted): (Vec<_>, Vec<_>) =
                self.admit().into_iter().partition(|(_, share)| share.is_huge());
            // Small ones do not wait for its end.
            if !huge.is_empty() {
                tokio::task::spawn_local(self.clone().load_together(huge));
            }
            let together = admitted.len().div_ceil(LOADS).max(LEAST_TOGETHER);
            while !admitted.is_empty() {
                let rest = admitted.split_off(admitted.len().min(together));
                tokio::task::spawn_local(self.clone().load_together(admitted));
                admitted = rest;
            }
        }
    }

    /// Takes the requests from the queue for which there is room.
    fn admit(&self) -> Vec<(LoadRequest, LoadShare)> {
        let (volume, most) = (&self.loader.volume, self.load_limit());
        let mut admitted = Vec::new();
        while volume.has_room(most)
            && let Some(request) = self.next_request()
        {
            let store = &mut self.partition.borrow_mut().store;
            // A unit asks again for parts that it has.
            let mut expected_of = |need: &Need| match store.has_part(need) {
                true => 0,
                false => store.expected_bytes(need),
            };
            let expected = request.needs.iter().map(&mut expected_of);
            match volume.share_of(expected.fold(0, usize::saturating_add), most) {
                Some(share) => admitted.push((request, share)),
                None => ColdLoader::put_in(&self.loader.huge, request),
            }
        }
        volume.set_awaited(self.loader.is_awaited());
        admitted
    }

    /// Returns the next request of somebody who still needs the data now.
    fn next_request(&self) -> Option<LoadRequest> {
        loop {
            let LoadRequest { needs, waiter, has_begun } = self.loader.next()?;
            let waiter = match waiter {
                LoadWaiter::Command(lock, parked) => match parked.or_put_off(lock) {
                    Some((lock, parked)) => LoadWaiter::Command(lock, parked),
                    None => continue,
                },
                LoadWaiter::Task(done) if done.is_closed() => continue,
                task => task,
            };
            return Some(LoadRequest { needs, waiter, has_begun });
        }
    }

    async fn load_together(self: Rc<Self>, requests: Vec<(LoadRequest, LoadShare)>) {
        let share = self.loader.volume.share(0);
        let expected: Vec<usize> = requests.iter().map(|(_, share)| share.bytes()).collect();
        requests.iter().for_each(|(_, one)| share.take_over(one));
        let requests: Vec<LoadRequest> = requests.into_iter().map(|(request, _)| request).collect();
        let all: Vec<Need> =
            requests.iter().flat_map(|request| request.needs.iter().cloned()).collect();
        // A huge read takes more than there is room for: nothing is read ahead with it.
        let behind = if share.is_huge() { Vec::new() } else { self.named_behind(&all) };
        let (first, later) = self.ahead_at_first(behind, &share);
        let alone = requests.len() == 1 && first.is_empty();
        // If that fails, it is the only one.
        let secured = requests.first().and_then(|request| request.waiter.secured());
        let names = requests.len() + first.iter().map(names_of).sum::<usize>();
        let loaded = self.load_now(all.into_iter().chain(first).collect(), secured).await;
        if let Ok(bytes) = loaded {
            share.set(bytes);
            share.end_read();
            self.load_ahead(later, &share, names).await;
        }
        let mut commands = Vec::with_capacity(requests.len());
        let mut whole: usize = expected.iter().sum();
        for (LoadRequest { needs, waiter, .. }, part) in requests.into_iter().zip(expected) {
            let result = match &loaded {
                // Something cannot be read: loads each request by itself, so that only those that
                // need it fail.
                Err(_) if !alone => self.load_now(needs, waiter.secured()).await,
                loaded => loaded.clone(),
            };
            let own = share.split_off(part, whole);
            whole -= part;
            match (waiter, result) {
                // A task that has ended needs no answer.
                (LoadWaiter::Task(done), result) => drop(done.send(result.map(drop))),
                (LoadWaiter::Command(lock, mut parked), Ok(_)) => {
                    parked.hold(own);
                    commands.push((lock, parked));
                }
                (LoadWaiter::Command(lock, parked), Err(text)) => parked.fail(lock, &text),
            }
        }
        self.go_on_with(commands.into_iter());
    }

    /// Returns the names to read ahead together with the first needs, which `share` counts, too, and those
    /// for which there may be room behind them: elements of a value may be far larger than others.
    fn ahead_at_first(&self, mut ahead: Vec<Need>, share: &LoadShare) -> (Vec<Need>, Vec<Need>) {
        if ahead.is_empty() {
            return (ahead, Vec::new());
        }
        let left = self.loader.volume.left(self.load_limit());
        let store = &mut self.partition.borrow_mut().store;
        let mut of_whole =
            |need: &Need| store.expected_bytes(&Need { part: Some(Part::All), ..need.clone() });
        let whole = ahead.iter().map(&mut of_whole).fold(0, usize::saturating_add);
        let expected = |needs: &[Need], store: &mut Store| {
            needs.iter().map(|need| store.expected_bytes(need)).fold(0, usize::saturating_add)
        };
        if whole <= left {
            // Other loads of the same tick see what is left then.
            share.set(share.bytes().saturating_add(expected(&ahead, store)));
            return (ahead, Vec::new());
        }
        let each = expected(&ahead, store).div_ceil(ahead.iter().map(names_of).sum::<usize>());
        let first = take_names(&mut ahead, AHEAD_AT_FIRST.min(left / each.max(1)));
        share.set(share.bytes().saturating_add(expected(&first, store)));
        (first, ahead)
    }

    /// Reads names ahead while there is room. `names`: number of those whose bytes `share` has.
    async fn load_ahead(&self, mut ahead: Vec<Need>, share: &LoadShare, mut names: usize) {
        let mut last = share.bytes();
        while !ahead.is_empty() {
            let each = last.div_ceil(names.max(1)).max(1);
            let left = self.loader.volume.left(self.load_limit());
            names = (left / each).min(names * AHEAD_GROWTH);
            if names == 0 {
                return;
            }
            let before = share.bytes();
            share.set(before + names * each);
            // Commands ask again for data that cannot be read.
            let loaded = self.load_now(take_names(&mut ahead, names), None).await;
            last = loaded.as_ref().copied().unwrap_or_default();
            share.set(before + last);
            if loaded.is_err() {
                return;
            }
        }
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

    /// Loads data, and returns its bytes.
    async fn load_now(&self, mut needs: Vec<Need>, secured: Option<bool>) -> Result<usize, String> {
        let begun = Instant::now();
        {
            // A unit asks for all that it has missed so far, as it may have lost some of it.
            let store = &mut self.partition.borrow_mut().store;
            needs.retain(|need| !store.has_part(need));
        }
        if needs.is_empty() {
            return Ok(0);
        }
        let (behind, loaded) = (self.parts_behind(&needs), needs.len());
        let mut finished = self.load_step(needs).await;
        if let Ok(bytes) = finished
            && !behind.is_empty()
        {
            finished = self.load_step(behind).await.map(|more| bytes + more);
        }
        LATENCY.note(LatencyEvent::ColdRead, begun.elapsed());
        self.evict_for(loaded, finished.as_ref().copied().unwrap_or_default());
        match finished {
            Ok(bytes) => {
                if let Some(TroubleLine::Over) = self.loader.trouble.succeeded(Instant::now) {
                    tracing::info!("data can be read again");
                }
                Ok(bytes)
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

    async fn load_step(&self, needs: Vec<Need>) -> anyhow::Result<usize> {
        // Ranges of elements are read from pending rows and the engine, so these must have all
        // changes.
        if needs.iter().any(|need| need.part.is_some()) && self.partition.borrow().store.is_dirty()
        {
            self.commit();
        }
        let plan = self.partition.borrow_mut().plan_load(needs)?;
        let mut loaded = plan.run(&self.node.background).await;
        let bytes = loaded.bytes();
        // The keys are locked, so nobody sees a part of a value.
        while self.partition.borrow_mut().apply_some(&mut loaded, APPLIED_AT_ONCE)? {
            tokio::task::yield_now().await;
        }
        self.partition.borrow_mut().finish_load(loaded)?;
        Ok(bytes)
    }
}

/// Returns the number of names in a need.
fn names_of(need: &Need) -> usize {
    match &need.part {
        Some(Part::Fields(names)) => names.len(),
        _ => 0,
    }
}

/// Removes and returns up to `most` names.
fn take_names(ahead: &mut Vec<Need>, mut most: usize) -> Vec<Need> {
    let mut taken = Vec::new();
    while most > 0
        && let Some(mut need) = ahead.pop()
    {
        let Some(Part::Fields(names)) = &mut need.part else { continue };
        // Those that were named first are needed first.
        let rest = names.split_off(names.len().min(most));
        most -= names.len();
        if !rest.is_empty() {
            ahead.push(Need { part: Some(Part::Fields(rest)), ..need.clone() });
        }
        taken.push(need);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(key: &str, names: &[&str]) -> Need {
        let names = names.iter().map(|name| name.as_bytes().into()).collect();
        Need { db: 0, key: key.as_bytes().into(), part: Some(Part::Fields(names)) }
    }

    fn request(key: &str, has_begun: bool) -> LoadRequest {
        let waiter = LoadWaiter::Task(oneshot::channel().0);
        LoadRequest { needs: vec![names(key, &[])], waiter, has_begun }
    }

    /// Takes the next requests, and returns their keys.
    fn next(loader: &ColdLoader, most: usize) -> Vec<String> {
        let requests = std::iter::from_fn(|| loader.next()).take(most);
        let key =
            |request: LoadRequest| String::from_utf8_lossy(&request.needs[0].key).into_owned();
        requests.map(key).collect()
    }

    #[test]
    fn huge_requests_wait_aside_and_one_of_them_comes_next() {
        let loader = ColdLoader::default();
        let huge = loader.volume.share_of(1000, 100).expect("no other one is read");
        ColdLoader::put_in(&loader.huge, request("huge", false));
        ColdLoader::put_in(&loader.huge, request("later huge", false));
        ["a", "b", "c"].iter().for_each(|key| loader.put(request(key, false)));
        assert_eq!(next(&loader, 1), ["a"]);
        drop(huge);
        assert_eq!(next(&loader, 9), ["huge", "later huge", "b", "c"]);
        assert!(!loader.is_awaited());
    }

    #[test]
    fn tasks_that_have_begun_take_turns_with_requests_that_have_not() {
        let loader = ColdLoader::default();
        ["a", "b"].iter().for_each(|key| loader.put(request(key, false)));
        ["1", "2", "3", "4"].iter().for_each(|key| loader.put(request(key, true)));
        assert_eq!(next(&loader, 2), ["1", "a"]);
        loader.put(request("5", true));
        assert_eq!(next(&loader, 9), ["2", "b", "3", "4", "5"]);
        assert!(!loader.is_awaited());
        loader.put(request("c", false));
        assert_eq!(next(&loader, 9), ["c"]);
    }

    #[test]
    fn names_are_read_ahead_in_parts() {
        let mut ahead = vec![names("a", &["1", "2"]), names("b", &["1", "2", "3"])];
        assert!(take_names(&mut ahead, 0).is_empty());
        assert_eq!(take_names(&mut ahead, 2), [names("b", &["1", "2"])]);
        assert_eq!(take_names(&mut ahead, 2), [names("b", &["3"]), names("a", &["1"])]);
        assert_eq!(take_names(&mut ahead, 2), [names("a", &["2"])]);
        assert!(ahead.is_empty() && take_names(&mut ahead, 2).is_empty());
    }
}
