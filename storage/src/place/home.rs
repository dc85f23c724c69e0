//! A local directory whose files this process has open. It may be moved meanwhile, or another one
//! be put in its place: what is written by its path would then destroy that one.

use std::fs::{File, metadata};
use std::io::{Error, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// An open directory, and its path.
#[derive(Debug)]
pub(crate) struct HomeDir {
    path: PathBuf,
    opened: File,
}

impl HomeDir {
    /// Opens the directory that is at the path now.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), opened: File::open(path)? })
    }

    /// Checks that the path still leads to the directory. The same descriptor is asked each time:
    /// some file systems number a directory anew once nobody has it open.
    ///
    /// # Errors
    /// The directory was moved, removed or replaced, or the path cannot be followed.
    pub(crate) fn check(&self) -> Result<()> {
        let (there, own) = (metadata(&self.path), self.opened.metadata()?);
        match there {
            Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => Ok(()),
            Ok(_) => Err(self.gone("another one is there now".to_owned())),
            Err(error) => Err(self.gone(error.to_string())),
        }
    }

    fn gone(&self, why: String) -> Error {
        Error::other(format!(
            "the directory {} was moved, removed or replaced while it is in use ({why}): put it back, or \
             stop this server",
            self.path.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_directory_that_is_not_there_any_more_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let [path, away] = ["home", "away"].map(|name| dir.path().join(name));
        fs::create_dir(&path).unwrap();
        let home = HomeDir::open(&path).unwrap();
        home.check().unwrap();
        fs::rename(&path, &away).unwrap();
        let text = home.check().unwrap_err().to_string();
        assert!(text.contains("home was moved, removed or replaced"), "{text}");
        fs::create_dir(&path).unwrap();
        assert!(home.check().unwrap_err().to_string().contains("another one is there now"));
        fs::remove_dir(&path).unwrap();
        fs::rename(&away, &path).unwrap();
        home.check().unwrap();
        fs::remove_dir(&path).unwrap();
        home.check().unwrap_err();
    }
}
