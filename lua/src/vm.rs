//! State shared by a VM's functions.

use std::cell::{Cell, UnsafeCell};

use mlua::{Function, ffi};

use crate::generator::Generator;
use crate::json_settings::JsonSettings;
use crate::raw::State;
use crate::work::charge_bytes;

/// Maximum capacity of the scratch buffer that is kept between two uses, in bytes.
const KEPT_SCRATCH: usize = 64 * 1024;

/// Maximum native stack of a run in bytes. Lua's own limit counts nested calls (200), whose
/// frames may be 9 KiB (`string.gsub`); threads here have 2 MiB.
const MAX_NATIVE_STACK: usize = 1024 * 1024;

/// The shared state. It lives as long as the Lua state, at a fixed address, which the functions
/// have as an upvalue.
pub(crate) struct Vm {
    pub(crate) random: Cell<Generator>,
    pub(crate) json: Cell<JsonSettings>,
    pub(crate) scratch: Scratch,
    /// Address in the frame that began the run: the use of native stack is measured from it.
    pub(crate) stack_base: Cell<usize>,
}

impl Vm {
    pub(crate) fn new(memory_limit: usize) -> Self {
        Self {
            random: Cell::new(Generator::default()),
            json: Cell::new(JsonSettings::default()),
            scratch: Scratch::new(memory_limit),
            stack_base: Cell::new(0),
        }
    }
}

impl Vm {
    /// Returns true if the run has used so much native stack that it must not nest deeper.
    pub(crate) fn is_deep(&self) -> bool {
        let base = self.stack_base.get();
        base != 0 && base.saturating_sub(frame_address()) > MAX_NATIVE_STACK
    }
}

/// Returns an address in the current frame.
#[inline(always)]
fn frame_address() -> usize {
    let mark = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&mark)).addr()
}

/// The buffer of encoders. It is not in their frames, as an error leaves these without dropping
/// anything.
pub(crate) struct Scratch {
    bytes: UnsafeCell<Vec<u8>>,
    limit: usize,
}

impl Scratch {
    fn new(limit: usize) -> Self {
        Self { bytes: UnsafeCell::new(Vec::new()), limit }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn clear(&self) {
        // SAFETY: no reference to the buffer outlives a method, and `Vm` is not `Sync`.
        let bytes = unsafe { &mut *self.bytes.get() };
        bytes.clear();
        bytes.shrink_to(KEPT_SCRATCH);
    }

    /// Appends bytes; exceeding the VM's memory raises an error in the script.
    pub(crate) fn append(&self, state: State, more: &[u8]) {
        charge_bytes(state, more.len());
        // SAFETY: as above; `more` is a value of Lua or a constant, never this buffer.
        let bytes = unsafe { &mut *self.bytes.get() };
        if more.len() > self.limit.saturating_sub(bytes.len()) {
            state.plain_error("not enough memory");
        }
        bytes.extend_from_slice(more);
    }

    /// Pushes the contents as a string.
    pub(crate) fn push(&self, state: State) {
        // SAFETY: as above; Lua copies the bytes, and runs nothing that uses the buffer.
        state.push_bytes(unsafe { &*self.bytes.get() });
    }
}

/// The owner of a [`Vm`], in the binding's data of the Lua state.
pub(crate) struct Shared {
    vm: Box<Vm>,
    runner: Option<Function>,
}

impl Shared {
    pub(crate) fn new(memory_limit: usize) -> Self {
        Self { vm: Box::new(Vm::new(memory_limit)), runner: None }
    }

    pub(crate) fn vm(&self) -> *const Vm {
        &*self.vm
    }

    pub(crate) fn set_runner(&mut self, runner: Function) {
        self.runner = Some(runner);
    }

    pub(crate) fn runner(&self) -> mlua::Result<Function> {
        self.runner.clone().ok_or_else(|| mlua::Error::runtime("not a VM for scripts"))
    }

    pub(crate) fn memory_limit(&self) -> usize {
        self.vm.scratch.limit()
    }

    pub(crate) fn begin_run(&self) {
        self.vm.json.set(JsonSettings::default());
        self.vm.stack_base.set(frame_address());
    }

    pub(crate) fn seed(&self, seed: i32) {
        self.vm.random.set(Generator::seeded(seed));
    }
}

impl State {
    /// Returns the state shared by the functions of this VM: their first upvalue.
    pub(crate) fn vm<'a>(self) -> &'a Vm {
        // SAFETY: see above. Each function that calls this was made with the address of the VM's
        // `Vm` as its first upvalue, and that lives longer than the VM.
        unsafe { &*ffi::lua_touserdata(self.as_ptr(), ffi::lua_upvalueindex(1)).cast::<Vm>() }
    }
}

/// Pushes a table of functions whose first upvalue is the VM.
pub(crate) fn push_table(state: State, vm: *const Vm, functions: &[(&str, mlua::lua_CFunction)]) {
    state.new_table();
    for &(name, function) in functions {
        state.push_light(vm.cast_mut().cast());
        state.push_function(function, 1);
        state.set_name(-2, name);
    }
}
