//! ARCHITECTURE.md has the rooms, and docs/dependencies.md the dependencies, that the tree has; all
//! documents name source files that exist.

use crate::imports::FLOORS;
use crate::settle;
use crate::source::{MEMBERS, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const MAP: &str = "ARCHITECTURE.md";
const DEPENDENCIES: &str = "docs/dependencies.md";

/// The rows of the table with this head in a document, with their lines.
fn table(document: &str, head: &str) -> Vec<(usize, Vec<String>)> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let mut lines = text.lines().enumerate().skip_while(|(_, line)| *line != head);
    assert!(lines.next().is_some(), "{document} has no table `{head}`: mend it, or this test");
    let rows = lines.skip(1).take_while(|(_, line)| line.starts_with('|'));
    rows.map(|(at, line)| {
        let cells = line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned());
        (at + 1, cells.collect())
    })
    .collect()
}

#[test]
fn the_map_has_all_rooms_in_their_order() {
    let rows = table(MAP, "| room of `src/` | is |");
    let rooms: Vec<String> = rows
        .iter()
        .flat_map(|(_, cells)| cells[0].split(", ").map(|room| room.trim_matches('`').to_owned()))
        .collect();
    let mut complaints = Vec::new();
    for room in FLOORS.iter().filter(|room| !rooms.iter().any(|other| other == *room)) {
        complaints.push(format!("{MAP}: the room `{room}` is missing. Say in a row what it is."));
    }
    for room in rooms.iter().filter(|room| !FLOORS.contains(&room.as_str())) {
        complaints.push(format!("{MAP}: there is no room `{room}` any more. Take it out."));
    }
    if complaints.is_empty() && rooms != FLOORS {
        complaints.push(format!("{MAP}: the rooms have another order in FLOORS: {FLOORS:?}."));
    }
    settle("The table of rooms in ARCHITECTURE.md is FLOORS (tests/tidy/imports.rs).", complaints);
}

/// The packages of the manifests, and who needs each.
fn packages() -> BTreeMap<String, BTreeSet<String>> {
    let mut needed = BTreeMap::<(u8, String), BTreeSet<String>>::new();
    for member in MEMBERS.iter() {
        let manifest = fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
        let mut section = "";
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line.trim_matches(['[', ']']);
            }
            let name = line.split(['.', ' ', '=']).next().unwrap();
            let is_other = name.is_empty() || name.starts_with(['[', '#']);
            if is_other || name.starts_with("flagstone-") {
                continue;
            }
            let by = if *member == "." { "server" } else { member };
            let (kind, by) = match section {
                "dependencies" => (0, by.to_owned()),
                "build-dependencies" => (1, format!("{by} (build)")),
                "dev-dependencies" => (2, "tests".to_owned()),
                _ => continue,
            };
            needed.entry((kind, name.to_owned())).or_default().insert(by);
        }
    }
    let mut packages = BTreeMap::new();
    // A package that tests need, too, counts for the crates that need it for more.
    for ((_, name), by) in needed {
        packages.entry(name).or_insert(by);
    }
    assert!(packages.len() > 30, "only {} packages are found: mend this test", packages.len());
    packages
}

#[test]
fn all_dependencies_have_a_reason() {
    let packages = packages();
    let mut complaints = Vec::new();
    let mut seen = BTreeSet::new();
    for (line, cells) in table(DEPENDENCIES, "| package | used by | why |") {
        let by: BTreeSet<String> = cells[1].split(", ").map(ToOwned::to_owned).collect();
        match packages.get(&cells[0]) {
            None => complaints.push(format!(
                "{DEPENDENCIES}:{line}: no Cargo.toml names `{}` any more. Take the row out.",
                cells[0]
            )),
            Some(real) if *real != by => complaints.push(format!(
                "{DEPENDENCIES}:{line}: `{}` is used by {real:?}. Write that into the second cell.",
                cells[0]
            )),
            Some(_) => {}
        }
        seen.insert(cells[0].clone());
    }
    for name in packages.keys().filter(|name| !seen.contains(*name)) {
        complaints.push(format!(
            "{DEPENDENCIES}: `{name}` is missing. Add a row that says why it is used."
        ));
    }
    settle("The table in docs/dependencies.md is that of the manifests.", complaints);
}

/// Adds the files with this ending below a folder, as paths from the root of the repository.
fn find(folder: &Path, ending: &str, files: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, ending, files);
        } else if let Some(name) = path.strip_prefix(root()).unwrap().to_str()
            && name.ends_with(ending)
        {
            files.push(name.to_owned());
        }
    }
}

#[test]
fn documents_name_source_files_that_exist() {
    let (mut sources, mut documents) = (Vec::new(), Vec::new());
    for folder in
        MEMBERS.iter().flat_map(|member| [format!("{member}/src"), format!("{member}/tests")])
    {
        find(&root().join(folder), ".rs", &mut sources);
    }
    find(&root().join("docs"), ".md", &mut documents);
    documents.extend(["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"].map(str::to_owned));
    let exists = |name: &str| {
        sources.iter().any(|path| {
            path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        })
    };
    let is_path = |text: &str| {
        text.ends_with(".rs")
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "_./-".contains(c))
    };
    let (mut complaints, mut found) = (Vec::new(), 0);
    for document in documents {
        let text = fs::read_to_string(root().join(&document)).unwrap();
        for (at, line) in text.lines().enumerate() {
            for name in line.split('`').skip(1).step_by(2).filter(|text| is_path(text)) {
                found += 1;
                if !exists(name) {
                    complaints.push(format!(
                        "{document}:{}: there is no `{name}`. Name the file that has its subject now.",
                        at + 1
                    ));
                }
            }
        }
    }
    assert!(found > 100, "only {found} names of files are found: mend this test");
    settle("Documents name source files that exist.", complaints);
}
