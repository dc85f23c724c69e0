//! Stamps: checksums of SlateDB's small files, which have none (manifests, and the state of
//! merges).
//!
//! These files name the files with rows and the offsets of rows. With one changed bit, rows are not
//! found. So a stamp follows SlateDB's bytes; SlateDB does not read behind their end. Files of
//! earlier versions have none.

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result,
};
use slatedb_common::retry::NonRetryable;
use std::fmt;

const MAGIC: [u8; 8] = *b"FLAGCRC1";

/// Length of the stamp: the magic, and CRC32C of all bytes before it, little-endian.
const STAMP: usize = MAGIC.len() + 4;

/// Returns true if files of this name get a stamp.
fn has_stamp(location: &Path) -> bool {
    matches!(location.extension(), Some("manifest" | "compactions"))
}

/// Splits a file into the bytes before the stamp, and their stored checksum; `None`: there is no
/// stamp.
fn split(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let (content, stamp) = bytes.split_at_checked(bytes.len().checked_sub(STAMP)?)?;
    let checksum = stamp.strip_prefix(&MAGIC)?.try_into().ok()?;
    Some((content, u32::from_le_bytes(checksum)))
}

/// Returns the bytes to write, with a stamp if the file gets one.
pub(crate) fn stamped(location: &Path, payload: PutPayload) -> PutPayload {
    if !has_stamp(location) {
        return payload;
    }
    let content = Bytes::from(payload);
    if split(&content).is_some() {
        return content.into();
    }
    let mut bytes = BytesMut::with_capacity(content.len() + STAMP);
    bytes.put_slice(&content);
    bytes.put_slice(&MAGIC);
    bytes.put_u32_le(crc32c::crc32c(&content));
    bytes.freeze().into()
}

/// Verifies the stamp of a file that was read, and returns its contents.
pub(crate) async fn verified(
    location: &Path,
    options: &GetOptions,
    found: GetResult,
) -> Result<GetResult> {
    if !has_stamp(location) || options.head || options.range.is_some() {
        return Ok(found);
    }
    let (meta, range) = (found.meta.clone(), found.range.clone());
    let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
    let bytes = found.bytes().await?;
    if split(&bytes).is_some_and(|(content, checksum)| crc32c::crc32c(content) != checksum) {
        let text = format!("{location} is damaged: its checksum is wrong");
        let source = Box::new(NonRetryable(text.into()));
        return Err(Error::Generic { store: "files", source });
    }
    let payload = GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed());
    Ok(GetResult { payload, meta, range, attributes, extensions })
}

/// A store with verified stamps.
#[derive(Debug)]
pub(super) struct Verified<S>(pub(super) S, pub(super) Stamps);

/// Says if a [`Verified`] store also writes stamps. Copies of files keep what they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stamps {
    Read,
    Written,
}

impl<S: ObjectStore> fmt::Display for Verified<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[async_trait]
impl<S: ObjectStore> ObjectStore for Verified<S> {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let payload = match self.1 {
            Stamps::Read => payload,
            Stamps::Written => stamped(location, payload),
        };
        self.0.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        verified(location, &options, self.0.get_opts(location, options.clone()).await?).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.0.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::ObjectStoreExt;
    use object_store::local::LocalFileSystem;
    use object_store::memory::InMemory;
    use std::sync::Arc;

    #[tokio::test]
    async fn no_flipped_bit_of_a_manifest_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        let files = LocalFileSystem::new_with_prefix(dir.path()).unwrap();
        let store = Verified(files, Stamps::Read);
        let at = Path::from("db/manifest/00000000000000000007.manifest");
        let content = Bytes::from_static(b"which files there are");
        let written = Bytes::from(stamped(&at, content.clone().into()));
        assert_eq!(&written[..content.len()], &content);
        // A stamped file gets no second stamp.
        assert_eq!(Bytes::from(stamped(&at, written.clone().into())), written);
        for bit in 0..8 * written.len() {
            let mut damaged = written.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            store.put(&at, damaged.into()).await.unwrap();
            let read = store.get(&at).await;
            // Without its magic it is no stamp, and the bytes before it are right.
            let is_magic = (content.len()..content.len() + MAGIC.len()).contains(&(bit / 8));
            assert_eq!(read.is_ok(), is_magic, "bit {bit}");
        }
        for plain in [content, Bytes::new()] {
            store.put(&at, plain.clone().into()).await.unwrap();
            assert_eq!(store.get(&at).await.unwrap().bytes().await.unwrap(), plain);
        }
        let rows = Path::from("db/compacted/1.sst");
        assert_eq!(Bytes::from(stamped(&rows, "rows".into())), "rows");
    }

    #[tokio::test]
    async fn engines_write_stamps_and_copies_keep_what_they_have() {
        let bucket: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let manifest = Path::from("shard-0/db/manifest/7.manifest");
        let content = Bytes::from_static(b"which files there are");
        let engines = Verified(bucket.clone(), Stamps::Written);
        engines.put(&manifest, content.clone().into()).await.unwrap();
        let stored = bucket.get(&manifest).await.unwrap().bytes().await.unwrap();
        assert_eq!(stored, Bytes::from(stamped(&manifest, content.clone().into())));
        let (copies, copy) = (Verified(bucket.clone(), Stamps::Read), Path::from("7.manifest"));
        copies.put(&copy, content.clone().into()).await.unwrap();
        assert_eq!(bucket.get(&copy).await.unwrap().bytes().await.unwrap(), content);
        let mut damaged = stored.to_vec();
        damaged[3] ^= 4;
        bucket.put(&manifest, damaged.into()).await.unwrap();
        let error = copies.get(&manifest).await.unwrap_err().to_string();
        assert!(error.contains("7.manifest is damaged"), "{error}");
    }
}
