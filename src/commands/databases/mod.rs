//! Commands on whole databases.

mod scan;
mod whole;

pub use scan::COMMANDS as SCAN;
pub use whole::COMMANDS as WHOLE;
