//! The libraries of the node, and changes of them.

use super::load::inspect;
use super::metadata::{ENGINE, Metadata};
use flagstone_storage::encoding::{Function, Library as Row};
use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Approximate memory in bytes of a library beside its texts.
const OVERHEAD: usize = 256;

/// A library.
#[derive(Debug)]
pub struct Library {
    row: Row,
    /// True if loading it took so long that it is not tried on a worker's thread again.
    pub loads_slowly: AtomicBool,
    /// For each function, true if its last run took so long that it is not tried on a worker's
    /// thread.
    slow: Vec<AtomicBool>,
    /// Start of its code, behind the first line.
    body: usize,
}

impl Library {
    /// Creates a library from its stored row.
    pub fn new(row: Row) -> Self {
        let body = memchr::memchr(b'\n', &row.code).unwrap_or(row.code.len());
        let slow = row.functions.iter().map(|_| AtomicBool::new(false)).collect();
        Self { row, loads_slowly: AtomicBool::new(false), slow, body }
    }

    /// Creates a library from its code; fails with the error text if it cannot be loaded, or if its
    /// functions have names and descriptions of more than `max_bytes`. Blocks the thread for up to half
    /// a second.
    pub fn inspect(code: &[u8], max_vm_bytes: usize, max_bytes: usize) -> Result<Self, String> {
        let Metadata { name, body } = Metadata::read(code)?;
        let functions = inspect(&code[body..], max_vm_bytes, max_bytes)?;
        let engine = ENGINE.as_bytes().into();
        Ok(Self::new(Row { name, engine, code: code.into(), functions }))
    }

    /// Returns the code without its first line.
    pub fn body(&self) -> &[u8] {
        &self.code[self.body..]
    }

    /// Returns its approximate memory in bytes.
    pub fn bytes(&self) -> usize {
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

/// A function and its library.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    pub library: &'a Arc<Library>,
    pub function: &'a Function,
    /// True if its last run took so long that it is not tried on a worker's thread.
    pub is_slow: &'a AtomicBool,
}

/// Treatment of existing libraries when others are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Existing libraries stay; a new one must not have the name of one.
    Append,
    /// Existing libraries with the name of a new one are replaced.
    Replace,
    /// All existing libraries are removed.
    Flush,
}

/// All libraries at one time.
#[derive(Clone, Debug, Default)]
pub struct Libraries {
    /// Version, which increases with each change.
    pub version: u64,
    by_name: BTreeMap<Box<[u8]>, Arc<Library>>,
    /// Functions by name in lower case: the library, and the index in it.
    functions: HashMap<Box<[u8]>, (Arc<Library>, usize)>,
    bytes: usize,
}

impl Libraries {
    /// Returns all libraries, ordered by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Library>> {
        self.by_name.values()
    }

    /// Returns the library with a name.
    pub fn get(&self, name: &[u8]) -> Option<&Arc<Library>> {
        self.by_name.get(name)
    }

    /// Returns the library with exactly this code.
    pub fn with_code(&self, code: &[u8]) -> Option<&Arc<Library>> {
        self.iter().find(|library| *library.code == *code)
    }

    /// Returns the function with a name, ignoring case.
    pub fn function(&self, name: &[u8]) -> Option<Found<'_>> {
        let (library, at) = self.functions.get(&*name.to_ascii_lowercase())?;
        let (function, is_slow) = (library.functions.get(*at)?, library.slow.get(*at)?);
        Some(Found { library, function, is_slow })
    }

    /// Returns the number of functions.
    pub fn function_count(&self) -> usize {
        self.functions.len()
    }

    /// Returns the approximate memory of the libraries in bytes.
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

    /// Adds all of the libraries, or fails with the error text and adds none.
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
    /// Mutex that serialises changes.
    editing: Arc<Mutex<()>>,
    /// Maximum memory of the libraries in bytes.
    max_bytes: usize,
}

