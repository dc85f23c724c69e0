//! A selector: a set of commands with the keys and channels that they may use.

use super::user::{RuleError, has_blanks};
use crate::command::{Command, registry};
use flagstone_commands::{Categories, Channels, KeyAccess, KeyFlags, flag, key};
use flagstone_wire::glob;
use flagstone_wire::resp::Args;
use smallvec::{SmallVec, smallvec};
use std::cell::OnceCell;

/// The reason why an access is denied. Of several, the greatest is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DenialReason {
    Command,
    Key,
    /// A wrong password, or no such user.
    Auth,
    Channel,
}

/// A command that a user may not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Denied {
    pub reason: DenialReason,
    /// Index of the key or channel among the arguments; 0: the command itself.
    pub index: usize,
}

impl Denied {
    pub(super) const COMMAND: Self = Self { reason: DenialReason::Command, index: 0 };

    /// Returns the reason as text.
    pub fn text(self, user: &[u8], command: &Command) -> Vec<u8> {
        match self.reason {
            DenialReason::Command | DenialReason::Auth => [
                &b"User "[..],
                user,
                b" has no permissions to run the '",
                command.full_name.as_bytes(),
                b"' command",
            ]
            .concat(),
            DenialReason::Key => b"No permissions to access a key".to_vec(),
            DenialReason::Channel => b"No permissions to access a channel".to_vec(),
        }
    }

    /// Returns the error of a queued command that was allowed when it was queued.
    pub fn text_at_exec(self) -> String {
        let reason = match self.reason {
            DenialReason::Command => "no permission to execute the command or subcommand",
            DenialReason::Key => "no permission to touch the specified keys",
            DenialReason::Channel => {
                "no permission to access one of the channels used as arguments"
            }
            DenialReason::Auth => "no permission",
        };
        format!(
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the \
            EXEC call. This command is no longer allowed for the following reason: {reason}"
        )
    }

    /// Returns the reason as text that names the key or channel.
    pub fn detailed_text(self, user: &[u8], command: &Command, args: Args<'_>) -> Vec<u8> {
        let kind = match self.reason {
            DenialReason::Command | DenialReason::Auth => return self.text(user, command),
            DenialReason::Key => "key",
            DenialReason::Channel => "channel",
        };
        let name = args.get(self.index).unwrap_or_default();
        let end = [b"' ", kind.as_bytes()].concat();
        [&b"User "[..], user, b" has no permissions to access the '", name, &end].concat()
    }
}

/// Kinds of access that a key pattern allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyRights {
    pub(super) reads: bool,
    pub(super) writes: bool,
}

impl KeyRights {
    pub(super) const ALL: Self = Self { reads: true, writes: true };

    /// Returns the rights that an access takes.
    fn wanted(flags: KeyFlags) -> Self {
        Self {
            reads: flags.contains(key!(ACCESS)),
            writes: flags.intersects(key!(INSERT | DELETE | UPDATE)),
        }
    }

    fn covers(self, wanted: Self) -> bool {
        self.reads >= wanted.reads && self.writes >= wanted.writes
    }
}

/// A pattern of keys.
#[derive(Clone, Debug)]
pub(super) struct KeyPattern {
    pub(super) rights: KeyRights,
    pub(super) pattern: Box<[u8]>,
}

/// A rule on commands as it was given, in lower case: `+get`, `-@write`, `+config|get`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandRule {
    pub(super) allows: bool,
    pub(super) text: Box<[u8]>,
}

/// Commands that are allowed only with one of some first arguments.
#[derive(Clone, Debug)]
struct FirstArgs {
    command: usize,
    words: Vec<Box<[u8]>>,
}

