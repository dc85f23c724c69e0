//! Checks whether shards belong to a data directory.
//!
//! `flagstone.json` has the id of the directory; each shard carries that id, its own number, the
//! number of shards, and a hash of the seed. A directory made from another one (a restore, a
//! branch) has an id of its own; its shards carry the id of the other one until the first start.
//!
//! A shard that was split says which slots it has kept: files that were merged since have no rows of
//! others.

use super::Manifest;
use crate::control::{Control, Identity};
use crate::place::Place;
use std::ops::Range;

/// Remedy for all of these problems, for messages.
const REMEDY: &str = "Put the files of this directory back in their places, or restore a backup";

/// Returns the problems with the identities of these shards.
pub(crate) fn identity_problems<'a>(
    manifest: &Manifest,
    store: &Place,
    shards: impl Iterator<Item = (u16, &'a Control)>,
) -> Vec<String> {
    let mut problems = Vec::new();
    // Id of the directory that a new one was made from.
    let mut origin: Option<u128> = None;
    let layout = manifest.layout();
    for (id, control) in shards {
        let expected = manifest.identity(id);
        let problem = match control.identity {
            None if manifest.identified => Some("has no identity: it is not whole".to_owned()),
            None => None,
            Some(found) if found == expected => None,
            Some(found) if manifest.identified => Some(difference(&found, &expected)),
            Some(found) => {
                let origin = *origin.get_or_insert(found.id);
                let is_own = found.id == expected.id;
                let expected = Identity { id: if is_own { found.id } else { origin }, ..expected };
                (found != expected).then(|| difference(&found, &expected))
            }
        };
        let problem = problem.or_else(|| lost_slots(control, &layout.slots_of(id)));
        problems.extend(problem.map(|what| format!("{store}/shard-{id} {what}. {REMEDY}")));
    }
    problems
}

/// Returns the problem that a shard has given some of these slots away, which it is to have.
fn lost_slots(control: &Control, slots: &Range<u16>) -> Option<String> {
    let kept = control.slots.as_ref()?;
    let is_whole = kept.start <= slots.start && slots.end <= kept.end;
    (!is_whole).then(|| {
        format!(
            "was split, and has the slots {} to {} only, but flagstone.json gives it {} to {}: that file is \
             an older copy",
            kept.start,
            kept.end - 1,
            slots.start,
            slots.end - 1
        )
    })
}

fn difference(found: &Identity, expected: &Identity) -> String {
    if found.id != expected.id {
        return format!(
            "is a shard of another data directory: its id is {:032x}, that of this one is {:032x}",
            found.id, expected.id
        );
    }
    if found.shard != expected.shard {
        return format!("is in the place of another one: it is shard {}", found.shard);
    }
    if found.shards != expected.shards {
        return format!(
            "is one of {} shards, but flagstone.json has {}",
            found.shards, expected.shards
        );
    }
    "has rows of another seed than that in flagstone.json".to_owned()
}
