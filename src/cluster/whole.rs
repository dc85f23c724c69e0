//! Commands on all keys of a server: they need all shards that are its own.
//!
//! A server can own shards that it does not serve yet: after its start, after a takeover, and while they
//! change hands. An answer without them would be as wrong as one without some keys, so these commands
//! wait, and end with an error in the end.

use super::{Cluster, ServedState};
use flagstone_storage::cluster::MapMember;
use std::sync::atomic::Ordering;

/// Error of a command that needs all shards of this server.
pub(super) const LACKING: &str =
    "TRYAGAIN Not all shards of this server are served: some are changing hands";

impl Cluster {
    /// Returns true if `is_here` is true of all shards that are this server's by the newest map of which
    /// it has heard, with those that nobody owns and it is to take; on a replica, of all there are. `and_to_come`: there must also be no
    /// shard of another server that is on its way here.
    pub fn has_all_shards(&self, and_to_come: bool, is_here: impl Fn(u16) -> bool) -> bool {
        let map = self.map();
        let is_replica = map.member(self.life).is_some_and(MapMember::is_replica);
        let own = map.shards().iter().filter(|it| is_replica || it.owner == Some(self.life));
        if self.hint.load(Ordering::Acquire) > map.number() || !own.map(|it| it.id).all(is_here) {
            return false;
        }
        if is_replica {
            return true;
        }
        let is_coming = |to| to == Some(self.life);
        if and_to_come && map.shards().iter().any(|it| is_coming(it.moving_to)) {
            return false;
        }
        let is_parked = || map.shards().iter().any(|it| it.owner.is_none());
        let lacks = || map.balance().iter().any(|it| it.life == self.life && it.lack() > 0);
        !(and_to_come || is_parked()) || !lacks()
    }

    /// Returns true if this server serves all shards that are its own, and none is changing hands.
    pub(super) fn serves_all_shards(&self, and_to_come: bool) -> bool {
        let is_served =
            |shard| self.state(shard) == ServedState::Served || self.mirrors.shows(shard);
        self.has_all_shards(and_to_come, is_served)
            && (0..self.layout.shards()).all(|it| self.state(it) != ServedState::Expected)
    }

    /// Begins a look at all keys of this server.
    ///
    /// # Errors
    /// The error text, if it does not serve all shards that are its own.
    pub fn begin_look(&self) -> Result<WholeLook, &'static str> {
        let departures = self.departures();
        self.check_whole(self.serves_all_shards(false))?;
        Ok(WholeLook { departures })
    }

    /// Ends a look at all keys, or a part of it.
    ///
    /// # Errors
    /// The error text, if a shard has begun to leave meanwhile: some of its keys may not have been seen.
    pub fn check_look(&self, look: &WholeLook) -> Result<(), &'static str> {
        self.check_whole(self.departures() == look.departures)
    }

    /// Returns how often a shard has begun to leave, or was hidden.
    fn departures(&self) -> u64 {
        self.departures.load(Ordering::SeqCst) + self.mirrors.hidden()
    }

    /// Returns the error of a command that needs all shards of this server, unless they are there.
    ///
    /// # Errors
    /// The error text.
    pub fn check_whole(&self, is_whole: bool) -> Result<(), &'static str> {
        if is_whole { Ok(()) } else { Err(LACKING) }
    }
}

/// A look at all keys of this server that is under way.
#[derive(Debug)]
pub struct WholeLook {
    /// Number of times that a shard had begun to leave.
    departures: u64,
}
