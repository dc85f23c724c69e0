//! Looks commands up by name.

use super::{Begin, Find, KeySpec, Spec};
use crate::node::Node;
use flagstone_wire::resp::Args;
use fnv::FnvHashMap;
use std::sync::LazyLock;

/// Every family's declarations.
const FAMILIES: &[&[Spec]] = &[
    super::bitmap::COMMANDS,
    super::hyperloglog::COMMANDS,
    super::string::set::COMMANDS,
    super::string::get::COMMANDS,
    super::string::counters::COMMANDS,
    super::string::ranges::COMMANDS,
    super::string::multi::COMMANDS,
    super::string::lcs::COMMANDS,
    super::connection::COMMANDS,
    super::server::COMMANDS,
    super::server::ADMIN_COMMANDS,
    super::server::SAVE_COMMANDS,
    super::pubsub::COMMANDS,
    super::transactions::COMMANDS,
    super::scripting::COMMANDS,
    super::functions::COMMANDS,
    super::generic::KEY,
    super::generic::EXPIRE,
    super::generic::RELOCATE,
    super::generic::SCAN,
    super::generic::SORT,
    super::generic::OBJECT,
    super::generic::DUMP,
    super::generic::DATABASE,
    super::hash::read::COMMANDS,
    super::hash::write::COMMANDS,
    super::hash::random::COMMANDS,
    super::hash::scan::COMMANDS,
    super::hash::ttl::COMMANDS,
    super::hash::extended::COMMANDS,
    super::set::read::COMMANDS,
    super::set::write::COMMANDS,
    super::set::random::COMMANDS,
    super::set::combine::COMMANDS,
    super::set::scan::COMMANDS,
    super::list::push::COMMANDS,
    super::list::pop::COMMANDS,
    super::list::read::COMMANDS,
    super::list::edit::COMMANDS,
    super::list::moves::COMMANDS,
    super::list::blocking::COMMANDS,
    super::zset::write::COMMANDS,
    super::zset::read::COMMANDS,
    super::zset::range::COMMANDS,
    super::zset::remove::COMMANDS,
    super::zset::pop::COMMANDS,
    super::zset::blocking::COMMANDS,
    super::zset::random::COMMANDS,
    super::zset::scan::COMMANDS,
    super::zset::combine::COMMANDS,
    super::geo::members::COMMANDS,
    super::geo::search::COMMANDS,
    super::stream::add::COMMANDS,
    super::stream::range::COMMANDS,
    super::stream::read::COMMANDS,
    super::stream::edit::COMMANDS,
    super::stream::info::COMMANDS,
    super::stream::manage::COMMANDS,
    super::stream::read_group::COMMANDS,
    super::stream::ack::COMMANDS,
    super::stream::claim::COMMANDS,
    super::stream::pending::COMMANDS,
];

/// Longest command name, for case folding on the stack.
const MAX_NAME: usize = 32;

/// A command or subcommand as it is looked up: its declaration, and what is worked out once.
#[derive(Debug)]
pub struct Command {
    pub spec: &'static Spec,
    /// Its place among all commands and subcommands, for statistics.
    pub id: usize,
    /// "get", or "config|get".
    pub full_name: &'static str,
    /// Its only key is the first argument.
    pub one_key: bool,
    /// It may need keys that follow from data: they are found as it runs (see `routing`).
    pub undeclared_keys: bool,
    pub subcommands: Vec<Command>,
}

static COMMANDS: LazyLock<Vec<Command>> = LazyLock::new(|| {
    let mut next_id = 0;
    FAMILIES
        .iter()
        .flat_map(|family| family.iter())
        .map(|spec| Command::new(spec, None, &mut next_id))
        .collect()
});

static TABLE: LazyLock<FnvHashMap<&'static [u8], &'static Command>> =
    LazyLock::new(|| COMMANDS.iter().map(|c| (c.spec.name.as_bytes(), c)).collect());

impl Command {
    fn new(spec: &'static Spec, parent: Option<&str>, next_id: &mut usize) -> Self {
        let id = *next_id;
        *next_id += 1;
        let full_name = match parent {
            Some(parent) => &*Box::leak(format!("{parent}|{}", spec.name).into_boxed_str()),
            None => spec.name,
        };
        let subcommands =
            spec.subcommands.iter().map(|sub| Self::new(sub, Some(spec.name), next_id)).collect();
        let one_key = spec.other_db.is_none()
            && matches!(
                spec.keys,
                [KeySpec { begin: Begin::Index(1), find: Find::Range { last: 0, .. }, .. }]
            );
        let undeclared_keys =
            spec.unit || spec.keys.iter().any(|keys| matches!(keys.find, Find::Unknown));
        Self { spec, id, full_name, one_key, undeclared_keys, subcommands }
    }

