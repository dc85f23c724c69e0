//! `/metrics`: figures of the server as OpenMetrics text, or as the older text of Prometheus.
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
use super::{Site, health, rights};
use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use axum::response::Response;
use std::sync::Arc;
use text::{MetricsForm, MetricsText};

/// `GET /metrics`.
pub(super) async fn metrics(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Response, Denial> {
    let _work = rights::may_see(&site, &caller).await?;
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let form = MetricsForm::accepted_by(accept.unwrap_or_default());
    Ok(typed(form.content(), render(&site, form)))
}

fn render(site: &Site, form: MetricsForm) -> String {
    let mut text = MetricsText::new(form);
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
