//! A store in memory that is slow, loses requests and answers, delivers requests late, and serves
//! several processes, each of which may be cut off, sleep or die. A request that has departed arrives,
//! whatever becomes of its sender.

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream::{self, BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use slatedb_common::retry::NonRetryable;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::Notify;

use crate::journal::tests::sim_disk::Rng;
use crate::simulated;

/// State shared by all processes.
#[derive(Clone)]
pub(crate) struct Sim {
    pub(crate) objects: Arc<InMemory>,
    /// True for every other seed: which of two variants of the code a test uses.
    pub(crate) is_odd: bool,
    rng: Arc<Mutex<Rng>>,
    stored: Arc<Mutex<Stored>>,
    trace: Arc<Mutex<Trace>>,
    clients: Arc<AtomicU64>,
}

/// All that happens in a simulation, in order.
#[derive(Default)]
struct Trace {
    hash: DefaultHasher,
    events: u64,
    /// The last events, of which so many are kept.
    last: VecDeque<String>,
    kept: usize,
}

/// Deletions of one call that are under way at a time.
const DELETES: usize = 16;

/// History of the objects that were put.
#[derive(Default)]
struct Stored {
    /// The first content of each object.
    first: BTreeMap<Path, Bytes>,
    /// When each object was stored last, in a simulation.
    at: BTreeMap<Path, DateTime<Utc>>,
    /// Puts that stored an object which had been there before, with another content or the same.
    again: usize,
}

/// The store as one process sees it.
pub(crate) struct Client {
    pub(crate) sim: Sim,
    /// The client itself, for requests that outlive their calls.
    myself: Weak<Self>,
    /// Its number, for the trace.
    number: u64,
    /// Percentage of requests that fail.
    pub(crate) faults: AtomicU64,
    /// Maximum duration in microseconds of each of the two parts of a request.
    pub(crate) pace: AtomicU64,
    /// Percentage of puts that arrive once more, later.
    pub(crate) doubles: AtomicU64,
    /// Maximum time in milliseconds after which a late put arrives.
    pub(crate) late_ms: AtomicU64,
    /// Shut while the process sleeps: it sends no request, and takes no answer.
    pub(crate) paused: Gate,
    /// Shut while puts wait, ...
    pub(crate) puts_wait: Gate,
    /// ... and while gets do.
    pub(crate) gets_wait: Gate,
    /// Shut while the process is cut off from the store.
    pub(crate) cut: Gate,
    /// True once the process is dead: it sends nothing any more.
    dead: AtomicBool,
    /// Requests until it dies.
    lives: AtomicU64,
    /// Suffix of paths whose puts fail.
    pub(crate) refused: Mutex<Option<String>>,
    /// Suffix of paths whose puts arrive, and fail.
    pub(crate) unanswered: Mutex<Option<String>>,
    /// Suffix of paths that listings leave out, as those of a directory that changes meanwhile may.
    pub(crate) overlooked: Mutex<Option<String>>,
    /// True while deletions are refused, ...
    pub(crate) keeps: AtomicBool,
    /// ... and while copies are.
    pub(crate) copies_none: AtomicBool,
    /// True while puts fail for good: who puts gives up.
    pub(crate) breaks: AtomicBool,
    pub(crate) puts: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) lists: AtomicU64,
}

/// Lets requests pass, or makes them wait.
#[derive(Default)]
pub(crate) struct Gate {
    is_shut: AtomicBool,
    opened: Notify,
}

impl Gate {
    /// Shuts or opens it; returns true if it was shut before.
    pub(crate) fn shut(&self, is_shut: bool) -> bool {
        let was_shut = self.is_shut.swap(is_shut, Ordering::SeqCst);
        if !is_shut {
            self.opened.notify_waiters();
        }
        was_shut
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::SeqCst)
    }

    async fn pass(&self) {
        loop {
            let opened = self.opened.notified();
            if !self.is_shut() {
                return;
            }
            opened.await;
        }
    }
}

/// Outcome of a request.
enum Fate {
    Served,
    Lost,
    AnswerLost,
    /// It is served long after its sender has given up.
    Late,
}

impl Sim {
    pub(crate) fn new(seed: u64) -> Self {
        let rng = Arc::new(Mutex::new(Rng::new(seed)));
        let (objects, stored, clients) = (Arc::default(), Arc::default(), Arc::default());
        let is_odd = seed % 2 == 1;
        let kept = std::env::var("FLAGSTONE_TRACE").map_or(0, |events| events.parse().unwrap());
        let trace = Arc::new(Mutex::new(Trace { kept, ..Trace::default() }));
        Self { objects, is_odd, rng, stored, trace, clients }
    }

