//! A store that reports errors which SlateDB would retry for ever.
//!
//! SlateDB retries failed requests without end. That is right for a bucket that is away for a
//! while, and for a full disk. It is wrong for a file that is damaged or cannot be read: its reader
//! would wait for ever. So the errors of reads from a local directory are final, and name the file.
//! Writes are still retried; [`Writes`] reports their state.

use super::cause;
use super::changes::StoreChanges;
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result, UploadPart,
};
use slatedb_common::retry::NonRetryable;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Attempts of a read from a local directory: some errors pass, such as a lack of file descriptors.
const READ_TRIES: usize = 3;

/// Pause between these attempts.
const READ_PAUSE: Duration = Duration::from_millis(100);

/// State of the writes to a store.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// Directories in which the last write failed: the time since which writes fail there, and the
    /// error.
    failing: Mutex<BTreeMap<String, (Instant, String)>>,
    /// Number of files with rows, or parts of them, that were written.
    rows: AtomicU64,
    changes: StoreChanges,
}

impl Writes {
    fn failing(&self) -> MutexGuard<'_, BTreeMap<String, (Instant, String)>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note<T>(&self, location: &Path, outcome: &Result<T>) {
        // A write that failed may have been stored.
        self.changes.note();
        let name = location.as_ref();
        let directory = name.rsplit_once('/').map_or("", |(directory, _)| directory);
        match outcome {
            Ok(_) => {
                self.failing().remove(directory);
                if location.extension() == Some("sst") {
                    self.rows.fetch_add(1, Ordering::Relaxed);
                }
            }
            // It works: a file of that name is there, perhaps from a write whose answer was lost.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                self.failing().remove(directory);
            }
            Err(error) if is_answer(error) => {}
            Err(error) => {
                let why = format!("writing {name}: {}", cause(error));
                let mut failing = self.failing();
                failing.entry(directory.to_owned()).or_insert((Instant::now(), String::new())).1 =
                    why;
            }
        }
    }

    /// Returns for how long writes have failed somewhere, and the last error.
    pub(crate) fn trouble(&self) -> Option<(Duration, String)> {
        let failing = self.failing();
        let (since, why) = failing.values().min_by_key(|(since, _)| *since)?;
        Some((since.elapsed(), why.clone()))
    }

    /// Returns when something was written.
    pub(crate) fn changes(&self) -> &StoreChanges {
        &self.changes
    }

    /// Returns a number that grows when rows are written.
    pub(crate) fn progress(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }
}

/// Returns true if the store works, and has refused the request.
fn is_answer(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound { .. }
            | Error::AlreadyExists { .. }
            | Error::Precondition { .. }
            | Error::NotModified { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
    )
}

