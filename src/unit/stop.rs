//! Reasons why a unit, or a part of it, stops.

use crate::command::RoundError;
use flagstone_commands::{ErrorText, Stop};
use flagstone_storage::store::Fault;

/// Result of a unit or of a part of it: its reply is written, or the reason why it stopped.
pub type UnitOutcome = Result<(), UnitStop>;

/// Reason why a unit stopped. Its partial reply is discarded.
#[derive(Debug)]
pub enum UnitStop {
    /// One of its commands on keys stopped, or it found an error itself. After an error with a text
    /// its changes stay; otherwise they are undone.
    Handler(Stop),
    /// It cannot continue on the worker: it runs for long, or needs something slow. Its changes are
    /// undone, and it runs again on a thread of its own.
    Detached,
    /// It needs a hold on every worker. Its changes are undone, and it runs again under one.
    Exclusive,
    /// It is aborted with this error: its changes are undone.
    Undone(ErrorText),
    /// Its record could not be stored, or a worker could not lend it entries: its changes are
    /// undone.
    Unstored(RoundError),
    /// Its client has disconnected, or the server is shutting down: its changes are undone, and there
    /// is no reply.
    Closing,
}

impl UnitStop {
    /// Returns the text of the error with which the unit is answered, if it is not to run again.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Handler(Stop::Error(text)) | Self::Undone(text) => Some(text),
            Self::Unstored(error) => Some(error.text.as_bytes()),
            Self::Handler(Stop::Miss(_) | Stop::Block(_) | Stop::Unsettled | Stop::NotOwned(_))
            | Self::Detached
            | Self::Exclusive
            | Self::Closing => None,
        }
    }
}

impl From<Stop> for UnitStop {
    fn from(stop: Stop) -> Self {
        Self::Handler(stop)
    }
}

impl From<Fault> for UnitStop {
    fn from(fault: Fault) -> Self {
        Self::Handler(fault.into())
    }
}

impl From<RoundError> for UnitStop {
    fn from(error: RoundError) -> Self {
        Self::Unstored(error)
    }
}

impl From<ErrorText> for UnitStop {
    fn from(text: ErrorText) -> Self {
        Self::Handler(Stop::Error(text))
    }
}

impl From<&'static str> for UnitStop {
    fn from(text: &'static str) -> Self {
        Self::Handler(text.into())
    }
}

impl From<Vec<u8>> for UnitStop {
    fn from(text: Vec<u8>) -> Self {
        Self::Handler(text.into())
    }
}

impl From<String> for UnitStop {
    fn from(text: String) -> Self {
        Self::Handler(text.into())
    }
}
