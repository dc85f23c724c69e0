#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::*;

fn errors(text: &str) -> String {
    String::from_utf8(parse(text.as_bytes(), "u.acl", false).unwrap_err()).unwrap()
}

#[test]
fn what_is_saved_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = AclFile::new(directory.path(), "users.acl");
    let accounts = Accounts::new(Some(b"pw"), 1 << 20);
    let rules: Vec<&[u8]> = vec![b"on", b">x", b"~a'\"b", b"%R~r*", b"+@read", b"(~\xff* +set)"];
    accounts.change(b"\xffann", &rules, false).unwrap();
    file.save(&accounts).unwrap();
    let mode = fs::metadata(directory.path().join("users.acl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let users = file.read(None, false).unwrap();
    for account in accounts.all() {
        assert_eq!(users[&account.name].describe(), account.user().describe());
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no leftover");
    // Saving replaces the file, and its permissions.
    fs::set_permissions(directory.path().join("users.acl"), fs::Permissions::from_mode(0o644))
        .unwrap();
    file.save(&accounts).unwrap();
    let mode = fs::metadata(directory.path().join("users.acl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn without_a_line_the_default_user_keeps_the_configured_password() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("u.acl"), "\n user ann on  \r\n\n").unwrap();
    let file = AclFile::new(directory.path(), "u.acl");
    let users = file.read(Some(b"pw"), false).unwrap();
    assert_eq!(users.len(), 2);
    assert!(!users[&b"default"[..]].nopass);
    assert!(file.read(None, false).unwrap()[&b"default"[..]].nopass);
    let missing = AclFile::new(directory.path(), "none").read(None, false).unwrap_err();
    let expected = "Error loading ACLs, opening file 'none': No such file or directory";
    assert_eq!(String::from_utf8(missing).unwrap(), expected);
}

#[test]
fn all_errors_of_a_file_are_told_at_once_and_no_password() {
    let found = errors(
        "user a on +nothing >secret +less\nuser b %%\nnobody\nuser a\nuser x (+get\nuser\tc on\n",
    );
    assert_eq!(
        found,
        "u.acl:1: Error in applying operation '+nothing': Unknown command or category name in \
        ACL. u.acl:1: Error in applying operation '+less': Unknown command or category name in \
        ACL. u.acl:2: Syntax error. u.acl:3 should start with user keyword followed by the \
        username. WARNING: Duplicate user 'a' found on line 4. u.acl:5: Unmatched parenthesis in \
        selector definition.u.acl:6 should start with user keyword followed by the username. \
        WARNING: ACL errors detected, no change to the previously active ACL rules was performed"
    );
    assert!(errors("user a\tb on").contains("'u.acl:1: username 'a\tb' contains invalid"));
}
