//! Scripts: Lua that calls commands. A script is a unit (see [`crate::unit`]): all that it does
//! counts, or nothing. Its VM belongs to the thread that runs it, and keeps what it has compiled.

mod api;
mod cache;
mod call;
mod run;
mod running;
mod shebang;
mod to_reply;
mod vm;
mod within;

pub use api::error_table;
pub use api::{log_line, put_constants};
pub use cache::{Script, Scripts, parse_sha, sha1, sha1_hex};
pub use run::{Job, Wanted, run};
pub use running::{Control, Kill, Kind, Running};
pub use shebang::{Flags, parse as parse_shebang};
pub use vm::{COMPILED_IN_PLACE, Uncompiled, forget_vms, with_vm};
pub use within::within;
