//! The map of a cluster: many servers over one bucket (RFC 16).
//!
//! Servers share nothing but the bucket. One object there, the *map*, says who has joined, which
//! server owns each shard, and in whose journals the shard's history is. Nobody leads: a server
//! that wants a change reads the newest map, numbered n, and puts the whole changed map as number
//! n + 1, if there is none. Of several that try it at once the store lets one win, and the others
//! begin again on the base of its map. So maps form one sequence, and each number has one content.
//!
//! Only the newest maps are kept, so a number may be free again, and a request that was late brings
//! an object back there that never counted: *debris*. A map is therefore believed only if a listing
//! that began after it was put or read shows that its number cannot have been deleted before.
//!
//! `map` has the data, `draft` the changes and their rules, `balance` says how many shards each
//! server should have, and `store` reads and puts the objects. `libraries` has those of functions, `lives`
//! the journals, `taking` takes shards, and a `seat` is what a process has of all of it (RFC 20). `convert`
//! makes the data of a single server that of a cluster. `losses` has journals that have lost objects, and what a
//! user can do then.

mod balance;
mod contents;
mod convert;
#[cfg(test)]
mod convert_tests;
mod draft;
mod following;
#[cfg(test)]
mod following_tests;
mod libraries;
mod lives;
mod losses;
#[cfg(test)]
mod losses_tests;
mod map;
mod member;
mod mirroring;
#[cfg(test)]
mod older_tests;
mod seat;
#[cfg(test)]
mod seat_tests;
#[cfg(test)]
mod sim_tests;
mod splitting;
#[cfg(test)]
mod splitting_tests;
mod store;
mod taking;
#[cfg(test)]
mod taking_tests;
#[cfg(test)]
mod tests;

pub use balance::Allotment;
pub use convert::{ClusterConversion, ConvertibleData};
pub use draft::{MapDraft, MapRefusal, PendingChange};
pub use following::LifeFollower;
pub use libraries::{LibrariesError, LibrariesId, LibraryStore};
pub use lives::SealedLife;
pub use losses::{GivenUp, JournalLoss, LossStore, LossyShard};
pub use map::{ClusterMap, MapShard, SplitOrigin};
pub use member::{ClusterSecret, Life, MapMember, MemberState, NodeAddress, NodeId, ServerRole};
pub use mirroring::MirroredShards;
pub use seat::ClusterSeat;
pub use splitting::ShardBranch;
pub use store::{AmendError, MapError, MapOutcome, MapStore};
pub use taking::{GivenShard, TakenShard};
