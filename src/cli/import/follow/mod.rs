//! `flagstone import --follow`: moves a server that runs, which the target follows as its replica until
//! clients move over.
//!
//! The command is a client of both servers: the target itself copies the data. So it may be ended and
//! started again at any time.

mod begin;
mod compare;
mod interrupt;
mod side;
mod switch;
mod watch;

use super::ImportArguments;
use anyhow::{Context, Result, bail};
use compare::CompareMode;
use interrupt::{Interrupt, Interrupted};
use side::{Pair, Side};
use std::time::Duration;
use watch::LinkWatch;

/// Options of a move.
#[derive(clap::Args)]
pub(super) struct MoveArguments {
    /// Move a running server in: follow it as its replica
    #[arg(
        long,
        value_name = "redis[s]://[[user]:password@]host[:port]",
        conflicts_with_all = ["file", "skip"]
    )]
    follow: Option<String>,
    /// When the target is in step: hold the source's writers, compare all keys, and if all are equal,
    /// make the target a primary
    #[arg(long, requires = "follow", conflicts_with = "file")]
    switch: bool,
    /// Compare all keys of both servers as they are, and do nothing else
    #[arg(long, requires = "follow", conflicts_with_all = ["file", "switch", "replace"])]
    compare: bool,
    /// Maximum time for which --switch holds writers
    #[arg(long, requires = "switch", value_name = "SECONDS", default_value_t = 300)]
    hold: u64,
}

impl MoveArguments {
    /// Returns the URI of the server that is to be followed.
    pub(super) fn source(&self) -> Option<&str> {
        self.follow.as_deref()
    }
}

/// Runs the move.
///
/// # Errors
/// If one of the servers cannot be used for it, or the switch fails.
pub(super) fn run(arguments: &ImportArguments, uri: &str) -> Result<()> {
    let options = &arguments.moving;
    let source = arguments.server.elsewhere(uri).context("--follow")?;
    let target = arguments.server.address(arguments.to.as_deref())?;
    if source.database.is_some() || target.database.is_some() {
        bail!("all databases are moved, each into that of its number: name none in the URI");
    }
    let interrupt = Interrupt::catch()?;
    let hint = "the target is named by --port or --to, its password by --pass";
    let target = Side::connect("target", target, hint)?;
    let hint = "user and password stand in the URI, redis://user:password@host:port";
    let mut pair = Pair { source: Side::connect("source", source, hint)?, target };
    let beginning = begin::check(&mut pair)?;
    if options.compare {
        return compare(&mut pair, &interrupt, arguments.quiet);
    }
    begin::check_role(&mut pair, options.switch)?;
    if !beginning.is_following {
        begin::check_replaced(&mut pair, arguments.replace)?;
    }
    let former = begin::follow(&mut pair, &beginning)?;
    if !arguments.quiet {
        say!("{} follows {}", pair.target.name, pair.source.name);
    }
    let mut watch = LinkWatch::new(&interrupt, beginning.keys, arguments.quiet);
    let mut is_in_step = false;
    let done = watch.until_in_step(&mut pair).and_then(|()| {
        is_in_step = true;
        if options.switch {
            let limits = (Duration::from_secs(options.hold), arguments.quiet);
            return switch::run(&mut pair, &former, &interrupt, limits);
        }
        if !arguments.quiet {
            say!("Ctrl-C ends this command, and the target follows on");
        }
        watch.stay(&mut pair)
    });
    match done {
        Err(error) if error.is::<Interrupted>() => {
            say!("{}", way_on(&pair, uri_of(&pair), arguments));
            // To stay until then was the wish.
            if is_in_step && !options.switch { Ok(()) } else { Err(error) }
        }
        done => done,
    }
}

/// Returns the source's URI without the login.
fn uri_of(pair: &Pair) -> String {
    let is_secure = pair.source.address.tcp().is_some_and(|(_, _, is_secure)| is_secure);
    let scheme = if is_secure { "rediss" } else { "redis" };
    let login = if pair.source.address.login() == ("", "") { "" } else { "…@" };
    format!("{scheme}://{login}{}", pair.source.address)
}

/// Says how things stand, and which commands go on.
fn way_on(pair: &Pair, uri: String, arguments: &ImportArguments) -> String {
    let place = match (&arguments.to, pair.target.address.tcp()) {
        (None, Some((host, port, _))) => format!("-h {host} -p {port}"),
        _ => format!("--to {}", pair.target.address),
    };
    format!(
        "{} follows {} on.\n\
         the switch:   flagstone import --follow {uri} --switch {place}\n\
         a comparison: flagstone import --follow {uri} --compare {place}\n\
         the end:      REPLICAOF NO ONE on the target\n\
         A restart of the target ends it, too, unless CONFIG REWRITE was run there.",
        pair.target.name, pair.source.name
    )
}

fn compare(pair: &mut Pair, interrupt: &Interrupt, quiet: bool) -> Result<()> {
    let target = pair.target.info("replication")?;
    if !watch::is_following(&target, pair) {
        say!(
            "{} does not follow {}: they are compared as they are",
            pair.target.name,
            pair.source.name
        );
    }
    let mut pulse = |_: &mut Pair| interrupt.check();
    let verdict = compare::run(pair, CompareMode::WithWriters, quiet, &mut pulse)?;
    say!("{verdict}");
    if !verdict.is_same() {
        bail!("the servers differ");
    }
    Ok(())
}
