//! Health of the node, by which commands are refused or delayed.
//!
//! Writers wait (`is_pressed`) while the engines fall behind the budget for pending rows, or the
//! journal's store behind its records; after `PRESSURE_LIMIT_MS` their writes are refused. A
//! journal in a bucket has a lease: replies that show data are sent only while it is certain that
//! no other server has taken the data over (`confirm_owner`).

use super::DataSet;
use crate::config::Settings;
use crate::followers::Acks;
use crate::replica::Replica;
use crate::stalls::Stalls;
use flagstone_commands::{CommandFlags, flag};
use flagstone_storage::clock::Clock;
use flagstone_storage::encoding::SourcePosition;
use flagstone_storage::lease::{Lease, Unconfirmed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How long writers wait for memory, in ms, while no engine takes, flushes or merges rows, before
/// their writes are refused.
pub(super) const PRESSURE_LIMIT_MS: u64 = 5000;

/// Interval at which those who wait for room look again.
const ROOM_POLL: Duration = Duration::from_millis(2);

/// Error of writes that are refused while there is no memory for them.
pub(super) const CHOKED: &str = "OOM the engine has taken no rows for seconds, or its disk is full: there is \
    no memory left for writes";

/// Error of writes that may add data while the disk has hardly any room.
pub(super) const NO_ROOM: &str = "ERR no space left to store the write: the disk has just the room that the shards \
    need to store what the journal has. Commands that remove data are accepted as long as they find some.";

/// Error of writes that are refused while the journal's store is unreachable.
const CUT_OFF: &str = "MISCONF The store of the journal does not answer, so that no write can be \
    stored. Commands that may modify the data set are refused until it does. The log says more.";

/// Error in place of data while another server may own it.
const DISOWNED: &str = "MASTERDOWN The store of the journal does not answer, so that another server \
    may have taken over, and serve-stale-data is set to 'no'.";

/// The same for writes in a cluster, whose clients try other servers then, ...
const UNSTORED: &str =
    "CLUSTERDOWN The store of the journal does not answer, so that no write can be stored.";

/// ... and for reads.
const DOWN: &str = "CLUSTERDOWN The store of the journal does not answer, so that another server may have taken over.";

/// Error in place of data while a replica may have become the primary.
pub(super) const REPLACED: &str = "MASTERDOWN No replica confirms that this server is still the primary \
    (repl-ack), so that another one may be by now, and serve-stale-data is set to 'no'.";

/// Error in place of data while a promotion waits.
pub(super) const INCOMPLETE: &str =
    "MASTERDOWN This server may lack writes until it has heard other replicas (repl-group-size).";

/// Error in place of the reply of a command that may have changed something then.
const UNCERTAIN: &str = "NOREPLICAS It is not known whether the write stays: no replica confirms that this \
    server is still the primary.";

/// Error in place of data once another server may have taken it over for good.
const TAKEN_OVER: &str = "MASTERDOWN This server is shutting down: it has released the data, or another \
    server has taken it over.";

/// The same in a cluster.
const ENDS: &str = "CLUSTERDOWN This server is shutting down: other servers have its shards.";

/// State by which commands are refused.
pub struct Health {
    clock: Clock,
    /// True if other servers of a cluster take its shards over.
    is_clustered: bool,
    /// Lease of the journal, if other servers may take it over.
    lease: Option<Arc<Lease>>,
    /// Time at which an engine last took rows while more are pending than the budget allows, or at
    /// which the journal's store last took records while many wait: ms since the Unix epoch. 0 if
    /// writers need not wait.
    pub pressure_since_ms: AtomicU64,
    /// Shards that cannot store rows.
    pub stalls: Stalls,
    /// This server as the replica of another one.
    pub replica: Replica,
    /// Size of the data set, next to `maxmemory`.
    pub data_set: DataSet,
    /// True if the journal's store is unreachable.
    cut_off: AtomicBool,
    /// True if the disk has hardly any room.
    pub short_of_disk: AtomicBool,
    /// Number of replicas with little lag, as of some ms ago.
    good_replicas: AtomicUsize,
    /// Replies that wait for replicas.
    pub acks: Arc<Acks>,
}

impl Health {
    /// Creates the health of a starting node, maybe of a cluster, with so many shards, and workers that
    /// own some, which had reached a position in the stream of another server.
    pub(super) fn new(
        (lease, is_clustered): (Option<Arc<Lease>>, bool),
        clock: Clock,
        shards: u16,
        shard_workers: usize,
        (position, is_replica): (SourcePosition, bool),
        acks: Arc<Acks>,
    ) -> Self {
        Self {
            clock,
            is_clustered,
            lease,
            pressure_since_ms: AtomicU64::new(0),
            stalls: Stalls::new(shards),
            replica: Replica::new(position, is_replica),
            data_set: DataSet::new(shard_workers),
            cut_off: AtomicBool::new(false),
            short_of_disk: AtomicBool::new(false),
            good_replicas: AtomicUsize::new(0),
            acks,
        }
    }

    /// Returns true if it is a server of a cluster.
    pub(super) fn is_clustered(&self) -> bool {
        self.is_clustered
    }

    /// Returns true if writers have to wait until rows are handed over.
    pub fn is_pressed(&self) -> bool {
        self.pressure_since_ms.load(Ordering::Relaxed) != 0
    }

    /// Returns true if writers wait, and are not refused yet.
    pub fn lacks_room(&self) -> bool {
        self.is_pressed() && !self.is_choked()
    }

    /// Waits until there is room for a client's write, or it is refused.
    pub async fn room_or_refusal(&self) {
        while self.lacks_room() {
            tokio::time::sleep(ROOM_POLL).await;
        }
    }

    /// Waits until there is room for the writes of a primary, which are never refused.
    pub async fn room(&self) {
        while self.is_pressed() {
            tokio::time::sleep(ROOM_POLL).await;
        }
    }

    /// Returns true if the engines have taken no rows for so long that writes are refused.
    pub fn is_choked(&self) -> bool {
        let since_ms = self.pressure_since_ms.load(Ordering::Relaxed);
        since_ms != 0 && self.clock.now_ms().saturating_sub(since_ms) > PRESSURE_LIMIT_MS
    }

    /// Returns true if the journal's store is unreachable, so that no write can be stored.
    pub fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    pub fn set_cut_off(&self, cut_off: bool) {
        self.cut_off.store(cut_off, Ordering::Relaxed);
    }

    /// Returns the number of replicas with at most `min-replicas-max-lag` of lag.
    pub fn good_replicas(&self) -> usize {
        self.good_replicas.load(Ordering::Relaxed)
    }

    pub fn set_good_replicas(&self, count: usize) {
        self.good_replicas.store(count, Ordering::Relaxed);
    }

    /// Returns true if replies wait for replicas, and these do not confirm what is written, or are not
    /// there.
    #[inline]
    pub fn is_unconfirmed(&self) -> bool {
        self.acks.is_active()
            && (self.good_replicas() < self.acks.needed() || self.acks.is_overdue())
    }

    /// Returns true if it is certain that no other server has taken the data over.
    pub fn is_owner(&self) -> bool {
        self.owns_store() && self.acks.is_owner() && !self.replica.is_succeeding()
    }

    /// Returns the lease on which replies depend that show data. A replica in a cluster has none: its data may
    /// be old.
    #[inline]
    fn lease(&self) -> Option<&Arc<Lease>> {
        self.lease.as_ref().filter(|_| !self.replica.is_mirroring())
    }

    /// Returns true if it is certain that no other server has taken the journal's bucket over.
    pub fn owns_store(&self) -> bool {
        self.lease().is_none_or(|lease| lease.holds())
    }

    /// Waits until it is certain that no other server has taken the data over.
    ///
    /// # Errors
    /// Returns the error that replaces replies which show data: another server owns it, or may own
    /// it.
    pub async fn confirm_owner(&self, settings: &Settings) -> Result<(), &'static str> {
        if self.replica.is_succeeding() && !settings.serve_stale_data {
            return Err(INCOMPLETE);
        }
        // The same command may already have waited for the store as long as commands may.
        let limit = match self.is_cut_off() {
            true => Duration::ZERO,
            false => Duration::from_millis(settings.store_timeout_ms),
        };
        let confirmed = match self.lease() {
            Some(lease) => {
                lease.confirm(limit).await.map_err(|reason| (reason, self.disowned_text()))
            }
            None => Ok(()),
        };
        let confirmed = match confirmed {
            Ok(()) => self.acks.confirm_owner().await.map_err(|reason| (reason, REPLACED)),
            failed => failed,
        };
        match confirmed {
            Err((Unconfirmed::Away, _)) if self.shows_stale(settings) => Ok(()),
            Err((Unconfirmed::Away, text)) => Err(text),
            Err((Unconfirmed::Lost, _)) if self.is_clustered => Err(ENDS),
            Err((Unconfirmed::Lost, _)) => Err(TAKEN_OVER),
            Ok(()) => Ok(()),
        }
    }

    /// Returns the error of writes while the journal's store is unreachable.
    pub(super) fn cut_off_text(&self) -> &'static str {
        if self.is_clustered { UNSTORED } else { CUT_OFF }
    }

    fn disowned_text(&self) -> &'static str {
        if self.is_clustered { DOWN } else { DISOWNED }
    }

    /// Returns the error for the reply of a command that has run: what may have changed something is not
    /// refused by it.
    pub fn uncertain(text: &'static str, may_change: bool) -> &'static str {
        if may_change && text == REPLACED { UNCERTAIN } else { text }
    }

    /// Returns true if commands need not wait for a confirmation, because others have waited in
    /// vain.
    pub fn is_disowned(&self) -> bool {
        self.is_lease_lost() || self.acks.is_disowned()
    }

    /// Returns true if that is so, and values are not shown either way.
    pub fn refuses_data(&self, settings: &Settings) -> bool {
        self.is_disowned() && !self.shows_stale(settings)
    }

    /// Returns true if commands need not wait for a proof that nobody has taken the journal's bucket over.
    fn is_lease_lost(&self) -> bool {
        self.lease().is_some_and(|lease| lease.is_away() && !lease.holds())
    }

    /// Returns the error for all who wait for something of a shard, once other servers of the cluster may have
    /// taken the shards over.
    pub fn lost_shards(&self) -> Option<&'static str> {
        (self.is_clustered && self.is_lease_lost()).then_some(DOWN)
    }

    /// Has the lease renewed soon, so that it is known if it is lost.
    pub fn want_lease(&self) {
        if let Some(lease) = self.lease() {
            lease.want();
        }
    }

    /// Returns true if values may be shown that another server may have replaced. In a cluster never: clients
    /// go to the server that has taken over.
    pub(super) fn shows_stale(&self, settings: &Settings) -> bool {
        settings.serve_stale_data && !self.is_clustered
    }

    /// Returns the error if a command with these flags is one of them.
    pub(super) fn disowned(&self, flags: CommandFlags) -> Option<&'static str> {
        // A replica may show its keys however old they are; an owner may not.
        let is_of_all_keys = flags.contains(flag!(ALL_SHARDS));
        if flags.contains(flag!(STALE)) && !is_of_all_keys {
            return None;
        }
        let has_data = is_of_all_keys || flags.intersects(flag!(READONLY | WRITE));
        let is_away = self.is_lease_lost();
        // Clients of a cluster have to be able to connect, as to any server of one that is down.
        if is_away && (has_data || !self.is_clustered) {
            return Some(self.disowned_text());
        }
        // Replicas have to be able to come.
        (has_data && self.acks.is_disowned()).then_some(REPLACED)
    }

    /// Returns how long the lease lasts without an answer from the store, in ms; `None` for a local
    /// journal.
    pub fn lease_left_ms(&self) -> Option<u64> {
        self.lease().map(|lease| u64::try_from(lease.left().as_millis()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Startup};
    use flagstone_storage::feed::Feed;

    #[test]
    fn a_server_that_waits_for_its_promotion_does_not_own_the_data() {
        let acks = Arc::new(Acks::new(Arc::new(Feed::new(1))));
        let position = (SourcePosition::default(), false);
        let health = Health::new((None, false), Clock::default(), 1, 1, position, acks);
        assert!(health.is_owner());
        // Replies of commands that were admitted before are checked by this alone.
        health.replica.begin_succession(1);
        assert!(!health.is_owner());
    }

    #[tokio::test]
    async fn a_server_of_a_cluster_without_its_lease_shows_no_keys_and_says_so_to_who_waits() {
        let lease = Lease::new(Duration::from_secs(3600), "of a test", Arc::default());
        let lease = Arc::new(lease);
        let of = |is_clustered| {
            let acks = Arc::new(Acks::new(Arc::new(Feed::new(1))));
            let position = (SourcePosition::default(), false);
            let lease = (Some(lease.clone()), is_clustered);
            Health::new(lease, Clock::default(), 1, 1, position, acks)
        };
        let (alone, clustered) = (of(false), of(true));
        let all_keys = flag!(STALE | ALL_SHARDS);
        assert_eq!((clustered.lost_shards(), clustered.disowned(all_keys)), (None, None));
        assert_eq!(lease.confirm(Duration::from_millis(1)).await, Err(Unconfirmed::Away));
        assert_eq!((clustered.lost_shards(), alone.lost_shards()), (Some(DOWN), None));
        for (flags, texts) in [
            (all_keys, [Some(DISOWNED), Some(DOWN)]),
            (flag!(READONLY), [Some(DISOWNED), Some(DOWN)]),
            (flag!(PUBSUB), [Some(DISOWNED), None]),
            (flag!(STALE), [None, None]),
        ] {
            assert_eq!(
                [&alone, &clustered].map(|health| health.disowned(flags)),
                texts,
                "{flags:?}"
            );
        }
        let args = ["--serve-stale-data", "yes"].map(str::to_owned).into_iter();
        let Ok(Startup::Run(config)) = Config::load(args, std::iter::empty()) else {
            panic!("the arguments are valid");
        };
        let settings = config.settings();
        assert_eq!([&alone, &clustered].map(|health| health.shows_stale(&settings)), [true, false]);
        let refuse = |settings: &Settings| [&alone, &clustered].map(|it| it.refuses_data(settings));
        assert_eq!(refuse(&settings), [false, true]);
        assert_eq!(
            refuse(&Settings { serve_stale_data: false, ..(*settings).clone() }),
            [true, true]
        );
        assert_eq!(clustered.confirm_owner(&settings).await, Err(DOWN));
        assert_eq!(alone.confirm_owner(&settings).await, Ok(()));
        lease.renew(flagstone_storage::lease::BootTime::now());
        assert_eq!((clustered.lost_shards(), clustered.disowned(all_keys)), (None, None));
    }
}
