//! Whether a data directory is sound.

use super::backup::block_on;
use anyhow::{Result, bail};
use clap::Args;
use flagstone_storage::check::{Listener, check};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// Problems that are shown at most; all are counted.
const SHOWN: u64 = 1000;

#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    /// The data directory, of a server that is stopped
    #[arg(long, default_value = "data")]
    dir: PathBuf,
}

struct Screen {
    bar: ProgressBar,
    shown: AtomicU64,
}

impl Listener for Screen {
    fn problem(&self, what: &str) {
        if self.shown.fetch_add(1, Ordering::Relaxed) < SHOWN {
            self.bar.suspend(|| println!("{what}"));
        }
    }

    fn rows(&self, count: u64) {
        self.bar.inc(count);
    }
}

impl CheckArgs {
    pub(super) fn run(self) -> Result<()> {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} rows {per_sec}") {
            bar.set_style(style);
        }
        let screen = Screen { bar, shown: AtomicU64::new(0) };
        let report = block_on(check(&self.dir, &screen))?;
        screen.bar.finish_and_clear();
        println!(
            "{}: {} shards, {} keys, {} rows, {} records in the journal, {} checkpoints",
            self.dir.display(),
            report.shards,
            report.keys,
            report.rows,
            report.records,
            report.checkpoints
        );
        if report.problems > 0 {
            bail!("{} problems", report.problems);
        }
        Ok(())
    }
}
