//! The commands on keys, one file or folder per family. They depend on the storage and the wire
//! format alone: a handler gets the store, its arguments and the reply ([`Ctx`]), and cannot wait.
//!
//! A family's file ends in its `COMMANDS`, the declarations of its commands; [`FAMILIES`] lists
//! them all.

mod access;
pub mod bitmap;
mod combine;
mod context;
mod draws;
#[cfg(test)]
mod events_tests;
mod expiry;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod generic;
pub mod geo;
pub mod hash;
pub mod help;
pub mod hyperloglog;
mod key_spec;
pub mod list;
pub mod registry;
pub mod scan;
pub mod set;
mod settings;
mod spec;
pub mod stream;
pub mod string;
#[cfg(test)]
mod testing;
mod timeout;
pub mod zset;

pub use context::{
    Awaited, Block, Ctx, ErrorText, Misses, Nil, Outcome, Stop, arg, error, int_arg, is_word, tail,
    until_zero_byte,
};
pub use key_spec::{AccessFinder, Begin, Channels, Find, KeyAccess, KeyFlags, KeySpec};
pub use settings::DataSettings;
pub use spec::{
    Categories, CommandFlags, Group, HelpWriter, KeyRange, KeysHandler, Names, Run, Runner, Spec,
};

/// The declarations of every family.
pub const FAMILIES: &[&[Spec]] = &[
    bitmap::COMMANDS,
    hyperloglog::COMMANDS,
    string::set::COMMANDS,
    string::get::COMMANDS,
    string::counters::COMMANDS,
    string::ranges::COMMANDS,
    string::multi::COMMANDS,
    string::lcs::COMMANDS,
    generic::KEY,
    generic::EXPIRE,
    generic::RELOCATE,
    generic::SORT,
    generic::OBJECT,
    generic::DUMP,
    hash::read::COMMANDS,
    hash::write::COMMANDS,
    hash::random::COMMANDS,
    hash::scan::COMMANDS,
    hash::ttl::COMMANDS,
    hash::extended::COMMANDS,
    set::read::COMMANDS,
    set::write::COMMANDS,
    set::random::COMMANDS,
    set::combine::COMMANDS,
    set::scan::COMMANDS,
    list::push::COMMANDS,
    list::pop::COMMANDS,
    list::read::COMMANDS,
    list::edit::COMMANDS,
    list::moves::COMMANDS,
    list::blocking::COMMANDS,
    zset::write::COMMANDS,
    zset::read::COMMANDS,
    zset::range::COMMANDS,
    zset::remove::COMMANDS,
    zset::pop::COMMANDS,
    zset::blocking::COMMANDS,
    zset::random::COMMANDS,
    zset::scan::COMMANDS,
    zset::combine::COMMANDS,
    geo::members::COMMANDS,
    geo::search::COMMANDS,
    stream::add::COMMANDS,
    stream::range::COMMANDS,
    stream::read::COMMANDS,
    stream::edit::COMMANDS,
    stream::info::COMMANDS,
    stream::manage::COMMANDS,
    stream::read_group::COMMANDS,
    stream::ack::COMMANDS,
    stream::claim::COMMANDS,
    stream::pending::COMMANDS,
];