/// The final error of a read from a local directory.
#[derive(Debug)]
pub(crate) enum FileFault {
    /// The file is shorter than it was.
    Damaged(String),
    /// The system cannot read it. That may pass.
    Unreadable(String),
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Damaged(text) | Self::Unreadable(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for FileFault {}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Guarded {
    inner: Arc<dyn ObjectStore>,
    is_local: bool,
    writes: Arc<Writes>,
}

impl Guarded {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, is_local: bool) -> Self {
        Self { inner, is_local, writes: Arc::default() }
    }

    pub(crate) fn writes(&self) -> &Arc<Writes> {
        &self.writes
    }

    /// Reads, with a few retries. The last error is final.
    async fn tried<T, R: Future<Output = Result<T>>>(
        &self,
        doing: &str,
        location: &Path,
        read: impl Fn() -> R,
    ) -> Result<T> {
        for _ in 1..READ_TRIES {
            match read().await {
                Err(error) if self.is_local && !is_final(&error) => {
                    tokio::time::sleep(READ_PAUSE).await;
                }
                done => return done,
            }
        }
        let done = read().await;
        done.map_err(|error| if self.is_local { give_up(doing, location, error) } else { error })
    }

    /// Returns the error of a read of a range. A file that ends before the range is damaged.
    async fn explained(&self, location: &Path, asked: Option<GetRange>, error: Error) -> Error {
        let Some(asked) = asked.filter(|_| self.is_local && !is_final(&error)) else {
            return error;
        };
        let head = GetOptions { head: true, ..GetOptions::default() };
        let Ok(found) = self.inner.get_opts(location, head).await else { return error };
        check_length(location, &asked, found.meta.size).err().unwrap_or(error)
    }

    /// Returns the answer to a read. A range of a local file is read completely, so that an error
    /// in it is an error of the read.
    async fn whole(
        &self,
        location: &Path,
        asked: Option<GetRange>,
        result: GetResult,
    ) -> Result<GetResult> {
        let Some(asked) = asked.filter(|_| self.is_local) else { return Ok(result) };
        check_length(location, &asked, result.meta.size)?;
        if !matches!(result.payload, GetResultPayload::File(..)) {
            return Ok(result);
        }
        let (meta, range) = (result.meta.clone(), result.range.clone());
        let (attributes, extensions) = (result.attributes.clone(), result.extensions.clone());
        let bytes = result.bytes().await?;
        let payload = GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }
}

/// Returns true if the error is not retried.
fn is_final(error: &Error) -> bool {
    is_answer(error) || NonRetryable::find(error).is_some()
}

/// Returns the final error of a read.
fn give_up(doing: &str, location: &Path, error: Error) -> Error {
    if is_final(&error) {
        return error;
    }
    let why = cause(&error);
    let name = location.as_ref();
    let text = if why.contains(name) { why } else { format!("{doing} {name}: {why}") };
    unreadable(text)
}

/// Errors of the system that are of the medium: a repair of the process's surroundings (rights, a limit of open
/// files) does not help.
const OF_MEDIUM: [i32; 3] = [libc::EIO, libc::EBADMSG, libc::EUCLEAN];

fn unreadable(text: String) -> Error {
    let is_of_medium = |code| text.contains(&format!("(os error {code})"));
    if OF_MEDIUM.into_iter().any(is_of_medium) {
        final_error(FileFault::Unreadable(text))
    } else {
        Error::Generic { store: "files", source: Box::new(NonRetryable(text.into())) }
    }
}

fn final_error(fault: FileFault) -> Error {
    Error::Generic { store: "files", source: Box::new(NonRetryable(Box::new(fault))) }
}

/// Checks that a file with rows, which never changes, has the bytes that it is asked for.
fn check_length(location: &Path, asked: &GetRange, size: u64) -> Result<()> {
    match asked {
        GetRange::Bounded(range) if range.end > size && location.extension() == Some("sst") => {
            let wanted = range.end;
            Err(final_error(FileFault::Damaged(format!(
                "{location} is damaged: it should have {wanted} bytes at least, and it has {size}"
            ))))
        }
        _ => Ok(()),
    }
}

/// An upload whose outcome is noted.
#[derive(Debug)]
struct NotedUpload {
    inner: Box<dyn MultipartUpload>,
    location: Path,
    writes: Arc<Writes>,
}

#[async_trait]
impl MultipartUpload for NotedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, location) = (self.inner.put_part(data), self.location.clone());
        let writes = self.writes.clone();
        Box::pin(async move {
            let done = part.await;
            writes.note(&location, &done);
            done
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let done = self.inner.complete().await;
        self.writes.note(&self.location, &done);
        done
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

impl fmt::Display for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Guarded {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let done = self.inner.put_opts(location, payload, options).await;
        self.writes.note(location, &done);
        done
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begun = self.inner.put_multipart_opts(location, options).await;
        if begun.is_err() {
            self.writes.note(location, &begun);
        }
        let (location, writes) = (location.clone(), self.writes.clone());
        Ok(Box::new(NotedUpload { inner: begun?, location, writes }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let options = &options;
        let read = || async move {
            let asked = options.range.clone().filter(|_| !options.head);
            match self.inner.get_opts(location, options.clone()).await {
                Ok(result) => self.whole(location, asked, result).await,
                Err(error) => Err(self.explained(location, asked, error).await),
            }
        };
        self.tried("reading", location, read).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.tried("reading", location, || self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let deleted = self.inner.delete_stream(locations);
        if !self.is_local {
            return deleted;
        }
        // The collector, which deletes unneeded files, tries again later.
        let named = |error: Error| if is_final(&error) { error } else { unreadable(cause(&error)) };
        deleted.map(move |done| done.map_err(named)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.inner.list(prefix);
        if !self.is_local {
            return listed;
        }
        let location = prefix.cloned().unwrap_or_default();
        listed.map(move |meta| meta.map_err(|e| give_up("listing", &location, e))).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = self.inner.list_with_offset(prefix, offset);
        if !self.is_local {
            return listed;
        }
        let location = prefix.cloned().unwrap_or_default();
        listed.map(move |meta| meta.map_err(|e| give_up("listing", &location, e))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let location = prefix.cloned().unwrap_or_default();
        self.tried("listing", &location, || self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests;
