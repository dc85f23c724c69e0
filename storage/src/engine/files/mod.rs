//! The store of a shard's files: a local directory whose files with rows are kept open.
//!
//! The local store opens the file for each read, and reads it on a thread for blocking work: that
//! takes far longer than the read of a block that is in the system's page cache. A file with rows
//! is never written again once it has its name, so its descriptor is as good as the name, as long
//! as the name exists.

#[cfg(test)]
mod tests;
mod upload;

use super::pread::read_on;
use crate::place::HomeDir;
use crate::place::stamp::{stamped, verified};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use hashbrown::{Equivalent, HashMap};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Extensions, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result,
};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use upload::FileUpload;

/// Files that are kept open, of all shards together; beside those that are open for point reads.
const KEPT_FILES: usize = 256;

/// Bytes up to which a read is tried in place, in case the system has them in memory.
const IN_PLACE_BYTES: usize = 64 << 10;

/// The directory of a shard as SlateDB's store.
pub(crate) struct ShardFiles {
    local: LocalFileSystem,
    /// Distinguishes its files from those of other shards.
    number: u64,
    kept: Arc<OpenFiles>,
    home: Arc<HomeDir>,
}

impl ShardFiles {
    pub(crate) fn new(dir: &std::path::Path, kept: Arc<OpenFiles>) -> Result<Self> {
        let local = LocalFileSystem::new_with_prefix(dir)?.with_fsync(true);
        let number = kept.stores.fetch_add(1, Ordering::Relaxed);
        let home = Arc::new(HomeDir::open(dir).map_err(at_home)?);
        Ok(Self { local, number, kept, home })
    }

    /// Checks that paths lead to the shard's own directory.
    fn check_home(&self) -> Result<()> {
        self.home.check().map_err(at_home)
    }

    /// Opens the file as the local store does, and keeps it open.
    async fn open(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check_home()?;
        let result = self.local.get_opts(location, options).await?;
        if let GetResultPayload::File(file, _) = &result.payload
            && let Ok(file) = file.try_clone()
        {
            let opened = Arc::new(OpenFile { file, meta: result.meta.clone() });
            self.kept.insert(self.number, location, opened.clone());
            // A deletion may have looked for the descriptor before it was inserted.
            if opened.is_gone() {
                self.kept.forget(self.number, location);
            }
        }
        Ok(result)
    }

    /// Reads from a file that is open already. `None`: the local store must read.
    async fn read_kept(&self, location: &Path, options: &GetOptions) -> Option<GetResult> {
        let opened = self.kept.get(self.number, location)?;
        if opened.is_gone() {
            self.kept.forget(self.number, location);
            return None;
        }
        let range = options.range.as_ref()?.as_range(opened.meta.size).ok()?;
        let bytes = opened.clone().read(range.clone()).await.ok()?;
        Some(GetResult {
            payload: GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed()),
            meta: opened.meta.clone(),
            range,
            attributes: Attributes::default(),
            extensions: Extensions::default(),
        })
    }
}

impl fmt::Debug for ShardFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Files({})", self.local)
    }
}

impl fmt::Display for ShardFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Files({})", self.local)
    }
}

