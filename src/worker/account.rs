//! Accounts of the commands that have run: counters, histograms, latency events, and the logs of
//! commands.

use super::Worker;
use crate::clients::Client;
use crate::command::{Command, OwnedCommand, Request, registry};
use crate::commandlog::{self, CommandCost, Excess, LogKind, LoggedCommand};
use crate::config::Settings;
use crate::monitor::Line;
use crate::traces;
use crate::unit::Effects;
use flagstone_commands::flag;
use flagstone_storage::latency::LATENCY;
use flagstone_wire::resp::Args;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A command that has run.
#[derive(Clone, Copy)]
pub(crate) struct FinishedCommand<'a> {
    pub(crate) command: &'a Command,
    pub(crate) args: Args<'a>,
    /// Database that was selected.
    pub(crate) db: u32,
    /// Id of the connection.
    pub(crate) client: u64,
    pub(crate) reply_bytes: usize,
    /// Time that earlier runs have taken, which missed data.
    pub(crate) spent: Duration,
}

impl<'a> FinishedCommand<'a> {
    /// Describes a command by its request.
    pub(crate) fn requested(
        command: &'a Command,
        args: Args<'a>,
        request: Request,
        reply_bytes: usize,
    ) -> Self {
        let Request { db, client, .. } = request;
        Self { command, args, db, client, reply_bytes, spent: request.spent() }
    }

    /// Describes a command that has its own copy of the arguments.
    pub(crate) fn of(command: &'a OwnedCommand, reply_bytes: usize) -> Self {
        let (request, args) = (command.request, command.args());
        Self::requested(command.command, args, request, reply_bytes)
    }
}

impl Worker {
    /// Starts the time of the next command.
    pub(crate) fn start_watch(&self) {
        self.watch.set(Instant::now());
    }

    /// Starts it at a moment that has passed.
    pub(crate) fn start_watch_at(&self, began: Instant) {
        self.watch.set(began);
    }

    /// Returns when the last timed command ended, or the next began.
    pub(crate) fn last_ran(&self) -> Instant {
        self.watch.get()
    }

    /// Returns the time, ms since the Unix epoch, as it was when the last timed command ended or the next
    /// began, or when the periodic work last ran. It takes no look at the clock.
    #[inline]
    pub(crate) fn recent_ms(&self) -> u64 {
        let (at, ms) = self.upkeep.looked.get();
        ms + self.last_ran().saturating_duration_since(at).as_millis() as u64
    }

    /// Looks at the clock for [`Self::recent_ms`].
    pub(super) fn look_at_clock(&self) {
        self.upkeep.looked.set((Instant::now(), self.node.clock.now_ms()));
    }

    /// Returns the time since the last command ended or the watch was started, and starts it again.
    pub(crate) fn lap(&self) -> Duration {
        let now = Instant::now();
        now - self.watch.replace(now)
    }

    /// Counts a command that has run since the last one ended or the watch was started.
    #[inline]
    pub(crate) fn ran(&self, run: &FinishedCommand<'_>, settings: &Settings) {
        let &FinishedCommand { command, ref args, db, client, reply_bytes, spent } = run;
        let took = self.lap() + spent;
        self.stats().ran(command, took.as_nanos() as u64, settings.latency_tracking);
        LATENCY.note(command.latency_event(), took);
        if self.hot_keys.is_due() {
            self.hot_keys.see(command.keys(*args, db).into_iter());
        }
        let exceeded =
            commandlog::exceeds(settings, command, args, CommandCost { took, reply_bytes });
        if !exceeded.is_empty() {
            let kept = commandlog::kept_args(*args);
            exceeded.iter().for_each(|excess| self.log_command(kept.clone(), client, excess));
        }
    }

    /// Shows a client's command that runs to monitors.
    #[inline]
    pub(crate) fn show(&self, command: &Command, client: &Client, db: u32, args: Args<'_>) {
        let hidden = flag!(ADMIN | SKIP_MONITOR);
        if self.node.broadcast.monitors.any() && !command.spec.has(hidden) {
            self.show_to_monitors(client, db, args);
        }
    }

    #[cold]
    fn show_to_monitors(&self, client: &Client, db: u32, args: Args<'_>) {
        let now_us = self.node.clock.now_us();
        let source = client.addr.in_monitor();
        let line = Line { now_us, db, source: &source, args };
        let limits = self.settings().client_output_buffer_limit;
        self.node.broadcast.monitors.tell(&line, &limits, now_us / 1000);
    }

    /// Counts the parts of a unit that has run, and shows them to monitors.
    pub(crate) fn tell_parts(
        &self,
        effects: &mut Effects,
        command: &Command,
        client: u64,
        settings: &Settings,
    ) {
        self.stats().ran_parts(&effects.tallies, &effects.errors);
        if effects.scripted > 0 {
            self.stats().commands.fetch_add(effects.scripted, Ordering::Relaxed);
            if let Some(client) = self.node.clients.get(client) {
                client.scripts_ran(effects.scripted);
            }
        }
        self.log_parts(effects, client);
        effects.log_denials(&self.node, command, client, settings);
        effects.tell_monitors(&self.node, client, settings);
    }

    /// Logs parts of a unit: before the unit, because they have ended before it.
    pub(crate) fn log_parts(&self, effects: &mut Effects, client: u64) {
        for parts in &mut effects.for_logs {
            while let Some(part) = parts.pop_front() {
                self.log_command(part.args, client, &part.excess);
            }
        }
    }

    #[cold]
    fn log_command(&self, args: Vec<Vec<u8>>, client: u64, excess: &Excess) {
        let client = self.node.clients.get(client);
        let command = LoggedCommand {
            id: 0,
            time_s: self.node.clock.now_ms() / 1000,
            value: 0,
            args,
            addr: client.as_ref().map(|c| c.addr.to_string()).unwrap_or_default(),
            name: client.map(|c| commandlog::kept_name(&c.labels().name)).unwrap_or_default(),
        };
        if excess.kind == LogKind::Slow
            && let Some(known) = command.args.first().and_then(|name| registry::lookup(name))
        {
            let took = Duration::from_micros(excess.value);
            traces::slow_command(known.full_name, &command.addr, took, self.node.clock.now_us());
        }
        self.node.figures.command_logs.push(excess, command);
    }
}
