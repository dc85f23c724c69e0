//! The rules of the source tree that no lint holds. Each rule is a test; a test that fails names the
//! file and the line, the rule, and what to do.
//!
//! Code that broke a rule before the rule was there stands in a list above its test. The lists are
//! ratchets: a new entry needs a reason that a reviewer accepts, and an entry that no longer applies
//! has to go.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bounds;
mod imports;
mod map;
mod names;
mod sizes;
mod source;
mod words;

/// Fails with all `complaints`, one on each line.
fn settle(rule: &str, mut complaints: Vec<String>) {
    complaints.sort();
    let list: String = complaints.iter().map(|complaint| format!("\n  {complaint}")).collect();
    assert!(complaints.is_empty(), "{rule}\nbroken in {} places:{list}\n", complaints.len());
}

/// Holds `found` (the breaches of a rule, each with a complaint) against `listed`, the exceptions
/// in the constant `list`.
fn ratchet(rule: &str, list: &str, found: Vec<(String, String)>, listed: Vec<String>) {
    let mut complaints: Vec<String> = listed
        .iter()
        .filter(|entry| !found.iter().any(|(key, _)| key == *entry))
        .map(|entry| format!("{list}: ({entry}) no longer occurs. Take it out of the list."))
        .collect();
    let new = found.into_iter().filter(|(key, _)| !listed.contains(key));
    complaints.extend(new.map(|(_, complaint)| complaint));
    settle(rule, complaints);
}

/// A number that a rule limits.
struct Figure {
    /// The begin of the entry in a list: the file, and the thing in it.
    key: String,
    number: usize,
    complaint: String,
}

/// Holds `figures` of more than `max` against `listed`, the exceptions in the constant `list` with
/// their numbers, which may not grow. With `exact`, a number that has fallen has to be lowered.
fn hold(
    rule: &str,
    (list, listed): (&str, Vec<(String, usize)>),
    (max, exact): (usize, bool),
    figures: &[Figure],
) {
    let mut complaints = Vec::new();
    for figure in figures.iter().filter(|figure| figure.number > max) {
        let before = listed.iter().find(|(key, _)| *key == figure.key).map(|(_, number)| *number);
        let (key, now) = (&figure.key, figure.number);
        match before {
            Some(before) if before > now && exact => {
                complaints
                    .push(format!("{list}: ({key}) is {now} now. Lower its number, {before}."));
            }
            Some(before) if before >= now => {}
            Some(before) => complaints.push(format!("{} It was {before}.", figure.complaint)),
            None => complaints.push(figure.complaint.clone()),
        }
    }
    for (key, _) in listed {
        if !figures.iter().any(|figure| figure.key == key && figure.number > max) {
            complaints.push(format!(
                "{list}: ({key}) no longer breaks the rule. Take it out of the list."
            ));
        }
    }
    settle(rule, complaints);
}
