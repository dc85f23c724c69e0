//! Looks commands up by name.

use crate::{Begin, Find, KeySpec, Run, Runner, Spec, flag};
use flagstone_storage::latency::LatencyEvent;
use flagstone_storage::slot::slot_of;
use flagstone_wire::resp::Args;
use fnv::FnvHashMap;

/// Longest command name, for case folding on the stack.
const MAX_NAME: usize = 32;

/// A command or subcommand with its declaration and the properties computed from it.
#[derive(Debug)]
pub struct Command<R: 'static = Run> {
    pub spec: &'static Spec<R>,
    /// Index among all commands and subcommands, for statistics.
    pub id: usize,
    /// Full name: "get", or "config|get".
    pub full_name: &'static str,
    /// True if the only key is the first argument.
    pub one_key: bool,
    /// True if the command may need keys that depend on data: they are found while it runs (see
    /// `routing`).
    pub undeclared_keys: bool,
    pub subcommands: Vec<Self>,
}

/// All commands of a program. A registry is never freed.
#[derive(Debug)]
pub struct Registry<R: 'static = Run> {
    /// Those that have a name, family by family.
    commands: Vec<&'static Command<R>>,
    by_name: FnvHashMap<&'static [u8], &'static Command<R>>,
    /// All, by the names of their declarations.
    declared: FnvHashMap<&'static [u8], &'static Command<R>>,
    by_id: Vec<&'static Command<R>>,
}

impl<R: Runner> Registry<R> {
    /// Returns the registry of the declared commands, in this order.
    pub fn new(specs: impl IntoIterator<Item = &'static Spec<R>>) -> Self {
        let mut next_id = 0;
        let commands: Vec<_> =
            specs.into_iter().map(|spec| Command::new(spec, None, &mut next_id)).collect();
        let commands: &'static [Command<R>] = commands.leak();
        let by_name: FnvHashMap<_, _> =
            commands.iter().map(|c| (c.spec.name.as_bytes(), c)).collect();
        let declared = by_name.clone();
        let by_id =
            commands.iter().flat_map(|c| std::iter::once(c).chain(&c.subcommands)).collect();
        Self { commands: commands.iter().collect(), by_name, declared, by_id }
    }

    /// Gives a command another name, or none: then it is not found any more.
    ///
    /// # Errors
    /// There is no such command, or the name is another command's.
    pub fn rename(&mut self, name: &str, new: &str) -> Result<(), &'static str> {
        let Some(command) = self.lookup(name.as_bytes()) else {
            return Err("No such command in rename-command");
        };
        self.by_name.retain(|_, other| other.id != command.id);
        if new.is_empty() {
            self.commands.retain(|other| other.id != command.id);
            return Ok(());
        }
        // Names live as long as the process, as declarations do.
        let new: &'static [u8] = new.to_ascii_lowercase().into_bytes().leak();
        match self.by_name.insert(new, command) {
            None => Ok(()),
            Some(_) => Err("Target command name already exists"),
        }
    }

    /// Returns all commands that have a name, without their subcommands.
    pub fn all(&self) -> &[&'static Command<R>] {
        &self.commands
    }

    /// Returns the name by which clients know a command; `None` if it was taken away.
    pub fn name_of(&self, command: &Command<R>) -> Option<&'static [u8]> {
        self.by_name.iter().find(|(_, other)| other.id == command.id).map(|(name, _)| *name)
    }

    /// Returns all commands and subcommands by their [`Command::id`].
    pub fn by_id(&self) -> &[&'static Command<R>] {
        &self.by_id
    }

    /// Returns the command of a name, ignoring case.
    pub fn lookup(&self, name: &[u8]) -> Option<&'static Command<R>> {
        find(&self.by_name, name)
    }

    /// Returns the command or subcommand that the arguments name by the names of the declarations,
    /// whatever clients call it.
    pub fn resolve_declared(&self, args: Args<'_>) -> Option<&'static Command<R>> {
        part_of(find(&self.declared, args.get(0)?)?, args)
    }

    /// Returns the command or subcommand that the arguments name.
    pub fn resolve(&self, args: Args<'_>) -> Option<&'static Command<R>> {
        part_of(self.lookup(args.get(0)?)?, args)
    }
}

/// Returns the command of a name in a table, ignoring case.
fn find<R>(
    table: &FnvHashMap<&'static [u8], &'static Command<R>>,
    name: &[u8],
) -> Option<&'static Command<R>> {
    let mut folded = [0u8; MAX_NAME];
    let Some(folded) = folded.get_mut(..name.len()) else {
        // Names of declarations are shorter.
        return table.get(&*name.to_ascii_lowercase()).copied();
    };
    folded.copy_from_slice(name);
    folded.make_ascii_lowercase();
    table.get(&*folded).copied()
}

