//! The link to the primary: asks for its stream, follows it, and begins again when it ends.

use super::apply::Applier;
use super::failover::TakeOver;
use super::stream::{StreamLimits, StreamSplitter};
use super::wire::{PrimaryWire, READ};
use super::{OTHER, failover, keep_promise, load, receive, testimony};
use crate::config::{ReplAck, Settings};
use crate::followers::{FailoverStep, LeaseQuestion, promised_for};
use crate::replica::{LinkState, Primary, Replica};
use flagstone_storage::encoding::{FormerStream, SourceExtent, SourcePosition};
use std::convert::Infallible;
use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

/// Interval between two tries to connect, and of messages to the primary.
const SECOND: Duration = Duration::from_secs(1);

/// Maximum interval between two tries: it doubles while data sets fail, as each costs the primary a
/// copy of its data.
const MAX_PAUSE: Duration = Duration::from_secs(32);

/// Bytes of the stream that are read while a pause of clients (CLIENT PAUSE) keeps them from being applied.
const MAX_READ_AHEAD: usize = 1 << 20;

/// Length of the id of a stream.
const ID: usize = 40;

/// Maximum offset of a stream, as of a primary that counts in signed numbers of 64 bits.
const MAX_OFFSET: u64 = u64::MAX >> 1;

/// Reason why a link ends that a client has broken.
const KICKED: &str = "CLIENT KILL TYPE master has ended it";

/// Beginning and end of the name of the file that receives the data set, in the data directory; the
/// number of the choice of the primary is between them.
const SYNC_FILE: (&str, &str) = ("replica-sync", ".rdb");

/// Follows a primary until another one, or none, is chosen, or the server ends.
pub(super) async fn run(applier: Applier, primary: Primary, epoch: u64) {
    let told = String::new();
    let mut link =
        PrimaryLink { applier, primary, epoch, told, is_costly: false, was_asked: false };
    let mut pause = SECOND;
    // Replies that wait under the former role are given up first: the stream's commands are not theirs.
    link.applier.settle().await;
    while link.is_wanted() {
        let Err(reason) = link.follow().await;
        link.set_state(LinkState::Connect);
        if !link.is_wanted() {
            return;
        }
        link.replica().set_down_reason(epoch, &reason);
        // A primary that is away is one line in the log, not one each second.
        if reason != link.told {
            tracing::warn!(primary = %link.primary, %reason, "the link to the primary is down");
            link.told = reason;
        }
        pause = if link.is_costly { (2 * pause).min(MAX_PAUSE) } else { SECOND };
        sleep(pause).await;
    }
}

/// A message to the primary while this server is at work.
enum Beat {
    /// An empty line: this server is alive.
    Alive,
    /// The position that is applied.
    Position,
}

struct PrimaryLink {
    applier: Applier,
    primary: Primary,
    epoch: u64,
    /// Reason for which the link was down last, and was logged.
    told: String,
    /// True while the primary sends bytes that this server cannot use after a break: a data set, or
    /// a part of the stream.
    is_costly: bool,
    /// True once the primary, the target of a failover, was asked to take over.
    was_asked: bool,
}

impl PrimaryLink {
    fn replica(&self) -> &Replica {
        &self.applier.node.health.replica
    }

    fn is_wanted(&self) -> bool {
        self.replica().epoch() == self.epoch && !self.applier.node.ending.is_ending()
    }

    fn set_state(&self, state: LinkState) {
        self.replica().set_state(self.epoch, state, self.applier.node.clock.now_ms());
    }

    fn settings(&self) -> Arc<Settings> {
        self.applier.node.config.settings()
    }

    /// Connects, and applies the stream until the link breaks; returns the reason.
    async fn follow(&mut self) -> Result<Infallible, String> {
        self.is_costly = false;
        keep_promise(&self.applier.node, Some(&self.primary)).await;
        self.applier.clear_part(Some(self.epoch)).await?;
        self.set_state(LinkState::Connecting);
        let settings = self.settings();
        let bytes_in = &self.replica().bytes_in;
        let tls = self.applier.node.ports.tls.clone();
        let connecting = PrimaryWire::connect(&self.primary, (&settings, &tls), bytes_in);
        let mut wire = self.while_chosen(connecting).await?;
        self.set_state(LinkState::Handshake);
        self.while_chosen(greet(&mut wire, &settings)).await?;
        let position = self.ask_for_stream(&mut wire).await?;
        self.apply_stream(wire, position).await
    }

