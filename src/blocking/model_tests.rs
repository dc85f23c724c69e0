//! Model test of the hand-over under many schedules: workers with elements, and clients that wait
//! for keys of several workers, time out, are unblocked, or disconnect. A slice has one key, so that
//! anything may happen between two keys of a client. Turns, tables and the order of serving are the
//! real ones; only the execution of commands is a model.

use super::serve::{ServeAttempt, Serves, Step, end_detached, serve_all, step};
use super::table::Content;
use super::{WaitTable, Waiter, testing};
use crate::clients::{Cancel, Ended};
use crate::command::{Answer, Outcome};
use flagstone_commands::Awaited;
use flagstone_storage::need::Key;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::{Condvar, Mutex};
use shuttle::{Config, Runner, thread};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

const WORKERS: usize = 3;
const CLIENTS: usize = 4;
const KEYS_OF_EACH: usize = 2;
/// Keys of a client at most.
const MAX_KEYS: usize = 4;
const PUSHES: u32 = 6;
const SCHEDULES: usize = 3000;

enum Message {
    /// A step for the keys of a waiter, from this index on.
    Step(Step, Arc<Waiter>, usize),
    Push(Key, u32),
    /// Pops an element without waiting.
    Pop(Key),
    /// The task that serves a waiter by itself has come to the point where it takes an element.
    Detached(Arc<Waiter>, Key),
    /// The task has learned the key's type.
    Fetched(Key),
    Stop,
}

/// Model of a mailbox: urgent messages overtake the others.
#[derive(Default)]
struct Mailbox {
    urgent: VecDeque<Message>,
    normal: VecDeque<Message>,
}

#[derive(Default)]
struct Shared {
    mailboxes: [Mailbox; WORKERS],
    /// Number of unhandled messages, and of clients that still register waiters.
    pending: usize,
    lists: BTreeMap<Key, VecDeque<u32>>,
    /// Number of elements pushed to each key.
    pushed: BTreeMap<Key, u64>,
    /// Elements that are in no list any more.
    served: BTreeMap<u64, u32>,
    popped: Vec<u32>,
}

#[derive(Default)]
struct Net {
    shared: Mutex<Shared>,
    changed: Condvar,
}

impl Net {
    fn post(&self, worker: usize, urgent: bool, message: Message) {
        let mut shared = self.shared.lock().unwrap();
        shared.pending += 1;
        let mailbox = &mut shared.mailboxes[worker];
        let lane = if urgent { &mut mailbox.urgent } else { &mut mailbox.normal };
        lane.push_back(message);
        self.changed.notify_all();
    }

    fn next(&self, worker: usize) -> Message {
        let mut shared = self.shared.lock().unwrap();
        loop {
            let mailbox = &mut shared.mailboxes[worker];
            if let Some(message) = mailbox.urgent.pop_front().or_else(|| mailbox.normal.pop_front())
            {
                return message;
            }
            shared = self.changed.wait(shared).unwrap();
        }
    }

    fn done(&self) {
        self.shared.lock().unwrap().pending -= 1;
        self.changed.notify_all();
    }

    fn wait_quiet(&self) {
        let mut shared = self.shared.lock().unwrap();
        while shared.pending > 0 {
            shared = self.changed.wait(shared).unwrap();
        }
    }

    fn take(&self, key: &Key) -> Option<u32> {
        self.shared.lock().unwrap().lists.get_mut(key)?.pop_front()
    }
}

/// Returns a key's owner: keys "00", "01", "10", … belong to the worker of the first digit.
fn owner(key: &Key) -> usize {
    usize::from(key.1[0] - b'0')
}

struct ModelWorker {
    number: usize,
    table: RefCell<WaitTable>,
    net: Arc<Net>,
}