    /// Adds an event to the trace.
    pub(crate) fn note(&self, event: fmt::Arguments<'_>) {
        let event = format!("{} {event}", simulated::elapsed().as_millis());
        let mut trace = self.trace.lock().unwrap();
        trace.hash.write(event.as_bytes());
        trace.events += 1;
        trace.last.push_back(event);
        if trace.last.len() > trace.kept {
            trace.last.pop_front();
        }
    }

    /// Returns the number of events, and their hash.
    pub(crate) fn trace(&self) -> (u64, u64) {
        let trace = self.trace.lock().unwrap();
        (trace.events, trace.hash.finish())
    }

    /// Returns the last events: as many as `FLAGSTONE_TRACE` says.
    pub(crate) fn last_events(&self) -> Vec<String> {
        self.trace.lock().unwrap().last.iter().cloned().collect()
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.rng.lock().unwrap().below(bound)
    }

    pub(crate) fn client(&self, faults: u64) -> Arc<Client> {
        Arc::new_cyclic(|myself| Client {
            sim: self.clone(),
            myself: myself.clone(),
            number: self.clients.fetch_add(1, Ordering::SeqCst),
            faults: AtomicU64::new(faults),
            pace: AtomicU64::new(400),
            doubles: AtomicU64::new(0),
            late_ms: AtomicU64::new(20),
            paused: Gate::default(),
            puts_wait: Gate::default(),
            gets_wait: Gate::default(),
            cut: Gate::default(),
            dead: AtomicBool::new(false),
            lives: AtomicU64::new(u64::MAX),
            refused: Mutex::default(),
            unanswered: Mutex::default(),
            overlooked: Mutex::default(),
            keeps: AtomicBool::new(false),
            copies_none: AtomicBool::new(false),
            breaks: AtomicBool::new(false),
            puts: AtomicU64::new(0),
            gets: AtomicU64::new(0),
            lists: AtomicU64::new(0),
        })
    }

    /// Stores an object, and notes it.
    async fn arrive(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let content = Bytes::from(payload.clone());
        let answer = self.objects.put_opts(location, payload, options).await?;
        let mut stored = self.stored.lock().unwrap();
        if let Some(now) = simulated::time() {
            let at = DateTime::from_timestamp_nanos(now.as_nanos() as i64);
            stored.at.insert(location.clone(), at);
        }
        if stored.first.contains_key(location) {
            stored.again += 1;
        } else {
            stored.first.insert(location.clone(), content);
        }
        Ok(answer)
    }

    /// Returns when an object was stored last, in a simulation.
    pub(crate) fn stored_at(&self, name: &str) -> Option<DateTime<Utc>> {
        self.stored.lock().unwrap().at.get(&Path::from(name)).copied()
    }

    /// Returns what the store says of an object: it was stored at a time of the simulation.
    fn dated(&self, meta: ObjectMeta) -> ObjectMeta {
        let at = self.stored.lock().unwrap().at.get(&meta.location).copied();
        ObjectMeta { last_modified: at.unwrap_or(meta.last_modified), ..meta }
    }

    /// Makes a put arrive within some milliseconds, whatever becomes of its sender.
    fn arrive_late(&self, within_ms: u64, location: &Path, put: (PutPayload, PutOptions)) {
        let (sim, location, delay) = (self.clone(), location.clone(), self.below(within_ms));
        tokio::spawn(async move {
            let (payload, options) = put;
            tokio::time::sleep(Duration::from_millis(delay)).await;
            let arrived = sim.arrive(&location, payload, options).await;
            sim.note(format_args!("late put {location} {}", outcome(&arrived)));
        });
    }

    /// Returns the first content that an object had.
    pub(crate) fn first_content(&self, name: &str) -> Option<Bytes> {
        self.stored.lock().unwrap().first.get(&Path::from(name)).cloned()
    }

    /// Returns the number of puts that stored an object which had been there before.
    pub(crate) fn stored_again(&self) -> usize {
        self.stored.lock().unwrap().again
    }

