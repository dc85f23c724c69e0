//! A model of many servers over one bucket ([RFC 16]), for the model checker stateright.
//!
//! It has the bucket (maps, journals, engines), process lives that take the protocol's steps in any
//! order, and time. A scene says how many there are and how often each thing may happen; the
//! checker tries every order, or walks through a larger scene at random. Each rule of the protocol
//! can be left out: then some scene breaks an invariant.
//!
//! No crate depends on this one.
//!
//! [RFC 16]: ../../docs/rfcs/0016-many-servers.md

pub mod action;
pub mod bucket;
pub mod cluster;
pub mod invariants;
pub mod life;
pub mod map;
pub mod rules;
pub mod scene;
pub mod scenes;
pub mod state;
pub mod steps;
pub mod walk;