impl ModelWorker {
    fn run(&self) {
        loop {
            match self.net.next(self.number) {
                Message::Step(what, waiter, from) => {
                    if let Some(next) = step(self, what, &waiter, from) {
                        // Other messages may come before the next slice.
                        let urgent = thread_rng().r#gen();
                        self.net.post(self.number, urgent, Message::Step(what, waiter, next));
                    }
                }
                Message::Push(key, element) => {
                    let mut shared = self.net.shared.lock().unwrap();
                    shared.lists.entry(key.clone()).or_default().push_back(element);
                    *shared.pushed.entry(key.clone()).or_default() += 1;
                    drop(shared);
                    self.table.borrow_mut().touch(key.0, &key.1);
                    serve_all(self);
                }
                Message::Pop(key) => {
                    let popped = self.net.take(&key);
                    self.net.shared.lock().unwrap().popped.extend(popped);
                }
                Message::Detached(waiter, key) => {
                    let served = self.serve(&waiter);
                    end_detached(self, &waiter, &key, served);
                }
                Message::Fetched(key) => {
                    self.table.borrow_mut().set_busy(&key, false);
                    serve_all(self);
                }
                Message::Stop => break,
            }
            self.net.done();
        }
        assert!(self.table.borrow().is_empty(), "somebody is left in a queue");
    }

    /// Gives a waiter the first element of its keys on this worker.
    fn serve(&self, waiter: &Waiter) -> bool {
        let mut here = waiter.keys.iter().filter(|key| owner(key) == self.number);
        let Some(element) = here.find_map(|key| self.net.take(key)) else { return false };
        let again = self.net.shared.lock().unwrap().served.insert(waiter.id, element);
        assert_eq!(again, None, "a client is served twice");
        let reply = element.to_string().into_bytes().into();
        waiter.turn.serve(Answer { reply, outcome: Outcome::Done });
        true
    }
}

impl Serves for ModelWorker {
    const SLICE: usize = 1;

    fn is_here(&self, key: &Key) -> bool {
        owner(key) == self.number
    }

    fn number(&self) -> usize {
        self.number
    }

    fn table(&self) -> &RefCell<WaitTable> {
        &self.table
    }

    fn content_of(&self, key: &Key) -> Option<Content> {
        if thread_rng().gen_ratio(1, 5) {
            return None;
        }
        let shared = self.net.shared.lock().unwrap();
        let state = [shared.pushed.get(key).copied().unwrap_or(0), 0, 0, 0, 0, 0];
        let has_any = shared.lists.get(key).is_some_and(|list| !list.is_empty());
        // A stream without new entries still has a type.
        let exists = has_any || thread_rng().gen_ratio(1, 3);
        Some(if exists { Content { type_name: "stream", state } } else { Content::NONE })
    }

    fn is_postponed(&self, _: &Key) -> bool {
        false
    }

    fn fetch(&self, key: &Key) {
        self.net.post(self.number, false, Message::Fetched(key.clone()));
    }

    fn try_serve(&self, waiter: &Arc<Waiter>, key: &Key) -> ServeAttempt {
        if thread_rng().gen_ratio(1, 3) {
            self.table.borrow_mut().set_busy(key, true);
            self.net.post(self.number, false, Message::Detached(waiter.clone(), key.clone()));
            return ServeAttempt::Detached;
        }
        if self.serve(waiter) { ServeAttempt::Served } else { ServeAttempt::Nothing }
    }

    fn ask(&self, worker: usize, waiter: &Arc<Waiter>) {
        self.net.post(worker, true, Message::Step(Step::Look, waiter.clone(), 0));
    }
}

/// Registers a waiter with the workers of its keys; returns how its wait ended, or `None` if the
/// client disconnects.
fn run_client(net: &Net, waiter: &Arc<Waiter>, goes: bool) -> Option<Ended> {
    let workers: BTreeSet<usize> = waiter.keys.iter().map(owner).collect();
    let leave = |n: usize| {
        for worker in workers.iter().take(n) {
            net.post(*worker, false, Message::Step(Step::Add, waiter.clone(), 0));
        }
    };
    let ended = if goes {
        leave(thread_rng().gen_range(1..=workers.len()));
        net.done();
        waiter.turn.cancel(Cancel::Gone);
        None
    } else {
        leave(workers.len());
        net.done();
        Some(shuttle::future::block_on(waiter.turn.wait()))
    };
    for worker in workers {
        net.post(worker, true, Message::Step(Step::Remove, waiter.clone(), 0));
    }
    ended
}

