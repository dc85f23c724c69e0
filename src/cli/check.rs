//! Checks a data directory.

use super::backup::{DataArgs, block_on};
use anyhow::{Result, bail};
use clap::Args;
use flagstone_storage::check::{Listener, check};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of problems that are shown; all are counted.
const SHOWN: u64 = 1000;

#[derive(Args, Debug)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Also show how many keys of each type have about which size: bytes of strings, elements of
    /// others, in powers of two, as INFO keysizes of Redis 8 does
    #[arg(long)]
    sizes: bool,
}

struct Screen {
    bar: ProgressBar,
    shown: AtomicU64,
}

impl Listener for Screen {
    fn problem(&self, what: &str) {
        if self.shown.fetch_add(1, Ordering::Relaxed) < SHOWN {
            self.bar.suspend(|| say!("{what}"));
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
        let location = self.data.location()?;
        let report = block_on(check(&location, &screen))?;
        screen.bar.finish_and_clear();
        say!(
            "{}: {} shards, {} keys, {} rows, {} records in the journal, {} checkpoints",
            location.store,
            report.shards,
            report.keys,
            report.rows,
            report.records,
            report.checkpoints
        );
        if self.sizes {
            report.sizes.to_string().lines().for_each(|line| say!("{line}"));
        }
        if report.archived > 0 {
            say!("archive: {} segments of the journal", report.archived);
        }
        match (report.problems, report.archive_problems) {
            (0, 0) => Ok(()),
            (0, problems) => bail!(
                "{problems} problems of the archive: the data is whole, but `restore --as-of` refuses \
                 the moments that need what is damaged or missing"
            ),
            (problems, archived) => bail!("{} problems", problems + archived),
        }
    }
}
