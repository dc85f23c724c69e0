//! Flagstone: a durable Redis-compatible server.

pub mod rdb;
