//! CLIENT TRACKING: clients that keep what they have read are told when it changes.
//!
//! Each worker remembers who has read which of its keys (`table.rs`), on its own thread, in the
//! moment in which the read runs or its entry is lent. A change is told when its round is stored:
//! then all are told who had read the key before it was changed. Frames are written between
//! replies, so whoever read the old value gets that reply first and then hears that it is old; who
//! has read the new one only does not hear of it.
//!
//! With BCAST nobody's reads are remembered: every changed key is held against prefixes, which are
//! the node's.

mod broadcast;
mod send;
mod session;
mod table;

pub use broadcast::{Changes, Prefixes};
pub use send::Audience;
pub use session::{Mode, Tracked};
pub(crate) use table::Table;
