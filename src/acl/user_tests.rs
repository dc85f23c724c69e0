#![allow(clippy::unwrap_used, reason = "a test may panic")]

use super::*;
use crate::acl::DenialReason;
use crate::command::registry;
use flagstone_wire::resp::OwnedArgs;

/// Returns a user made by rules.
fn user(rules: &str) -> User {
    let mut user = User::new(false);
    let rules: Vec<&[u8]> = rules.split(' ').map(str::as_bytes).collect();
    user.apply_all(&rules, false).unwrap();
    user
}

fn refusal(rules: &[&str]) -> String {
    let rules: Vec<&[u8]> = rules.iter().map(|rule| rule.as_bytes()).collect();
    let text = User::new(false).apply_all(&rules, false).unwrap_err();
    String::from_utf8(text).unwrap()
}

fn described(user: &User) -> String {
    String::from_utf8(user.describe()).unwrap()
}

/// Returns the reason and the argument of a denial; `None` if the command is allowed.
fn denied(user: &User, line: &str) -> Option<(DenialReason, usize)> {
    let args: OwnedArgs = line.split(' ').collect();
    let command = registry::resolve(args.args()).unwrap();
    user.check(command, args.args()).err().map(|denied| (denied.reason, denied.index))
}

fn may(user: &User, line: &str) -> bool {
    denied(user, line).is_none()
}

#[test]
fn a_description_makes_the_same_user() {
    for rules in [
        "on",
        "on nopass sanitize-payload ~* &* +@all",
        "off skip-sanitize-payload ~a* %R~b %W~c &news +@read -get +config|get",
        "on >one >two ~x -@all +@all -debug -config|set",
        "on (~a* +get) (%R~b* &x +@write -set) +ping",
        "on +select|0 +select|1 +debug|sleep",
        "on (~\"\\\"quoted\" +get)",
    ] {
        let first = user(rules);
        let text = described(&first);
        assert_eq!(described(&user(&text)), text, "{rules}");
    }
    assert_eq!(described(&user("on")), "on sanitize-payload resetchannels -@all");
    assert_eq!(described(&User::default_user(None)), "on nopass sanitize-payload ~* &* +@all");
}

#[test]
fn a_rule_replaces_those_that_it_makes_void() {
    let rules =
        |rules: &str| String::from_utf8(user(rules).selectors()[0].command_rules()).unwrap();
    assert_eq!(rules("+get +GET -get"), "-@all -get");
    assert_eq!(rules("+config|get +config|set -config"), "-@all -config");
    assert_eq!(rules("-config +config|GET"), "-@all -config +config|get");
    assert_eq!(rules("+@read +get -@READ"), "-@all +get -@read");
    assert_eq!(rules("+@all -get nocommands +set"), "-@all +set");
}

#[test]
fn commands_are_allowed_by_name_category_and_first_argument() {
    let some = user("~* +@read -mget +config|get +select|0");
    assert!(may(&some, "get k") && may(&some, "GET k"));
    assert_eq!(denied(&some, "mget k"), Some((DenialReason::Command, 0)));
    assert_eq!(denied(&some, "set k v"), Some((DenialReason::Command, 0)));
    assert!(may(&some, "config get x") && !may(&some, "config set x y"));
    assert!(may(&some, "select 0") && !may(&some, "select 1"));
    // These never need a right.
    for always in ["auth x", "hello", "quit", "reset"] {
        assert!(may(&some, always), "{always}");
    }
    let all = user("~* +@all -config");
    assert!(may(&all, "set k v") && !may(&all, "config get x") && !all.is_free());
    assert!(user("~* &* +@all").is_free() && !user("~* +@all").is_free());
    // Forbidding and allowing again does not bring the flag back, but the command.
    assert!(may(&user("~* +@all -get +get"), "get k"));
    assert!(!may(&user("+select|0 -select ~*"), "select 0"));
}

