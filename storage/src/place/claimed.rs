//! A place that one process fills, and that another one may take over once the first one has been silent: who
//! slept meanwhile, for example stopped by a signal, must not write there any more.
//!
//! The process renews a *claim* while it is seen to be alive. Writes begin only while the claim is young. So a
//! successor that waits for longer than that, and for a request to end, is alone.

use crate::lease::BootTime;
use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use slatedb_common::retry::NonRetryable;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How long a write waits for a claim to be renewed: a store may be away for a while.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
struct WriteClaimState {
    until: BootTime,
    /// Another process has the place.
    lost: bool,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct WriteClaim {
    lasts: Duration,
    state: watch::Sender<WriteClaimState>,
}

impl WriteClaim {
    /// Creates a claim that lasts for so long from the moment `proven` on.
    pub(crate) fn new(lasts: Duration, proven: BootTime) -> Self {
        let state = WriteClaimState { until: proven.later(lasts), lost: false };
        Self { lasts, state: watch::Sender::new(state) }
    }

    /// Renews it: the place was this process's own at the moment `proven`.
    pub(crate) fn renew(&self, proven: BootTime) {
        self.state.send_modify(|state| state.until = state.until.max(proven.later(self.lasts)));
    }

    /// Ends it: another process has the place.
    pub(crate) fn lose(&self) {
        self.state.send_modify(|state| state.lost = true);
    }

    /// Waits until it holds.
    pub(crate) async fn confirm(&self) -> Result<()> {
        let mut state = self.state.subscribe();
        let known = state.wait_for(|now| now.lost || !now.until.left().is_zero());
        let lost = match tokio::time::timeout(PATIENCE, known).await {
            Ok(Ok(now)) if !now.lost => return Ok(()),
            Ok(_) => {
                "another process has taken over what this one was making: it was silent for too long"
            }
            Err(_) => {
                "another process may have taken over what this one makes: the store did not answer for too long"
            }
        };
        // Engines retry other errors without end.
        Err(Error::Generic { store: "claim", source: Box::new(NonRetryable(lost.into())) })
    }
}

/// A store in which a process writes while its claim holds.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) inner: Arc<dyn ObjectStore>,
    pub(super) claim: Arc<WriteClaim>,
}

impl fmt::Display for Claimed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[derive(Debug)]
struct ClaimedUpload {
    inner: Box<dyn MultipartUpload>,
    claim: Arc<WriteClaim>,
}

#[async_trait]
impl MultipartUpload for ClaimedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.claim.confirm().await?;
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

#[async_trait]
impl ObjectStore for Claimed {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.claim.confirm().await?;
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(location, options).await?;
        Ok(Box::new(ClaimedUpload { inner, claim: self.claim.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let claim = self.claim.clone();
        let confirmed = locations.then(move |location| {
            let claim = claim.clone();
            async move {
                claim.confirm().await?;
                location
            }
        });
        self.inner.delete_stream(confirmed.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.claim.confirm().await?;
        self.inner.copy_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    #[tokio::test]
    async fn nothing_is_changed_once_the_claim_is_over() {
        let (inner, at) = (Arc::new(InMemory::new()), Path::from("a"));
        let claim = Arc::new(WriteClaim::new(Duration::from_secs(60), BootTime::now()));
        let store = Claimed { inner: inner.clone(), claim: claim.clone() };
        store.put(&at, "1".into()).await.unwrap();
        let mut upload = store.put_multipart(&at).await.unwrap();
        upload.put_part("2".into()).await.unwrap();
        claim.lose();
        claim.renew(BootTime::now());
        for error in [
            store.put(&at, "2".into()).await.unwrap_err(),
            upload.complete().await.unwrap_err(),
            store.copy(&at, &Path::from("b")).await.unwrap_err(),
            store.delete(&at).await.unwrap_err(),
        ] {
            assert!(error.to_string().contains("another process has taken over"), "{error}");
            assert!(NonRetryable::find(&error).is_some());
        }
        let found = store.get(&at).await.unwrap().bytes().await.unwrap();
        assert_eq!((&found[..], inner.list(None).count().await), (&b"1"[..], 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_waits_for_a_claim_that_is_renewed() {
        let claim = Arc::new(WriteClaim::new(Duration::ZERO, BootTime::now()));
        let store = Claimed { inner: Arc::new(InMemory::new()), claim: claim.clone() };
        let (at, lasting) = (Path::from("a"), Duration::from_secs(60));
        let error = store.put(&at, "1".into()).await.unwrap_err();
        assert!(error.to_string().contains("may have taken over"), "{error}");
        let waiting = store.put(&at, "1".into());
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(PATIENCE / 2, &mut waiting).await.is_err());
        claim.renew(BootTime::now().later(lasting));
        waiting.await.unwrap();
    }
}
