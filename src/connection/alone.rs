//! Commands that run by themselves, behind the commands before them; they may wait, and short replies
//! before them leave with theirs.

use super::step::{Manner, NextStep};
use super::wire::Wire;
use super::{Connection, Settled, gate};
use crate::clients::ClientState;
use crate::cluster::PATIENCE;
use crate::command::{Answer, Command, Outcome};
use crate::config::Settings;
use crate::followers::{ReplicaWish, SyncWish};
use crate::node::Health;
use crate::replication::primary;
use crate::routing::{self, Call, Databases};
use crate::session::ReplyMode;
use crate::worker::FinishedCommand;
use bytes::Buf;
use flagstone_commands::flag;
use flagstone_wire::resp::{Args, Limits, Parsed, Parser, Reply};
use gate::{Admitted, Refusal};
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::time::Instant as Deadline;

impl Connection {
    /// Returns true if the reply of a command may show data; that of EXEC, if one of its commands does.
    fn shows_data(&self, command: &Command) -> bool {
        match self.session.transaction.as_deref().filter(|_| command.spec.has(flag!(EXEC))) {
            Some(transaction) => transaction.commands().iter().any(|one| routing::shows_data(one)),
            None => routing::shows_data(command),
        }
    }

    /// Returns the limits on the client's next request.
    pub(super) fn limits(&self, settings: &Settings) -> Limits {
        let max_bulk = settings.data.proto_max_bulk_len;
        Limits { max_bulk, authenticated: self.session.is_trusted(), ..Limits::default() }
    }

    /// Runs the command at the front of the buffer by itself. Returns false if the connection ends.
    pub(super) async fn run_barrier(&mut self) -> std::io::Result<bool> {
        let buf = std::mem::take(&mut self.buf);
        let mut parser = Parser::new();
        let settings = self.worker.settings();
        let limits = self.limits(&settings);
        let Ok(Parsed::Command) = parser.parse(&buf, &limits) else { return Ok(false) };
        let args = parser.args(&buf);
        let mut out = self.session.request().reply();
        if self.session.reply_mode == ReplyMode::SkipNext {
            self.session.reply_mode = ReplyMode::Skip;
        }
        let left = buf.len() - parser.consumed();
        let command = gate::resolve(args).ok();
        let shows_data = command.is_some_and(|command| self.shows_data(command));
        let mut ended = self.run_alone(args, left, &settings, &mut out).await?;
        // Other clients need not wait until this one has read its reply.
        self.worker.node.broadcast.pubsub.ring();
        let worker = self.worker.clone();
        let is_confirmed = if shows_data && ended.outcome != Outcome::Refused {
            let confirmed = pin!(worker.node.health.confirm_owner(&settings));
            self.answer_meanwhile(confirmed).await?
        } else {
            Ok(())
        };
        if let Err(text) = is_confirmed {
            let text = Health::uncertain(text, command.is_some_and(gate::may_change));
            if let Some(command) = command.filter(|_| !ended.outcome.is_error()) {
                self.worker.stats().failed(command, text);
            }
            out.truncate(0);
            out.error(text);
            ended.is_sifted = false;
        }
        self.session.end_caching(command);
        let is_wanted = self.session.end_reply();
        let silent = if ended.is_sifted { out.is_empty() } else { !is_wanted };
        let mut buf = buf;
        let consumed = parser.consumed();
        if consumed == buf.len() {
            drop(buf);
        } else {
            buf.advance(consumed);
            // More bytes may have been read while it waited.
            buf.extend_from_slice(&self.buf);
            self.buf = buf;
        }
        if silent {
            // Confirmations of subscriptions are sent all the same, before the following replies.
            for _ in 0..self.session.client.outbox.size().0 {
                self.wire().send_pushes().await?;
            }
        } else {
            self.serve_penalty().await;
            self.add_pushes(&mut out);
            self.reply_soon(&out).await?;
            drop(out);
            self.relieve_unread();
        }
        if let Some(wish) = self.session.sync.take() {
            Box::pin(self.serve_replica(wish)).await?;
            return Ok(false);
        }
        Ok(!ended.close && !self.session.closing)
    }

