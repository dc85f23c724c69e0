//! Writes a file like the local store, but with few system calls. SlateDB passes a part of 10 MiB
//! in some thousand pieces; written one by one, each begins and ends within a page of the system's
//! cache, which is then cleared first and touched twice. The system begins to write each part to the
//! disk at once.

use crate::journal::{Disk, File as _, RealDisk};
use crate::place::HomeDir;
use async_trait::async_trait;
use object_store::{Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// See the module's description.
#[derive(Debug)]
pub(super) struct FileUpload {
    file: Arc<File>,
    /// Path of the file until it is complete. `None`: the file does not exist any more.
    staged: Option<PathBuf>,
    target: PathBuf,
    home: Arc<HomeDir>,
    /// Offset of the next part.
    offset: u64,
}

impl FileUpload {
    /// Creates a file beside its target, under a name that the local store does not list
    /// ([`crate::directory::remove_staged`]).
    pub(super) async fn begin(target: PathBuf, home: Arc<HomeDir>) -> Result<Self> {
        let (file, staged) = blocking({
            let target = target.clone();
            move || stage(&target).map_err(|error| failed("creating", &target, error))
        })
        .await?;
        Ok(Self { file: Arc::new(file), staged: Some(staged), target, home, offset: 0 })
    }
}

/// Creates a file beside `target`.
fn stage(target: &Path) -> io::Result<(File, PathBuf)> {
    let mut number = 1;
    loop {
        let mut name = target.as_os_str().to_owned();
        name.push(format!("#{number}"));
        let staged = PathBuf::from(name);
        match OpenOptions::new().write(true).create_new(true).open(&staged) {
            Ok(file) => return Ok((file, staged)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) if error.kind() == ErrorKind::NotFound => match target.parent() {
                Some(dir) if !dir.is_dir() => RealDisk.create_dir(dir)?,
                _ => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
}

fn failed(doing: &str, path: &Path, error: io::Error) -> Error {
    let text = format!("{doing} {}: {error}", path.display());
    Error::Generic { store: "Files", source: io::Error::new(error.kind(), text).into() }
}

async fn blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(job).await?
}

#[async_trait]
impl MultipartUpload for FileUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (file, target, offset) = (self.file.clone(), self.target.clone(), self.offset);
        self.offset += data.content_length() as u64;
        Box::pin(blocking(move || {
            let mut slices: Vec<_> = data.iter().map(|piece| IoSlice::new(piece)).collect();
            let written = file.write_all_at(&mut slices, offset);
            begin_writeback(&file, offset, data.content_length());
            written.map_err(|error| failed("writing", &target, error))
        }))
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (file, staged, target) = (self.file.clone(), self.staged.clone(), self.target.clone());
        let home = self.home.clone();
        blocking(move || {
            let done = match staged {
                Some(staged) => home.check().and_then(|()| publish(&file, &staged, &target)),
                None => Err(io::Error::other("it is complete, or was given up")),
            };
            done.map_err(|error| failed("completing", &target, error))
        })
        .await?;
        self.staged = None;
        Ok(PutResult { e_tag: None, version: None, extensions: Default::default() })
    }

    async fn abort(&mut self) -> Result<()> {
        let Some(staged) = self.staged.take() else { return Ok(()) };
        blocking(move || remove_file(&staged).map_err(|error| failed("removing", &staged, error)))
            .await
    }
}

/// Tells the system to begin writing a part of the file to the disk. Otherwise it would begin with
/// the sync at the end of the file, and syncs of the journal would wait for all of it.
fn begin_writeback(file: &File, offset: u64, length: usize) {
    #[cfg(target_os = "linux")]
    if let (Ok(offset), Ok(length)) = (i64::try_from(offset), i64::try_from(length)) {
        use std::os::fd::AsRawFd;
        let flags = libc::SYNC_FILE_RANGE_WRITE;
        // Without it, the sync at the end does the same later.
        // SAFETY: the descriptor is open as long as `file` is borrowed; the call touches no memory.
        unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, flags) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, length);
}

/// Gives a file its name once all of it is durable.
fn publish(file: &File, staged: &Path, target: &Path) -> io::Result<()> {
    file.sync()?;
    RealDisk.rename(staged, target)?;
    RealDisk.sync_dir(target.parent().unwrap_or(Path::new(".")))
}

impl Drop for FileUpload {
    fn drop(&mut self) {
        if let Some(staged) = self.staged.take() {
            // If that fails, the next start removes it.
            let _ = remove_file(staged);
        }
    }
}
