//! Scripts: those that the server knows, those that are running, and helpers that the VMs of
//! scripts and of libraries of functions share. `scripting` runs them.

mod cache;
mod running;
mod shebang;
mod table;
mod threads;
mod within;

pub(crate) use cache::Sha;
pub use cache::{Script, Scripts, VmFigures, parse_sha, sha1, sha1_hex};
pub use running::{Control, KillResult, Running, ScriptKind};
pub use shebang::{ScriptFlags, parse as parse_shebang};
pub use table::{
    MAX_LOGGED_BYTES, error_table, log_line, number_of, put_constants, text_of, write_log,
};
pub use threads::DetachedThreads;
pub use within::within;
