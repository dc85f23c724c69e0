//! Backups, restores, branches.

use super::connection::Server;
use super::progress;
use anyhow::{Context, Result, bail};
use clap::Args;
use flagstone_storage::checkpoint::{
    AsOf, BackupOptions, Catalog, Checkpoint, Image, Progress, backup, branch, list_backups,
    restore, take_stopped,
};
use flagstone_storage::directory::is_open;
use flagstone_storage::place::Place;
use indicatif::{HumanBytes, ProgressBar};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(super) struct BackupArgs {
    /// Where to: a directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix
    #[arg(long, value_name = "URL")]
    to: String,
    /// The data directory
    #[arg(long, default_value = "data")]
    dir: PathBuf,
    /// A checkpoint that is there, instead of a new one
    #[arg(long, value_name = "ID")]
    checkpoint: Option<String>,
    /// Keep so many backups of this data directory, and remove older ones
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
    /// Read files that are there already, and compare their checksums
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(super) struct RestoreArgs {
    /// Where from: a place of backups, or a data directory with checkpoints
    #[arg(long, value_name = "URL")]
    from: String,
    /// The data directory to make
    #[arg(long)]
    dir: PathBuf,
    /// Which backup or checkpoint; the newest one without
    #[arg(long, value_name = "ID")]
    backup: Option<String>,
    /// The last moment to restore: 2026-11-22T04:03:12.123 (UTC), seconds since 1970, or lsn:N
    #[arg(long, value_name = "TIME")]
    as_of: Option<AsOf>,
}

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(super) struct BranchArgs {
    /// The data directory to make, on the same disk
    #[arg(long)]
    to: PathBuf,
    /// The data directory to branch
    #[arg(long, default_value = "data")]
    dir: PathBuf,
    /// A checkpoint that is there, instead of a new one
    #[arg(long, value_name = "ID")]
    checkpoint: Option<String>,
    #[command(flatten)]
    server: Server,
}

#[derive(Args, Debug)]
pub(super) struct CheckpointsArgs {
    /// The data directory
    #[arg(long, default_value = "data")]
    dir: PathBuf,
    /// List the backups in this place instead
    #[arg(long, value_name = "URL")]
    from: Option<String>,
}

/// A progress bar of bytes.
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

/// The checkpoint that was asked for, or a new one of a data directory, whoever has it open.
async fn checkpoint(dir: &Path, id: Option<String>, server: &Server) -> Result<String> {
    if let Some(id) = id {
        return Ok(id);
    }
    if !is_open(dir)? {
        return Ok(take_stopped(dir).await?.id);
    }
    let reply = server.address(None)?.connect()?.call(&[b"FLAGSTONE", b"CHECKPOINT"])?;
    let id = String::from_utf8(reply.into_bulk()?)?;
    if !Catalog::of(dir).list()?.iter().any(|checkpoint| checkpoint.id == id) {
        bail!("the server has another data directory open than {}", dir.display());
    }
    Ok(id)
}

impl BackupArgs {
    pub(super) fn run(self) -> Result<()> {
        block_on(async move {
            let begun = Instant::now();
            let to = Place::parse(&self.to)?;
            let data = Place::local(&self.dir)?;
            let id = checkpoint(&self.dir, self.checkpoint, &self.server).await?;
            let catalog = Catalog::of(&self.dir);
            // It stays as long as this process runs.
            let (checkpoint, _in_use) = catalog.open(&id)?;
            let image = Image::of_checkpoint(&data, &checkpoint, catalog.records(&id)).await?;
            let options = BackupOptions { keep: self.keep, verify: self.verify };
            let bar = Bar::new();
            let done = backup(&image, &self.dir, &to, options, &bar).await?;
            bar.0.finish_and_clear();
            println!(
                "backup {} in {to}: {}, of which {} in {} files were copied ({:.1} s)",
                done.id,
                HumanBytes(done.bytes),
                HumanBytes(done.copied_bytes),
                done.copied_files,
                begun.elapsed().as_secs_f64()
            );
            for id in done.removed {
                println!("backup {id} is removed");
            }
            Ok(())
        })
    }
}

impl RestoreArgs {
    pub(super) fn run(self) -> Result<()> {
        block_on(async move {
            let begun = Instant::now();
            let from = Place::parse(&self.from)?;
            let bar = Bar::new();
            let id = self.backup.as_deref();
            let restored = restore(&from, &self.dir, id, self.as_of, &bar).await?;
            bar.0.finish_and_clear();
            println!(
                "{} is restored from {}, up to lsn {}: {} ({:.1} s)",
                self.dir.display(),
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
            let id = checkpoint(&self.dir, self.checkpoint, &self.server).await?;
            let made = branch(&Place::local(&self.dir)?, &id, &self.to).await?;
            println!(
                "{} is a branch of {} at lsn {}: {} are shared ({:.2} s)",
                self.to.display(),
                self.dir.display(),
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
            let backups = block_on(async move { list_backups(&place).await })?;
            for backup in backups {
                show(&backup.checkpoint, "bytes", backup.bytes());
            }
            return Ok(());
        }
        for checkpoint in Catalog::of(&self.dir).list()? {
            show(&checkpoint, "record-bytes", checkpoint.record_bytes);
        }
        Ok(())
    }
}

fn show(checkpoint: &Checkpoint, what: &str, bytes: u64) {
    println!(
        "{}  lsn={} shards={} {what}={bytes}",
        checkpoint.id,
        checkpoint.lsn,
        checkpoint.shards.len()
    );
}