    /// Returns the sizes of the objects whose names begin with a prefix.
    pub(crate) async fn sizes(&self, prefix: &str) -> BTreeMap<String, u64> {
        let listed = self.objects.list(None).map(|meta| meta.unwrap());
        let sized = listed.map(|meta| (meta.location.to_string(), meta.size));
        sized.filter(|(name, _)| std::future::ready(name.starts_with(prefix))).collect().await
    }

    pub(crate) async fn names(&self) -> Vec<String> {
        let listed = self.objects.list(None).map(|meta| meta.unwrap().location.to_string());
        let mut names: Vec<_> = listed.collect().await;
        names.sort();
        names
    }

    pub(crate) async fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let path = Path::from(name);
        let mut bytes = self.objects.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        change(&mut bytes);
        self.objects.put(&path, bytes.into()).await.unwrap();
    }

    pub(crate) async fn remove(&self, name: &str) {
        self.objects.delete(&Path::from(name)).await.unwrap();
    }
}

impl Client {
    /// Kills the process: nothing sent from now on arrives; requests under way may.
    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
    }

    pub(crate) fn die_after(&self, requests: u64) {
        self.lives.store(requests, Ordering::SeqCst);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Runs before a request departs, and before its answer is taken.
    async fn step(&self) {
        self.paused.pass().await;
        let left = self.lives.load(Ordering::SeqCst);
        if left == 0 {
            self.die();
        } else if left != u64::MAX {
            self.lives.store(left - 1, Ordering::SeqCst);
        }
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the duration of a part of a request.
    fn part(&self) -> Duration {
        Duration::from_micros(self.sim.below(self.pace.load(Ordering::SeqCst)))
    }

    /// Sends a request, and returns the answer. `name`: of the request, for the trace.
    async fn send<T: Send + 'static>(
        &self,
        name: String,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.step().await;
        let (mut waits, may_arrive) = (self.cut.is_shut(), self.sim.below(2) == 0);
        if waits && self.sim.below(2) == 0 {
            tokio::time::sleep(self.part()).await;
            return Err(broken());
        }
        let (sim, number) = (self.sim.clone(), self.number);
        let (there, back) = (self.part(), self.part());
        let client = self.myself.clone();
        let under_way = tokio::spawn(async move {
            if let Some(client) = client.upgrade().filter(|_| waits) {
                client.cut.pass().await;
            }
            tokio::time::sleep(there).await;
            if waits && !may_arrive {
                return Err(broken());
            }
            let answer = request.await;
            sim.note(format_args!("{number} {name} {}", outcome(&answer)));
            tokio::time::sleep(back).await;
            answer
        });
        let answer = under_way.await.unwrap_or_else(|_| Err(broken()));
        waits |= self.cut.is_shut();
        self.cut.pass().await;
        self.step().await;
        if waits && self.sim.below(2) == 0 { Err(broken()) } else { answer }
    }

    fn fails(&self) -> bool {
        self.sim.below(100) < self.faults.load(Ordering::SeqCst)
    }

    fn fate(&self) -> Fate {
        match self.fails() {
            false => Fate::Served,
            true => match self.sim.below(3) {
                0 => Fate::Lost,
                1 => Fate::AnswerLost,
                _ => Fate::Late,
            },
        }
    }

    /// Runs a request that only reads.
    async fn read<T: Send + 'static>(
        &self,
        name: String,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        if self.fails() {
            self.step().await;
            return Err(broken());
        }
        self.send(name, request).await
    }

    /// Lists what there is between the begin of a request and its answer.
    fn list_by<F>(
        &self,
        name: String,
        list: impl FnOnce(Arc<InMemory>) -> F + Send + 'static,
    ) -> BoxStream<'static, Result<ObjectMeta>>
    where
        F: Future<Output = Vec<Result<ObjectMeta>>> + Send + 'static,
    {
        self.lists.fetch_add(1, Ordering::SeqCst);
        let (client, objects) = (self.myself.clone(), self.sim.objects.clone());
        let listing = async move {
            let Some(client) = client.upgrade() else { return stream::pending().boxed() };
            let (sim, overlooked) = (client.sim.clone(), client.overlooked.lock().unwrap().clone());
            let list = async move {
                let mut listed = list(objects).await;
                listed.retain(|meta| {
                    let path = meta.as_ref().map_or("", |meta| meta.location.as_ref());
                    overlooked.as_ref().is_none_or(|end| !path.ends_with(end))
                });
                let dated = listed.into_iter().map(|meta| meta.map(|meta| sim.dated(meta)));
                Ok(dated.collect::<Vec<_>>())
            };
            match client.read(name, list).await {
                Ok(listed) => stream::iter(listed).boxed(),
                Err(error) => stream::once(async { Err(error) }).boxed(),
            }
        };
        stream::once(listing).flatten().boxed()
    }
}

