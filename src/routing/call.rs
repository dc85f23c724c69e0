//! Handlers of commands that do not run on keys: their arguments, and their registration.

use super::Databases;
use crate::command::{Command, RoundError, Route};
use crate::node::Node;
use crate::scripts::ScriptFlags;
use crate::session::Session;
use crate::unit::UnitStop;
use crate::worker::Worker;
use flagstone_commands::{CommandFlags, ErrorText, flag};
use flagstone_wire::resp::{Args, Reply};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

/// Session, node and worker, for a handler that runs on the connection.
pub struct Call<'a> {
    pub session: &'a mut Session,
    pub node: &'a Arc<Node>,
    pub worker: &'a Rc<Worker>,
    pub out: &'a mut Reply,
}

/// Result of a handler that is not on keys: its reply is written, or the reason why it stopped.
pub type CallOutcome = Result<(), CallStop>;

/// Reason why a handler that is not on keys stopped.
#[derive(Debug)]
pub enum CallStop {
    /// The error replaces its partial reply.
    Error(ErrorText),
    /// Its changes, or data that it needs, could not be stored: the error replaces its partial
    /// reply.
    Unstored(RoundError),
    /// The connection closes after the reply written so far.
    Close,
}

impl From<RoundError> for CallStop {
    fn from(error: RoundError) -> Self {
        Self::Unstored(error)
    }
}

impl From<ErrorText> for CallStop {
    fn from(text: ErrorText) -> Self {
        Self::Error(text)
    }
}

impl From<&'static str> for CallStop {
    fn from(text: &'static str) -> Self {
        Self::Error(text.into())
    }
}

impl From<Vec<u8>> for CallStop {
    fn from(text: Vec<u8>) -> Self {
        Self::Error(text.into())
    }
}

impl From<String> for CallStop {
    fn from(text: String) -> Self {
        Self::Error(text.into())
    }
}

impl From<CallStop> for UnitStop {
    fn from(stop: CallStop) -> Self {
        match stop {
            CallStop::Error(text) => text.into(),
            CallStop::Unstored(error) => error.into(),
            CallStop::Close => Self::Closing,
        }
    }
}

/// A handler on the connection that uses the session and the node; it never waits.
pub type SessionHandler = fn(&mut Call<'_>, Args<'_>) -> CallOutcome;

/// A handler on the connection that may wait: for workers, for the journal, or for some time.
pub type WaitHandler = for<'a> fn(&'a mut Call<'_>, Args<'a>) -> Waiting<'a>;

/// A handler on all databases, which it changes or iterates over, alone or as part of a unit. It
/// may wait for workers.
pub type DatabasesHandler = for<'a> fn(&'a mut Databases<'_>, Args<'a>) -> Waiting<'a>;

/// Returns the flags that a script declares, in the arguments of the command that runs it or in the
/// node.
pub type FlagsFinder = fn(&Node, Args<'_>) -> Option<ScriptFlags>;

/// Returns the number of the account that a command logs its connection in with; `None` if it tries no
/// password.
pub type AccountFinder = fn(&Node, Args<'_>) -> Option<Result<u64, WrongPassword>>;

/// A command tries a password that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongPassword;

/// Error of a command that cannot run in its context.
pub const NO_HANDLER: &str = "ERR this command is not available here";

/// Future of a command that may wait.
pub type Waiting<'a> = Pin<Box<dyn Future<Output = CallOutcome> + 'a>>;

/// Handlers of one command: those that its [`Route`] requires.
#[derive(Clone, Copy, Default)]
pub struct Handlers {
    pub session: Option<SessionHandler>,
    pub wait: Option<WaitHandler>,
    pub databases: Option<DatabasesHandler>,
    pub flags: Option<FlagsFinder>,
    pub account: Option<AccountFinder>,
}

static HANDLERS: OnceLock<Vec<Handlers>> = OnceLock::new();

/// Installs the handlers of all commands, by [`Command::id`]. Further calls have no effect.
pub fn install(handlers: Vec<Handlers>) {
    let _ = HANDLERS.set(handlers);
}

/// Returns the handlers of a command.
pub fn handlers(command: &Command) -> Handlers {
    let all = HANDLERS.get().map_or(&[][..], Vec::as_slice);
    all.get(command.id).copied().unwrap_or_default()
}

/// Runs a command on the session.
pub fn run_on_session(command: &Command, call: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    if let Route::Help(write) = command.spec.run {
        write(call.out);
        return Ok(());
    }
    let handler = handlers(command).session.ok_or(NO_HANDLER)?;
    handler(call, args)
}

/// Returns the flags of a command with these arguments: those of its script, if that declares any.
pub fn flags(command: &Command, node: &Node, args: Args<'_>) -> CommandFlags {
    let own = command.spec.flags;
    if !matches!(command.spec.run, Route::Script) {
        return own;
    }
    let script = handlers(command).flags.and_then(|find| find(node, args));
    script.map_or(own, |script| script.command_flags(own))
}

/// Returns true if the reply of a command may show data, and not only the state of the server.
pub fn shows_data(command: &Command) -> bool {
    match command.spec.run {
        Route::Keys(_) | Route::Unit | Route::Script | Route::Databases => true,
        // DEBUG shows parts of the data, and these are about all keys.
        Route::Wait if command.spec.flags.intersects(flag!(PROTECTED | ALL_SHARDS)) => true,
        // A replica may come at any time.
        Route::Wait => !command.spec.has(flag!(STALE)) && !command.spec.has(flag!(ADMIN)),
        Route::Session | Route::Either | Route::Help(_) | Route::Container => false,
    }
}