/// Commands, and the keys and channels that they may use. A user may run a command if one of its
/// selectors allows all of it.
#[derive(Clone, Debug)]
pub struct Selector {
    /// Bits of the allowed commands by [`Command::id`].
    commands: SmallVec<[u64; 8]>,
    /// True if every command is allowed.
    pub(super) all_commands: bool,
    /// True if the rules begin with all commands, not with none.
    pub(super) from_all: bool,
    first_args: Vec<FirstArgs>,
    pub(super) rules: Vec<CommandRule>,
    pub(super) all_keys: bool,
    pub(super) keys: Vec<KeyPattern>,
    pub(super) all_channels: bool,
    pub(super) channels: Vec<Box<[u8]>>,
}

impl Selector {
    /// Creates a selector without rights, except for all channels if those are new users' default.
    pub(super) fn new(all_channels: bool) -> Self {
        Self {
            commands: smallvec![0; registry::count().div_ceil(64)],
            all_commands: false,
            from_all: false,
            first_args: Vec::new(),
            rules: Vec::new(),
            all_keys: false,
            keys: Vec::new(),
            all_channels,
            channels: Vec::new(),
        }
    }

    /// Returns true if it allows everything.
    pub(super) fn is_free(&self) -> bool {
        self.all_commands && self.all_keys && self.all_channels
    }

    /// Applies a rule.
    pub(super) fn apply(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if is("allkeys") || is("~*") {
            self.all_keys = true;
            self.keys.clear();
        } else if is("resetkeys") {
            self.all_keys = false;
            self.keys.clear();
        } else if is("allchannels") || is("&*") {
            self.all_channels = true;
            self.channels.clear();
        } else if is("resetchannels") {
            self.all_channels = false;
            self.channels.clear();
        } else if is("allcommands") || is("+@all") {
            self.set_all(true);
        } else if is("nocommands") || is("-@all") {
            self.set_all(false);
        } else {
            return match rule {
                [b'~', pattern @ ..] => self.add_keys(KeyRights::ALL, pattern),
                [b'%', ..] if self.all_keys => Err(RuleError::KeysAfterAll),
                [b'%', rest @ ..] => {
                    let (rights, pattern) = parse_rights(rest)?;
                    self.add_keys(rights, pattern)
                }
                [b'&', pattern @ ..] => self.add_channels(pattern),
                [b'+', b'@', category @ ..] => self.set_category(category, true),
                [b'-', b'@', category @ ..] => self.set_category(category, false),
                [b'+', name @ ..] => self.allow(name),
                [b'-', name @ ..] => self.forbid(name),
                _ => Err(RuleError::Syntax),
            };
        }
        Ok(())
    }

    fn set_all(&mut self, allows: bool) {
        self.commands.fill(if allows { u64::MAX } else { 0 });
        (self.all_commands, self.from_all) = (allows, allows);
        self.rules.clear();
        self.first_args.clear();
    }

