//! A Unix socket that the server listens on, and its file.

use crate::config::Settings;
use anyhow::{Context, Result, bail};
use std::fs::{self, Metadata, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// File with the groups of this machine, by name.
const GROUPS: &str = "/etc/group";

const TAKEN: &str = "the file exists, and is no socket";

/// The file of a socket. It is removed with this value, unless another file has taken its place.
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|file| identity(&file) == self.identity) {
            // Another process may have removed it just now.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Checks the settings of a Unix socket, before anything is done about them.
///
/// # Errors
/// There can be no socket of this path, or the group does not exist.
pub(super) fn check(path: &str, settings: &Settings) -> Result<()> {
    let path = Path::new(path);
    socket2::SockAddr::unix(path)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if !fs::metadata(parent.unwrap_or(Path::new(".")))?.is_dir() {
        bail!("its parent is no directory");
    }
    if fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket()) {
        bail!(TAKEN);
    }
    settings.unixsocketgroup.as_deref().map_or(Ok(0), group_id)?;
    Ok(())
}

/// Listens on a Unix socket, with the permissions and the group of the settings. A socket that a
/// killed server has left is replaced.
///
/// # Errors
/// The path is taken, or the system refuses it.
pub(super) fn listen(path: &str, settings: &Settings) -> Result<(UnixListener, SocketFile)> {
    let path = Path::new(path);
    remove_left_over(path)?;
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    let file = fs::symlink_metadata(path)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&file) };
    // Nobody can connect before it listens.
    if settings.unixsocketperm != 0 {
        fs::set_permissions(path, Permissions::from_mode(settings.unixsocketperm))
            .context("setting unixsocketperm")?;
    }
    if let Some(group) = &settings.unixsocketgroup {
        let id = group_id(group)?;
        chown(path, None, Some(id)).with_context(|| format!("unixsocketgroup {group}"))?;
    }
    socket.listen(settings.tcp_backlog)?;
    Ok((socket.into(), file))
}

/// Removes a socket on which nobody listens.
fn remove_left_over(path: &Path) -> Result<()> {
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if !file.file_type().is_socket() {
        bail!(TAKEN);
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!("another process listens on it"),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs::remove_file(path).context("removing the socket of a server that has ended")
        }
        Err(error) => Err(error).context("finding out if another process listens on it"),
    }
}

/// Returns the number of a group, which a number or a name of `/etc/group` stands for.
fn group_id(group: &str) -> Result<u32> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    let groups = fs::read_to_string(GROUPS).with_context(|| format!("reading {GROUPS}"))?;
    let id = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == group).then(|| fields.nth(1)?.parse().ok())?
    });
    id.with_context(|| format!("unixsocketgroup {group}: {GROUPS} has no such group"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(perm: u32) -> Settings {
        Settings { unixsocketperm: perm, ..Settings::default() }
    }

    #[test]
    fn a_socket_that_is_left_over_is_replaced_and_one_in_use_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s").display().to_string();
        let (listener, file) = listen(&path, &settings(0o600)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = listen(&path, &settings(0)).err().unwrap();
        assert!(error.to_string().contains("another process"), "{error}");
        // As after kill -9.
        std::mem::forget(file);
        drop(listener);
        let (_listener, file) = listen(&path, &settings(0)).unwrap();
        drop(file);
        assert!(!fs::exists(&path).unwrap());
        fs::write(&path, "data").unwrap();
        let error = listen(&path, &settings(0)).err().unwrap();
        assert!(error.to_string().contains("no socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }

    #[test]
    fn a_group_is_a_number_or_a_name() {
        assert_eq!(group_id("17").unwrap(), 17);
        assert_eq!(group_id("root").unwrap(), 0);
        assert!(group_id("no such group").is_err());
    }
}
