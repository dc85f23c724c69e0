//! The dashboard: a page with its style and its script, and the words that it shows beside the
//! metrics. It asks for nothing from elsewhere.

use super::access::Caller;
use super::answer::{Denial, json, typed};
use super::{Site, clusters, health, rights};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde_json::json as object;
use std::sync::Arc;

const PAGE: &str = include_str!("dashboard/index.html");
const STYLE: &str = include_str!("dashboard/dashboard.css");
const SCRIPT: &str = include_str!("dashboard/dashboard.js");

/// The page. It has no data, so it needs no password, and says if others do.
pub(super) fn page(site: &Site) -> Response {
    let page = match site.accounts.needs_password() {
        true => PAGE.replacen("data-password=\"none\"", "data-password=\"needed\"", 1),
        false => PAGE.to_owned(),
    };
    typed("text/html; charset=utf-8", page)
}

/// `GET /dashboard.css`.
pub(super) async fn style() -> Response {
    typed("text/css; charset=utf-8", STYLE)
}

/// `GET /dashboard.js`.
pub(super) async fn script() -> Response {
    typed("text/javascript; charset=utf-8", SCRIPT)
}

/// `GET /status`: facts that are no figures, as JSON.
pub(super) async fn status(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Denial> {
    let _work = rights::may_see(&site, &caller).await?;
    let Some(loaded) = site.loaded() else {
        return Err(Denial::unavailable("LOADING Flagstone is loading the dataset in memory"));
    };
    let (node, settings) = (&loaded.node, site.config.settings());
    let store = &node.checkpoints.source.store;
    let dir = store.dir().unwrap_or(&settings.dir).display().to_string();
    Ok(json(
        object!({
            "version": env!("CARGO_PKG_VERSION"),
            "reasons": health::reasons(&site),
            "now_ms": node.clock.now_ms(),
            "appendfsync": settings.appendfsync.as_str(),
            "store": store.to_string(),
            "store_remote": store.dir().is_none(),
            "journal_remote": node.journal.is_remote(),
            "owner": node.health.owns_store(),
            "primary": node.health.replica.link().primary.as_ref().map(ToString::to_string),
            "dir": dir,
            "archive_s": settings.journal_archive_retention_seconds,
            "checkpoint_interval_s": settings.checkpoint_interval_seconds,
            "cluster": node.cluster.as_ref().map(|cluster| clusters::described(node, cluster)),
        })
        .to_string(),
    ))
}
