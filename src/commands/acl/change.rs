//! ACL SETUSER, DELUSER, LOAD and SAVE: changes of users, and the connections that a change closes.

use crate::acl::{Account, AccountChange, Accounts, AclFile, ExchangedAccounts};
use crate::clients::Client;
use crate::config::Settings;
use crate::node::Node;
use crate::pubsub::SubscriptionKind;
use crate::routing::{Call, CallOutcome, Waiting};
use flagstone_commands::{ErrorText, arg};
use flagstone_wire::resp::Args;
use std::collections::HashMap;
use std::sync::Arc;

const NO_FILE: &str = "ERR This instance is not configured to use an ACL file. You may want to \
    specify users via the ACL SETUSER command and then issue a CONFIG REWRITE (assuming you have a \
    configuration file set) in order to store users in the configuration.";
const NOT_SAVED: &str = "ERR There was an error trying to save the ACLs. Please check the server \
    logs for more information";
const NO_DEFAULT: &str = "ERR The 'default' user cannot be removed";
const ABANDONED: &str = "ERR the command was abandoned";

/// `ACL SETUSER name [rule …]`
pub(super) fn setuser(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let rules: Vec<&[u8]> = args.iter().skip(3).collect();
    let all_channels = cx.worker.settings().acl_pubsub_all;
    let changed =
        cx.node.access.accounts.change(arg(args, 2)?, &rules, all_channels).map_err(coded)?;
    close_listeners(cx, changed.as_slice());
    cx.out.ok();
    Ok(())
}

/// Adds the general code to an error that has none.
fn coded(text: Vec<u8>) -> ErrorText {
    if text.starts_with(b"OOM ") { text.into() } else { [b"ERR ", &text[..]].concat().into() }
}

/// `ACL DELUSER name [name …]`
pub(super) fn deluser(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let accounts = &cx.node.access.accounts;
    let names = || args.iter().skip(2);
    if names().any(|name| *name == *accounts.default_account().name) {
        return Err(NO_DEFAULT.into());
    }
    let removed = accounts.remove(names());
    close_removed(cx, &removed);
    cx.out.count(removed.len());
    Ok(())
}

/// `ACL LOAD`
pub(super) fn load<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let settings = cx.worker.settings();
        let (file, accounts) = (file_of(&settings)?, cx.node.access.accounts.clone());
        let _alone = cx.node.configuring.lock().await;
        let read = move || {
            let password = settings.requirepass.as_deref().map(str::as_bytes);
            let users = file.read(password, settings.acl_pubsub_all)?;
            accounts.exchange(users)
        };
        let done = cx.node.background.spawn_blocking(read).await.map_err(|_| ABANDONED)?;
        let ExchangedAccounts { removed, changes } = done.map_err(coded)?;
        close_removed(cx, &removed);
        close_listeners(cx, &changes);
        cx.out.ok();
        Ok(())
    })
}

/// `ACL SAVE`
pub(super) fn save<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let file = file_of(&cx.worker.settings())?;
        let accounts: Arc<Accounts> = cx.node.access.accounts.clone();
        let _alone = cx.node.configuring.lock().await;
        let write = move || file.save(&accounts);
        let saved = cx.node.background.spawn_blocking(write).await.map_err(|_| ABANDONED)?;
        saved.map_err(|error| {
            tracing::warn!("ACL SAVE: {error}");
            NOT_SAVED
        })?;
        cx.out.ok();
        Ok(())
    })
}

fn file_of(settings: &Settings) -> Result<AclFile, ErrorText> {
    let path = settings.aclfile.as_deref().ok_or(NO_FILE)?;
    Ok(AclFile::new(&settings.dir, path))
}

/// Closes the connections of removed accounts; this one once it has its reply.
fn close_removed(cx: &mut Call<'_>, removed: &[Arc<Account>]) {
    if removed.is_empty() {
        return;
    }
    let numbers: Vec<u64> = removed.iter().map(|account| account.number).collect();
    for client in cx.node.clients.all() {
        if client.account().is_some_and(|account| numbers.contains(&account.number)) {
            close(cx, &client);
        }
    }
}

fn close(cx: &mut Call<'_>, client: &Client) {
    if client.id == cx.session.client.id {
        cx.session.closing = true;
    } else {
        cx.node.clients.kill(client);
    }
}

/// Closes the connections that listen to channels which their users may not use any more.
fn close_listeners(cx: &mut Call<'_>, changes: &[AccountChange]) {
    let lost: HashMap<u64, &AccountChange> = changes
        .iter()
        .filter(|change| !change.after.covers_channels(&change.before))
        .map(|change| (change.account.number, change))
        .collect();
    if lost.is_empty() {
        return;
    }
    for client in listeners_of(cx.node, &lost) {
        close(cx, &client);
    }
}

fn listeners_of(node: &Node, lost: &HashMap<u64, &AccountChange>) -> Vec<Arc<Client>> {
    node.broadcast.pubsub.choose(|client, kind, name| {
        let number = client.account().map_or(0, |account| account.number);
        let is_pattern = kind == SubscriptionKind::Pattern;
        lost.get(&number).is_some_and(|change| !change.after.may_listen(name, is_pattern))
    })
}
