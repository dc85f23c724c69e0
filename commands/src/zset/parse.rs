//! Parsing of ranges and counts.

use crate::{Stop, arg, int_arg};
use flagstone_storage::value::{LexEdge, Span};
use flagstone_wire::num::parse_f64_loosely;
use flagstone_wire::resp::Args;

/// Parses a score; a parenthesis before it excludes it.
fn score_edge(text: &[u8]) -> Option<(f64, bool)> {
    let excluded = text.strip_prefix(b"(");
    Some((parse_f64_loosely(excluded.unwrap_or(text))?, excluded.is_some()))
}

/// Parses a range of scores.
pub(super) fn score_span(min: &[u8], max: &[u8]) -> Result<Span, Stop> {
    match (score_edge(min), score_edge(max)) {
        (Some(min), Some(max)) => Ok(Span::by_score(min, max)),
        _ => Err("ERR min or max is not a float".into()),
    }
}

/// Parses one edge of a range of names: `-`, `+`, `[name` or `(name`.
fn lex_edge(text: &[u8]) -> Option<LexEdge<'_>> {
    match text {
        [b'-'] | [b'-', 0, ..] => Some(LexEdge::Min),
        [b'+'] | [b'+', 0, ..] => Some(LexEdge::Max),
        [b'[', name @ ..] => Some(LexEdge::Including(name)),
        [b'(', name @ ..] => Some(LexEdge::Excluding(name)),
        _ => None,
    }
}

/// Parses the edges of a range of names.
pub(super) fn lex_edges<'a>(
    min: &'a [u8],
    max: &'a [u8],
) -> Result<(LexEdge<'a>, LexEdge<'a>), Stop> {
    let edges = lex_edge(min).zip(lex_edge(max));
    edges.ok_or_else(|| "ERR min or max not valid string range item".into())
}

/// A range of ranks; negative ones count from the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranks {
    start: i64,
    stop: i64,
}

impl Ranks {
    /// Parses the two arguments from `at` on.
    pub(super) fn parse(args: Args<'_>, at: usize) -> Result<Self, Stop> {
        Ok(Self { start: int_arg(args, at)?, stop: int_arg(args, at + 1)? })
    }

    /// Returns the first rank in a sorted set of `len` members, and the number of ranks.
    pub(super) fn of(self, len: u64) -> (u64, u64) {
        let len = i64::try_from(len).unwrap_or(i64::MAX);
        let from_end = |rank: i64| if rank < 0 { len + rank } else { rank };
        let start = from_end(self.start).max(0);
        let stop = from_end(self.stop).min(len - 1);
        if start > stop {
            return (0, 0);
        }
        (start.unsigned_abs(), (stop - start + 1).unsigned_abs())
    }
}

/// Parses a count of at least `least`; `wrong` is the error for a smaller one.
pub(super) fn count_arg(
    args: Args<'_>,
    at: usize,
    least: i64,
    wrong: &'static str,
) -> Result<u64, Stop> {
    let text = arg(args, at)?;
    let count = flagstone_wire::num::parse_i64(text).ok_or(wrong)?;
    if count < least { Err(wrong.into()) } else { Ok(count.unsigned_abs()) }
}
