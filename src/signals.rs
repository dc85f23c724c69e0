//! Signals: those that end the server, and those that are ignored.

use std::future::pending;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time within which a further signal counts as the same one, sent twice: to the process and to its
/// group.
const SAME: Duration = Duration::from_secs(1);

/// Ignores signals that would end the process in the middle of its work: when its terminal is
/// closed, when a reader of its output ends, when a file reaches the system's maximum size, and, until
/// [`Reloads`] are caught, when a log rotation notifies it.
pub fn ignore_stray() {
    fail_long_writes();
    [libc::SIGHUP, libc::SIGPIPE, libc::SIGUSR1, libc::SIGUSR2].into_iter().for_each(ignore);
}

/// Lets a write fail when a file reaches the system's maximum size, instead of ending the process.
pub fn fail_long_writes() {
    ignore(libc::SIGXFSZ);
}

fn ignore(number: i32) {
    // SAFETY: SIG_IGN runs no code of ours.
    unsafe { libc::signal(number, libc::SIG_IGN) };
}

/// SIGHUP, which asks for certificates and the log's file to be opened anew.
pub struct Reloads(Signal);

impl Reloads {
    /// Catches the signal. To be called within a Tokio runtime.
    pub fn catch() -> Option<Self> {
        match signal(SignalKind::hangup()) {
            Ok(signal) => Some(Self(signal)),
            Err(error) => {
                tracing::warn!(%error, "SIGHUP cannot be caught; use CONFIG SET");
                None
            }
        }
    }

    /// Waits for the next one; returns false if there will be none.
    pub async fn next(&mut self) -> bool {
        self.0.recv().await.is_some()
    }
}

/// Signals that shut the server down in an orderly way: SIGTERM, SIGINT, SIGQUIT.
pub struct Stops {
    caught: Option<[Signal; 3]>,
    /// When a stop began, in which a further signal counts.
    begun: Option<Instant>,
}

impl Stops {
    /// Catches the signals: they do not end the process by themselves any more. To be called within
    /// a Tokio runtime.
    pub fn catch() -> Self {
        let caught = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
            signal(SignalKind::quit()),
        );
        let (Ok(term), Ok(int), Ok(quit)) = caught else {
            tracing::warn!("signals cannot be caught; stop the server by SHUTDOWN");
            return Self { caught: None, begun: None };
        };
        Self { caught: Some([term, int, quit]), begun: None }
    }

    /// Waits for a signal, and returns its name.
    pub async fn wait(&mut self) -> &'static str {
        let Some([term, int, quit]) = &mut self.caught else { return pending().await };
        tokio::select! {
            Some(()) = term.recv() => "SIGTERM",
            Some(()) = int.recv() => "SIGINT",
            Some(()) = quit.recv() => "SIGQUIT",
            else => pending().await,
        }
    }

    /// Forgets the signals that have come, and the stop that was taken back.
    pub async fn forget(&mut self) {
        self.begun = None;
        self.pass_over().await;
    }

    async fn pass_over(&mut self) {
        for signal in self.caught.iter_mut().flatten() {
            let _ = tokio::time::timeout(Duration::ZERO, signal.recv()).await;
        }
    }

    /// Waits, during the shutdown, for a SIGINT that demands an immediate end: as in Redis, the
    /// second one. Logs the other signals, because the server is stopping already. A later call goes on
    /// where one was given up.
    pub async fn insisted(&mut self) {
        let left = SAME.saturating_sub(self.begun.get_or_insert_with(Instant::now).elapsed());
        if !left.is_zero() {
            tokio::time::sleep(left).await;
            // Duplicates of the first.
            self.pass_over().await;
        }
        loop {
            match self.wait().await {
                "SIGINT" => return,
                name => tracing::info!("{name}: the server is stopping already"),
            }
        }
    }
}
