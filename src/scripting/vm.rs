//! The Lua VMs of a thread. A VM runs one script at a time; VMs are kept with their compiled
//! scripts.

use super::api;
use crate::functions::{self, Found, Libraries, Library, LoadError, LoadLimits};
use crate::node::{MAX_DETACHED, Node};
use crate::scripts::{Script, Scripts, Sha, VmFigures, within};
use crate::unit::UnitStop;
use flagstone_commands::ErrorText;
use flagstone_lua as lua;
use fnv::FnvHashMap;
use mlua::{Function, Lua, Table};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum number of VMs that a thread keeps; it would need more only for nested scripts, which do
/// not exist.
const MAX_KEPT: usize = 1;

/// Maximum number of scripts that a VM keeps compiled; beyond it, all are discarded.
const MAX_COMPILED: usize = 1000;

/// Maximum memory in bytes of a VM that is kept.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// A VM that has more than this part of its limit begins no further script before its garbage is
/// collected, and then without the scripts that it keeps compiled: Lua collects nothing when an
/// allocation fails.
const FREE_PART: usize = 2;

/// Maximum length in bytes of a script that is compiled on a worker's thread.
pub const COMPILED_IN_PLACE: usize = 32 * 1024;

/// Maximum time that a script may take to be compiled.
const COMPILE_LIMIT: Duration = Duration::from_secs(1);

/// A Lua VM with its compiled scripts and loaded libraries.
pub struct Vm {
    pub lua: Lua,
    compiled: FnvHashMap<Sha, Function>,
    /// [`crate::scripts::Scripts::epoch`] of the compiled scripts.
    epoch: u64,
    /// Loaded libraries by name.
    libraries: FnvHashMap<Box<[u8]>, LoadedLibrary>,
    /// [`Libraries::version`] of the loaded libraries.
    version: u64,
    figures: Arc<VmFigures>,
    /// Bytes that are counted for it in the figures.
    counted: usize,
    /// Maximum memory in bytes.
    limit: usize,
    is_detached: bool,
    /// True if it may have inputs of a run that did not begin.
    is_spoilt: bool,
}

/// A library that a VM has loaded.
struct LoadedLibrary {
    library: Arc<Library>,
    /// Indices of its functions in the table of callbacks.
    functions: FnvHashMap<Vec<u8>, usize>,
    callbacks: Table,
}

thread_local! {
    static KEPT: RefCell<Vec<Vm>> = const { RefCell::new(Vec::new()) };
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.figures.bytes.fetch_sub(self.counted, Ordering::Relaxed);
        self.figures.all.fetch_sub(1, Ordering::Relaxed);
        self.figures.detached.fetch_sub(usize::from(self.is_detached), Ordering::Relaxed);
    }
}

impl Vm {
    fn new(scripts: &Scripts, is_detached: bool) -> mlua::Result<Self> {
        let limit = scripts.max_vm_bytes;
        let lua = lua::new_vm(limit)?;
        api::install(&lua)?;
        lua::seal(&lua)?;
        let figures = scripts.vms.clone();
        figures.all.fetch_add(1, Ordering::Relaxed);
        figures.detached.fetch_add(usize::from(is_detached), Ordering::Relaxed);
        Ok(Self {
            lua,
            compiled: FnvHashMap::default(),
            epoch: 0,
            libraries: FnvHashMap::default(),
            version: 0,
            figures,
            counted: 0,
            limit,
            is_detached,
            is_spoilt: false,
        })
    }

    /// Has it discarded once it is not in use any more.
    pub fn spoil(&mut self) {
        self.is_spoilt = true;
    }

    /// Updates the count of its memory; returns true if it may be kept, and is small enough.
    fn settle(&mut self) -> bool {
        if self.is_spoilt {
            return false;
        }
        let least_free = self.limit / FREE_PART;
        let most = MAX_KEPT_BYTES.min(self.limit - least_free);
        let collects = self.is_detached || self.lua.used_memory() > most;
        if collects && self.lua.gc_collect().is_err() {
            return false;
        }
        if self.lua.used_memory() > most && !self.compiled.is_empty() {
            self.compiled.clear();
            if self.lua.gc_collect().is_err() {
                return false;
            }
        }
        let used = self.lua.used_memory();
        let before = std::mem::replace(&mut self.counted, used);
        self.figures.bytes.fetch_add(used, Ordering::Relaxed);
        self.figures.bytes.fetch_sub(before, Ordering::Relaxed);
        // Loaded libraries may take half of the memory that is to stay free.
        used <= MAX_KEPT_BYTES.min(self.limit - least_free / 2)
    }

    /// Returns the function of a script, compiling it if necessary.
    pub fn function(
        &mut self,
        node: &Node,
        script: &Script,
        is_detached: bool,
    ) -> Result<Function, Uncompiled> {
        let failed = |error: mlua::Error| Uncompiled::from(format!("ERR {error}"));
        let epoch = node.code.scripts.epoch();
        if self.epoch != epoch || self.compiled.len() >= MAX_COMPILED {
            self.compiled.clear();
            self.epoch = epoch;
            self.lua.gc_collect().map_err(failed)?;
        }
        if let Some(function) = self.compiled.get(&script.sha) {
            return Ok(function.clone());
        }
        if !is_detached && script.code().len() > COMPILED_IN_PLACE {
            return Err(Uncompiled::Long);
        }
        let function = compile(self, script.code())?;
        self.compiled.insert(script.sha, function.clone());
        Ok(function)
    }