#[async_trait]
impl ObjectStore for ShardFiles {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if !is_ranged(&options) || !is_immutable(location) {
            self.check_home()?;
            let found = self.local.get_opts(location, options.clone()).await?;
            return verified(location, &options, found).await;
        }
        match self.read_kept(location, &options).await {
            Some(result) => Ok(result),
            None => self.open(location, options).await,
        }
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.check_home()?;
        self.local.get_ranges(location, ranges).await
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.check_home()?;
        self.local.put_opts(location, stamped(location, payload), options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.check_home()?;
        if !options.attributes.is_empty() {
            return self.local.put_multipart_opts(location, options).await;
        }
        let target = self.local.path_to_filesystem(location)?;
        Ok(Box::new(FileUpload::begin(target, self.home.clone()).await?))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        if let Err(error) = self.check_home() {
            return stream::once(async { Err(error) }).boxed();
        }
        let (kept, number) = (self.kept.clone(), self.number);
        let deleted = self.local.delete_stream(locations);
        // An open descriptor would hold the file's space.
        deleted
            .inspect(move |location| match location {
                Ok(location) => kept.forget(number, location),
                Err(_) => kept.forget_all(number),
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if let Err(error) = self.check_home() {
            return stream::once(async { Err(error) }).boxed();
        }
        self.local.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        if let Err(error) = self.check_home() {
            return stream::once(async { Err(error) }).boxed();
        }
        self.local.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.check_home()?;
        self.local.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.check_home()?;
        self.local.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.check_home()?;
        let renamed = self.local.rename_opts(from, to, options).await;
        self.kept.forget(self.number, from);
        renamed
    }
}

fn at_home(error: io::Error) -> object_store::Error {
    object_store::Error::Generic { store: "files", source: error.into() }
}

/// Returns true if the request is for a range of the file, and nothing else.
fn is_ranged(options: &GetOptions) -> bool {
    options.range.is_some()
        && !options.head
        && options.if_match.is_none()
        && options.if_none_match.is_none()
        && options.if_modified_since.is_none()
        && options.if_unmodified_since.is_none()
        && options.version.is_none()
}

/// Returns true for a file with rows: its name is never used again. Names of manifests are.
fn is_immutable(location: &Path) -> bool {
    location.extension() == Some("sst")
}

/// A file that is kept open.
#[derive(Debug)]
struct OpenFile {
    file: File,
    meta: ObjectMeta,
}

impl OpenFile {
    /// Returns true if it has lost its name: it was deleted, or the name belongs to another file.
    fn is_gone(&self) -> bool {
        !self.file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
    }

    /// Reads a range within the file.
    async fn read(self: Arc<Self>, range: Range<u64>) -> io::Result<Bytes> {
        let length = range.end - range.start;
        let length = usize::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut bytes = Vec::with_capacity(length);
        if length <= IN_PLACE_BYTES {
            // If the system has not all of it in memory, the rest is read below.
            let _ = read_on(&self.file, &mut bytes, length, range.start, true);
        }
        if bytes.len() < length {
            let rest = move || {
                read_all(&self.file, &mut bytes, length, range.start)?;
                Ok::<_, io::Error>(bytes)
            };
            bytes = tokio::task::spawn_blocking(rest).await??;
        }
        Ok(bytes.into())
    }
}

/// Reads on until there are `length` bytes, of which the first is the one at `offset`.
fn read_all(file: &File, bytes: &mut Vec<u8>, length: usize, offset: u64) -> io::Result<()> {
    while bytes.len() < length {
        match read_on(file, bytes, length - bytes.len(), offset, false) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The open files of all shards: those that were read last.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    stores: AtomicU64,
    files: Mutex<ByUse>,
}

#[derive(Debug, Default)]
struct ByUse {
    /// Open files by store and location, each with the time of its last use.
    files: HashMap<(u64, Path), (u64, Arc<OpenFile>)>,
    uses: u64,
}

/// The borrowed key of a file.
#[derive(Hash)]
struct Name<'a>(u64, &'a Path);

impl Equivalent<(u64, Path)> for Name<'_> {
    fn equivalent(&self, key: &(u64, Path)) -> bool {
        self.0 == key.0 && *self.1 == key.1
    }
}

impl OpenFiles {
    fn files(&self) -> MutexGuard<'_, ByUse> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, store: u64, location: &Path) -> Option<Arc<OpenFile>> {
        let mut by_use = self.files();
        by_use.uses += 1;
        let now = by_use.uses;
        let (used, opened) = by_use.files.get_mut(&Name(store, location))?;
        *used = now;
        Some(opened.clone())
    }

    fn insert(&self, store: u64, location: &Path, opened: Arc<OpenFile>) {
        let mut by_use = self.files();
        by_use.uses += 1;
        let now = by_use.uses;
        by_use.files.insert((store, location.clone()), (now, opened));
        if by_use.files.len() > KEPT_FILES {
            let used = |(_, (used, _)): &(&(u64, Path), &(u64, Arc<OpenFile>))| *used;
            let oldest = by_use.files.iter().min_by_key(used).map(|(name, _)| name.clone());
            oldest.map(|name| by_use.files.remove(&name));
        }
    }

    fn forget(&self, store: u64, location: &Path) {
        self.files().files.remove(&Name(store, location));
    }

    fn forget_all(&self, store: u64) {
        self.files().files.retain(|(of, _), _| *of != store);
    }
}
