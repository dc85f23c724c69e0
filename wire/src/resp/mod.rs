//! The wire protocol: bytes to commands ([`parse`]) and replies to bytes ([`reply`]).
//!
//! Both directions are pure: they know neither sockets nor sessions. The protocol is RESP2 for
//! requests and RESP2 or RESP3 for replies, as <https://valkey.io/topics/protocol/> describes it.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod inline;
mod mark;
mod owned;
pub mod parse;
mod proto;
pub mod reply;

pub use inline::split_args;
pub use mark::Mark;
pub use owned::OwnedArgs;
pub use parse::{ArgRanges, Args, Limits, Parsed, Parser, ProtocolError};
pub use proto::Proto;
pub use reply::Reply;
