//! The expected contents, as plain maps.

use flagstone_storage::encoding::Library;
use flagstone_storage::value::StreamId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum V {
    Str(Vec<u8>),
    /// Field to value and expiry (0: never).
    Hash(BTreeMap<Vec<u8>, (Vec<u8>, u64)>),
    Set(BTreeSet<Vec<u8>>),
    List(Vec<Vec<u8>>),
    Stream(StreamModel),
}

/// The consumer of each pending entry, by group and id.
pub(crate) type Pending = BTreeMap<Vec<u8>, BTreeMap<StreamId, Vec<u8>>>;

/// Entries, each with the value of its only field.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct StreamModel {
    pub(crate) entries: Vec<(StreamId, Vec<u8>)>,
    pub(crate) last: StreamId,
    pub(crate) max_deleted: StreamId,
    pub(crate) groups: Pending,
    pub(crate) added: u64,
}

/// A value and its expiry (0: never).
pub(crate) type Item = (Arc<V>, u64);

#[derive(Clone, Default)]
pub(crate) struct Model {
    pub(crate) now_ms: u64,
    pub(crate) dbs: Vec<BTreeMap<Vec<u8>, Item>>,
    pub(crate) libraries: Vec<Library>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("now_ms", &self.now_ms).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for V {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |b: &[u8]| match b {
            b if b.len() < 24 => String::from_utf8_lossy(b).into_owned(),
            b => format!("{} bytes, crc {:08x}", b.len(), crc32c::crc32c(b)),
        };
        match self {
            Self::Str(s) => write!(f, "string {}", short(s)),
            Self::Hash(fields) => {
                let fields = fields.iter().map(|(n, (v, at))| (short(n), short(v), at));
                f.debug_list().entries(fields).finish()
            }
            Self::Set(members) => f.debug_set().entries(members.iter().map(|n| short(n))).finish(),
            Self::List(list) => f.debug_list().entries(list.iter().map(|e| short(e))).finish(),
            Self::Stream(StreamModel { entries, last, max_deleted, added, groups }) => {
                let groups: Vec<_> = groups.iter().map(|(g, p)| (short(g), p.len())).collect();
                write!(f, "stream {last:?} {max_deleted:?} {added} {groups:?} ")?;
                f.debug_map().entries(entries.iter().map(|(id, v)| (id, short(v)))).finish()
            }
        }
    }
}

impl Model {
    pub(crate) fn hash(&self, db: usize, key: &[u8]) -> BTreeMap<Vec<u8>, (Vec<u8>, u64)> {
        match self.dbs[db].get(key).map(|(v, _)| &**v) {
            Some(V::Hash(fields)) => fields.clone(),
            _ => BTreeMap::new(),
        }
    }

    /// Returns the set of a key; any other value counts as an empty set.
    pub(crate) fn set(&self, db: usize, key: &[u8]) -> BTreeSet<Vec<u8>> {
        match self.dbs[db].get(key).map(|(v, _)| &**v) {
            Some(V::Set(members)) => members.clone(),
            _ => BTreeSet::new(),
        }
    }

    /// Returns the list of a key; any other value counts as an empty list.
    pub(crate) fn list(&self, db: usize, key: &[u8]) -> Vec<Vec<u8>> {
        match self.dbs[db].get(key).map(|(v, _)| &**v) {
            Some(V::List(list)) => list.clone(),
            _ => Vec::new(),
        }
    }

    /// Returns the stream of a key, if it holds one.
    pub(crate) fn stream(&self, db: usize, key: &[u8]) -> Option<StreamModel> {
        match self.dbs[db].get(key).map(|(v, _)| &**v) {
            Some(V::Stream(stream)) => Some(stream.clone()),
            _ => None,
        }
    }

    /// Returns the string of a key; any other value counts as an empty string.
    pub(crate) fn string(&self, db: usize, key: &[u8]) -> Vec<u8> {
        match self.dbs[db].get(key).map(|(v, _)| &**v) {
            Some(V::Str(s)) => s.clone(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn expiry(&self, db: usize, key: &[u8]) -> u64 {
        self.dbs[db].get(key).map_or(0, |(_, at)| *at)
    }

    /// Removes expired keys and fields.
    pub(crate) fn expire(&mut self) {
        let due = |at: u64| at != 0 && at <= self.now_ms;
        for db in &mut self.dbs {
            db.retain(|_, (value, at)| {
                if let V::Hash(fields) = &**value
                    && fields.values().any(|(_, at)| due(*at))
                {
                    let mut fields = fields.clone();
                    fields.retain(|_, (_, at)| !due(*at));
                    *value = Arc::new(V::Hash(fields));
                }
                !due(*at) && !matches!(&**value, V::Hash(f) if f.is_empty())
            });
        }
    }

    /// Returns the number of keys, and of keys with an expiry.
    pub(crate) fn totals(&self, db: usize) -> (u64, u64) {
        let keys = &self.dbs[db];
        (keys.len() as u64, keys.values().filter(|(_, at)| *at != 0).count() as u64)
    }
}
