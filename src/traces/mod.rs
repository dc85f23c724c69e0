//! Traces of work that took long, for a collector: a span for each command of the slow log, and for
//! each event of the latency monitor but commands. The build feature `otlp` sends them; without it,
//! nothing is recorded.

#[cfg(feature = "otlp")]
mod otlp;

use flagstone_storage::latency::{LATENCY, LatencyEvent};
use std::time::Duration;

/// Sends the spans; there is none without the build feature `otlp`.
#[derive(Debug)]
pub struct Sending {
    #[cfg(feature = "otlp")]
    _sender: otlp::SpanSender,
}

/// Begins to send spans, if the environment names a collector (`OTEL_EXPORTER_OTLP_ENDPOINT`). Those
/// that are not sent yet are sent when the result is dropped.
pub fn begin() -> Option<Sending> {
    #[cfg(feature = "otlp")]
    let sending = otlp::SpanSender::from_environment().map(|_sender| Sending { _sender });
    #[cfg(not(feature = "otlp"))]
    let sending: Option<Sending> = None;
    if sending.is_some() {
        LATENCY.set_observer(event);
    }
    sending
}

/// Records an event that has just ended, at a time in microseconds since the Unix epoch.
fn event(event: LatencyEvent, took: Duration, end_us: u64) {
    // The slow log has commands with their names.
    if !matches!(event, LatencyEvent::Command | LatencyEvent::FastCommand) {
        record(Work { name: event.name(), client: None, took, end_us });
    }
}

/// Records a command that was slow.
pub(crate) fn slow_command(name: &'static str, client: &str, took: Duration, end_us: u64) {
    record(Work { name, client: Some(client), took, end_us });
}

/// Work that has ended.
#[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "nothing reads it"))]
struct Work<'a> {
    /// Name of the command or of the event.
    name: &'static str,
    /// Address of the client whose command it is; `None`: it is no command.
    client: Option<&'a str>,
    took: Duration,
    /// Time of its end in microseconds since the Unix epoch.
    end_us: u64,
}

#[cfg(feature = "otlp")]
fn record(work: Work<'_>) {
    otlp::record(&work);
}

#[cfg(not(feature = "otlp"))]
fn record(_: Work<'_>) {}
