//! Searches by distance: GEOSEARCH, GEOSEARCHSTORE, and the older GEORADIUS and GEORADIUSBYMEMBER
//! with their _RO forms.

use super::area::{Dimensions, Shape};
use super::grid::{Position, signed_integer};
use super::select::sort_first;
use super::{position_arg, read_key, reply_distance, reply_position, unit_arg};
use crate::DataSettings;
use crate::zset::zset_from_members;
use crate::{
    Begin, Ctx, Find, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, int_arg, is_word,
    key, tail,
};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{Fault, OrLoad};
use flagstone_storage::value::{Span, Typed, Zset};
use flagstone_wire::num::parse_f64;
use flagstone_wire::resp::{Args, Reply};

/// The command, as far as its name determines its syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SearchCommand {
    /// GEOSEARCH
    Search,
    /// GEOSEARCHSTORE
    SearchStore,
    /// GEORADIUS; it may store.
    Radius { stores: bool },
    /// GEORADIUSBYMEMBER; it may store.
    ByMember { stores: bool },
}

impl SearchCommand {
    fn is_search(self) -> bool {
        matches!(self, Self::Search | Self::SearchStore)
    }

    /// Returns true if the command takes STORE and STOREDIST with a key.
    fn takes_target(self) -> bool {
        matches!(self, Self::Radius { stores: true } | Self::ByMember { stores: true })
    }

    /// Returns the position of the argument with the key to search.
    fn key_at(self) -> usize {
        if self == Self::SearchStore { 2 } else { 1 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// The nearest first.
    Ascending,
    Descending,
}

/// Center of a search.
#[derive(Clone, Copy, Debug)]
struct Center {
    position: Position,
    by_member: bool,
}

/// The key to search, with its value.
#[derive(Clone, Copy)]
struct SearchedKey<'a> {
    db: u32,
    key: &'a [u8],
    /// `None` if the key does not exist.
    zset: Option<&'a Zset>,
}

/// The options of a search.
#[derive(Debug, Default)]
struct Search<'a> {
    center: Option<Center>,
    shape: Option<Shape>,
    direction: Option<Direction>,
    /// Maximum number of results; 0: all.
    count: usize,
    /// True if the first members found suffice, not the nearest (ANY).
    any: bool,
    with_distance: bool,
    with_hash: bool,
    with_position: bool,
    /// Key to store the result in.
    target: Option<&'a [u8]>,
    /// True if the distances become the scores of the stored members.
    store_distance: bool,
}

/// A member that a search found.
#[derive(Clone, Copy, Debug)]
struct FoundMember<'a> {
    name: &'a [u8],
    score: f64,
    position: Position,
    /// Distance in meters from the center.
    distance: f64,
}

impl SearchedKey<'_> {
    /// Returns the position of a member. If the key does not exist the position is irrelevant: the
    /// result is empty.
    fn position(&self, name: &[u8]) -> Result<Position, Stop> {
        let Some(zset) = self.zset else { return Ok(Position::default()) };
        let score = zset.score(name).or_load(self.db, self.key)?;
        let score = score.ok_or("ERR could not decode requested zset member")?;
        Ok(Position::of_score(score))
    }
}

/// Parses a length argument; `wrong` is the error for an invalid one.
fn length_arg(args: Args<'_>, at: usize, wrong: &'static str) -> Result<f64, Stop> {
    parse_f64(arg(args, at)?).ok_or_else(|| wrong.into())
}

/// Parses a radius and its unit from an argument on.
fn circle_arg(args: Args<'_>, at: usize) -> Result<Shape, Stop> {
    let radius = length_arg(args, at, "ERR need numeric radius")?;
    if radius < 0.0 {
        return Err("ERR radius cannot be negative".into());
    }
    Ok(Shape { dimensions: Dimensions::Circle { radius }, unit: unit_arg(args, at + 1)? })
}

/// Parses width, height and their unit from an argument on.
fn box_arg(args: Args<'_>, at: usize) -> Result<Shape, Stop> {
    let width = length_arg(args, at, "ERR need numeric width")?;
    let height = length_arg(args, at + 1, "ERR need numeric height")?;
    if width < 0.0 || height < 0.0 {
        return Err("ERR height or width cannot be negative".into());
    }
    Ok(Shape { dimensions: Dimensions::Box { width, height }, unit: unit_arg(args, at + 2)? })
}

