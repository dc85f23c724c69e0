//! The declaration of a command, from which lookup, arity check, routing, COMMAND, ACL categories,
//! statistics and documentation derive.

use crate::context::{Ctx, Outcome};
use crate::key_spec::{AccessFinder, Begin, Channels, Find, KeySpec};
use crate::{acl, flag, key};
use bitflags::bitflags;
use flagstone_storage::value::ElementHint;
use flagstone_wire::num::parse_f64;
use flagstone_wire::resp::{Args, Reply};

/// The declaration of a command or subcommand. `R` is its way of running: [`Run`] for commands on
/// keys; the server has more.
#[derive(Debug)]
pub struct Spec<R: 'static = Run> {
    /// Name in lower case; for a subcommand, its own word.
    pub name: &'static str,
    pub group: Group,
    /// The version of Redis (or Valkey) that introduced it.
    pub since: &'static str,
    pub complexity: &'static str,
    /// Description in one sentence, in our own words.
    pub summary: &'static str,
    /// Arguments for COMMAND DOCS if the reference has no such command, in the form that
    /// `src/commands/server/docs.rs` describes.
    pub arguments: &'static str,
    /// Number of arguments including the name; negative: at least that many.
    pub arity: i16,
    pub flags: CommandFlags,
    pub keys: &'static [KeySpec],
    /// Finds the access to the keys of specs with `VARIABLE_FLAGS`.
    pub key_access: Option<AccessFinder>,
    pub channels: Channels,
    /// Categories beyond those derived from flags and group (see [`Spec::categories`]).
    pub acl: Categories,
    pub tips: &'static [&'static str],
    /// Finds the keys that `keys` does not cover: in databases other than the selected one (MOVE,
    /// COPY … DB), or behind a word that occurs twice (GEORADIUS … STORE). Gets the arguments, the
    /// selected database and the keys found in it.
    pub other_db: Option<OtherDb>,
    /// Positions of the element names among the arguments, for prefetching them.
    pub names: Option<Names>,
    pub subcommands: &'static [Spec<R>],
    /// Returns true if the command may wait for its keys, given the arguments. Asked only of those
    /// with the flag BLOCKING.
    pub blocks: fn(Args<'_>) -> bool,
    pub run: R,
}

impl<R: Runner> Spec<R> {
    /// Base of every declaration: `Spec { name: "get", …, ..Spec::NEW }`.
    pub const NEW: Self = Self {
        name: "",
        group: Group::Generic,
        since: "1.0.0",
        complexity: "O(1)",
        summary: "",
        arguments: "",
        arity: 0,
        flags: CommandFlags::empty(),
        keys: &[],
        key_access: None,
        channels: Channels::None,
        acl: Categories::empty(),
        tips: &[],
        other_db: None,
        names: None,
        subcommands: &[],
        blocks: |_| false,
        run: R::CONTAINER,
    };

    /// Returns true if it has one of these flags.
    pub const fn has(&self, flags: CommandFlags) -> bool {
        self.flags.intersects(flags)
    }

    /// Returns true if it runs other commands, whose keys it need not declare.
    pub fn runs_others(&self) -> bool {
        self.run.runs_others()
    }

    /// Returns the declaration with another type of runner.
    pub fn with_runner<S: Runner + From<R>>(&self) -> Spec<S> {
        let subcommands: Vec<_> = self.subcommands.iter().map(Self::with_runner).collect();
        Spec {
            name: self.name,
            group: self.group,
            since: self.since,
            complexity: self.complexity,
            summary: self.summary,
            arguments: self.arguments,
            arity: self.arity,
            flags: self.flags,
            keys: self.keys,
            key_access: self.key_access,
            channels: self.channels,
            acl: self.acl,
            tips: self.tips,
            other_db: self.other_db,
            names: self.names,
            // A declaration lives as long as the process.
            subcommands: subcommands.leak(),
            blocks: self.blocks,
            run: self.run.into(),
        }
    }

    /// Returns true if `len` arguments (with the name, and the subcommand's) are a valid number.
    pub const fn arity_allows(&self, len: usize) -> bool {
        let len = len as i64;
        let arity = self.arity as i64;
        if arity >= 0 { len == arity } else { len >= -arity }
    }

    /// Returns its ACL categories: those derived from flags and group, and its own.
    pub fn categories(&self) -> Categories {
        // A container does not belong to its group's category itself.
        let of_group = !self.run.is_container();
        let group = if of_group { self.group.category() } else { Categories::empty() };
        let mut set = self.acl | group;
        for (flag, category) in [
            (flag!(WRITE), acl!(WRITE)),
            (flag!(READONLY), acl!(READ)),
            (flag!(ADMIN), acl!(ADMIN | DANGEROUS)),
            (flag!(PUBSUB), acl!(PUBSUB)),
            (flag!(FAST), acl!(FAST)),
            (flag!(BLOCKING), acl!(BLOCKING)),
        ] {
            // A script's reads are those of its commands: READONLY implies no category.
            let is_told = flag == flag!(READONLY) && self.group == Group::Scripting;
            if self.has(flag) && !is_told {
                set |= category;
            }
        }
        // As in Redis, every command that is not fast is slow.
        if set.contains(acl!(FAST)) { set } else { set | acl!(SLOW) }
    }
}

