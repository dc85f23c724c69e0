//! Handlers of the server's commands, as families declare them, and the installation of the table
//! of all commands.

use super::Spec;
use crate::command::{Route, registry};
use crate::routing::{
    self, AccountFinder, DatabasesHandler, FlagsFinder, SessionHandler, WaitHandler,
};
use crate::unit::{self, UnitHandler};
use flagstone_commands::registry::Registry;
use flagstone_commands::{FAMILIES, HelpWriter, Runner};
use std::fmt;
use std::sync::OnceLock;

/// Handler of a command of the server.
#[derive(Clone, Copy)]
pub enum Handler {
    /// A command that runs other commands.
    Unit(UnitHandler),
    /// A command that runs a script.
    Script {
        run: UnitHandler,
        flags: FlagsFinder,
    },
    Session(SessionHandler),
    /// A command on the session that may log the connection in.
    Login {
        run: SessionHandler,
        account: AccountFinder,
    },
    /// A command with a second handler `in_unit`, which needs neither session nor node.
    Either {
        alone: SessionHandler,
        in_unit: UnitHandler,
    },
    Wait(WaitHandler),
    Databases(DatabasesHandler),
    /// A command on keys that belongs to a family of the server.
    Keys(flagstone_commands::KeysHandler),
    Help(HelpWriter),
    /// A command with subcommands only.
    Container,
}

impl Runner for Handler {
    const CONTAINER: Self = Self::Container;

    fn is_container(&self) -> bool {
        matches!(self, Self::Container)
    }

    fn runs_others(&self) -> bool {
        matches!(self, Self::Unit(_) | Self::Script { .. })
    }
}

impl From<Handler> for Route {
    fn from(handler: Handler) -> Self {
        match handler {
            Handler::Unit(_) => Self::Unit,
            Handler::Script { .. } => Self::Script,
            Handler::Session(_) | Handler::Login { .. } => Self::Session,
            Handler::Either { .. } => Self::Either,
            Handler::Wait(_) => Self::Wait,
            Handler::Databases(_) => Self::Databases,
            Handler::Keys(handler) => Self::Keys(handler),
            Handler::Help(write) => Self::Help(write),
            Handler::Container => Self::Container,
        }
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Route::from(*self).fmt(f)
    }
}

/// Declarations of the server's own families.
const SERVER_FAMILIES: &[&[Spec]] = &[
    super::acl::COMMANDS,
    super::connection::COMMANDS,
    super::cluster::COMMANDS,
    super::server::COMMANDS,
    super::server::ADMIN_COMMANDS,
    super::server::REPLICATION_COMMANDS,
    super::server::SAVE_COMMANDS,
    super::server::SELFTEST_COMMANDS,
    super::pubsub::COMMANDS,
    super::transactions::COMMANDS,
    super::scripting::COMMANDS,
    super::functions::COMMANDS,
    super::databases::WHOLE,
    super::databases::SCAN,
];

/// Installs the table of all commands and their handlers. To be called at the start of the program;
/// further calls have no effect.
///
/// # Errors
/// One of the renamings is refused; the error names it.
pub fn install(renamed: &[[String; 2]]) -> Result<(), String> {
    static INSTALLED: OnceLock<Result<(), String>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let on_keys = FAMILIES.iter().copied().flatten();
        let on_keys: Vec<_> = on_keys.map(flagstone_commands::Spec::with_runner).collect();
        let own: Vec<_> = own().map(Spec::with_runner).collect();
        // Declarations live as long as the process.
        let mut table = Registry::new(on_keys.leak().iter().chain(own.leak().iter()));
        install_handlers(&table);
        let renamed = renamed.iter().try_for_each(|[name, new]| {
            let error = |error| format!("rename-command {name} {new}: {error}");
            table.rename(name, new).map_err(error)
        });
        registry::install(table);
        renamed
    });
    installed.clone()
}

/// Returns the declarations of the server's own commands.
fn own() -> impl Iterator<Item = &'static Spec> {
    SERVER_FAMILIES.iter().copied().flatten()
}

fn install_handlers(table: &Registry<Route>) {
    let mut units = vec![None; table.by_id().len()];
    let mut calls = vec![routing::Handlers::default(); table.by_id().len()];
    let mut add = |id: usize, handler: Handler| match handler {
        Handler::Unit(run) => units[id] = Some(run),
        Handler::Script { run, flags } => {
            units[id] = Some(run);
            calls[id].flags = Some(flags);
        }
        Handler::Session(run) => calls[id].session = Some(run),
        Handler::Login { run, account } => {
            calls[id].session = Some(run);
            calls[id].account = Some(account);
        }
        Handler::Either { alone, in_unit } => {
            calls[id].session = Some(alone);
            units[id] = Some(in_unit);
        }
        Handler::Wait(run) => calls[id].wait = Some(run),
        Handler::Databases(run) => calls[id].databases = Some(run),
        Handler::Keys(_) | Handler::Help(_) | Handler::Container => {}
    };
    for spec in own() {
        let command = table.lookup(spec.name.as_bytes()).expect("the table has all declarations");
        add(command.id, spec.run);
        let subcommands = command.subcommands.iter().zip(spec.subcommands);
        subcommands.for_each(|(command, spec)| add(command.id, spec.run));
    }
    unit::install(units);
    routing::install(calls);
}
