//! The objects of the map: `cluster/map/<number>` below the data directory's place.

use super::draft::{MapDraft, MapRefusal, PendingChange};
use super::map::{ClusterMap, MAX_BYTES, MapUnreadable};
use crate::place::{AskLimits, Place, StoreAway, ask};
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStoreExt, PutMode};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Number of the newest maps that are kept. It is the same for all servers, of all versions: by it
/// they know which numbers cannot have been deleted.
const MAPS_KEPT: u64 = 1000;

/// Older maps that one call deletes at most.
const PRUNED: usize = 16;

/// Times that a reader looks again because the map it wanted to read was deleted meanwhile.
const LOOKS: usize = 16;

/// Times that a change is made anew because another server's change was first.
const AMENDS: usize = 128;

/// Time limit for an attempt of a request.
const ATTEMPT: Duration = Duration::from_secs(3);

/// The pause after a failed attempt; later pauses grow.
const PAUSE: Duration = Duration::from_millis(50);

/// Length of a number in an object's name.
const DIGITS: usize = 20;

/// The reason why the map cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// No answer within 40 s. A change may have been stored, or may be yet.
    #[error("the store {place} is away: {reason}")]
    Away { place: String, reason: String },
    /// An object is no map. Nobody can change the map until it is mended: if the object were only
    /// deleted, its number would be given again.
    #[error("{object} is damaged: {reason}")]
    Damaged { object: String, reason: String },
    /// Written by a newer version of the program.
    #[error("{object} has format {found}, which this version does not know")]
    NewerFormat { object: String, found: u32 },
    /// Maps are deleted before they can be read, again and again.
    #[error("other servers change {place} faster than it can be read")]
    Restless { place: String },
}

impl From<StoreAway> for MapError {
    fn from(away: StoreAway) -> Self {
        Self::Away { place: away.place, reason: away.reason }
    }
}

/// The fate of a change. Each has the newest map.
#[derive(Clone, Debug)]
pub enum MapOutcome {
    /// The change counts. The newest map is its own, or a later one.
    Counts(Arc<ClusterMap>),
    /// Another change has the number: this one never counts.
    Lost(Arc<ClusterMap>),
    /// So many maps are newer that nobody can tell any more: the number may have been deleted before
    /// this change was stored. It never counts from now on; if it did once, the newest map knows.
    Forgotten(Arc<ClusterMap>),
}

/// The reason why [`MapStore::amend`] has changed nothing, as far as is known.
#[derive(Debug, thiserror::Error)]
pub enum AmendError<R: fmt::Debug + fmt::Display> {
    /// The caller, or the map, does not allow it.
    #[error("{0}")]
    Refused(R),
    /// Nothing was put that could count.
    #[error(transparent)]
    Map(MapError),
    /// There is no map yet.
    #[error("there is no map of a cluster")]
    NoMap,
    /// The fate is not known: the change is to be given to [`MapStore::change`] until it is.
    #[error("{error}; the fate of a change is not known")]
    Unknown { change: PendingChange, error: MapError },
    /// See [`MapOutcome::Forgotten`].
    #[error("a change was overtaken by so many others that its fate cannot be told")]
    Forgotten(Arc<ClusterMap>),
    /// Other servers were faster, again and again.
    #[error("other servers change the map faster than it can be changed here")]
    Contended,
}

/// The maps of a cluster. It remembers the newest one that it knows.
#[derive(Debug)]
pub struct MapStore {
    place: Place,
    pub(super) kept: u64,
    pub(super) limits: AskLimits,
    known: Mutex<Option<Arc<ClusterMap>>>,
}

impl MapStore {
    /// Creates the store of the maps in a data directory. Makes no request.
    pub fn new(directory: &Place) -> Self {
        let place = directory.join("cluster/map");
        let limits = AskLimits { request: ATTEMPT, longest: ATTEMPT, pause: PAUSE };
        Self { place, kept: MAPS_KEPT, limits, known: Mutex::default() }
    }

