//! Functions: code that the server stores, in libraries (FUNCTION LOAD, FCALL).
//!
//! All workers share the same libraries: an immutable [`Libraries`], replaced as a whole when
//! something changes. They are stored as rows of one shard, by the worker that owns it; in a cluster
//! of several servers, as one object that the map names ([`SharedLibraries`]). The
//! functions that a library registers are determined once, by running its code in a VM of its own
//! ([`inspect`]); the VMs that run functions load a library when one of its functions is called.
//!
//! The VMs discard libraries that were deleted. The names of the functions are stored with the
//! library, so a start runs no code.

mod load;
mod metadata;
mod registry;
mod shared;
#[cfg(test)]
mod tests;

pub use load::{LoadError, LoadLimits, LoadedFunctions, Registered, inspect, load};
pub use metadata::{ENGINE, Metadata};
pub use registry::{Edit, Found, Functions, Libraries, Library, Policy};
pub use shared::{LibraryFate, SharedLibraries};