/// See [`Spec::other_db`].
pub(crate) type OtherDb = for<'a> fn(Args<'a>, u32, &[(u32, &'a [u8])]) -> Vec<(u32, &'a [u8])>;

/// Positions of the names of elements among a command's arguments. An argument wrongly taken for a
/// name costs one read.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Options that may stand behind the key.
    options: &'static [&'static str],
    /// Position of the first name, without options.
    first: usize,
    step: usize,
    /// True if each name stands behind a score.
    scored: bool,
}

impl Names {
    /// Describes names from an argument on to the end, every `step`-th.
    pub const fn from(first: usize, step: usize) -> Self {
        Self { options: &[], first, step, scored: false }
    }

    /// Describes names from an argument on, not counting any of these options before them.
    pub const fn behind(options: &'static [&'static str], first: usize, step: usize) -> Self {
        Self { options, first, step, scored: false }
    }

    /// Marks each name as standing behind its new score.
    pub const fn scored(self) -> Self {
        Self { scored: true, ..self }
    }

    /// Returns the names among the arguments.
    pub fn find(self, args: Args<'_>) -> impl Iterator<Item = &[u8]> {
        self.wanted(args).map(|wanted| wanted.name)
    }

    /// Returns the names with their scores, as far as these are known before the command runs.
    pub fn wanted(self, args: Args<'_>) -> impl Iterator<Item = ElementHint<'_>> {
        let is_option = |word: &[u8]| {
            self.options.iter().any(|option| word.eq_ignore_ascii_case(option.as_bytes()))
        };
        let mut options = 0;
        if !self.options.is_empty() {
            options = args.iter().skip(2).take_while(|word| is_option(word)).count();
        }
        let names = (self.first + options..args.len()).step_by(self.step);
        names.filter_map(move |at| {
            let score = || parse_f64(args.get(at - 1)?);
            Some(ElementHint { name: args.get(at)?, score: self.scored.then(score).flatten() })
        })
    }
}

/// A way of running commands.
pub trait Runner: Copy {
    /// The runner of a command that has subcommands only.
    const CONTAINER: Self;

    fn is_container(&self) -> bool;

    /// Returns true if the command runs others, whose keys it need not declare.
    fn runs_others(&self) -> bool {
        false
    }
}

/// The handler of a command on keys. It must request all the rows it needs before it changes
/// anything: after a miss it runs again from its start.
pub type KeysHandler = fn(&mut Ctx<'_>, Args<'_>) -> Outcome;

/// Writes the text of a HELP subcommand.
pub type HelpWriter = fn(&mut Reply);

/// The ways of running of this crate's commands.
#[derive(Clone, Copy)]
pub enum Run {
    Keys(KeysHandler),
    /// Shows a help text.
    Help(HelpWriter),
    /// Has subcommands only.
    Container,
}

impl Runner for Run {
    const CONTAINER: Self = Self::Container;

    fn is_container(&self) -> bool {
        matches!(self, Self::Container)
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Keys(_) => "Keys",
            Self::Help(_) => "Help",
            Self::Container => "Container",
        })
    }
}

/// Groups of COMMAND DOCS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Generic,
    String,
    List,
    Set,
    SortedSet,
    Hash,
    Pubsub,
    Transactions,
    Connection,
    Server,
    Scripting,
    Hyperloglog,
    Cluster,
    Geo,
    Stream,
    Bitmap,
}

impl Group {
    /// Returns the name in the reply of COMMAND DOCS.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::String => "string",
            Self::List => "list",
            Self::Set => "set",
            Self::SortedSet => "sorted-set",
            Self::Hash => "hash",
            Self::Pubsub => "pubsub",
            Self::Transactions => "transactions",
            Self::Connection => "connection",
            Self::Server => "server",
            Self::Scripting => "scripting",
            Self::Hyperloglog => "hyperloglog",
            Self::Cluster => "cluster",
            Self::Geo => "geo",
            Self::Stream => "stream",
            Self::Bitmap => "bitmap",
        }
    }

    const fn category(self) -> Categories {
        match self {
            Self::String => acl!(STRING),
            Self::List => acl!(LIST),
            Self::Set => acl!(SET),
            Self::SortedSet => acl!(SORTEDSET),
            Self::Hash => acl!(HASH),
            Self::Transactions => acl!(TRANSACTION),
            Self::Connection => acl!(CONNECTION),
            Self::Scripting => acl!(SCRIPTING),
            Self::Hyperloglog => acl!(HYPERLOGLOG),
            Self::Geo => acl!(GEO),
            Self::Stream => acl!(STREAM),
            Self::Bitmap => acl!(BITMAP),
            // The publish/subscribe commands get their category by their flag.
            Self::Generic | Self::Server | Self::Cluster | Self::Pubsub => Categories::empty(),
        }
    }
}

