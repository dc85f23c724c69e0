//! PFDEBUG, and the test of PFSELFTEST.

use super::registers::REGISTERS;
use super::sketch::Sketch;
use super::{NOT_A_SKETCH, dense};
use crate::bitmap::string_of;
use crate::{Ctx, Outcome, arg, is_word};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Value;
use flagstone_wire::resp::Args;

/// `PFDEBUG GETREG|DECODE|ENCODING|TODENSE key`, `PFDEBUG SIMD ON|OFF`
pub(super) fn pfdebug(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (word, name) = (arg(args, 1)?, arg(args, 2)?);
    if is_word(word, "simd") {
        if !is_word(name, "on") && !is_word(name, "off") {
            return Err("ERR Argument must be ON or OFF".into());
        }
        // The server has no SIMD variant to choose.
        cx.out.simple("disabled");
        return Ok(());
    }
    let mut entry = cx.store.entry_mut(cx.db, name)?;
    let s = string_of(&entry)?.ok_or("ERR The specified key does not exist")?;
    let mut sketch = Sketch::open(s).or_load(cx.db, name)?.ok_or(NOT_A_SKETCH)?;
    let was_sparse = sketch.is_sparse();
    if is_word(word, "getreg") {
        sketch.make_dense()?;
        cx.out.array(REGISTERS);
        sketch.registers()?.into_iter().for_each(|value| cx.out.int(i64::from(value)));
    } else if is_word(word, "decode") {
        if !was_sparse {
            return Err("ERR HLL encoding is not sparse".into());
        }
        cx.out.bulk_str(&runs_as_text(&sketch));
    } else if is_word(word, "encoding") {
        cx.out.simple(if was_sparse { "sparse" } else { "dense" });
    } else if is_word(word, "todense") {
        sketch.make_dense()?;
        cx.out.int(i64::from(was_sparse));
    } else {
        let word = String::from_utf8_lossy(word);
        return Err(format!("ERR Unknown PFDEBUG subcommand '{word}'").into());
    }
    if let Some(changed) = sketch.into_changed() {
        entry.value = Value::Str(changed);
    }
    Ok(())
}

/// Returns the runs of a sparse sketch as text: `z:` zeros in one byte, `Z:` zeros in two, `v:` a
/// value.
fn runs_as_text(sketch: &Sketch<'_>) -> String {
    let words: Vec<String> = sketch
        .runs()
        .map(|run| match (run.value, run.bytes) {
            (0, 1) => format!("z:{}", run.len),
            (0, _) => format!("Z:{}", run.len),
            (value, _) => format!("v:{value},{}", run.len),
        })
        .collect();
    words.join(" ")
}

/// Tests registers and estimates for PFSELFTEST. It takes about a second.
pub fn self_test(sparse_max: usize) -> Result<(), String> {
    check_registers()?;
    check_estimates(sparse_max)
}

/// Number of times that registers are written and read back.
const CYCLES: usize = 1000;

/// Number of elements that are added.
const ELEMENTS: u64 = 10_000_000;

/// Checks that packed registers keep their values and do not overlap.
fn check_registers() -> Result<(), String> {
    let mut packed = vec![0; dense::BYTES];
    let mut wanted = [0u8; REGISTERS];
    for _ in 0..CYCLES {
        rand::fill(&mut wanted);
        for (index, value) in wanted.iter_mut().enumerate() {
            *value &= 63;
            dense::set(&mut packed, index, *value);
        }
        for (index, &value) in wanted.iter().enumerate() {
            let got = dense::get(&packed, index);
            if got != value {
                return Err(format!("Register {index} should be {value} but is {got}"));
            }
        }
    }
    Ok(())
}

/// Checks that both encodings agree, and that the estimate is near the true count.
fn check_estimates(sparse_max: usize) -> Result<(), String> {
    let corrupt = |_| String::from("sparse encoding is corrupt");
    let (mut dense, mut small) = (Sketch::empty(), Sketch::empty());
    dense.make_dense().map_err(corrupt)?;
    let seed: u64 = rand::random();
    let mut checkpoint = 1;
    for n in 1..=ELEMENTS {
        let element = (n ^ seed).to_le_bytes();
        dense.add(&element, sparse_max).map_err(corrupt)?;
        small.add(&element, sparse_max).map_err(corrupt)?;
        if n < checkpoint {
            continue;
        }
        if n < sparse_max as u64 / 2 && !small.is_sparse() {
            return Err("sparse encoding not used".into());
        }
        let estimate = dense.estimate().map_err(corrupt)?;
        if small.estimate().map_err(corrupt)? != estimate {
            return Err("dense/sparse disagree".into());
        }
        let error = estimate.abs_diff(n);
        if error > allowed_error(n) {
            return Err(format!("Too big error. card:{n} abserr:{error}"));
        }
        checkpoint *= 10;
    }
    Ok(())
}

/// Returns six times the standard error; for ten elements 1, because two elements in one register
/// are not rare.
fn allowed_error(elements: u64) -> u64 {
    match elements {
        10 => 1,
        n => (1.04 / (REGISTERS as f64).sqrt() * 6.0 * n as f64).ceil() as u64,
    }
}
