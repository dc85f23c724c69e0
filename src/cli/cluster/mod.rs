//! `flagstone cluster`: looks at the map of a cluster in its store, and changes it. The command needs
//! no server: owners do what the map asks them to.

mod balancing;
mod convert;
mod giving_up;
mod moving;
mod naming;
mod promoting;
mod splitting;
mod status;

use super::backup::block_on;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use flagstone_storage::cluster::{ClusterMap, MapStore};
use flagstone_storage::place::Place;
use std::sync::Arc;

/// Show which servers of a cluster own which shards, move and split shards, and convert data
#[derive(Args)]
#[command(disable_help_subcommand = true)]
pub(super) struct ClusterArguments {
    #[command(subcommand)]
    verb: ClusterVerb,
}

#[derive(Subcommand)]
enum ClusterVerb {
    Status(status::ClusterStatusArguments),
    Convert(convert::ConversionArguments),
    Move(moving::ShardMoveArguments),
    Drain(moving::DrainArguments),
    Split(splitting::SplitArguments),
    Balance(balancing::BalanceArguments),
    Promote(promoting::PromoteArguments),
    GiveUp(giving_up::GiveUpArguments),
}

/// Runs the subcommand.
///
/// # Errors
/// If the store is away or has no cluster, if the map, or the data that is to be converted, does not allow
/// the change, or if it is not done in time.
pub(super) fn run(arguments: &ClusterArguments) -> Result<()> {
    block_on(async {
        match &arguments.verb {
            ClusterVerb::Status(arguments) => arguments.run().await,
            ClusterVerb::Convert(arguments) => arguments.run().await,
            ClusterVerb::Move(arguments) => arguments.run().await,
            ClusterVerb::Drain(arguments) => arguments.run().await,
            ClusterVerb::Split(arguments) => arguments.run().await,
            ClusterVerb::Balance(arguments) => arguments.run().await,
            ClusterVerb::Promote(arguments) => arguments.run().await,
            ClusterVerb::GiveUp(arguments) => arguments.run().await,
        }
    })
}

#[derive(Args)]
struct ClusterPlace {
    /// The cluster's store: s3://bucket/prefix, gs://…, az://… or bucket+file:///directory
    #[arg(long, value_name = "URL", value_parser = shared_store)]
    store: String,
}

/// Checks that a text names a store that servers can share.
fn shared_store(text: &str) -> Result<String> {
    if Place::parse(text)?.dir().is_some() {
        bail!(
            "it is a local directory, which servers cannot share: copy it to a bucket with `flagstone \
             reshard --to`"
        );
    }
    Ok(text.to_owned())
}

impl ClusterPlace {
    fn maps(&self) -> Result<ClusterMaps> {
        let place = Place::parse(&self.store)?;
        let store = MapStore::new(&place);
        Ok(ClusterMaps { place, store })
    }
}

/// The maps of the cluster in a place.
struct ClusterMaps {
    place: Place,
    store: MapStore,
}

impl ClusterMaps {
    /// Returns the newest map.
    ///
    /// # Errors
    /// If there is none, or if the store has not answered within 40 s.
    async fn newest(&self) -> Result<Arc<ClusterMap>> {
        let newest = self.store.newest().await?;
        newest.with_context(|| format!("there is no cluster in {}", self.place))
    }
}