    /// Asks for the stream from the stored position on, and loads the data set if the primary cannot
    /// continue there. Returns the position at which the stream begins.
    async fn ask_for_stream(&mut self, wire: &mut PrimaryWire) -> Result<SourcePosition, String> {
        // A batch of a former link may be at work still.
        let stored = self.applier.position(self.epoch).await?;
        let from = (stored.offset + 1).to_string();
        let psync: [&[u8]; 3] = match stored.id.is_empty() {
            true => [b"PSYNC", b"?", b"-1"],
            false => [b"PSYNC", &stored.id, from.as_bytes()],
        };
        let failover = &self.applier.node.followers.failover;
        let number = failover.number();
        let takes_over = failover.is_at(number, FailoverStep::InProgress);
        let mut formers = Vec::new();
        if self.settings().is_in_group() && takes_over {
            // It has all of this.
            let own = FormerStream { id: stored.id.clone(), offset: stored.offset };
            formers = [vec![own], stored.formers.clone()].concat();
        } else if self.settings().is_in_group() {
            let choice = (self.epoch, &self.primary);
            formers = testimony::testify(wire, self.replica(), choice).await?;
        }
        let reply = match takes_over {
            true => self.ask_to_take_over(wire, number, &psync).await?,
            false => wire.ask(&psync).await?,
        };
        let mut words = reply.split_ascii_whitespace();
        let words = (words.next(), words.next(), words.next());
        match words {
            (Some("+CONTINUE"), id, None) if !stored.id.is_empty() => {
                self.replica().syncs.partial.fetch_add(1, Ordering::Relaxed);
                match id.map(stream_id).transpose()? {
                    Some(id) if *id != *stored.id => self.rename_stream(stored, id, formers).await,
                    _ => Ok(stored),
                }
            }
            (Some("+FULLRESYNC"), Some(id), Some(offset)) => {
                let parsed = offset.parse().ok().filter(|offset| *offset <= MAX_OFFSET);
                let offset = parsed.ok_or_else(|| format!("a malformed offset: {reply:?}"))?;
                self.load_data_set(wire, (stream_id(id)?.into(), offset), formers).await
            }
            _ => Err(format!("it answers PSYNC with {reply:?}")),
        }
    }

    /// Asks for the stream, and the target of the failover to become its primary, which ends the failover.
    /// Returns the target's reply.
    async fn ask_to_take_over(
        &mut self,
        wire: &mut PrimaryWire,
        number: u64,
        psync: &[&[u8]],
    ) -> Result<String, String> {
        let was_asked = std::mem::replace(&mut self.was_asked, true);
        let mut reply = wire.ask(&[psync, &[&b"FAILOVER"[..]]].concat()).await?;
        if was_asked && failover::is_of_primary(&reply) {
            // It has taken over, and the reply that said so was lost.
            reply = wire.ask(psync).await?;
        }
        let reason = format!("the target of the failover answers PSYNC with {reply:?}");
        match TakeOver::of(&reply, was_asked) {
            TakeOver::Done => {
                failover::succeeded(&self.applier.node, number);
                Ok(reply)
            }
            TakeOver::Refused => {
                self.applier.give_up_failover(number, &reason).await;
                Err(reason)
            }
            TakeOver::Unknown => Err(reason),
        }
    }

    /// Stores the new id of the stream: the primary is another one since the last contact.
    async fn rename_stream(
        &self,
        stored: SourcePosition,
        id: &[u8],
        formers: Vec<FormerStream>,
    ) -> Result<SourcePosition, String> {
        let (serial, id) = (stored.serial + 1, id.into());
        let renamed = SourcePosition { serial, id, formers, ..stored };
        self.applier.put_position(self.epoch, renamed.clone()).await?;
        Ok(renamed)
    }

    /// Waits for the primary, as long as no other one is chosen. The future is then given up.
    async fn while_chosen<T>(
        &self,
        future: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        tokio::select! {
            biased;
            () = self.replica().outlived(self.epoch) => Err(OTHER.to_owned()),
            done = future => done,
        }
    }

