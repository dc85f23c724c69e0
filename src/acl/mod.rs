//! Access control: users, the rules that give them rights, and the checks of commands against them.
//!
//! A [`User`] is a value: passwords and selectors, made by applying rules. An [`Account`] is the
//! name that connections are logged in under; its user is exchanged as a whole, so a change of rules
//! holds for the next command of each connection. A user with all rights is *free*: its commands are
//! not checked at all, and to know that takes one load of a flag.
//!
//! The room knows commands by their declarations alone, and neither clients nor sockets.

mod accounts;
mod denials;
mod description;
mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod password;
mod selector;
mod start;
mod user;

pub use accounts::{Account, AccountChange, Accounts, ExchangedAccounts};
pub use denials::{DenialContext, DenialEntry, DenialLog, DeniedAccess};
pub use description::quoted_rules;
pub use file::AclFile;
pub use selector::{DenialReason, Denied, Selector};
pub use start::load_accounts;
pub use user::{RuleError, User, has_blanks};