    /// Returns a function of a library, which is loaded if necessary, for at most `limit`.
    pub fn library_function(
        &mut self,
        libraries: &Libraries,
        found: Found<'_>,
        limit: Duration,
    ) -> Result<Function, LoadError> {
        if self.version != libraries.version {
            self.version = libraries.version;
            let before = self.libraries.len();
            self.libraries.retain(|name, loaded| {
                libraries.get(name).is_some_and(|now| Arc::ptr_eq(now, &loaded.library))
            });
            if self.libraries.len() < before {
                self.collect()?;
            }
        }
        let (library, name) = (found.library, &found.function.name);
        if !self.libraries.contains_key(&library.name) {
            let (functions, callbacks) = match self.load(library, limit) {
                // There may be enough memory without the other libraries.
                Err(LoadError::Failed(_)) if !self.libraries.is_empty() => {
                    self.libraries.clear();
                    self.collect()?;
                    self.load(library, limit)?
                }
                loaded => loaded?,
            };
            let loaded = LoadedLibrary { library: library.clone(), functions, callbacks };
            self.libraries.insert(library.name.clone(), loaded);
        }
        let loaded = self.libraries.get(&library.name);
        let function = loaded
            .and_then(|loaded| loaded.callbacks.raw_get(*loaded.functions.get(&name[..])?).ok());
        // The code has not registered the same functions as before.
        function.ok_or_else(|| LoadError::Failed("ERR Function not found".into()))
    }

    /// Frees what libraries have left.
    fn collect(&self) -> Result<(), LoadError> {
        let collected = self.lua.gc_collect();
        collected.map_err(|error| LoadError::Failed(format!("ERR {error}")))
    }

    fn load(
        &self,
        library: &Library,
        limit: Duration,
    ) -> Result<(FnvHashMap<Vec<u8>, usize>, Table), LoadError> {
        let limits = LoadLimits { time: limit, bytes: self.limit };
        let loaded = functions::load(&self.lua, library.body(), limits, false)?;
        let named = loaded.registered.into_iter().zip(1..);
        Ok((named.map(|(function, at)| (function.name, at)).collect(), loaded.callbacks))
    }
}

/// Reason why a script has no function.
#[derive(Debug)]
pub enum Uncompiled {
    /// The script is too long for a worker's thread.
    Long,
    /// The script has failed.
    Failed(ErrorText),
}

impl Uncompiled {
    /// Returns the error text for a command that cannot run again on another thread.
    pub fn into_text(self) -> ErrorText {
        match self {
            Self::Long => "ERR the script is too long to be compiled on a worker's thread".into(),
            Self::Failed(text) => text,
        }
    }
}

impl From<String> for Uncompiled {
    fn from(text: String) -> Self {
        Self::Failed(text.into())
    }
}

impl From<Vec<u8>> for Uncompiled {
    fn from(text: Vec<u8>) -> Self {
        Self::Failed(text.into())
    }
}

impl From<Uncompiled> for UnitStop {
    fn from(uncompiled: Uncompiled) -> Self {
        match uncompiled {
            Uncompiled::Long => Self::Detached,
            Uncompiled::Failed(text) => text.into(),
        }
    }
}

/// Compiles a script; fails with the error text.
fn compile(vm: &Vm, code: &[u8]) -> Result<Function, String> {
    let (compiled, is_late) =
        within(COMPILE_LIMIT, |watch| lua::compile(&vm.lua, "@user_script", code, watch));
    compiled.map_err(|error| {
        let text = match error {
            _ if is_late => format!("it takes more than {COMPILE_LIMIT:?}"),
            mlua::Error::SyntaxError { message, .. } => message,
            other => other.to_string(),
        };
        format!("ERR Error compiling script (new function): {text}")
    })
}

/// Discards this thread's VMs.
pub fn forget_vms() {
    KEPT.with_borrow_mut(Vec::clear);
}

/// Lends one of this thread's VMs, or a new one. Threads of units that run detached are short-lived:
/// only a limited number of them keep theirs.
pub fn with_vm<T>(
    node: &Arc<Node>,
    is_detached: bool,
    run: impl FnOnce(&mut Vm) -> Result<T, String>,
) -> Result<T, String> {
    let scripts = &node.code.scripts;
    let kept = KEPT.with_borrow_mut(Vec::pop);
    let mut vm = match kept {
        Some(vm) => vm,
        None => Vm::new(scripts, is_detached)
            .map_err(|error| format!("ERR there is no VM for scripts: {error}"))?,
    };
    let result = run(&mut vm);
    if vm.settle() && !(is_detached && scripts.vms.detached.load(Ordering::Relaxed) > MAX_DETACHED)
    {
        KEPT.with_borrow_mut(|kept| {
            if kept.len() < MAX_KEPT {
                kept.push(vm);
            }
        });
    }
    result
}
