//! Replies of a cycle that come from several sources: its own buffer, batches of other workers, and
//! parked commands. They are put together piece by piece and sent before they take many bytes, so a
//! client that reads slowly keeps little memory however much it asks for.

use super::cycle::{CheckedReplies, ReplySource, confirmed};
use crate::command::Outcome;
use crate::worker::{
    Awaited, BatchReply, CmdBatch, MAX_REPLIES, Message, Ran, Shown, Worker, WorkerReplies,
};
use flagstone_wire::resp::Reply;
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::sync::oneshot;

/// Commands of a cycle for one worker.
struct Remote {
    worker: usize,
    /// Replies of the batch; `None` if the worker has ended.
    reply: Option<BatchReply>,
    /// Index of the next reply.
    next: usize,
}

impl Remote {
    /// Runs the commands that were put off until the replies of others had been written.
    async fn go_on(&mut self, worker: &Rc<Worker>) {
        let Some(mut before) = self.reply.take() else { return };
        let mut batch = before.take_rest();
        let mut rest = CmdBatch::default();
        if before.bytes_from(self.next) > MAX_REPLIES {
            // Many bytes follow the next reply: adds no further replies to them.
            let first = batch.split_first();
            rest = std::mem::replace(&mut batch, first);
        }
        let later = exchange(worker, [(self.worker, batch)]).await.pop().and_then(|later| later.1);
        self.reply = later.map(|mut later| before.fill(self.next, &mut later, rest));
        self.next = 0;
    }
}

/// Sends batches, short ones in parcels, and returns their replies when all have come.
async fn exchange(
    worker: &Rc<Worker>,
    batches: impl IntoIterator<Item = (usize, CmdBatch)>,
) -> Vec<WorkerReplies> {
    let awaited = Awaited::new(worker);
    let (mut long, mut gone) = (Vec::new(), Vec::new());
    for (target, batch) in batches {
        if !batch.is_short() {
            let (tx, rx) = oneshot::channel();
            // A worker that has ended drops the message, and with it the sender.
            let _ = worker.peers.mailboxes[target].send(Message::Batch(batch, tx)).await;
            long.push((target, rx));
        } else if !awaited.send(target, batch).await {
            gone.push((target, None));
        }
    }
    let mut replies = awaited.replies().await;
    for (target, rx) in long {
        replies.push((target, rx.await.ok()));
    }
    replies.append(&mut gone);
    replies
}

/// Replies that are yet to be put together.
pub(super) struct Scattered {
    out: Reply,
    /// End of the part of `out` that is put together already.
    from: usize,
    pieces: VecDeque<ReplySource>,
    remote: Vec<Remote>,
    shows_data: bool,
    /// Rounds that the replies in `out` show.
    shown: Shown,
}

impl Scattered {
    pub(super) fn new(
        out: Reply,
        pieces: VecDeque<ReplySource>,
        shows_data: bool,
        shown: Shown,
    ) -> Box<Self> {
        Box::new(Self { out, from: 0, pieces, remote: Vec::new(), shows_data, shown })
    }

    /// Sends the batches, and returns the first replies and the rest.
    pub(super) async fn begin(
        mut self: Box<Self>,
        worker: &Rc<Worker>,
        batches: Vec<(usize, CmdBatch)>,
    ) -> (Reply, Option<Box<Self>>) {
        if !batches.is_empty() {
            let replies = exchange(worker, batches).await.into_iter();
            self.remote =
                replies.map(|(worker, reply)| Remote { worker, reply, next: 0 }).collect();
        }
        // Each reply's outcome is checked when it is appended.
        let _ = worker.wait_shown(&self.shown).await;
        self.next(worker).await
    }

    /// Returns the next replies and the rest.
    pub(super) async fn next(
        mut self: Box<Self>,
        worker: &Rc<Worker>,
    ) -> (Reply, Option<Box<Self>>) {
        if self.out.is_lost() {
            return (self.out, None);
        }
        let mut whole = CheckedReplies::new(worker, self.pieces.len(), self.out.is_spared());
        while whole.bytes.len() <= MAX_REPLIES
            && !whole.bytes.lacks_room()
            && let Some(piece) = self.pieces.pop_front()
        {
            match piece {
                ReplySource::Here(end) => {
                    whole.push_own(&self.shown, end, &self.out.as_bytes()[self.from..end.at]);
                    self.from = end.at;
                }
                ReplySource::Parked { command, silent, done } => {
                    let mut ran = done.await.unwrap_or_else(|_| Ran::abandoned());
                    if let Some(command) = ran.put_off.take() {
                        ran =
                            worker.run_one(command.command, command.args(), command.request).await;
                    }
                    ran.end_wait(self.out.proto());
                    let mut answer = worker.settle_reply(command, ran).await;
                    whole.push((command, silent), (answer.reply.as_bytes(), answer.outcome));
                    whole.bytes.take_lack(&mut answer.reply);
                }
                ReplySource::Remote { worker: target, command, silent } => {
                    let mut remote = self.remote.iter_mut().find(|remote| remote.worker == target);
                    match next_of(worker, remote.as_deref_mut()).await {
                        Some(reply) => whole.push((command, silent), reply),
                        None => {
                            let text = format!("ERR worker {target} is gone");
                            whole.push_error((command, silent), &text);
                        }
                    }
                    if let Some(reply) = remote.and_then(|remote| remote.reply.as_mut()) {
                        whole.bytes.take_lack(reply.buffer());
                    }
                }
            }
        }
        whole.bytes.take_lack(&mut self.out);
        if self.remote.iter().filter_map(|remote| remote.reply.as_ref()).any(BatchReply::is_lost) {
            whole.bytes.discard_rest();
        }
        let replies = confirmed(worker, self.shows_data, whole.bytes, &whole.ends).await;
        let is_done = self.pieces.is_empty() || replies.is_lost();
        if is_done {
            self.remote.into_iter().filter_map(|remote| remote.reply).for_each(|reply| {
                worker.hop.give_reply(reply);
            });
            return (replies, None);
        }
        (replies, Some(self))
    }
}

/// Returns the next reply of a worker; `None` if it has ended.
async fn next_of<'a>(
    worker: &Rc<Worker>,
    remote: Option<&'a mut Remote>,
) -> Option<(&'a [u8], Outcome)> {
    let remote = remote?;
    if remote.reply.as_ref()?.get(remote.next).is_none() {
        remote.go_on(worker).await;
    }
    remote.next += 1;
    remote.reply.as_ref()?.get(remote.next - 1)
}