impl<'a> Search<'a> {
    fn parse(
        args: Args<'a>,
        command: SearchCommand,
        source: SearchedKey<'_>,
    ) -> Result<Self, Stop> {
        let mut query = Self::default();
        let mut at = match command {
            SearchCommand::Search => 2,
            SearchCommand::SearchStore => {
                query.target = Some(arg(args, 1)?);
                3
            }
            SearchCommand::Radius { .. } => {
                let position = position_arg(args, 2)?;
                query.center = Some(Center { position, by_member: false });
                query.shape = Some(circle_arg(args, 4)?);
                6
            }
            SearchCommand::ByMember { .. } => {
                if source.zset.is_some() {
                    let position = source.position(arg(args, 2)?)?;
                    query.center = Some(Center { position, by_member: true });
                    query.shape = Some(circle_arg(args, 3)?);
                }
                5
            }
        };
        while let Some(word) = args.get(at) {
            let taken = query.take_flag(word, command)
                || query.take_option(args, &mut at, command)?
                || (command.is_search() && query.take_area(args, &mut at, source)?);
            if !taken {
                return Err(error::SYNTAX.into());
            }
            at += 1;
        }
        query.check(args, command)?;
        Ok(query)
    }

    /// Applies an option without a value; returns false if the word is none.
    fn take_flag(&mut self, word: &[u8], command: SearchCommand) -> bool {
        let flags = [
            ("WITHDIST", &mut self.with_distance),
            ("WITHHASH", &mut self.with_hash),
            ("WITHCOORD", &mut self.with_position),
            ("ANY", &mut self.any),
        ];
        if let Some((_, flag)) = flags.into_iter().find(|(name, _)| is_word(word, name)) {
            *flag = true;
        } else if is_word(word, "ASC") {
            self.direction = Some(Direction::Ascending);
        } else if is_word(word, "DESC") {
            self.direction = Some(Direction::Descending);
        } else if command == SearchCommand::SearchStore && is_word(word, "STOREDIST") {
            self.store_distance = true;
        } else {
            return false;
        }
        true
    }

    /// Applies an option with a value, advancing `at` to its last word; returns false if the word
    /// at `at` is none.
    fn take_option(
        &mut self,
        args: Args<'a>,
        at: &mut usize,
        command: SearchCommand,
    ) -> Result<bool, Stop> {
        let (word, Some(value)) = (arg(args, *at)?, args.get(*at + 1)) else { return Ok(false) };
        let with_distance = is_word(word, "STOREDIST");
        if is_word(word, "COUNT") {
            let count = int_arg(args, *at + 1)?;
            if count <= 0 {
                return Err("ERR COUNT must be > 0".into());
            }
            self.count = usize::try_from(count).unwrap_or(usize::MAX);
        } else if command.takes_target() && (with_distance || is_word(word, "STORE")) {
            self.target = Some(value);
            self.store_distance = with_distance;
        } else {
            return Ok(false);
        }
        *at += 1;
        Ok(true)
    }

