//! A directory that is used like a bucket, and must stay the same one.
//!
//! The file system that is mounted there may go away, and leave an empty directory behind, or another one. Objects that are put
//! there then are lost once it is back, and listings say that nothing was ever stored. So the first put leaves a
//! file with a random text, the *anchor*, and requests look for it. Its name is one of those that `LocalFileSystem`
//! keeps for uploads of its own, and never lists.

use async_trait::async_trait;
use futures::future::ready;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Name of the anchor.
const ANCHOR: &str = "anchor#0";

/// Attempts to leave an anchor in a directory that others may remove meanwhile because it is empty.
const TRIES: usize = 5;

/// Says where an anchor must be, and which one it is.
#[derive(Debug)]
struct Anchor {
    dir: PathBuf,
    known: Mutex<Option<KnownAnchor>>,
}

/// The anchor that was there first.
#[derive(Debug)]
struct KnownAnchor {
    text: Vec<u8>,
    /// Device and inode.
    file: (u64, u64),
}

impl Anchor {
    /// Checks that the directory is the one that it was. `to_put`: one without an anchor gets it.
    fn check(&self, to_put: bool) -> io::Result<()> {
        let path = self.dir.join(ANCHOR);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match fs::metadata(&path) {
            Ok(found) => Some((found.dev(), found.ino())),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match (&mut *known, found) {
            (Some(known), Some(file)) if known.file == file => Ok(()),
            // It was mounted again.
            (Some(known), Some(file)) if fs::read(&path)? == known.text => {
                known.file = file;
                Ok(())
            }
            (Some(_), _) => Err(io::Error::other(format!(
                "{} is not the directory that it was: is its file system mounted?",
                self.dir.display()
            ))),
            (None, Some(file)) => {
                *known = Some(KnownAnchor { text: fs::read(&path)?, file });
                Ok(())
            }
            (None, None) if to_put => {
                *known = Some(self.leave()?);
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }

    /// Leaves an anchor, unless another process is faster, and returns the one that is there.
    fn leave(&self) -> io::Result<KnownAnchor> {
        let mut left = self.try_to_leave();
        for _ in 1..TRIES {
            match left {
                Err(error) if error.kind() == ErrorKind::NotFound => left = self.try_to_leave(),
                left => return left,
            }
        }
        left
    }

    fn try_to_leave(&self) -> io::Result<KnownAnchor> {
        fs::create_dir_all(&self.dir)?;
        let (path, number) = (self.dir.join(ANCHOR), rand::random::<u64>());
        // Whoever sees the anchor sees all of it.
        let staged = self.dir.join(format!("anchor#{}", number.max(1)));
        fs::write(&staged, format!("{:032x}\n", rand::random::<u128>()))?;
        File::open(&staged)?.sync_all()?;
        let linked = fs::hard_link(&staged, &path);
        fs::remove_file(&staged)?;
        linked.or_else(|error| match error.kind() {
            ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        })?;
        File::open(&self.dir)?.sync_all()?;
        let found = fs::metadata(&path)?;
        Ok(KnownAnchor { text: fs::read(&path)?, file: (found.dev(), found.ino()) })
    }
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Anchored {
    inner: LocalFileSystem,
    anchor: Arc<Anchor>,
}

impl Anchored {
    pub(super) fn new(inner: LocalFileSystem, dir: impl Into<PathBuf>) -> Self {
        let anchor = Anchor { dir: dir.into(), known: Mutex::new(None) };
        Self { inner, anchor: Arc::new(anchor) }
    }

    async fn check(&self, to_put: bool) -> Result<()> {
        check(self.anchor.clone(), to_put).await
    }

    /// Ends a listing with an error if the directory is not the one that it was.
    fn checked(
        &self,
        listed: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let checked = stream::once(check(self.anchor.clone(), false));
        listed.chain(checked.filter_map(|checked| ready(checked.err().map(Err)))).boxed()
    }
}

async fn check(anchor: Arc<Anchor>, to_put: bool) -> Result<()> {
    let checked = tokio::task::spawn_blocking(move || anchor.check(to_put)).await?;
    checked.map_err(|error| Error::Generic { store: "bucket+file", source: error.into() })
}

impl fmt::Display for Anchored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Anchored {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.check(true).await?;
        let put = self.inner.put_opts(location, payload, options).await;
        self.check(false).await?;
        put
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.check(true).await?;
        let upload = self.inner.put_multipart_opts(location, options).await?;
        Ok(Box::new(AnchoredUpload { upload, anchor: self.anchor.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let found = self.inner.get_opts(location, options).await;
        if matches!(found, Err(Error::NotFound { .. })) {
            self.check(false).await?;
        }
        found
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let deleted = self.inner.delete_stream(locations);
        let checked = check(self.anchor.clone(), false);
        let begin = async move {
            match checked.await {
                Ok(()) => deleted,
                Err(error) => stream::once(ready(Err(error))).boxed(),
            }
        };
        stream::once(begin).flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.checked(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.checked(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let listed = self.inner.list_with_delimiter(prefix).await;
        self.check(false).await?;
        listed
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.check(true).await?;
        let copied = self.inner.copy_opts(from, to, options).await;
        self.check(false).await?;
        copied
    }
}

#[derive(Debug)]
struct AnchoredUpload {
    upload: Box<dyn MultipartUpload>,
    anchor: Arc<Anchor>,
}

#[async_trait]
impl MultipartUpload for AnchoredUpload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        self.upload.put_part(payload)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let put = self.upload.complete().await;
        check(self.anchor.clone(), false).await?;
        put
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

#[cfg(test)]
mod tests {
    use crate::place::Place;
    use futures::{StreamExt, TryStreamExt};
    use object_store::ObjectStoreExt;
    use std::fs;

    /// Another directory is mounted over the one of the store, or nothing is there: no request succeeds that would believe
    /// what it finds. Then the first one is back.
    #[tokio::test]
    async fn another_directory_in_its_place_is_not_used() {
        let scratch = tempfile::tempdir().expect("a directory");
        let (dir, away) = (scratch.path().join("data"), scratch.path().join("away"));
        let place = Place::parse(&format!("bucket+file://{}", dir.display())).expect("a place");
        let (store, one, two) = (place.store(), place.path("a/one"), place.path("a/two"));
        assert!(store.get(&one).await.is_err_and(|error| error.to_string().contains("not found")));
        assert_eq!(store.list(Some(place.root())).count().await, 0);
        assert!(!dir.exists(), "reading leaves nothing");
        store.put(&one, "1".into()).await.expect("stored");
        let names = || async {
            let all: Vec<_> = store.list(Some(place.root())).try_collect().await?;
            let paged = store.list_with_delimiter(Some(place.root())).await?;
            assert!(paged.objects.is_empty(), "the anchor is no object");
            object_store::Result::Ok(all.into_iter().map(|meta| meta.location).collect::<Vec<_>>())
        };
        assert_eq!(names().await.expect("listed"), std::slice::from_ref(&one));
        let other = scratch.path().join("other");
        fs::create_dir(&other).expect("a directory");
        fs::write(other.join(super::ANCHOR), "another").expect("another store");
        for is_empty in [true, false] {
            fs::rename(&dir, &away).expect("it goes away");
            match is_empty {
                true => fs::create_dir(&dir).expect("a mount point"),
                false => fs::rename(&other, &dir).expect("another store"),
            }
            let is_away = |error: object_store::Error| error.to_string().contains("mounted");
            assert!(store.put(&two, "2".into()).await.is_err_and(is_away));
            assert!(store.get(&one).await.is_err_and(is_away));
            assert!(names().await.is_err_and(is_away));
            assert!(store.delete(&one).await.is_err_and(is_away));
            assert!(store.copy(&one, &two).await.is_err_and(is_away));
            assert!(store.put_multipart(&two).await.is_err_and(is_away));
            assert!(!dir.join("a").exists(), "nothing was put");
            match is_empty {
                true => fs::remove_dir(&dir).expect("a mount point"),
                false => fs::rename(&dir, &other).expect("another store"),
            }
            fs::rename(&away, &dir).expect("it is back");
            assert_eq!(names().await.expect("listed"), std::slice::from_ref(&one));
        }
        // The same files under other inodes, as after another mount.
        fs::rename(&dir, &away).expect("it goes away");
        fs::create_dir_all(dir.join("a")).expect("a directory");
        for name in [super::ANCHOR, "a/one"] {
            fs::copy(away.join(name), dir.join(name)).expect("copied");
        }
        store.put(&two, "2".into()).await.expect("stored");
        assert_eq!(names().await.expect("listed").len(), 2);
        let next = Place::parse(&place.to_string()).expect("a place");
        next.store().put(&one, "3".into()).await.expect("another process finds the anchor");
        store.delete(&one).await.expect("deleted");
    }
}
