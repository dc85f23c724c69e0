//! The libraries of the node, and how they are changed.

use super::load::inspect;
use super::metadata::{ENGINE, Metadata};
use flagstone_storage::encoding::{Function, Library as Row};
use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Bytes that a library takes beside its texts, about.
const OVERHEAD: usize = 256;

/// A library.
#[derive(Debug)]
pub struct Library {
    row: Row,
    /// Loading it took so long that it is not tried in place again.
    pub loads_slowly: AtomicBool,
    /// By function: it took so long the last time that it is not tried in place.
    slow: Vec<AtomicBool>,
    /// Where its code begins, behind the first line.
    body: usize,
}

impl Library {
    /// A library as it is stored.
    pub fn new(row: Row) -> Self {
        let body = memchr::memchr(b'\n', &row.code).unwrap_or(row.code.len());
        let slow = row.functions.iter().map(|_| AtomicBool::new(false)).collect();
        Self { row, loads_slowly: AtomicBool::new(false), slow, body }
    }

    /// A library of this code; the text of the error if it cannot be loaded. Takes up to half a
    /// second of the thread.
    pub fn inspect(code: &[u8], max_vm_bytes: usize) -> Result<Self, String> {
        let Metadata { name, body } = Metadata::read(code)?;
        let functions = inspect(&code[body..], max_vm_bytes)?;
        let engine = ENGINE.as_bytes().into();
        Ok(Self::new(Row { name, engine, code: code.into(), functions }))
    }

    /// The code without its first line.
    pub fn body(&self) -> &[u8] {
        &self.code[self.body..]
    }

    fn bytes(&self) -> usize {
        let text = |text: &Option<Box<[u8]>>| text.as_ref().map_or(0, |text| text.len());
        let functions = self.functions.iter();
        let functions = functions.map(|f| 2 * f.name.len() + text(&f.description) + OVERHEAD);
        self.name.len() + self.code.len() + OVERHEAD + functions.sum::<usize>()
    }
}

impl Deref for Library {
    type Target = Row;

    fn deref(&self) -> &Row {
        &self.row
    }
}

/// A function, and the library that it is of.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    pub library: &'a Arc<Library>,
    pub function: &'a Function,
    /// It took so long the last time that it is not tried in place.
    pub is_slow: &'a AtomicBool,
}

/// What happens to libraries that are there when others come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// They stay; none of the others may have the name of one.
    Append,
    /// Those that have the name of another go.
    Replace,
    /// All go.
    Flush,
}

/// All libraries at one time.
#[derive(Clone, Debug, Default)]
pub struct Libraries {
    /// Greater with each change.
    pub version: u64,
    by_name: BTreeMap<Box<[u8]>, Arc<Library>>,
    /// By name in lower case: the library, and its place there.
    functions: HashMap<Box<[u8]>, (Arc<Library>, usize)>,
    bytes: usize,
}

impl Libraries {
    /// Every library, in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Library>> {
        self.by_name.values()
    }

    /// The library of a name.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<Library>> {
        self.by_name.get(name)
    }

    /// The function of a name in any case.
    pub fn function(&self, name: &[u8]) -> Option<Found<'_>> {
        let (library, at) = self.functions.get(&*name.to_ascii_lowercase())?;
        let (function, is_slow) = (library.functions.get(*at)?, library.slow.get(*at)?);
        Some(Found { library, function, is_slow })
    }

    /// How many functions there are.
    pub fn function_count(&self) -> usize {
        self.functions.len()
    }

    /// Bytes of memory that they take, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn remove(&mut self, name: &[u8]) {
        let Some(library) = self.by_name.remove(name) else { return };
        self.bytes -= library.bytes();
        for function in &library.functions {
            self.functions.remove(&*function.name.to_ascii_lowercase());
        }
    }

    /// Adds libraries, all or none: the text of the error then.
    fn add(&mut self, new: &[Arc<Library>], policy: Policy) -> Result<(), String> {
        let mut all = if policy == Policy::Flush { Self::default() } else { self.clone() };
        for library in new {
            if all.get(&library.name).is_some() && policy != Policy::Replace {
                let name = String::from_utf8_lossy(&library.name);
                return Err(format!("ERR Library {name} already exists"));
            }
            all.remove(&library.name);
        }
        for library in new {
            all.bytes += library.bytes();
            if all.by_name.insert(library.name.clone(), library.clone()).is_some() {
                let name = String::from_utf8_lossy(&library.name);
                return Err(format!("ERR Library '{name}' already exists"));
            }
            for (at, function) in library.functions.iter().enumerate() {
                let key = function.name.to_ascii_lowercase().into();
                if all.functions.insert(key, (library.clone(), at)).is_some() {
                    let name = String::from_utf8_lossy(&function.name);
                    return Err(format!("ERR Function {name} already exists"));
                }
            }
        }
        *self = all;
        Ok(())
    }
}

