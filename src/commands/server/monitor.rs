//! MONITOR.

use crate::routing::{Call, CallOutcome};
use flagstone_wire::resp::Args;

/// `MONITOR`: shows every command to the connection from now on. A connection that monitors already
/// gets no reply, as in the reference.
pub(super) fn monitor(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    if cx.session.in_exec {
        return Err("ERR MONITOR isn't allowed for DENY BLOCKING client".into());
    }
    if cx.session.monitoring.is_none() {
        cx.session.monitoring = Some(cx.node.broadcast.monitors.add(&cx.session.client));
        cx.out.ok();
    }
    Ok(())
}
