//! A user: flags, passwords and selectors, and the rules that change them.

use super::password::PasswordHash;
use super::selector::{Denied, Selector, may_use_channel};
use crate::command::Command;
use crate::config::split_bytes;
use flagstone_wire::resp::Args;
use std::cell::OnceCell;
use subtle::Choice;

/// Maximum number of rules of one user: patterns, rules on commands, passwords, selectors.
const MAX_RULES: usize = 10_000;

/// Number of rules after which a user's size is looked at.
pub(super) const CHECKED_EVERY: usize = 256;

/// Maximum memory in bytes of one user's rules.
const MAX_RULE_BYTES: usize = 4 << 20;

/// The reason why a rule is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    Syntax,
    /// There is no such command or category.
    Unknown,
    KeysAfterAll,
    ChannelsAfterAll,
    NoSuchPassword,
    BadHash,
    FirstArgOfSubcommand,
    TooMany,
}

impl RuleError {
    pub fn text(self) -> &'static str {
        match self {
            Self::Syntax => "Syntax error",
            Self::Unknown => "Unknown command or category name in ACL",
            Self::KeysAfterAll => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and \
                does not have any effect. Try 'resetkeys' to start with an empty list of patterns"
            }
            Self::ChannelsAfterAll => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and \
                does not have any effect. Try 'resetchannels' to start with an empty list of \
                channels"
            }
            Self::NoSuchPassword => {
                "The password you are trying to remove from the user does not exist"
            }
            Self::BadHash => {
                "The password hash must be exactly 64 characters and contain only lowercase \
                hexadecimal characters"
            }
            Self::FirstArgOfSubcommand => "Allowing first-arg of a subcommand is not supported",
            Self::TooMany => "The user has too many rules, or too long ones",
        }
    }
}

/// A user's passwords and rights.
#[derive(Clone, Debug)]
pub struct User {
    /// True if clients may log in as this user.
    pub is_on: bool,
    /// True if every password is right.
    pub nopass: bool,
    /// True if RESTORE need not look into payloads; here it always does.
    pub skips_sanitizing: bool,
    pub(super) passwords: Vec<PasswordHash>,
    /// Its selectors; the first one is the user's own, without parentheses.
    selectors: Vec<Selector>,
}

impl User {
    /// Creates a user as SETUSER does before the rules: off, without rights. `all_channels`: the
    /// default of `acl-pubsub-default`.
    pub fn new(all_channels: bool) -> Self {
        Self {
            is_on: false,
            nopass: false,
            skips_sanitizing: false,
            passwords: Vec::new(),
            selectors: vec![Selector::new(all_channels)],
        }
    }

    /// Creates the default user, which has all rights.
    pub fn default_user(password: Option<&[u8]>) -> Self {
        let mut user = Self::new(true);
        user.is_on = true;
        for rule in ["allcommands", "allkeys"] {
            // Both are valid.
            let _ = user.selectors[0].apply(rule.as_bytes());
        }
        user.set_password(password);
        user
    }

    /// Replaces its passwords by one, or by `nopass`.
    pub(super) fn set_password(&mut self, password: Option<&[u8]>) {
        self.nopass = password.is_none();
        self.passwords = password.map(PasswordHash::of).into_iter().collect();
    }

    /// Returns its selectors; the first one is the user's own.
    pub fn selectors(&self) -> &[Selector] {
        &self.selectors
    }

    /// Returns the hexadecimal hashes of its passwords.
    pub fn password_hashes(&self) -> impl ExactSizeIterator<Item = String> {
        self.passwords.iter().map(PasswordHash::hex)
    }

