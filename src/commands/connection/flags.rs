//! Flags that commands on the connection share.

use flagstone_commands::{CommandFlags, flag};

/// Flags of most commands on connections.
pub(super) const ANY_TIME: CommandFlags = flag!(NOSCRIPT | LOADING | STALE);
