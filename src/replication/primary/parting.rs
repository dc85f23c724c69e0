//! Waits for the replicas before this server ends, so that one of them can go on with everything.

use super::feeder::ask_for_acknowledgements;
use crate::followers::{Follower, FollowerState};
use crate::node::{Node, PauseReason};
use crate::worker::Peers;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Interval of the looks at the replicas, and of the questions to them.
const POLL: Duration = Duration::from_millis(10);
const ASK: Duration = Duration::from_millis(200);

/// Returns the replicas that do not have all changes yet.
fn behind(node: &Node) -> Vec<Arc<Follower>> {
    let followers = &node.followers;
    let end = followers.offset_of(followers.feed.last_change());
    let mut all = followers.all();
    all.retain(|follower| follower.state() == FollowerState::Online);
    all.retain(|follower| end.is_none_or(|end| !follower.has(end, false)));
    all
}

/// Holds writes until all replicas that follow have everything, or `shutdown-timeout` is over. Writes
/// stay held.
pub(crate) async fn see_off(node: &Node, peers: &Peers) {
    if !node.followers.has_online() {
        return;
    }
    let limit = Duration::from_secs(node.config.settings().shutdown_timeout_seconds);
    let begun = Instant::now();
    node.ending.waits_until(node.clock.now_ms().saturating_add(limit.as_millis() as u64));
    node.pauses.hold_writes(PauseReason::Shutdown);
    // Commands that were admitted end first.
    sleep(POLL).await;
    let mut asked = None::<Instant>;
    loop {
        let left = behind(node);
        if left.is_empty() {
            tracing::info!("all replicas have everything");
            return;
        }
        if begun.elapsed() >= limit {
            let addresses = left.iter().map(|one| format!("{}:{}", one.facts.ip, one.facts.port));
            let replicas = addresses.collect::<Vec<_>>().join(", ");
            tracing::warn!(
                replicas,
                seconds = limit.as_secs(),
                "the server ends although replicas lack the last writes (shutdown-timeout)"
            );
            return;
        }
        if asked.is_none_or(|asked| asked.elapsed() >= ASK) {
            asked = Some(Instant::now());
            node.journal.request_sync(node.journal.end());
            let _ = ask_for_acknowledgements(peers).await;
        }
        sleep(POLL).await;
    }
}
