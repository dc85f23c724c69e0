//! `bit`: operations on 32 bits.

use std::ffi::c_int;

use crate::raw::{State, entry};
use crate::vm::{Vm, push_table};

/// 2^52 + 2^51: added to a number, its low 32 bits are those of the number modulo 2^32.
const TO_BITS: f64 = 6_755_399_441_055_744.0;
const MAX_HEX: usize = 8;

/// Pushes the library.
pub(crate) fn push(state: State, vm: *const Vm) {
    push_table(
        state,
        vm,
        &[
            ("tobit", entry!(tobit)),
            ("bnot", entry!(bnot)),
            ("band", entry!(band)),
            ("bor", entry!(bor)),
            ("bxor", entry!(bxor)),
            ("lshift", entry!(lshift)),
            ("rshift", entry!(rshift)),
            ("arshift", entry!(arshift)),
            ("rol", entry!(rol)),
            ("ror", entry!(ror)),
            ("bswap", entry!(bswap)),
            ("tohex", entry!(tohex)),
        ],
    );
}

fn bits(state: State, arg: c_int) -> u32 {
    let bits = (state.to_number(arg) + TO_BITS).to_bits() as u32;
    if bits == 0 && !state.is_number(arg) {
        state.type_error(arg, c"number");
    }
    bits
}

fn push_result(state: State, bits: u32) -> c_int {
    state.push_number(f64::from(bits.cast_signed()));
    1
}

fn fold(state: State, with: fn(u32, u32) -> u32) -> c_int {
    let first = bits(state, 1);
    let all = (2..=state.top()).rev().fold(first, |so_far, arg| with(so_far, bits(state, arg)));
    push_result(state, all)
}

fn shift(state: State, with: fn(u32, u32) -> u32) -> c_int {
    let value = bits(state, 1);
    let by = bits(state, 2) & 31;
    push_result(state, with(value, by))
}

fn tobit(state: State) -> c_int {
    push_result(state, bits(state, 1))
}

fn bnot(state: State) -> c_int {
    push_result(state, !bits(state, 1))
}

fn band(state: State) -> c_int {
    fold(state, |a, b| a & b)
}

fn bor(state: State) -> c_int {
    fold(state, |a, b| a | b)
}

fn bxor(state: State) -> c_int {
    fold(state, |a, b| a ^ b)
}

fn lshift(state: State) -> c_int {
    shift(state, |value, by| value << by)
}

fn rshift(state: State) -> c_int {
    shift(state, |value, by| value >> by)
}

fn arshift(state: State) -> c_int {
    shift(state, |value, by| (value.cast_signed() >> by).cast_unsigned())
}

fn rol(state: State) -> c_int {
    shift(state, u32::rotate_left)
}

fn ror(state: State) -> c_int {
    shift(state, u32::rotate_right)
}

fn bswap(state: State) -> c_int {
    push_result(state, bits(state, 1).swap_bytes())
}

fn tohex(state: State) -> c_int {
    let mut value = bits(state, 1);
    let asked = match state.kind(2) {
        mlua::ffi::LUA_TNONE => MAX_HEX as i32,
        _ => bits(state, 2).cast_signed(),
    };
    let digits = if asked < 0 { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
    let len = (asked.unsigned_abs() as usize).min(MAX_HEX);
    let mut text = [0; MAX_HEX];
    for byte in text[..len].iter_mut().rev() {
        *byte = digits[(value & 15) as usize];
        value >>= 4;
    }
    state.push_bytes(&text[..len]);
    1
}
