//! CLIENT TRACKING: clients that cache keys are told when a key that they have read changes.
//!
//! Each worker records which clients have read which of its keys (`table.rs`), on its own thread,
//! at the moment when the read runs or its entry is lent. A change is announced when its round is
//! stored, to the clients that had read the key before it changed. Frames are written between
//! replies, so a client that read the old value receives that reply first and then its
//! invalidation; a client that has read only the new value receives none.
//!
//! With BCAST, no reads are recorded: every changed key is matched against prefixes, which are
//! shared by the node.

mod broadcast;
mod send;
mod session;
mod table;

pub use broadcast::{Changes, Prefixes};
pub use send::Audience;
pub use session::{Mode, Tracked};
pub(crate) use table::Table;
