//! Paths of the file system as they are, without links and `..`.

use std::io;
use std::path::{Component, Path, PathBuf};

/// Returns a path without links, of which the last parts need not exist.
pub(crate) fn real_path(path: &Path) -> io::Result<PathBuf> {
    let mut real = PathBuf::new();
    for part in std::path::absolute(path)?.components() {
        if part == Component::ParentDir {
            real.pop();
        } else {
            real.push(part);
            real = real.canonicalize().unwrap_or(real);
        }
    }
    Ok(real)
}

/// Returns an absolute path without `..`, which the object store does not take. One without it keeps its links.
pub(super) fn without_parents(path: &Path) -> io::Result<PathBuf> {
    if path.components().any(|part| part == Component::ParentDir) {
        return real_path(path);
    }
    std::path::absolute(path)
}
