//! The accounts at the start: those of the configuration, or of the file of users.

use super::accounts::Accounts;
use super::file::AclFile;
use crate::config::{Config, UserLine};

const BOTH: &str = "there are users in the configuration and an aclfile: declare users in one of \
    them only";

/// Returns the accounts of a configuration. They may take `max_bytes` of memory.
///
/// # Errors
/// The reason why they are refused, without secrets.
pub fn load_accounts(config: &Config, max_bytes: usize) -> Result<Accounts, String> {
    let settings = config.settings();
    let password = settings.requirepass.as_deref().map(str::as_bytes);
    let accounts = Accounts::new(password, max_bytes);
    let all_channels = settings.acl_pubsub_all;
    if let Some(path) = &settings.aclfile {
        if !config.users().is_empty() {
            return Err(BOTH.to_owned());
        }
        let file = AclFile::new(&settings.dir, path);
        file.read(password, all_channels)
            .and_then(|users| accounts.exchange(users))
            .map_err(|text| String::from_utf8_lossy(&text).into_owned())?;
    }
    for line in config.users() {
        add(&accounts, line, all_channels)?;
    }
    Ok(accounts)
}

fn add(accounts: &Accounts, line: &UserLine, all_channels: bool) -> Result<(), String> {
    let shown = String::from_utf8_lossy(&line.name);
    let rules: Vec<&[u8]> = line.rules.iter().map(|rule| &**rule).collect();
    // The default user is there already.
    let reset = [&b"reset"[..]].into_iter().filter(|_| *line.name == *b"default");
    let rules: Vec<&[u8]> = reset.chain(rules).collect();
    accounts.change(&line.name, &rules, all_channels).map_err(|text| {
        let text = String::from_utf8_lossy(&text);
        // A rule may be a password.
        let reason = text.rsplit_once("': ").map_or(&*text, |(_, reason)| reason);
        format!("{}\n>>> 'user {shown} ***'\n{reason}", line.origin)
    })?;
    let is_on = accounts.get(&line.name).is_some_and(|account| account.user().is_on);
    if !is_on {
        tracing::info!(
            "the user '{shown}' is disabled: there is no 'on' in its rules; make sure that this is \
            meant"
        );
    }
    Ok(())
}
