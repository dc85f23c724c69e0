//! Every bound stands in `docs/bounds.md`, with the value that it has in the source.

use crate::source::{Kind, PRODUCTION, root};
use crate::{ratchet, settle};
use std::collections::BTreeMap;
use std::fs;

const TABLE: &str = "docs/bounds.md";

/// Crates whose constants are bounds if they are named so. In the other crates most of them are
/// properties of formats.
const CRATES: &[&str] = &[".", "lua", "storage"];

/// Constants that are named like bounds and are none: they shape values in memory, belong to an
/// algorithm, name the greatest number of a type, or are texts.
const NO_BOUNDS: &[(&str, &str)] = &[
    ("src/config/directives.rs", "INT_MAX"),
    ("src/config/directives.rs", "LONG_MAX"),
    ("src/config/structured.rs", "LIMIT"),
    ("storage/src/value/list/mod.rs", "LAST_MAX"),
    ("storage/src/value/order/mod.rs", "BLOCK_MAX"),
    ("storage/src/value/order/mod.rs", "MERGE_MAX"),
    ("storage/src/value/pack.rs", "NODE_MAX"),
    ("storage/src/value/pack.rs", "VARINT_MAX"),
    ("storage/src/value/sequence.rs", "GROUP_MAX"),
    ("storage/src/value/stream/id.rs", "MAX"),
    ("storage/src/value/stream/pending.rs", "ENTRY_MAX"),
    ("storage/src/value/string.rs", "EMBSTR_MAX"),
];

/// A constant: its file and its name.
type Name = (String, String);

/// The constants of production code, each with its value as the source has it. A file may have
/// several of one name.
fn constants() -> BTreeMap<Name, Vec<String>> {
    let mut constants = BTreeMap::<Name, Vec<String>>::new();
    for file in PRODUCTION.iter() {
        let text = fs::read_to_string(root().join(&file.path)).unwrap();
        let declared = file.tokens.windows(3).filter(|three| {
            three[0].is("const") && three[1].kind == Kind::Word && three[2].is(":")
        });
        for three in declared {
            let from_here: Vec<&str> = text.lines().skip(three[1].line - 1).take(20).collect();
            let from_here = from_here.join(" ");
            let value = from_here.split_once(" = ").and_then(|(_, rest)| rest.split_once(';'));
            let value = value.map_or("", |(value, _)| value);
            let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
            constants.entry((file.path.clone(), three[1].text.into())).or_default().push(value);
        }
    }
    assert!(constants.len() > 500, "only {} constants are found: mend this test", constants.len());
    constants
}

/// The rows of the table: line, constant, value.
fn rows() -> Vec<(usize, Name, String)> {
    let text = fs::read_to_string(root().join(TABLE)).unwrap();
    let mut rows = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| line.contains(".rs` `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, constant, value, _, _] = cells[..] else {
            panic!("{TABLE}:{}: a row has four cells", at + 1);
        };
        let (file, name) = constant.trim_matches('`').split_once("` `").unwrap();
        rows.push((at + 1, (file.into(), name.into()), value.trim_matches('`').into()));
    }
    assert!(rows.len() > 150, "only {} rows are found: mend this test", rows.len());
    rows
}

#[test]
fn bounds_have_the_values_of_the_source() {
    let constants = constants();
    let mut complaints = Vec::new();
    for (line, name, shown) in rows() {
        let (file, constant) = &name;
        let Some(values) = constants.get(&name) else {
            let others = constants.keys().filter(|(_, other)| other == constant);
            let others: Vec<&str> = others.map(|(file, _)| file.as_str()).collect();
            complaints.push(format!(
                "{TABLE}:{line}: {file} has no constant `{constant}` any more. Name the one that \
                 took its place, or take the row out. Files with one of this name: {others:?}"
            ));
            continue;
        };
        if !values.contains(&shown) {
            complaints.push(format!(
                "{TABLE}:{line}: `{constant}` of {file} is `{}`, not `{shown}`. Write that into the \
                 table, and mend documents that name the figure.",
                values.join("` or `")
            ));
        }
    }
    settle("docs/bounds.md has the values of the source.", complaints);
}

#[test]
fn no_bound_is_missing_in_the_table() {
    let listed: Vec<Name> = rows().into_iter().map(|(_, name, _)| name).collect();
    let named = |name: &str| name.split('_').any(|word| word == "MAX" || word == "LIMIT");
    let member = |path: &str| {
        let krate = path.split('/').next().unwrap();
        CRATES.contains(&if krate == "src" { "." } else { krate })
    };
    let missing = constants().into_keys().filter(|(file, constant)| {
        member(file) && named(constant) && !listed.contains(&(file.clone(), constant.clone()))
    });
    let found = missing.map(|(file, constant)| {
        let complaint = format!(
            "{file}: `{constant}` is not in {TABLE}. Add a row: what it bounds, the constant, its \
             value, and the setting if there is one."
        );
        (format!("{file:?}, {constant:?}"), complaint)
    });
    let rule = "Every bound stands in docs/bounds.md (NO_BOUNDS in tests/tidy/bounds.rs).";
    let exceptions = NO_BOUNDS.iter().map(|(file, name)| format!("{file:?}, {name:?}")).collect();
    ratchet(rule, "NO_BOUNDS", found.collect(), exceptions);
}
