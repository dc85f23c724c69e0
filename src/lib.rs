//! The Flagstone server: a durable Redis-compatible server.

pub mod config;
pub mod glob;
pub mod num;
pub mod resp;
