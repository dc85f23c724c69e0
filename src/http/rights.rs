//! Rights of callers to pages that run no command.
//!
//! Passwords and rights are checked without a session: such a page is for the times in which sessions
//! wait, are refused, or get no answer (CLIENT PAUSE, a script that runs for long, `maxclients`).

use super::Site;
use super::access::{Caller, Credentials};
use super::answer::Denial;
use super::errand::{called, kept_back, may_log_in};
use super::serve::SeatedWork;
use crate::acl::{Account, DenialContext, DenialReason, DeniedAccess};
use crate::command::registry;
use flagstone_wire::resp::OwnedArgs;
use std::sync::Arc;

/// Checks that a caller may run INFO, which shows the same figures as the port. The caller keeps its
/// connection as long as the result is kept.
///
/// # Errors
/// The caller may not, or is unknown.
pub(super) async fn may_see(site: &Site, caller: &Caller) -> Result<SeatedWork, Denial> {
    may_run(site, caller, [called("info")?, b"modules"]).await
}

/// Checks that a caller may run SLOWLOG, a command of administrators that changes nothing.
///
/// # Errors
/// The caller may not, or is unknown.
pub(super) async fn may_administer(site: &Site, caller: &Caller) -> Result<SeatedWork, Denial> {
    may_run(site, caller, [called("slowlog")?, b"len"]).await
}

async fn may_run(site: &Site, caller: &Caller, words: [&[u8]; 2]) -> Result<SeatedWork, Denial> {
    let account = match &caller.credentials {
        Some(given) => log_in(site, caller, given).await?,
        None if site.accounts.needs_password() => {
            return Err(Denial::unauthorized("NOAUTH Authentication required."));
        }
        None => site.accounts.default_account().clone(),
    };
    let words: OwnedArgs = words.into_iter().collect();
    let args = words.args();
    let command = registry::resolve(args);
    let command = command.ok_or_else(|| Denial::unavailable("ERR there is no such command"))?;
    if !account.is_free()
        && let Err(denied) = account.user().check(command, args)
    {
        let context = DenialContext::TopLevel;
        log(site, caller, DeniedAccess::of(denied, (command, args), context, &account.name));
        let text = denied.text(&account.name, command);
        return Err(Denial::forbidden(format!("NOPERM {}", String::from_utf8_lossy(&text))));
    }
    Ok(caller.seat.begin_work())
}

/// Returns the account of credentials. The answer to wrong ones is kept back.
async fn log_in(site: &Site, caller: &Caller, given: &Credentials) -> Result<Arc<Account>, Denial> {
    may_log_in(caller)?;
    if let Some(account) = site.accounts.log_in(&given.user, &given.password) {
        site.guard.right(caller.ends.peer.ip());
        return Ok(account);
    }
    if let Some(running) = site.loaded() {
        running.node.clients.refusals.wrong_password(&caller.ends.peer.into());
    }
    let (reason, context) = (DenialReason::Auth, DenialContext::TopLevel);
    let login = called("auth").unwrap_or_default();
    log(site, caller, DeniedAccess::new(reason, context, login, &given.user));
    let text = "WRONGPASS invalid username-password pair or user is disabled.";
    Err(kept_back(site, caller, text).await)
}

/// Notes a denial, as for a client of this address.
fn log(site: &Site, caller: &Caller, access: DeniedAccess) {
    let Some(running) = site.loaded() else { return };
    let (node, max) = (&running.node, site.config.settings().acllog_max_len);
    let describe = || format!("addr={} laddr={}", caller.ends.peer, caller.ends.local);
    node.access.denials.add(access, 1, describe, node.clock.now_ms(), max);
}