bitflags! {
    /// Flags of a command, named as COMMAND shows them, in its order.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CommandFlags: u32 {
        #[bitflags(flag_name = "write")]
        const WRITE = 1 << 0;
        #[bitflags(flag_name = "readonly")]
        const READONLY = 1 << 1;
        #[bitflags(flag_name = "denyoom")]
        const DENYOOM = 1 << 2;
        #[bitflags(flag_name = "admin")]
        const ADMIN = 1 << 3;
        #[bitflags(flag_name = "pubsub")]
        const PUBSUB = 1 << 4;
        #[bitflags(flag_name = "noscript")]
        const NOSCRIPT = 1 << 5;
        #[bitflags(flag_name = "blocking")]
        const BLOCKING = 1 << 6;
        #[bitflags(flag_name = "loading")]
        const LOADING = 1 << 7;
        #[bitflags(flag_name = "stale")]
        const STALE = 1 << 8;
        #[bitflags(flag_name = "skip_monitor")]
        const SKIP_MONITOR = 1 << 9;
        #[bitflags(flag_name = "skip_commandlog")]
        const SKIP_SLOWLOG = 1 << 10;
        #[bitflags(flag_name = "asking")]
        const ASKING = 1 << 11;
        #[bitflags(flag_name = "fast")]
        const FAST = 1 << 12;
        #[bitflags(flag_name = "no_auth")]
        const NO_AUTH = 1 << 13;
        #[bitflags(flag_name = "no_mandatory_keys")]
        const NO_MANDATORY_KEYS = 1 << 14;
        #[bitflags(flag_name = "no_async_loading")]
        const NO_ASYNC_LOADING = 1 << 15;
        #[bitflags(flag_name = "no_multi")]
        const NO_MULTI = 1 << 16;
        #[bitflags(flag_name = "movablekeys")]
        const MOVABLE_KEYS = 1 << 17;
        #[bitflags(flag_name = "allow_busy")]
        const ALLOW_BUSY = 1 << 18;
        const MAY_REPLICATE = 1 << 19;
        const PROTECTED = 1 << 20;
        /// A subscribed RESP2 client may run it.
        const SUBSCRIBER = 1 << 21;
        /// Within MULTI it runs at once instead of being queued.
        const UNQUEUED = 1 << 22;
        /// Runs the queued commands, which the connection passes as its arguments.
        const EXEC = 1 << 23;
        /// Within MULTI, the commands queued behind it run on another database.
        const SELECTS = 1 << 24;
        /// Runs during a pause: it ends pauses, or another server needs the reply.
        const PAUSELESS = 1 << 25;
        /// Runs beside a busy script: that may be of the primary's stream, which the command ends.
        const ENDS_STREAM = 1 << 26;
        /// Is part of no transaction and no script: it waits for others, and cannot be undone.
        const ALONE = 1 << 27;
        /// Runs or shows functions: in a cluster it waits until their libraries are loaded.
        const LIBRARIES = 1 << 28;
        /// Is on all keys of this server: in a cluster it waits until all its shards are served.
        const ALL_SHARDS = 1 << 29;
        /// Waits until no other command runs: a script would wait for itself.
        const AT_REST = 1 << 30;
    }

    /// ACL categories, in the order of ACL CAT's reply.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Categories: u32 {
        #[bitflags(flag_name = "keyspace")]
        const KEYSPACE = 1 << 0;
        #[bitflags(flag_name = "read")]
        const READ = 1 << 1;
        #[bitflags(flag_name = "write")]
        const WRITE = 1 << 2;
        #[bitflags(flag_name = "set")]
        const SET = 1 << 3;
        #[bitflags(flag_name = "sortedset")]
        const SORTEDSET = 1 << 4;
        #[bitflags(flag_name = "list")]
        const LIST = 1 << 5;
        #[bitflags(flag_name = "hash")]
        const HASH = 1 << 6;
        #[bitflags(flag_name = "string")]
        const STRING = 1 << 7;
        #[bitflags(flag_name = "bitmap")]
        const BITMAP = 1 << 8;
        #[bitflags(flag_name = "hyperloglog")]
        const HYPERLOGLOG = 1 << 9;
        #[bitflags(flag_name = "geo")]
        const GEO = 1 << 10;
        #[bitflags(flag_name = "stream")]
        const STREAM = 1 << 11;
        #[bitflags(flag_name = "pubsub")]
        const PUBSUB = 1 << 12;
        #[bitflags(flag_name = "admin")]
        const ADMIN = 1 << 13;
        #[bitflags(flag_name = "fast")]
        const FAST = 1 << 14;
        #[bitflags(flag_name = "slow")]
        const SLOW = 1 << 15;
        #[bitflags(flag_name = "blocking")]
        const BLOCKING = 1 << 16;
        #[bitflags(flag_name = "dangerous")]
        const DANGEROUS = 1 << 17;
        #[bitflags(flag_name = "connection")]
        const CONNECTION = 1 << 18;
        #[bitflags(flag_name = "transaction")]
        const TRANSACTION = 1 << 19;
        #[bitflags(flag_name = "scripting")]
        const SCRIPTING = 1 << 20;
    }
}

