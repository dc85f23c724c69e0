//! This server's part in a cluster over one bucket, as the gate and CLUSTER see it: the newest map that
//! it knows, and which shards it serves.
//!
//! The map says who may serve a shard; the states here say what this server does with those it may
//! serve. A server can serve a shard some time after the map gives it one, and stops serving a shard
//! before the map gives it to another server.

mod copies;
mod given;
mod link;
mod messages;
mod mirrors;
mod proof;
mod sight;
#[cfg(test)]
mod tests;
mod whole;

use flagstone_storage::Layout;
use flagstone_storage::cluster::{ClusterMap, LibrariesId, Life, MapMember, NodeAddress, NodeId};
use flagstone_storage::journal::Lsn;
use flagstone_storage::slot::MAX_SHARDS;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use copies::{AwaitedCopies, Copies};
pub use given::GivenSlots;
pub use link::{IncomingLink, LinkFacts, UNPROVEN, open_link};
pub use messages::{BATCH_BYTES, BATCH_MESSAGES, MessageQueues, PeerQueue, SpreadMessage};
pub use mirrors::Mirrors;
pub use proof::{is_proven, prove};
pub use sight::{ClusterSight, Heard, SaidOfJournal};
pub use whole::WholeLook;

/// How long a command on a slot of another server waits for a newer map, of which this server has heard.
const HEARD: Duration = Duration::from_secs(1);

/// How often a waiting command looks whether that second is over.
const LOOK: Duration = Duration::from_millis(50);

/// How long a command waits for a shard that changes hands, or for libraries of functions.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Leases after which a server that cannot read the map is out of touch: it looks every three.
const OUT_OF_TOUCH: u32 = 6;

/// The states of a shard.
const ELSEWHERE: u8 = 0;
const EXPECTED: u8 = 1;
const SERVED: u8 = 2;

/// The part of this server in serving a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedState {
    /// Nothing: if the map gives it to this server, taking it has not begun.
    Elsewhere,
    /// It is being taken or given away: commands wait.
    Expected,
    Served,
}

/// Where a command on a slot belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotOwner {
    Here,
    /// The slot's shard changes hands.
    Soon,
    /// Another server.
    There(NodeAddress),
    /// No server.
    Nobody,
}

/// A part of this server that a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedPart {
    /// The shard of this slot, which changes hands.
    Slot(u16),
    /// The libraries of functions that the map names.
    Libraries,
    /// All shards that are its own; `and_to_come`: with those that are on their way from other servers.
    AllShards { and_to_come: bool },
}

/// See the module's description.
pub struct Cluster {
    node: NodeId,
    life: Life,
    layout: Arc<Layout>,
    map: RwLock<Arc<ClusterMap>>,
    shards: Vec<AtomicU8>,
    /// Shards that are being given away or split, and the addresses of their next owners, if there are.
    going: Mutex<BTreeMap<u16, Option<NodeAddress>>>,
    /// Slots that this server has given away, or was about to.
    given: Mutex<GivenSlots>,
    /// Number of times that a shard has begun to leave.
    departures: AtomicU64,
    /// The libraries of functions that are loaded, ...
    libraries: Mutex<Option<LibrariesId>>,
    /// ... and true if the map names others.
    lacks_libraries: AtomicBool,
    /// The greatest number of a map that another server has named.
    hint: AtomicU64,
    /// When it was named.
    hinted_at: Mutex<Option<Instant>>,
    /// Notified when the map or a state changes, ...
    changed: Notify,
    /// ... and when this server should look for a newer map.
    pub hinted: Notify,
    pub sight: ClusterSight,
    /// Shards of other servers that are shown, on a replica.
    pub mirrors: Mirrors,
    /// Records of this server that replicas have.
    pub copies: Copies,
    /// True while this replica is to take the place of its primary (CLUSTER FAILOVER).
    takes_over: AtomicBool,
    /// Messages of PUBLISH on their way to the other servers.
    pub messages: MessageQueues,
    /// The newest link by which each other server sends messages: the nonce that this one gave.
    links: Mutex<BTreeMap<Life, u64>>,
}

/// Returns the error of a command on a slot that is elsewhere.
fn moved(slot: u16, address: &NodeAddress, secured: bool) -> String {
    format!("MOVED {slot} {}:{}", address.host, address.port_for(secured))
}