    fn add_keys(&mut self, rights: KeyRights, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::KeysAfterAll);
        }
        if has_blanks(pattern) {
            return Err(RuleError::Syntax);
        }
        match self.keys.iter_mut().find(|known| &*known.pattern == pattern) {
            Some(known) => {
                known.rights.reads |= rights.reads;
                known.rights.writes |= rights.writes;
            }
            None => self.keys.push(KeyPattern { rights, pattern: pattern.into() }),
        }
        Ok(())
    }

    fn add_channels(&mut self, pattern: &[u8]) -> Result<(), RuleError> {
        if self.all_channels {
            return Err(RuleError::ChannelsAfterAll);
        }
        if has_blanks(pattern) {
            return Err(RuleError::Syntax);
        }
        if self.channels.iter().all(|known| &**known != pattern) {
            self.channels.push(pattern.into());
        }
        Ok(())
    }

    fn set_category(&mut self, name: &[u8], allows: bool) -> Result<(), RuleError> {
        let category = category(name).ok_or(RuleError::Unknown)?;
        self.note_rule([b"@", name].concat(), allows);
        let belongs = |command: &&Command| command.spec.categories().intersects(category);
        registry::every().filter(belongs).for_each(|command| self.set_command(command, allows));
        Ok(())
    }

    /// `+command`, `+command|subcommand`, or `+command|first-argument`.
    fn allow(&mut self, name: &[u8]) -> Result<(), RuleError> {
        let Some(at) = name.iter().rposition(|byte| *byte == b'|') else {
            let command = registry::of_rule(name).ok_or(RuleError::Unknown)?;
            self.set_command(command, true);
            self.note_rule(command.full_name.into(), true);
            return Ok(());
        };
        let (parent, word) = (&name[..at], &name[at + 1..]);
        let command = registry::of_rule(parent).ok_or(RuleError::Unknown)?;
        if parent.contains(&b'|') {
            return Err(RuleError::FirstArgOfSubcommand);
        }
        // Blanks would end the rule where it is written down.
        if word.is_empty() || has_blanks(word) {
            return Err(RuleError::Syntax);
        }
        if command.subcommands.is_empty() {
            self.add_first_arg(command.id, word);
        } else {
            let sub = command.subcommand(word).ok_or(RuleError::Unknown)?;
            self.set_command(sub, true);
        }
        self.note_rule(name.to_vec(), true);
        Ok(())
    }

    /// `-command`, or `-command|subcommand`.
    fn forbid(&mut self, name: &[u8]) -> Result<(), RuleError> {
        let command = registry::of_rule(name).ok_or(RuleError::Unknown)?;
        self.set_command(command, false);
        self.note_rule(command.full_name.into(), false);
        Ok(())
    }

    fn add_first_arg(&mut self, command: usize, word: &[u8]) {
        tracing::warn!(
            "an ACL rule allows a command with one first argument only, which is deprecated"
        );
        let word: Box<[u8]> = word.to_ascii_lowercase().into();
        match self.first_args.iter_mut().find(|known| known.command == command) {
            Some(known) if known.words.contains(&word) => {}
            Some(known) => known.words.push(word),
            None => self.first_args.push(FirstArgs { command, words: vec![word] }),
        }
    }

    /// Allows or forbids a command with its subcommands.
    fn set_command(&mut self, command: &Command, allows: bool) {
        self.first_args.retain(|known| known.command != command.id);
        for id in std::iter::once(command.id).chain(command.subcommands.iter().map(|sub| sub.id)) {
            let (word, bit) = (&mut self.commands[id / 64], 1 << (id % 64));
            if allows {
                *word |= bit;
            } else {
                *word &= !bit;
                self.all_commands = false;
            }
        }
    }

    /// Adds a rule to those that are shown, in place of those that it makes void.
    fn note_rule(&mut self, text: Vec<u8>, allows: bool) {
        let text: Box<[u8]> = text.to_ascii_lowercase().into();
        self.rules.retain(|known| match known.text.strip_prefix(&*text) {
            Some(rest) => !(rest.is_empty() || rest[0] == b'|'),
            None => true,
        });
        self.rules.push(CommandRule { allows, text });
    }

    /// Returns the number of its rules, and their memory in bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        let words = || self.first_args.iter().flat_map(|known| &known.words);
        let number = self.keys.len() + self.channels.len() + self.rules.len() + words().count();
        let texts = self.keys.iter().map(|known| &known.pattern).chain(&self.channels);
        let texts = texts.chain(self.rules.iter().map(|rule| &rule.text)).chain(words());
        let bytes = texts.map(|text| text.len()).sum::<usize>();
        (number, bytes + number * size_of::<KeyPattern>() + size_of::<Self>())
    }

    /// Checks a command. `accesses` keeps its keys for further selectors.
    pub(super) fn check(
        &self,
        command: &Command,
        args: Args<'_>,
        accesses: &OnceCell<Vec<KeyAccess>>,
    ) -> Result<(), Denied> {
        if !self.allows(command, args) {
            return Err(Denied::COMMAND);
        }
        if !self.all_keys && !command.spec.keys.is_empty() {
            self.check_keys(command, args, accesses)?;
        }
        if self.all_channels { Ok(()) } else { self.check_channels(command, args) }
    }

    fn allows(&self, command: &Command, args: Args<'_>) -> bool {
        self.all_commands
            || command.spec.has(flag!(NO_AUTH))
            || self.commands[command.id / 64] & (1 << (command.id % 64)) != 0
            || args.get(1).is_some_and(|word| {
                let known = self.first_args.iter().find(|known| known.command == command.id);
                known.is_some_and(|known| known.words.iter().any(|w| w.eq_ignore_ascii_case(word)))
            })
    }

    fn check_keys(
        &self,
        command: &Command,
        args: Args<'_>,
        accesses: &OnceCell<Vec<KeyAccess>>,
    ) -> Result<(), Denied> {
        if let (true, [keys], Some(name)) = (command.one_key, command.spec.keys, args.get(1)) {
            let flags = command.spec.access_flags(keys, args);
            let denied = Denied { reason: DenialReason::Key, index: 1 };
            let may = flags.contains(key!(NOT_KEY)) || self.may_use_key(name, flags);
            return if may { Ok(()) } else { Err(denied) };
        }
        let all = accesses.get_or_init(|| command.spec.all_key_accesses(args));
        match all.iter().find(|access| {
            args.get(access.index).is_some_and(|name| !self.may_use_key(name, access.flags))
        }) {
            None => Ok(()),
            Some(access) => Err(Denied { reason: DenialReason::Key, index: access.index }),
        }
    }

    fn may_use_key(&self, name: &[u8], flags: KeyFlags) -> bool {
        let wanted = KeyRights::wanted(flags);
        let mut fitting = self.keys.iter().filter(|known| known.rights.covers(wanted));
        self.all_keys || fitting.any(|known| glob::matches(&known.pattern, name))
    }

    /// Returns true if it may read every key.
    pub(super) fn reads_all_keys(&self) -> bool {
        self.all_keys || self.keys.iter().any(|known| known.rights.reads && *known.pattern == *b"*")
    }

    fn check_channels(&self, command: &Command, args: Args<'_>) -> Result<(), Denied> {
        let (last, are_patterns) = match command.spec.channels {
            Channels::None => return Ok(()),
            Channels::First => (1, false),
            Channels::All => (args.len().saturating_sub(1), false),
            Channels::Patterns => (args.len().saturating_sub(1), true),
        };
        let is_denied = |at: &usize| {
            args.get(*at).is_some_and(|name| !may_use_channel(&self.channels, name, are_patterns))
        };
        match (1..=last).find(is_denied) {
            None => Ok(()),
            Some(index) => Err(Denied { reason: DenialReason::Channel, index }),
        }
    }
}

