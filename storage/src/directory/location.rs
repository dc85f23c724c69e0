//! Where a data directory is.

use crate::place::Place;

const ARCHIVE: &str = "archive";

/// Where the shards of a data directory are, and its journal.
#[derive(Clone, Debug)]
pub struct Location {
    pub store: Place,
    /// `None`: `journal` in the store.
    pub journal: Option<Place>,
}

impl From<Place> for Location {
    /// With the journal in the store.
    fn from(store: Place) -> Self {
        Self { store, journal: None }
    }
}

impl Location {
    /// Where the journal is.
    pub fn journal(&self) -> Place {
        self.journal.clone().unwrap_or_else(|| self.store.join("journal"))
    }

    /// Where parts of the journal are kept that it has dropped: beside it, where they can be moved
    /// without being read.
    pub fn archive(&self) -> Place {
        match &self.journal {
            None => self.store.join(ARCHIVE),
            Some(journal) => journal.beside(&format!("-{ARCHIVE}")),
        }
    }
}
