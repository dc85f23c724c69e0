use super::*;
use crate::clock::Clock;
use crate::engine::{DamagedFile, Engine, ScanLimit, UnreadableFile, Upkeep};
use crate::place::Place;
use object_store::PutMode;
use object_store::local::LocalFileSystem;
use slatedb::db_cache::SplitCache;
use std::io;
use tempfile::TempDir;

/// Time limit, on a busy machine, for calls that must end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Fault of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Reads of files with rows end with EIO, always.
    Unreadable,
    /// As many of the next reads do.
    Passing(usize),
    /// Reads of files with rows do not end.
    Hanging,
    /// Writes end with EIO, always.
    Unwritable,
    /// So they do, although they are stored.
    Unanswered,
}

/// A directory on a disk with faults.
#[derive(Debug)]
struct Disk {
    files: LocalFileSystem,
    fault: Mutex<Fault>,
}

fn eio() -> Error {
    Error::Generic { store: "disk", source: io::Error::from_raw_os_error(libc::EIO).into() }
}

impl Disk {
    fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
    }

    fn fault(&self) -> Fault {
        *self.fault.lock().unwrap()
    }

    async fn reading(&self, location: &Path) -> Result<()> {
        if location.extension() != Some("sst") {
            return Ok(());
        }
        match self.fault() {
            Fault::Unreadable => Err(eio()),
            Fault::Passing(0) | Fault::None | Fault::Unwritable | Fault::Unanswered => Ok(()),
            Fault::Passing(left) => {
                self.set(Fault::Passing(left - 1));
                Err(eio())
            }
            Fault::Hanging => std::future::pending().await,
        }
    }

    fn writing(&self) -> Result<()> {
        if self.fault() == Fault::Unwritable { Err(eio()) } else { Ok(()) }
    }
}

