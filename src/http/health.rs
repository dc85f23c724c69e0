//! `/healthz` and `/readyz`: lives, and accepts writes.

use super::answer::typed;
use super::{LoadedServer, Site};
use crate::config::Settings;
use crate::followers::FailoverStep;
use crate::node::{Node, limits};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use flagstone_commands::{CommandFlags, flag};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const TEXT: &str = "text/plain; charset=utf-8";

/// `GET /healthz`: the process lives. A supervisor that restarts it for another answer than 200 does
/// harm while it is loading.
pub(super) async fn healthz() -> Response {
    typed(TEXT, "ok\n")
}

/// `GET /readyz`: 200 if the server accepts writes, else 503 with the reasons, one a line.
pub(super) async fn readyz(State(site): State<Arc<Site>>) -> Response {
    let reasons = reasons(&site);
    if reasons.is_empty() {
        return typed(TEXT, "ready\n");
    }
    (StatusCode::SERVICE_UNAVAILABLE, typed(TEXT, reasons.join("\n") + "\n")).into_response()
}

/// Returns the reasons why the server does not accept all writes now, or a replica all reads; none if
/// it does.
pub(super) fn reasons(site: &Site) -> Vec<String> {
    if site.is_ending.load(Ordering::Relaxed) {
        return vec!["the server is shutting down".to_owned()];
    }
    match site.loaded() {
        None => vec!["the server is loading: the journal is being replayed".to_owned()],
        Some(LoadedServer { node, .. }) => refused(node, &site.config.settings()),
    }
}

fn refused(node: &Node, settings: &Settings) -> Vec<String> {
    let mut reasons = Vec::new();
    if node.ending.is_asked() {
        reasons.push("the server is shutting down".to_owned());
    }
    if let Some(why) = node.journal.failed() {
        reasons.push(format!("the journal has failed, restart the server: {why}"));
    } else if node.journal.stats().refusing && !node.health.is_cut_off() {
        reasons.push("writes are refused: there is no space left for the journal".to_owned());
    }
    // A replica is there to be read.
    let is_read_only = node.health.replica.is_following() && settings.replica_read_only;
    let flags = if is_read_only { CommandFlags::empty() } else { flag!(WRITE | DENYOOM) };
    reasons.extend(limits::refusal(&node.health, settings, flags).map(str::to_owned));
    for shard in node.health.stalls.list() {
        let why = node.health.stalls.why(shard).unwrap_or_default();
        reasons.push(format!("shard {shard} cannot store rows: {why}"));
    }
    for (shard, why) in node.cluster.iter().flat_map(|cluster| cluster.sight.untaken()) {
        reasons.push(format!("shard {shard} of this server cannot be taken: {why}"));
    }
    if node.followers.failover.step() != FailoverStep::None {
        reasons.push("writes wait for a failover".to_owned());
    }
    if let Some(pause) = node.pauses.of_clients() {
        let until = pause.until_ms.saturating_sub(node.clock.now_ms());
        reasons.push(format!("clients are paused for {until} ms more"));
    }
    if node.code.scripts.running.busy().is_some() {
        reasons.push("a script runs for longer than busy-reply-threshold".to_owned());
    }
    reasons
}
