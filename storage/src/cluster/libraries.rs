//! The objects of libraries of functions: `cluster/functions/<id>` below the data directory's place.
//!
//! Each object has all libraries of the cluster at one time, and the map names the one that counts. A
//! server that changes the libraries puts an object with a new id first, then changes the map.
//!
//! The id begins with the number of the map on whose base the object was made, and only the next
//! [`NAMED`] maps may name it. So an object that is older, and that the newest map does not name, never
//! counts again: it can be deleted without looking at a clock.

use super::map::ClusterMap;
use super::member::{from_hex, to_hex};
use crate::encoding::{Library, get_bytes, put_bytes};
use crate::place::{AskLimits, Place, StoreAway, ask};
use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt, PutMode};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// First bytes of an object.
const MAGIC: [u8; 8] = *b"FLAGLIBS";

/// The version of the format that this program writes and reads.
const FORMAT: u32 = 1;

/// Bytes in front of the libraries: magic, format, and CRC.
const HEADER: usize = 16;

/// Maximum number of bytes of an object.
const MAX_BYTES: usize = 64 << 20;

/// Number of maps behind the one in its id that may name an object. It is the same for all servers, of
/// all versions.
const NAMED: u64 = 64;

/// Objects that one call deletes at most.
const PRUNED: usize = 16;

/// Time limit for an attempt of a request.
const ATTEMPT: Duration = Duration::from_secs(10);

/// The pause after a failed attempt; later pauses grow.
const PAUSE: Duration = Duration::from_millis(50);

/// Length of the number of a map in an id.
const DIGITS: usize = 20;

/// The id of an object: the number of a map, in decimal with 20 digits, a hyphen, and 32 lower-case
/// hexadecimal digits of chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LibrariesId {
    /// The number of the map on whose base the object was made.
    pub(super) map: u64,
    random: [u8; 16],
}

impl LibrariesId {
    /// Makes a new id on the base of map `map`.
    pub(super) fn random(map: u64) -> Self {
        Self { map, random: rand::random() }
    }

    /// Parses an id; `None` if the text is something else.
    fn parse(text: &str) -> Option<Self> {
        let (map, random) = text.split_at_checked(DIGITS)?;
        let is_number = map.bytes().all(|byte| byte.is_ascii_digit());
        let random = from_hex(random.strip_prefix('-')?)?;
        map.parse().ok().filter(|_| is_number).map(|map| Self { map, random })
    }

    /// Returns true if map `number` may be the first one that names it.
    pub(super) fn may_begin_with(self, number: u64) -> bool {
        number > self.map && number - self.map <= NAMED
    }

    /// Returns true if no map behind `newest`, which counts, can name it.
    fn is_forgotten(self, newest: &ClusterMap) -> bool {
        newest.functions() != Some(self) && newest.number() >= self.map.saturating_add(NAMED)
    }
}

impl fmt::Display for LibrariesId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0DIGITS$}-{}", self.map, to_hex(&self.random))
    }
}

impl From<LibrariesId> for String {
    fn from(id: LibrariesId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for LibrariesId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
            .ok_or("the id of libraries has 20 digits, `-`, and 32 hexadecimal digits")
    }
}

/// The reason why an object of libraries cannot be put or read.
#[derive(Debug, thiserror::Error)]
pub enum LibrariesError {
    /// No answer to several attempts. An object may have been stored, or may be yet.
    #[error("the store {place} is away: {reason}")]
    Away { place: String, reason: String },
    #[error("{object} is damaged: {reason}")]
    Damaged { object: String, reason: &'static str },
    /// Written by a newer version of the program.
    #[error("{object} has format {found}, which this version does not know")]
    NewerFormat { object: String, found: u32 },
    #[error("all libraries of a cluster together may take up to {MAX_BYTES} bytes, not {0}")]
    TooLarge(usize),
}

impl From<StoreAway> for LibrariesError {
    fn from(away: StoreAway) -> Self {
        Self::Away { place: away.place, reason: away.reason }
    }
}

/// The objects of libraries of a cluster.
#[derive(Debug)]
pub struct LibraryStore {
    place: Place,
    pub(super) limits: AskLimits,
}

impl LibraryStore {
    /// Creates the store of the libraries in a data directory. Makes no request.
    pub fn new(directory: &Place) -> Self {
        let limits = AskLimits { request: ATTEMPT, longest: ATTEMPT, pause: PAUSE };
        Self { place: directory.join("cluster/functions"), limits }
    }

    /// Puts all libraries of the cluster as a new object, and returns its id. Nothing counts until a
    /// change of the map on the base of `newest`, or of one of the next maps, names it.
    ///
    /// # Errors
    /// If the store does not answer, and if the libraries take more than 64 MiB.
    pub async fn put(
        &self,
        newest: &ClusterMap,
        libraries: impl Iterator<Item = &Library>,
    ) -> Result<LibrariesId, LibrariesError> {
        let content = encode(libraries);
        if content.len() > MAX_BYTES {
            return Err(LibrariesError::TooLarge(content.len()));
        }
        let (id, content) = (LibrariesId::random(newest.number()), Bytes::from(content));
        let (store, path) = (self.place.store(), self.path(id));
        let put = || async {
            let payload = content.clone().into();
            match store.put_opts(&path, payload, PutMode::Create.into()).await {
                // An attempt before this one has arrived: nobody else has the id.
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(()),
                put => put.map(drop),
            }
        };
        ask(&self.place, self.limits, put).await?;
        Ok(id)
    }

