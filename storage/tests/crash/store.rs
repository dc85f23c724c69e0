//! An object store that reports every change before and after it is made, and can refuse changes.

use crate::image::Probe;
use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use slatedb_common::retry::NonRetryable;
use std::fmt;
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct Watched {
    inner: Arc<dyn ObjectStore>,
    probe: Arc<Probe>,
}

impl Watched {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, probe: Arc<Probe>) -> Self {
        Self { inner, probe }
    }

    fn before(&self, what: &str, path: &Path) -> Result<()> {
        self.probe.point(|| format!("before {what} {path}"));
        if self.probe.refuses() {
            let source = std::io::Error::from(std::io::ErrorKind::StorageFull).into();
            return Err(Error::Generic { store: "watched", source });
        }
        if self.probe.breaks() {
            let source = Box::new(NonRetryable("the disk is gone".into()));
            return Err(Error::Generic { store: "watched", source });
        }
        Ok(())
    }

    fn after(&self, what: &str, path: &Path) {
        self.probe.point(|| format!("after {what} {path}"));
    }
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watched({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Watched {
    async fn put_opts(&self, to: &Path, body: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.before("put", to)?;
        let result = self.inner.put_opts(to, body, opts).await?;
        self.after("put", to);
        Ok(result)
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.before("multipart", to)?;
        self.inner.put_multipart_opts(to, opts).await
    }

    async fn get_opts(&self, from: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(from, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let probe = self.probe.clone();
        let noted = locations.inspect(move |path| {
            probe.point(|| format!("before delete {path:?}"));
        });
        self.inner.delete_stream(noted.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.before("copy", to)?;
        self.inner.copy_opts(from, to, options).await?;
        self.after("copy", to);
        Ok(())
    }
}
