//! Accesses that users of access control are denied.

use super::Node;
use crate::acl::DeniedAccess;
use crate::clients::Client;
use crate::command::{Command, Request};
use crate::config::Settings;
use flagstone_wire::resp::Args;

impl Node {
    /// Logs and counts `times` equal denials of a client, which may be gone.
    pub fn log_denial(
        &self,
        access: DeniedAccess,
        times: u64,
        client: Option<&Client>,
        settings: &Settings,
    ) {
        let now_ms = self.clock.now_ms();
        let describe = || {
            let mut line = String::new();
            if let Some(client) = client {
                client.describe(now_ms, true, &mut line);
            }
            line
        };
        self.access.denials.add(access, times, describe, now_ms, settings.acllog_max_len);
    }

    /// Returns true if the user of a request may read keys that a command does not name.
    #[inline]
    pub fn reads_all(&self, request: Request, command: &Command, args: Args<'_>) -> bool {
        request.account == 0
            || !command.undeclared_keys
            || self.access.accounts.reads_all(request.account, command, args)
    }
}