    /// Returns the newest map that counts; `None`: there is none yet. If nothing is newer than what
    /// is known, it costs one listing.
    ///
    /// # Errors
    /// See [`MapError`].
    pub async fn newest(&self) -> Result<Option<Arc<ClusterMap>>, MapError> {
        for _ in 0..LOOKS {
            let known = self.known();
            let number = known.as_ref().map_or(0, |map| map.number());
            let Some(greatest) = self.newer_than(number).await? else { return Ok(known) };
            let Some(map) = self.read(greatest).await? else { continue };
            // It may be debris: its number may have been deleted before it was read (rule 2).
            let newer = self.newer_than(greatest).await?;
            if self.is_kept(greatest, newer) {
                return Ok(Some(self.learn(map)));
            }
        }
        Err(self.restless())
    }

    /// Returns the greatest number behind `number` that has an object; `None`: there is none. It
    /// costs one listing.
    ///
    /// # Errors
    /// [`MapError::Away`].
    pub async fn newer_than(&self, number: u64) -> Result<Option<u64>, MapError> {
        let (store, root, offset) = (self.place.store(), self.place.root(), self.path(number));
        let list = || async {
            let listed = store.list_with_offset(Some(root), &offset);
            let greater = |greatest: Option<u64>, meta: ObjectMeta| async move {
                Ok(greatest.max(number_of(&meta.location, root)))
            };
            listed.try_fold(None, greater).await
        };
        let greatest = ask(&self.place, self.limits, list).await?;
        Ok(greatest.filter(|greatest| *greatest > number))
    }

    /// Puts a change until its number is taken, and finds out if it counts (rules 1 and 3). After
    /// an error its fate is not known: the same change may, and must, be put again.
    ///
    /// # Errors
    /// See [`MapError`].
    pub async fn change(&self, change: &PendingChange) -> Result<MapOutcome, MapError> {
        let number = change.map.number();
        for _ in 0..LOOKS {
            let found = match self.put(change).await? {
                true => Some(change.map.clone()),
                false => self.read(number).await?.map(Arc::new),
            };
            // This listing begins after the put was answered, or the map was read.
            let newer = self.newer_than(number).await?;
            if !self.is_kept(number, newer) {
                let newest = self.newest().await?.ok_or_else(|| self.restless())?;
                return Ok(MapOutcome::Forgotten(newest));
            }
            // The number was taken, and then free: put it again.
            let Some(found) = found else { continue };
            let is_own = *found == *change.map;
            let mut newest = self.learn_shared(found);
            if newer.is_some() {
                newest = self.newest().await?.unwrap_or(newest);
            }
            let outcome = if is_own { MapOutcome::Counts } else { MapOutcome::Lost };
            return Ok(outcome(newest));
        }
        Err(self.restless())
    }

    /// Changes the newest map; begins again on the base of a newer one as long as other servers'
    /// changes are first. Returns the newest map once the change counts. The future is to be run to
    /// its end: if it is dropped, nobody learns the fate of the change that is under way.
    ///
    /// # Errors
    /// See [`AmendError`].
    pub async fn amend<R: fmt::Debug + fmt::Display + From<MapRefusal>>(
        &self,
        mut steps: impl FnMut(&mut MapDraft) -> Result<(), R>,
    ) -> Result<Arc<ClusterMap>, AmendError<R>> {
        for _ in 0..AMENDS {
            let base = self.newest().await.map_err(AmendError::Map)?;
            let mut draft = base.ok_or(AmendError::NoMap)?.draft();
            steps(&mut draft).map_err(AmendError::Refused)?;
            let change = draft.finish().map_err(|refusal| AmendError::Refused(refusal.into()))?;
            match self.change(&change).await {
                Ok(MapOutcome::Counts(newest)) => return Ok(newest),
                Ok(MapOutcome::Lost(_)) => {}
                Ok(MapOutcome::Forgotten(newest)) => return Err(AmendError::Forgotten(newest)),
                Err(error) => return Err(AmendError::Unknown { change, error }),
            }
        }
        Err(AmendError::Contended)
    }