fn random_key() -> String {
    let mut random = thread_rng();
    format!("{}{}", random.gen_range(0..WORKERS), random.gen_range(0..KEYS_OF_EACH))
}

/// Checks that no client waits for a key that has an element.
fn check_no_waiter_is_overlooked(net: &Net, waiters: &[Arc<Waiter>]) {
    let shared = net.shared.lock().unwrap();
    for waiter in waiters.iter().filter(|waiter| !waiter.turn.is_over()) {
        for key in &waiter.keys {
            let left = shared.lists.get(key).map_or(0, VecDeque::len);
            assert_eq!(left, 0, "client {} was not woken", waiter.id);
        }
    }
}

/// Checks that each element is in a list, was popped, was delivered, or was lost with a client that
/// disconnected.
fn check_elements(net: &Net, ends: &[Option<Ended>]) {
    let shared = net.shared.lock().unwrap();
    let mut found: Vec<u32> = shared.lists.values().flatten().copied().collect();
    found.extend(&shared.popped);
    found.extend(shared.served.values());
    found.sort_unstable();
    assert_eq!(found, (0..PUSHES).collect::<Vec<_>>());
    for (n, end) in ends.iter().enumerate() {
        let served = shared.served.get(&(n as u64 + 1));
        let reply = served.map(|element| element.to_string().into_bytes());
        match end {
            // An element taken for the client is lost with it.
            None => {}
            Some(Ended::Served(got, Outcome::Done)) => assert_eq!(Some(got), reply.as_ref()),
            Some(Ended::Served(..)) => panic!("the outcome has changed"),
            Some(Ended::Cancelled(_)) => assert_eq!(reply, None),
        }
    }
}

fn schedule() {
    let net = Arc::new(Net::default());
    net.shared.lock().unwrap().pending = CLIENTS;
    let workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let net = net.clone();
            thread::spawn(move || ModelWorker { number, table: RefCell::default(), net }.run())
        })
        .collect();
    let waiters: Vec<Arc<Waiter>> = (1..=CLIENTS as u64)
        .map(|id| {
            let keys: Vec<String> =
                (0..thread_rng().gen_range(1..=MAX_KEYS)).map(|_| random_key()).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            testing::waiter(id, &keys, Awaited::Stream)
        })
        .collect();
    let clients: Vec<_> = waiters
        .iter()
        .map(|waiter| {
            let (net, waiter) = (net.clone(), waiter.clone());
            let goes = thread_rng().gen_ratio(1, 4);
            thread::spawn(move || run_client(&net, &waiter, goes))
        })
        .collect();
    let told = waiters[0].turn.clone();
    let canceller = thread::spawn(move || {
        let why = if thread_rng().r#gen() { Cancel::TimedOut } else { Cancel::Unblocked };
        told.cancel(why);
    });
    for element in 0..PUSHES {
        let key: Key = (0, random_key().into_bytes().into());
        let target = owner(&key);
        net.post(target, false, Message::Push(key.clone(), element));
        if thread_rng().gen_ratio(1, 4) {
            net.post(target, false, Message::Pop(key));
        }
    }
    canceller.join().unwrap();
    net.wait_quiet();
    check_no_waiter_is_overlooked(&net, &waiters);
    for waiter in &waiters {
        waiter.turn.cancel(Cancel::TimedOut);
    }
    let ends: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    net.wait_quiet();
    (0..WORKERS).for_each(|worker| net.post(worker, false, Message::Stop));
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    check_elements(&net, &ends);
}

#[test]
fn every_element_reaches_one_client_and_every_client_hears_of_it() {
    let scheduler = RandomScheduler::new_from_seed(0x0f1a_6570, SCHEDULES);
    Runner::new(scheduler, Config::new()).run(schedule);
}