/// Returns the subcommand that the arguments of a command name, or the command if it has none.
fn part_of<R: Runner>(command: &'static Command<R>, args: Args<'_>) -> Option<&'static Command<R>> {
    match args.get(1) {
        Some(sub) if !command.subcommands.is_empty() => command.subcommand(sub),
        _ => Some(command),
    }
}

impl<R: Runner> Command<R> {
    fn new(spec: &'static Spec<R>, parent: Option<&str>, next_id: &mut usize) -> Self {
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
            spec.runs_others() || spec.keys.iter().any(|keys| matches!(keys.find, Find::Unknown));
        Self { spec, id, full_name, one_key, undeclared_keys, subcommands }
    }

    /// Returns the class of events that its slow runs belong to.
    pub fn latency_event(&self) -> LatencyEvent {
        match self.spec.has(flag!(FAST)) {
            true => LatencyEvent::FastCommand,
            false => LatencyEvent::Command,
        }
    }

    /// Returns the keys among the arguments with their databases, for routing and locks.
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

    /// Returns the slots of the keys, and of shard channels, among the arguments.
    pub fn slots<'a>(&'a self, args: Args<'a>) -> impl Iterator<Item = u16> + 'a {
        let mut indices = Vec::new();
        for keys in self.spec.keys {
            // Arguments that do not fit are the handler's.
            let _ = keys.find(args, &mut indices);
        }
        indices.into_iter().filter_map(move |index| args.get(index)).map(slot_of)
    }

    /// Returns the keys at fixed positions: for most commands these are all keys.
    pub fn usual_keys<'a>(&self, args: Args<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a, R> {
        let (first, last, step) = match self.spec.keys {
            [
                KeySpec {
                    begin: Begin::Index(first),
                    find: Find::Range { last, step, limit: 0 },
                    ..
                },
            ] => (*first, *last, *step),
            // One key moves to another, or gets what is made of others.
            [
                KeySpec { begin: Begin::Index(one), find: Find::Range { last: 0, .. }, .. },
                KeySpec {
                    begin: Begin::Index(next),
                    find: Find::Range { last, step, limit: 0 },
                    ..
                },
            ] if one < next && (*last == 0 || *last == -1 && *step == next - one) => {
                let last = if *last == 0 { (next - one) as i32 } else { *last };
                (*one, last, next - one)
            }
            _ => (0, -1, usize::MAX),
        };
        let end = if last < 0 { args.len() } else { first + last as usize + 1 };
        let places = (first..end.min(args.len())).step_by(step.max(1));
        places.filter(move |_| first > 0).filter_map(move |n| args.get(n))
    }

    /// Returns the error text if a key is longer than an engine key can be.
    #[inline]
    pub fn too_long_key(&self, args: Args<'_>) -> Option<String> {
        let is_short = args.bytes_at_most() <= flagstone_storage::encoding::MAX_KEY;
        if is_short { None } else { self.long_key_error(args) }
    }

    fn long_key_error(&self, args: Args<'_>) -> Option<String> {
        const MAX_KEY: usize = flagstone_storage::encoding::MAX_KEY;
        if args.iter().all(|arg| arg.len() <= MAX_KEY) {
            return None;
        }
        let longest = self.keys(args, 0).iter().map(|(_, key)| key.len()).max()?;
        (longest > MAX_KEY)
            .then(|| format!("ERR key is too long: {longest} bytes, at most {MAX_KEY} are allowed"))
    }

    /// Returns true if the command may change data.
    pub fn may_write(&self) -> bool {
        self.spec.has(flag!(WRITE))
    }
}

