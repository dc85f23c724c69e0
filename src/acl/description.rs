//! Users as text: the rules that make them, as ACL LIST, files and GETUSER show them.

use super::selector::{CommandRule, KeyPattern, KeyRights, Selector};
use super::user::User;
use crate::config::quote_into;

impl Selector {
    /// Returns the rules on commands, beginning with all or none, separated by spaces.
    pub fn command_rules(&self) -> Vec<u8> {
        self.command_words().collect::<Vec<_>>().join(&b' ')
    }

    fn command_words(&self) -> impl Iterator<Item = Vec<u8>> {
        let first: &[u8] = if self.from_all { b"+@all" } else { b"-@all" };
        let shown = |rule: &CommandRule| {
            let sign: &[u8] = if rule.allows { b"+" } else { b"-" };
            [sign, &rule.text].concat()
        };
        std::iter::once(first.to_vec()).chain(self.rules.iter().map(shown))
    }

    /// Returns the patterns of keys, separated by spaces.
    pub fn key_patterns(&self) -> Vec<u8> {
        match self.all_keys {
            true => b"~*".to_vec(),
            false => self.keys.iter().map(shown_keys).collect::<Vec<_>>().join(&b' '),
        }
    }

    /// Returns the patterns of channels, separated by spaces.
    pub fn channel_patterns(&self) -> Vec<u8> {
        match self.all_channels {
            true => b"&*".to_vec(),
            false => self
                .channels
                .iter()
                .map(|name| [b"&", &**name].concat())
                .collect::<Vec<_>>()
                .join(&b' '),
        }
    }

    /// Returns its rules.
    fn words(&self) -> Vec<Vec<u8>> {
        let mut words = Vec::new();
        match self.all_keys {
            true => words.push(b"~*".to_vec()),
            false => words.extend(self.keys.iter().map(shown_keys)),
        }
        match self.all_channels {
            true => words.push(b"&*".to_vec()),
            false => {
                words.push(b"resetchannels".to_vec());
                words.extend(self.channels.iter().map(|pattern| [b"&", &**pattern].concat()));
            }
        }
        words.extend(self.command_words());
        words
    }
}

fn shown_keys(keys: &KeyPattern) -> Vec<u8> {
    let sign: &[u8] = match keys.rights {
        KeyRights { reads: true, writes: false } => b"%R~",
        KeyRights { reads: false, writes: true } => b"%W~",
        _ => b"~",
    };
    [sign, &keys.pattern].concat()
}

impl User {
    /// Returns the names of its flags.
    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.is_on { "on" } else { "off" }];
        flags.extend(self.nopass.then_some("nopass"));
        flags.push(match self.skips_sanitizing {
            true => "skip-sanitize-payload",
            false => "sanitize-payload",
        });
        flags
    }

    /// Returns the rules that make it, separated by spaces.
    pub fn describe(&self) -> Vec<u8> {
        let mut words: Vec<Vec<u8>> =
            self.flags().into_iter().map(|flag| flag.as_bytes().to_vec()).collect();
        words.extend(self.password_hashes().map(|hash| format!("#{hash}").into_bytes()));
        if let [own, others @ ..] = self.selectors() {
            words.extend(own.words());
            words.extend(others.iter().map(|selector| {
                // The rules of a selector are split as lines are.
                let words: Vec<_> =
                    selector.words().into_iter().map(quoted_for_splitting).collect();
                [b"(", &words.join(&b' ')[..], b")"].concat()
            }));
        }
        words.join(&b' ')
    }
}

/// Quotes a word of which a split would make something else.
fn quoted_for_splitting(word: Vec<u8>) -> Vec<u8> {
    if word.iter().all(|byte| !matches!(byte, b'"' | b'\'' | b'\\')) {
        return word;
    }
    let mut quoted = String::new();
    quote_into(&mut quoted, &word);
    quoted.into_bytes()
}

/// Returns a user's name and rules as a line of the configuration has them: words that a reader
/// would take for others are quoted.
pub fn quoted_rules(name: &[u8], user: &User) -> String {
    let rules = user.describe();
    let words = std::iter::once(name).chain(rules.split(|byte| *byte == b' '));
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
        match str::from_utf8(word) {
            Ok(plain) if !word.is_empty() && word.iter().all(is_plain) => line.push_str(plain),
            _ => quote_into(&mut line, word),
        }
    }
    line
}