/// Returns the primary of all replicas, as CLUSTER NODES shows it, which has one place for that: the first
/// server that owns slots.
pub fn shown_primary(map: &ClusterMap) -> Option<&MapMember> {
    let is_open = |member: &MapMember| map.open_member(member.node) == Some(member);
    let mut members = map.members().iter();
    members.find(|member| is_open(member) && map.owned_by(member.life).next().is_some())
}

impl Cluster {
    /// Creates the state of a server that has joined with a map, and serves nothing yet.
    pub fn new(node: NodeId, life: Life, layout: Arc<Layout>, map: Arc<ClusterMap>) -> Self {
        let shards = (0..MAX_SHARDS).map(|_| AtomicU8::new(ELSEWHERE)).collect();
        let lacks_libraries = AtomicBool::new(map.functions().is_some());
        let (map, going, hint) = (RwLock::new(map), Mutex::default(), AtomicU64::new(0));
        let (changed, hinted) = (Notify::new(), Notify::new());
        let (sight, libraries) = (ClusterSight::default(), Mutex::default());
        let (messages, links) = (MessageQueues::default(), Mutex::default());
        let mirrors = Mirrors::new(layout.clone());
        Self {
            node,
            life,
            layout,
            map,
            shards,
            going,
            given: Mutex::default(),
            departures: AtomicU64::new(0),
            libraries,
            lacks_libraries,
            hint,
            hinted_at: Mutex::default(),
            sight,
            changed,
            hinted,
            mirrors,
            copies: Copies::default(),
            takes_over: AtomicBool::new(false),
            messages,
            links,
        }
    }

    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Lets this replica take the place of its primary.
    ///
    /// # Errors
    /// The error text, if it is none, or leaves: it would get nothing.
    pub fn begin_takeover(&self) -> Result<(), &'static str> {
        let map = self.map();
        let own = map.member(self.life).filter(|own| own.is_replica());
        let own = own.ok_or("ERR You should send CLUSTER FAILOVER to a replica")?;
        if own.leaving {
            return Err("ERR This replica leaves the cluster, so it cannot become an owner");
        }
        self.takes_over.store(true, Ordering::Release);
        self.hinted.notify_one();
        Ok(())
    }

    /// Ends that.
    pub fn end_takeover(&self) {
        self.takes_over.store(false, Ordering::Release);
    }

    /// Returns true if this replica is to take the place of its primary.
    pub fn takes_over(&self) -> bool {
        self.takes_over.load(Ordering::Acquire)
    }

    pub fn life(&self) -> Life {
        self.life
    }

    /// Returns the newest map that is known.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes a map, which is the newest one, if it is newer than the one that is known.
    pub fn learn(&self, map: &Arc<ClusterMap>) {
        self.sight.confirm();
        let mut known = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if known.number() < map.number() {
            *known = map.clone();
        }
        self.compare_libraries(&known, &self.loaded());
        drop(known);
        self.changed.notify_waiters();
    }

    /// Notes which libraries of functions are loaded.
    pub fn set_libraries(&self, id: Option<LibrariesId>) {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let mut loaded = self.loaded();
        *loaded = id;
        self.compare_libraries(&map, &loaded);
        drop((loaded, map));
        self.changed.notify_waiters();
    }

    /// Returns the libraries of functions that are loaded.
    pub fn libraries(&self) -> Option<LibrariesId> {
        *self.loaded()
    }

    fn loaded(&self) -> MutexGuard<'_, Option<LibrariesId>> {
        self.libraries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compare_libraries(&self, map: &ClusterMap, loaded: &Option<LibrariesId>) {
        self.lacks_libraries.store(map.functions() != *loaded, Ordering::Release);
    }

    /// Returns true if the newest map that is known names libraries of functions that are not loaded.
    #[inline]
    pub fn lacks_libraries(&self) -> bool {
        self.lacks_libraries.load(Ordering::Acquire)
    }

    /// Waits until libraries of functions are to be loaded.
    pub async fn until_libraries_change(&self) {
        loop {
            let changed = self.changed.notified();
            if self.lacks_libraries() {
                return;
            }
            changed.await;
        }
    }

    /// Notes that another server has named a map.
    pub fn hear(&self, number: u64) {
        if self.hint.load(Ordering::Acquire) >= number || self.map().number() >= number {
            return;
        }
        *self.hinted_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.hint.fetch_max(number, Ordering::AcqRel);
        self.hinted.notify_one();
    }

    /// Returns true if this server has just heard of a newer map, which it is about to read: that map may
    /// give it what the known one gives to others.
    fn is_behind(&self, map: &ClusterMap) -> bool {
        let heard_at = || *self.hinted_at.lock().unwrap_or_else(PoisonError::into_inner);
        self.hint.load(Ordering::Acquire) > map.number()
            && heard_at().is_some_and(|at| at.elapsed() < HEARD)
    }

    /// Returns the number of a newer map of which this server has heard.
    pub fn newer_map(&self) -> Option<u64> {
        let hint = self.hint.load(Ordering::Acquire);
        Some(hint).filter(|hint| *hint > self.map().number())
    }

    /// Returns true if the map was not read for so long that others may have taken over what this server owns.
    pub fn is_out_of_touch(&self) -> bool {
        self.sight.map_age() > OUT_OF_TOUCH * self.map().lease()
    }

    /// Returns true if a server is this one, or answers it.
    pub fn is_connected(&self, life: Life) -> bool {
        life == self.life || self.sight.heard.answers(life, self.map().lease())
    }

    pub fn state(&self, shard: u16) -> ServedState {
        let state = self.shards.get(usize::from(shard));
        match state.map_or(ELSEWHERE, |state| state.load(Ordering::Acquire)) {
            SERVED => ServedState::Served,
            EXPECTED => ServedState::Expected,
            _ => ServedState::Elsewhere,
        }
    }

    /// Begins to give a shard to another life, or to nobody: commands on it wait.
    pub fn begin_giving(&self, shard: u16, to: Option<Life>) {
        let map = self.map();
        let next = to.and_then(|life| Some(map.member(life)?.address.clone()));
        // Before the map says so: a replica that knows that map is asked for them, or its answer counts for nothing.
        self.given.lock().unwrap_or_else(PoisonError::into_inner).add(map.slots_of(shard));
        let mut going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
        going.insert(shard, next);
        drop(going);
        self.set(shard, ServedState::Expected);
        // Who has seen it as served before sees this once it has left.
        self.departures.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the slots that this server has given away in this life, or was about to: records of its journal
    /// may be of them.
    pub fn given(&self) -> GivenSlots {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the lsn up to which a replica shows all records, as it has said when it was asked for these given
    /// slots; 0: nothing is known. Its answer may be by a map that gives more away: it was not asked for that.
    pub fn proven_by(&self, asked: &GivenSlots, applied: Lsn) -> Lsn {
        if self.given() == *asked { applied } else { 0 }
    }

    /// Returns true while a shard is being given away or split: the map may give it to another life already.
    pub fn is_giving(&self) -> bool {
        !self.going.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub fn set(&self, shard: u16, state: ServedState) {
        if state != ServedState::Expected {
            self.going.lock().unwrap_or_else(PoisonError::into_inner).remove(&shard);
        }
        let number = match state {
            ServedState::Elsewhere => ELSEWHERE,
            ServedState::Expected => EXPECTED,
            ServedState::Served => SERVED,
        };
        if let Some(known) = self.shards.get(usize::from(shard)) {
            known.store(number, Ordering::Release);
        }
        self.changed.notify_waiters();
    }

    /// Returns true if a shard could not be taken, and is not served. One that is is tried no more, but may be noted yet.
    pub fn is_untaken(&self, shard: u16) -> bool {
        self.sight.is_untaken(shard) && self.state(shard) != ServedState::Served
    }

    /// Returns the shards that are served here, in order.
    pub fn served(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.layout.shards()).filter(|shard| self.state(*shard) == ServedState::Served)
    }

    /// Returns true if commands on a slot run here.
    #[inline]
    pub fn serves(&self, slot: u16) -> bool {
        self.state(self.layout.shard_of(slot)) == ServedState::Served
    }

    /// Has replicas asked at once, and often, which records of this server they have, as long as the value
    /// lives.
    pub fn await_copies(&self) -> AwaitedCopies<'_> {
        let awaited = self.copies.begin_wait();
        self.changed.notify_waiters();
        awaited
    }

    /// Shows a shard of another server, which has had it since a map, from now on: commands may wait for it.
    pub fn show_mirror(&self, shard: u16, since: u64) {
        self.mirrors.show(shard, since);
        self.changed.notify_waiters();
    }

    /// Returns true if a slot's shard is shown here, although another server owns it.
    pub fn mirrors(&self, slot: u16) -> bool {
        self.mirrors.shows(self.layout.shard_of(slot))
    }

    /// Returns true if this server neither serves a slot's shard nor waits for it.
    pub fn has_lost(&self, slot: u16) -> bool {
        self.state(self.layout.shard_of(slot)) == ServedState::Elsewhere
    }

    /// Returns where a command on a slot belongs.
    pub fn owner_of(&self, slot: u16) -> SlotOwner {
        let shard = self.layout.shard_of(slot);
        match self.state(shard) {
            ServedState::Served => return SlotOwner::Here,
            ServedState::Expected => return SlotOwner::Soon,
            ServedState::Elsewhere => {}
        }
        let map = self.map();
        if self.is_behind(&map) {
            return SlotOwner::Soon;
        }
        match map.shards().get(usize::from(shard)).and_then(|entry| entry.owner) {
            None => SlotOwner::Nobody,
            Some(owner) if owner == self.life => SlotOwner::Soon,
            Some(owner) => match map.member(owner) {
                Some(member) => SlotOwner::There(member.address.clone()),
                None => SlotOwner::Nobody,
            },
        }
    }

    /// Returns the error that has a client ask this server once more.
    pub fn here(&self, slot: u16, secured: bool) -> String {
        match self.map().member(self.life) {
            Some(own) => moved(slot, &own.address, secured),
            None => "CLUSTERDOWN Hash slot not served".to_owned(),
        }
    }

    /// Returns the error of a command on a slot that is not served here. `secured`: the client uses
    /// TLS.
    pub fn refusal(&self, slot: u16, secured: bool) -> String {
        let moved = |address: &NodeAddress| moved(slot, address, secured);
        let going = self.going.lock().unwrap_or_else(PoisonError::into_inner);
        match self.owner_of(slot) {
            SlotOwner::There(address) => moved(&address),
            SlotOwner::Nobody => "CLUSTERDOWN Hash slot not served".to_owned(),
            // It was away for a moment, or is on another worker now.
            SlotOwner::Here => self.here(slot, secured),
            SlotOwner::Soon => match going.get(&self.layout.shard_of(slot)) {
                Some(Some(next)) => moved(next),
                _ => format!("TRYAGAIN The shard of slot {slot} is changing hands"),
            },
        }
    }

    /// Returns the error of a command that has waited in vain. `secured`: the client uses TLS.
    pub fn late(&self, awaited: ExpectedPart, secured: bool) -> String {
        match awaited {
            ExpectedPart::Slot(slot) => self.refusal(slot, secured),
            ExpectedPart::Libraries => {
                "TRYAGAIN The libraries of functions are not loaded yet".to_owned()
            }
            ExpectedPart::AllShards { .. } => whole::LACKING.to_owned(),
        }
    }

    /// Returns true if a part of this server is not here, but may come soon.
    pub fn awaits(&self, part: ExpectedPart) -> bool {
        match part {
            ExpectedPart::Slot(slot) => self.owner_of(slot) == SlotOwner::Soon,
            ExpectedPart::Libraries => self.lacks_libraries(),
            ExpectedPart::AllShards { and_to_come } => !self.serves_all_shards(and_to_come),
        }
    }

    /// Waits until a command need not wait any more, at most until `limit`: it is known where its slot
    /// belongs, or the part is there.
    pub async fn until_settled(&self, awaited: ExpectedPart, limit: Instant) {
        loop {
            let changed = self.changed.notified();
            if !self.awaits(awaited) || Instant::now() >= limit {
                return;
            }
            let look = match self.is_behind(&self.map()) {
                true => limit.min(Instant::now() + LOOK),
                false => limit,
            };
            let _ = tokio::time::timeout_at(look, changed).await;
        }
    }

    /// Waits until the map or a state changes.
    pub async fn change(&self) {
        self.changed.notified().await;
    }

    /// Returns the other servers that may own shards.
    pub fn others(&self) -> Vec<MapMember> {
        let map = self.map();
        let is_other = |m: &&MapMember| m.life != self.life && map.open_member(m.node) == Some(*m);
        map.members().iter().filter(is_other).cloned().collect()
    }
}