    async fn load_data_set(
        &mut self,
        wire: &mut PrimaryWire,
        (id, offset): (Box<[u8]>, u64),
        formers: Vec<FormerStream>,
    ) -> Result<SourcePosition, String> {
        if !self.is_wanted() {
            return Err(OTHER.to_owned());
        }
        self.set_state(LinkState::Sync);
        self.is_costly = true;
        tracing::info!(primary = %self.primary, "the data set is received");
        // A former link may still hold its own file.
        let path =
            self.settings().dir.join(format!("{}-{}{}", SYNC_FILE.0, self.epoch, SYNC_FILE.1));
        let _remove = RemovedFile(path.clone());
        self.while_chosen(receive::receive(wire, self.replica(), &path)).await?;
        tracing::info!(primary = %self.primary, "the data set is loaded");
        let loading = load::load(&self.applier, self.epoch, &path);
        let (loaded, beaten) = self.beating(wire, Beat::Alive, &mut beats(), loading).await;
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(reason) => {
                // Nothing may show a part of the data; if this fails, the next try begins with it.
                let cleared = self.applier.clear_part(Some(self.epoch)).await;
                return Err(cleared.err().map_or(reason.clone(), |e| format!("{reason}; {e}")));
            }
        };
        let serial = self.replica().link().position.serial + 1;
        let extent = SourceExtent::Whole;
        let position = SourcePosition { serial, offset, db: loaded.db, extent, id, formers };
        self.applier.end_load(self.epoch, position.clone()).await?;
        self.replica().syncs.full.fetch_add(1, Ordering::Relaxed);
        tracing::info!(primary = %self.primary, offset, keys = loaded.keys, "the data set is there");
        wire.listen_again();
        self.is_costly = false;
        beaten.map(|()| position)
    }

    /// Waits for a future, and sends the primary a message each second meanwhile. The future is
    /// never given up: its work goes on in any case. Returns its result, and that of the messages.
    async fn beating<T>(
        &self,
        wire: &mut PrimaryWire,
        beat: Beat,
        beats: &mut Interval,
        future: impl Future<Output = T>,
    ) -> (T, Result<(), String>) {
        let mut future = pin!(future);
        let mut beaten = Ok(());
        loop {
            tokio::select! {
                biased;
                done = &mut future => return (done, beaten),
                _ = beats.tick(), if beaten.is_ok() => {
                    beaten = match beat {
                        Beat::Alive => wire.send(b"\n").await,
                        Beat::Position => self.acknowledge(wire, None).await,
                    };
                }
            }
        }
    }

    /// Tells the primary the position, and answers its question.
    async fn acknowledge(
        &self,
        wire: &mut PrimaryWire,
        question: Option<&LeaseQuestion>,
    ) -> Result<(), String> {
        let primary = Some(&self.primary);
        if question.is_some() && !self.replica().promise(self.epoch, primary, promised_for()) {
            return Err(OTHER.to_owned());
        }
        wire.acknowledge(self.position(), question).await
    }

    /// Returns the numbers of bytes of the stream that are applied, and that are on disk.
    fn position(&self) -> (u64, u64) {
        let applied = self.replica().offset();
        (applied, self.replica().stored(self.applier.node.journal.durable()))
    }

    async fn apply_stream(
        &mut self,
        mut wire: PrimaryWire,
        position: SourcePosition,
    ) -> Result<Infallible, String> {
        let settings = self.settings();
        tracing::debug!(primary = %self.primary, offset = position.offset, "the stream begins");
        let mut splitter = StreamSplitter::new(position, StreamLimits::of(&settings));
        self.replica().set_read_offset(0);
        self.set_state(LinkState::Connected);
        let (mut beats, mut awaited) = (beats(), OwedPosition::default());
        loop {
            if let Err(reason) = splitter.take(&mut wire.buf) {
                if splitter.is_too_large() {
                    self.is_costly = true;
                    self.applier.forget_position(Some(self.epoch), SourceExtent::Whole).await?;
                }
                return Err(reason);
            }
            let batch = splitter.batch();
            let is_empty = batch.as_ref().is_none_or(|batch| batch.commands.is_empty());
            if let Some(batch) = batch {
                if !is_empty {
                    let parsed = splitter.parsed_to();
                    let outlasted = self.outlast_pause(&mut wire, parsed, &mut beats).await;
                    // Another link may have begun meanwhile.
                    self.replica().set_read_offset(0);
                    outlasted?;
                }
                let applying = self.applier.apply(self.epoch, batch);
                let (applied, beaten) =
                    self.beating(&mut wire, Beat::Position, &mut beats, applying).await;
                self.is_costly = applied.is_err();
                applied?;
                beaten?;
                if !std::mem::take(&mut self.told).is_empty() {
                    tracing::info!(primary = %self.primary, "the link to the primary is up again");
                }
            }
            if let Some(question) = splitter.take_asked() {
                awaited.ask(question.as_ref());
                self.acknowledge(&mut wire, question.as_ref()).await?;
            }
            self.tell_awaited(&mut wire, &mut awaited).await?;
            if !is_empty {
                // More whole commands may be in the buffer.
                continue;
            }
            let synced = &self.replica().synced;
            tokio::select! {
                biased;
                read = wire.read(READ) => {
                    read?;
                    self.replica().link().heard_ms = self.applier.node.clock.now_ms();
                }
                () = synced.notified(), if awaited.owes => {}
                () = self.replica().kicked.notified() => return Err(KICKED.to_owned()),
                _ = beats.tick() => {
                    wire.limit = Duration::from_secs(self.settings().repl_timeout_seconds);
                    wire.check_alive()?;
                    self.acknowledge(&mut wire, None).await?;
                }
            }
            if !self.is_wanted() {
                return Err(OTHER.to_owned());
            }
        }
    }

    /// Waits for the end of a pause of clients (CLIENT PAUSE): the primary is one of them. `parsed`: the offset
    /// behind which the buffer begins.
    async fn outlast_pause(
        &self,
        wire: &mut PrimaryWire,
        parsed: u64,
        beats: &mut Interval,
    ) -> Result<(), String> {
        let pauses = &self.applier.node.pauses;
        while pauses.of_clients().is_some() {
            let has_room = wire.buf.len() < MAX_READ_AHEAD;
            self.replica().set_read_offset(parsed + wire.buf.len() as u64);
            tokio::select! {
                biased;
                () = pauses.end_of_clients() => {}
                read = wire.read(READ), if has_room => {
                    read?;
                    self.replica().link().heard_ms = self.applier.node.clock.now_ms();
                }
                () = self.replica().kicked.notified() => return Err(KICKED.to_owned()),
                _ = beats.tick() => {
                    if has_room {
                        wire.check_alive()?;
                    }
                    self.acknowledge(wire, None).await?;
                }
            }
            if !self.is_wanted() {
                return Err(OTHER.to_owned());
            }
            if !has_room {
                wire.listen_again();
            }
        }
        Ok(())
    }

    /// Tells the primary how far this server is, if the primary's replies wait for more than was told.
    async fn tell_awaited(
        &self,
        wire: &mut PrimaryWire,
        awaited: &mut OwedPosition,
    ) -> Result<(), String> {
        let (applied, stored) = self.position();
        let reached = match awaited.level {
            ReplAck::None => return Ok(()),
            ReplAck::Async => applied,
            ReplAck::Sync => stored,
        };
        awaited.owes = awaited.level == ReplAck::Sync && stored != applied;
        if awaited.owes {
            let journal = &self.applier.node.journal;
            journal.request_sync(journal.end());
        }
        if reached == awaited.told {
            return Ok(());
        }
        awaited.told = reached;
        self.acknowledge(wire, None).await
    }
}

