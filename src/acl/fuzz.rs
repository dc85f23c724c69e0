//! Fuzz target: a file of users is read or refused, and what was read from it, once saved, is read
//! again as the same.

use super::file::parse;

/// Reads `data` as a file of users.
pub fn aclfile(data: &[u8]) {
    let Ok(users) = parse(data, "users.acl", false) else { return };
    let mut saved = Vec::new();
    for (name, user) in &users {
        saved.extend([&b"user "[..], name, b" ", &user.describe(), b"\n"].concat());
    }
    let again = parse(&saved, "users.acl", false);
    let again = again.unwrap_or_else(|error| panic!("{}", error.escape_ascii()));
    assert_eq!(users.len(), again.len(), "users are lost");
    for (name, user) in &users {
        let (before, after) = (user.describe(), again[name].describe());
        assert_eq!(before.escape_ascii().to_string(), after.escape_ascii().to_string());
    }
}
