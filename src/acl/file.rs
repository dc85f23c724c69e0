//! The file of users (`aclfile`): a line `user name rule …` for each.

use super::accounts::Accounts;
use super::user::{CHECKED_EVERY, RuleError, User, has_blanks, merge_selectors};
use crate::open_files::open_regular;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Maximum size of a file in bytes.
const MAX_FILE: u64 = 1 << 30;

/// Permissions of a file: it has hashes of passwords.
const FILE_MODE: u32 = 0o600;

const UNCHANGED: &str =
    "WARNING: ACL errors detected, no change to the previously active ACL rules was performed";

/// The file of users.
#[derive(Clone, Debug)]
pub struct AclFile {
    path: PathBuf,
    /// Path as it was configured, for errors.
    shown: String,
}

impl AclFile {
    /// Returns the file of a path, which may be relative to the data directory.
    pub fn new(directory: &Path, path: &str) -> Self {
        Self { path: directory.join(path), shown: path.to_owned() }
    }

    /// Reads the users of the file. If it does not name the default user, that one has all rights,
    /// and this password.
    ///
    /// # Errors
    /// All errors of the file in one line.
    pub fn read(
        &self,
        password: Option<&[u8]>,
        all_channels: bool,
    ) -> Result<BTreeMap<Box<[u8]>, User>, Vec<u8>> {
        let text = self.text().map_err(|error| {
            let error = error.to_string();
            let reason = error.split(" (os error").next().unwrap_or(&error);
            let shown = &self.shown;
            format!("Error loading ACLs, opening file '{shown}': {reason}").into_bytes()
        })?;
        let mut users = parse(&text, &self.shown, all_channels)?;
        self.doubt(&text, users.contains_key(&b"default"[..]) || password.is_some());
        users.entry((*b"default").into()).or_insert_with(|| User::default_user(password));
        Ok(users)
    }

    /// Warns of a file that is right, and perhaps not whole: its users may have more rights than they
    /// should.
    fn doubt(&self, text: &[u8], is_default_limited: bool) {
        let path = self.path.display();
        if text.last().is_some_and(|byte| *byte != b'\n') {
            tracing::warn!("the last line of the aclfile {path} has no end: it may be cut off");
        }
        if !is_default_limited {
            tracing::warn!(
                "the aclfile {path} does not name the default user, which therefore has all rights \
                without a password"
            );
        }
    }

    fn text(&self) -> io::Result<Vec<u8>> {
        let file = open_regular(&self.path)?;
        let metadata = file.metadata()?;
        if metadata.permissions().mode() & 0o077 != 0 {
            tracing::warn!(
                "other users of this machine may read the aclfile {}, which has hashes of \
                passwords; its mode should be 0600",
                self.path.display()
            );
        }
        let mut text = Vec::new();
        file.take(MAX_FILE + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MAX_FILE {
            return Err(io::Error::other("the file is too large"));
        }
        Ok(text)
    }

    /// Replaces the file by the present users: written beside it, synced, renamed, its directory
    /// synced.
    ///
    /// # Errors
    /// Errors of writing. The old file is there still.
    pub fn save(&self, accounts: &Accounts) -> io::Result<()> {
        let mut text = Vec::new();
        for account in accounts.all() {
            text.extend_from_slice(b"user ");
            text.extend_from_slice(&account.name);
            text.push(b' ');
            text.extend_from_slice(&account.user().describe());
            text.push(b'\n');
        }
        let mut temporary = self.path.as_os_str().to_owned();
        temporary.push(format!(".tmp-{}", std::process::id()));
        let temporary = Path::new(&temporary);
        let written = self.replace(temporary, &text);
        if written.is_err() {
            // Only a leftover remains; the earlier error is the one to report.
            let _ = fs::remove_file(temporary);
        }
        written
    }

    fn replace(&self, temporary: &Path, text: &[u8]) -> io::Result<()> {
        // A leftover may have other permissions, and be open to others.
        match fs::remove_file(temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(temporary)?;
        file.write_all(text)?;
        file.sync_all()?;
        fs::rename(temporary, &self.path)?;
        File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
    }
}

/// Parses the text of a file.
pub(super) fn parse(
    text: &[u8],
    shown: &str,
    all_channels: bool,
) -> Result<BTreeMap<Box<[u8]>, User>, Vec<u8>> {
    let mut users: BTreeMap<Box<[u8]>, User> = BTreeMap::new();
    let mut errors: Vec<u8> = Vec::new();
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let place = format!("{shown}:{}", at + 1);
        let mut fail = |parts: &[&[u8]]| errors.extend_from_slice(&parts.concat());
        let line = trim(line, b" \t\r");
        if line.is_empty() {
            continue;
        }
        let mut words = line.split(|byte| *byte == b' ');
        let (Some(b"user"), Some(name)) = (words.next(), words.next()) else {
            let text = " should start with user keyword followed by the username. ";
            fail(&[place.as_bytes(), text.as_bytes()]);
            continue;
        };
        if has_blanks(name) {
            let place = place.as_bytes();
            fail(&[b"'", place, b": username '", name, b"' contains invalid characters. "]);
            continue;
        }
        if users.contains_key(name) {
            let number = format!("' found on line {}. ", at + 1);
            fail(&[b"WARNING: Duplicate user '", name, number.as_bytes()]);
            continue;
        }
        let mut user = User::new(all_channels);
        let words: Vec<&[u8]> = words.collect();
        match merge_selectors(&words) {
            Ok(rules) => apply(&mut user, &rules, all_channels, &place, fail),
            Err(_) => {
                fail(&[place.as_bytes(), b": Unmatched parenthesis in selector definition."]);
            }
        }
        users.insert(name.into(), user);
    }
    if errors.is_empty() {
        return Ok(users);
    }
    errors.extend_from_slice(UNCHANGED.as_bytes());
    Err(errors)
}

/// Applies the rules of a line. Of errors that may show secrets, only the first one is told, and
/// without the rule.
fn apply(
    user: &mut User,
    rules: &[Vec<u8>],
    all_channels: bool,
    place: &str,
    mut fail: impl FnMut(&[&[u8]]),
) {
    let mut has_failed = false;
    for (at, rule) in rules.iter().enumerate() {
        let rule = trim(rule, b"\t\r");
        let place = place.as_bytes();
        let is_due = at % CHECKED_EVERY == CHECKED_EVERY - 1 || at + 1 == rules.len();
        let applied = user.apply(rule, all_channels);
        match applied.and_then(|()| if is_due { user.check_size() } else { Ok(()) }) {
            Ok(()) => {}
            Err(error @ RuleError::Unknown) => {
                let text = error.text().as_bytes();
                fail(&[place, b": Error in applying operation '", rule, b"': ", text, b". "]);
            }
            Err(error) if !has_failed => {
                has_failed = true;
                fail(&[place, b": ", error.text().as_bytes(), b". "]);
            }
            Err(_) => {}
        }
    }
}

/// Removes these bytes at both ends.
fn trim<'a>(mut text: &'a [u8], bytes: &[u8]) -> &'a [u8] {
    while let [first, rest @ ..] = text
        && bytes.contains(first)
    {
        text = rest;
    }
    while let [rest @ .., last] = text
        && bytes.contains(last)
    {
        text = rest;
    }
    text
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
