//! The location of a data directory.

use crate::place::Place;

const ARCHIVE: &str = "archive";

/// The places of a data directory's shards and of its journal.
#[derive(Clone, Debug)]
pub struct Location {
    pub store: Place,
    /// Place of the journal; `None`: `journal` in the store.
    pub journal: Option<Place>,
}

impl From<Place> for Location {
    /// Creates a location with the journal in the store.
    fn from(store: Place) -> Self {
        Self { store, journal: None }
    }
}

impl Location {
    /// Returns the place of the journal.
    pub fn journal(&self) -> Place {
        self.journal.clone().unwrap_or_else(|| self.store.join("journal"))
    }

    /// Returns the place for parts of the journal that it has dropped: beside it, where they can be
    /// moved without being read.
    pub fn archive(&self) -> Place {
        match &self.journal {
            None => self.store.join(ARCHIVE),
            Some(journal) => journal.beside(&format!("-{ARCHIVE}")),
        }
    }
}