/// The libraries of the node.
#[derive(Debug)]
pub struct Functions {
    current: RwLock<Arc<Libraries>>,
    /// Held by who changes them.
    editing: Arc<Mutex<()>>,
    /// What they may take, bytes.
    max_bytes: usize,
}

impl Functions {
    /// The libraries that are stored.
    pub fn new(rows: Vec<Row>, max_bytes: usize) -> Result<Self, String> {
        let mut all = Libraries::default();
        let rows: Vec<_> = rows.into_iter().map(|row| Arc::new(Library::new(row))).collect();
        all.add(&rows, Policy::Append)?;
        Ok(Self { current: RwLock::new(Arc::new(all)), editing: Arc::default(), max_bytes })
    }

    /// The libraries that there are now.
    pub fn now(&self) -> Arc<Libraries> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a change, when the one before has ended.
    pub async fn edit(&self) -> Edit {
        let turn = self.editing.clone().lock_owned().await;
        let before = self.now();
        Edit { next: (*before).clone(), before, max_bytes: self.max_bytes, _turn: turn }
    }
}

/// A change of the libraries, while nobody else makes one. It counts once it is stored.
#[derive(Debug)]
pub struct Edit {
    before: Arc<Libraries>,
    next: Libraries,
    max_bytes: usize,
    _turn: OwnedMutexGuard<()>,
}

impl Edit {
    /// What is there so far.
    pub fn libraries(&self) -> &Libraries {
        &self.next
    }

    /// Adds libraries, all or none; the text of the error then.
    pub fn add(&mut self, new: &[Arc<Library>], policy: Policy) -> Result<(), String> {
        let mut next = self.next.clone();
        next.add(new, policy)?;
        if next.bytes > self.next.bytes {
            self.has_room(next.bytes)?;
        }
        self.next = next;
        Ok(())
    }

    /// Whether libraries may take so much; the text of the error otherwise.
    pub fn has_room(&self, bytes: usize) -> Result<(), String> {
        if bytes <= self.max_bytes {
            return Ok(());
        }
        Err(format!(
            "OOM all libraries together may take up to {} bytes of the memory budget",
            self.max_bytes
        ))
    }

    /// Removes a library; whether it was there.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let found = self.next.get(name).is_some();
        self.next.remove(name);
        found
    }

    /// Removes all of them.
    pub fn clear(&mut self) {
        self.next = Libraries::default();
    }

    /// The rows that change.
    pub fn changes(&self) -> Vec<(&[u8], Option<&Row>)> {
        let gone = self.before.iter().filter(|old| self.next.get(&old.name).is_none());
        let new = self.next.iter().filter(|library| {
            self.before.get(&library.name).is_none_or(|old| !Arc::ptr_eq(old, library))
        });
        let new = new.map(|library| (&*library.name, Some(&**library as &Row)));
        gone.map(|old| (&*old.name, None)).chain(new).collect()
    }

    /// The change is stored: it counts from now on.
    pub fn finish(self, functions: &Functions) {
        let mut current = functions.current.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(Libraries { version: self.before.version + 1, ..self.next });
    }
}
