//! `/metrics`: figures of the server as OpenMetrics text.
//!
//! The number of series is bounded: labels are workers, shards, databases' kinds of work and names
//! of commands that have run, never keys, clients or texts that clients choose.

mod clusters;
mod process;
mod storage;
mod text;
mod workers;

use super::access::Caller;
use super::answer::{Denial, typed};
use super::{Site, errand, health};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use std::sync::Arc;
use text::MetricsText;

const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `GET /metrics`.
pub(super) async fn metrics(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Denial> {
    errand::may_see(&site, &caller).await?;
    Ok(typed(CONTENT, render(&site)))
}

fn render(site: &Site) -> String {
    let mut text = MetricsText::default();
    let is_ready = health::reasons(site).is_empty();
    text.gauge("ready", "1 while all writes are accepted, as /readyz tells.")
        .value(u8::from(is_ready));
    if let Some(running) = site.loaded() {
        workers::put(&mut text, running);
        storage::put(&mut text, running);
        process::put(&mut text, running, &site.counters);
        clusters::put(&mut text, &running.node);
    }
    text.finish()
}