impl<R: Runner> Command<R> {
    /// Returns the subcommand of a name, ignoring case.
    pub fn subcommand(&self, name: &[u8]) -> Option<&Self> {
        self.subcommands.iter().find(|sub| name.eq_ignore_ascii_case(sub.spec.name.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FAMILIES;

    fn registry() -> Registry {
        Registry::new(FAMILIES.iter().copied().flatten())
    }

    #[test]
    fn keys_at_fixed_places_are_found_without_their_declarations() {
        let registry = registry();
        for (line, expected) in [
            ("get k", &["k"][..]),
            ("mset k 1 l 2", &["k", "l"]),
            ("rename k l", &["k", "l"]),
            ("lmove k l LEFT LEFT", &["k", "l"]),
            ("copy k l REPLACE", &["k", "l"]),
            ("smove k", &["k"]),
            ("bitop OR k l m", &["k", "l", "m"]),
            ("sintercard 1 k", &[]),
        ] {
            let args: flagstone_wire::resp::OwnedArgs = line.split(' ').collect();
            let command = registry.lookup(args.args().get(0).expect("a name")).expect("a command");
            let keys: Vec<_> = command.usual_keys(args.args()).collect();
            let expected: Vec<_> = expected.iter().map(|key| key.as_bytes()).collect();
            assert_eq!(keys, expected, "of {line}");
        }
    }

    #[test]
    fn names_are_folded() {
        let registry = registry();
        assert_eq!(registry.lookup(b"GeT").map(|c| c.full_name), Some("get"));
        assert!(registry.lookup(b"nosuch").is_none());
        assert!(registry.lookup(&[b'x'; 100]).is_none());
    }

    #[test]
    fn a_command_is_known_by_its_new_name_alone() {
        let mut registry = registry();
        let count = registry.all().len();
        let long = "x".repeat(200);
        registry.rename("GET", &long).unwrap();
        assert!(registry.lookup(b"get").is_none());
        let get = registry.lookup(long.to_uppercase().as_bytes()).unwrap();
        assert_eq!(get.full_name, "get");
        assert_eq!(registry.name_of(get), Some(long.as_bytes()));
        registry.rename("set", "").unwrap();
        assert!(registry.lookup(b"set").is_none());
        assert_eq!(registry.all().len(), count - 1);
        // A name that was given up may be taken.
        registry.rename("del", "GET").unwrap();
        assert_eq!(registry.lookup(b"get").map(|c| c.full_name), Some("del"));
        assert_eq!(registry.rename("set", "x"), Err("No such command in rename-command"));
        assert_eq!(registry.rename("type", "Exists"), Err("Target command name already exists"));
    }

    #[test]
    fn keys_of_optional_specs_may_be_missing() {
        let pfmerge = registry().lookup(b"pfmerge").unwrap();
        let (bytes, ranges) = (b"pfmergeabc", [(0, 7), (7, 8), (8, 10)]);
        let keys = |words| pfmerge.keys(Args::new(bytes, &ranges[..words]), 3);
        assert_eq!(keys(1), []);
        assert_eq!(keys(2), [(3, &b"a"[..])]);
        assert_eq!(keys(3), [(3, &b"a"[..]), (3, b"bc")]);
    }

    #[test]
    fn names_of_elements_are_found() {
        let registry = registry();
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
            let names = registry.resolve(args.args()).unwrap().spec.names.unwrap();
            let found: Vec<_> = names.find(args.args()).collect();
            assert_eq!(found.join(&b' '), expected.as_bytes(), "{line}");
        }
    }
}
