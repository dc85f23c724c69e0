//! Opens the data at the start. In a cluster the server joins: with its id, its address and a new life.

use crate::cluster::Cluster;
use crate::config::{ClusterReplica, Config, ReplAck, Settings};
use anyhow::{Context, Result, bail};
use flagstone_storage::clock::Clock;
use flagstone_storage::cluster::{ClusterSeat, NodeAddress, NodeId, ServerRole};
use flagstone_storage::directory::{Directory, Locks, OpenOptions, create_private_dir, lock};
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Name of the file with the node's id, in the local directory.
const ID_FILE: &str = "cluster-node-id";

/// Number of shards of a new cluster: servers up to that number can share them.
const SHARDS: u16 = 32;

/// An open data directory, and the server's seat if it belongs to a cluster.
pub(crate) struct Opened {
    pub(crate) directory: Directory,
    pub(crate) joined: Option<(Arc<ClusterSeat>, Arc<Cluster>)>,
    /// The lock on the local directory of a server of a cluster, which has the server's id: another process
    /// would end its life.
    pub(crate) locks: Locks,
}

/// Opens the data directory, or joins the cluster whose it is: with `cluster-enabled yes` and a store
/// that servers can share, a new one is made for a cluster. Must run on the background runtime.
///
/// # Errors
/// If it cannot be opened. In a cluster, also if the data is that of a single server, and if the server
/// has no address to tell others.
pub(crate) async fn open(
    mut options: OpenOptions,
    clock: Clock,
    config: Arc<Config>,
) -> Result<Opened> {
    let settings = config.settings();
    let wants = settings.cluster_enabled && options.store.dir().is_none();
    if !wants {
        if settings.cluster_replica != ClusterReplica::No {
            bail!("cluster-replica needs a store with the data of a cluster of several servers");
        }
        let directory = Directory::open(options, clock).await?;
        return Ok(Opened { directory, joined: None, locks: Locks::new() });
    }
    for (name, is_set) in [
        ("journal", settings.journal.is_some()),
        ("journal-archive-retention", settings.journal_archive_retention_seconds != 0),
        ("checkpoint-interval", settings.checkpoint_interval_seconds != 0),
        ("replicaof", settings.replicaof.is_some()),
        ("repl-ack", settings.repl_ack != ReplAck::None),
        ("min-replicas-to-write", settings.min_replicas_to_write != 0),
    ] {
        if is_set {
            bail!("{name} does not work in a cluster of several servers");
        }
    }
    if settings.serve_stale_data {
        // Servers that had it before start all the same.
        tracing::warn!("serve-stale-data has no effect in a cluster of several servers");
    }
    // The servers send it to each other.
    if config.renamed().iter().any(|[command, _]| command.eq_ignore_ascii_case("cluster")) {
        bail!("rename-command CLUSTER does not work in a cluster of several servers");
    }
    options.default_shards = SHARDS;
    options.lease = Duration::from_millis(settings.cluster_lease_ms);
    let address = address_of(&settings)?;
    if address.port == 0 && address.tls_port.is_none() {
        bail!(
            "a server of a cluster needs a port that clients and other servers reach: set port or tls-port"
        );
    }
    if address.port == 0 && !settings.tls_cluster {
        bail!(
            "without port, other servers reach this one by TLS: set tls-cluster yes on all of them"
        );
    }
    let (node, locks) = (node_id(&settings.dir)?, lock(&settings.dir)?);
    let role = match settings.cluster_replica {
        ClusterReplica::No => ServerRole::Owner,
        ClusterReplica::Yes => ServerRole::Replica,
        ClusterReplica::Standby => ServerRole::Standby,
    };
    let joining = ClusterSeat::join(options, clock, (node, &address), role);
    let (directory, seat) = joining.await?;
    let map = seat.maps().newest().await?.context("the cluster's map is gone")?;
    let life = seat.life();
    tracing::info!(%node, life = life.0, map = map.number(), "joined the cluster");
    let cluster = Arc::new(Cluster::new(node, life, directory.layout.clone(), map));
    Ok(Opened { directory, joined: Some((Arc::new(seat), cluster)), locks })
}

/// Returns the address that clients and other servers use.
pub(super) fn address_of(settings: &Settings) -> Result<NodeAddress> {
    let announced = [&settings.cluster_announce_ip, &settings.cluster_announce_hostname];
    let announced = announced.into_iter().find_map(Clone::clone);
    let bound = || {
        let mut addresses = settings.bind.iter().map(|it| it.trim_start_matches('-').to_owned());
        addresses.find(|it| it.parse::<IpAddr>().is_ok_and(|ip| !ip.is_unspecified()))
    };
    let Some(host) = announced.or_else(bound) else {
        bail!(
            "a server of a cluster must know its own address: set cluster-announce-ip, or bind to one \
             address"
        )
    };
    let or = |announced: u16, own: u16| if announced == 0 { own } else { announced };
    let port = or(settings.cluster_announce_port, settings.port);
    let tls_port = Some(or(settings.cluster_announce_tls_port, settings.tls_port));
    Ok(NodeAddress { host, port, tls_port: tls_port.filter(|port| *port != 0) })
}

/// Reads the node's id, or makes one: it stays the same as long as the local directory.
fn node_id(dir: &Path) -> Result<NodeId> {
    let path = dir.join(ID_FILE);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let id = NodeId::parse(text.trim());
            id.with_context(|| format!("{} has no id of a node: remove it", path.display()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let id = NodeId(rand::random());
            create_private_dir(dir).with_context(|| format!("creating {}", dir.display()))?;
            fs::write(&path, format!("{id}\n"))
                .with_context(|| format!("writing {}", path.display()))?;
            Ok(id)
        }
        Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
    }
}
