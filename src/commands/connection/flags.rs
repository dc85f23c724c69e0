//! Flags that commands on the connection share.

use flagstone_commands::flag;

/// Flags of most commands on connections.
pub(super) const ANY_TIME: u32 = flag::NOSCRIPT | flag::LOADING | flag::STALE;
