//! A worker's bounded mailbox, with three lanes: urgent messages are taken first, then batches of
//! few commands, then all others; a bounded number of short batches overtakes a long one.

use super::batch::{BatchReply, CmdBatch};
use super::lending::{Acquire, Apply, Grant};
use tokio::sync::{mpsc, oneshot};

/// Number of messages that a lane holds before its senders wait.
const LANE: usize = 1024;

/// Maximum number of short batches that overtake a waiting long one.
const FEW_FIRST: usize = 16;

/// Maximum number of messages in a drain.
pub(crate) const DRAIN: usize = 256;

/// A closure to run on a worker's thread.
pub(super) type WorkerJob = Box<dyn FnOnce(&std::rc::Rc<super::Worker>) + Send>;

/// A message to a worker.
pub enum Message {
    /// Commands of a connection on another worker.
    Batch(CmdBatch, oneshot::Sender<BatchReply>),
    /// A coordinator's request for locks and entries.
    Acquire(Acquire, oneshot::Sender<Grant>),
    /// The end of a coordinator's hold, with its changes.
    Apply(Apply),
    /// A closure to run on the worker's thread.
    Run(WorkerJob),
}

/// The sending side, which every thread may have.
#[derive(Clone)]
pub struct Mailbox {
    normal: mpsc::Sender<Message>,
    few: mpsc::Sender<Message>,
    urgent: mpsc::Sender<Message>,
}

/// The receiving side, which only the worker has.
pub struct Inbox {
    normal: mpsc::Receiver<Message>,
    few: mpsc::Receiver<Message>,
    urgent: mpsc::Receiver<Message>,
    /// Number of short batches that were taken since the last long one.
    few_taken: usize,
}

impl Inbox {
    /// Returns the next message if there is one: urgent ones first, then short batches, so that a
    /// connection which sends many commands at once delays itself, and not all others.
    pub(crate) fn try_next(&mut self) -> Option<Message> {
        if let Ok(message) = self.urgent.try_recv() {
            return Some(message);
        }
        if self.few_taken < FEW_FIRST
            && let Ok(message) = self.few.try_recv()
        {
            self.few_taken += 1;
            return Some(message);
        }
        self.few_taken = 0;
        self.normal.try_recv().or_else(|_| self.few.try_recv()).ok()
    }

    /// Returns true if no message waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.few.is_empty() && self.normal.is_empty()
    }

    /// Waits for the next message; `None` when all senders are dropped.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        if let Some(message) = self.try_next() {
            return Some(message);
        }
        tokio::select! {
            biased;
            Some(message) = self.urgent.recv() => Some(message),
            Some(message) = self.few.recv() => Some(message),
            Some(message) = self.normal.recv() => Some(message),
            else => None,
        }
    }
}

/// Creates a mailbox.
pub fn mailbox() -> (Mailbox, Inbox) {
    let (normal, normal_rx) = mpsc::channel(LANE);
    let (few, few_rx) = mpsc::channel(LANE);
    let (urgent, urgent_rx) = mpsc::channel(LANE);
    let inbox = Inbox { normal: normal_rx, few: few_rx, urgent: urgent_rx, few_taken: 0 };
    (Mailbox { normal, few, urgent }, inbox)
}

impl Mailbox {
    /// Sends data; waits while the lane is full. Fails if the worker has ended.
    pub async fn send(&self, message: Message) -> Result<(), WorkerGone> {
        self.normal.send(message).await.map_err(|_| WorkerGone)
    }

    /// Sends a batch of a connection, which sends no other before it has the replies.
    pub async fn send_batch(
        &self,
        batch: CmdBatch,
        to: oneshot::Sender<BatchReply>,
    ) -> Result<(), WorkerGone> {
        let lane = if batch.is_short() { &self.few } else { &self.normal };
        lane.send(Message::Batch(batch, to)).await.map_err(|_| WorkerGone)
    }

    /// Sends data if there is room now, else returns the message.
    pub fn try_send(&self, message: Message) -> Result<(), Message> {
        self.normal.try_send(message).map_err(|e| match e {
            mpsc::error::TrySendError::Full(m) | mpsc::error::TrySendError::Closed(m) => m,
        })
    }

    /// Returns the number of messages that wait in its lanes: urgent ones, batches of few commands,
    /// and others.
    pub fn depths(&self) -> [usize; 3] {
        [&self.urgent, &self.few, &self.normal].map(|lane| lane.max_capacity() - lane.capacity())
    }

    /// Sends an urgent message if there is room now, else returns it.
    pub fn try_send_urgent(&self, message: Message) -> Result<(), Message> {
        self.urgent.try_send(message).map_err(|e| match e {
            mpsc::error::TrySendError::Full(m) | mpsc::error::TrySendError::Closed(m) => m,
        })
    }

    /// Sends an urgent message, which does not wait behind data.
    pub async fn send_urgent(&self, message: Message) -> Result<(), WorkerGone> {
        self.urgent.send(message).await.map_err(|_| WorkerGone)
    }
}

/// The error that a worker has ended.
#[derive(Debug)]
pub struct WorkerGone;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a batch, the sender of its replies, and the receiver, which shows whether a message
    /// still exists.
    fn batch() -> (CmdBatch, oneshot::Sender<BatchReply>, oneshot::Receiver<BatchReply>) {
        let (to, reply) = oneshot::channel();
        (CmdBatch::default(), to, reply)
    }

    #[tokio::test]
    async fn few_commands_go_before_many_and_not_for_ever() {
        let (mailbox, mut inbox) = mailbox();
        let (many, to, _many) = batch();
        mailbox.send(Message::Batch(many, to)).await.unwrap();
        let mut replies = Vec::new();
        for _ in 0..FEW_FIRST + 2 {
            let (few, to, reply) = batch();
            mailbox.send_batch(few, to).await.unwrap();
            replies.push(reply);
        }
        mailbox.send_urgent(Message::Run(Box::new(|_| {}))).await.unwrap();
        assert!(matches!(inbox.next().await, Some(Message::Run(_))), "the urgent one first");
        let mut order = Vec::new();
        while let Some(Message::Batch(_, to)) = inbox.try_next() {
            drop(to);
            let gone = replies.iter_mut().position(|reply| {
                matches!(reply.try_recv(), Err(oneshot::error::TryRecvError::Closed))
            });
            if let Some(gone) = gone {
                replies.remove(gone);
            }
            order.push(gone.is_some());
        }
        let many_at = order.iter().position(|few| !few);
        assert_eq!((many_at, order.len()), (Some(FEW_FIRST), FEW_FIRST + 3));
        assert!(inbox.is_empty());
    }
}
