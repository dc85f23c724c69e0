//! The decision how an admitted command goes on: the same for a command in a cycle and for one that
//! runs by itself.

use crate::command::{Command, Route};
use crate::routing::{self, DatabasesHandler, NO_HANDLER, WaitHandler};
use crate::session::Session;
use flagstone_commands::{ErrorText, error, flag};
use flagstone_wire::resp::Args;

/// The next step of an admitted command.
pub(super) enum NextStep {
    /// It joins the queue of the open transaction.
    Queue,
    /// It runs the queue (EXEC).
    Exec,
    Run(Manner),
}

/// The manner in which a command runs. A cycle runs commands on keys and on the session; all others
/// are a barrier: they run by themselves, behind the replies before them.
pub(super) enum Manner {
    /// On keys, for which it does not wait. In a cycle if they belong to one worker.
    Keys,
    /// On keys, for which it may wait: a barrier.
    BlockingKeys,
    /// On the session, where it never waits. In a cycle while all replies are at hand.
    Session,
    /// On the connection, where it may wait: a barrier.
    Wait(WaitHandler),
    /// On all databases: a barrier.
    Databases(DatabasesHandler),
    /// Nothing runs it: the error in the place of its reply.
    Nothing(ErrorText),
}

impl NextStep {
    #[inline]
    pub(super) fn of(session: &Session, command: &Command, args: Args<'_>) -> Self {
        if session.transaction.is_some() && !command.spec.has(flag!(UNQUEUED)) {
            Self::Queue
        } else if command.spec.has(flag!(EXEC)) {
            Self::Exec
        } else {
            Self::Run(Manner::of(command, args))
        }
    }
}

impl Manner {
    #[inline]
    pub(super) fn of(command: &Command, args: Args<'_>) -> Self {
        let handlers = || routing::handlers(command);
        let nothing = || Self::Nothing(NO_HANDLER.into());
        match command.spec.run {
            Route::Keys(_) | Route::Unit | Route::Script
                if command.spec.has(flag!(BLOCKING)) && (command.spec.blocks)(args) =>
            {
                Self::BlockingKeys
            }
            Route::Keys(_) | Route::Unit | Route::Script => Self::Keys,
            Route::Session | Route::Either | Route::Help(_) => Self::Session,
            Route::Wait => handlers().wait.map_or_else(nothing, Self::Wait),
            Route::Databases => handlers().databases.map_or_else(nothing, Self::Databases),
            // Reached only without a subcommand: an unknown one is refused.
            Route::Container => Self::Nothing(error::arity(command.full_name).into()),
        }
    }
}
