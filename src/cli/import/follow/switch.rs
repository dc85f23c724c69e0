//! The switch: holds the source's writers, compares both servers, and makes the target a primary.

use super::begin::FormerSettings;
use super::compare::{self, CompareMode, Verdict};
use super::interrupt::Interrupt;
use super::side::{InfoText, Pair};
use super::watch::primary_of;
use crate::cli::connection::Reply;
use anyhow::{Context, Result, bail};
use flagstone_storage::clock::Clock;
use std::fmt;
use std::time::{Duration, Instant};

/// Time for which one request holds the source's writers, so that they go on by themselves if this
/// command dies; longer than any reply is waited for.
const PAUSE: Duration = Duration::from_secs(60);
/// Interval at which the hold is renewed.
const RENEWAL: Duration = Duration::from_secs(10);
/// Part of a hold at whose end nothing is done any more that relies on it.
const MARGIN: Duration = Duration::from_secs(5);
/// Time for which writers stay held behind the switch.
const KEPT: Duration = Duration::from_secs(600);
/// Time in which the target reaches the source's position, once its writers are held.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(30);
/// Interval of looks at its position.
const POLL: Duration = Duration::from_millis(20);

/// The source's writers, who wait.
pub(super) struct Hold {
    /// Run of the source: it holds nobody after a restart.
    run_id: String,
    begun: Instant,
    renewed: Instant,
    /// Time at which they go on unless the hold is renewed.
    until: Instant,
    limit: Duration,
}

impl Hold {
    fn begin(pair: &mut Pair, limit: Duration) -> Result<Self> {
        let run_id = pair.source.info("server")?.text("run_id").to_owned();
        let now = Instant::now();
        pause(pair, PAUSE).with_context(|| {
            format!(
                "the writers of {} cannot be held (CLIENT PAUSE … WRITE needs Redis 6.2 or newer, and \
                 the right to run CLIENT)",
                pair.source.name
            )
        })?;
        Ok(Self { run_id, begun: now, renewed: now, until: now + PAUSE, limit })
    }

    /// Renews the hold, if it is time.
    ///
    /// # Errors
    /// If writers may be running again, or were held for as long as is allowed.
    pub(super) fn renew(&mut self, pair: &mut Pair) -> Result<()> {
        if self.begun.elapsed() > self.limit {
            bail!(
                "writers were held for {} s without an end: --hold allows for more",
                self.limit.as_secs()
            );
        }
        let now = Instant::now();
        self.check(now)?;
        if now.duration_since(self.renewed) >= RENEWAL {
            pause(pair, PAUSE)?;
            self.check(Instant::now())?;
            (self.renewed, self.until) = (now, now + PAUSE);
        }
        Ok(())
    }

    /// Returns the source's state of replication.
    ///
    /// # Errors
    /// If its writers are not held: it is another run of it, or a replica, and they write elsewhere.
    fn primary_info(&self, pair: &mut Pair) -> Result<InfoText> {
        let from = pair.source.name.clone();
        let replication = pair.source.info("replication")?;
        if replication.text("role") != "master" {
            let primary = primary_of(&replication);
            bail!("{from} is itself a replica now, of {primary}, whose writers are not held");
        }
        // Behind the other question, so that a restart between the two is noticed.
        if pair.source.info("server")?.text("run_id") != self.run_id {
            bail!("{from} has restarted, so that its writers are not held any more");
        }
        Ok(replication)
    }

    fn check(&self, now: Instant) -> Result<()> {
        if now + MARGIN > self.until {
            bail!("a reply took so long that writers may be running again");
        }
        Ok(())
    }
}

fn pause(pair: &mut Pair, time: Duration) -> Result<()> {
    let ms = time.as_millis().to_string();
    pair.source.call(&[b"CLIENT", b"PAUSE", ms.as_bytes(), b"WRITE"]).map(|_| ())
}

/// The error of a switch whose end is not known: writers stay held.
#[derive(Debug)]
struct Undecided(String);

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Undecided {}

