//! `flagstone cluster convert`: makes the data of a single server that of a cluster.

use super::ClusterPlace;
use anyhow::Result;
use clap::Args;
use flagstone_storage::checkpoint::offline_options;
use flagstone_storage::clock::Clock;
use flagstone_storage::cluster::{ClusterConversion, ConvertibleData};
use flagstone_storage::directory::Location;
use flagstone_storage::place::Place;
use std::time::Duration;

/// Make the data of a single server in a bucket that of a cluster
///
/// Stop the server first: one that runs loses the data, and ends. No data is copied. Afterwards
/// servers with `cluster-enabled yes` join it, and a single server refuses it. There is no way back but
/// `flagstone export` and `import`.
///
/// A cluster has database 0 only, and no checkpoints or replicas: what it cannot have is refused, and
/// nothing changes. A run that was interrupted is to be repeated.
#[derive(Args)]
pub(super) struct ConversionArguments {
    /// For how long a server of the cluster may answer after it has proven that it owns its shards
    #[arg(
        long,
        value_name = "MILLISECONDS",
        default_value_t = 3000,
        value_parser = clap::value_parser!(u64).range(100..=60_000)
    )]
    lease: u64,
    /// Remove the checkpoints of the data, which cannot be restored any more
    #[arg(long)]
    remove_checkpoints: bool,
    /// Only look: say what would be done, or why not
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    at: ClusterPlace,
}

impl ConversionArguments {
    pub(super) async fn run(&self) -> Result<()> {
        let place = Place::parse(&self.at.store)?;
        let options = offline_options(&Location::from(place.clone())).await?;
        let lease = Duration::from_millis(self.lease);
        let conversion = ClusterConversion::new(options, lease, self.remove_checkpoints);
        if self.check {
            let found = conversion.look().await?;
            say!("{place} can be converted: {}", described(&found));
            if found.is_open {
                say!(
                    "its journal is not closed: a server has it open, whose later changes are not known \
                     and which ends with the conversion, or one was killed"
                );
            }
            if found.is_begun {
                say!("an earlier conversion was interrupted: it is to be completed");
            }
            return Ok(());
        }
        // The engines' tasks belong to the runtime's threads.
        let work = async move { conversion.run(Clock::default()).await };
        let done = tokio::spawn(work).await??;
        say!("{place} is a cluster's now: {}", described(&done));
        say!("start its servers with --cluster-enabled yes --store {}", self.at.store);
        Ok(())
    }
}

/// Returns a line about a data set.
fn described(data: &ConvertibleData) -> String {
    let at_most = if data.is_exact { "" } else { "at most " };
    let mut line = format!(
        "{at_most}{} keys, {} shards (servers up to that number can share them), lease {} ms",
        data.keys,
        data.shards,
        data.lease.as_millis()
    );
    if data.checkpoints > 0 {
        line.push_str(&format!(", {} checkpoints are removed", data.checkpoints));
    }
    line
}