#[test]
fn keys_are_allowed_by_pattern_and_access() {
    let some = user("+@all ~both:* %R~read:* %W~write:*");
    let key = |at| Some((DenialReason::Key, at));
    assert!(may(&some, "set both:1 v") && may(&some, "get both:1"));
    assert!(may(&some, "get read:1") && may(&some, "set write:1 v"));
    assert_eq!(denied(&some, "set read:1 v"), key(1));
    assert_eq!(denied(&some, "get write:1"), key(1));
    assert_eq!(denied(&some, "set write:1 v get"), key(1));
    assert_eq!(denied(&some, "getset write:1 v"), key(1));
    assert!(may(&some, "copy read:1 write:1"));
    assert_eq!(denied(&some, "copy write:1 read:1"), key(1));
    assert_eq!(denied(&some, "rename read:1 both:1"), key(1));
    assert_eq!(denied(&some, "mset both:1 v other v"), key(3));
    assert!(may(&some, "bitfield read:1 get u8 0"));
    assert_eq!(denied(&some, "bitfield read:1 set u8 0 1"), key(1));
    // Without access to the value, any pattern will do.
    assert!(may(&some, "exists write:1") && may(&some, "type read:1"));
    assert_eq!(denied(&some, "exists other"), key(1));
    // Of two STOREs the last one counts, and both are checked.
    assert_eq!(denied(&some, "georadius read:1 0 0 1 km store both:1 store x"), key(9));
    assert_eq!(denied(&some, "pfmerge x"), key(1));
    assert_eq!(denied(&some, "eval x 1 other"), key(3));
    assert_eq!(denied(&some, "sort read:1 store other"), key(3));
}

#[test]
fn channels_are_allowed_by_pattern_and_patterns_by_text() {
    let some = user("+@all ~* &news:* &exact");
    let channel = |at| Some((DenialReason::Channel, at));
    assert!(may(&some, "publish news:1 m") && may(&some, "subscribe news:1 exact"));
    assert_eq!(denied(&some, "subscribe news:1 other"), channel(2));
    assert_eq!(denied(&some, "spublish other m"), channel(1));
    assert!(may(&some, "psubscribe news:*"));
    assert_eq!(denied(&some, "psubscribe news:1"), channel(1));
    assert_eq!(denied(&some, "psubscribe *"), channel(1));
    assert!(may(&some, "unsubscribe other") && may(&some, "punsubscribe *"));
}

#[test]
fn one_selector_has_to_allow_all_of_a_command() {
    let some = user("+get ~a* (+set ~b*) (+mget ~c* &x)");
    assert!(may(&some, "get a") && may(&some, "set b v") && may(&some, "mget c c1"));
    assert_eq!(denied(&some, "get b"), Some((DenialReason::Key, 1)));
    assert_eq!(denied(&some, "set a v"), Some((DenialReason::Key, 1)));
    assert_eq!(denied(&some, "del a"), Some((DenialReason::Command, 0)));
    // If several selectors refuse, the reason with the last key is shown.
    let two = user("+mget ~a (+mget ~b)");
    assert_eq!(denied(&two, "mget a b"), Some((DenialReason::Key, 2)));
}

#[test]
fn every_key_may_be_read_only_with_a_pattern_for_all() {
    let reads_all = |rules: &str| {
        let args: OwnedArgs = "sort k by w_*".split(' ').collect();
        let command = registry::resolve(args.args()).unwrap();
        user(rules).reads_all(command, args.args())
    };
    assert!(reads_all("+@all ~*") && reads_all("+sort %R~*") && reads_all("(+sort %RW~*)"));
    assert!(!reads_all("+@all ~k ~w_*") && !reads_all("+@all %W~* ~k") && !reads_all("%R~*"));
}

