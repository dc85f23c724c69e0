//! The target's link to the source: how far it is, until the target is in step, and from then on.

use super::interrupt::Interrupt;
use super::side::{InfoText, Pair};
use crate::cli::progress;
use anyhow::{Result, bail};
use indicatif::ProgressBar;
use std::collections::VecDeque;
use std::fmt;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Interval of looks at both servers.
const POLL: Duration = Duration::from_millis(200);
/// Interval of lines about the lag where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Time for which a link is down before that is told: the reason may be of an earlier try.
const TELL_AFTER: Duration = Duration::from_millis(1500);
/// Lag up to which the target is in step.
const IN_STEP: Duration = Duration::from_secs(2);
/// Maximum number of the source's positions that are remembered: a longer lag is shown as that of the
/// oldest one.
const POSITIONS_MAX: usize = 4096;
/// Number of looks in a row at which the servers may have streams of different names: one may just have
/// begun anew.
const STRANGE_LIMIT: u32 = 25;

/// The phase in which the target loads the data set.
const LOADING: &str = "loading the data set";

/// The reason of a link that has not failed.
const BEING_MADE: &str = "it is being made";

/// State of the link.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LinkNow {
    /// The data set comes: bytes so far, and all of them, if that is known.
    Receiving(u64, Option<u64>),
    /// The data set is loaded: keys so far.
    Loading(u64),
    Up(Lag),
    Down(String),
}

/// The part of the stream that the target has not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lag {
    bytes: u64,
    time: Duration,
}

impl fmt::Display for Lag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, {:.1} s behind", self.bytes, self.time.as_secs_f64())
    }
}

/// The view of the link.
pub(super) struct LinkWatch<'a> {
    interrupt: &'a Interrupt,
    /// Number of keys of the source.
    keys: u64,
    quiet: bool,
    bar: ProgressBar,
    /// The phase that `bar` shows, and the last problem that was told.
    phase: &'static str,
    told: String,
    /// Bytes of the data set that were received.
    received: u64,
    /// Time at which the link went down.
    down_at: Option<Instant>,
    /// Positions of the source's stream, with the times at which they were seen.
    positions: VecDeque<(Instant, u64)>,
    strange: u32,
    line_at: Instant,
}

impl<'a> LinkWatch<'a> {
    pub(super) fn new(interrupt: &'a Interrupt, keys: u64, quiet: bool) -> Self {
        Self {
            interrupt,
            keys,
            quiet,
            bar: ProgressBar::hidden(),
            phase: "",
            told: String::new(),
            received: 0,
            down_at: None,
            positions: VecDeque::new(),
            strange: 0,
            line_at: Instant::now(),
        }
    }

    /// Waits until the target is in step.
    ///
    /// # Errors
    /// If it ends to follow the source, or a signal comes.
    pub(super) fn until_in_step(&mut self, pair: &mut Pair) -> Result<()> {
        loop {
            let now = self.look(pair)?;
            self.show(&now);
            if let LinkNow::Up(lag) = now
                && lag.time <= IN_STEP
            {
                self.bar.finish_and_clear();
                self.phase = "";
                self.tell(format!("in step with {}: {lag}", pair.source.name));
                return Ok(());
            }
            self.interrupt.sleep(POLL)?;
        }
    }

    /// Shows the lag.
    ///
    /// # Errors
    /// If the target ends to follow the source, or a signal comes.
    pub(super) fn stay(&mut self, pair: &mut Pair) -> Result<()> {
        loop {
            let now = self.look(pair)?;
            self.show(&now);
            let ended = self.interrupt.sleep(POLL);
            if ended.is_err() {
                self.bar.finish_and_clear();
            }
            ended?;
        }
    }

    /// Looks at both servers. One that cannot be reached is a link that is down.
    fn look(&mut self, pair: &mut Pair) -> Result<LinkNow> {
        let source = pair.source.info("replication");
        if let Ok(facts) = &source {
            self.note_position(facts.number("master_repl_offset"));
        }
        let target = match pair.target.info("replication") {
            Ok(facts) => facts,
            Err(error) => return Ok(LinkNow::Down(format!("{error:#}"))),
        };
        if !is_following(&target, pair) {
            let strange = match target.text("role") {
                "slave" => format!("follows {} now", primary_of(&target)),
                _ => format!("does not follow {} any more", pair.source.name),
            };
            bail!(
                "{} {strange}: it was told so, or has restarted without `replicaof`; to begin anew, \
                 run this command with --replace",
                pair.target.name
            );
        }
        if target.text("master_link_status") == "up" {
            return match source {
                Ok(source) => self.look_at_stream(&source, &target, pair),
                Err(error) => Ok(LinkNow::Down(format!("{error:#}"))),
            };
        }
        if target.text("master_sync_in_progress") == "1" {
            return Ok(self.look_at_data_set(&target, pair));
        }
        let reason = target.text("master_link_down_reason");
        let reason = if reason.is_empty() { BEING_MADE } else { reason };
        Ok(LinkNow::Down(reason.to_owned()))
    }