    /// Applies an option for the center or the shape, in the same way.
    fn take_area(
        &mut self,
        args: Args<'a>,
        at: &mut usize,
        source: SearchedKey<'_>,
    ) -> Result<bool, Stop> {
        let (word, first) = (arg(args, *at)?, *at + 1);
        let left = args.len() - first;
        let by_member = self.center.map(|center| center.by_member);
        let dimensions = self.shape.map(|shape| shape.dimensions);
        if left >= 1 && by_member != Some(false) && is_word(word, "FROMMEMBER") {
            let position = source.position(arg(args, first)?)?;
            self.center = Some(Center { position, by_member: true });
            *at += 1;
        } else if left >= 2 && by_member != Some(true) && is_word(word, "FROMLONLAT") {
            let position = position_arg(args, first)?;
            self.center = Some(Center { position, by_member: false });
            *at += 2;
        } else if left >= 2
            && !matches!(dimensions, Some(Dimensions::Box { .. }))
            && is_word(word, "BYRADIUS")
        {
            self.shape = Some(circle_arg(args, first)?);
            *at += 2;
        } else if left >= 3
            && !matches!(dimensions, Some(Dimensions::Circle { .. }))
            && is_word(word, "BYBOX")
        {
            self.shape = Some(box_arg(args, first)?);
            *at += 3;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Checks that the options do not contradict each other.
    fn check(&self, args: Args<'_>, command: SearchCommand) -> Result<(), Stop> {
        if self.target.is_some() && self.has_details() {
            let what = match command {
                SearchCommand::SearchStore => "GEOSEARCHSTORE",
                _ => "STORE option in GEORADIUS",
            };
            return Err(format!(
                "ERR {what} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
            )
            .into());
        }
        let exactly_one = |of: &str| {
            let name = String::from_utf8_lossy(args.get(0).unwrap_or_default());
            Err(format!("ERR exactly one of {of} can be specified for {name}").into())
        };
        if command.is_search() && self.center.is_none() {
            return exactly_one("FROMMEMBER or FROMLONLAT");
        }
        if command.is_search() && self.shape.is_none() {
            return exactly_one("BYRADIUS and BYBOX");
        }
        if self.any && self.count == 0 {
            return Err("ERR the ANY argument requires COUNT argument".into());
        }
        Ok(())
    }

    /// Returns true if the reply has more than names.
    fn has_details(&self) -> bool {
        self.with_distance || self.with_hash || self.with_position
    }

    /// Returns the number of results out of `len` members found.
    fn wanted(&self, len: usize) -> usize {
        if self.count == 0 { len } else { len.min(self.count) }
    }

    /// Searches the key, and returns the members found.
    fn run<'z>(&self, source: SearchedKey<'z>) -> Result<Vec<FoundMember<'z>>, Fault> {
        let (Some(zset), Some(center), Some(shape)) = (source.zset, self.center, self.shape) else {
            return Ok(Vec::new());
        };
        let center = center.position;
        let most = if self.any { self.count } else { usize::MAX };
        let mut found = Vec::new();
        'cells: for cell in shape.cells(center) {
            let (first, end) = cell.scores();
            let span = Span::by_score((first, false), (end, true));
            let members = zset.within(&span, 0, u64::MAX, false);
            for member in members.or_load(source.db, source.key)? {
                let (name, score) = member.or_load(source.db, source.key)?;
                let position = Position::of_score(score);
                if let Some(distance) = shape.distance(center, position) {
                    found.push(FoundMember { name, score, position, distance });
                }
                if found.len() >= most {
                    break 'cells;
                }
            }
        }
        self.sort(&mut found);
        found.truncate(self.wanted(found.len()));
        Ok(found)
    }

    /// Moves the wanted members to the front, in order.
    fn sort(&self, found: &mut [FoundMember<'_>]) {
        // A COUNT selects the nearest members, unless with ANY.
        let nearest = (self.count > 0 && !self.any).then_some(Direction::Ascending);
        let Some(direction) = self.direction.or(nearest) else { return };
        let order = |a: &FoundMember<'_>, b: &FoundMember<'_>| match direction {
            Direction::Ascending => a.distance.total_cmp(&b.distance),
            Direction::Descending => b.distance.total_cmp(&a.distance),
        };
        match self.wanted(found.len()) {
            wanted if wanted == found.len() => found.sort_by(order),
            wanted => sort_first(found, wanted, &order),
        }
    }

    /// Converts a distance to the unit of the search.
    fn in_unit(&self, meters: f64) -> f64 {
        meters / self.shape.map_or(1.0, |shape| shape.unit)
    }

    fn reply(&self, out: &mut Reply, found: &[FoundMember<'_>]) {
        let details = [self.with_distance, self.with_hash, self.with_position];
        let details = details.into_iter().filter(|wanted| *wanted).count();
        out.array(found.len());
        for member in found {
            if details > 0 {
                out.array(1 + details);
            }
            out.bulk(member.name);
            if self.with_distance {
                reply_distance(out, self.in_unit(member.distance));
            }
            if self.with_hash {
                out.int(signed_integer(member.score));
            }
            if self.with_position {
                reply_position(out, member.position);
            }
        }
    }

    /// Returns the sorted set to store.
    fn stored(&self, found: &[FoundMember<'_>], settings: &DataSettings) -> Zset {
        let score = |member: &FoundMember<'_>| match self.store_distance {
            true => self.in_unit(member.distance),
            false => member.score,
        };
        let members: Vec<(&[u8], f64)> =
            found.iter().map(|member| (member.name, score(member))).collect();
        zset_from_members(&members, settings)
    }
}

fn search(cx: &mut Ctx<'_>, args: Args<'_>, command: SearchCommand) -> Outcome {
    let (db, key) = (cx.db, arg(args, command.key_at())?);
    let zset = cx.store.typed::<Zset>(db, key)?;
    let query = Search::parse(args, command, SearchedKey { db, key, zset })?;
    let Some(target) = query.target else {
        let found = query.run(SearchedKey { db, key, zset })?;
        query.reply(cx.out, &found);
        return Ok(());
    };
    cx.store.peek(db, target)?;
    let zset = cx.store.found(db, key).and_then(|entry| Zset::of(&entry.value));
    let found = query.run(SearchedKey { db, key, zset })?;
    let stored = query.stored(&found, cx.settings);
    cx.out.count(stored.len() as usize);
    let event = if command.is_search() { "geosearchstore" } else { "georadiusstore" };
    Ok(cx.put_result(target, stored.into_value(), NotifyFlags::ZSET, event)?)
}

/// `GEOSEARCH key FROMMEMBER member | FROMLONLAT longitude latitude
/// BYRADIUS radius unit | BYBOX width height unit [ASC | DESC] [COUNT count [ANY]] [WITHCOORD]
/// [WITHDIST] [WITHHASH]`
fn geosearch(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    search(cx, args, SearchCommand::Search)
}

/// `GEOSEARCHSTORE destination source` with the options of GEOSEARCH, or STOREDIST instead of WITH…
fn geosearchstore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    search(cx, args, SearchCommand::SearchStore)
}