/// Carries the switch out. Afterwards the target is a primary, or the source's writers go on.
///
/// # Errors
/// If the servers differ, the source's writers cannot be held, or a server fails.
pub(super) fn run(
    pair: &mut Pair,
    former: &FormerSettings,
    interrupt: &Interrupt,
    (limit, quiet): (Duration, bool),
) -> Result<()> {
    rehearse(pair, interrupt, (limit, quiet))?;
    let mut hold = Hold::begin(pair, limit)?;
    let held = Instant::now();
    if !quiet {
        say!("the writers of {} are held", pair.source.name);
    }
    let done = compare_held(pair, &mut hold, interrupt, quiet).and_then(|verdict| {
        say!("{verdict}");
        if !verdict.is_same() {
            bail!("the servers differ, so nothing is switched");
        }
        hold.renew(pair)?;
        interrupt.check()?;
        promote(pair, &hold, interrupt)
    });
    match done {
        Ok(until_ms) => {
            report(pair, former, (held.elapsed(), until_ms));
            Ok(())
        }
        Err(error) if error.is::<Undecided>() => Err(error),
        Err(error) => {
            let released = pair.source.call(&[b"CLIENT", b"UNPAUSE"]);
            let left = match released {
                Ok(_) => "its writers go on".to_owned(),
                Err(refusal) => format!(
                    "CLIENT UNPAUSE fails ({refusal:#}): its writers go on within {} s",
                    PAUSE.as_secs()
                ),
            };
            let (from, to) = (&pair.source.name, &pair.target.name);
            Err(error.context(format!("{from} stays the primary, {left}, and {to} follows it")))
        }
    }
}

/// Compares while writers run: finds differences before anybody has to wait, and how long that will be.
fn rehearse(
    pair: &mut Pair,
    interrupt: &Interrupt,
    (limit, quiet): (Duration, bool),
) -> Result<()> {
    let begun = Instant::now();
    let mut pulse = |_: &mut Pair| interrupt.check();
    let verdict = compare::run(pair, CompareMode::WithWriters, quiet, &mut pulse)?;
    let took = begun.elapsed();
    if !quiet || !verdict.is_same() {
        say!("before the switch: {verdict}");
    }
    if !verdict.is_same() {
        bail!(
            "the servers differ, so nothing is switched: {} stays the primary, and {} follows it",
            pair.source.name,
            pair.target.name
        );
    }
    if took > limit {
        bail!(
            "comparing took {} s, for which writers would have to wait, and --hold allows for {} s: \
             nothing is switched",
            took.as_secs(),
            limit.as_secs()
        );
    }
    Ok(())
}

fn compare_held(
    pair: &mut Pair,
    hold: &mut Hold,
    interrupt: &Interrupt,
    quiet: bool,
) -> Result<Verdict> {
    catch_up(pair, hold, interrupt)?;
    let mut pulse = |pair: &mut Pair| {
        interrupt.check()?;
        hold.renew(pair)
    };
    let verdict = compare::run(pair, CompareMode::Still, quiet, &mut pulse)?;
    // The source sends its replicas messages in any case.
    catch_up(pair, hold, interrupt)?;
    Ok(verdict)
}

/// Waits until the target has applied all of the source's stream.
fn catch_up(pair: &mut Pair, hold: &mut Hold, interrupt: &Interrupt) -> Result<()> {
    let begun = Instant::now();
    let source = hold.primary_info(pair)?;
    let end = source.number("master_repl_offset");
    loop {
        let target = pair.target.info("replication")?;
        let applied = target.number("slave_repl_offset");
        let has_stream = source.text("master_replid") == target.text("master_replid");
        if target.text("role") != "slave" || !has_stream {
            bail!("{} does not follow {} any more", pair.target.name, pair.source.name);
        }
        if target.text("master_link_status") == "up" && applied >= end {
            return Ok(());
        }
        if begun.elapsed() > CATCH_UP_LIMIT {
            bail!(
                "{} is at offset {applied}, and does not reach {end} of {} within {} s",
                pair.target.name,
                pair.source.name,
                CATCH_UP_LIMIT.as_secs()
            );
        }
        hold.renew(pair)?;
        interrupt.sleep(POLL)?;
    }
}

