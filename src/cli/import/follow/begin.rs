//! The beginning of a move: is it possible, and then REPLICAOF.

use super::side::{InfoText, Pair};
use super::watch::{is_following, primary_of};
use anyhow::{Context, Result, bail};

/// Settings of the target that the link to the source takes.
const SETTINGS: [&str; 3] = ["masteruser", "masterauth", "tls-replication"];

/// The state of both servers before the move.
pub(super) struct Beginning {
    /// Keys of the source.
    pub(super) keys: u64,
    /// True if the target follows the source already.
    pub(super) is_following: bool,
}

/// Settings of the target that were changed, with their values before.
pub(super) struct FormerSettings {
    changed: Vec<(&'static str, String)>,
    /// False if the target followed the source before, by an earlier run perhaps.
    are_known: bool,
}

/// Checks that the servers are two, and the target one that can follow the source.
///
/// # Errors
/// If not, with the remedy.
pub(super) fn check(pair: &mut Pair) -> Result<Beginning> {
    let (source, target) = (pair.source.info("server")?, pair.target.info("server")?);
    let (from, to) = (pair.source.name.clone(), pair.target.name.clone());
    if source.text("run_id") == target.text("run_id") && !source.text("run_id").is_empty() {
        bail!("{from} and {to} are the same server: name the new one by --port or --to");
    }
    if target.text("flagstone_version").is_empty() {
        bail!(
            "{to} is no Flagstone server (it says redis_version {}): name the new one by --port or --to",
            target.text("redis_version")
        );
    }
    if pair.target.info("cluster")?.text("cluster_enabled") == "1" {
        bail!(
            "{to} is in cluster mode, in which it cannot follow another server: start it without `cluster-enabled`"
        );
    }
    if pair.source.address.tcp().is_none() {
        bail!("{to} reaches a source by TCP only: name it by redis:// or rediss://");
    }
    let databases = pair.source.info("keyspace")?.databases()?;
    let needed = databases.iter().map(|(number, _)| number + 1).max().unwrap_or(0);
    let has: u64 = pair.target.directive("databases")?.parse().context("`databases`")?;
    if needed > has {
        bail!(
            "{from} has keys in database {}, but {to} has {has} databases: start it with `databases {needed}`",
            needed - 1
        );
    }
    let keys = databases.iter().map(|(_, keys)| keys).sum();
    let replication = pair.target.info("replication")?;
    Ok(Beginning { keys, is_following: is_following(&replication, pair) })
}

/// Checks that nothing of the target's own gets lost.
///
/// # Errors
/// If something would.
pub(super) fn check_replaced(pair: &mut Pair, replace: bool) -> Result<()> {
    let to = pair.target.name.clone();
    let replication = pair.target.info("replication")?;
    let is_replica = replication.text("role") == "slave";
    if is_replica && !replace && !has_stream_of_source(pair, &replication)? {
        let primary = primary_of(&replication);
        bail!("{to} follows {primary} already: run REPLICAOF NO ONE there first, or use --replace");
    }
    let databases = pair.target.info("keyspace")?.databases()?;
    let keys: u64 = databases.iter().map(|(_, keys)| keys).sum();
    if !is_replica && !replace && keys > 0 {
        bail!(
            "{to} has {keys} keys, and following another server deletes them: if they are to go, use --replace"
        );
    }
    let libraries = pair.target.info("memory")?.number("number_of_libraries");
    if !is_replica && !replace && libraries > 0 {
        bail!(
            "{to} has {libraries} libraries of functions, and following another server deletes them: if they \
            are to go, use --replace"
        );
    }
    Ok(())
}

/// Returns true if the target copies the source, under whatever address.
fn has_stream_of_source(pair: &mut Pair, target: &InfoText) -> Result<bool> {
    let source = pair.source.info("replication")?;
    Ok(source.text("master_replid") == target.text("master_replid"))
}

/// Says what may surprise about the source.
///
/// # Errors
/// If it cannot be reached; if it is a replica, and `switches`.
pub(super) fn check_role(pair: &mut Pair, switches: bool) -> Result<()> {
    let from = pair.source.name.clone();
    let replication = pair.source.info("replication")?;
    if replication.text("role") == "slave" {
        let primary = primary_of(&replication);
        if switches {
            bail!(
                "{from} is itself a replica, of {primary}, whose writers cannot be held there: move from {primary}"
            );
        }
        say!("{from} is itself a replica, of {primary}: --switch needs the primary");
    }
    if switches && pair.target.directive("repl-ack").is_ok_and(|level| level != "none") {
        bail!(
            "{} has repl-ack, and no replica of its own yet: nobody could read or write there after the \
            switch. Run CONFIG SET repl-ack none there, and set it again once it has a replica",
            pair.target.name
        );
    }
    if pair.source.info("cluster")?.text("cluster_enabled") == "1" {
        say!("{from} is a node of a cluster: only the keys of its slots are moved");
    }
    Ok(())
}

/// Makes the target follow the source.
///
/// # Errors
/// If it refuses. Its settings are then those from before.
pub(super) fn follow(pair: &mut Pair, beginning: &Beginning) -> Result<FormerSettings> {
    let former = FormerSettings { changed: set(pair)?, are_known: !beginning.is_following };
    let (host, port, _) = pair.source.address.tcp().context("the source has no host")?;
    let (host, port) = (host.to_owned(), port.to_string());
    if beginning.is_following {
        // It may be loading the data set, and takes no command then.
        return Ok(former);
    }
    let told = pair.target.call(&[b"REPLICAOF", host.as_bytes(), port.as_bytes()]);
    if let Err(error) = told {
        let restored = former.restore(pair);
        restored.with_context(|| format!("{error:#}; its settings stay changed, too"))?;
        return Err(error.context(format!(
            "{} cannot follow {}: the user needs the right to run REPLICAOF, CONFIG and INFO",
            pair.target.name, pair.source.name
        )));
    }
    Ok(former)
}

/// Gives the target the login for the source. Returns the settings that this has changed, with their
/// values before.
fn set(pair: &mut Pair) -> Result<Vec<(&'static str, String)>> {
    let (user, pass) = pair.source.address.login();
    let is_secure = pair.source.address.tcp().is_some_and(|(_, _, is_secure)| is_secure);
    let tls = if is_secure { "yes" } else { "no" };
    let wanted = [user.to_owned(), pass.to_owned(), tls.to_owned()];
    let mut changed = Vec::new();
    let mut command = vec![b"CONFIG".to_vec(), b"SET".to_vec()];
    for (name, value) in SETTINGS.into_iter().zip(wanted) {
        let present = pair.target.directive(name)?;
        if present != value {
            command.extend([name.as_bytes().to_vec(), value.into_bytes()]);
            changed.push((name, present));
        }
    }
    if !changed.is_empty() {
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        pair.target.call(&words)?;
    }
    Ok(changed)
}

impl FormerSettings {
    /// Sets the values from before. Returns false if an earlier run has changed them, so that they are
    /// not known.
    ///
    /// # Errors
    /// If the target refuses, or cannot be reached.
    pub(super) fn restore(&self, pair: &mut Pair) -> Result<bool> {
        if !self.changed.is_empty() {
            let mut command: Vec<&[u8]> = vec![b"CONFIG", b"SET"];
            for (name, value) in &self.changed {
                command.extend([name.as_bytes(), value.as_bytes()]);
            }
            pair.target.call(&command)?;
        }
        Ok(self.are_known)
    }
}
