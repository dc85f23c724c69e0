//! `flagstone cluster give-up`: accepts that a part of a journal is lost.

use super::naming::named;
use super::status::table;
use super::{ClusterMaps, ClusterPlace};
use crate::membership::{answers, tell_of};
use anyhow::{Result, bail};
use clap::Args;
use flagstone_storage::checkpoint::offline_options;
use flagstone_storage::cluster::{GivenUp, JournalLoss, Life, LossStore, LossyShard};
use flagstone_storage::directory::Location;
use flagstone_storage::journal::JournalCondition;

/// Accept the loss of a journal whose objects are gone or damaged
///
/// The shards that need such a journal are served by nobody until its objects are back. Put them back if
/// you can. If not, this command lets the servers go on without them, and the writes that only they had are
/// lost: those of that server's last seconds that its shards' files had not yet got.
///
/// Without --lose-writes the command only says what is lost, and changes nothing.
#[derive(Args)]
pub(super) struct GiveUpArguments {
    /// The number of the life whose journal it is, as the log and `flagstone cluster status` tell
    #[arg(value_name = "LIFE")]
    life: u64,
    /// Accept that acknowledged writes are lost
    #[arg(long)]
    lose_writes: bool,
    #[command(flatten)]
    at: ClusterPlace,
}

impl GiveUpArguments {
    pub(super) async fn run(&self) -> Result<()> {
        let (maps, life) = (self.at.maps()?, Life(self.life));
        let map = maps.newest().await?;
        let options = offline_options(&Location::from(maps.place.clone())).await?;
        let losses = LossStore::open(options).await?;
        let loss = losses.look(life).await?;
        if loss.condition == JournalCondition::Whole {
            say!("the journal of life {life} can be read to its end: there is nothing to give up");
            return Ok(());
        }
        if answers(&map, &loss.member).await {
            bail!(
                "life {life}, server {}, is running: stop it first. It stores what it still has, unless its \
                 journal has failed",
                named(&loss.member)
            );
        }
        if loss.condition == JournalCondition::Missing && !loss.member.begun {
            say!("the journal of life {life} is given up already");
            return Ok(());
        }
        say!("{}", described(&loss));
        if !self.lose_writes {
            bail!(
                "nothing was changed: put the objects of lives/{:020} back, or accept the loss with \
                 --lose-writes",
                self.life
            );
        }
        self.give_up(&losses, &maps).await
    }

    async fn give_up(&self, losses: &LossStore, maps: &ClusterMaps) -> Result<()> {
        let life = Life(self.life);
        match losses.give_up(life).await? {
            GivenUp::Whole(map) => {
                tell_of(&map).await;
                say!("the journal of life {life} is given up: servers take its shards without it");
            }
            GivenUp::Rest => {
                tell_of(&maps.newest().await?).await;
                say!("the journal of life {life} ends at the break: servers take its shards");
            }
            GivenUp::Nothing => say!("the journal of life {life} is given up already"),
        }
        Ok(())
    }
}

/// Returns the text about a journal and its shards, without a last newline.
fn described(loss: &JournalLoss) -> String {
    let (life, server) = (loss.member.life, named(&loss.member));
    let mut parts = vec![match &loss.condition {
        JournalCondition::Whole => format!("the journal of life {life}, server {server}, is whole"),
        JournalCondition::Missing => {
            format!("the journal of life {life}, server {server}, is missing")
        }
        JournalCondition::Broken { why, end, objects } => format!(
            "the journal of life {life}, server {server}, breaks behind lsn {end}: {why}\n\
             objects from there on, which are deleted: {objects}"
        ),
    }];
    if loss.shards.is_empty() {
        parts.push("no shard needs it: nothing is lost".to_owned());
        return parts.join("\n");
    }
    let head = ["shard", "stored up to lsn", "parts of values"];
    let mut rows = vec![head.map(str::to_owned)];
    let row = |shard: &LossyShard| {
        let stored = shard.stored.map_or_else(|| "nothing".to_owned(), |lsn| lsn.to_string());
        let is_torn = if shard.is_torn { "yes" } else { "-" };
        [shard.id.to_string(), stored, is_torn.to_owned()]
    };
    rows.extend(loss.shards.iter().map(row));
    parts.push(format!("\n{}\n", table(&rows)));
    parts.push(
        "Lost are the writes of that life to these shards that are neither stored in their files nor in \
         what can be read of the journal, also acknowledged ones. A transaction over several of the shards \
         may be lost in one and kept in another."
            .to_owned(),
    );
    if loss.shards.iter().any(|shard| shard.is_torn) {
        parts.push(
            "Where the last column says yes, values of several elements that were written then may have some of \
             these and lack others, or be missing, and DBSIZE may be wrong: a hand-over to the files was cut off, or a later \
             owner has changed such values. Delete or rewrite such keys."
                .to_owned(),
        );
    }
    parts.join("\n")
}

#[cfg(test)]
#[path = "giving_up_tests.rs"]
mod tests;
