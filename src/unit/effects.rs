//! Effects of a unit beside changes of keys. A unit may be rolled back and run again, so they are
//! recorded, and take place once it has run to its end.

use super::{UnitOutcome, UnitStop};
use crate::acl::DeniedAccess;
use crate::command::{Command, Outcome};
use crate::commandlog::{self, CommandCost, Excess, LogKind};
use crate::config::Settings;
use crate::monitor::Line;
use crate::node::{MAX_ERRORS, Node, OTHER_ERRORS, Tally, error_code};
use crate::scripts::{MAX_LOGGED_BYTES, write_log};
use flagstone_storage::latency::LATENCY;
use flagstone_wire::resp::{Args, OwnedArgs};
use std::collections::{BTreeMap, VecDeque};

/// A published message.
#[derive(Debug)]
pub struct Published {
    pub to_shard: bool,
    pub channel: Box<[u8]>,
    pub message: Box<[u8]>,
}

/// A command that monitors are shown.
#[derive(Debug)]
struct MonitoredPart {
    db: u32,
    by_script: bool,
    args: OwnedArgs,
}

/// A part of a unit that belongs in a log of commands.
#[derive(Debug)]
pub(crate) struct LoggedPart {
    /// Its arguments, shortened.
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) excess: Excess,
}

/// Recorded effects of a unit.
#[derive(Debug, Default)]
pub struct Effects {
    pub published: Vec<Published>,
    /// Keys that it has read, if its client tracks, each with the number of the unit's notes before.
    pub read: Vec<(Box<[u8]>, usize)>,
    shown: Vec<MonitoredPart>,
    /// Memory of the effects in bytes.
    bytes: usize,
    logged: Vec<(usize, String)>,
    /// Counts of the parts by [`Command::id`].
    pub(crate) tallies: BTreeMap<usize, Tally>,
    /// Number of the parts' errors by code.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Number of commands that scripts have run.
    pub(crate) scripted: u64,
    /// True if an error of the running command is counted, but not yet that the command failed.
    pub(crate) error_counted: bool,
    /// True if it is EXEC, and has run nothing, because a watched key has changed.
    pub(crate) is_aborted: bool,
    /// The latest parts for the logs of commands.
    pub(crate) for_logs: [VecDeque<LoggedPart>; LogKind::ALL.len()],
    /// Parts that its user may not run, and how often.
    denied: Vec<(DeniedAccess, u64)>,
}

/// Maximum number of log lines that a unit may write; further ones are dropped.
const MAX_LOGGED: usize = 1000;

/// Maximum memory in bytes of the messages of a unit, and of the keys that it has read for a
/// tracking client; more is an error. Commands for monitors that exceed it are dropped.
const MAX_BYTES: usize = 64 << 20;

/// Maximum number of different denials of a unit that are recorded; further ones are counted with the
/// last one of their reason.
const MAX_DENIED: usize = 128;

/// Memory in bytes of a recorded effect beside its text.
const NOTE: usize = 64;

impl Effects {
    /// Returns the outcome of the unit, if it has not stopped.
    pub(crate) fn outcome(&self) -> Outcome {
        match (self.error_counted, self.is_aborted) {
            (true, _) => Outcome::Failed,
            (false, true) => Outcome::Aborted,
            (false, false) => Outcome::Done,
        }
    }

    /// Records a line that a script logs. Levels: 0 (debug) to 3 (warning); 4: an error that the unit
    /// itself reports.
    pub fn log(&mut self, level: usize, mut text: String) {
        if self.logged.len() < MAX_LOGGED {
            text.truncate(text.floor_char_boundary(MAX_LOGGED_BYTES));
            text.shrink_to_fit();
            self.logged.push((level, text));
        }
    }

    /// Writes the recorded lines to the log.
    pub fn write_log(&mut self) {
        for (level, text) in self.logged.drain(..) {
            write_log(level, &text);
        }
    }

