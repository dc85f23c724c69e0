//! Counts requests to a store: each is paid for.

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Listed objects of a page; each page is a request.
const PAGE: u64 = 1000;

/// Dollars for a request of S3 Standard: PUT and LIST, and GET. DELETE costs nothing, and neither
/// does traffic within a region.
const PUT_DOLLARS: f64 = 5e-6;
const GET_DOLLARS: f64 = 0.4e-6;

/// Counters of requests to a store since the start, without its client's retries.
#[derive(Debug, Default)]
pub struct Requests {
    pub puts: AtomicU64,
    pub gets: AtomicU64,
    pub lists: AtomicU64,
    pub deletes: AtomicU64,
    pub put_bytes: AtomicU64,
    /// Bytes of the ranges that were requested.
    pub get_bytes: AtomicU64,
    /// Requests of any kind that the store has answered, be it that there is no such object.
    pub answered: AtomicU64,
}

impl Requests {
    /// Returns the price of the requests in dollars, by the prices of S3 Standard.
    pub fn dollars(&self) -> f64 {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        (get(&self.puts) + get(&self.lists)) * PUT_DOLLARS + get(&self.gets) * GET_DOLLARS
    }

    fn answered<T>(&self, result: Result<T>) -> Result<T> {
        if matches!(
            &result,
            Ok(_)
                | Err(Error::NotFound { .. }
                    | Error::AlreadyExists { .. }
                    | Error::Precondition { .. })
        ) {
            add(&self.answered, 1);
        }
        result
    }

    fn put(&self, payload: &PutPayload) {
        add(&self.puts, 1);
        add(&self.put_bytes, payload.content_length() as u64);
    }
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// A store whose requests are counted.
#[derive(Debug)]
pub(super) struct Metered {
    pub(super) inner: Arc<dyn ObjectStore>,
    pub(super) requests: Arc<Requests>,
}

impl fmt::Display for Metered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Metered {
    /// Counts the pages of a listing as they come.
    fn pages(
        &self,
        listed: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let requests = self.requests.clone();
        add(&requests.lists, 1);
        let mut seen = 0;
        let count = move |listed| {
            seen += 1;
            if seen % PAGE == 0 {
                add(&requests.lists, 1);
            }
            requests.answered(listed)
        };
        listed.map(count).boxed()
    }
}

#[async_trait]
impl ObjectStore for Metered {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.requests.put(&payload);
        self.requests.answered(self.inner.put_opts(location, payload, options).await)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        add(&self.requests.puts, 1);
        let begun = self.inner.put_multipart_opts(location, options).await;
        let upload = self.requests.answered(begun)?;
        Ok(Box::new(MeteredUpload { upload, requests: self.requests.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        add(&self.requests.gets, 1);
        let is_head = options.head;
        let result = self.requests.answered(self.inner.get_opts(location, options).await)?;
        if !is_head {
            add(&self.requests.get_bytes, result.range.end - result.range.start);
        }
        Ok(result)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let requests = self.requests.clone();
        let deleted = self.inner.delete_stream(locations);
        let count = move |deleted| {
            add(&requests.deletes, 1);
            requests.answered(deleted)
        };
        deleted.map(count).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.pages(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.pages(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        add(&self.requests.lists, 1);
        self.requests.answered(self.inner.list_with_delimiter(prefix).await)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        add(&self.requests.puts, 1);
        self.requests.answered(self.inner.copy_opts(from, to, options).await)
    }
}

#[derive(Debug)]
struct MeteredUpload {
    upload: Box<dyn MultipartUpload>,
    requests: Arc<Requests>,
}

#[async_trait]
impl MultipartUpload for MeteredUpload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        self.requests.put(&payload);
        let (requests, part) = (self.requests.clone(), self.upload.put_part(payload));
        Box::pin(async move { requests.answered(part.await) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        add(&self.requests.puts, 1);
        self.requests.answered(self.upload.complete().await)
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}
