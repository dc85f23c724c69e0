//! What a unit does beside changing keys. A unit may be taken back and run again, so it is noted,
//! and happens once it is done.

use super::{UnitOutcome, UnitStop};
use crate::command::Command;
use crate::config::Settings;
use crate::monitor::Line;
use crate::node::{MAX_ERRORS, Node, OTHER_ERRORS, Tally, error_code};
use crate::scripts::write_log;
use crate::slowlog::{self, is_slow};
use flagstone_commands::flag;
use flagstone_wire::resp::{Args, OwnedArgs};
use std::collections::{BTreeMap, VecDeque};

/// A message that was published.
#[derive(Debug)]
pub struct Published {
    pub to_shard: bool,
    pub channel: Box<[u8]>,
    pub message: Box<[u8]>,
}

/// A command that those who watch are shown.
#[derive(Debug)]
struct Shown {
    db: u32,
    by_script: bool,
    args: OwnedArgs,
}

/// A part that was slow.
#[derive(Debug)]
pub(crate) struct SlowPart {
    /// What is kept of its arguments.
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) duration_us: u64,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Effects {
    pub published: Vec<Published>,
    /// Keys that it has read, if its client tracks.
    pub read: Vec<Box<[u8]>>,
    shown: Vec<Shown>,
    /// What these take.
    bytes: usize,
    logged: Vec<(usize, String)>,
    /// The parts by [`Command::id`].
    pub(crate) tallies: BTreeMap<usize, Tally>,
    /// Their errors by code.
    pub(crate) errors: BTreeMap<String, u64>,
    /// An error of the command that runs is counted, but not yet that it failed.
    pub(crate) error_counted: bool,
    /// The latest of those that were slow.
    pub(crate) slow: VecDeque<SlowPart>,
}

/// Lines of the log that a unit may write; more are left out.
const MAX_LOGGED: usize = 1000;

/// Bytes of such a line; what is longer is cut.
const MAX_LOGGED_BYTES: usize = 1024;

/// Bytes of what a unit publishes, and of what it has read for a client that tracks; more is an
/// error. Of commands that are shown, more are left out.
const MAX_BYTES: usize = 64 << 20;

/// Bytes that a note takes beside its text.
const NOTE: usize = 64;

impl Effects {
    /// A script writes to the log. Levels: 0 (debug) to 3 (warning).
    pub fn log(&mut self, level: usize, mut text: String) {
        if self.logged.len() < MAX_LOGGED {
            text.truncate(text.floor_char_boundary(MAX_LOGGED_BYTES));
            self.logged.push((level, text));
        }
    }

    /// Writes its lines to the log.
    pub fn write_log(&mut self) {
        for (level, text) in self.logged.drain(..) {
            write_log(level, &text);
        }
    }

    /// Counts what is to be kept; the error if that is too much.
    fn fits(&mut self, bytes: usize) -> UnitOutcome {
        if self.bytes + bytes > MAX_BYTES {
            return Err(UnitStop::Undone(
                "ERR the transaction or script publishes or reads too much".into(),
            ));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// A message is to be published.
    pub fn publish(&mut self, message: Published) -> UnitOutcome {
        self.fits(message.channel.len() + message.message.len() + NOTE)?;
        self.published.push(message);
        Ok(())
    }

    /// Keys are read, and the client tracks.
    pub(super) fn reads<'a>(&mut self, mut keys: impl Iterator<Item = &'a [u8]>) -> UnitOutcome {
        keys.try_for_each(|key| {
            self.fits(key.len() + NOTE)?;
            self.read.push(key.into());
            Ok(())
        })
    }

    /// A command runs that those who watch are to be shown.
    pub fn show(&mut self, db: u32, by_script: bool, args: Args<'_>) {
        let bytes = args.iter().map(|arg| arg.len() + NOTE).sum();
        if self.fits(bytes).is_err() {
            return;
        }
        self.shown.push(Shown { db, by_script, args: args.into() });
    }

    /// A part has run; `failed`: the text of its error.
    pub(super) fn ran(
        &mut self,
        command: &Command,
        args: Args<'_>,
        time_ns: u64,
        failed: Option<&str>,
        settings: &Settings,
    ) {
        let is_counted = std::mem::take(&mut self.error_counted);
        let tally = self.tallies.entry(command.id).or_default();
        tally.calls += 1;
        tally.time_ns += time_ns;
        tally.failed += u64::from(is_counted || failed.is_some());
        if let Some(text) = failed.filter(|_| !is_counted) {
            self.error(text.as_bytes());
        }
        if is_slow(settings, time_ns) && !command.spec.has(flag::SKIP_SLOWLOG) {
            if self.slow.len() >= settings.slowlog_max_len.max(1) {
                self.slow.pop_front();
            }
            let duration_us = time_ns / 1000;
            self.slow.push_back(SlowPart { args: slowlog::kept_args(args), duration_us });
        }
    }

    /// A part is refused before it runs; `None`: there is no such command.
    pub fn refused(&mut self, command: Option<&Command>, text: &str) {
        if let Some(command) = command {
            self.tallies.entry(command.id).or_default().rejected += 1;
        }
        self.error(text.as_bytes());
    }

    /// Counts an error.
    pub fn error(&mut self, text: &[u8]) {
        let code = error_code(text);
        let is_known = self.errors.len() < MAX_ERRORS || self.errors.contains_key(&*code);
        let code = if is_known { &*code } else { OTHER_ERRORS };
        *self.errors.entry(code.to_owned()).or_default() += 1;
    }

    /// Shows its commands to those who watch.
    pub fn tell_monitors(&mut self, node: &Node, client: u64, settings: &Settings) {
        self.write_log();
        if self.shown.is_empty() {
            return;
        }
        let addr = node.clients.get(client).map(|c| c.addr.to_string()).unwrap_or_default();
        let now_us = node.clock.now_us();
        for shown in self.shown.drain(..) {
            let source = if shown.by_script { "lua" } else { &*addr };
            let line = Line { now_us, db: shown.db, source, args: shown.args.args() };
            node.monitors.tell(&line, &settings.client_output_buffer_limit, now_us / 1000);
        }
    }
}

impl Published {
    /// Sends it.
    pub fn send(&self, node: &Node, settings: &Settings) {
        let (limits, now_ms) = (&settings.client_output_buffer_limit, node.clock.now_ms());
        if self.to_shard {
            node.pubsub.publish_to_shard(&self.channel, &self.message, limits, now_ms);
        } else {
            node.pubsub.publish(&self.channel, &self.message, limits, now_ms);
        }
    }
}
