//! A data directory in the making: by a restore, as a branch, or with another number of shards.
//!
//! `unfinished/` is created in it first and removed last, after `flagstone.json` was written. So a
//! kill leaves a directory that is marked as unfinished: the next process that makes a data
//! directory there removes it. A process that fails removes the files that it has made.
//!
//! In a local directory a lock shows whether a process is at work there. In a bucket the maker
//! renews an object in `unfinished/`; one that is not renewed for a while counts as abandoned. So the
//! maker writes only as long as nobody can think so ([`WriteClaim`]).

#[cfg(test)]
mod tests;

use super::{Locks, create_private_dir, lock, manifest};
use crate::lease::BootTime;
use crate::place::{Place, SHARED, WriteClaim, names, remove_tree};
use anyhow::{Context, Result, bail};
use futures::StreamExt;
use object_store::{Error, ObjectStoreExt, PutMode};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Marks a place that is not a whole data directory yet.
pub(super) const UNFINISHED: &str = "unfinished";

/// Object in it, in a bucket: the maker's name, and a number that changes.
const MARK: &str = "mark";

const LOCK: &str = "lock";

/// Directory for trials of a store in a bucket.
const PREFLIGHT: &str = "preflight";

/// Interval at which a maker renews the mark, ...
const RENEWAL: Duration = Duration::from_secs(5);

/// ... how long it must stay unchanged before another process takes over, ...
const STANDSTILL: Duration = Duration::from_secs(20);

/// ... and for how long its maker writes without a renewal.
const CLAIM: Duration = Duration::from_secs(12);

/// See the module's description.
#[derive(Debug)]
pub(crate) struct NewDirectory {
    /// In a bucket it is claimed.
    place: Place,
    /// The outermost directory that was created for it.
    made: Option<PathBuf>,
    locks: Locks,
    /// True if the lock file existed before.
    had_lock: bool,
    /// True if the contents of the place were made here.
    owns: bool,
    claim: Option<Arc<WriteClaim>>,
    mark: Option<MakerMark>,
}

impl NewDirectory {
    /// Begins to make a data directory in a place that is empty, or has only the remains of an
    /// unfinished one.
    ///
    /// # Errors
    /// If there is anything else, or another process is at work there. Then nothing is changed.
    pub(crate) async fn begin(place: &Place) -> Result<Self> {
        let mut new = Self {
            place: place.clone(),
            made: None,
            locks: Locks::new(),
            had_lock: false,
            owns: false,
            claim: None,
            mark: None,
        };
        let begun = match place.dir() {
            Some(dir) => new.begin_in(dir).await,
            None => new.begin_in_bucket().await,
        };
        match begun {
            Ok(()) => Ok(new),
            Err(error) => new.end(Err(error)).await,
        }
    }

    async fn begin_in(&mut self, dir: &Path) -> Result<()> {
        // Checked before anything is created: a refused process leaves nothing behind.
        self.vacancy().await?;
        self.made = dir.ancestors().take_while(|dir| !dir.exists()).last().map(Path::to_owned);
        create_private_dir(dir).with_context(|| format!("creating {}", dir.display()))?;
        self.had_lock = dir.join(LOCK).exists();
        self.locks = lock(dir)?;
        let vacancy = self.vacancy().await?;
        self.owns = true;
        if vacancy == Vacancy::Unfinished {
            self.remove_made().await?;
            self.remove_mark().await?;
        }
        let mark = dir.join(UNFINISHED);
        fs::create_dir_all(&mark).with_context(|| format!("creating {}", mark.display()))?;
        let synced = File::open(dir).and_then(|dir| dir.sync_all());
        synced.with_context(|| format!("syncing {}", dir.display()))
    }

    async fn begin_in_bucket(&mut self) -> Result<()> {
        self.place.preflight().await?;
        let looked = BootTime::now();
        let vacancy = self.vacancy().await?;
        let proven = match vacancy {
            Vacancy::Empty => looked,
            Vacancy::Unfinished => {
                wait_until_abandoned(&self.place.join(UNFINISHED).join(MARK)).await?
            }
        };
        let claim = Arc::new(WriteClaim::new(CLAIM, proven));
        let bare = self.place.clone();
        self.claim = Some(claim.clone());
        self.place = bare.claimed(claim.clone());
        if vacancy == Vacancy::Unfinished {
            self.remove_made().await?;
            self.remove_mark().await?;
        }
        self.mark_as_own(&bare, claim).await
    }

