//! Outcomes of commands, which go with their rendered replies: nobody reads a decision back from
//! the bytes of a reply.

use flagstone_wire::resp::{Proto, Reply};

/// Outcome of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// It has run.
    #[default]
    Done,
    /// EXEC has run nothing, because a watched key has changed.
    Aborted,
    /// It was answered with an error, which is counted. A script's error may show data.
    Failed,
    /// It was answered with an error that shows no data: it was refused before it ran, or the store
    /// of the journal does not answer. Only the server makes such errors: a script that passes one
    /// on has failed, or is done.
    Refused,
}

impl Outcome {
    /// Returns true if the reply is an error, which is counted.
    pub fn is_error(self) -> bool {
        matches!(self, Self::Failed | Self::Refused)
    }
}

/// Whole reply to a command.
#[derive(Debug)]
pub struct Answer {
    pub reply: Reply,
    pub outcome: Outcome,
}

impl Answer {
    /// Creates an error reply.
    pub fn failed(proto: Proto, text: impl AsRef<[u8]>) -> Self {
        let mut reply = Reply::new(proto);
        reply.error(text);
        Self { reply, outcome: Outcome::Failed }
    }
}

/// Error of a command that could not be stored, or needs data whose round could not be.
#[derive(Clone, Debug)]
pub struct RoundError {
    pub text: String,
    /// Outcome of the command.
    pub outcome: Outcome,
}

impl RoundError {
    /// Creates the error of a command that was refused before it changed anything.
    pub fn refused(text: &str) -> Self {
        Self { text: text.to_owned(), outcome: Outcome::Refused }
    }
}

impl From<String> for RoundError {
    fn from(text: String) -> Self {
        Self { text, outcome: Outcome::Failed }
    }
}

impl From<&str> for RoundError {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// Returns the error text of an EXEC that was refused itself.
pub fn aborted_by(text: &[u8]) -> Vec<u8> {
    let cause = text.strip_prefix(b"ERR ").unwrap_or(text);
    [b"EXECABORT Transaction discarded because of: ", cause].concat()
}
