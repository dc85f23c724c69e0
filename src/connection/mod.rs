//! A connection: reads, parses and routes commands, and writes the replies in order, with one write
//! per read.
//!
//! Each read starts a cycle (`cycle.rs`): commands on keys run in place or go to other workers in
//! batches, up to a limit, and the replies are written once the rounds that they show are stored. A
//! command that cannot run inside a cycle is a barrier: it runs by itself behind the commands before
//! it (`alone.rs`, `exec.rs`, `blocked.rs`), or with others behind it (`together.rs`). After a
//! bounded amount of work the connection gives other connections a turn.

mod alone;
mod blocked;
mod cycle;
mod exec;
mod farewell;
mod gate;
mod replies;
mod scattered;
mod step;
mod together;
mod turn;
mod unread;
mod waiting;
mod wire;
mod wrong_port;

use crate::clients::{Client, count};
use crate::command::{Command, Outcome};
use crate::config::Settings;
use crate::large;
use crate::routing::{self, Call, CallOutcome, CallStop};
use crate::session::{ReplyMode, Session};
use crate::transport::Stream;
use crate::worker::{Ahead, READ, Ready, Stopped, TURN, Worker};
use bytes::{Buf, BufMut, BytesMut};
use cycle::Cycle;
use flagstone_commands::flag;
use flagstone_wire::client_memory::Taken;
use flagstone_wire::resp::{Args, Parser, Reply};
use gate::{Admitted, Refusal};
use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use step::{Manner, NextStep};
use tokio::io::ReadBuf;
use tokio::time::Instant;
use turn::{TURN_BYTES, TurnBudget};
use unread::Unread;
use wire::Wire;

/// Reason why the parse loop stops.
enum Pause {
    /// All that was readable is parsed.
    Drained,
    /// The next command must run by itself, behind the replies before it.
    Barrier,
    /// The replies have to be written before more is parsed.
    Flush,
    /// The connection ends once the replies are written.
    Close,
}

/// A connection's task.
pub struct Connection {
    worker: Rc<Worker>,
    stream: Stream,
    session: Session,
    parser: Parser,
    /// Bytes that were read and not parsed; usually none.
    buf: BytesMut,
    /// Memory charged for `buf`.
    taken: Taken,
    /// Replies that the client has not read.
    unread: Unread,
    /// Time when the first of them were put off, if any were.
    put_off_at: Option<Instant>,
    /// Number of bytes that the client was sent before it authenticated.
    told_stranger: usize,
    turn: TurnBudget,
    /// Time for which its commands have run since others had a turn.
    busy: Duration,
    /// Number of bytes that it has read and written since then.
    moved: usize,
    /// Number of bytes that it has read for commands that write, and since its last one.
    unpaid: usize,
    /// True if it has run such a command since its last read.
    wrote: bool,
}

/// Serves a connection until it ends.
pub async fn serve(worker: Rc<Worker>, stream: Stream, client: Arc<Client>) {
    let account = worker.node.access.accounts.default_account().clone();
    let session = Session::new(client.clone(), account, !client.is_stranger());
    let mut connection = Box::new(Connection {
        worker: worker.clone(),
        stream,
        session,
        parser: Parser::new(),
        buf: BytesMut::new(),
        taken: Taken::default(),
        unread: Unread::default(),
        put_off_at: None,
        told_stranger: 0,
        turn: TurnBudget::new(worker.last_ran()),
        busy: Duration::ZERO,
        moved: 0,
        unpaid: 0,
        wrote: false,
    });
    // An error, such as a reset, is the client's way to disconnect.
    let _ = farewell::unless_killed(&client, connection.run_to_end()).await;
    if client.is_too_slow() {
        worker.node.clients.too_slow.fetch_add(1, Ordering::Relaxed);
    }
    worker.node.clients.remove(client.id);
    worker.node.clients.befriend(&client);
    worker.stats().connections.fetch_sub(1, Ordering::Relaxed);
    let greedy_bytes = client.greedy_bytes();
    let Connection { mut stream, session, parser, buf, unread, .. } = *connection;
    stream.close();
    drop((buf, unread, session, parser, client));
    if greedy_bytes != 0 {
        tokio::select! {
            () = worker.node.clients.part(worker.node.clock.now_ms(), greedy_bytes) => {}
            () = worker.stopping() => {}
        }
    }
    drop(stream);
}

