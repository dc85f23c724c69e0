//! Copying files between stores, with checksums.

use super::image::ImageFile;
use crate::engine::parts::PartChecks;
use crate::place::{Place, sizes};
use anyhow::{Context, Result, bail};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::AsyncWriteExt;
use xxhash_rust::xxh3::Xxh3;

/// Files that are copied at the same time.
const AT_ONCE: usize = 4;

/// Receiver of the progress of a copy.
pub trait Progress: Send + Sync {
    /// Announces so many more bytes to copy.
    fn expect(&self, bytes: u64);
    fn advance(&self, bytes: u64);
}

/// A receiver that ignores progress.
#[derive(Clone, Copy, Debug)]
pub struct Quiet;

impl Progress for Quiet {
    fn expect(&self, _bytes: u64) {}
    fn advance(&self, _bytes: u64) {}
}

/// A copy from one store to another.
pub(super) struct Copy<'a> {
    pub(super) from: Arc<dyn ObjectStore>,
    pub(super) to: &'a Place,
    pub(super) progress: &'a dyn Progress,
}

impl Copy<'_> {
    /// Copies a file to `name` at the target, and returns its checksum, which is both that of the
    /// bytes read and that of the bytes now stored. It must be `piece.checksum` if that is known; if
    /// not, the checksums inside a file with rows are verified.
    pub(super) async fn copy(&self, piece: &ImageFile, name: &str) -> Result<u128> {
        let target = self.to.path(name);
        let store = self.to.store();
        let mut hash = Xxh3::new();
        let mut size = 0;
        // Whose checksum is not known may have been damaged before.
        let mut checks = match piece.checksum {
            None if piece.has_rows() => {
                let checks = PartChecks::of(&self.from, &piece.at, piece.size).await;
                Some(checks.with_context(|| format!("{} is damaged", piece.name))?)
            }
            _ => None,
        };
        let mut is_whole = true;
        let mut chunks = self.from.get(&piece.at).await?.into_stream();
        let mut writer = BufWriter::new(store.clone(), target.clone());
        while let Some(chunk) = chunks.try_next().await? {
            hash.update(&chunk);
            size += chunk.len() as u64;
            is_whole = is_whole && checks.as_mut().is_none_or(|checks| checks.pass(&chunk));
            self.progress.advance(chunk.len() as u64);
            writer.put(chunk).await?;
        }
        let sum = hash.digest128();
        is_whole = is_whole && checks.is_none_or(|checks| checks.have_passed());
        if !is_whole || size != piece.size || piece.checksum.is_some_and(|expected| expected != sum)
        {
            // The unfinished upload stays invisible.
            writer.abort().await?;
            bail!("{} is damaged where it is copied from", piece.name);
        }
        writer.shutdown().await?;
        if checksum(&*store, &target).await? != sum {
            bail!("{} was written to {} and does not read as it was written", piece.name, self.to);
        }
        Ok(sum)
    }
}

/// A file that was copied.
pub(super) struct Copied {
    pub(super) name: String,
    pub(super) size: u64,
    /// XXH3 (128 bits) of its bytes.
    pub(super) sum: u128,
}

/// Copies the files below a place in sequence: there are few.
pub(super) async fn copy_tree(
    from: &Place,
    to: &Place,
    progress: &dyn Progress,
) -> Result<Vec<Copied>> {
    let mut copied = Vec::new();
    for (name, size) in sizes(from).await? {
        progress.expect(size);
        let piece = ImageFile { name: name.clone(), at: from.path(&name), size, checksum: None };
        let sum = Copy { from: from.store(), to, progress }.copy(&piece, &name).await;
        let sum = sum.with_context(|| format!("copying {from}/{name} to {to}"))?;
        copied.push(Copied { name, size, sum });
    }
    Ok(copied)
}

/// Returns the checksum of an object.
pub(super) async fn checksum(store: &dyn ObjectStore, path: &Path) -> Result<u128> {
    let mut hash = Xxh3::new();
    let mut chunks = store.get(path).await?.into_stream();
    while let Some(chunk) = chunks.try_next().await? {
        hash.update(&chunk);
    }
    Ok(hash.digest128())
}

/// Runs all futures, `AT_ONCE` at a time, and returns the results in the same order.
pub(super) async fn all<R>(futures: Vec<BoxFuture<'_, Result<R>>>) -> Result<Vec<R>> {
    all_of(AT_ONCE, futures).await
}

/// Runs all futures, `at_once` at a time, and returns the results in the same order. After an error
/// no further one begins, and those under way are awaited: a copy that went on in the background
/// would write files while the copied ones are being removed.
pub(super) async fn all_of<R>(
    at_once: usize,
    futures: Vec<BoxFuture<'_, Result<R>>>,
) -> Result<Vec<R>> {
    let failed = AtomicBool::new(false);
    let each: Vec<_> = futures.into_iter().map(|future| unless(&failed, future).boxed()).collect();
    let results: Vec<_> = stream::iter(each).buffered(at_once).collect().await;
    results.into_iter().flatten().collect()
}

/// Runs a future unless another one has `failed`, and notes if this one fails.
async fn unless<R>(failed: &AtomicBool, future: BoxFuture<'_, Result<R>>) -> Option<Result<R>> {
    if failed.load(Ordering::Relaxed) {
        return None;
    }
    let result = future.await;
    failed.fetch_or(result.is_err(), Ordering::Relaxed);
    Some(result)
}

/// Returns true if an object exists with this size.
pub(super) async fn is_there(place: &Place, name: &str, size: u64) -> Result<bool> {
    match place.store().head(&place.path(name)).await {
        Ok(meta) => Ok(meta.size == size),
        Err(object_store::Error::NotFound { .. }) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("looking for {name} in {place}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[tokio::test]
    async fn copies_under_way_end_before_an_error_is_returned() {
        let (begun, ended) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        let each = |n: usize| {
            let work = async move {
                begun.fetch_add(1, Ordering::Relaxed);
                // The second one fails while others are under way.
                for _ in 0..if n == 1 { 1 } else { 9 } {
                    tokio::task::yield_now().await;
                }
                ended.fetch_add(1, Ordering::Relaxed);
                if n == 1 { bail!("failed") } else { Ok(n) }
            };
            work.boxed()
        };
        let error = all_of(3, (0..50).map(each).collect()).await.unwrap_err();
        assert_eq!(error.to_string(), "failed");
        let (begun, ended) = (begun.load(Ordering::Relaxed), ended.load(Ordering::Relaxed));
        assert!(begun == ended && (3..50).contains(&begun), "{begun} begun, {ended} ended");
    }
}
