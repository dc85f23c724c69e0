//! End-to-end tests: the built binary, real clients, kill -9.

mod atomicity;
mod blind;
mod blocking;
mod bucket;
mod checkpoints;
mod config;
mod deadlines;
mod durability;
mod events;
mod full_disk;
mod functions;
mod hostile;
mod http;
mod keyspace;
mod moving;
mod neighbours;
mod pace;
mod partial;
mod pipelines;
mod process;
mod pubsub;
mod reshard;
mod script_endings;
mod script_errors;
mod scripts;
mod seeing;
mod server;
mod shown;
mod sockets;
mod stream_watch;
mod streams;
mod tracking;
mod transactions;
mod undeclared;
mod zsets;

pub use server::{Server, free_port};