    /// Reads an object; `None`: it does not exist. If a map names it, a later map names another one.
    ///
    /// # Errors
    /// See [`LibrariesError`].
    pub async fn read(&self, id: LibrariesId) -> Result<Option<Vec<Library>>, LibrariesError> {
        let (store, path) = (self.place.store(), self.path(id));
        let get = || async {
            match store.get(&path).await {
                Ok(got) if got.meta.size > MAX_BYTES as u64 => Ok(Some(None)),
                Ok(got) => got.bytes().await.map(|content| Some(Some(content))),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let Some(found) = ask(&self.place, self.limits, get).await? else { return Ok(None) };
        let object = || format!("{}/{id}", self.place);
        let damaged = |reason| LibrariesError::Damaged { object: object(), reason };
        let content = found.ok_or_else(|| damaged("it is too large"))?;
        let decoded = decode(&content).map_err(|unreadable| match unreadable {
            LibrariesUnreadable::Damaged(reason) => damaged(reason),
            LibrariesUnreadable::Newer(found) => {
                LibrariesError::NewerFormat { object: object(), found }
            }
        });
        decoded.map(Some)
    }

    /// Deletes an object that no map names any more, or that none has ever named.
    ///
    /// # Errors
    /// [`LibrariesError::Away`].
    pub async fn remove(&self, id: LibrariesId) -> Result<(), LibrariesError> {
        let (store, path) = (self.place.store(), self.path(id));
        let delete = || async {
            match store.delete(&path).await {
                // Another server has deleted it, or an attempt before this one.
                Err(Error::NotFound { .. }) => Ok(()),
                deleted => deleted,
            }
        };
        Ok(ask(&self.place, self.limits, delete).await?)
    }

    /// Deletes some of the objects that neither `newest`, a map that counts, nor any later one names:
    /// those of changes that came to nothing. Returns their number. It costs a listing of all.
    ///
    /// # Errors
    /// [`LibrariesError::Away`].
    pub async fn prune(&self, newest: &ClusterMap) -> Result<usize, LibrariesError> {
        let (store, root) = (self.place.store(), self.place.root());
        let list = || async {
            let listed = store.list(Some(root)).try_filter_map(|meta| async move {
                Ok(id_of(&meta.location, root).filter(|id| id.is_forgotten(newest)))
            });
            listed.try_collect::<Vec<_>>().await
        };
        let mut old = ask(&self.place, self.limits, list).await?;
        old.truncate(PRUNED);
        for id in &old {
            self.remove(*id).await?;
        }
        Ok(old.len())
    }

    fn path(&self, id: LibrariesId) -> Path {
        self.place.path(&id.to_string())
    }
}

/// Returns the id of an object; `None` if it has another name.
fn id_of(location: &Path, root: &Path) -> Option<LibrariesId> {
    let mut parts = location.prefix_match(root)?;
    let name = parts.next()?;
    LibrariesId::parse(name.as_ref()).filter(|_| parts.next().is_none())
}

/// The reason why bytes are no libraries.
#[derive(Debug, PartialEq, Eq)]
enum LibrariesUnreadable {
    /// They have a version of the format that this program does not know.
    Newer(u32),
    Damaged(&'static str),
}

/// Returns the bytes of an object.
fn encode<'a>(libraries: impl Iterator<Item = &'a Library>) -> Vec<u8> {
    let mut out = [&MAGIC[..], &FORMAT.to_le_bytes(), &[0; 4]].concat();
    for library in libraries {
        put_bytes(&mut out, &library.name);
        put_bytes(&mut out, &library.encode());
    }
    let crc = crc_of(&out);
    out[12..HEADER].copy_from_slice(&crc.to_le_bytes());
    out
}

/// Returns the CRC of an object's bytes: of all but its own field, which must be there.
fn crc_of(content: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&content[..12]), &content[HEADER..])
}

/// Reads the bytes of an object.
fn decode(content: &[u8]) -> Result<Vec<Library>, LibrariesUnreadable> {
    const NO_LIBRARIES: LibrariesUnreadable =
        LibrariesUnreadable::Damaged("it has no libraries of functions");
    let header = content.first_chunk::<HEADER>().filter(|header| header.starts_with(&MAGIC));
    let header = header.ok_or(NO_LIBRARIES)?;
    let field = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
    if field(12) != crc_of(content) {
        return Err(LibrariesUnreadable::Damaged("its checksum is wrong"));
    }
    if field(8) != FORMAT {
        return Err(LibrariesUnreadable::Newer(field(8)));
    }
    let (mut rest, mut libraries) = (&content[HEADER..], Vec::new());
    while !rest.is_empty() {
        let name = get_bytes(&mut rest).ok_or(NO_LIBRARIES)?;
        let row = get_bytes(&mut rest).ok_or(NO_LIBRARIES)?;
        libraries.push(Library::decode(name, row).ok_or(NO_LIBRARIES)?);
    }
    Ok(libraries)
}
