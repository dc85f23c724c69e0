//! To be filled in.

use super::libraries::push_table;
use super::raw::State;
use super::vm::Vm;

pub(super) fn push(state: State, vm: *const Vm) {
    push_table(state, vm, &[]);
}

#[derive(Clone, Copy, Default)]
pub(super) struct Settings {}
