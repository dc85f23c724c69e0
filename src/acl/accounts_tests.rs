#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::*;
use crate::command::registry;
use flagstone_wire::resp::OwnedArgs;

const ROOM: usize = 1 << 20;

fn set(accounts: &Accounts, name: &str, rules: &str) -> Option<AccountChange> {
    let rules: Vec<&[u8]> = rules.split(' ').map(str::as_bytes).collect();
    accounts.change(name.as_bytes(), &rules, false).unwrap()
}

fn names(accounts: &Accounts) -> Vec<String> {
    accounts.all().iter().map(|account| account.shown_name().into_owned()).collect()
}

/// Returns true if the account with a number may run `get k`.
fn may_get(accounts: &Accounts, number: u64) -> bool {
    let args: OwnedArgs = "get k".split(' ').collect();
    let command = registry::resolve(args.args()).unwrap();
    accounts.check(number, command, args.args()).is_ok()
}

#[test]
fn the_default_account_is_free_and_needs_a_password_if_there_is_one() {
    let accounts = Accounts::new(None, ROOM);
    assert!(accounts.default_account().is_free() && !accounts.needs_password());
    assert_eq!(accounts.default_account().checked_number(), 0);
    accounts.set_default_password(Some(b"pw"));
    assert!(accounts.default_account().is_free() && accounts.needs_password());
    assert!(accounts.log_in(b"default", b"pw").is_some());
    assert!(accounts.log_in(b"default", b"no").is_none());
    accounts.set_default_password(None);
    assert!(!accounts.needs_password());
    set(&accounts, "default", "off");
    assert!(accounts.needs_password() && accounts.log_in(b"default", b"").is_none());
}

#[test]
fn a_change_holds_for_who_is_logged_in_and_a_removal_takes_all_rights() {
    let accounts = Accounts::new(None, ROOM);
    assert!(set(&accounts, "ann", "on >pw +get ~k").is_none());
    let ann = accounts.log_in(b"ann", b"pw").unwrap();
    assert!(may_get(&accounts, ann.number));
    let change = set(&accounts, "ann", "-get").unwrap();
    assert!(!may_get(&accounts, ann.number));
    assert_eq!(change.account.number, ann.number);
    set(&accounts, "ann", "+@all allkeys allchannels");
    assert!(ann.is_free() && ann.checked_number() == 0);
    let removed = accounts.remove([&b"ann"[..], b"default", b"nobody"].into_iter());
    assert_eq!(removed.len(), 1);
    assert!(!ann.is_free() && !may_get(&accounts, ann.number));
    assert!(accounts.log_in(b"ann", b"pw").is_none());
    // An account of the same name is another one.
    set(&accounts, "ann", "on nopass +@all ~*");
    assert!(!may_get(&accounts, ann.number));
    assert_ne!(accounts.get(b"ann").unwrap().number, ann.number);
}

#[test]
fn a_refused_change_changes_nothing() {
    let accounts = Accounts::new(None, ROOM);
    set(&accounts, "ann", "on +get ~k");
    let rules: Vec<&[u8]> = vec![b"+@all", b"nonsense"];
    assert!(accounts.change(b"ann", &rules, false).is_err());
    assert!(accounts.change(b"bob", &rules, false).is_err());
    assert_eq!(names(&accounts), ["ann", "default"]);
    assert_eq!(
        accounts.get(b"ann").unwrap().user().describe(),
        b"on sanitize-payload ~k resetchannels -@all +get"
    );
    for name in [&b"a b"[..], b"a\0", b"a\n"] {
        assert_eq!(accounts.change(name, &[], false).unwrap_err(), BAD_NAME);
    }
}

#[test]
fn accounts_take_bounded_memory() {
    let accounts = Accounts::new(None, 20_000);
    let mut made = 0;
    while accounts.change(format!("user{made}").as_bytes(), &[b"on", b"~x"], false).is_ok() {
        made += 1;
    }
    assert!((5..40).contains(&made), "{made}");
    let long = format!("~{}", "x".repeat(20_000));
    assert_eq!(accounts.change(b"user0", &[long.as_bytes()], false).unwrap_err(), NO_ROOM);
    // Removed accounts make room again.
    accounts.remove([&b"user0"[..], b"user1"].into_iter());
    assert!(accounts.change(b"other", &[b"on", b"~x"], false).is_ok());
    let too_many = (0..100).map(|n: u32| (n.to_string().into_bytes().into(), User::new(false)));
    let before = names(&accounts);
    assert_eq!(accounts.exchange(too_many.collect()).unwrap_err(), NO_ROOM);
    assert_eq!(names(&accounts), before);
}

#[test]
fn an_exchange_removes_changes_and_creates() {
    let accounts = Accounts::new(None, ROOM);
    set(&accounts, "ann", "on +get ~k");
    set(&accounts, "bob", "on +get ~k");
    let bob = accounts.get(b"bob").unwrap();
    let mut users = BTreeMap::new();
    users.insert((*b"bob").into(), User::new(false));
    users.insert((*b"eve").into(), User::new(false));
    users.insert((*b"default").into(), User::default_user(Some(b"pw")));
    let ExchangedAccounts { removed, changes } = accounts.exchange(users).unwrap();
    assert_eq!(removed.len(), 1);
    assert_eq!(changes.len(), 2);
    assert_eq!(names(&accounts), ["bob", "default", "eve"]);
    assert!(!may_get(&accounts, bob.number) && accounts.needs_password());
}