/// The replies of the primary that wait for this server.
#[derive(Default)]
struct OwedPosition {
    level: ReplAck,
    /// Position that the primary was told last.
    told: u64,
    /// True while bytes that are applied are not on disk yet.
    owes: bool,
}

impl OwedPosition {
    /// Notes a question of the primary.
    fn ask(&mut self, question: Option<&LeaseQuestion>) {
        if let Some(question) = question {
            self.level = question.level;
        }
    }
}

/// Checks the id of a stream.
fn stream_id(id: &str) -> Result<&[u8], String> {
    let is_valid = id.len() == ID && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_valid.then_some(id.as_bytes()).ok_or_else(|| format!("a malformed id of its stream: {id:?}"))
}

/// Returns ticks of a second, the first one at once.
fn beats() -> Interval {
    let mut beats = interval(SECOND);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beats
}

/// Introduces this server to a primary.
async fn greet(wire: &mut PrimaryWire, settings: &Settings) -> Result<(), String> {
    let reply = wire.ask(&[b"PING"]).await?;
    let wants_password = ["-NOAUTH", "-NOPERM", "-ERR operation not permitted"];
    if !reply.starts_with('+') && !wants_password.iter().any(|text| reply.starts_with(text)) {
        return Err(format!("it answers PING with {reply:?}"));
    }
    if let Some(password) = &settings.primaryauth {
        let mut login = vec![&b"AUTH"[..]];
        login.extend(settings.primaryuser.as_ref().map(|user| user.as_bytes()));
        login.push(password.as_bytes());
        let reply = wire.ask(&login).await?;
        if !reply.starts_with('+') {
            // The words of the reference: those who read its logs look for them.
            return Err(format!("Unable to AUTH to PRIMARY: {reply:?}"));
        }
    }
    let port = match settings.replica_announce_port {
        0 if settings.tls_replication && settings.tls_port != 0 => settings.tls_port,
        0 => settings.port,
        port => port,
    };
    let port = port.to_string();
    let mut told: Vec<Vec<&[u8]>> = vec![vec![b"listening-port", port.as_bytes()]];
    if let Some(ip) = &settings.replica_announce_ip {
        told.push(vec![b"ip-address", ip.as_bytes()]);
    }
    told.push(vec![b"capa", b"eof", b"capa", b"psync2"]);
    for words in told {
        let reply = wire.ask(&[&[&b"REPLCONF"[..]], &words[..]].concat()).await?;
        if reply.starts_with("-NOAUTH") || reply.starts_with("-NOPERM") {
            return Err(format!("it wants a password (primaryauth, primaryuser): {reply:?}"));
        }
    }
    Ok(())
}

/// A file that is removed at the end.
struct RemovedFile(PathBuf);

impl Drop for RemovedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Removes the file of a data set that a killed process has left.
pub(super) fn remove_left_over(settings: &Settings) {
    for entry in std::fs::read_dir(&settings.dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(SYNC_FILE.0) && name.ends_with(SYNC_FILE.1) {
            drop(RemovedFile(entry.path()));
        }
    }
}
