//! Imports point one way: between crates, between the rooms of the server, and between the modules
//! of the crates below it.

use crate::source::{File, MEMBERS, PRODUCTION, first_names, root};
use crate::{ratchet, settle};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The crates, and those that each may depend on.
const CRATES: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("storage", &[]),
    ("rdb", &["wire"]),
    ("lua", &["wire"]),
    ("commands", &["rdb", "storage", "wire"]),
    ("model", &[]),
    (".", &["commands", "lua", "rdb", "storage", "wire"]),
];

/// The rooms of the server, the lowest first: files and folders of `src/`. A room may name those
/// above it in this list only.
pub(crate) const FLOORS: &[&str] = &[
    "config",
    "log",
    "traces",
    "rates",
    "open_files",
    "secrets",
    "signals",
    "version",
    "process",
    "allocator",
    "large",
    "tls",
    "supervisor",
    "outbox",
    "stalls",
    "replica",
    "followers",
    "transport",
    "cluster",
    "command",
    "acl",
    "commandlog",
    "clients",
    "pubsub",
    "monitor",
    "tracking",
    "watch",
    "blocking",
    "scripts",
    "functions",
    "node",
    "checkpoints",
    "unit",
    "scripting",
    "worker",
    "transaction",
    "session",
    "routing",
    "replication",
    "membership",
    "connection",
    "commands",
    "listen",
    "accept",
    "http",
    "closing",
    "server",
    "cli",
];

/// Imports that point upwards still: a room, and a later one that it names. No new ones, please;
/// those that no longer occur have to go.
const STILL_UPWARD: &[(&str, &str)] = &[];

/// Crates whose modules make circles still: all modules of a circle, in alphabetical order. Files
/// of one folder may know each other.
const STILL_CIRCLES: &[(&str, &[&str])] = &[];

/// Crates whose modules are held to have no circles.
const WITHOUT_CIRCLES: &[&str] = &["wire", "storage", "rdb", "lua", "commands", "model"];

#[test]
fn crates_depend_on_lower_crates_only() {
    let mut complaints = Vec::new();
    for member in MEMBERS.iter() {
        let Some((_, allowed)) = CRATES.iter().find(|(krate, _)| krate == member) else {
            complaints.push(format!(
                "Cargo.toml: the crate `{member}` is not in CRATES of tests/tidy/imports.rs. Put it \
                 there, with the crates that it may depend on."
            ));
            continue;
        };
        for (line, other) in dependencies(member) {
            if !allowed.contains(&other.as_str()) {
                complaints.push(format!(
                    "{member}/Cargo.toml:{line}: `{member}` may not depend on `{other}`, only on \
                     {allowed:?}. Move the code that needs it to a crate that may, or hand it in \
                     as an argument or a trait."
                ));
            }
        }
    }
    for (gone, _) in CRATES.iter().filter(|(krate, _)| !MEMBERS.contains(krate)) {
        complaints.push(format!("CRATES: there is no crate `{gone}`. Take it out of the list."));
    }
    settle("Crates depend on lower crates only (CRATES in tests/tidy/imports.rs).", complaints);
}

/// The crates of the workspace that `member`'s own code depends on, not its tests, with the lines.
fn dependencies(member: &str) -> Vec<(usize, String)> {
    let manifest = fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
    let mut inside = false;
    let mut found = Vec::new();
    for (at, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            let section = line.trim_matches(['[', ']']);
            inside = section.ends_with("dependencies")
                && !section.contains("dev-dependencies")
                && !section.starts_with("workspace");
        }
        if let Some((_, rest)) = line.split_once("flagstone-").filter(|_| inside) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            found.push((at + 1, rest[..end.unwrap_or(rest.len())].to_owned()));
        }
    }
    found
}

/// The modules directly below the root that are named from others: from, to, and the first place.
fn arrows(krate: &str) -> BTreeMap<(String, String), String> {
    let files: Vec<&File> = PRODUCTION.iter().filter(|file| file.krate == krate).collect();
    let is_room =
        |name: &str| files.iter().any(|file| file.module.first().is_some_and(|m| m == name));
    let root = files.iter().find(|file| file.module.is_empty()).unwrap();
    let exports = exports(root);
    let mut arrows = BTreeMap::new();
    for file in &files {
        let Some(from) = file.module.first().filter(|room| *room != "main") else { continue };
        for at in 0..file.tokens.len() {
            for name in first_names(file, at) {
                let to = if is_room(name) { Some(name) } else { exports.get(name).copied() };
                if let Some(to) = to.filter(|to| to != from && is_room(to)) {
                    let place = format!("{}:{}", file.path, file.tokens[at].line);
                    arrows.entry((from.clone(), to.to_owned())).or_insert(place);
                }
            }
        }
    }
    arrows
}

