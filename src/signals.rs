//! The signals that the process gets: those that end the server, and those that must not.

use std::future::pending;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that follows another one this fast is the same one, sent twice: to the process and to
/// its group.
const SAME: Duration = Duration::from_secs(1);

/// Keeps the process alive where a signal would end it without its knowledge: when its terminal is
/// closed, when a reader of its output is gone, when a file is as large as the system allows (the
/// write fails then), and when something that rotates logs thinks that it has to be told.
pub fn ignore_stray() {
    let stray = [libc::SIGHUP, libc::SIGPIPE, libc::SIGXFSZ, libc::SIGUSR1, libc::SIGUSR2];
    for number in stray {
        // SAFETY: SIG_IGN runs no code of ours.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
}

/// The signals that end the server in an orderly way: SIGTERM, SIGINT, SIGQUIT.
pub struct Stops(Option<[Signal; 3]>);

impl Stops {
    /// From here on they do not end the process by themselves. Within a Tokio runtime.
    pub fn catch() -> Self {
        let caught = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
            signal(SignalKind::quit()),
        );
        let (Ok(term), Ok(int), Ok(quit)) = caught else {
            tracing::warn!("signals cannot be caught; stop the server by SHUTDOWN");
            return Self(None);
        };
        Self(Some([term, int, quit]))
    }

    /// Waits for one of them; its name.
    pub async fn wait(&mut self) -> &'static str {
        let Some([term, int, quit]) = &mut self.0 else { return pending().await };
        tokio::select! {
            Some(()) = term.recv() => "SIGTERM",
            Some(()) = int.recv() => "SIGINT",
            Some(()) = quit.recv() => "SIGQUIT",
            else => pending().await,
        }
    }

    /// Waits, while the server stops, for a SIGINT of somebody who does not want to wait: as in
    /// Redis, the second one. Tells the others that the server is stopping already.
    pub async fn insisted(&mut self) {
        tokio::time::sleep(SAME).await;
        if let Some(signals) = &mut self.0 {
            // What came meanwhile is the first one again.
            for signal in signals {
                let _ = tokio::time::timeout(Duration::ZERO, signal.recv()).await;
            }
        }
        loop {
            match self.wait().await {
                "SIGINT" => return,
                name => tracing::info!("{name}: the server is stopping already"),
            }
        }
    }
}
