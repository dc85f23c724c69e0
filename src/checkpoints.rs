//! Checkpoints of the running node: one at a time, on the background runtime; also prunes the
//! journal's archive, and branches the data directory.

use crate::config::Settings;
use crate::node::Node;
use flagstone_storage::checkpoint::{
    Ageing, ArchiveLimits, CANCELLED, Catalog, Checkpoint, Retention, branch, oldest_archived_ms,
    prune_archive, take_unless,
};
use flagstone_storage::journal::Lsn;
use flagstone_storage::place::Place;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Interval at which the server checks if a checkpoint is due, and if archived segments are too
/// old.
const PERIOD: Duration = Duration::from_secs(1);

/// Interval of the checks for old segments in a bucket, where each check costs requests, and for
/// files that a branch needs no more.
const REMOTE_PRUNING: Duration = Duration::from_secs(60);

/// Multiple of its size to which the journal may grow while a checkpoint is taken.
const JOURNAL_SHARE: u64 = 2;

/// A branch in a bucket is opened once before it is complete, with the records that its shards lack
/// in memory: at most so many bytes of them.
const BRANCH_RECORDS: u64 = 64 << 20;

/// Maximum time to wait for the engines to take the pending rows before a branch.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(30);

/// Interval of checks for that; shorter than the interval at which workers publish it.
const HANDED_POLL: Duration = Duration::from_millis(100);

/// Result of a checkpoint.
pub type Taken = Result<Checkpoint, String>;

/// Begins a checkpoint, and returns the receiver of its result; `None` if one is being taken.
pub fn begin(node: &Arc<Node>) -> Option<oneshot::Receiver<Taken>> {
    begin_for(node, Purpose::Keeping)
}

/// Purpose of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// It is kept, and older ones go.
    Keeping,
    /// Its taker removes it: the others stay.
    Passing,
}

fn begin_for(node: &Arc<Node>, purpose: Purpose) -> Option<oneshot::Receiver<Taken>> {
    let changes = node.changes();
    if !node.checkpoints.begin() {
        return None;
    }
    let (done, result) = oneshot::channel();
    let node = node.clone();
    node.background.clone().spawn(async move {
        let taken = run(&node, purpose).await;
        let mut stats = node.checkpoints.lock();
        let begun = stats.running_since.take();
        stats.last_ok = taken.is_ok();
        stats.last_took = begun.map(|begun| begun.elapsed());
        if taken.is_ok() {
            stats.last_save_ms = node.clock.now_ms();
            stats.changes = changes;
        }
        drop(stats);
        // The result may not be awaited.
        let _ = done.send(taken);
    });
    Some(result)
}

/// Takes a checkpoint that has everything written before; one that is being taken may not have it.
pub async fn take_new(node: &Arc<Node>) -> Taken {
    take_for(node, Purpose::Keeping).await
}

async fn take_for(node: &Arc<Node>, purpose: Purpose) -> Taken {
    loop {
        let Some(taking) = begin_for(node, purpose) else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        return taking.await.unwrap_or_else(|_| Err("the server is shutting down".into()));
    }
}

/// Creates the data directory `to` from the current data; both share the files with rows.
pub async fn branch_off(node: &Arc<Node>, to: Place) -> Result<(), String> {
    let taken = take_to_branch(node, Purpose::Keeping).await?;
    check_records(node, &taken).map_err(|what| {
        format!("{what}: `flagstone branch --checkpoint {}` has the memory for that", taken.id)
    })?;
    branch_from(node, &taken, to).await
}

/// Creates the data directory `to` from the data at one record, whose lsn is returned. No checkpoint is
/// left of it, whether it can be created or not.
pub async fn branch_at(node: &Arc<Node>, to: Place) -> Result<Lsn, String> {
    let taken = take_to_branch(node, Purpose::Passing).await?;
    let made = match check_records(node, &taken) {
        Ok(()) => branch_from(node, &taken, to).await,
        Err(what) => Err(what),
    };
    let source = &node.checkpoints.source;
    if let Err(error) = Catalog::of(&source.store).remove(&source.engines(), &taken).await {
        tracing::warn!(id = taken.id, "a checkpoint cannot be removed: {error:#}");
    }
    made.map(|()| taken.lsn)
}

/// Takes the checkpoint from which a branch is made.
async fn take_to_branch(node: &Arc<Node>, purpose: Purpose) -> Taken {
    if is_remote(node) {
        let _wanting = Wanting::new(node.clone());
        let (begun, end) = (Instant::now(), node.journal.end());
        // Deleted rows leave records behind, too.
        while begun.elapsed() < HAND_OVER_LIMIT {
            tokio::time::sleep(HANDED_POLL).await;
            if node.handed() >= end {
                break;
            }
        }
    }
    let taken = take_for(node, purpose).await;
    taken.map_err(|what| format!("no checkpoint: {what}"))
}

fn is_remote(node: &Node) -> bool {
    node.checkpoints.source.store.dir().is_none()
}

/// Returns an error if a checkpoint has more records than a branch in a bucket may replay.
fn check_records(node: &Node, taken: &Checkpoint) -> Result<(), String> {
    let bytes = taken.record_bytes;
    match is_remote(node) && bytes > BRANCH_RECORDS {
        true => Err(format!("{bytes} bytes of records have come faster than the shards take them")),
        false => Ok(()),
    }
}

async fn branch_from(node: &Node, taken: &Checkpoint, to: Place) -> Result<(), String> {
    let (store, id) = (node.checkpoints.source.store.clone(), taken.id.clone());
    let making = node.background.spawn(async move { branch(&store, &id, &to).await });
    match making.await {
        Ok(made) => made.map(drop).map_err(|error| format!("{error:#}")),
        Err(_) => Err("the server is shutting down".into()),
    }
}

