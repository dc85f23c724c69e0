//! Commands of a pipeline that has several on keys of several workers: they run in one loan (see
//! `routing`'s `loan.rs`), together with the commands on keys of one worker that are between them.

use super::cycle::Cycle;
use super::step::{Manner, NextStep};
use super::{Connection, gate};
use crate::command::{Command, Outcome, OwnedCommand, Route};
use crate::node::Health;
use crate::routing::{self, Target};
use crate::session::ReplyMode;
use crate::worker::{Ahead, MAX_REPLIES, Ready, Stopped};
use bytes::Buf;
use flagstone_commands::flag;
use flagstone_wire::resp::Parser;
use gate::Admitted;
use std::io::Result;
use std::pin::pin;
use std::rc::Rc;

/// Maximum number of keys, and of arguments, of commands that run in one loan.
const KEYS: usize = 64;
const ARGUMENTS: usize = 512;

/// Commands that may run in one loan.
#[derive(Default)]
struct Together {
    commands: Vec<OwnedCommand>,
    /// End of each command in the read buffer.
    ends: Vec<usize>,
    /// Number of those on keys of several workers.
    many: usize,
    keys: usize,
    arguments: usize,
    bytes: usize,
}

/// Returns true if a command may run in one loan with others.
fn may_share(command: &Command) -> bool {
    matches!(command.spec.run, Route::Keys(_))
        && !command.undeclared_keys
        && !command.spec.has(flag!(BLOCKING))
}

impl Together {
    /// Adds a command if it may run in a loan with those before. Returns false if it is too much.
    fn add(&mut self, connection: &Connection, command: &'static Command, one: &Ready<'_>) -> bool {
        let (session, worker) = (&connection.session, &connection.worker);
        let args = one.args;
        self.keys += command.keys(args, session.db).len();
        self.arguments += args.len();
        self.bytes += args.bytes();
        if self.keys > KEYS || self.arguments > ARGUMENTS || self.bytes > MAX_REPLIES {
            return false;
        }
        let at = routing::target(&worker.node, command, args, one.at, session.db, worker.id);
        self.commands.push(OwnedCommand::new(command, args, session.request()));
        self.ends.push(one.bytes.end);
        self.many += usize::from(at == Target::Many);
        true
    }
}

impl Connection {
    /// Returns true if the next commands may run in one loan, and several are on keys of several
    /// workers.
    pub(super) fn are_together(&self, ahead: &Ahead, cycle: &Cycle) -> bool {
        cycle.is_empty() && self.may_gather() && self.crosses(ahead)
    }

    fn crosses(&self, ahead: &Ahead) -> bool {
        ahead.crosses(may_share, |at| self.worker.node.worker_of(at.slot))
    }

    fn may_gather(&self) -> bool {
        let session = &self.session;
        self.worker.node.shard_workers > 1
            && session.reply_mode == ReplyMode::On
            && session.transaction.is_none()
            && session.tracking.is_none()
    }

    /// Runs the commands at the front of the buffer in one loan, if several of them are on keys of
    /// several workers. Returns false if none has run.
    pub(super) async fn run_together(&mut self) -> Result<bool> {
        let Some(Together { commands, ends, .. }) = self.gather() else { return Ok(false) };
        let commands: Rc<[OwnedCommand]> = commands.into();
        let left = self.buf.len() - ends[0];
        self.note_command(commands[0].command, commands[0].args(), left);
        let client = self.session.client.clone();
        let worker = self.worker.clone();
        let running = pin!(routing::run_together(&worker, client, commands.clone()));
        let answers = self.answer_meanwhile(running).await?;
        let Some(end) = answers.len().checked_sub(1).and_then(|last| ends.get(last)) else {
            return Ok(false);
        };
        self.buf.advance(*end);
        // Other clients need not wait until this one has read its replies.
        self.worker.node.broadcast.pubsub.ring();
        let settings = self.worker.settings();
        let confirmed = pin!(worker.node.health.confirm_owner(&settings));
        let confirmed = self.answer_meanwhile(confirmed).await?;
        let mut out = self.session.request().reply();
        for (n, (one, answer)) in commands.iter().zip(answers).enumerate() {
            self.wrote |= gate::may_change(one.command);
            if n > 0 {
                self.session.client.runs(one.command.id);
            }
            match confirmed {
                Err(text) if answer.outcome != Outcome::Refused => {
                    let text = Health::uncertain(text, gate::may_change(one.command));
                    if !answer.outcome.is_error() {
                        self.worker.stats().failed(one.command, text);
                    }
                    out.error(text);
                }
                _ => out.take_over(answer.reply),
            }
        }
        self.add_pushes(&mut out);
        self.reply_soon(&out).await?;
        drop(out);
        self.relieve_unread();
        Ok(true)
    }

    /// Returns the commands at the front of the buffer that may run in one loan, if several of
    /// them are on keys of several workers.
    fn gather(&self) -> Option<Together> {
        if !self.may_gather() {
            return None;
        }
        let session = &self.session;
        let settings = self.worker.settings();
        let limits = self.limits(&settings);
        let mut together = Together::default();
        let (mut parser, mut parsed) = (Parser::new(), 0);
        let mut ahead = self.worker.buffers.take_ahead();
        let layout = &self.worker.node.layout;
        loop {
            let stopped = ahead.fill(&mut parser, &self.buf, &mut parsed, &limits, layout);
            if together.commands.is_empty() && !self.crosses(&ahead) {
                break;
            }
            let mut next = (0..ahead.len()).map(|n| ahead.get(n, &parser, &self.buf));
            let all = next.all(|one| {
                // A refusal is logged and counted when it is the command's turn.
                let args = one.args;
                one.command.is_some_and(|command| {
                    may_share(command)
                        && gate::is_allowed(session, command, args)
                        && matches!(
                            gate::admit(session, &self.worker, one.command, args, &settings),
                            Admitted::Run(_)
                        )
                        && matches!(
                            NextStep::of(session, command, args),
                            NextStep::Run(Manner::Keys)
                        )
                        && together.add(self, command, &one)
                })
            });
            if !all || !matches!(stopped, Stopped::Full) {
                break;
            }
        }
        self.worker.buffers.give_ahead(ahead);
        (together.many > 1).then_some(together)
    }
}
