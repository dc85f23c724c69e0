//! LCS: the longest common subsequence of two strings.

use super::lcs_table::Table;
use crate::{
    Ctx, Find, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, int_arg, is_word, key,
};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Value;
use flagstone_wire::resp::{Args, Reply};

const NOT_STRINGS: &str = "ERR The specified keys must contain string values";
const LEN_AND_IDX: &str = "ERR If you want both the length and indexes, please just use IDX.";
const TOO_LONG: &str = "ERR String too long for LCS";
const TOO_MUCH_MEMORY: &str =
    "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len";

#[derive(Clone, Copy, Debug, Default)]
struct LcsOptions {
    len: bool,
    idx: bool,
    with_match_len: bool,
    /// Minimum length of the runs in the reply of IDX.
    min_match_len: i64,
}

impl LcsOptions {
    fn parse(args: Args<'_>) -> Result<Self, Stop> {
        let mut options = Self::default();
        let mut at = 3;
        while let Some(word) = args.get(at) {
            if is_word(word, "idx") {
                options.idx = true;
            } else if is_word(word, "len") {
                options.len = true;
            } else if is_word(word, "withmatchlen") {
                options.with_match_len = true;
            } else if is_word(word, "minmatchlen") && at + 1 < args.len() {
                at += 1;
                options.min_match_len = int_arg(args, at)?;
            } else {
                return Err(error::SYNTAX.into());
            }
            at += 1;
        }
        if options.len && options.idx {
            return Err(LEN_AND_IDX.into());
        }
        Ok(options)
    }
}

/// Returns the length of a key's string; a missing key counts as an empty string.
fn text_len(cx: &mut Ctx<'_>, name: &[u8]) -> Result<usize, Stop> {
    match cx.store.entry(cx.db, name)?.map(|entry| &entry.value) {
        None => Ok(0),
        Some(Value::Str(s)) => Ok(s.len()),
        Some(_) => Err(NOT_STRINGS.into()),
    }
}

fn text(cx: &mut Ctx<'_>, name: &[u8]) -> Result<Vec<u8>, Stop> {
    match cx.store.peek(cx.db, name)?.map(|entry| &entry.value) {
        Some(Value::Str(s)) => Ok(s.whole().or_load(cx.db, name)?.into_owned()),
        _ => Ok(Vec::new()),
    }
}

/// Checks the limits of the reference: its table has four bytes per cell.
fn check_size(a: usize, b: usize, max_bulk: usize) -> Result<(), &'static str> {
    let limit = u32::MAX as usize - 1;
    if a >= limit || b >= limit {
        return Err(TOO_LONG);
    }
    let bytes = (a as u128 + 1) * (b as u128 + 1) * 4;
    if bytes > max_bulk as u128 { Err(TOO_MUCH_MEMORY) } else { Ok(()) }
}

/// `LCS key1 key2 [LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]`
fn lcs(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (first, second) = (arg(args, 1)?, arg(args, 2)?);
    // Both are looked up before the first is refused.
    let (a_len, b_len) = match (text_len(cx, first), text_len(cx, second)) {
        (Err(missed @ Stop::Miss(_)), _) | (_, Err(missed @ Stop::Miss(_))) => return Err(missed),
        (a_len, b_len) => (a_len?, b_len?),
    };
    let options = LcsOptions::parse(args)?;
    check_size(a_len, b_len, cx.settings.proto_max_bulk_len)?;
    let (a, b) = (text(cx, first)?, text(cx, second)?);
    let table = Table::new(&a, &b, !options.len);
    if options.idx {
        reply_matches(cx.out, &table, &options);
    } else if options.len {
        cx.out.count(table.len());
    } else {
        let runs = table.matches();
        let common: Vec<u8> = runs.into_iter().rev().flat_map(|run| &a[run.a]).copied().collect();
        cx.out.bulk(&common);
    }
    Ok(())
}

/// Writes the reply of IDX: the runs and the length.
fn reply_matches(out: &mut Reply, table: &Table<'_>, options: &LcsOptions) {
    let mut runs = table.matches();
    runs.retain(|run| run.a.len() as i64 >= options.min_match_len);
    out.map(2);
    out.bulk_str("matches");
    out.array(runs.len());
    for run in runs {
        out.array(2 + usize::from(options.with_match_len));
        for range in [&run.a, &run.b] {
            out.array(2);
            out.count(range.start);
            out.count(range.end - 1);
        }
        if options.with_match_len {
            out.count(run.a.len());
        }
    }
    out.bulk_str("len");
    out.count(table.len());
}

/// Declaration of LCS.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "lcs",
    group: Group::String,
    since: "7.0.0",
    complexity: "O(N*M) with N and M the lengths of the strings.",
    summary: "Finds the longest common subsequence of two strings.",
    arity: -3,
    flags: flag!(READONLY),
    keys: &[KeySpec {
        find: Find::Range { last: 1, step: 1, limit: 0 },
        ..KeySpec::one(1, key!(RO | ACCESS))
    }],
    run: Run::Keys(lcs),
    ..Spec::NEW
}];
