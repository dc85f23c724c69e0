//! Parses some commands ahead of the one that runs, and prefetches the entries that they will look up in the
//! hot tier, so that the processor waits for the memory of many keys at once instead of one after
//! the other.

use super::Worker;
use crate::command::{Command, registry};
use flagstone_storage::store::Store;
use flagstone_storage::{KeyHash, Layout};
use flagstone_wire::resp::{Args, Limits, Parsed, Parser, ProtocolError};
use std::ops::Range;

/// Maximum number of commands that are parsed ahead.
const COMMANDS: usize = 16;

/// Number of arguments after which no further command is parsed ahead.
const ARGUMENTS: usize = 512;

/// Maximum number of keys that are prefetched together: more would evict each other from the
/// nearest cache.
const KEYS: usize = 128;

/// Maximum number of elements that are prefetched together.
const ELEMENTS: usize = 64;

/// Number of entries beyond which a list's memory is freed.
const KEEP: usize = 4096;

/// A command that is parsed and has not run.
struct Next {
    command: Option<&'static Command>,
    /// Hash of its only key.
    at: Option<KeyHash>,
    /// Range of its bytes in the read buffer.
    bytes: Range<usize>,
    ranges: Range<usize>,
    /// Range of its keys, of those that will be looked up.
    keys: Range<usize>,
    is_inline: bool,
}

/// A parsed command, as returned by [`Ahead::get`].
pub(crate) struct Ready<'a> {
    /// The command; `None` if there is none of that name.
    pub(crate) command: Option<&'static Command>,
    /// Hash of its only key.
    pub(crate) at: Option<KeyHash>,
    pub(crate) args: Args<'a>,
    /// Range of its bytes in the read buffer.
    pub(crate) bytes: Range<usize>,
}

/// Reason why no more commands are parsed ahead.
pub(crate) enum Stopped {
    /// A limit is reached.
    Full,
    /// The next command is incomplete in the read buffer.
    Drained,
    Failed(ProtocolError),
}

/// Number of names that are remembered.
const NAMES: usize = 16;

