//! A store in memory that is slow, loses requests and answers, delivers requests late, and serves
//! several processes, each of which may be cut off or die.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::journal::tests::sim_disk::Rng;

/// State shared by all processes.
#[derive(Clone)]
pub(crate) struct Sim {
    pub(crate) objects: Arc<InMemory>,
    /// True for every other seed: which of two variants of the code a test uses.
    pub(crate) is_odd: bool,
    rng: Arc<Mutex<Rng>>,
    stored: Arc<Mutex<Stored>>,
}

/// History of the objects that were put.
#[derive(Default)]
struct Stored {
    /// The first content of each object.
    first: BTreeMap<Path, Bytes>,
    /// Puts that stored an object which had been there before, with another content or the same.
    again: usize,
}

/// The store as one process sees it.
pub(crate) struct Client {
    pub(crate) sim: Sim,
    /// The client itself, for requests that outlive their calls.
    myself: Weak<Self>,
    /// Percentage of requests that fail.
    pub(crate) faults: u64,
    /// Maximum duration in microseconds of each of the two parts of a request.
    pub(crate) pace: AtomicU64,
    /// Percentage of puts that arrive once more, later.
    pub(crate) doubles: AtomicU64,
    /// True while requests wait.
    pub(crate) paused: AtomicBool,
    /// True while puts wait, ...
    pub(crate) puts_wait: AtomicBool,
    /// ... and while gets do.
    pub(crate) gets_wait: AtomicBool,
    /// True once the process is dead: it sends nothing any more.
    dead: AtomicBool,
    /// Requests until it dies.
    lives: AtomicU64,
    /// Suffix of paths whose puts fail.
    pub(crate) refused: Mutex<Option<String>>,
    pub(crate) puts: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) lists: AtomicU64,
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
        Self { objects: Arc::default(), is_odd: seed % 2 == 1, rng, stored: Arc::default() }
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.rng.lock().unwrap().below(bound)
    }

    pub(crate) fn client(&self, faults: u64) -> Arc<Client> {
        Arc::new_cyclic(|myself| Client {
            sim: self.clone(),
            myself: myself.clone(),
            faults,
            pace: AtomicU64::new(400),
            doubles: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            puts_wait: AtomicBool::new(false),
            gets_wait: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            lives: AtomicU64::new(u64::MAX),
            refused: Mutex::default(),
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
        if stored.first.contains_key(location) {
            stored.again += 1;
        } else {
            stored.first.insert(location.clone(), content);
        }
        Ok(answer)
    }

    /// Makes a put arrive within some milliseconds, whatever becomes of its sender.
    fn arrive_late(&self, within_ms: u64, location: &Path, put: (PutPayload, PutOptions)) {
        let (sim, location, delay) = (self.clone(), location.clone(), self.below(within_ms));
        tokio::spawn(async move {
            let (payload, options) = put;
            tokio::time::sleep(Duration::from_millis(delay)).await;
            let _ = sim.arrive(&location, payload, options).await;
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

    /// Runs before and after each request.
    async fn step(&self) {
        let pause = Duration::from_micros(self.sim.below(self.pace.load(Ordering::SeqCst)));
        tokio::time::sleep(pause).await;
        passes(&self.paused).await;
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

    fn fate(&self) -> Fate {
        match self.sim.below(100) < self.faults {
            false => Fate::Served,
            true => match self.sim.below(3) {
                0 => Fate::Lost,
                1 => Fate::AnswerLost,
                _ => Fate::Late,
            },
        }
    }

    /// Runs a request that only reads.
    async fn read<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.step().await;
        if self.sim.below(100) < self.faults {
            return Err(broken());
        }
        let answer = request.await;
        self.step().await;
        answer
    }
}

/// Waits while a flag is set.
async fn passes(flag: &AtomicBool) {
    while flag.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn broken() -> Error {
    Error::Generic { store: "sim", source: "the connection broke".into() }
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
        self.step().await;
        self.puts.fetch_add(1, Ordering::SeqCst);
        passes(&self.puts_wait).await;
        let refused = self.refused.lock().unwrap().clone();
        if refused.is_some_and(|end| location.as_ref().ends_with(&end)) {
            return Err(broken());
        }
        let doubles = self.doubles.load(Ordering::SeqCst);
        if doubles > 0 && self.sim.below(100) < doubles {
            self.sim.arrive_late(200, location, (payload.clone(), options.clone()));
        }
        match self.fate() {
            Fate::Served => {
                let answer = self.sim.arrive(location, payload, options).await;
                self.step().await;
                answer
            }
            Fate::Lost => Err(broken()),
            Fate::AnswerLost => {
                let _ = self.sim.arrive(location, payload, options).await;
                Err(broken())
            }
            Fate::Late => {
                self.sim.arrive_late(20, location, (payload, options));
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
        passes(&self.gets_wait).await;
        self.read(self.sim.objects.get_opts(location, options)).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        if self.is_dead() || self.sim.below(100) < self.faults {
            return stream::once(async { Err(broken()) }).boxed();
        }
        self.sim.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        if self.sim.below(100) < self.faults {
            return stream::once(async { Err(broken()) }).boxed();
        }
        if self.is_dead() {
            return stream::pending().boxed();
        }
        self.sim.objects.list(prefix)
    }

    /// Lists at a moment between the begin of the request and its answer.
    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        let (client, objects) = (self.myself.clone(), self.sim.objects.clone());
        let (prefix, offset) = (prefix.cloned(), offset.clone());
        let listing = async move {
            let Some(client) = client.upgrade() else { return stream::pending().boxed() };
            let list = async { Ok(objects.list_with_offset(prefix.as_ref(), &offset)) };
            client.read(list).await.unwrap_or_else(|e| stream::once(async { Err(e) }).boxed())
        };
        stream::once(listing).flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.read(self.sim.objects.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.sim.objects.copy_opts(from, to, options).await
    }
}
