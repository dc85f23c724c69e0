//! What a unit does beside changing keys. A unit may be taken back and run again, so it is noted,
//! and happens once it is done.

use crate::config::Settings;
use crate::monitor::Line;
use crate::node::Node;
use crate::resp::Args;

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

/// See the module's description.
#[derive(Debug, Default)]
pub struct Effects {
    pub published: Vec<Published>,
    /// Keys that it has read, if its client tracks.
    pub read: Vec<Box<[u8]>>,
    shown: Vec<Shown>,
    logged: Vec<(usize, String)>,
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
