//! The Flagstone server: a durable Redis-compatible server.

pub mod glob;
pub mod num;
pub mod resp;