impl Functions {
    /// Creates the libraries from their stored rows.
    pub fn new(rows: Vec<Row>, max_bytes: usize) -> Result<Self, String> {
        let mut all = Libraries::default();
        let rows: Vec<_> = rows.into_iter().map(|row| Arc::new(Library::new(row))).collect();
        all.add(&rows, Policy::Append)?;
        Ok(Self { current: RwLock::new(Arc::new(all)), editing: Arc::default(), max_bytes })
    }

    /// Returns the current libraries.
    pub fn now(&self) -> Arc<Libraries> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a change, once the previous one has ended.
    pub async fn edit(&self) -> Edit {
        let turn = self.editing.clone().lock_owned().await;
        let before = self.now();
        Edit { next: (*before).clone(), before, max_bytes: self.max_bytes, _turn: turn }
    }
}

/// A change of the libraries, which excludes all others. It takes effect once it is stored.
#[derive(Debug)]
pub struct Edit {
    before: Arc<Libraries>,
    next: Libraries,
    max_bytes: usize,
    _turn: OwnedMutexGuard<()>,
}

impl Edit {
    /// Returns the libraries with the changes so far.
    pub fn libraries(&self) -> &Libraries {
        &self.next
    }

    /// Adds all of the libraries, or fails with the error text and adds none.
    pub fn add(&mut self, new: &[Arc<Library>], policy: Policy) -> Result<(), String> {
        let mut next = self.next.clone();
        next.add(new, policy)?;
        if next.bytes > self.next.bytes {
            self.has_room(next.bytes)?;
        }
        self.next = next;
        Ok(())
    }

    /// Checks that libraries may take so many bytes; fails with the error text.
    pub fn has_room(&self, bytes: usize) -> Result<(), String> {
        if bytes <= self.max_bytes() {
            return Ok(());
        }
        Err(format!(
            "OOM all libraries together may take up to {} bytes of the memory budget",
            self.max_bytes
        ))
    }

    /// Returns how many bytes all libraries together may take: as many as they do at least, if a limit that was
    /// greater before, or that of another server, let them.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes.max(self.next.bytes)
    }

    /// Removes a library; returns false if there is none with this name.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let found = self.next.get(name).is_some();
        self.next.remove(name);
        found
    }

    /// Removes all libraries.
    pub fn clear(&mut self) {
        self.next = Libraries::default();
    }

    /// Returns the rows that change.
    pub fn changes(&self) -> Vec<(&[u8], Option<&Row>)> {
        let gone = self.before.iter().filter(|old| self.next.get(&old.name).is_none());
        let new = self.next.iter().filter(|library| {
            self.before.get(&library.name).is_none_or(|old| !Arc::ptr_eq(old, library))
        });
        let new = new.map(|library| (&*library.name, Some(&**library as &Row)));
        gone.map(|old| (&*old.name, None)).chain(new).collect()
    }

    /// Replaces all libraries by those of stored rows, whatever memory they take: a library of the same
    /// row stays what it is. Fails with the error text if the rows cannot be together.
    pub fn replace(&mut self, rows: Vec<Row>) -> Result<(), String> {
        let libraries: Vec<Arc<Library>> = rows
            .into_iter()
            .map(|row| match self.before.get(&row.name) {
                Some(library) if library.row == row => library.clone(),
                _ => Arc::new(Library::new(row)),
            })
            .collect();
        self.next.add(&libraries, Policy::Flush)
    }

    /// Returns the rows of all libraries with the changes so far.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &Row> {
        self.next.iter().map(|library| &library.row)
    }

    /// Takes back all changes since the last that took effect.
    pub fn begin_again(&mut self) {
        self.next = (*self.before).clone();
    }

    /// Puts the changes so far, which are stored, into effect.
    pub fn apply(&mut self, functions: &Functions) {
        self.next.version = self.before.version + 1;
        self.before = Arc::new(self.next.clone());
        let mut current = functions.current.write().unwrap_or_else(PoisonError::into_inner);
        *current = self.before.clone();
    }
}