    /// Reserves memory for an effect; fails if there is too much.
    fn fits(&mut self, bytes: usize) -> UnitOutcome {
        if self.bytes + bytes > MAX_BYTES {
            return Err(UnitStop::Undone(
                "ERR the transaction or script publishes or reads too much".into(),
            ));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Records a message to be published.
    pub fn publish(&mut self, message: Published) -> UnitOutcome {
        self.fits(message.channel.len() + message.message.len() + NOTE)?;
        self.published.push(message);
        Ok(())
    }

    /// Records keys that a tracking client has read behind so many notes.
    pub(super) fn reads<'a>(
        &mut self,
        mut keys: impl Iterator<Item = &'a [u8]>,
        noted: usize,
    ) -> UnitOutcome {
        keys.try_for_each(|key| {
            self.fits(key.len() + NOTE)?;
            self.read.push((key.into(), noted));
            Ok(())
        })
    }

    /// Records a command for monitors.
    pub fn show(&mut self, db: u32, by_script: bool, args: Args<'_>) {
        let bytes = args.iter().map(|arg| arg.len() + NOTE).sum();
        if self.fits(bytes).is_err() {
            return;
        }
        self.shown.push(MonitoredPart { db, by_script, args: args.into() });
    }

    /// Records a part that has run. `failed`: the text of its error.
    pub(super) fn ran(
        &mut self,
        command: &Command,
        args: Args<'_>,
        cost: CommandCost,
        failed: Option<&[u8]>,
        settings: &Settings,
    ) {
        let time_ns = cost.took.as_nanos() as u64;
        let is_counted = std::mem::take(&mut self.error_counted);
        let tally = self.tallies.entry(command.id).or_default();
        tally.calls += 1;
        tally.time_ns += time_ns;
        if settings.latency_tracking {
            tally.times.add(time_ns);
        }
        tally.failed += u64::from(is_counted || failed.is_some());
        if let Some(text) = failed.filter(|_| !is_counted) {
            self.error(text);
        }
        LATENCY.note(command.latency_event(), cost.took);
        for excess in commandlog::exceeds(settings, command, &args, cost) {
            let parts = &mut self.for_logs[excess.kind as usize];
            if parts.len() >= excess.max {
                parts.pop_front();
            }
            parts.push_back(LoggedPart { args: commandlog::kept_args(args), excess });
        }
    }

    /// Records a part that is refused before it runs; `None` if the command does not exist.
    pub fn refused(&mut self, command: Option<&Command>, text: &str) {
        if let Some(command) = command {
            self.tallies.entry(command.id).or_default().rejected += 1;
        }
        self.error(text.as_bytes());
    }

    /// Records a part that its user may not run.
    pub(super) fn denied(&mut self, access: DeniedAccess) {
        let is_full = self.denied.len() >= MAX_DENIED;
        let is_same = |(known, _): &&mut (DeniedAccess, u64)| {
            *known == access || is_full && known.reason == access.reason
        };
        match self.denied.iter_mut().rev().find(is_same) {
            Some((_, times)) => *times += 1,
            None if is_full => {}
            None => self.denied.push((access, 1)),
        }
    }

    /// Logs the denials of a unit, which its client has begun by this command.
    pub(crate) fn log_denials(
        &mut self,
        node: &Node,
        command: &Command,
        client: u64,
        settings: &Settings,
    ) {
        if self.denied.is_empty() {
            return;
        }
        let client = node.clients.get(client);
        if let Some(client) = &client {
            client.asks_for(command.id);
        }
        for (access, times) in self.denied.drain(..) {
            node.log_denial(access, times, client.as_deref(), settings);
        }
    }

    /// Counts an error.
    pub fn error(&mut self, text: &[u8]) {
        let code = error_code(text);
        let is_known = self.errors.len() < MAX_ERRORS || self.errors.contains_key(&*code);
        let code = if is_known { &*code } else { OTHER_ERRORS };
        *self.errors.entry(code.to_owned()).or_default() += 1;
    }

    /// Shows the commands to monitors, and writes the log lines.
    pub fn tell_monitors(&mut self, node: &Node, client: u64, settings: &Settings) {
        self.write_log();
        if self.shown.is_empty() {
            return;
        }
        let addr = node.clients.get(client).map(|c| c.addr.in_monitor()).unwrap_or_default();
        let now_us = node.clock.now_us();
        for shown in self.shown.drain(..) {
            let source = if shown.by_script { "lua" } else { &*addr };
            let line = Line { now_us, db: shown.db, source, args: shown.args.args() };
            node.broadcast.monitors.tell(
                &line,
                &settings.client_output_buffer_limit,
                now_us / 1000,
            );
        }
    }
}

impl Published {
    /// Publishes the message.
    pub fn send(&self, node: &Node, settings: &Settings) {
        if self.to_shard {
            let (limits, now_ms) = (&settings.client_output_buffer_limit, node.clock.now_ms());
            node.broadcast.pubsub.publish_to_shard(&self.channel, &self.message, limits, now_ms);
        } else {
            node.publish(settings, &self.channel, &self.message);
        }
    }
}
