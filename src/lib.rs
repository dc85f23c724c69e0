//! Flagstone: a durable Redis-compatible server.

pub mod config;