    /// Deletes some of the maps that are not kept, the oldest first, and returns their number. It
    /// costs a listing of all.
    ///
    /// # Errors
    /// [`MapError::Away`].
    pub async fn prune(&self) -> Result<usize, MapError> {
        let known = self.known().map_or(0, |map| map.number());
        let (store, root) = (self.place.store(), self.place.root());
        let list = || async {
            let listed = store.list(Some(root)).try_filter_map(|meta| async move {
                Ok(number_of(&meta.location, root).filter(|n| !self.is_kept(*n, Some(known))))
            });
            listed.try_collect::<Vec<_>>().await
        };
        let mut old = ask(&self.place, self.limits, list).await?;
        old.sort_unstable();
        old.truncate(PRUNED);
        for number in &old {
            let path = self.path(*number);
            let delete = || async {
                match store.delete(&path).await {
                    // Another server has deleted it.
                    Err(Error::NotFound { .. }) => Ok(()),
                    deleted => deleted,
                }
            };
            ask(&self.place, self.limits, delete).await?;
        }
        Ok(old.len())
    }

    /// Returns true if a number is among the newest, which nobody deletes, where `newest` is the
    /// greatest number behind it. As that only grows, nobody has deleted it before either.
    fn is_kept(&self, number: u64, newest: Option<u64>) -> bool {
        newest.is_none_or(|newest| newest < number.saturating_add(self.kept))
    }

    fn known(&self) -> Option<Arc<ClusterMap>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn learn(&self, map: ClusterMap) -> Arc<ClusterMap> {
        self.learn_shared(Arc::new(map))
    }

    /// Remembers a map that counts; returns the newest one that is known.
    fn learn_shared(&self, map: Arc<ClusterMap>) -> Arc<ClusterMap> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|known| known.number() < map.number()) {
            *known = Some(map.clone());
        }
        known.clone().unwrap_or(map)
    }

    /// Puts a change where there is none; false if its number is taken.
    async fn put(&self, change: &PendingChange) -> Result<bool, MapError> {
        let (store, path) = (self.place.store(), self.path(change.map.number()));
        let put = || async {
            let payload = change.text.clone().into();
            match store.put_opts(&path, payload, PutMode::Create.into()).await {
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
                put => put.map(|_| true),
            }
        };
        Ok(ask(&self.place, self.limits, put).await?)
    }

    /// Reads an object, which may be debris; `None`: it does not exist.
    async fn read(&self, number: u64) -> Result<Option<ClusterMap>, MapError> {
        let (store, path) = (self.place.store(), self.path(number));
        let get = || async {
            match store.get(&path).await {
                Ok(got) if got.meta.size > MAX_BYTES => Ok(Some(Err(got.meta.size))),
                Ok(got) => got.bytes().await.map(|text| Some(Ok(text))),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let Some(found) = ask(&self.place, self.limits, get).await? else { return Ok(None) };
        let object = || format!("{}/{number:0DIGITS$}", self.place);
        let damaged = |reason| MapError::Damaged { object: object(), reason };
        let text = found.map_err(|size| damaged(format!("it has {size} bytes")))?;
        let decoded = ClusterMap::decode(number, &text).map_err(|unreadable| match unreadable {
            MapUnreadable::Damaged(reason) => damaged(reason),
            MapUnreadable::Newer(found) => MapError::NewerFormat { object: object(), found },
        });
        decoded.map(Some)
    }

    fn path(&self, number: u64) -> Path {
        self.place.path(&format!("{number:0DIGITS$}"))
    }

    fn restless(&self) -> MapError {
        MapError::Restless { place: self.place.to_string() }
    }
}

/// Returns the number of a map's object; `None` if the object has another name.
fn number_of(location: &Path, root: &Path) -> Option<u64> {
    let mut parts = location.prefix_match(root)?;
    let name = parts.next()?;
    let digits = Some(name.as_ref()).filter(|name| name.len() == DIGITS)?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit()) && parts.next().is_none();
    digits.parse().ok().filter(|number| is_number && *number > 0)
}
