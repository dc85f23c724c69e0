//! Tests of the map: the rules of its changes, and its objects in a store with faults of all kinds.

mod changes;
mod libraries;
mod objects;
mod races;
mod sequences;
mod stories;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{
    ClusterMap, Life, MapDraft, MapError, MapOutcome, MapRefusal, MapStore, NodeAddress, NodeId,
    PendingChange,
};
use crate::place::sim::{Client, Sim};
use crate::place::{AskLimits, Place};

/// Runs a test on a clock that skips all waiting.
fn run<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(test)
}

fn node(n: u8) -> NodeId {
    NodeId([n; 20])
}

fn address(n: u8) -> NodeAddress {
    NodeAddress { host: format!("10.0.0.{n}"), port: 6379, tls_port: None }
}

/// A server with a connection to the store of its own.
struct Server {
    sim: Sim,
    client: Arc<Client>,
    maps: MapStore,
}

/// Creates a server that keeps so many maps, and of whose requests some fail (in percent).
fn server(sim: &Sim, faults: u64, kept: u64) -> Server {
    let client = sim.client(faults);
    client.pace.store(5000, Ordering::SeqCst);
    let mut maps = MapStore::new(&Place::within(client.clone(), "data".into(), "sim"));
    maps.kept = kept;
    let request = Duration::from_millis(50);
    maps.limits = AskLimits { request, longest: request, pause: Duration::from_millis(1) };
    Server { sim: sim.clone(), client, maps }
}

fn object(number: u64) -> String {
    format!("data/cluster/map/{number:020}")
}

/// Returns a change that matters to nobody. The map has two members, and shard 0 is the first one's.
fn touch(draft: &mut MapDraft) -> Result<(), MapRefusal> {
    let other = draft.map().members()[1].life;
    let is_moving = draft.map().shards()[0].moving_to.is_some();
    draft.want_move(0, Some(other).filter(|_| !is_moving))
}

impl Server {
    /// Founds a cluster of two nodes; returns the map.
    async fn found(&self) -> Arc<ClusterMap> {
        let first = MapDraft::create(1, 300).unwrap().finish().unwrap();
        assert!(matches!(self.maps.change(&first).await, Ok(MapOutcome::Counts(_))));
        let join = |draft: &mut MapDraft| {
            for n in [1, 2] {
                draft.join(node(n), address(n))?;
            }
            Ok::<_, MapRefusal>(())
        };
        self.maps.amend(join).await.unwrap()
    }

    /// Makes a change, on the base of the newest map, that is not put yet.
    async fn change(&self) -> PendingChange {
        let mut draft = self.maps.newest().await.unwrap().unwrap().draft();
        touch(&mut draft).unwrap();
        draft.finish().unwrap()
    }

    /// Changes the map, and deletes maps that are not kept. Returns the newest one.
    async fn touch(&self) -> Arc<ClusterMap> {
        let newest = self.maps.amend(touch).await.unwrap();
        while self.maps.prune().await.unwrap() > 0 {}
        newest
    }

    /// Checks that a map that is believed is the first content of its number.
    fn believes(&self, map: &ClusterMap) {
        let first = self.first(map.number()).unwrap();
        assert_eq!(first, *map, "map {} is not in the sequence", map.number());
    }

    /// Returns the first content of a number.
    fn first(&self, number: u64) -> Option<ClusterMap> {
        let text = self.sim.first_content(&object(number))?;
        Some(ClusterMap::decode(number, &text).unwrap())
    }
}