fn outcome<T>(answer: &Result<T>) -> &'static str {
    match answer {
        Ok(_) => "ok",
        Err(Error::NotFound { .. }) => "not found",
        Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => "exists",
        Err(_) => "failed",
    }
}

fn broken() -> Error {
    Error::Generic { store: "sim", source: "the connection broke".into() }
}

fn denied(path: &Path) -> Error {
    Error::PermissionDenied { path: path.to_string(), source: "it is not allowed".into() }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

#[async_trait]
impl ObjectStore for Client {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.puts.fetch_add(1, Ordering::SeqCst);
        self.puts_wait.pass().await;
        if self.breaks.load(Ordering::SeqCst) {
            let source = Box::new(NonRetryable("the disk is gone".into()));
            return Err(Error::Generic { store: "sim", source });
        }
        let refused = self.refused.lock().unwrap().clone();
        if refused.is_some_and(|end| location.as_ref().ends_with(&end)) {
            self.step().await;
            return Err(broken());
        }
        let unanswered = self.unanswered.lock().unwrap().clone();
        if unanswered.is_some_and(|end| location.as_ref().ends_with(&end)) {
            let _ = self.sim.arrive(location, payload, options).await;
            return Err(broken());
        }
        let (sim, to, put) = (self.sim.clone(), location.clone(), (payload, options));
        let doubles = self.doubles.load(Ordering::SeqCst);
        if doubles > 0 && self.sim.below(100) < doubles && !self.is_dead() {
            self.sim.arrive_late(200, location, put.clone());
        }
        let name = format!("put {location}");
        match self.fate() {
            Fate::Served => {
                self.send(name, async move { sim.arrive(&to, put.0, put.1).await }).await
            }
            Fate::Lost => {
                self.step().await;
                Err(broken())
            }
            Fate::AnswerLost => {
                let put = async move { sim.arrive(&to, put.0, put.1).await };
                let _ = self.send(name, put).await;
                Err(broken())
            }
            Fate::Late => {
                self.step().await;
                self.sim.arrive_late(self.late_ms.load(Ordering::SeqCst), location, put);
                Err(broken())
            }
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.sim.objects.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.gets.fetch_add(1, Ordering::SeqCst);
        self.gets_wait.pass().await;
        let (sim, from) = (self.sim.clone(), location.clone());
        let get = async move {
            let got = sim.objects.get_opts(&from, options).await?;
            Ok(GetResult { meta: sim.dated(got.meta.clone()), ..got })
        };
        self.read(format!("get {location}"), get).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let client = self.myself.clone();
        let delete = move |location: Result<Path>| {
            let client = client.clone();
            async move {
                let location = location?;
                let Some(client) = client.upgrade() else { return Err(broken()) };
                if client.keeps.load(Ordering::SeqCst) {
                    return Err(denied(&location));
                }
                let objects = client.sim.objects.clone();
                let name = format!("delete {location}");
                let deleted = location.clone();
                let delete = async move { objects.delete(&deleted).await };
                client.read(name, delete).await.map(|()| location)
            }
        };
        locations.map(delete).buffered(DELETES).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.cloned();
        let name = format!("list {}", prefix.as_ref().map_or("", |it| it.as_ref()));
        self.list_by(
            name,
            move |objects| async move { objects.list(prefix.as_ref()).collect().await },
        )
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (prefix, offset) = (prefix.cloned(), offset.clone());
        let name = format!("list behind {offset}");
        self.list_by(name, move |objects| async move {
            objects.list_with_offset(prefix.as_ref(), &offset).collect().await
        })
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (sim, prefix) = (self.sim.clone(), prefix.cloned());
        let name = format!("list in {}", prefix.as_ref().map_or("", |it| it.as_ref()));
        let list = async move {
            let listed = sim.objects.list_with_delimiter(prefix.as_ref()).await?;
            let objects = listed.objects.into_iter().map(|meta| sim.dated(meta)).collect();
            Ok(ListResult { objects, ..listed })
        };
        self.read(name, list).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        if self.copies_none.load(Ordering::SeqCst) {
            return Err(denied(to));
        }
        self.sim.objects.copy_opts(from, to, options).await
    }
}