    /// Applies a rule, which is a whole one (`merge_selectors`).
    ///
    /// # Errors
    /// The rule is refused. The user may have been changed in part.
    pub fn apply(&mut self, rule: &[u8], all_channels: bool) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if rule.is_empty() {
            return Ok(());
        }
        if is("on") || is("off") {
            self.is_on = is("on");
        } else if is("skip-sanitize-payload") || is("sanitize-payload") {
            self.skips_sanitizing = is("skip-sanitize-payload");
        } else if is("nopass") || is("resetpass") {
            self.nopass = is("nopass");
            self.passwords.clear();
        } else if is("clearselectors") {
            self.selectors.truncate(1);
        } else if is("reset") {
            *self = Self::new(all_channels);
        } else {
            match rule {
                [b'>' | b'#', ..] => {
                    let hash = hash_of(rule, b'>')?;
                    self.nopass = false;
                    if !self.passwords.contains(&hash) {
                        self.passwords.push(hash);
                    }
                }
                [b'<' | b'!', ..] => {
                    let hash = hash_of(rule, b'<')?;
                    let found = self.passwords.iter().position(|known| *known == hash);
                    self.passwords.remove(found.ok_or(RuleError::NoSuchPassword)?);
                }
                [b'(', inner @ .., b')'] => {
                    let mut selector = Selector::new(all_channels);
                    for rule in split_bytes(inner).ok_or(RuleError::Syntax)? {
                        selector.apply(&rule)?;
                    }
                    self.selectors.push(selector);
                }
                _ => self.selectors[0].apply(rule)?,
            }
        }
        Ok(())
    }

    /// Applies rules of a line or a SETUSER, in which selectors may extend over several arguments.
    ///
    /// # Errors
    /// A rule is invalid: the text of the error.
    pub fn apply_all(&mut self, rules: &[&[u8]], all_channels: bool) -> Result<(), Vec<u8>> {
        let rules = merge_selectors(rules).map_err(|at| {
            let start = rules.get(at).copied().unwrap_or_default();
            [&b"Unmatched parenthesis in acl selector starting at '"[..], start, b"'."].concat()
        })?;
        for (at, rule) in rules.iter().enumerate() {
            // To look at the size after each rule would take long.
            let is_due = at % CHECKED_EVERY == CHECKED_EVERY - 1 || at + 1 == rules.len();
            let applied = self.apply(rule, all_channels);
            let checked = applied.and_then(|()| if is_due { self.check_size() } else { Ok(()) });
            checked.map_err(|error| {
                let text = error.text().as_bytes();
                [&b"Error in ACL SETUSER modifier '"[..], rule, b"': ", text].concat()
            })?;
        }
        Ok(())
    }

    /// Returns the number of its rules, and their memory in bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        let own = (self.passwords.len() + self.selectors.len(), self.passwords.len() * 32);
        let all = self.selectors.iter().map(Selector::size);
        all.fold(own, |sum, size| (sum.0 + size.0, sum.1 + size.1))
    }

    /// Refuses more or longer rules than a user may have.
    pub(super) fn check_size(&self) -> Result<(), RuleError> {
        let (number, bytes) = self.size();
        if number > MAX_RULES || bytes > MAX_RULE_BYTES { Err(RuleError::TooMany) } else { Ok(()) }
    }

    /// Returns true if it may do everything.
    pub fn is_free(&self) -> bool {
        self.selectors.iter().any(Selector::is_free)
    }

    /// Returns true if clients need not log in as this user, provided it is the default one.
    pub fn is_open(&self) -> bool {
        self.is_on && self.nopass
    }

    /// Returns true if a client that gives this password may log in.
    pub(super) fn accepts(&self, given: &PasswordHash) -> bool {
        let is_right =
            self.passwords.iter().fold(Choice::from(0), |found, known| found | known.is(given));
        self.is_on && (self.nopass || bool::from(is_right))
    }

    /// Checks if it may run a command with these arguments.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check(&self, command: &Command, args: Args<'_>) -> Result<(), Denied> {
        let accesses = OnceCell::new();
        let mut shown = Denied::COMMAND;
        for selector in &self.selectors {
            match selector.check(command, args, &accesses) {
                Ok(()) => return Ok(()),
                Err(denied) => shown = shown.max(denied),
            }
        }
        Err(shown)
    }

    /// Returns true if it may run a command and read every key with it.
    pub fn reads_all(&self, command: &Command, args: Args<'_>) -> bool {
        let accesses = OnceCell::new();
        let may = |selector: &Selector| {
            selector.reads_all_keys() && selector.check(command, args, &accesses).is_ok()
        };
        self.selectors.iter().any(may)
    }

    /// Returns true if it may use every channel that another user may use.
    pub fn covers_channels(&self, other: &Self) -> bool {
        if self.selectors.iter().any(|selector| selector.all_channels) {
            return true;
        }
        let has = |name: &[u8]| {
            let mut known = self.selectors.iter().flat_map(|selector| &selector.channels);
            known.any(|known| **known == *name)
        };
        let covers = |selector: &Selector| {
            !selector.all_channels && selector.channels.iter().all(|name| has(name))
        };
        other.selectors.iter().all(covers)
    }

    /// Returns true if it may listen to a channel, or to the channels of a pattern.
    pub fn may_listen(&self, name: &[u8], is_pattern: bool) -> bool {
        self.selectors.iter().any(|selector| {
            selector.all_channels || may_use_channel(&selector.channels, name, is_pattern)
        })
    }
}

/// Returns the hash that a rule on passwords gives: the hash of a password behind `plain`, or the
/// hash itself.
fn hash_of(rule: &[u8], plain: u8) -> Result<PasswordHash, RuleError> {
    match rule[0] == plain {
        true => Ok(PasswordHash::of(&rule[1..])),
        false => PasswordHash::parse(&rule[1..]).ok_or(RuleError::BadHash),
    }
}

/// Joins the arguments of selectors, each of which begins with `(` and ends with `)`.
///
/// # Errors
/// The index of the argument whose parenthesis is not closed.
pub(super) fn merge_selectors(rules: &[&[u8]]) -> Result<Vec<Vec<u8>>, usize> {
    let mut merged: Vec<Vec<u8>> = Vec::with_capacity(rules.len());
    let mut open = None;
    for (at, rule) in rules.iter().enumerate() {
        match (open, merged.last_mut()) {
            (Some(_), Some(selector)) => {
                selector.push(b' ');
                selector.extend_from_slice(rule);
            }
            _ => {
                merged.push(rule.to_vec());
                open = rule.starts_with(b"(").then_some(at);
            }
        }
        if rule.ends_with(b")") {
            open = None;
        }
    }
    match open {
        None => Ok(merged),
        Some(at) => Err(at),
    }
}

/// Returns true if a text has blanks or zero bytes, which end a word where rules are written down.
pub fn has_blanks(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, 0 | b'\t'..=b'\r' | b' '))
}

#[cfg(test)]
#[path = "user_tests.rs"]
mod tests;