/// The commands that were named last: most commands name one of them again. The place of a name
/// depends on its length and its last letter.
#[derive(Default)]
struct LastNamed([Option<(PackedName, &'static Command)>; NAMES]);

/// A name of up to 15 bytes as the client wrote it, behind its length.
type PackedName = u128;

/// Returns a name in its packed form, if it is short enough, and its place.
fn pack(name: &[u8]) -> Option<(PackedName, usize)> {
    if name.len() >= size_of::<PackedName>() {
        return None;
    }
    let pack = |packed, &byte| packed << 8 | PackedName::from(byte);
    // Of two words of the same length, seldom both end in the same letter.
    let place = usize::from(*name.last()?) + name.len() * 5;
    Some((name.iter().fold(name.len() as PackedName, pack), place % NAMES))
}

impl LastNamed {
    /// Returns the command or subcommand that the arguments name.
    fn resolve(&mut self, args: Args<'_>) -> Option<&'static Command> {
        let Some((name, place)) = pack(args.get(0)?) else { return registry::resolve(args) };
        if let Some((known, command)) = self.0[place]
            && known == name
        {
            return Some(command);
        }
        let command = registry::resolve(args)?;
        if command.subcommands.is_empty() && command.full_name == command.spec.name {
            self.0[place] = Some((name, command));
        }
        Some(command)
    }
}

/// Commands parsed ahead. A worker has one list, for the connection that it serves.
#[derive(Default)]
pub(crate) struct Ahead {
    last: LastNamed,
    commands: Vec<Next>,
    ranges: Vec<(u32, u32)>,
    /// Keys that the commands will look up.
    keys: Vec<KeyHash>,
}

impl Ahead {
    /// Parses the commands from `*parsed` on in the read buffer, and advances it behind them.
    pub(crate) fn fill(
        &mut self,
        parser: &mut Parser,
        data: &[u8],
        parsed: &mut usize,
        limits: &Limits,
        layout: &Layout,
    ) -> Stopped {
        self.clear();
        // The limits on requests change when the client authenticates.
        let most = if limits.authenticated { COMMANDS } else { 1 };
        while self.commands.len() < most && self.ranges.len() < ARGUMENTS {
            let rest = &data[*parsed..];
            match parser.parse(rest, limits) {
                Ok(Parsed::Incomplete { .. }) => return Stopped::Drained,
                Ok(Parsed::Empty) => *parsed += parser.consumed(),
                Ok(Parsed::Command) => {
                    self.push(parser, rest, *parsed, layout);
                    *parsed += parser.consumed();
                    if parser.is_inline() {
                        // The arguments of an inline command are in the parser.
                        break;
                    }
                }
                Err(error) => return Stopped::Failed(error),
            }
        }
        Stopped::Full
    }

    fn push(&mut self, parser: &Parser, rest: &[u8], front: usize, layout: &Layout) {
        let args = parser.args(rest);
        let command = self.last.resolve(args);
        let known = self.keys.len();
        if let Some(command) = command {
            let room = KEYS.saturating_sub(known);
            self.keys.extend(command.usual_keys(args).take(room).map(|key| layout.key_hash(key)));
        }
        let from = self.ranges.len();
        self.ranges.extend_from_slice(parser.argv());
        self.commands.push(Next {
            command,
            at: command.filter(|c| c.one_key).and_then(|_| self.keys.get(known).copied()),
            bytes: front..front + parser.consumed(),
            ranges: from..self.ranges.len(),
            keys: known..self.keys.len(),
            is_inline: parser.is_inline(),
        });
    }

    fn clear(&mut self) {
        self.commands.clear();
        self.keys.clear();
        self.ranges.clear();
        self.ranges.shrink_to(KEEP);
    }

    /// Returns the number of parsed commands.
    pub(crate) fn len(&self) -> usize {
        self.commands.len()
    }

    /// Returns the `n`-th parsed command.
    pub(crate) fn get<'a>(&'a self, n: usize, parser: &'a Parser, data: &'a [u8]) -> Ready<'a> {
        let next = &self.commands[n];
        let bytes = &data[next.bytes.clone()];
        // A choice between two `Args` would go through memory.
        let source = if next.is_inline { parser.unescaped() } else { bytes };
        let args = Args::new(source, &self.ranges[next.ranges.clone()]);
        Ready { command: next.command, at: next.at, args, bytes: next.bytes.clone() }
    }

    /// Returns true if several of the first commands for which `may_share` holds have keys of several
    /// workers.
    pub(crate) fn crosses(
        &self,
        may_share: impl Fn(&Command) -> bool,
        worker_of: impl Fn(KeyHash) -> usize,
    ) -> bool {
        let crosses = |next: &&Next| {
            let mut workers = self.keys[next.keys.clone()].iter().map(|at| worker_of(*at));
            let first = workers.next();
            workers.any(|worker| Some(worker) != first)
        };
        let first = self.commands.iter().take_while(|it| it.command.is_some_and(&may_share));
        first.filter(crosses).nth(1).is_some()
    }

    /// Prefetches the keys of the commands, then the elements that they name.
    /// `is_own`: returns false for keys of other workers, which stay where they are.
    pub(crate) fn warm(
        &self,
        store: &Store,
        (parser, data): (&Parser, &[u8]),
        db: u32,
        is_own: impl Fn(KeyHash) -> bool,
    ) {
        if self.keys.len() < 2 {
            return;
        }
        store.warm(self.keys.iter().filter(|at| is_own(**at)).map(|at| (db, *at)));
        let mut room = ELEMENTS;
        let mut rest = 0..self.len();
        while let Some(first) = rest.next() {
            let Some(at) = self.commands[first].at.filter(|at| is_own(*at)) else { continue };
            // Includes all following commands on the same key.
            let end = rest.clone().find(|&n| self.commands[n].at != Some(at)).unwrap_or(rest.end);
            let wanted = (first..end).flat_map(|n| {
                let Ready { command, args, .. } = self.get(n, parser, data);
                let names = command.and_then(|command| command.spec.names);
                names.map(|names| names.wanted(args)).into_iter().flatten()
            });
            room -= store.warm_elements(db, at, wanted.take(room));
            rest.start = end;
        }
    }
}

impl Worker {
    /// Prefetches the keys of commands parsed ahead that are this worker's.
    pub(crate) fn warm_ahead(&self, ahead: &Ahead, text: (&Parser, &[u8]), db: u32) {
        let owns_all = self.node.workers == 1;
        let is_own = |at: KeyHash| owns_all || self.node.worker_of(at.slot) == self.id;
        ahead.warm(&self.partition.borrow().store, text, db, is_own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_wire::resp::OwnedArgs;

    static LAYOUT: Layout = Layout::new(1, 7);

    /// A command's arguments and its end.
    type ParsedCommand = (Vec<Vec<u8>>, usize);

    /// Returns the commands that are parsed ahead of `data`, the end of the last, and the reason
    /// why no more are.
    fn parsed(data: &[u8], limits: &Limits) -> (Vec<ParsedCommand>, usize, Stopped) {
        let (mut ahead, mut parser, mut end) = (Ahead::default(), Parser::new(), 0);
        let stopped = ahead.fill(&mut parser, data, &mut end, limits, &LAYOUT);
        let commands = (0..ahead.len()).map(|n| {
            let ready = ahead.get(n, &parser, data);
            (ready.args.iter().map(<[u8]>::to_vec).collect(), ready.bytes.end)
        });
        (commands.collect(), end, stopped)
    }

    fn names(commands: &[ParsedCommand]) -> Vec<&[u8]> {
        commands.iter().map(|(args, _)| &args[0][..]).collect()
    }

    const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";

    #[test]
    fn whole_commands_are_parsed_up_to_a_bound() {
        let (commands, end, stopped) = parsed(&GET.repeat(COMMANDS + 3), &Limits::default());
        assert_eq!(commands.len(), COMMANDS);
        assert_eq!(end, COMMANDS * GET.len());
        assert_eq!(commands[1], (vec![b"GET".to_vec(), b"k".to_vec()], 2 * GET.len()));
        assert!(matches!(stopped, Stopped::Full));
    }

    #[test]
    fn incomplete_and_malformed_commands_come_behind_whole_ones() {
        let (commands, end, stopped) = parsed(&[GET, &GET[..9]].concat(), &Limits::default());
        assert_eq!((commands.len(), end), (1, GET.len()));
        assert!(matches!(stopped, Stopped::Drained));
        let (commands, end, stopped) = parsed(&[GET, b"*1\r\n+3\r\n"].concat(), &Limits::default());
        assert_eq!((commands.len(), end), (1, GET.len()));
        assert!(matches!(stopped, Stopped::Failed(ProtocolError::ExpectedDollar(b'+'))));
    }

    #[test]
    fn a_command_that_is_named_again_is_the_same() {
        let words: [&[&[u8]]; 10] = [
            &[b"GET", b"k"],
            &[b"GET", b"k"],
            &[b"get"],
            &[b"config", b"get", b"x"],
            &[b"config", b"set", b"x", b"y"],
            &[b"config"],
            &[b"GE", b"k"],
            &[b"nosuchcommandatall", b"k"],
            &[b"GETX", b"k"],
            &[b"GET", b"k"],
        ];
        let mut last = LastNamed::default();
        for words in words {
            let owned: OwnedArgs = words.iter().copied().collect();
            let args = owned.args();
            let found = last.resolve(args).map(|command| command.full_name);
            assert_eq!(found, registry::resolve(args).map(|command| command.full_name));
        }
    }

    #[test]
    fn an_inline_command_is_the_last() {
        let data = [GET, b"*0\r\n", b"set 'a b' 1\r\n", GET].concat();
        let (commands, end, _) = parsed(&data, &Limits::default());
        assert_eq!(names(&commands), [&b"GET"[..], b"set"]);
        assert_eq!(commands[1].0[1], b"a b");
        assert_eq!(end, data.len() - GET.len());
    }

    #[test]
    fn nothing_is_parsed_ahead_of_a_client_that_may_not_run_commands() {
        let limits = Limits { authenticated: false, ..Limits::default() };
        assert_eq!(parsed(&GET.repeat(3), &limits).0.len(), 1);
    }

    #[test]
    fn only_a_command_of_one_key_has_its_hash() {
        let mset = b"*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n";
        let data = [&mset[..], GET, b"*1\r\n$4\r\nPING\r\n"].concat();
        let (mut ahead, mut parser) = (Ahead::default(), Parser::new());
        ahead.fill(&mut parser, &data, &mut 0, &Limits::default(), &LAYOUT);
        let hash = |key: &[u8]| LAYOUT.key_hash(key);
        assert_eq!(ahead.keys, [hash(b"a"), hash(b"b"), hash(b"k")]);
        let at: Vec<_> = (0..3).map(|n| ahead.get(n, &parser, &data).at).collect();
        assert_eq!(at, [None, Some(hash(b"k")), None]);
    }
}