/// Flags that COMMAND does not show.
const HIDDEN: CommandFlags = flag!(
    MAY_REPLICATE
        | PROTECTED
        | SUBSCRIBER
        | UNQUEUED
        | EXEC
        | SELECTS
        | PAUSELESS
        | ENDS_STREAM
        | ALONE
        | LIBRARIES
        | ALL_SHARDS
        | AT_REST
);

/// Returns a set of [`CommandFlags`]: `flag!(WRITE | FAST)`. Unlike the operator, it can stand in a
/// constant.
#[macro_export]
macro_rules! flag {
    ($($name:ident)|+) => {
        $crate::CommandFlags::empty()$(.union($crate::CommandFlags::$name))+
    };
}

/// Returns a set of [`Categories`], as [`flag!`] does.
#[macro_export]
macro_rules! acl {
    ($($name:ident)|+) => {
        $crate::Categories::empty()$(.union($crate::Categories::$name))+
    };
}

/// A command's keys as one range: first and last key (negative: from the end), and step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    pub first: i64,
    pub last: i64,
    pub step: i64,
}

impl<R: Runner> Spec<R> {
    /// Returns its keys as one range, for old clients; true if that misses some ("movablekeys").
    ///
    /// Only consecutive ranges of step 1 make one range, unless there is a single one.
    pub fn key_range(&self) -> (KeyRange, bool) {
        let mut range: Option<KeyRange> = None;
        let mut misses = false;
        for spec in self.keys {
            let (Begin::Index(first), Find::Range { last, step, .. }) =
                (spec.begin, spec.find.shown())
            else {
                misses = true;
                continue;
            };
            let first = first as i64;
            let last = if last >= 0 { first + i64::from(last) } else { i64::from(last) };
            let step = step as i64;
            if self.keys.len() > 1 {
                let follows = range.is_none_or(|before| before.last == first - 1);
                if step != 1 || !follows {
                    misses = true;
                    continue;
                }
            }
            misses |= spec.flags.contains(key!(INCOMPLETE));
            let first = range.map_or(first, |before| before.first);
            range = Some(KeyRange { first, last, step });
        }
        (range.unwrap_or_default(), misses)
    }

    /// Returns the names of its flags, as COMMAND shows them.
    pub fn flag_names(&self) -> Vec<&'static str> {
        let mut flags = self.flags.difference(HIDDEN);
        flags.set(CommandFlags::MOVABLE_KEYS, self.has(flag!(MOVABLE_KEYS)) || self.key_range().1);
        flags.iter_names().map(|(name, _)| name).collect()
    }

    /// Returns the names of its ACL categories.
    pub fn category_names(&self) -> Vec<&'static str> {
        self.categories().iter_names().map(|(name, _)| name).collect()
    }
}

impl<R: Runner> Spec<R> {
    /// Returns the indices of the keys in `args`; `None` if the arguments do not fit the key specs.
    pub fn key_indices(&self, args: Args<'_>) -> Option<Vec<usize>> {
        let mut out = Vec::new();
        self.key_specs().try_for_each(|spec| spec.find(args, &mut out))?;
        Some(out)
    }

    /// Returns the indices of the keys in `args` by the key specs that the arguments fit. PFMERGE
    /// may have no sources.
    pub fn fitting_key_indices(&self, args: Args<'_>) -> Vec<usize> {
        let mut out = Vec::new();
        self.key_specs().for_each(|spec| {
            let _ = spec.find(args, &mut out);
        });
        out
    }

    /// Returns the specs of its real keys (without `NOT_KEY`).
    pub(crate) fn key_specs(&self) -> impl Iterator<Item = &'static KeySpec> {
        self.keys.iter().filter(|s| !s.flags.contains(key!(NOT_KEY)))
    }
}