    async fn run_alone(
        &mut self,
        args: Args<'_>,
        left: usize,
        settings: &Settings,
        out: &mut Reply,
    ) -> std::io::Result<Settled> {
        let mut patience = None;
        let command = loop {
            match gate::admit(&self.session, &self.worker, None, args, settings) {
                Admitted::Run(command) => {
                    self.wrote |= gate::may_change(command);
                    break command;
                }
                Admitted::Refused(text) => {
                    let text = self.refused(args, text);
                    out.error(&text);
                    return Ok(Settled::REFUSED);
                }
                Admitted::Hostile => return Ok(Settled::CLOSING),
                Admitted::NoRoom => {
                    let node = self.worker.node.clone();
                    self.answer_meanwhile(pin!(node.health.room_or_refusal())).await?;
                }
                Admitted::Soon(awaited) => {
                    let node = self.worker.node.clone();
                    let Some(cluster) = &node.cluster else { continue };
                    let limit = *patience.get_or_insert_with(|| Deadline::now() + PATIENCE);
                    if Deadline::now() >= limit {
                        let secured = self.session.client.is(ClientState::SECURED);
                        let refusal = Refusal::Redirect(cluster.late(awaited, secured));
                        let text = self.refused(args, refusal);
                        out.error(&text);
                        return Ok(Settled::REFUSED);
                    }
                    self.wire().keep_until(cluster.until_settled(awaited, limit)).await?;
                }
                Admitted::Wait { may_write } => {
                    let node = self.worker.node.clone();
                    let paused = ClientState::BLOCKED | ClientState::PAUSED;
                    self.session.client.set(paused, true);
                    self.wire().keep_until(node.pauses.wait(may_write)).await?;
                    // Whatever it waits for, others go on meanwhile.
                    tokio::task::yield_now().await;
                    self.session.client.seen_at(self.worker.node.clock.now_ms());
                    self.session.client.set(paused, false);
                }
            }
        };
        match NextStep::of(&self.session, command, args) {
            NextStep::Queue => {
                let close = !self.queue(command, args, None, settings, out);
                Ok(Settled { close, ..Settled::DONE })
            }
            NextStep::Exec => {
                self.note_command(command, args, left);
                self.run_exec(command, args, out).await
            }
            NextStep::Run(manner) => {
                self.note_command(command, args, left);
                self.run_admitted(command, manner, args, out).await
            }
        }
    }

    /// Runs an admitted command by itself.
    pub(super) async fn run_admitted(
        &mut self,
        command: &'static Command,
        manner: Manner,
        args: Args<'_>,
        out: &mut Reply,
    ) -> std::io::Result<Settled> {
        let mark = out.len();
        let on_session = matches!(manner, Manner::Session);
        if !on_session {
            self.show(command, args);
        }
        let began = Instant::now();
        let outcome = match manner {
            Manner::BlockingKeys => {
                let Answer { reply, outcome } = self.run_blocking(command, args).await?;
                out.take_over(reply);
                return Ok(Settled { outcome, ..Settled::DONE });
            }
            Manner::Keys => {
                let request = self.session.request();
                let worker = self.worker.clone();
                let running = pin!(routing::run(&worker, command, args, request));
                let ran = self.answer_meanwhile(running).await?;
                out.take_over(ran.reply);
                return Ok(Settled { outcome: ran.outcome, ..Settled::DONE });
            }
            Manner::Session => self.run_on_session(command, args, out),
            Manner::Wait(handler) => {
                let client = self.session.client.clone();
                let mut wire = Wire {
                    worker: &self.worker,
                    client: &client,
                    stream: &mut self.stream,
                    buf: &mut self.buf,
                    taken: &mut self.taken,
                    unread: &mut self.unread,
                };
                let mut call = Call {
                    session: &mut self.session,
                    node: &self.worker.node,
                    worker: &self.worker,
                    out,
                };
                wire.keep_until(handler(&mut call, args)).await?
            }
            Manner::Databases(handler) => {
                let worker = self.worker.clone();
                let mut databases = Databases::new(&worker, &self.session.request(), out);
                match databases.begin(command, args) {
                    Ok(()) => self.answer_meanwhile(handler(&mut databases, args).as_mut()).await?,
                    stopped => stopped,
                }
            }
            Manner::Nothing(text) => Err(text.into()),
        };
        if on_session {
            self.show(command, args);
        }
        self.worker.start_watch_at(began);
        // The command may have changed them.
        let settings = self.worker.settings();
        self.ran(command, args, out.len().saturating_sub(mark), &settings);
        Ok(self.settle(command, outcome, out, mark))
    }

    /// Serves the client as a replica, until the connection ends.
    async fn serve_replica(&mut self, wish: SyncWish) -> std::io::Result<()> {
        self.wire().flush().await?;
        let told = self.session.replica.take().map_or_else(ReplicaWish::default, |told| *told);
        let buf = std::mem::take(&mut self.buf);
        primary::serve(&self.worker, (&mut self.stream, buf), &self.session.client, told, wish)
            .await
    }

    /// Counts a command that has run since the last one ended or the watch was started.
    pub(super) fn ran(
        &self,
        command: &Command,
        args: Args<'_>,
        reply_bytes: usize,
        settings: &Settings,
    ) {
        let (db, client) = (self.session.db, self.session.client.id);
        let spent = Duration::ZERO;
        self.worker
            .ran(&FinishedCommand { command, args, db, client, reply_bytes, spent }, settings);
    }
}
