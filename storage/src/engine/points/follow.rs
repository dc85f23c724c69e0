//! Keeps an engine's view up to date: builds another one whenever the manifest has changed.

use super::bloom::Bloom;
use super::file::{PointFile, is_readable};
use super::view::{FileView, PlacedFile};
use super::{PointLimits, Points};
use anyhow::Result;
use slatedb::manifest::{SsTableId, SsTableView, VersionedManifest};
use slatedb::{DbStatus, SstReader};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Pause before a file that could not be opened is tried again.
const RETRY: Duration = Duration::from_secs(30);

/// Number of the next file that is opened.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// An open file, and its filter if there is room for it.
struct KeptFile {
    open: Arc<PointFile>,
    filter: Option<Arc<Bloom>>,
    number: u64,
}

/// See the module's description.
pub(crate) struct Follower {
    pub(crate) points: Arc<Points>,
    pub(crate) status: watch::Receiver<DbStatus>,
    pub(crate) reader: Arc<SstReader>,
    /// Directory of the engine.
    pub(crate) dir: PathBuf,
    pub(crate) limits: PointLimits,
}

impl Follower {
    /// Follows the manifest until the engine closes.
    pub(crate) async fn run(mut self) {
        let mut kept = HashMap::new();
        loop {
            let status = self.status.borrow_and_update().clone();
            if status.close_reason.is_some() {
                break;
            }
            let manifest = status.current_manifest;
            let (view, is_whole) = self.build(&manifest, &mut kept).await;
            self.points.exchange(view);
            if !self.changed(&manifest, is_whole).await {
                break;
            }
        }
        self.points.exchange(None);
    }

    /// Waits until the manifest differs from this one, or until files are to be tried again.
    /// Returns false if the engine is gone.
    async fn changed(&mut self, manifest: &VersionedManifest, is_whole: bool) -> bool {
        let differs = |status: &DbStatus| {
            status.close_reason.is_some() || status.current_manifest != *manifest
        };
        let changing = self.status.wait_for(differs);
        if is_whole {
            return changing.await.is_ok();
        }
        tokio::time::timeout(RETRY, changing).await.is_ok_and(|changed| changed.is_ok())
    }

    /// Builds the view of a manifest. The second result is false if a file could not be opened.
    async fn build(
        &self,
        manifest: &VersionedManifest,
        kept: &mut HashMap<SsTableId, KeptFile>,
    ) -> (Option<FileView>, bool) {
        let mut runs: Vec<Vec<&SsTableView>> =
            manifest.l0().iter().map(|view| vec![view]).collect();
        runs.extend(manifest.compacted().iter().map(|run| run.sst_views().iter().collect()));
        let is_usual =
            |view: &SsTableView| view.visible_range().is_none() && is_readable(&view.sst.info);
        if !manifest.segments().is_empty()
            || !manifest.external_dbs().is_empty()
            || !runs.iter().flatten().all(|view| is_usual(view))
        {
            kept.clear();
            return (None, true);
        }
        let named: HashMap<SsTableId, &SsTableView> =
            runs.iter().flatten().map(|view| (view.sst.id, *view)).collect();
        kept.retain(|id, _| named.contains_key(id));
        let is_whole = self.open_files(&runs, kept).await;
        let place = |view: &&SsTableView| {
            let (info, file) = (&view.sst.info, kept.get(&view.sst.id));
            PlacedFile {
                first: info.first_entry.clone().unwrap_or_default(),
                last: info.last_entry.clone().unwrap_or_default(),
                open: file.map(|file| file.open.clone()),
                filter: file.and_then(|file| file.filter.clone()),
                number: file.map_or(0, |file| file.number),
            }
        };
        let runs = runs.iter().map(|run| run.iter().map(place).collect()).collect();
        (Some(FileView { seq: manifest.last_l0_seq(), runs }), is_whole)
    }

    /// Opens files, newest first, as far as the limits allow; then reads their filters. Returns
    /// false if some could not be read.
    async fn open_files(
        &self,
        runs: &[Vec<&SsTableView>],
        kept: &mut HashMap<SsTableId, KeptFile>,
    ) -> bool {
        let (mut bytes, mut is_whole) = (0, true);
        for (n, view) in runs.iter().flatten().enumerate() {
            let id = view.sst.id;
            let size = kept.get(&id).map_or(view.sst.info.index_len as usize, |k| k.open.bytes());
            if n >= self.limits.files || bytes + size > self.limits.bytes {
                kept.remove(&id);
                continue;
            }
            if let Entry::Vacant(place) = kept.entry(id) {
                match self.open(view).await {
                    Ok(open) => {
                        let number = NEXT.fetch_add(1, Ordering::Relaxed);
                        place.insert(KeptFile { open: Arc::new(open), filter: None, number });
                    }
                    Err(error) => {
                        tracing::debug!("{id:?} is not open for point reads: {error:#}");
                        is_whole = false;
                        continue;
                    }
                }
            }
            bytes += kept.get(&id).map_or(size, |file| file.open.bytes());
        }
        for view in runs.iter().flatten() {
            let Some(file) = kept.get_mut(&view.sst.id) else { continue };
            bytes += view.sst.info.filter_len as usize;
            if bytes > self.limits.bytes {
                file.filter = None;
            } else if file.filter.is_none() && view.sst.info.filter_len > 0 {
                let open = file.open.clone();
                let reading = tokio::task::spawn_blocking(move || open.read_filter());
                // Without its filter, the file is as if it had none.
                match reading.await {
                    Ok(Ok(filter)) => file.filter = filter.map(Arc::new),
                    Ok(Err(_)) | Err(_) => is_whole = false,
                }
            }
        }
        is_whole
    }

    async fn open(&self, view: &SsTableView) -> Result<PointFile> {
        let handle = view.sst.clone();
        let reader = self.reader.open_with_handle(handle.clone())?;
        let index = reader.index().await?;
        // Without them, the file is left out of figures only.
        let stats = reader.stats().await.ok().flatten();
        let path = self.dir.join("compacted").join(format!("{}.sst", handle.id.value()));
        let points = self.points.clone();
        let opening = tokio::task::spawn_blocking(move || {
            let file = PointFile::open(&path, &handle, &index)?;
            if let Some(sample) = file.sample() {
                points.samples.add(sample);
            }
            Ok(match stats {
                Some(stats) => file.with_plain_bytes(stats.raw_key_size + stats.raw_val_size),
                None => file,
            })
        });
        opening.await?
    }
}
