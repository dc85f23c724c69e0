//! Backups, restores, branches.

use super::connection::Server;
use super::progress;
use anyhow::{Context, Result, bail};
use clap::Args;
use flagstone_storage::checkpoint::{
    AsOf, BackupOptions, Catalog, Checkpoint, Progress, backup, branch, list_backups,
    refuse_inside, restore, take_stopped,
};
use flagstone_storage::directory::{Location, is_data_directory, is_open};
use flagstone_storage::place::Place;
use indicatif::{HumanBytes, ProgressBar};
use std::io::Write;
use std::num::NonZeroUsize;
use std::time::Instant;

/// Which data directory.
#[derive(Args, Debug)]
pub(super) struct DataArgs {
    /// The data directory, or the place of a store: s3://bucket/prefix, gs://…, az://…
    #[arg(long, default_value = "data", value_name = "DIR|URL")]
    dir: String,
    /// The place of its journal, if that is not in the store
    #[arg(long, value_name = "DIR|URL")]
    journal: Option<String>,
}

impl DataArgs {
    pub(super) fn location(&self) -> Result<Location> {
        let journal = self.journal.as_deref().map(Place::parse).transpose()?;
        Ok(Location { store: Place::parse(&self.dir)?, journal })
    }
}

/// Which checkpoint of a data directory.
#[derive(Args)]
pub(super) struct CheckpointArgs {
    #[command(flatten)]
    data: DataArgs,
    /// An existing checkpoint, in the place of a new one
    #[arg(long, value_name = "ID")]
    checkpoint: Option<String>,
    /// The store is in a bucket, and no server has it open: open it for a moment, as a start would.
    /// (A local directory has a lock that tells)
    #[arg(long)]
    stopped: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(super) struct BackupArgs {
    /// The destination: a directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    #[arg(long, value_name = "URL")]
    to: String,
    /// Number of backups of this data directory to keep; older ones are removed
    #[arg(long, value_name = "N")]
    keep: Option<NonZeroUsize>,
    /// Read files that are there already, and compare their checksums
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    of: CheckpointArgs,
}

#[derive(Args, Debug)]
pub(super) struct RestoreArgs {
    /// The source: a place of backups, or a data directory with checkpoints
    #[arg(long, value_name = "URL")]
    from: String,
    /// The place of the source's journal, if it is a data directory and its journal is elsewhere
    #[arg(long, value_name = "DIR|URL")]
    journal: Option<String>,
    /// The data directory to make: a directory, or a place in a bucket
    #[arg(long, visible_alias = "to", value_name = "DIR|URL")]
    dir: String,
    /// The backup or checkpoint; default: the newest one
    #[arg(long, value_name = "ID")]
    backup: Option<String>,
    /// The last moment to restore: 2026-11-22T04:03:12.123 (UTC), seconds since 1970, or lsn:N
    #[arg(long, value_name = "TIME")]
    as_of: Option<AsOf>,
}

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(super) struct BranchArgs {
    /// The data directory to make, on the same disk or in the same bucket
    #[arg(long, value_name = "DIR|URL")]
    to: String,
    #[command(flatten)]
    of: CheckpointArgs,
}

#[derive(Args, Debug)]
pub(super) struct CheckpointsArgs {
    /// The data directory, or the place of a store
    #[arg(long, default_value = "data", value_name = "DIR|URL")]
    dir: String,
    /// List the backups in this place instead
    #[arg(long, value_name = "URL")]
    from: Option<String>,
}

/// A progress bar that counts bytes.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        Self(progress::bytes(Some(0), false))
    }
}

impl Progress for Bar {
    fn expect(&self, bytes: u64) {
        self.0.inc_length(bytes);
    }

    fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

pub(super) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

impl CheckpointArgs {
    /// Returns the requested checkpoint, or takes a new one of a data directory, whether or not a
    /// server has it open.
    async fn take(self, data: &Location) -> Result<String> {
        // Of a cluster, nobody has all the data.
        is_data_directory(&data.store).await?;
        if let Some(id) = self.checkpoint {
            return Ok(id);
        }
        let is_open = match data.store.dir() {
            Some(dir) => is_open(dir)?,
            None => !self.stopped,
        };
        if !is_open {
            return Ok(take_stopped(data).await?.id);
        }
        let server = self.server.of_directory(data.store.dir()).connect();
        let mut server = server.with_context(|| match data.store.dir() {
            Some(_) => "the server that has the data directory open".to_owned(),
            None => format!("the server that has {} open (--stopped: there is none)", data.store),
        })?;
        let id = String::from_utf8(server.call(&[b"FLAGSTONE", b"CHECKPOINT"])?.into_bulk()?)?;
        if !Catalog::of(&data.store).has(&id).await? {
            bail!(
                "the server has another data directory open than {}, or has removed the checkpoint \
                 {id} already (checkpoint-keep)",
                data.store
            );
        }
        Ok(id)
    }
}

impl BackupArgs {
    pub(super) fn run(self) -> Result<()> {
        block_on(async move {
            let begun = Instant::now();
            let (data, to) = (self.of.data.location()?, Place::parse(&self.to)?);
            // Before a checkpoint is taken for it.
            refuse_inside(&data, &to)?;
            let id = self.of.take(&data).await?;
            let options = BackupOptions { keep: self.keep, verify: self.verify };
            let bar = Bar::new();
            let done = backup(&data, &id, &to, options, &bar).await?;
            bar.0.finish_and_clear();
            say!(
                "backup {} in {to}: {}, of which {} in {} files were copied ({:.1} s)",
                done.id,
                HumanBytes(done.bytes),
                HumanBytes(done.copied_bytes),
                done.copied_files,
                begun.elapsed().as_secs_f64()
            );
            if let Some(gap) = done.gap {
                let lacks = format!("`restore --as-of` can restore from the backups {gap}");
                if done.is_archiving {
                    let _ = writeln!(std::io::stderr(), "flagstone: warning: {lacks}");
                }
                say!("{lacks}");
            }
            for id in done.removed {
                say!("backup {id} is removed");
            }
            Ok(())
        })
    }
}

impl RestoreArgs {
    pub(super) fn run(self) -> Result<()> {
        block_on(async move {
            let begun = Instant::now();
            let from = DataArgs { dir: self.from, journal: self.journal }.location()?;
            let to = Place::parse(&self.dir)?;
            let bar = Bar::new();
            let id = self.backup.as_deref();
            let restored = restore(&from, &to, id, self.as_of, &bar).await?;
            bar.0.finish_and_clear();
            say!(
                "{to} is restored from {}, up to lsn {}: {} ({:.1} s)",
                restored.id,
                restored.lsn,
                HumanBytes(restored.bytes),
                begun.elapsed().as_secs_f64()
            );
            Ok(())
        })
    }
}

impl BranchArgs {
    pub(super) fn run(self) -> Result<()> {
        block_on(async move {
            let begun = Instant::now();
            let (data, to) = (self.of.data.location()?, Place::parse(&self.to)?);
            let id = self.of.take(&data).await?;
            let made = branch(&data.store, &id, &to).await?;
            say!(
                "{to} is a branch of {} at lsn {}: {} are shared ({:.2} s)",
                data.store,
                made.lsn,
                HumanBytes(made.bytes),
                begun.elapsed().as_secs_f64()
            );
            Ok(())
        })
    }
}

impl CheckpointsArgs {
    pub(super) fn run(self) -> Result<()> {
        if let Some(from) = self.from {
            let place = Place::parse(&from)?;
            let backups = block_on(list_backups(&place))?;
            if backups.is_empty() {
                bail!("there are no backups in {place}");
            }
            for backup in backups {
                show(&backup.checkpoint, "bytes", backup.bytes());
            }
            return Ok(());
        }
        let place = Place::parse(&self.dir)?;
        let listing = async move {
            if !is_data_directory(&place).await? {
                bail!("{place} is no data directory");
            }
            Catalog::of(&place).list().await
        };
        for checkpoint in block_on(listing)? {
            show(&checkpoint, "record-bytes", checkpoint.record_bytes);
        }
        Ok(())
    }
}

fn show(checkpoint: &Checkpoint, what: &str, bytes: u64) {
    say!(
        "{}  lsn={} shards={} directory={:08x} {what}={bytes}",
        checkpoint.id,
        checkpoint.lsn,
        checkpoint.shards.len(),
        checkpoint.origin
    );
}
