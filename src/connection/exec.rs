//! Transactions on a connection: queues commands, and runs them with EXEC.

use super::cycle::Cycle;
use super::step::Manner;
use super::{Connection, Dispatched, Settled, gate};
use crate::command::{Answer, Command, Outcome, Request};
use crate::config::Settings;
use crate::routing;
use crate::session::{ReplyMode, chosen_db};
use crate::transaction::{Transaction, queued, runs_in_unit};
use flagstone_commands::flag;
use flagstone_storage::KeyHash;
use flagstone_wire::resp::{Args, Reply};
use std::io::Result;
use std::pin::pin;
use std::sync::atomic::Ordering;

/// Maximum number of queued bytes, whatever the limit of the query buffer: arguments have 32-bit
/// offsets.
const MAX_QUEUED: usize = u32::MAX as usize;

const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";

impl Connection {
    /// Queues a command; returns false if the queue exceeds its limit. `at`: its only key, if it
    /// was hashed.
    pub(super) fn queue(
        &mut self,
        command: &'static Command,
        args: Args<'_>,
        at: Option<KeyHash>,
        settings: &Settings,
        out: &mut Reply,
    ) -> bool {
        let selects = command.spec.has(flag!(SELECTS));
        let selected = if selects { chosen_db(args, settings).ok() } else { None };
        let Some(transaction) = &mut self.session.transaction else { return true };
        let flags = routing::flags(command, &self.worker.node, args);
        transaction.push(command, flags, args, at, selected);
        let bytes = transaction.bytes();
        let count = transaction.commands().len();
        let client = &self.session.client;
        client.queued.store(i32::try_from(count).unwrap_or(i32::MAX), Ordering::Relaxed);
        client.queued_bytes.store(bytes as u64, Ordering::Relaxed);
        let longest = args.iter().map(<[u8]>::len).max().unwrap_or_default() as u64;
        if longest > client.queued_longest.load(Ordering::Relaxed) {
            client.queued_longest.store(longest, Ordering::Relaxed);
        }
        out.simple("QUEUED");
        if bytes <= settings.client_query_buffer_limit.min(MAX_QUEUED) {
            return true;
        }
        tracing::warn!(client = client.id, "a transaction reaches the query buffer limit: closing");
        client.set_greedy();
        self.worker.stats().query_limit_closes.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Runs EXEC inside a cycle, if all commands run as one unit on one worker; otherwise it is a
    /// barrier.
    pub(super) fn exec_in_cycle(
        &mut self,
        exec: &'static Command,
        args: Args<'_>,
        cycle: &mut Cycle,
        settings: &Settings,
    ) -> Dispatched {
        self.name_exec(args);
        let watches = self.session.watches.is_some();
        let own = self.session.db;
        // One that selects another database does so only if it runs.
        let plain = |t: &Transaction| !t.is_broken() && !t.is_mixed() && !watches && t.db() == own;
        let Some(transaction) = self.session.transaction.as_deref().filter(|t| plain(t)) else {
            return Dispatched::Barrier;
        };
        if !cycle.route(&self.worker, &self.session, exec, transaction.args(), None, settings) {
            return Dispatched::Barrier;
        }
        if transaction.names_its_keys() {
            cycle.goes_on();
        }
        self.session.client.runs(exec.id);
        self.session.client.runs_queued(transaction.commands().len());
        self.session.end_transaction();
        self.session.end_caching(Some(exec));
        Dispatched::Done
    }

    /// Sets EXEC's name for monitors, as the client has written it.
    fn name_exec(&mut self, args: Args<'_>) {
        if self.worker.node.broadcast.monitors.any()
            && let (Some(transaction), Some(name)) = (&mut self.session.transaction, args.get(0))
        {
            transaction.named(name);
        }
    }

    /// Runs EXEC behind the commands before it.
    pub(super) async fn run_exec(
        &mut self,
        exec: &'static Command,
        args: Args<'_>,
        out: &mut Reply,
    ) -> Result<Settled> {
        self.name_exec(args);
        let Some(mut transaction) = self.session.end_transaction() else {
            return Ok(self.fail_exec(exec, args, "ERR EXEC without MULTI", out));
        };
        // The watches end with EXEC, once it has checked them.
        let watches = self.session.watches.take();
        if transaction.is_broken() {
            return Ok(self.fail_exec(exec, args, ABORTED, out));
        }
        let mut postponed = None;
        if transaction.is_mixed() {
            let db = self.session.db;
            postponed = self.worker.postpone_waiters(|| {
                let keys = exec.keys(transaction.args(), db).into_iter();
                keys.map(|(db, key)| (db, key.into())).collect()
            });
            let node = &self.worker.node;
            transaction
                .note_logins(|command, args| routing::handlers(command).account?(node, args));
        }
        let request = self.session.request();
        let worker = self.worker.clone();
        let replica = &worker.node.health.replica;
        let had_primary = replica.has_primary();
        let mut ran = self.run_unit(exec, &transaction, request).await?;
        let mut ended = Settled { outcome: ran.outcome, ..Settled::DONE };
        if ran.outcome == Outcome::Done {
            self.session.client.runs_queued(transaction.commands().len());
            self.session.select(transaction.db());
        }
        if !transaction.is_mixed() {
            out.take_over(ran.reply);
            return Ok(ended);
        }
        // Confirmations of its subscriptions are part of the reply: no other pushes may come there.
        self.session.take_pushes(out);
        if ran.outcome == Outcome::Done {
            let mut others = request.reply();
            let mut wanted = vec![self.session.reply_mode == ReplyMode::On];
            let running = self.run_others(&transaction, &mut others, &mut wanted);
            ended.close = Box::pin(running).await?;
            // ROLE among them may tell of a promotion: then the unit shows what the primary has.
            if had_primary && !replica.has_primary() && !transaction.may_write() {
                ran = self.run_unit(exec, &transaction, request).await?;
                ended.outcome = ran.outcome;
            }
            if ran.outcome == Outcome::Done {
                put_together(&transaction, &ran.reply, &others, &wanted, out);
                ended.is_sifted = true;
            }
            out.take_lack(&mut others);
        }
        if ran.outcome != Outcome::Done {
            out.append(ran.reply.as_bytes());
        }
        drop((watches, postponed));
        out.take_lack(&mut ran.reply);
        self.show(exec, args);
        Ok(ended)
    }

    /// Runs the commands of a transaction that are part of a unit.
    async fn run_unit(
        &mut self,
        exec: &'static Command,
        transaction: &Transaction,
        request: Request,
    ) -> Result<Answer> {
        let worker = self.worker.clone();
        let running = pin!(routing::run(&worker, exec, transaction.args(), request));
        self.answer_meanwhile(running).await
    }

    /// Fails an EXEC that has nothing to run.
    fn fail_exec(
        &self,
        exec: &'static Command,
        args: Args<'_>,
        text: &'static str,
        out: &mut Reply,
    ) -> Settled {
        let mark = out.len();
        let settings = self.worker.settings();
        self.show(exec, args);
        self.worker.start_watch();
        self.ran(exec, args, text.len(), &settings);
        self.settle(exec, Err(text.into()), out, mark)
    }

    /// Runs the commands of a transaction that need the connection, behind its part on keys; writes
    /// a piece for each of them, and whether the client wants it and those behind it. Returns true if the
    /// connection has to be closed.
    async fn run_others(
        &mut self,
        transaction: &Transaction,
        out: &mut Reply,
        wanted: &mut Vec<bool>,
    ) -> Result<bool> {
        let settings = self.worker.settings();
        let node = self.worker.node.clone();
        let _hold = node.pauses.hold_evictions();
        let mut close = false;
        self.session.in_exec = true;
        for other in queued(transaction.args()).filter(|other| !runs_in_unit(other.command)) {
            let (command, args) = (other.command, other.args);
            if let Err(text) = gate::admit_queued(&self.session, &node, command, args, &settings) {
                self.worker.stats().error(&text);
                out.error(text);
            } else {
                let manner = Manner::of(command, args);
                close |= self.run_admitted(command, manner, args, out).await?.close;
            }
            out.end_piece();
            wanted.push(self.session.reply_mode == ReplyMode::On);
        }
        self.session.in_exec = false;
        Ok(close)
    }
}

/// Puts the replies of a transaction together, of its unit and of its other commands, in the order of the commands.
/// `wanted`: whether the client wants the first part, and what comes from each of the other commands on. As
/// in the reference, the array is announced as one of all replies, whatever is left out.
fn put_together(
    transaction: &Transaction,
    unit: &Reply,
    others: &Reply,
    wanted: &[bool],
    out: &mut Reply,
) {
    let mut wanted = wanted.iter().copied();
    let mut is_wanted = wanted.next().unwrap_or(true);
    if is_wanted {
        out.array(transaction.commands().len());
    }
    let (mut of_unit, mut of_others) = (unit.pieces(), others.pieces());
    for command in transaction.commands() {
        let is_of_unit = runs_in_unit(command);
        if !is_of_unit {
            is_wanted = wanted.next().unwrap_or(is_wanted);
        }
        let piece = if is_of_unit { of_unit.next() } else { of_others.next() };
        if is_wanted {
            out.append(piece.unwrap_or_default());
        }
    }
    if others.is_lost() {
        out.discard_rest();
    }
}
