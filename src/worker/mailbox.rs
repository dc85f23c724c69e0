//! A worker's bounded inbox, with a lane for what must not wait behind data.

use super::batch::{BatchReply, CmdBatch};
use crate::routing::{Acquire, Apply, Grant};
use tokio::sync::{mpsc, oneshot};

/// Messages a lane holds before its senders wait.
const LANE: usize = 1024;

/// Messages of a drain at most.
pub(crate) const DRAIN: usize = 256;

/// Something to run on a worker's thread.
pub(super) type Job = Box<dyn FnOnce(&std::rc::Rc<super::Worker>) + Send>;

/// What workers say to each other.
pub enum Message {
    /// Commands of a connection elsewhere.
    Batch(CmdBatch, oneshot::Sender<BatchReply>),
    /// A coordinator asks for locks and entries.
    Acquire(Acquire, oneshot::Sender<Grant>),
    /// A coordinator gives back what it holds, with its rows.
    Apply(Apply),
    /// Something to run on the worker's thread.
    Run(Job),
}

/// The sending side, for everybody.
#[derive(Clone)]
pub struct Mailbox {
    normal: mpsc::Sender<Message>,
    urgent: mpsc::Sender<Message>,
}

/// The receiving side, the worker's own.
pub struct Inbox {
    pub(crate) normal: mpsc::Receiver<Message>,
    pub(crate) urgent: mpsc::Receiver<Message>,
}

impl Inbox {
    /// The next message if there is one, urgent ones first.
    pub(crate) fn try_next(&mut self) -> Option<Message> {
        self.urgent.try_recv().ok().or_else(|| self.normal.try_recv().ok())
    }

    /// The next message; `None` when nobody can send any more.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        tokio::select! {
            biased;
            Some(message) = self.urgent.recv() => Some(message),
            Some(message) = self.normal.recv() => Some(message),
            else => None,
        }
    }
}

/// A new mailbox.
pub fn mailbox() -> (Mailbox, Inbox) {
    let (normal, normal_rx) = mpsc::channel(LANE);
    let (urgent, urgent_rx) = mpsc::channel(LANE);
    (Mailbox { normal, urgent }, Inbox { normal: normal_rx, urgent: urgent_rx })
}

impl Mailbox {
    /// Sends data; waits while the lane is full. `Err`: the worker is gone.
    pub async fn send(&self, message: Message) -> Result<(), WorkerGone> {
        self.normal.send(message).await.map_err(|_| WorkerGone)
    }

    /// Sends data if there is room now.
    pub fn try_send(&self, message: Message) -> Result<(), Message> {
        self.normal.try_send(message).map_err(|e| match e {
            mpsc::error::TrySendError::Full(m) | mpsc::error::TrySendError::Closed(m) => m,
        })
    }

    /// The same for what must not wait behind data.
    pub fn try_send_urgent(&self, message: Message) -> Result<(), Message> {
        self.urgent.try_send(message).map_err(|e| match e {
            mpsc::error::TrySendError::Full(m) | mpsc::error::TrySendError::Closed(m) => m,
        })
    }

    /// Sends what must not wait behind data.
    pub async fn send_urgent(&self, message: Message) -> Result<(), WorkerGone> {
        self.urgent.send(message).await.map_err(|_| WorkerGone)
    }
}

/// The worker has ended.
#[derive(Debug)]
pub struct WorkerGone;