impl fmt::Display for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Disk {
    async fn put_opts(
        &self,
        to: &Path,
        body: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.writing()?;
        let done = self.files.put_opts(to, body, options).await;
        if self.fault() == Fault::Unanswered { Err(eio()) } else { done }
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.writing()?;
        self.files.put_multipart_opts(to, options).await
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> Result<GetResult> {
        self.reading(from).await?;
        self.files.get_opts(from, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.files.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.files.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.files.copy_opts(from, to, options).await
    }
}

fn key(n: u32) -> Bytes {
    format!("\x01key{n:05}").into()
}

/// An engine on such a disk, with two files of rows.
struct Shard {
    dir: TempDir,
    disk: Arc<Disk>,
    place: Place,
}

impl Shard {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = LocalFileSystem::new_with_prefix(dir.path()).unwrap();
        let disk = Arc::new(Disk { files, fault: Mutex::new(Fault::None) });
        let place = Place::local(dir.path()).unwrap().through(disk.clone()).join("db");
        let shard = Self { dir, disk, place };
        let engine = shard.open().await.unwrap();
        for from in [0, 2000] {
            let rows = (from..from + 2000).map(|n| (key(n), Some(Bytes::from(vec![7; 200]))));
            engine.write(rows.collect()).await.unwrap();
            engine.flush().await.unwrap();
        }
        engine.close().await.unwrap();
        shard
    }

    async fn open(&self) -> anyhow::Result<Engine> {
        self.open_with(PATIENCE).await
    }

    async fn open_with(&self, read_limit: Duration) -> anyhow::Result<Engine> {
        self.open_as(Upkeep { read_limit, ..Upkeep::default() }).await
    }

    async fn open_as(&self, upkeep: Upkeep) -> anyhow::Result<Engine> {
        let cache = Arc::new(SplitCache::new().build());
        Engine::open(&self.place, cache, 1, Clock::default(), &upkeep).await
    }

    fn files(&self) -> Vec<std::path::PathBuf> {
        let found = std::fs::read_dir(self.dir.path().join("db/compacted")).unwrap();
        let mut found: Vec<_> = found.map(|entry| entry.unwrap().path()).collect();
        found.sort();
        found
    }
}

/// Returns the outcome of each way of reading, which must come in time.
async fn read_all(engine: &Engine) -> Vec<String> {
    let all = || vec![1]..vec![2];
    let most = ScanLimit { rows: usize::MAX, bytes: usize::MAX, least: usize::MAX };
    let mut found = Vec::new();
    let mut note = |done: anyhow::Result<usize>| {
        found.push(done.map_or_else(|error| format!("{error:#}"), |rows| rows.to_string()));
    };
    let patience = async {
        note(engine.get(&key(1900)).await.map(|row| usize::from(row.is_some())));
        note(engine.get(&key(3900)).await.map(|row| usize::from(row.is_some())));
        note(engine.scan(all(), usize::MAX).await.map(|rows| rows.len()));
        note(engine.scan_page(true, all(), most).await.map(|(rows, _)| rows.len()));
        let mut walked = 0;
        let take = |_, _| {
            walked += 1;
            true
        };
        let done = engine.walk(all(), take).await;
        note(done.map(|_| walked));
    };
    tokio::time::timeout(PATIENCE, patience).await.expect("every read ends");
    found
}

const WHOLE: [&str; 5] = ["1", "1", "4000", "4000", "4000"];

#[tokio::test]
async fn reads_of_a_file_that_is_damaged_or_gone_end_with_its_name() {
    for cut in ["half", "to nothing", "gone", "a directory"] {
        let shard = Shard::new().await;
        let engine = shard.open().await.unwrap();
        assert_eq!(read_all(&engine).await, WHOLE);
        engine.close().await.unwrap();
        let damaged = shard.files().pop().unwrap();
        let size = std::fs::metadata(&damaged).unwrap().len();
        let file = || std::fs::File::options().write(true).open(&damaged).unwrap();
        match cut {
            "half" => file().set_len(size / 2).unwrap(),
            "to nothing" => file().set_len(0).unwrap(),
            _ => std::fs::remove_file(&damaged).unwrap(),
        }
        if cut == "a directory" {
            std::fs::create_dir(&damaged).unwrap();
        }
        let name = damaged.file_name().unwrap().to_str().unwrap();
        let opened = tokio::time::timeout(PATIENCE, shard.open()).await.expect("it ends");
        let errors = match opened {
            Ok(engine) => read_all(&engine).await,
            Err(error) => vec![format!("{error:#}")],
        };
        assert!(errors.iter().any(|error| error.contains(name)), "{cut}: {errors:?}");
        assert!(errors.iter().all(|e| e.len() < 6 || e.contains(name)), "{cut}: {errors:?}");
    }
}

#[tokio::test]
async fn reads_of_a_disk_with_faults_end() {
    let shard = Shard::new().await;
    let open = async || shard.open().await.unwrap();
    let engine = open().await;
    shard.disk.set(Fault::Unreadable);
    for error in read_all(&engine).await {
        assert!(error.contains("/db/compacted/") || error.contains("db/compacted/"), "{error}");
        assert!(error.contains("Input/output error"), "{error}");
    }
    // The disk had the fault, not the engine.
    shard.disk.set(Fault::None);
    assert_eq!(read_all(&engine).await, WHOLE);
    engine.close().await.unwrap();

    let engine = open().await;
    shard.disk.set(Fault::Passing(READ_TRIES - 1));
    assert_eq!(read_all(&engine).await, WHOLE);
    engine.close().await.unwrap();

    let engine = shard.open_with(Duration::from_millis(300)).await.unwrap();
    shard.disk.set(Fault::Hanging);
    for error in read_all(&engine).await {
        assert!(error.contains("no answer within 300 ms"), "{error}");
    }
    shard.disk.set(Fault::None);
    engine.close().await.unwrap();
    assert_eq!(read_all(&open().await).await, WHOLE);
}

#[tokio::test]
async fn writes_are_repeated_until_the_disk_takes_them_and_say_so_meanwhile() {
    let shard = Shard::new().await;
    let engine = shard.open().await.unwrap();
    shard.disk.set(Fault::Unwritable);
    engine.write(vec![(key(9999), Some(Bytes::from_static(b"new")))]).await.unwrap();
    let flushing = tokio::spawn({
        let engine = engine.clone();
        async move { engine.flush().await }
    });
    let told = async {
        loop {
            if let Some((_, why)) = engine.trouble() {
                return why;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let why = tokio::time::timeout(PATIENCE, told).await.expect("it is told");
    assert!(why.contains("Input/output error") && why.contains("db/"), "{why}");
    let before = engine.progress();
    shard.disk.set(Fault::None);
    tokio::time::timeout(PATIENCE, flushing).await.expect("it ends").unwrap().unwrap();
    assert!(engine.progress() > before);
    assert_eq!((engine.trouble(), engine.closed()), (None, None));
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_no_trouble_once_the_store_says_that_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let files = LocalFileSystem::new_with_prefix(dir.path()).unwrap();
    let disk = Arc::new(Disk { files, fault: Mutex::new(Fault::Unanswered) });
    let guarded = Guarded::new(disk.clone(), true);
    let manifest = Path::from("db/manifest/00000000000000000007.manifest");
    let put = || guarded.put_opts(&manifest, "new".into(), PutMode::Create.into());
    assert!(put().await.is_err());
    assert!(guarded.writes().trouble().is_some());
    disk.set(Fault::None);
    assert!(matches!(put().await, Err(Error::AlreadyExists { .. })));
    assert_eq!(guarded.writes().trouble(), None);
}

/// The error of a manifest that SlateDB does not understand is one of damaged files.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_has_closed_itself_does_not_say_that_rows_are_lost() {
    let shard = Shard::new().await;
    let engine = shard.open().await.unwrap();
    let unflushed = Bytes::from_static(b"\x01unflushed");
    engine.write(vec![(unflushed.clone(), Some(Bytes::from_static(b"row")))]).await.unwrap();
    let keys = [Box::from(&unflushed[..])];
    let is_there = |_: &[u8], row: Option<&[u8]>| row.is_some();
    let read = engine.get_many(&keys, is_there).await.unwrap();
    assert!(*read[0].as_ref().unwrap());
    let manifests = shard.dir.path().join("db/manifest");
    let listed = std::fs::read_dir(&manifests).unwrap().map(|file| file.unwrap().file_name());
    let newest: u64 = listed.max().unwrap().to_str().unwrap()[..20].parse().unwrap();
    std::fs::write(manifests.join(format!("{:020}.manifest", newest + 1)), "garbage").unwrap();
    let closing = async {
        while engine.closed().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, closing).await.expect("it closes itself");
    let error = engine.get_many(&keys, is_there).await.unwrap_err();
    assert!(error.is::<DamagedFile>(), "{error:#}");
}

/// Returns the rows of keys that are in both files: those that there are, and the errors of the others.
async fn read_some(engine: &Engine) -> (usize, Vec<anyhow::Error>) {
    let keys: Vec<Box<[u8]>> = (0..4000).step_by(200).map(|n| key(n)[..].into()).collect();
    let rows = engine.get_many(&keys, |_, row| row.is_some()).await.unwrap();
    assert_eq!(rows.len(), keys.len());
    let (there, unread): (Vec<_>, Vec<_>) = rows.into_iter().partition(Result::is_ok);
    assert!(there.iter().all(|row| *row.as_ref().unwrap()));
    (there.len(), unread.into_iter().filter_map(Result::err).collect())
}

/// Without point reads, which have files of their own.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_cannot_be_read_keep_no_others_from_being_read() {
    let shard = Shard::new().await;
    let open = || shard.open_as(Upkeep { is_remote: true, ..Upkeep::default() });
    let engine = open().await.unwrap();
    assert_eq!(read_some(&engine).await.0, 20);
    engine.close().await.unwrap();
    // What is read once is cached.
    let engine = open().await.unwrap();
    shard.disk.set(Fault::Unreadable);
    let (_, unread) = read_some(&engine).await;
    assert_eq!(unread.len(), 20);
    assert!(unread.iter().all(anyhow::Error::is::<UnreadableFile>), "{unread:?}");
    shard.disk.set(Fault::None);
    assert_eq!(read_some(&engine).await.0, 20, "the disk is back");
    engine.close().await.unwrap();

    let engine = open().await.unwrap();
    // Each ends in the middle of its rows, so behind the beginning of some reads, and before that of others.
    for file in shard.files() {
        let size = std::fs::metadata(&file).unwrap().len();
        std::fs::File::options().write(true).open(&file).unwrap().set_len(size / 2).unwrap();
    }
    let (_, lost) = read_some(&engine).await;
    assert!(!lost.is_empty());
    assert!(lost.iter().all(anyhow::Error::is::<DamagedFile>), "{lost:?}");
    let texts: Vec<_> = lost.iter().map(|error| format!("{error:#}")).collect();
    assert!(texts.iter().all(|text| text.contains("is damaged: it should have")), "{texts:?}");
    engine.close().await.unwrap();
}
