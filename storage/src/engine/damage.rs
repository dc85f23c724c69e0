//! Errors of the engine, with their causes.

use anyhow::Error;
use std::iter::successors;

/// Converts an error with its causes, each of which is named once.
pub(super) fn with_causes(error: slatedb::Error) -> Error {
    let is_damage = error.kind() == slatedb::ErrorKind::Data;
    let error: &dyn std::error::Error = &error;
    let mut text = error.to_string();
    for cause in successors(error.source(), |error| error.source()).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    if is_damage { Error::new(DamagedFile(text)) } else { Error::msg(text) }
}

/// A file of an engine is damaged, or is gone: its rows are lost, unlike those of a store that does
/// not answer.
#[derive(Debug)]
pub(crate) struct DamagedFile(String);

impl std::fmt::Display for DamagedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DamagedFile {}
