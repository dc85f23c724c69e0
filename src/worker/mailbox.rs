//! A worker's bounded mailbox, with two lanes: urgent messages are taken first. Short batches do not
//! come here (see `hop`), so a connection which sends many commands at once delays itself, and not
//! all others; nor do loans of coordinators.

use super::batch::{BatchReply, CmdBatch};
use tokio::sync::{mpsc, oneshot};

/// Number of messages that a lane holds before its senders wait.
const LANE: usize = 1024;

/// Maximum number of messages in a drain.
pub(crate) const DRAIN: usize = 256;

/// A closure to run on a worker's thread.
pub(super) type WorkerJob = Box<dyn FnOnce(&std::rc::Rc<super::Worker>) + Send>;

/// A message to a worker.
pub enum Message {
    /// Commands of a connection on another worker.
    Batch(CmdBatch, oneshot::Sender<BatchReply>),
    /// A closure to run on the worker's thread.
    Run(WorkerJob),
}

/// The sending side, which every thread may have.
#[derive(Clone)]
pub struct Mailbox {
    normal: mpsc::Sender<Message>,
    urgent: mpsc::Sender<Message>,
}

/// The receiving side, which only the worker has.
pub struct Inbox {
    normal: mpsc::Receiver<Message>,
    urgent: mpsc::Receiver<Message>,
}

impl Inbox {
    /// Returns the next message if there is one: urgent ones first.
    pub(crate) fn try_next(&mut self) -> Option<Message> {
        self.urgent.try_recv().or_else(|_| self.normal.try_recv()).ok()
    }

    /// Returns true if no message waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.normal.is_empty()
    }

    /// Waits for the next message; `None` when all senders are dropped.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        if let Some(message) = self.try_next() {
            return Some(message);
        }
        tokio::select! {
            biased;
            Some(message) = self.urgent.recv() => Some(message),
            Some(message) = self.normal.recv() => Some(message),
            else => None,
        }
    }
}

/// Creates a mailbox.
pub fn mailbox() -> (Mailbox, Inbox) {
    let (normal, normal_rx) = mpsc::channel(LANE);
    let (urgent, urgent_rx) = mpsc::channel(LANE);
    (Mailbox { normal, urgent }, Inbox { normal: normal_rx, urgent: urgent_rx })
}

impl Mailbox {
    /// Sends data; waits while the lane is full. Fails if the worker has ended.
    pub async fn send(&self, message: Message) -> Result<(), WorkerGone> {
        self.normal.send(message).await.map_err(|_| WorkerGone)
    }

    /// Sends data if there is room now, else returns the message.
    pub fn try_send(&self, message: Message) -> Result<(), Message> {
        self.normal.try_send(message).map_err(|e| match e {
            mpsc::error::TrySendError::Full(m) | mpsc::error::TrySendError::Closed(m) => m,
        })
    }

    /// Returns the number of messages that wait in its lanes: urgent ones, and others.
    pub(super) fn depths(&self) -> [usize; 2] {
        [&self.urgent, &self.normal].map(|lane| lane.max_capacity() - lane.capacity())
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