/// `GEORADIUS key longitude latitude radius unit [ASC | DESC] [COUNT count [ANY]] [WITHCOORD]
/// [WITHDIST] [WITHHASH] [STORE key | STOREDIST key]`
fn georadius(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    search(cx, args, SearchCommand::Radius { stores: true })
}

/// Runs GEORADIUS without STORE and STOREDIST.
fn georadius_ro(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    search(cx, args, SearchCommand::Radius { stores: false })
}

/// `GEORADIUSBYMEMBER key member radius unit` with the options of GEORADIUS
fn georadiusbymember(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    search(cx, args, SearchCommand::ByMember { stores: true })
}

/// Runs GEORADIUSBYMEMBER without STORE and STOREDIST.
fn georadiusbymember_ro(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    search(cx, args, SearchCommand::ByMember { stores: false })
}

/// Returns the key spec of the key behind a word, which is overwritten.
const fn target_key(word: &'static str, from: i32) -> KeySpec {
    KeySpec {
        flags: key!(OW | UPDATE),
        begin: Begin::Keyword(word, from),
        find: Find::Range { last: 0, step: 1, limit: 0 },
    }
}

/// Returns the keys behind all STORE options: the last one takes effect.
fn targets<'a>(args: Args<'a>, db: u32, _: &[(u32, &'a [u8])]) -> Vec<(u32, &'a [u8])> {
    let is_target = |word: &[u8]| is_word(word, "STORE") || is_word(word, "STOREDIST");
    tail(args, 5)
        .zip(tail(args, 6))
        .filter(|(word, _)| is_target(word))
        .map(|(_, key)| (db, key))
        .collect()
}

/// Common declaration of the searches that only read.
const READ: Spec = Spec {
    group: Group::Geo,
    since: "6.2.0",
    complexity: "O(N+log(M)) for N members in the cells around the area, and M members in all.",
    arity: -7,
    flags: flag!(READONLY),
    keys: &[read_key(1)],
    ..Spec::NEW
};

/// Common declaration of the searches that may store their result.
const STORE: Spec = Spec { since: "3.2.0", flags: flag!(WRITE | DENYOOM), ..READ };

/// Declarations of the search commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "geosearch",
        summary: "Returns the members in a circle or box.",
        run: Run::Keys(geosearch),
        ..READ
    },
    Spec {
        name: "geosearchstore",
        since: "6.2.0",
        summary: "Stores the members in a circle or box.",
        arity: -8,
        keys: &[KeySpec::one(1, key!(OW | UPDATE)), read_key(2)],
        run: Run::Keys(geosearchstore),
        ..STORE
    },
    Spec {
        name: "georadius",
        summary: "Returns or stores the members in a circle around a position.",
        arity: -6,
        keys: &[read_key(1), target_key("STORE", 6), target_key("STOREDIST", 6)],
        other_db: Some(targets),
        run: Run::Keys(georadius),
        ..STORE
    },
    Spec {
        name: "georadius_ro",
        since: "3.2.10",
        summary: "Returns the members in a circle around a position.",
        arity: -6,
        run: Run::Keys(georadius_ro),
        ..READ
    },
    Spec {
        name: "georadiusbymember",
        summary: "Returns or stores the members in a circle around a member.",
        arity: -5,
        keys: &[read_key(1), target_key("STORE", 5), target_key("STOREDIST", 5)],
        other_db: Some(targets),
        run: Run::Keys(georadiusbymember),
        ..STORE
    },
    Spec {
        name: "georadiusbymember_ro",
        since: "3.2.10",
        summary: "Returns the members in a circle around a member.",
        arity: -5,
        run: Run::Keys(georadiusbymember_ro),
        ..READ
    },
];