    /// Puts the mark. It is renewed without the claim, which depends on it.
    async fn mark_as_own(&mut self, bare: &Place, claim: Arc<WriteClaim>) -> Result<()> {
        let mark = bare.join(UNFINISHED).join(MARK);
        self.mark = Some(MakerMark::put(mark.clone(), claim).await?);
        // Another process may have begun and ended since the look.
        if let Err(error) = self.vacancy().await {
            self.stop_mark().await;
            remove_object(&mark).await?;
            return Err(error);
        }
        self.owns = true;
        Ok(())
    }

    /// Returns the place as its maker writes to it.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Returns another place in the same store, from which the maker has files copied.
    pub(crate) fn claimed(&self, other: &Place) -> Place {
        self.claim.as_ref().map_or_else(|| other.clone(), |claim| other.claimed(claim.clone()))
    }

    /// Returns the state of the place before anything is made.
    async fn vacancy(&self) -> Result<Vacancy> {
        let found = contents(&self.place).await?.into_iter().map(|(name, _)| name);
        // Left by a process that was killed while it tried the store.
        let found: Vec<_> = found.filter(|name| name != LOCK && name != PREFLIGHT).collect();
        if found.is_empty() {
            return Ok(Vacancy::Empty);
        }
        let is_unfinished = found.iter().any(|name| name == UNFINISHED);
        if is_unfinished && found.iter().all(|name| is_made(name)) {
            return Ok(Vacancy::Unfinished);
        }
        // The error lists no names: a user who may make branches need not know what is stored
        // where.
        bail!("{} is not empty: a new place is needed, or an empty one", self.place)
    }

    /// Returns a local directory for temporary files, if the place is local.
    pub(crate) fn work_dir(&self) -> Option<PathBuf> {
        Some(self.place.dir()?.join(UNFINISHED).join("work"))
    }

    /// Proves that no other process makes a directory there: `flagstone.json` may be written.
    pub(crate) async fn prove(&self) -> Result<()> {
        match &self.mark {
            Some(mark) if !mark.is_ours().await? => {
                bail!("another process makes a data directory in {}, too", self.place)
            }
            _ => Ok(()),
        }
    }

    /// Ends the making: leaves a whole data directory, or removes the unfinished one.
    pub(crate) async fn end<T>(mut self, made: Result<T>) -> Result<T> {
        let cleaned = match &made {
            Ok(_) => self.remove_mark().await,
            Err(_) => self.abandon().await,
        };
        if let Err(error) = cleaned {
            tracing::warn!("what was needed meanwhile stays: {error:#}");
        }
        self.stop_mark().await;
        made
    }

    async fn stop_mark(&mut self) {
        if let Some(mut mark) = self.mark.take() {
            mark.stop().await;
        }
    }

    /// Removes `unfinished/`, whose mark is renewed up to then.
    async fn remove_mark(&mut self) -> Result<()> {
        self.stop_mark().await;
        remove_tree(&self.place.join(UNFINISHED)).await
    }

    /// Removes everything that was made.
    async fn abandon(&mut self) -> Result<()> {
        if self.owns && self.prove().await.is_ok() {
            self.remove_made().await?;
            self.remove_mark().await?;
        }
        let Some(dir) = self.place.dir() else { return Ok(()) };
        if !self.locks.is_empty() && !self.had_lock {
            fs::remove_file(dir.join(LOCK)).context("removing the lock's file")?;
        }
        let Some(made) = &self.made else { return Ok(()) };
        for dir in dir.ancestors().take_while(|dir| dir.starts_with(made)) {
            // Another process may have put files there.
            if fs::remove_dir(dir).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Removes all parts of a data directory but `unfinished/`.
    async fn remove_made(&self) -> Result<()> {
        let place = &self.place;
        let mut found = contents(place).await?;
        found.retain(|(name, _)| is_made(name) && name != UNFINISHED);
        for (name, is_dir) in found {
            let place = place.join(&name);
            match place.dir() {
                _ if is_dir => remove_tree(&place).await?,
                Some(path) => {
                    fs::remove_file(path).with_context(|| format!("removing {place}"))?;
                }
                None => remove_object(&place).await?,
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vacancy {
    Empty,
    /// An unfinished data directory.
    Unfinished,
}

/// Returns true if an object of this name is made before a data directory is whole.
fn is_made(name: &str) -> bool {
    manifest::is_of_a_directory(name) || name == SHARED || name == manifest::TEMPORARY
}

/// Returns what is right below a place, and whether it is a directory or a prefix of objects; nothing if the place
/// does not exist.
async fn contents(place: &Place) -> Result<Vec<(String, bool)>> {
    let listing = || format!("listing {place}");
    if let Some(dir) = place.dir() {
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(listing)?,
        };
        let described = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), entry.file_type()?.is_dir()))
        };
        return entries.map(described).collect::<io::Result<_>>().with_context(listing);
    }
    let (objects, prefixes) = names(place).await?;
    let mut found: Vec<_> = objects.into_iter().map(|name| (name, false)).collect();
    for name in prefixes {
        // A directory that is used like a bucket may have one without objects, if an upload was cut off.
        let first = place.store().list(Some(&place.path(&name))).next().await;
        if first.transpose().with_context(listing)?.is_some() {
            found.push((name, true));
        }
    }
    Ok(found)
}

async fn remove_object(object: &Place) -> Result<()> {
    match object.store().delete(object.root()).await {
        Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("deleting {object}")),
    }
}

