//! Fuzz target: a string is parsed as a sketch or refused, whatever its runs are.

use super::registers::REGISTERS;
use super::sketch::Sketch;
use flagstone_storage::value::Str;

/// The default of `hll-sparse-max-bytes`.
const SPARSE_MAX: usize = 3000;

/// Parses `data` as a sketch, and adds a few elements to it.
pub fn hyperloglog(data: &[u8]) {
    let string = Str::new(data);
    let Ok(Some(mut sketch)) = Sketch::open(&string) else { return };
    let _cached = sketch.cached();
    let registers = sketch.registers();
    assert_eq!(registers.is_ok(), sketch.estimate().is_ok(), "both read all runs");
    for element in data.chunks(7).take(32) {
        if sketch.add(element, SPARSE_MAX).is_err() {
            return;
        }
    }
    let Ok(before) = registers else { return };
    let after = sketch.registers().expect("a sound sketch stays sound");
    assert_eq!(after.len(), REGISTERS);
    assert!(before.iter().zip(&after).all(|(old, new)| old <= new), "registers only rise");
    sketch.make_dense().expect("a sound sketch can be dense");
    assert_eq!(sketch.registers(), Ok(after), "in either encoding they are the same");
}