/// Makes pending rows be handed over at once, until it is dropped.
struct Wanting(Arc<Node>);

impl Wanting {
    fn new(node: Arc<Node>) -> Self {
        node.checkpoints.wanting.fetch_add(1, Ordering::Relaxed);
        Self(node)
    }
}

impl Drop for Wanting {
    fn drop(&mut self) {
        self.0.checkpoints.wanting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Error of a checkpoint that would have, or has, a part of a data set.
const SHARED: &str = "the shards of a cluster belong to several servers: back up its bucket with the \
    means of the store";
const PARTIAL: &str = "the data set of a primary is being loaded, and a part of it is there only";

async fn run(node: &Node, purpose: Purpose) -> Taken {
    let checkpoints = &node.checkpoints;
    let source = &checkpoints.source;
    let catalog = Catalog::of(&source.store);
    if node.cluster.is_some() {
        return Err(SHARED.into());
    }
    let _turn = tokio::select! {
        turn = checkpoints.turn.lock() => turn,
        () = checkpoints.cancelled() => {
            tracing::warn!("no checkpoint was taken: {CANCELLED}");
            return Err(CANCELLED.into());
        }
    };
    let whole = node.health.replica.whole_since();
    if whole.is_none() {
        return Err(PARTIAL.into());
    }
    let max_journal = node.config.settings().journal_max_size.saturating_mul(JOURNAL_SHARE);
    let taken = match take_unless(source, max_journal, checkpoints.cancelled()).await {
        Ok(taken) if node.health.replica.whole_since() != whole => {
            let removed = catalog.remove(&source.engines(), &taken).await;
            removed.and(Err(anyhow::anyhow!(PARTIAL)))
        }
        taken => taken,
    };
    match &taken {
        Ok(taken) => tracing::info!(
            id = taken.id,
            lsn = taken.lsn,
            record_bytes = taken.record_bytes,
            "a checkpoint was taken"
        ),
        Err(error) => tracing::warn!("no checkpoint was taken: {error:#}"),
    }
    if taken.is_ok() && purpose == Purpose::Keeping {
        let retention = retention(&node.config.settings());
        let retaining = async {
            let now_ms = checkpoints.ageing_ms(retention.max_age_ms).await?;
            catalog.retain(&source.engines(), retention, now_ms).await
        };
        match retaining.await {
            Ok(gone) if gone.is_empty() => {}
            Ok(gone) => tracing::info!(checkpoints = gone.join(" "), "older checkpoints are gone"),
            Err(error) => tracing::warn!("older checkpoints cannot be removed: {error:#}"),
        }
    }
    taken.map_err(|error| format!("{error:#}"))
}

fn retention(settings: &Settings) -> Retention {
    Retention {
        keep: settings.checkpoint_keep,
        max_age_ms: settings.checkpoint_max_age_seconds.saturating_mul(1000),
    }
}

/// Takes checkpoints when they are due, and prunes the archive, until the node ends.
pub async fn run_periodically(node: Arc<Node>) {
    let mut tick = tokio::time::interval(PERIOD);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut tried, mut pruned) = (Instant::now(), None::<Instant>);
    let (mut released, mut ageing) = (Instant::now(), None);
    let max_age_ms = retention(&node.config.settings()).max_age_ms;
    if max_age_ms != 0
        && let Err(error) = node.checkpoints.ageing_ms(max_age_ms).await
    {
        tracing::warn!("the checkpoints cannot be listed: {error:#}");
    }
    while !node.ending.is_ending() {
        tick.tick().await;
        let settings = node.config.settings();
        let interval = settings.checkpoint_interval_seconds;
        let is_due = interval != 0 && tried.elapsed() >= Duration::from_secs(interval);
        if is_due && !node.health.replica.is_loading() {
            tried = Instant::now();
            // If one is being taken, the next one waits for the next tick.
            drop(begin(&node));
        }
        let is_local = node.checkpoints.archive.dir().is_some();
        let is_kept = settings.journal_archive_retention_seconds != 0;
        // Segments archived under an earlier setting are removed at the start.
        if pruned.is_none_or(|at| is_local || is_kept && at.elapsed() >= REMOTE_PRUNING) {
            pruned = Some(Instant::now());
            if let Err(error) = prune(&node, &settings, &mut ageing).await {
                tracing::warn!("the journal's archive cannot be pruned: {error:#}");
            }
        }
        if released.elapsed() >= REMOTE_PRUNING {
            released = Instant::now();
            release(&node.checkpoints.source.store).await;
            node.engines.release_shared().await;
        }
    }
}

/// Releases the parent's files that a branch in a bucket no longer needs.
async fn release(store: &Place) {
    match store.release().await {
        Ok(0) => {}
        Ok(shards) => {
            tracing::info!(shards, "these share no files with the branch's parent any more")
        }
        Err(error) => tracing::warn!("{error:#}"),
    }
}

async fn prune(
    node: &Node,
    settings: &Settings,
    ageing: &mut Option<Ageing>,
) -> anyhow::Result<()> {
    let archive = &node.checkpoints.archive;
    let kept_ms = settings.journal_archive_retention_seconds.saturating_mul(1000);
    let oldest_ms = if ageing.is_none() { oldest_archived_ms(archive).await? } else { None };
    let now = (Instant::now(), node.clock.now_ms());
    let ageing = ageing.get_or_insert_with(|| Ageing::begin(now, oldest_ms, kept_ms));
    let now_ms = ageing.now_ms(now, kept_ms);
    let max_bytes = settings.journal_archive_max_size;
    prune_archive(archive, ArchiveLimits { now_ms, kept_ms, max_bytes }).await?;
    Ok(())
}
