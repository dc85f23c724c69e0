//! A bucket in memory for the journal: each change of it is a point, and it does not change while a
//! point is taken.

use async_trait::async_trait;
use futures::FutureExt;
use futures::stream::{BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::sync::Arc;

/// Makes a change, not while a point is taken.
pub(crate) type Change = dyn Fn(&str, &mut dyn FnMut()) + Send + Sync;

pub(crate) struct Bucket {
    pub(crate) objects: Arc<InMemory>,
    pub(crate) change: Arc<Change>,
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bucket")
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bucket")
    }
}

/// Runs a request to a store in memory, which never waits.
fn at_once<T>(work: impl Future<Output = T>) -> T {
    work.now_or_never().expect("it is in memory")
}

#[async_trait]
impl ObjectStore for Bucket {
    async fn put_opts(&self, to: &Path, body: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let mut result = None;
        (self.change)("a put", &mut || {
            let put = self.objects.put_opts(to, body.clone(), opts.clone());
            result = Some(at_once(put));
        });
        (self.change)("the answer to a put", &mut || {});
        result.expect("the change was made")
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(to, opts).await
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> Result<GetResult> {
        self.objects.get_opts(from, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (objects, change) = (self.objects.clone(), self.change.clone());
        let delete = move |path: Result<Path>| {
            let path = path?;
            let mut result = Ok(());
            change("a delete", &mut || result = at_once(objects.delete(&path)));
            result.map(|()| path)
        };
        locations.map(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}
