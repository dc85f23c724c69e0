//! Ctrl-C, and the other signals that end the program.

use crate::signals::Stops;
use anyhow::{Context, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;

/// Exit status after a second Ctrl-C: that of a process that the signal has ended.
const INTERRUPTED: i32 = 130;

/// Interval at which a sleep looks for the signal.
const LOOK: Duration = Duration::from_millis(50);

/// The user's wish to end, noted when a signal comes. A second Ctrl-C ends the process at once.
pub(super) struct Interrupt(Arc<AtomicBool>);

/// The error of work that ends for [`Interrupt`].
#[derive(Debug)]
pub(super) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Interrupt {
    /// Catches the signals from now on.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn catch() -> Result<Self> {
        let noted = Arc::new(AtomicBool::new(false));
        let runtime = Builder::new_current_thread().enable_all().build().context("a runtime")?;
        let mut stops = runtime.block_on(async { Stops::catch() });
        let for_signals = Arc::clone(&noted);
        let wait = async move {
            stops.wait().await;
            for_signals.store(true, Ordering::Relaxed);
            stops.insisted().await;
            std::process::exit(INTERRUPTED)
        };
        let name = "signals".to_owned();
        std::thread::Builder::new().name(name).spawn(move || runtime.block_on(wait))?;
        Ok(Self(noted))
    }

    /// Returns an error if a signal has come.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub(super) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
    }

    /// Waits.
    ///
    /// # Errors
    /// [`Interrupted`], as soon as a signal comes.
    pub(super) fn sleep(&self, time: Duration) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.check()?;
            let left = time.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK));
        }
    }
}