/// Returns true if one of the patterns allows a channel, or is the pattern of a subscription.
pub(super) fn may_use_channel(allowed: &[Box<[u8]>], name: &[u8], is_pattern: bool) -> bool {
    allowed.iter().any(|known| match is_pattern {
        true => **known == *name,
        false => glob::matches(known, name),
    })
}

/// Returns the category of a name, in any case.
fn category(name: &[u8]) -> Option<Categories> {
    let mut all = Categories::all().iter_names();
    all.find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes())).map(|(_, found)| found)
}

/// Parses a pattern with rights from behind its `%` on: `R`, `W` or both, `~`, the pattern.
fn parse_rights(rest: &[u8]) -> Result<(KeyRights, &[u8]), RuleError> {
    let mut rights = KeyRights { reads: false, writes: false };
    for (at, byte) in rest.iter().enumerate() {
        match byte.to_ascii_uppercase() {
            b'R' if !rights.reads => rights.reads = true,
            b'W' if !rights.writes => rights.writes = true,
            b'~' if at > 0 => return Ok((rights, &rest[at + 1..])),
            _ => return Err(RuleError::Syntax),
        }
    }
    // As in the reference, the pattern may be missing: it is empty then.
    if rest.is_empty() { Err(RuleError::Syntax) } else { Ok((rights, &[])) }
}