    fn look_at_data_set(&mut self, target: &InfoText, pair: &mut Pair) -> LinkNow {
        let read = target.number("master_sync_read_bytes");
        let total = Some(target.number("master_sync_total_bytes")).filter(|total| *total > 0);
        let persistence = pair.target.info("persistence");
        if persistence.is_ok_and(|facts| facts.text("loading") == "1") {
            let keyspace = pair.target.info("keyspace").and_then(|facts| facts.databases());
            return LinkNow::Loading(keyspace.unwrap_or_default().iter().map(|(_, n)| n).sum());
        }
        // When it is loaded, it takes a moment until the stream begins.
        if self.phase == LOADING && read >= self.received {
            return LinkNow::Loading(self.keys);
        }
        self.received = read;
        LinkNow::Receiving(read, total)
    }

    fn look_at_stream(
        &mut self,
        source: &InfoText,
        target: &InfoText,
        pair: &Pair,
    ) -> Result<LinkNow> {
        if source.text("master_replid") != target.text("master_replid") {
            self.strange += 1;
            if self.strange > STRANGE_LIMIT {
                bail!(
                    "{} follows another server than {}: it connects to that address itself, and \
                     reaches another one there; name the source by an address that both machines have",
                    pair.target.name,
                    pair.source.name
                );
            }
            return Ok(LinkNow::Down(BEING_MADE.to_owned()));
        }
        self.strange = 0;
        let (end, applied) =
            (source.number("master_repl_offset"), target.number("slave_repl_offset"));
        Ok(LinkNow::Up(Lag { bytes: end.saturating_sub(applied), time: self.lag(applied) }))
    }

    fn note_position(&mut self, offset: u64) {
        if self.positions.back().is_some_and(|(_, last)| *last > offset) {
            // Another stream.
            self.positions.clear();
        }
        if self.positions.len() == POSITIONS_MAX {
            self.positions.pop_front();
        }
        self.positions.push_back((Instant::now(), offset));
    }

    /// Returns how long ago the source was where the target is now.
    fn lag(&mut self, applied: u64) -> Duration {
        while self.positions.len() > 1 && self.positions[1].1 <= applied {
            self.positions.pop_front();
        }
        match (self.positions.front(), self.positions.back()) {
            (_, Some((_, last))) if *last <= applied => Duration::ZERO,
            (Some((at, first)), _) if *first <= applied => at.elapsed(),
            // It is further behind than this command has seen.
            (Some((at, _)), _) => at.elapsed().max(IN_STEP + POLL),
            _ => Duration::MAX,
        }
    }

    fn tell(&self, text: String) {
        if !self.quiet {
            self.bar.suspend(|| say!("{text}"));
        }
    }

    /// Begins a phase, if it is another one.
    fn enter(&mut self, phase: &'static str, bar: impl FnOnce(bool) -> ProgressBar) {
        if self.phase == phase {
            return;
        }
        self.bar.finish_and_clear();
        self.phase = phase;
        self.line_at = Instant::now();
        self.bar = bar(self.quiet);
        if !phase.is_empty() {
            self.tell(phase.to_owned());
        }
    }

    fn show(&mut self, now: &LinkNow) {
        if !matches!(now, LinkNow::Down(_)) {
            self.down_at = None;
        }
        match now {
            LinkNow::Receiving(read, total) => {
                let total = *total;
                self.enter("receiving the data set", |quiet| progress::bytes(total, quiet));
                self.bar.set_position(*read);
            }
            LinkNow::Loading(keys) => {
                let total = self.keys;
                self.enter(LOADING, |quiet| progress::keys(total, quiet));
                self.bar.set_position(*keys);
            }
            LinkNow::Up(lag) => {
                self.enter("following the stream", progress::line);
                self.bar.set_message(lag.to_string());
                self.bar.tick();
                if !std::io::stderr().is_terminal() && self.line_at.elapsed() >= LINE_EVERY {
                    self.line_at = Instant::now();
                    self.tell(lag.to_string());
                }
                self.told.clear();
            }
            LinkNow::Down(reason) => self.show_down(reason),
        }
    }

    fn show_down(&mut self, reason: &str) {
        self.enter("", progress::line);
        self.bar.set_message(format!("the link is down: {reason}"));
        self.bar.tick();
        let is_new = reason != self.told && reason != BEING_MADE;
        if is_new && self.down_at.get_or_insert_with(Instant::now).elapsed() >= TELL_AFTER {
            self.tell(format!("the link is down: {reason}; it is tried again and again"));
            reason.clone_into(&mut self.told);
        }
    }
}

/// Returns the address of a replica's primary, as its INFO has it.
pub(super) fn primary_of(target: &InfoText) -> String {
    format!("{}:{}", target.text("master_host"), target.text("master_port"))
}

/// Returns true if the target copies the source, by its address or by the name of the stream.
pub(super) fn is_following(target: &InfoText, pair: &Pair) -> bool {
    let Some((host, port, _)) = pair.source.address.tcp() else { return false };
    target.text("role") == "slave"
        && target.text("master_host").eq_ignore_ascii_case(host)
        && target.text("master_port") == port.to_string()
}
