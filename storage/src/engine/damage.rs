//! Errors of the engine, with their causes.

use crate::place::FileFault;
use anyhow::Error;
use std::iter::successors;

/// Converts an error with its causes, each of which is named once.
pub(super) fn with_causes(error: slatedb::Error) -> Error {
    let is_of_data = error.kind() == slatedb::ErrorKind::Data;
    let error: &dyn std::error::Error = &error;
    let mut text = error.to_string();
    let causes = || successors(error.source(), |error| error.source());
    for cause in causes().map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    match causes().find_map(|cause| cause.downcast_ref::<FileFault>()) {
        Some(FileFault::Damaged(_)) => Error::new(DamagedFile(text)),
        _ if is_of_data => Error::new(DamagedFile(text)),
        Some(FileFault::Unreadable(_)) => Error::new(UnreadableFile(text)),
        None => Error::msg(text),
    }
}

/// Returns true if other files may well be read: the error says nothing about the whole store.
pub(super) fn is_of_one_file(error: &Error) -> bool {
    error.is::<DamagedFile>() || error.is::<UnreadableFile>()
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

/// The system cannot read a file of an engine on a local disk, or a part of it. That may pass.
#[derive(Debug)]
pub(crate) struct UnreadableFile(String);

impl std::fmt::Display for UnreadableFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnreadableFile {}
