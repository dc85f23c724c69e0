//! Names of a collection's elements, read for a scan or drawn at random.

use super::members::Name;

/// The names in a range of places, by place, at the time it was made. Names removed since are still
/// in it, later ones are not.
#[derive(Clone, Debug)]
pub(super) struct NameWindow {
    pub(super) from: u64,
    /// Exclusive.
    pub(super) to: u64,
    pub(super) names: Vec<(u64, Name)>,
    /// True if a name was added since.
    pub(super) stale: bool,
    /// Draws that it may still serve, and the names to draw from.
    pub(super) draws: usize,
    pub(super) pool: Vec<Name>,
    /// The most names requested at once.
    pub(super) asked: usize,
}

impl NameWindow {
    pub(super) fn new(from: u64, to: u64, names: Vec<(u64, Name)>) -> Self {
        let pool: Vec<Name> = names.iter().map(|(_, name)| name.clone()).collect();
        Self { from, to, stale: false, draws: pool.len().max(1), pool, names, asked: 0 }
    }
}
