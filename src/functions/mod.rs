//! Functions: code that the server keeps, in libraries (FUNCTION LOAD, FCALL).
//!
//! Which libraries there are is the same for the whole node: an immutable [`Libraries`], exchanged
//! when something changes. They are stored as rows of one shard, by the worker that has it. What a
//! library registers is found once, by running its code in a VM of its own ([`inspect`]); the VMs
//! that run functions load a library when one of its functions is called.

mod load;
mod metadata;
mod registry;
#[cfg(test)]
mod tests;

pub use load::{LoadError, Registered, inspect, load};
pub use metadata::{ENGINE, Metadata};
pub use registry::{Edit, Found, Functions, Libraries, Library, Policy};
