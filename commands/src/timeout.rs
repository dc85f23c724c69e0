//! Timeouts of blocking commands.

use super::{Awaited, Block, Ctx, Nil, Stop};
use flagstone_wire::num::LongDouble;
use flagstone_wire::resp::Args;

/// Timeouts of at least 2⁶³ milliseconds are refused.
const LIMIT_MS: f64 = 9_223_372_036_854_775_808.0;

/// Parses a timeout in seconds, with decimals, and returns its end: ms since the Unix epoch; 0:
/// never.
pub(crate) fn seconds_arg(text: &[u8], now_ms: u64) -> Result<u64, Stop> {
    let seconds = LongDouble::parse(text).map(LongDouble::to_f64);
    let seconds = seconds.ok_or("ERR timeout is not a float or out of range")?;
    let ms = (seconds * 1000.0).ceil();
    if ms >= LIMIT_MS {
        return Err("ERR timeout is out of range".into());
    }
    until(ms as i64, now_ms)
}

/// Parses a timeout in milliseconds, and returns its end in the same way.
pub(crate) fn milliseconds_arg(text: &[u8], now_ms: u64) -> Result<u64, Stop> {
    let ms = flagstone_wire::num::parse_i64(text);
    until(ms.ok_or("ERR timeout is not an integer or out of range")?, now_ms)
}

fn until(ms: i64, now_ms: u64) -> Result<u64, Stop> {
    if ms < 0 {
        return Err("ERR timeout is negative".into());
    }
    match ms as u64 {
        0 => Ok(0),
        ms => {
            let until_ms = ms.saturating_add(now_ms);
            if until_ms > i64::MAX as u64 {
                return Err("ERR timeout is out of range".into());
            }
            Ok(until_ms)
        }
    }
}

/// Returns the stop of a command that waits for its keys until the given time.
pub(crate) fn wait_for<'a>(
    keys: impl Iterator<Item = &'a [u8]>,
    on: Awaited,
    until_ms: u64,
    nil: Nil,
) -> Stop {
    let keys = keys.map(Box::from).collect();
    Stop::Block(Box::new(Block { keys, on, until_ms, nil, replaced: Vec::new() }))
}

/// Parses the last argument as a timeout in seconds; returns its end, and the number of the
/// arguments before it.
pub(crate) fn last_arg(cx: &Ctx<'_>, args: Args<'_>) -> Result<(u64, usize), Stop> {
    let last = args.len() - 1;
    Ok((seconds_arg(super::arg(args, last)?, cx.now_ms())?, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(result: Result<u64, Stop>) -> String {
        match result {
            Ok(until_ms) => until_ms.to_string(),
            Err(Stop::Error(text)) => text.to_string(),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn timeouts_are_rounded_up_and_bounded() {
        let seconds = |timeout: &str| text(seconds_arg(timeout.as_bytes(), 1000));
        assert_eq!(seconds("0"), "0");
        assert_eq!(seconds("0.0001"), "1001");
        assert_eq!(seconds("1.5"), "2500");
        assert_eq!(seconds("-1"), "ERR timeout is negative");
        assert_eq!(seconds("x"), "ERR timeout is not a float or out of range");
        assert_eq!(seconds("0x7FFFFFFFFFFFFF"), "ERR timeout is out of range");
        assert_eq!(seconds("9223372036854775"), "ERR timeout is out of range");
        let ms = |timeout: &str| text(milliseconds_arg(timeout.as_bytes(), 1000));
        assert_eq!(ms("5"), "1005");
        assert_eq!(ms("1.5"), "ERR timeout is not an integer or out of range");
        assert_eq!(ms("-1"), "ERR timeout is negative");
    }
}
