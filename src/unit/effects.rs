//! What a unit does beside changing keys. A unit may be taken back and run again, so it is noted,
//! and happens once it is done.

use crate::commands::flag;
use crate::commands::registry::Command;
use crate::config::Settings;
use crate::monitor::Line;
use crate::node::Node;
use crate::resp::Args;
use crate::slowlog;
use crate::worker::{MAX_ERRORS, is_slow};
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
    args: Vec<Box<[u8]>>,
}

/// What a command came to that ran as a part.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: u64,
    pub(crate) time_ns: u64,
    pub(crate) failed: u64,
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
    logged: Vec<(usize, String)>,
    /// The parts by [`Command::id`].
    pub(crate) tallies: BTreeMap<usize, Tally>,
    /// Their errors by code.
    pub(crate) errors: BTreeMap<String, u64>,
    /// The latest of those that were slow.
    pub(crate) slow: VecDeque<SlowPart>,
}

/// Lines of the log that a unit may write; more are left out.
const MAX_LOGGED: usize = 1000;

impl Effects {
    /// A script writes to the log. Levels: 0 (debug) to 3 (warning).
    pub fn log(&mut self, level: usize, text: String) {
        if self.logged.len() < MAX_LOGGED {
            self.logged.push((level, text));
        }
    }

    /// Writes its lines to the log.
    pub fn write_log(&mut self) {
        for (level, text) in self.logged.drain(..) {
            write_log(level, &text);
        }
    }

    /// A command runs that those who watch are to be shown.
    pub fn show(&mut self, db: u32, by_script: bool, args: Args<'_>) {
        let args = args.iter().map(Box::from).collect();
        self.shown.push(Shown { db, by_script, args });
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
        let tally = self.tallies.entry(command.id).or_default();
        tally.calls += 1;
        tally.time_ns += time_ns;
        if let Some(text) = failed {
            tally.failed += 1;
            let code = text.split(' ').next().unwrap_or_default();
            if self.errors.len() < MAX_ERRORS || self.errors.contains_key(code) {
                *self.errors.entry(code.to_owned()).or_default() += 1;
            }
        }
        if is_slow(settings, time_ns) && !command.spec.has(flag::SKIP_SLOWLOG) {
            if self.slow.len() >= settings.slowlog_max_len.max(1) {
                self.slow.pop_front();
            }
            let duration_us = time_ns / 1000;
            self.slow.push_back(SlowPart { args: slowlog::kept_args(args), duration_us });
        }
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
            let bytes = shown.args.concat();
            let mut end = 0;
            let ranges: Vec<(u32, u32)> = shown
                .args
                .iter()
                .map(|arg| {
                    let start = end;
                    end += arg.len() as u32;
                    (start, end)
                })
                .collect();
            let source = if shown.by_script { "lua" } else { &*addr };
            let line = Line { now_us, db: shown.db, source, args: Args::new(&bytes, &ranges) };
            node.monitors.tell(&line, &settings.client_output_buffer_limit, now_us / 1000);
        }
    }
}

/// Writes a line of a script to the log. Levels: 0 (debug) to 3 (warning).
pub fn write_log(level: usize, text: &str) {
    match level {
        0 | 1 => tracing::debug!("script: {text}"),
        2 => tracing::info!("script: {text}"),
        _ => tracing::warn!("script: {text}"),
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
