//! The command table against the facts of the reference, in `data/commands.json` (written by
//! `compat/command_facts.py`): arity, flags, keys, ACL categories, tips.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use flagstone::command::{Command, registry};
use flagstone_commands::{Begin, Find};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Commands that the reference does not have; hash fields with a time to live are Redis 7.4's.
const BEYOND: &[&str] = &[
    "cluster|beat",
    "cluster|link",
    "cluster|spread",
    "flagstone",
    "flagstone|bigkeys",
    "flagstone|branch",
    "flagstone|checkpoint",
    "flagstone|checkpoints",
    "flagstone|help",
    "flagstone|hotkeys",
    "flagstone|split",
    "hexpire",
    "hexpireat",
    "hexpiretime",
    "hgetdel",
    "hgetex",
    "hpersist",
    "hpexpire",
    "hpexpireat",
    "hpexpiretime",
    "hpttl",
    "hsetex",
    "httl",
];

/// Facts that are different here on purpose: command, field.
const DIFFERENT: &[(&str, &str)] = &[];

fn reference() -> BTreeMap<String, Value> {
    serde_json::from_str(include_str!("data/commands.json")).unwrap()
}

fn keys(command: &Command) -> Value {
    let specs = command.spec.keys.iter().map(|spec| {
        let flags: Vec<_> = spec.flags.iter_names().map(|(name, _)| name).collect();
        let begin = match spec.begin {
            Begin::Index(index) => json!(["index", index]),
            Begin::Keyword(word, start) => json!(["keyword", word, start]),
            Begin::Unknown => json!(["unknown"]),
        };
        let find = match spec.find.shown() {
            Find::Range { last, step, limit } => json!(["range", last, step, limit]),
            Find::KeyNum { at, first, step } => json!(["keynum", at, first, step]),
            Find::Options(_) | Find::ShownAs(..) | Find::Unknown => json!(["unknown"]),
        };
        json!({"flags": flags, "begin": begin, "find": find})
    });
    Value::Array(specs.collect())
}

/// A list as a set: order does not matter.
fn sorted(list: &Value) -> Vec<String> {
    let mut out: Vec<String> =
        list.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect();
    out.sort();
    out
}

fn differences(command: &Command, facts: &Value) -> Vec<String> {
    let spec = command.spec;
    let (range, _) = spec.key_range();
    let ours = json!({
        "since": spec.since,
        "arity": spec.arity,
        "flags": spec.flag_names(),
        "range": [range.first, range.last, range.step],
        "acl": spec.category_names(),
        "tips": spec.tips,
        "keys": keys(command),
    });
    let name = command.full_name;
    let mut out = Vec::new();
    for (field, ours) in ours.as_object().unwrap() {
        let theirs = &facts[field];
        let same = match field.as_str() {
            "flags" | "acl" => sorted(ours) == sorted(theirs),
            _ => ours == theirs,
        };
        if !same && !DIFFERENT.contains(&(name, field.as_str())) {
            out.push(format!("{name}: {field} is {ours}, the reference has {theirs}"));
        }
    }
    out
}

#[test]
fn the_table_agrees_with_the_reference() {
    let reference = reference();
    let mut wrong = Vec::new();
    flagstone::commands::install(&[]).expect("no renamings");
    for command in registry::every() {
        match reference.get(command.full_name) {
            Some(facts) => wrong.extend(differences(command, facts)),
            None if BEYOND.contains(&command.full_name) => {}
            None => wrong.push(format!("{}: the reference has no such command", command.full_name)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_command_is_documented() {
    flagstone::commands::install(&[]).expect("no renamings");
    for command in registry::every() {
        let spec = command.spec;
        assert!(spec.summary.ends_with('.'), "{}: no summary", command.full_name);
        assert!(!spec.complexity.is_empty(), "{}: no complexity", command.full_name);
        assert!(spec.arity != 0, "{}: no arity", command.full_name);
    }
}
