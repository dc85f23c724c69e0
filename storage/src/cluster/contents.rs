//! The contents of a single server's data in a bucket, as far as a conversion to a cluster asks for them.

use crate::commit::BodyReader;
use crate::control::Control;
use crate::directory::{Directory, Manifest, peek_controls};
use crate::encoding::{Op, OpReader, Row, SourceExtent, SourcePosition};
use crate::feed::FEED;
use crate::journal::{BucketJournal, BucketOptions, CommitPiece, Lsn, Recovered};
use crate::place::Place;
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};

/// Times that the data is read if it changes meanwhile.
const LOOKS: usize = 5;

/// A part of a data set for which a cluster has no place.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Number of keys of each database.
    keys: Vec<u64>,
    /// Databases that may have fewer keys: the journal has changes of keys of which only the engines know if
    /// they were there (RFC 12).
    guessed: BTreeSet<usize>,
    source: SourcePosition,
    /// True if the journal was not closed: a server has the data open, or was killed.
    pub(super) is_open: bool,
}

impl Contents {
    /// Reads the contents of engines that need no journal.
    pub(super) async fn of_engines(store: &Place, manifest: &Manifest) -> Result<Self> {
        Ok(Self::of(&controls(store, manifest).await?, &BTreeSet::new()))
    }

    /// Reads the contents of engines and journal, which a server may have open, and changes nothing.
    ///
    /// # Errors
    /// Also if the server changes it too fast.
    pub(super) async fn look(store: &Place, manifest: &Manifest, journal: &Place) -> Result<Self> {
        let options = BucketOptions { salt: manifest.salt(), ..BucketOptions::default() };
        for _ in 0..LOOKS {
            let mut before = controls(store, manifest).await?;
            let view = BucketJournal::view(journal, &options).await?;
            let is_open = !view.is_released();
            let applied: BTreeMap<u16, Lsn> =
                before.iter().map(|(id, it)| (*id, applied(it))).collect();
            let replayed = replay(&view.into(), &mut before, &applied).await;
            let after = controls(store, manifest).await?;
            // The journal keeps records until the engines have them, and says so in their control rows.
            if after.iter().all(|(id, control)| applied.get(id) == Some(&self::applied(control))) {
                return Ok(Self { is_open, ..Self::of(&before, &replayed?) });
            }
        }
        bail!("{store} is written to all the time: stop its server first")
    }

    /// Returns what the control rows of all shards tell. `guessed`: see [`replay`].
    fn of(controls: &[(u16, Control)], guessed: &BTreeSet<u32>) -> Self {
        let mut found = Self::default();
        for (_, control) in controls {
            found.source = found.source.later(control.source.clone());
            let live = &control.generations.live;
            found.keys.resize(found.keys.len().max(live.len()), 0);
            for (keys, generation) in found.keys.iter_mut().zip(live) {
                *keys += control.counters.totals(*generation).0;
            }
            let dbs = live.iter().enumerate().filter(|(_, it)| guessed.contains(it));
            found.guessed.extend(dbs.map(|(db, _)| db));
        }
        found
    }

    /// Returns what an open directory has.
    pub(super) fn of_open(directory: &Directory) -> Self {
        let (keys, source) = (directory.keys().collect(), directory.source.clone());
        Self { keys, source, ..Self::default() }
    }

    /// Returns the number of all keys, ...
    pub(super) fn keys(&self) -> u64 {
        self.keys.iter().sum()
    }

    /// ... and true if it is exact; else there may be fewer.
    pub(super) fn is_exact(&self) -> bool {
        self.guessed.is_empty()
    }

    /// Refuses what a cluster cannot have.
    pub(super) fn check(&self, store: &Place) -> Result<()> {
        let others: Vec<_> =
            self.keys.iter().enumerate().skip(1).filter(|(_, keys)| **keys > 0).collect();
        if !others.is_empty() {
            let is_guessed = others.iter().all(|(db, _)| self.guessed.contains(db));
            let at_most = if is_guessed { "at most " } else { "" };
            let listed = others.iter().map(|(db, keys)| format!("{keys} keys in database {db}"));
            let listed = listed.collect::<Vec<_>>().join(", ");
            let remedy = match is_guessed {
                true => {
                    "stop its server in order (SIGTERM), so that their number is known, and repeat"
                }
                false => "move them there (MOVE), or flush these databases (FLUSHDB)",
            };
            bail!("{store} has {at_most}{listed}, and a cluster has database 0 only: {remedy}");
        }
        if !self.source.id.is_empty() || self.source.extent == SourceExtent::Part {
            bail!(
                "{store} is the data set of a replica: end that with REPLICAOF NO ONE, or convert that \
                 of its primary"
            );
        }
        Ok(())
    }
}

/// Reads the control rows of all shards. A server that runs may delete files meanwhile.
pub(super) async fn controls(store: &Place, manifest: &Manifest) -> Result<Vec<(u16, Control)>> {
    let mut looks = 1;
    loop {
        match peek_controls(store, manifest).await {
            Err(_) if looks < LOOKS => looks += 1,
            read => return read,
        }
    }
}

/// Returns the lsn up to which an engine has everything.
fn applied(control: &Control) -> Lsn {
    control.applied.max(control.complete.unwrap_or(0))
}

/// Applies a journal's records to the control rows of engines that lack them; `applied`: the last lsn that
/// each has. Returns the generations whose counters may be too great.
async fn replay(
    journal: &Recovered,
    controls: &mut [(u16, Control)],
    applied: &BTreeMap<u16, Lsn>,
) -> Result<BTreeSet<u32>> {
    let mut shards: BTreeMap<u16, &mut Control> =
        controls.iter_mut().map(|(id, control)| (*id, control)).collect();
    let (mut guessed, mut body) = (BTreeSet::new(), BodyReader::default());
    let mut pieces = journal.pieces(applied.values().min().map_or(1, |lsn| lsn + 1));
    while let Some(CommitPiece { record, first, last }) = pieces.next().await? {
        if first {
            body = BodyReader::default();
        }
        let taken = body.take(&record.body, &mut |id, ops| match shards.get_mut(&id) {
            Some(control) if record.lsn > applied[&id] => {
                let mut reader = OpReader::new(ops);
                for op in reader.by_ref() {
                    apply(control, &op, &mut guessed)?;
                }
                Some(ops.len() - reader.left())
            }
            Some(_) => Some(ops.len()),
            None => (id == FEED).then_some(ops.len()),
        });
        if taken.is_none() || (last && !body.is_done()) {
            bail!("the journal record {} is damaged", record.lsn);
        }
    }
    Ok(guessed)
}

/// Applies an operation to the control rows that it changes; `None`: it is damaged.
fn apply(control: &mut Control, op: &Op<'_>, guessed: &mut BTreeSet<u32>) -> Option<()> {
    match *op {
        Op::Put { key, delta, blind, .. } | Op::Delete { key, delta, blind } => {
            match (Row::parse(key)?, op) {
                (Row::Meta { generation, slot, .. }, _) => {
                    control.counters.add(generation, slot, delta, 0);
                    guessed.extend(blind.then_some(generation));
                }
                (Row::Source, Op::Put { value, .. }) => {
                    control.source = Some(SourcePosition::decode(value)?);
                }
                _ => {}
            }
        }
        Op::Generation { db, generation, dead } => {
            control.generations.set(db, generation, dead);
            control.counters.drop_generation(dead);
        }
        Op::Resize { .. } => {}
    }
    Some(())
}