#[test]
fn passwords_are_hashed_and_removed() {
    let hash = PasswordHash::of(b"one").hex();
    let mut some = user(&format!("on >two #{hash} >one"));
    assert_eq!(some.password_hashes().len(), 2);
    assert!(some.accepts(&PasswordHash::of(b"one")) && !some.accepts(&PasswordHash::of(b"x")));
    assert!(!described(&some).contains("two"));
    some.apply(b"<one", false).unwrap();
    assert!(!some.accepts(&PasswordHash::of(b"one")) && some.accepts(&PasswordHash::of(b"two")));
    assert_eq!(some.apply(b"<one", false), Err(RuleError::NoSuchPassword));
    some.apply(b"off", false).unwrap();
    assert!(!some.accepts(&PasswordHash::of(b"two")));
    some.apply(b"on", false).unwrap();
    some.apply(b"nopass", false).unwrap();
    assert!(some.accepts(&PasswordHash::of(b"anything")) && some.is_open());
    some.apply(b">new\0line\n", false).unwrap();
    assert!(some.accepts(&PasswordHash::of(b"new\0line\n")) && !some.is_open());
    some.apply(b"resetpass", false).unwrap();
    assert!(!some.accepts(&PasswordHash::of(b"new\0line\n")));
}

#[test]
fn reset_leaves_nothing_but_the_default_of_channels() {
    let mut some = user("on >x ~a &b +@all (+get ~*) skip-sanitize-payload");
    some.apply(b"reset", true).unwrap();
    assert_eq!(described(&some), "off sanitize-payload &* -@all");
    some.apply(b"RESET", false).unwrap();
    assert_eq!(described(&some), described(&User::new(false)));
}

#[test]
fn wrong_rules_are_refused_with_the_reference_s_texts() {
    let syntax = |rule: &str| format!("Error in ACL SETUSER modifier '{rule}': Syntax error");
    for rule in [
        "nonsense",
        "%~x",
        "%RX~x",
        "%RR~x",
        "%",
        "%Rx",
        "~a b",
        "&a\tb",
        "+debug|",
        "on\0",
        "(nonsense)",
        "(+get (x))",
        "+select|0 +@all",
        "(~\"a)",
        "?",
    ] {
        let found = refusal(&[rule]);
        assert!(found.ends_with("Syntax error"), "{rule:?}: {found}");
    }
    assert_eq!(refusal(&["on", "foo"]), syntax("foo"));
    let unknown = "Unknown command or category name in ACL";
    for rule in [
        "+nothing",
        "-nothing",
        "+@nothing",
        "-@nothing",
        "+config|nothing",
        "+x|y",
        "-config|nothing",
        "+get\0",
    ] {
        assert!(refusal(&[rule]).ends_with(unknown), "{rule:?}");
    }
    assert!(
        refusal(&["+config|get|x"])
            .ends_with("Allowing first-arg of a subcommand is not supported")
    );
    assert!(refusal(&["~*", "~x"]).contains("Try 'resetkeys' to start"));
    assert!(refusal(&["&*", "&x"]).contains("Try 'resetchannels' to start"));
    assert!(refusal(&["#abc"]).contains("exactly 64 characters"));
    assert!(refusal(&["!abc"]).contains("exactly 64 characters"));
    assert!(refusal(&["<abc"]).contains("trying to remove from the user does not exist"));
    assert_eq!(
        refusal(&["+get", "(+set", "~x"]),
        "Unmatched parenthesis in acl selector starting at '(+set'."
    );
}

#[test]
fn huge_rules_are_refused_in_bounded_time() {
    let too_many = "The user has too many rules, or too long ones";
    let patterns: Vec<String> = (0..=MAX_RULES).map(|n| format!("~{n}")).collect();
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    assert!(refusal(&patterns).ends_with(too_many));
    let long = format!("~{}", "x".repeat(MAX_RULE_BYTES));
    assert!(refusal(&[&long]).ends_with(too_many));
    let selectors = vec!["(+@all)"; MAX_RULES];
    assert!(refusal(&selectors).ends_with(too_many));
    assert_eq!(user(&patterns[..5000].join(" ")).size().0, 5001);
}
