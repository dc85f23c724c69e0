//! Refuses commands because of the node's health, for every client. Connections ask before a
//! command runs, scripts before they run and before each command that they call.

use super::Health;
use super::health::{CHOKED, INCOMPLETE, NO_ROOM};
use crate::command::Request;
use crate::config::Settings;
use crate::stalls::JOURNAL_FULL;
use flagstone_commands::{CommandFlags, flag};
use std::sync::atomic::Ordering;

const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const READ_ONLY: &str = "READONLY You can't write against a read only replica.";
pub(crate) const LOADING: &str = "LOADING Valkey is loading the dataset in memory";
const LINK_DOWN: &str =
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
const UNHEARD: &str =
    "NOREPLICAS This server takes over once it has heard other replicas (repl-group-size).";
const NO_REPLICAS: &str = "NOREPLICAS Not enough good replicas to write.";

/// Returns true if some commands are refused now.
#[inline]
pub fn any(health: &Health, settings: &Settings) -> bool {
    health.data_set.is_full()
        || health.is_pressed()
        || health.is_cut_off()
        || health.is_disowned()
        || health.stalls.any()
        || health.short_of_disk.load(Ordering::Relaxed)
        || !health.replica.is_plain_primary()
        || lacks_replicas(health, settings)
}

/// Returns the error if a command with these flags is refused.
pub fn refusal(health: &Health, settings: &Settings, flags: CommandFlags) -> Option<&'static str> {
    let needs_memory = flags.contains(flag!(DENYOOM));
    // A replica has the keys of its primary.
    if needs_memory && health.data_set.is_full() && !health.replica.is_following() {
        Some(OUT_OF_MEMORY)
    } else if needs_memory && health.is_choked() {
        Some(CHOKED)
    } else if flags.contains(flag!(WRITE)) && health.is_cut_off() {
        Some(health.cut_off_text())
    } else if needs_memory && health.short_of_disk.load(Ordering::Relaxed) {
        Some(NO_ROOM)
    } else if flags.contains(flag!(WRITE)) && health.stalls.refuses_all_writes() {
        Some(JOURNAL_FULL)
    } else if flags.contains(flag!(WRITE)) && lacks_replicas(health, settings) {
        Some(NO_REPLICAS)
    } else if let Some(text) = health.disowned(flags)
        && !health.shows_stale(settings)
    {
        Some(text)
    } else if !health.replica.is_plain_primary() {
        refusal_of_replica(health, settings, flags)
    } else {
        None
    }
}

/// Returns the error if a client's command with these flags was admitted, but may not write any more:
/// it has waited while the server became a replica. The roles are exchanged while every worker is held,
/// so a command that has its locks runs on one side of that.
#[inline]
pub fn refused_late(
    health: &Health,
    settings: &Settings,
    request: &Request,
    flags: CommandFlags,
) -> Option<&'static str> {
    let writes = flags & flag!(WRITE);
    if !health.replica.is_following() || writes.is_empty() || request.is_of_stream() {
        return None;
    }
    refusal(health, settings, writes)
}

/// Returns the error if a replica, or a server that has only a part of a primary's data, refuses a command with these flags.
fn refusal_of_replica(
    health: &Health,
    settings: &Settings,
    flags: CommandFlags,
) -> Option<&'static str> {
    let is_following = health.replica.is_following();
    let has_data = flags.contains(flag!(READONLY)) || flags.contains(flag!(WRITE));
    if has_data && health.replica.is_undecided() {
        return Some(LOADING);
    }
    let is_succeeding = health.replica.is_succeeding();
    if is_succeeding && flags.contains(flag!(WRITE)) {
        Some(UNHEARD)
    } else if is_succeeding && flags.contains(flag!(READONLY)) && !settings.serve_stale_data {
        Some(INCOMPLETE)
    } else if is_following
        && flags.contains(flag!(WRITE))
        && (settings.replica_read_only || health.is_clustered())
    {
        Some(READ_ONLY)
    } else if is_following
        && !flags.contains(flag!(STALE))
        && !settings.replica_serve_stale_data
        && !health.replica.is_up()
    {
        Some(LINK_DOWN)
    } else if !flags.contains(flag!(LOADING)) && health.replica.is_loading() {
        Some(LOADING)
    } else {
        None
    }
}

/// Returns true if writes need more replicas than there are good ones.
#[inline]
fn lacks_replicas(health: &Health, settings: &Settings) -> bool {
    if health.is_unconfirmed() {
        return true;
    }
    let wanted = settings.min_replicas_to_write as usize;
    wanted > 0 && settings.min_replicas_max_lag > 0 && health.good_replicas() < wanted
}
