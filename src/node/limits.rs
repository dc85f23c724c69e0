//! Refuses commands because of the node's health, for every client. Connections ask before a
//! command runs, scripts before they run and before each command that they call.

use super::Health;
use super::health::{CHOKED, CUT_OFF, DISOWNED};
use crate::config::{MaxmemoryPolicy, Settings};
use crate::stalls::JOURNAL_FULL;
use flagstone_commands::{CommandFlags, flag};

const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
const NO_REPLICAS: &str = "NOREPLICAS Not enough good replicas to write.";

/// Returns true if some commands are refused now.
#[inline]
pub fn any(health: &Health, settings: &Settings) -> bool {
    health.is_over_maxmemory()
        || health.is_pressed()
        || health.is_cut_off()
        || health.is_disowned()
        || health.stalls.any()
        || lacks_replicas(settings)
}

/// Returns the error if a command with these flags is refused.
pub fn refusal(health: &Health, settings: &Settings, flags: CommandFlags) -> Option<&'static str> {
    let needs_memory = flags.contains(flag!(DENYOOM));
    if needs_memory && health.is_over_maxmemory() {
        Some(OUT_OF_MEMORY)
    } else if needs_memory && health.is_choked() {
        Some(CHOKED)
    } else if flags.contains(flag!(WRITE)) && health.is_cut_off() {
        Some(CUT_OFF)
    } else if flags.contains(flag!(WRITE)) && health.stalls.refuses_all_writes() {
        Some(JOURNAL_FULL)
    } else if !flags.contains(flag!(STALE)) && health.is_disowned() && !settings.serve_stale_data {
        Some(DISOWNED)
    } else if flags.contains(flag!(WRITE)) && lacks_replicas(settings) {
        Some(NO_REPLICAS)
    } else {
        None
    }
}

/// Returns true if writes need replicas, of which there are none.
fn lacks_replicas(settings: &Settings) -> bool {
    settings.min_replicas_to_write > 0 && settings.min_replicas_max_lag > 0
}

/// Returns true if the memory in use has to be compared with `maxmemory`.
pub fn watches_memory(settings: &Settings) -> bool {
    settings.maxmemory > 0 && settings.maxmemory_policy == MaxmemoryPolicy::Noeviction
}