impl Connection {
    async fn run_to_end(&mut self) -> std::io::Result<()> {
        let ran = self.run().await;
        if self.session.client.is_ending() {
            return self.take_leave().await;
        }
        ran?;
        self.wire().flush().await
    }

    async fn run(&mut self) -> std::io::Result<()> {
        loop {
            // There may always be something to read.
            self.give_turn().await;
            if !self.wait_readable().await? {
                return Ok(());
            }
            self.keep_pace().await;
            let mut scratch = self.worker.buffers.take_scratch();
            let read = if self.buf.is_empty() {
                self.read_now(&mut scratch).await
            } else {
                let wanted = self.parser.missing(self.buf.len());
                large::reserve(&mut self.buf, READ, wanted);
                self.charge_buffer();
                self.stream.try_read_buf(&mut (&mut self.buf).limit(TURN_BYTES))
            };
            let n = match read {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.worker.buffers.give_scratch(scratch);
                    continue;
                }
                Err(e) => return Err(e),
            };
            self.moved += n;
            self.unpaid += n;
            count(&self.worker.stats().reads, 1);
            count(&self.session.client.bytes_in, n as u64);
            self.worker.stats().bytes_in.fetch_add(n as u64, Ordering::Relaxed);
            let mut cycle = Cycle::new(&self.worker, &self.session);
            let pause = if self.buf.is_empty() {
                let (pause, consumed) = self.parse_from(&scratch[..n], &mut cycle);
                self.buf.extend_from_slice(&scratch[consumed..n]);
                pause
            } else {
                self.parse_buffered(&mut cycle)
            };
            self.worker.buffers.give_scratch(scratch);
            if !self.finish(cycle, pause).await? {
                return Ok(());
            }
            self.worker.end_cycle();
        }
    }

    /// Reads the bytes that have arrived. Unlike `try_read`, it knows that these were all if they
    /// do not fill the buffer, so the next wait needs no further read.
    async fn read_now(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut buf = ReadBuf::new(buf);
        let polled = poll_fn(|cx| Poll::Ready(self.stream.poll_read(cx, &mut buf)));
        match polled.await {
            Poll::Ready(read) => read.map(|()| self.understood(buf.filled())),
            Poll::Pending => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Gives other connections a turn if its own is over.
    async fn give_turn(&mut self) {
        if self.busy > TURN || self.moved > TURN_BYTES {
            self.end_turn().await;
        }
    }

    async fn end_turn(&mut self) {
        self.worker.turns.end().await;
        (self.busy, self.moved) = (Duration::ZERO, 0);
    }

    fn wire(&mut self) -> Wire<'_> {
        Wire {
            worker: &self.worker,
            client: &self.session.client,
            stream: &mut self.stream,
            buf: &mut self.buf,
            taken: &mut self.taken,
            unread: &mut self.unread,
        }
    }

    /// Pauses after commands that write, while writers are slowed.
    async fn keep_pace(&mut self) {
        if std::mem::take(&mut self.wrote) {
            let pause =
                self.worker.node.pressure.pace.charge(std::mem::take(&mut self.unpaid) as u64);
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        } else if self.buf.is_empty() {
            self.unpaid = 0;
        }
    }

    /// Writes a cycle's replies, and continues with the buffered commands until all are parsed.
    /// Returns false if the connection has to be closed.
    async fn finish(&mut self, mut cycle: Cycle, mut pause: Pause) -> std::io::Result<bool> {
        loop {
            self.worker.node.broadcast.pubsub.ring();
            let (mut out, mut rest) = if self.put_off_at.is_none() {
                cycle.finish(&self.worker).await
            } else {
                let worker = self.worker.clone();
                self.answer_meanwhile(pin!(cycle.finish(&worker))).await?
            };
            while let Some(more) = rest {
                self.reply(&out).await?;
                self.session.client.goes_on();
                (out, rest) = more.next(&self.worker).await;
            }
            self.serve_penalty().await;
            self.add_pushes(&mut out);
            match pause {
                Pause::Barrier => self.reply_soon(&out).await?,
                _ => self.reply(&out).await?,
            }
            self.worker.buffers.give_reply_buffer(out.into_buffer());
            self.relieve_unread();
            if self.session.client.is_ending() {
                return Ok(false);
            }
            match pause {
                Pause::Drained => {
                    if self.buf.is_empty() {
                        self.buf = BytesMut::new();
                    }
                    return self.check_buffer().await;
                }
                Pause::Close => return Ok(false),
                Pause::Flush => self.end_turn().await,
                Pause::Barrier => {
                    self.session.client.goes_on();
                    // Its state is large, and most of the time a connection has none.
                    if !Box::pin(self.run_together()).await?
                        && !Box::pin(self.run_barrier()).await?
                    {
                        return Ok(false);
                    }
                }
            }
            if self.session.client.is_ending() {
                return Ok(false);
            }
            cycle = Cycle::new(&self.worker, &self.session);
            pause = self.parse_buffered(&mut cycle);
        }
    }

    /// Charges the memory of the buffer; if there is too little, clients are closed.
    fn charge_buffer(&mut self) {
        let client = &self.session.client;
        let bytes = large::memory(&self.buf);
        client.buffer_bytes.store(bytes as u64, Ordering::Relaxed);
        self.taken.set(bytes);
        self.worker.node.clients.relieve(client.last_ms());
    }

    async fn check_buffer(&mut self) -> std::io::Result<bool> {
        let client = &self.session.client;
        // Of a command that is incomplete, the bytes up to the argument that is being read.
        let parsed = if self.parser.in_request() { self.parser.consumed() } else { 0 };
        let rest = self.buf.len().saturating_sub(parsed);
        client.query_bytes.store(rest as u64, Ordering::Relaxed);
        client.argument_bytes.store(parsed as u64, Ordering::Relaxed);
        self.charge_buffer();
        if self.buf.len() <= self.worker.settings().client_query_buffer_limit {
            return Ok(true);
        }
        tracing::warn!(
            client = self.session.client.id,
            "the query buffer limit is reached: closing"
        );
        count(&self.worker.stats().query_limit_closes, 1);
        self.session.client.set_greedy();
        Ok(false)
    }

    fn parse_buffered(&mut self, cycle: &mut Cycle) -> Pause {
        let mut buf = std::mem::take(&mut self.buf);
        let (pause, consumed) = self.parse_from(&buf, cycle);
        if consumed == buf.len() {
            // The buffer may be big, and is not kept until the replies can be sent.
            drop(buf);
        } else {
            buf.advance(consumed);
            self.buf = buf;
        }
        pause
    }

    /// Parses and dispatches as many commands as possible; returns the number of bytes that are
    /// processed.
    fn parse_from(&mut self, data: &[u8], cycle: &mut Cycle) -> (Pause, usize) {
        if self.session.client.is_killed() {
            // A command that was sent after the reply to CLIENT KILL or ACL DELUSER never runs.
            return (Pause::Close, 0);
        }
        let mut settings = self.worker.settings();
        let mut limits = self.limits(&settings);
        let client = &self.session.client;
        client.begins(cycle.now_ms());
        client.query_bytes.store(data.len() as u64, Ordering::Relaxed);
        let mut parser = std::mem::take(&mut self.parser);
        let mut ahead = self.worker.buffers.take_ahead();
        self.worker.start_watch();
        self.turn = TurnBudget::new(self.worker.last_ran());
        // The commands up to `done` have run, those up to `parsed` are parsed.
        let (mut done, mut parsed) = (0, 0);
        let pause = loop {
            let layout = &self.worker.node.layout;
            let stopped = ahead.fill(&mut parser, data, &mut parsed, &limits, layout);
            self.worker.warm_ahead(&ahead, (&parser, data), self.session.db);
            if let Some(pause) =
                self.dispatch_ahead(&ahead, &parser, data, &mut done, cycle, &mut settings)
            {
                // Commands that have not run are parsed again.
                parser = Parser::new();
                break pause;
            }
            done = parsed;
            limits.authenticated = self.session.is_trusted();
            limits.max_bulk = settings.data.proto_max_bulk_len;
            match stopped {
                Stopped::Full => {}
                Stopped::Drained => break Pause::Drained,
                Stopped::Failed(error) => {
                    self.worker.stats().error("ERR");
                    cycle.begin_replies(self.session.reply_mode);
                    cycle.out().error(error.reply_text());
                    cycle.end_command();
                    break Pause::Close;
                }
            }
        };
        self.worker.buffers.give_ahead(ahead);
        self.parser = parser;
        self.busy += self.turn.busy(self.worker.last_ran());
        (pause, done)
    }

    /// Dispatches the commands that were parsed ahead, and moves `done` behind those that have run.
    /// Returns why not all have, or why no more may be parsed for now.
    fn dispatch_ahead(
        &mut self,
        ahead: &Ahead,
        parser: &Parser,
        data: &[u8],
        done: &mut usize,
        cycle: &mut Cycle,
        settings: &mut Arc<Settings>,
    ) -> Option<Pause> {
        if self.are_together(ahead, cycle) {
            cycle.begin_command();
            *done = ahead.get(0, parser, data).bytes.start;
            return Some(Pause::Barrier);
        }
        for n in 0..ahead.len() {
            let ready = ahead.get(n, parser, data);
            let mode = self.session.reply_mode;
            cycle.begin_replies(mode);
            let dispatched = self.dispatch(&ready, data.len() - ready.bytes.end, cycle, settings);
            if dispatched == Dispatched::Barrier {
                // Empty requests before it are processed.
                *done = ready.bytes.start;
                return Some(Pause::Barrier);
            }
            if matches!(mode, ReplyMode::SkipNext | ReplyMode::Skip) {
                // None that changes the mode runs in the cycle while a reply is skipped.
                self.session.reply_mode = ReplyMode::On;
            }
            *done = ready.bytes.end;
            if !ready.command.is_some_and(|command| command.spec.run.is_on_keys()) {
                // CONFIG SET applies to the commands behind it.
                *settings = self.worker.settings();
            }
            if dispatched == Dispatched::Close {
                return Some(Pause::Close);
            }
            if cycle.is_full() || self.is_turn_over() {
                return Some(Pause::Flush);
            }
        }
        None
    }

    /// Returns true if other connections have their turn now.
    fn is_turn_over(&mut self) -> bool {
        self.turn.is_over(self.worker.last_ran(), self.session.is_trusted())
            || self.session.penalty.is_some()
    }

    /// Dispatches a command. `left`: bytes behind it that are read and have not run.
    fn dispatch(
        &mut self,
        ready: &Ready<'_>,
        left: usize,
        cycle: &mut Cycle,
        settings: &Settings,
    ) -> Dispatched {
        let args = ready.args;
        cycle.begin_command();
        let command = match gate::admit(&self.session, &self.worker, ready.command, args, settings)
        {
            Admitted::Run(command) => command,
            Admitted::Refused(text) => {
                let text = self.refused(args, text);
                cycle.out().error(text);
                cycle.end_command();
                self.session.end_caching(gate::resolve(args).ok());
                // The refusal has taken time, too.
                self.worker.start_watch();
                return Dispatched::Done;
            }
            Admitted::Wait { .. } | Admitted::NoRoom | Admitted::Soon(_) => {
                return Dispatched::Barrier;
            }
            Admitted::Hostile => return Dispatched::Close,
        };
        self.wrote |= gate::may_change(command);
        // It may end the silence, or confirm subscriptions, which every client is told.
        let runs_here = cycle.has_run_all() && self.session.reply_mode == ReplyMode::On;
        match NextStep::of(&self.session, command, args) {
            NextStep::Queue => {
                let queued = self.queue(command, args, ready.at, settings, cycle.out());
                cycle.end_command();
                cycle.note_queued(&self.worker);
                if queued { Dispatched::Done } else { Dispatched::Close }
            }
            NextStep::Exec => {
                cycle.end_queueing(&self.worker);
                self.exec_in_cycle(command, args, cycle, settings)
            }
            NextStep::Run(Manner::Keys) => {
                if cycle.route(&self.worker, &self.session, command, args, ready.at, settings) {
                    self.session.client.runs(command.id);
                    self.show(command, args);
                    self.session.end_caching(Some(command));
                    Dispatched::Done
                } else {
                    Dispatched::Barrier
                }
            }
            NextStep::Run(Manner::Session) if runs_here => {
                // DISCARD ends a queue, too. No command on keys comes right behind a queued one.
                cycle.end_queueing(&self.worker);
                self.note_command(command, args, left);
                let mark = cycle.out().len();
                let outcome = self.run_on_session(command, args, cycle.out());
                self.show(command, args);
                self.session.end_caching(Some(command));
                let close = self.settle(command, outcome, cycle.out(), mark).close;
                let reply_bytes = cycle.out().len().saturating_sub(mark);
                self.ran(command, args, reply_bytes, settings);
                cycle.end_command();
                if close || self.session.closing { Dispatched::Close } else { Dispatched::Done }
            }
            NextStep::Run(
                Manner::BlockingKeys
                | Manner::Session
                | Manner::Wait(_)
                | Manner::Databases(_)
                | Manner::Nothing(_),
            ) => Dispatched::Barrier,
        }
    }

    /// Runs a command on the session.
    fn run_on_session(
        &mut self,
        command: &Command,
        args: Args<'_>,
        out: &mut Reply,
    ) -> CallOutcome {
        let (node, worker) = (&self.worker.node, &self.worker);
        let mut call = Call { session: &mut self.session, node, worker, out };
        routing::run_on_session(command, &mut call, args)
    }

    /// Records the start of a command for CLIENT LIST. `left`: bytes behind it that are read and
    /// have not run.
    fn note_command(&self, command: &Command, args: Args<'_>, left: usize) {
        let client = &self.session.client;
        client.query_bytes.store(left as u64, Ordering::Relaxed);
        client.runs(command.id);
        let bytes: usize = args.iter().map(<[u8]>::len).sum();
        client.argument_bytes.store(bytes as u64, Ordering::Relaxed);
    }

    /// Breaks the transaction, because a command was refused; returns the error text for the
    /// client.
    fn refused(&mut self, args: Args<'_>, refusal: Refusal) -> Vec<u8> {
        let command = gate::resolve(args).ok();
        let exec = command.filter(|command| command.spec.has(flag!(EXEC)));
        let text = refusal.text(exec.is_some());
        self.worker.stats().refused(command, &text);
        match exec {
            Some(exec) => {
                self.session.discard();
                self.session.watches = None;
                self.show(exec, args);
            }
            None => self.session.break_transaction(),
        }
        text
    }

    /// Replaces the reply by an error, if there is one.
    fn settle(
        &self,
        command: &Command,
        outcome: CallOutcome,
        out: &mut Reply,
        mark: usize,
    ) -> Settled {
        let (text, outcome) = match outcome {
            Ok(()) if out.replace_lost(mark) => return Settled::FAILED,
            Ok(()) => return Settled::DONE,
            Err(CallStop::Close) => return Settled::CLOSING,
            Err(CallStop::Error(text)) => (text, Outcome::Failed),
            Err(CallStop::Unstored(error)) => (error.text.into(), error.outcome),
        };
        self.worker.stats().failed(command, &text);
        out.truncate(mark);
        out.error(text);
        Settled { outcome, ..Settled::DONE }
    }

    /// Shows a command that runs to monitors.
    #[inline]
    fn show(&self, command: &Command, args: Args<'_>) {
        self.worker.show(command, &self.session.client, self.session.db, args);
    }
}

/// End of a command that ran by itself.
struct Settled {
    outcome: Outcome,
    /// True if the connection has to be closed.
    close: bool,
    /// True if its reply has only those parts that the client wants (CLIENT REPLY in EXEC).
    is_sifted: bool,
}

impl Settled {
    const DONE: Self = Self { outcome: Outcome::Done, close: false, is_sifted: false };
    const FAILED: Self = Self { outcome: Outcome::Failed, ..Self::DONE };
    const REFUSED: Self = Self { outcome: Outcome::Refused, ..Self::DONE };
    const CLOSING: Self = Self { close: true, ..Self::DONE };
}

#[derive(PartialEq, Eq)]
enum Dispatched {
    Done,
    Barrier,
    Close,
}