    /// The keys among the arguments with their databases, for routing and locks.
    pub fn keys<'a>(&self, args: Args<'a>, db: u32) -> Vec<(u32, &'a [u8])> {
        if self.one_key {
            return args.get(1).map(|key| (db, key)).into_iter().collect();
        }
        let indices = self.spec.fitting_key_indices(args);
        let mut keys: Vec<_> =
            indices.into_iter().filter_map(|i| Some((db, args.get(i)?))).collect();
        if let Some(elsewhere) = self.spec.other_db {
            let here = keys.clone();
            keys.extend(elsewhere(args, db, &here));
        }
        keys
    }

    /// The keys that stand at fixed places: all keys of most commands.
    pub fn usual_keys<'a>(&self, args: Args<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (first, last, step) = match self.spec.keys {
            [
                KeySpec {
                    begin: Begin::Index(first),
                    find: Find::Range { last, step, limit: 0 },
                    ..
                },
            ] => (*first, *last, *step),
            _ => (0, -1, usize::MAX),
        };
        let end = if last < 0 { args.len() } else { first + last as usize + 1 };
        let places = (first..end.min(args.len())).step_by(step.max(1));
        places.filter(move |_| first > 0).filter_map(move |n| args.get(n))
    }

    /// The error text if one of its keys is longer than an engine key can hold.
    pub fn too_long_key(&self, args: Args<'_>) -> Option<String> {
        const MAX_KEY: usize = flagstone_storage::encoding::MAX_KEY;
        if args.iter().all(|arg| arg.len() <= MAX_KEY) {
            return None;
        }
        let longest = self.keys(args, 0).iter().map(|(_, key)| key.len()).max()?;
        (longest > MAX_KEY)
            .then(|| format!("ERR key is too long: {longest} bytes, at most {MAX_KEY} are allowed"))
    }

    /// Its flags with these arguments: where it runs a script that says what it does, that counts.
    pub fn flags(&self, node: &Node, args: Args<'_>) -> u32 {
        let own = self.spec.flags;
        let script = self.spec.script_flags.and_then(|find| find(node, args));
        script.map_or(own, |script| script.command_flags(own))
    }

    /// Whether it may change something.
    pub fn may_write(&self) -> bool {
        self.spec.has(super::flag::WRITE)
    }
}

/// All commands, family by family.
pub fn all() -> &'static [Command] {
    &COMMANDS
}

/// Every command and subcommand by its [`Command::id`].
static BY_ID: LazyLock<Vec<&'static Command>> = LazyLock::new(|| {
    COMMANDS.iter().flat_map(|c| std::iter::once(c).chain(&c.subcommands)).collect()
});

/// All commands and subcommands.
pub fn every() -> impl Iterator<Item = &'static Command> {
    BY_ID.iter().copied()
}

/// The command or subcommand with this [`Command::id`].
pub fn by_id(id: usize) -> Option<&'static Command> {
    BY_ID.get(id).copied()
}

/// How many commands and subcommands there are: their ids are below.
pub fn count() -> usize {
    BY_ID.len()
}

/// The command of a name in any case.
pub fn lookup(name: &[u8]) -> Option<&'static Command> {
    let mut folded = [0u8; MAX_NAME];
    let folded = folded.get_mut(..name.len())?;
    folded.copy_from_slice(name);
    folded.make_ascii_lowercase();
    TABLE.get(&*folded).copied()
}

impl Command {
    /// The subcommand of a name in any case.
    pub fn subcommand(&self, name: &[u8]) -> Option<&Command> {
        self.subcommands.iter().find(|sub| name.eq_ignore_ascii_case(sub.spec.name.as_bytes()))
    }
}

/// The command or subcommand that arguments name.
pub fn resolve(args: Args<'_>) -> Option<&'static Command> {
    let command = lookup(args.get(0)?)?;
    match args.get(1) {
        Some(sub) if !command.subcommands.is_empty() => command.subcommand(sub),
        _ => Some(command),
    }
}

#[cfg(test)]
mod tests {
    use super::super::key;
    use super::*;

    #[test]
    fn names_are_folded() {
        assert_eq!(lookup(b"GeT").map(|c| c.full_name), Some("get"));
        assert!(lookup(b"nosuch").is_none());
        assert!(lookup(&[b'x'; 100]).is_none());
    }

    #[test]
    fn keys_of_optional_specs_may_be_missing() {
        let pfmerge = lookup(b"pfmerge").unwrap();
        let (bytes, ranges) = (b"pfmergeabc", [(0, 7), (7, 8), (8, 10)]);
        let keys = |words| pfmerge.keys(Args::new(bytes, &ranges[..words]), 3);
        assert_eq!(keys(1), []);
        assert_eq!(keys(2), [(3, &b"a"[..])]);
        assert_eq!(keys(3), [(3, &b"a"[..]), (3, b"bc")]);
    }

    #[test]
    fn names_of_elements_are_found() {
        for (line, expected) in [
            ("sadd k a b", "a b"),
            ("smove k other a", "a"),
            ("smismember k a b", "a b"),
            ("hset k a 1 b 2", "a b"),
            ("hsetnx k a 1", "a"),
            ("hincrby k a 1", "a"),
            ("hmget k a b", "a b"),
            ("zadd k 1 a 2 b", "a b"),
            ("zadd k nx CH 1 a", "a"),
            ("zincrby k 1 a", "a"),
            ("zrank k a withscore", "a"),
            ("geoadd k XX 1 2 a 3 4 b", "a b"),
            ("zadd k", ""),
        ] {
            let args: flagstone_wire::resp::OwnedArgs = line.split(' ').collect();
            let names = resolve(args.args()).unwrap().spec.names.unwrap();
            let found: Vec<_> = names.find(args.args()).collect();
            assert_eq!(found.join(&b' '), expected.as_bytes(), "{line}");
        }
    }

    #[test]
    fn key_specs_flags_are_known() {
        for command in all() {
            for spec in command.spec.keys {
                assert!(spec.flags < key::VARIABLE_FLAGS << 1, "{}", command.full_name);
            }
        }
    }
}