/// Makes the target a primary. Returns the time until which the source's writers are held.
fn promote(pair: &mut Pair, hold: &Hold, interrupt: &Interrupt) -> Result<u64> {
    let until = Instant::now() + KEPT;
    pause(pair, KEPT)?;
    hold.primary_info(pair)?;
    // The longer hold has begun before the former one ended.
    hold.check(Instant::now())?;
    let until_ms = Clock::default().now_ms() + u64::try_from(KEPT.as_millis()).unwrap_or(0);
    match pair.target.ask(&[b"REPLICAOF", b"NO", b"ONE"]) {
        Ok(Reply::Error(error)) => bail!("{} answers REPLICAOF with: {error}", pair.target.name),
        Ok(_) => Ok(until_ms),
        Err(_) => await_promotion(pair, interrupt, (until - MARGIN, until_ms)).map(|()| until_ms),
    }
}

/// Waits until a target is a primary whose reply to that order was lost: it may be at work on it. The hold
/// ends after `until`, by the clock at `until_ms`.
fn await_promotion(
    pair: &mut Pair,
    interrupt: &Interrupt,
    (until, until_ms): (Instant, u64),
) -> Result<()> {
    let (from, to) = (pair.source.name.clone(), pair.target.name.clone());
    let mut is_told = false;
    let state = loop {
        match pair.target.info("replication") {
            Ok(facts) if facts.text("role") == "master" => return Ok(()),
            Ok(_) if Instant::now() < until => {}
            Ok(_) => break "is none yet".to_owned(),
            Err(error) => break format!("does not answer ({error:#})"),
        }
        if !std::mem::replace(&mut is_told, true) {
            say!("{to} was told to become a primary, and is at work on it: the end is awaited");
        }
        if interrupt.sleep(POLL).is_err() {
            break "is none yet".to_owned();
        }
    };
    Err(Undecided(format!(
        "{to} was told to become a primary, and {state}. The writers of {from} are held until {}. Ask the \
         target for its ROLE before: if it is a master, send the clients there; if not, run CLIENT UNPAUSE \
         on the source",
        utc(until_ms)
    ))
    .into())
}

/// Says what is to be done now, and restores the target's settings.
fn report(pair: &mut Pair, former: &FormerSettings, (held, until_ms): (Duration, u64)) {
    let (from, to) = (pair.source.name.clone(), pair.target.name.clone());
    say!("{to} is a primary now, after {:.1} s in which writers were held", held.as_secs_f64());
    match former.restore(pair) {
        Ok(true) => {}
        Ok(false) => {
            say!(
                "Its settings masteruser, masterauth and tls-replication stay as they are: an earlier \
                 run may have set them."
            );
        }
        Err(error) => {
            say!("Its settings masteruser, masterauth and tls-replication stay changed: {error:#}");
        }
    }
    say!(
        "Next: point the clients to {}. Writers that still talk to {from} wait there until {}. If some \
         may be left then, run `CONFIG SET min-replicas-to-write 10` there before: it refuses writes.",
        pair.target.address,
        utc(until_ms)
    );
    say!(
        "If the target's configuration names the source (replicaof), take that out, or run CONFIG \
         REWRITE: else a restart follows {} again, and deletes what was written since.",
        pair.source.address
    );
}

/// Formats the time of day of a moment in ms since the Unix epoch.
fn utc(ms: u64) -> String {
    let seconds = ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_are_those_of_utc() {
        assert_eq!(utc(1_795_320_192_123), "04:03:12 UTC");
        assert_eq!(utc(0), "00:00:00 UTC");
    }

    #[test]
    fn a_hold_that_may_have_ended_is_no_hold() {
        let begun = Instant::now();
        let (run_id, until, limit) = (String::new(), begun + PAUSE, Duration::from_secs(300));
        let hold = Hold { run_id, begun, renewed: begun, until, limit };
        assert!(hold.check(begun + PAUSE - MARGIN).is_ok());
        assert!(hold.check(begun + PAUSE).is_err());
    }
}