/// Marks a place in a bucket as being in the making, as long as it lives, and renews the claim on it.
#[derive(Debug)]
struct MakerMark {
    object: Place,
    name: String,
    renewing: JoinHandle<()>,
}

impl MakerMark {
    async fn put(object: Place, claim: Arc<WriteClaim>) -> Result<Self> {
        let name = format!("{:016x}", rand::random::<u64>());
        let content = format!("{name} 0").into_bytes();
        claim.confirm().await?;
        match object.store().put_opts(object.root(), content.into(), PutMode::Create.into()).await {
            Ok(_) => {}
            // A retry that finds its own earlier write.
            Err(Error::AlreadyExists { .. }) if is_of(&object, &name).await? => {}
            Err(Error::AlreadyExists { .. }) => bail!(at_work(&object)),
            Err(error) => return Err(error).with_context(|| format!("writing {object}")),
        }
        let renewing = tokio::spawn(renew(object.clone(), name.clone(), claim));
        Ok(Self { object, name, renewing })
    }

    /// Stops the renewal.
    async fn stop(&mut self) {
        self.renewing.abort();
        // The abort ends the task.
        let _ = (&mut self.renewing).await;
    }

    /// Returns true if no other process has taken the place over.
    async fn is_ours(&self) -> Result<bool> {
        is_of(&self.object, &self.name).await
    }
}

impl Drop for MakerMark {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

async fn renew(object: Place, name: String, claim: Arc<WriteClaim>) {
    for number in 1u64.. {
        tokio::time::sleep(RENEWAL).await;
        let looked = BootTime::now();
        match is_of(&object, &name).await {
            Ok(true) => {}
            Ok(false) => return claim.lose(),
            Err(_) => continue,
        }
        // Who slept since has lost it, maybe.
        if looked.later(RENEWAL).left().is_zero() {
            continue;
        }
        let (content, begun) = (format!("{name} {number}").into_bytes(), BootTime::now());
        // A later renewal may succeed.
        if object.store().put(object.root(), content.into()).await.is_ok() {
            claim.renew(begun);
        }
    }
}

async fn content(object: &Place) -> Result<Option<Vec<u8>>> {
    let reading = || format!("reading {object}");
    match object.store().get(object.root()).await {
        Ok(found) => Ok(Some(found.bytes().await.with_context(reading)?.to_vec())),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(error).with_context(reading),
    }
}

async fn is_of(object: &Place, name: &str) -> Result<bool> {
    let content = content(object).await?;
    Ok(content.is_some_and(|content| content.starts_with(name.as_bytes())))
}

/// Waits until a mark has stayed unchanged for long enough, and returns a moment at which it had.
async fn wait_until_abandoned(object: &Place) -> Result<BootTime> {
    let before = content(object).await?;
    tracing::info!(
        "{object}: a data directory is unfinished; waiting to see if its process still runs"
    );
    tokio::time::sleep(STANDSTILL).await;
    let looked = BootTime::now();
    if content(object).await? != before {
        bail!(at_work(object));
    }
    Ok(looked)
}

fn at_work(object: &Place) -> String {
    format!("another process is making a data directory there: {object} changes")
}
