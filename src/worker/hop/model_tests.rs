//! Model test of the exchange under many schedules: workers with connections that send batches to
//! each other, wait for the replies, or end before these have come, and that are lent something by
//! another worker and give it back, while one worker may end in the middle. Bells, lanes, parcels,
//! slots and grants are the real ones; only the thread's sleep and the execution of commands are a
//! model. A wake-up that is lost leaves all threads asleep, which the checker reports as a deadlock.

use super::bell::Word;
use super::lane::Letter;
use super::{Exchange, GrantKey, Hop, Offer, RemoteWork, SlotKey, WorkerReplies};
use crate::command::{Outcome, Request, registry};
use crate::worker::{Acquire, Apply, BatchReply, CmdBatch, Grant};
use flagstone_wire::resp::Args;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use shuttle::sync::{Condvar, Mutex};
use shuttle::{Config, Runner, thread};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;
use tokio::sync::oneshot;

const WORKERS: usize = 3;
const CONNECTIONS: usize = 4;
const CYCLES_OF_EACH: usize = 2;
const SCHEDULES: usize = 2000;

/// Bytes of an argument: two such batches fill a parcel.
const BIG: usize = 15 << 10;

#[derive(Debug, Default)]
struct ModelWord(AtomicU64);

impl Word for ModelWord {
    fn load(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn swap(&self, value: u64) -> u64 {
        self.0.swap(value, Ordering::SeqCst)
    }

    fn set(&self, bits: u64) -> u64 {
        self.0.fetch_or(bits, Ordering::SeqCst)
    }

    fn keep(&self, bits: u64) -> u64 {
        self.0.fetch_and(bits, Ordering::SeqCst)
    }

    fn replace(&self, from: u64, to: u64) -> bool {
        self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Model of the runtime's driver: a thread sleeps here until it is woken.
#[derive(Default)]
struct Driver {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Driver {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

impl Driver {
    fn park(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
}

/// Readiness of a connection's task.
struct TaskReady(AtomicBool);

impl Wake for TaskReady {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Holds of a worker that have not ended: who has them.
type Holds = Vec<(u64, usize)>;

/// A batch: its target, its marker, and the number of its commands.
type SentBatch = (usize, Vec<u8>, usize);

/// A connection: has batches to send, then waits.
struct ModelConnection {
    ready: Arc<TaskReady>,
    slot: Option<SlotKey>,
    unsent: Vec<(usize, CmdBatch)>,
    sent: Vec<SentBatch>,
    /// Workers that had ended when it wanted to send.
    gone: Vec<usize>,
    /// The worker that is asked for a loan, and the place of its grant.
    loan: Option<(usize, oneshot::Receiver<Grant>)>,
    /// The loan that it has given back: to whom, its hold, and the number of posts before.
    given: Option<(usize, u64, u64)>,
    cycles: usize,
}

struct ModelNet {
    exchange: Exchange<ModelWord>,
    drivers: Vec<Arc<Driver>>,
    /// Number of workers whose connections have not ended.
    busy: AtomicUsize,
}

struct HopWorker {
    id: usize,
    hop: Hop,
    net: Arc<ModelNet>,
    connections: Vec<ModelConnection>,
    /// Replies that have left their parcel.
    late: Vec<(usize, SlotKey, BatchReply)>,
    /// Loans of this worker: to whom.
    holds: BTreeMap<u64, usize>,
    last_hold: u64,
    /// Requests that wait for locks.
    queued: Vec<(usize, GrantKey)>,
}

fn batch(marker: &[u8], commands: usize) -> CmdBatch {
    let command = registry::lookup(b"get").expect("a command");
    let mut text = b"get".to_vec();
    text.extend_from_slice(marker);
    let mut batch = CmdBatch::default();
    for _ in 0..commands {
        let args = [(0, 3), (3, text.len() as u32)];
        batch.push(command, Request::of_nobody(0), None, Args::new(&text, &args));
    }
    batch
}

impl HopWorker {
    fn new(id: usize, net: Arc<ModelNet>) -> Self {
        let connection = |_| ModelConnection {
            ready: Arc::new(TaskReady(AtomicBool::new(true))),
            slot: None,
            unsent: Vec::new(),
            sent: Vec::new(),
            gone: Vec::new(),
            loan: None,
            given: None,
            cycles: CYCLES_OF_EACH,
        };
        let connections = (0..CONNECTIONS).map(connection).collect();
        Self {
            id,
            hop: Hop::new(id, WORKERS, 1),
            net,
            connections,
            late: Vec::new(),
            holds: BTreeMap::new(),
            last_hold: 0,
            queued: Vec::new(),
        }
    }

    fn exchange(&mut self) {
        self.hop.cycles.set(0);
        self.hop.post_all(&self.net.exchange);
        self.hop.receive(&self.net.exchange);
        for apply in self.hop.applies.borrow_mut().drain(..) {
            assert!(self.holds.remove(&apply.hold).is_some(), "a loan comes back twice");
        }
        self.run_parcels();
        self.hop.post_all(&self.net.exchange);
    }

    fn run_parcels(&mut self) {
        for (to, slot, reply) in self.late.drain(..) {
            self.hop.send_late(to, slot, Some(reply));
        }
        for (from, key) in std::mem::take(&mut self.queued) {
            self.lend(from, key);
        }
        while let Some(next) = { self.hop.incoming.borrow_mut().pop_front() } {
            let mut next = match next {
                RemoteWork::Parcel(next) => next,
                RemoteWork::Acquire { from, key, .. } => {
                    if thread_rng().gen_ratio(1, 4) {
                        self.queued.push((from, key));
                    } else {
                        self.lend(from, key);
                    }
                    continue;
                }
            };
            while let Some((slot, range)) = next.parcel.next() {
                let (mut bytes, mut ends, mut seen) = (Vec::new(), Vec::new(), Vec::new());
                for n in range {
                    let (command, arg) = next.parcel.batch.command(n);
                    bytes.extend_from_slice(&arg[..1]);
                    bytes.extend_from_slice(&arg[arg.len() - 1..]);
                    ends.push((bytes.len(), Outcome::Done));
                    seen.push((command, 0));
                }
                if thread_rng().gen_ratio(1, 4) {
                    let mut reply = BatchReply::default();
                    reply.set(&bytes, &ends);
                    next.parcel.leave_out();
                    self.late.push((next.from, slot, reply));
                } else {
                    next.parcel.answer(&bytes, &ends, &seen);
                }
            }
            self.hop.send_home(next.from, next.parcel);
        }
    }

    fn lend(&mut self, to: usize, key: GrantKey) {
        self.last_hold += 1;
        self.holds.insert(self.last_hold, to);
        let grant = Grant { hold: self.last_hold, ..Grant::default() };
        self.hop.leave(to, Letter::Grant(key, Box::new(grant)));
    }

    /// Polls a connection's loan, and gives it back; returns false while it waits for the grant.
    fn poll_loan(&mut self, n: usize) -> bool {
        let connection = &mut self.connections[n];
        let waker = Waker::from(connection.ready.clone());
        if let Some((target, hold, before)) = connection.given {
            if self.hop.poll_posted(before, &waker).is_pending() {
                return false;
            }
            // Whoever hears of it finds it ended.
            let peers = self.hop.peers.borrow();
            let is_here = |letter: &Letter| matches!(letter, Letter::Apply(it) if it.hold == hold);
            assert!(!peers[target].out.iter().any(is_here), "it is said before it is posted");
            connection.given = None;
            return true;
        }
        let Some((target, grant)) = &mut connection.loan else { return true };
        match Pin::new(grant).poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => return false,
            Poll::Ready(Ok(Grant { hold, .. })) => {
                let (target, before) = (*target, self.hop.posts.get());
                let apply = Apply { hold, ..Apply::default() };
                self.hop.leave(target, Letter::Apply(Box::new(apply)));
                (connection.loan, connection.given) = (None, Some((target, hold, before)));
                return self.poll_loan(n);
            }
            Poll::Ready(Err(_)) => {
                assert!(self.net.exchange.is_gone(*target), "worker {target} lends nothing");
            }
        }
        connection.loan = None;
        true
    }

    /// Begins a cycle: batches for some of the others.
    fn begin(&self, n: usize) -> (SlotKey, Vec<(usize, CmdBatch)>, Vec<SentBatch>) {
        let (mut unsent, mut sent) = (Vec::new(), Vec::new());
        for target in (0..WORKERS).filter(|target| *target != self.id) {
            let commands = thread_rng().gen_range(1..4);
            let big = if thread_rng().r#gen() { BIG / commands } else { 2 };
            let mut marker = vec![b'x'; big];
            marker[0] = b'a' + n as u8;
            marker[big - 1] = b'A' + self.connections[n].cycles as u8;
            unsent.push((target, batch(&marker, commands)));
            sent.push((target, vec![marker[0], marker[big - 1]], commands));
        }
        (self.hop.begin(), unsent, sent)
    }

    /// Polls a connection.
    fn poll(&mut self, n: usize) {
        if self.connections[n].slot.is_none() && self.connections[n].cycles > 0 {
            let (slot, unsent, sent) = self.begin(n);
            let connection = &mut self.connections[n];
            connection.cycles -= 1;
            (connection.slot, connection.unsent, connection.sent) = (Some(slot), unsent, sent);
            connection.gone.clear();
            if thread_rng().r#gen() {
                let (to, grant) = oneshot::channel();
                let target = (self.id + thread_rng().gen_range(1..WORKERS)) % WORKERS;
                self.hop.ask(&self.net.exchange, target, Acquire::default(), to);
                connection.loan = Some((target, grant));
            }
        }
        let has_loan = self.poll_loan(n);
        let connection = &mut self.connections[n];
        let Some(slot) = connection.slot else { return };
        let waker = Waker::from(connection.ready.clone());
        while let Some((target, batch)) = connection.unsent.pop() {
            match self.hop.offer(&self.net.exchange, target, (slot, &batch), &waker) {
                Offer::Taken => {}
                Offer::Gone => connection.gone.push(target),
                Offer::Full => return connection.unsent.push((target, batch)),
            }
        }
        if thread_rng().gen_ratio(1, 8) {
            // The connection is killed; another one begins.
            self.hop.end(slot);
            (connection.slot, connection.loan, connection.given) = (None, None, None);
            connection.ready.0.store(true, Ordering::SeqCst);
            return;
        }
        if !has_loan {
            return;
        }
        if let Poll::Ready(replies) = self.hop.poll(slot, &waker) {
            self.hop.end(slot);
            connection.slot = None;
            connection.ready.0.store(true, Ordering::SeqCst);
            check(&self.net, connection, &replies);
        }
    }

    fn is_done(&self) -> bool {
        self.connections.iter().all(|each| each.slot.is_none() && each.cycles == 0)
    }

    /// Runs until all are done, and returns the holds that have not ended.
    fn run(mut self, ends_after: Option<usize>) -> Holds {
        let (mut told, now) = (false, Instant::now());
        for turn in 0.. {
            if ends_after.is_some_and(|turns| turn >= turns) {
                break;
            }
            for n in 0..CONNECTIONS {
                if self.connections[n].ready.0.swap(false, Ordering::SeqCst) {
                    self.poll(n);
                    if self.hop.is_due(now) {
                        self.exchange();
                    }
                }
            }
            if !told && self.is_done() {
                told = true;
                if self.net.busy.fetch_sub(1, Ordering::SeqCst) == 1 {
                    self.net.drivers.iter().for_each(|driver| driver.clone().wake());
                }
            }
            if told && self.net.busy.load(Ordering::SeqCst) == 0 {
                return self.end();
            }
            self.sleep();
        }
        if !told && self.net.busy.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.net.drivers.iter().for_each(|driver| driver.clone().wake());
        }
        self.net.exchange.leave(self.id);
        self.end()
    }

    /// Puts the letters that have not been posted into the lanes.
    fn end(self) -> Holds {
        for (target, peer) in self.hop.peers.borrow_mut().iter_mut().enumerate() {
            self.net.exchange.post(self.id, target, peer.out.drain(..));
        }
        let applied = self.hop.applies.take();
        let has_ended = |hold| applied.iter().any(|apply| apply.hold == hold);
        self.holds.into_iter().filter(|(hold, _)| !has_ended(*hold)).collect()
    }

    fn sleep(&mut self) {
        let mut sleeps = false;
        for _ in 0..super::serve::LOOKS {
            self.exchange();
            if self.hop.woke.take() {
                break;
            }
            let rests = self.late.is_empty() && self.queued.is_empty();
            if rests && self.net.exchange.sleep(self.id) {
                sleeps = true;
                break;
            }
        }
        if !sleeps {
            self.net.exchange.stay_awake(self.id);
        }
        let is_ready = |each: &ModelConnection| each.ready.0.load(Ordering::SeqCst);
        if !self.connections.iter().any(is_ready) {
            self.net.drivers[self.id].park();
        }
        self.net.exchange.woken(self.id);
        if !self.net.exchange.is_silent(self.id) {
            self.exchange();
        }
    }
}

/// Checks the replies of a cycle: those of each worker in order, or none from one that has ended.
fn check(net: &ModelNet, connection: &ModelConnection, replies: &[WorkerReplies]) {
    for (target, marker, commands) in &connection.sent {
        if connection.gone.contains(target) {
            continue;
        }
        let (_, reply) = replies.iter().find(|(from, _)| from == target).expect("an answer");
        let Some(reply) = reply else {
            assert!(net.exchange.is_gone(*target), "worker {target} has not answered");
            continue;
        };
        for n in 0..*commands {
            assert_eq!(reply.get(n), Some((&marker[..], Outcome::Done)));
        }
        assert_eq!(reply.get(*commands), None);
    }
}

fn schedule() {
    let drivers: Vec<Arc<Driver>> = (0..WORKERS).map(|_| Arc::default()).collect();
    let net =
        ModelNet { exchange: Exchange::new(WORKERS), drivers, busy: AtomicUsize::new(WORKERS) };
    let net = Arc::new(net);
    let quits = thread_rng().gen_ratio(1, 3);
    let turns = thread_rng().gen_range(0..6);
    let workers: Vec<_> = (0..WORKERS)
        .map(|id| {
            let net = net.clone();
            let ends_after = (quits && id == 1).then_some(turns);
            thread::spawn(move || {
                net.exchange.set_waker(id, Waker::from(net.drivers[id].clone()));
                HopWorker::new(id, net).run(ends_after)
            })
        })
        .collect();
    let holds: Vec<Holds> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    for (lender, holds) in holds.into_iter().enumerate() {
        check_holds(&net, lender, holds);
    }
}

/// Checks that each hold which is left is that of a worker that has ended, or of a letter under way.
fn check_holds(net: &ModelNet, lender: usize, holds: Holds) {
    for (hold, to) in holds {
        if net.exchange.is_gone(lender) || net.exchange.is_gone(to) {
            continue;
        }
        let mut letters = Vec::new();
        net.exchange.take(lender, to, &mut letters);
        let is_lent =
            letters.iter().any(|it| matches!(it, Letter::Grant(_, it) if it.hold == hold));
        net.exchange.post(lender, to, letters.drain(..));
        net.exchange.take(to, lender, &mut letters);
        let is_back = letters.iter().any(|it| matches!(it, Letter::Apply(it) if it.hold == hold));
        net.exchange.post(to, lender, letters.drain(..));
        assert!(is_lent != is_back, "worker {lender} lent {hold} to worker {to}: it is lost");
    }
}

#[test]
fn every_batch_and_loan_is_answered_and_no_wake_up_is_lost() {
    let scheduler = RandomScheduler::new_from_seed(0x0f1a_6571, SCHEDULES);
    Runner::new(scheduler, Config::new()).run(schedule);
}