/// The names that the root of a crate takes from its modules, with the modules.
fn exports(root: &File) -> BTreeMap<&'static str, &'static str> {
    let tokens = &root.tokens;
    let mut exports = BTreeMap::new();
    for start in (0..tokens.len()).filter(|at| tokens[*at].is("use")) {
        let end = start + tokens[start..].iter().position(|token| token.is(";")).unwrap();
        for at in start + 1..end {
            if matches!(tokens[at + 1].text, "," | "}" | ";") {
                exports.insert(tokens[at].text, tokens[start + 1].text);
            }
        }
    }
    exports
}

#[test]
fn rooms_of_the_server_name_lower_rooms_only() {
    const RULE: &str =
        "A room of src/ names only rooms before it in FLOORS (tests/tidy/imports.rs).";
    let rooms: BTreeSet<&str> = PRODUCTION
        .iter()
        .filter(|file| file.krate == "." && file.path != "src/main.rs")
        .filter_map(|file| file.module.first().map(String::as_str))
        .collect();
    let missing = rooms.iter().filter(|room| !FLOORS.contains(room)).map(|room| {
        format!("src/{room}: not in FLOORS. Put it there, above all rooms that may name it.")
    });
    let gone = FLOORS.iter().filter(|room| !rooms.contains(*room)).map(|room| {
        format!("FLOORS: there is no src/{room} or src/{room}.rs. Take it out of the list.")
    });
    settle(RULE, missing.chain(gone).collect());

    let floor = |room: &str| FLOORS.iter().position(|name| *name == room).unwrap();
    let upward = arrows(".").into_iter().filter(|((from, to), _)| floor(from) < floor(to));
    let found = upward.map(|((from, to), place)| {
        let complaint = format!(
            "{place}: `{from}` names `{to}`, which stands after it. Move the item to a lower room, \
             or take what is needed as an argument, a message or a trait. (\"{from}\", \"{to}\")"
        );
        (format!("{from:?}, {to:?}"), complaint)
    });
    let listed = STILL_UPWARD.iter().map(|(from, to)| format!("{from:?}, {to:?}")).collect();
    ratchet(RULE, "STILL_UPWARD", found.collect(), listed);
}

#[test]
fn modules_of_the_other_crates_make_no_circles() {
    let mut found = Vec::new();
    for krate in WITHOUT_CIRCLES {
        let arrows = arrows(krate);
        for circle in circles(&arrows) {
            let inner = arrows
                .iter()
                .filter(|((from, to), _)| circle.contains(from) && circle.contains(to))
                .map(|((from, to), place)| format!("\n    {place}: {from} -> {to}"));
            let complaint = format!(
                "{krate}/src: the modules {circle:?} name each other. Move what two of them share to \
                 a third, or make them one folder. The imports:{}",
                inner.collect::<String>()
            );
            found.push((format!("{krate:?}, {circle:?}"), complaint));
        }
    }
    let listed = STILL_CIRCLES.iter().map(|(krate, circle)| format!("{krate:?}, {circle:?}"));
    let rule = "The modules of a crate make no circles (STILL_CIRCLES in tests/tidy/imports.rs).";
    ratchet(rule, "STILL_CIRCLES", found, listed.collect());
}

/// The groups of modules each of which leads to all others of its group.
fn circles(arrows: &BTreeMap<(String, String), String>) -> BTreeSet<Vec<String>> {
    let reach = |start: &String| {
        let mut seen = BTreeSet::new();
        let mut next = vec![start.clone()];
        while let Some(module) = next.pop() {
            let targets = arrows.keys().filter(|(from, _)| *from == module).map(|(_, to)| to);
            next.extend(targets.filter(|to| seen.insert((*to).clone())).cloned());
        }
        seen
    };
    let modules: BTreeSet<&String> = arrows.keys().map(|(from, _)| from).collect();
    let reached: BTreeMap<&String, BTreeSet<String>> =
        modules.into_iter().map(|module| (module, reach(module))).collect();
    let circle = |module: &String| {
        let there = reached[module].iter();
        there
            .filter(|other| reached.get(*other).is_some_and(|o| o.contains(module)))
            .cloned()
            .collect()
    };
    let in_circles = reached.keys().filter(|module| reached[**module].contains(**module));
    in_circles.map(|module| circle(module)).collect()
}
