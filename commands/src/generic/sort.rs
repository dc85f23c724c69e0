//! SORT and SORT_RO. The keys of BY and GET depend on the elements: they are not declared, but
//! found while the command runs.

use super::dump::list_of;
use crate::{
    Ctx, Find, KeySpec, Misses, Outcome, Run, Spec, Stop, acl, arg, error, flag, int_arg, is_word,
    key,
};
use flagstone_storage::encoding::MAX_KEY;
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::slot::slot_of;
use flagstone_storage::store::{OrLoad, Part};
use flagstone_storage::value::{List, Value, Zset};
use flagstone_wire::num::parse_f64;
use flagstone_wire::resp::Args;
use std::cmp::Ordering;
use std::ops::Range;

const BY_DENIED: &str = "ERR BY option of SORT denied due to insufficient ACL permissions.";
const GET_DENIED: &str = "ERR GET option of SORT denied due to insufficient ACL permissions.";

/// The options of SORT.
#[derive(Default)]
struct SortOptions<'a> {
    desc: bool,
    alpha: bool,
    /// LIMIT: first position and number of elements; a negative number means all.
    limit: Option<(i64, i64)>,
    by: Option<Pattern<'a>>,
    /// True for a BY pattern without `*`: the elements keep their order.
    nosort: bool,
    get: Vec<Pattern<'a>>,
    store: Option<&'a [u8]>,
}

impl<'a> SortOptions<'a> {
    /// Parses the options. `reads_all`: the user may read every key; `cluster`: keys made by a
    /// pattern must be in the slot of the sorted key.
    fn parse(
        args: Args<'a>,
        read_only: bool,
        reads_all: bool,
        cluster: bool,
    ) -> Result<Self, Stop> {
        let may_leave =
            |pattern: &[u8]| cluster && pattern_slot(pattern) != args.get(1).map(slot_of);
        let mut options = Self::default();
        let mut at = 2;
        while let Some(word) = args.get(at) {
            let left = args.len() - at - 1;
            if is_word(word, "asc") {
                options.desc = false;
            } else if is_word(word, "desc") {
                options.desc = true;
            } else if is_word(word, "alpha") {
                options.alpha = true;
            } else if is_word(word, "limit") && left >= 2 {
                options.limit = Some((int_arg(args, at + 1)?, int_arg(args, at + 2)?));
                at += 2;
            } else if is_word(word, "store") && left >= 1 && !read_only {
                at += 1;
                options.store = args.get(at);
            } else if is_word(word, "by") && left >= 1 {
                at += 1;
                let pattern = Pattern::new(arg(args, at)?);
                if matches!(pattern, Pattern::Key { .. }) && may_leave(arg(args, at)?) {
                    return Err(BY_LEAVES.into());
                }
                if !reads_all && arg(args, at)?.contains(&b'*') {
                    return Err(BY_DENIED.into());
                }
                options.nosort |= !matches!(pattern, Pattern::Key { .. });
                options.by = Some(pattern);
            } else if is_word(word, "get") && left >= 1 {
                at += 1;
                if arg(args, at)? != b"#" && may_leave(arg(args, at)?) {
                    return Err(GET_LEAVES.into());
                }
                if !reads_all {
                    return Err(GET_DENIED.into());
                }
                options.get.push(Pattern::new(arg(args, at)?));
            } else {
                return Err(error::SYNTAX.into());
            }
            at += 1;
        }
        Ok(options)
    }

    /// Returns the positions that LIMIT selects out of `len`.
    fn window(&self, len: usize) -> Range<usize> {
        let (start, count) = self.limit.unwrap_or((0, -1));
        let within = |n: i64| usize::try_from(n).map_or(len, |n| n.min(len));
        let start = within(start.max(0));
        start..start + within(count).min(len - start)
    }
}

/// Appends the position of SORT's key to store to: the last STORE counts.
fn stored_key(args: Args<'_>, out: &mut Vec<usize>) {
    let mut found = None;
    let mut at = 2;
    while let Some(word) = args.get(at) {
        if is_word(word, "limit") {
            at += 2;
        } else if is_word(word, "get") || is_word(word, "by") {
            at += 1;
        } else if is_word(word, "store") && at + 1 < args.len() {
            found = Some(at + 1);
        }
        at += 1;
    }
    out.extend(found);
}

const BY_LEAVES: &str = "ERR BY option of SORT denied in Cluster mode when keys formed by the \
    pattern may be in different slots.";
const GET_LEAVES: &str = "ERR GET option of SORT denied in Cluster mode when keys formed by the \
    pattern may be in different slots.";

/// Returns the slot of all keys that a pattern can make; `None` if they may differ.
fn pattern_slot(pattern: &[u8]) -> Option<u16> {
    let special = pattern.iter().position(|byte| b"*?[\\".contains(byte));
    let fixed = &pattern[..special.unwrap_or(pattern.len())];
    let has_tag = || {
        let open = fixed.iter().position(|byte| *byte == b'{')?;
        fixed[open + 1..].iter().position(|byte| *byte == b'}').filter(|len| *len > 0)
    };
    (special.is_none() || has_tag().is_some()).then(|| slot_of(fixed))
}

/// A pattern of BY or GET.
enum Pattern<'a> {
    /// `#`: the element itself.
    Element,
    /// A pattern without `*`: no value.
    Nothing,
    /// A key, made by replacing the first `*` with the element; the value is the key's string, or a
    /// field of its hash.
    Key { before: &'a [u8], after: &'a [u8], field: Option<&'a [u8]> },
}

impl<'a> Pattern<'a> {
    fn new(text: &'a [u8]) -> Self {
        if text == b"#" {
            return Self::Element;
        }
        let Some(star) = c_string(text).iter().position(|&byte| byte == b'*') else {
            return Self::Nothing;
        };
        let (before, after) = (&text[..star], &text[star + 1..]);
        let arrow = c_string(after).windows(2).position(|pair| pair == b"->");
        match arrow.map(|arrow| after.split_at(arrow)) {
            Some((after, field)) if !c_string(&field[2..]).is_empty() => {
                Self::Key { before, after, field: Some(&field[2..]) }
            }
            _ => Self::Key { before, after, field: None },
        }
    }

    /// Returns the pattern's value for an element. Missing data is recorded.
    fn apply(
        &self,
        cx: &mut Ctx<'_>,
        element: &[u8],
        misses: &mut Misses,
    ) -> Result<Option<Vec<u8>>, Stop> {
        let (before, after, field) = match *self {
            Self::Element => return Ok(Some(element.to_vec())),
            Self::Nothing => return Ok(None),
            Self::Key { before, after, field } => (before, after, field),
        };
        let key = [before, element, after].concat();
        // A key of that length cannot exist.
        if key.len() > MAX_KEY {
            return Ok(None);
        }
        let (db, due_ms) = (cx.db, cx.due_ms());
        let Some(entry) = misses.note(cx.store.entry(db, &key))? else { return Ok(None) };
        let found = match (&entry.value, field) {
            (Value::Str(string), None) => string.whole().map(|text| Some(text.into_owned())),
            (Value::Hash(hash), Some(field)) => {
                hash.get(field, due_ms).map(|field| field.map(|field| field.value.to_vec()))
            }
            _ => return Ok(None),
        };
        misses.note(found.or_load(db, &key))
    }
}

/// Returns the text before the first zero byte: the reference treats these texts as C strings.
fn c_string(text: &[u8]) -> &[u8] {
    crate::until_zero_byte(text)
}

/// Returns the elements of a key, and the positions to select from them. Of a list or sorted set
/// that keeps its order (BY nosort), only the selected elements are returned.
fn elements(
    cx: &mut Ctx<'_>,
    name: &[u8],
    options: &mut SortOptions<'_>,
) -> Result<(Vec<Vec<u8>>, Range<usize>), Stop> {
    let db = cx.db;
    let in_script = cx.in_script;
    let Some(entry) = cx.store.entry(db, name)? else { return Ok((Vec::new(), 0..0)) };
    let keeps_order = options.nosort && !matches!(entry.value, Value::Set(_));
    let found = match &entry.value {
        Value::Set(set) => {
            if options.nosort && (options.store.is_some() || in_script) {
                // A set has no stable order, and a stored result or a script must not depend on
                // one: sort it.
                (options.nosort, options.alpha, options.by) = (false, true, None);
            }
            set.require_all().map(|()| set.members().into_iter().map(<[u8]>::to_vec).collect())
        }
        Value::List(list) if keeps_order => list_range(list, options),
        Value::List(list) => {
            list.range(0, list.len(), false).map(|all| all.map(<[u8]>::to_vec).collect())
        }
        Value::Zset(zset) if keeps_order => zset_range(zset, options),
        Value::Zset(zset) => {
            zset.require_all().map(|()| zset.iter().map(|(name, _)| name.to_vec()).collect())
        }
        _ => return Err(error::WRONG_TYPE.into()),
    };
    let found: Vec<Vec<u8>> = found.or_load(db, name)?;
    let window = if keeps_order { 0..found.len() } else { options.window(found.len()) };
    Ok((found, window))
}

/// Returns the elements that LIMIT selects from a list in its own order; with DESC from its end.
fn list_range(list: &List, options: &SortOptions<'_>) -> Result<Vec<Vec<u8>>, Part> {
    let window = options.window(list.len() as usize);
    if window.is_empty() {
        return Ok(Vec::new());
    }
    let first = window.start as u64;
    let position = if options.desc { list.len() - 1 - first } else { first };
    let range = list.range(position, window.len() as u64, options.desc)?;
    Ok(range.map(<[u8]>::to_vec).collect())
}

/// Returns the members that LIMIT selects from a sorted set in its own order; with DESC from its
/// end.
fn zset_range(zset: &Zset, options: &SortOptions<'_>) -> Result<Vec<Vec<u8>>, Part> {
    let window = options.window(zset.len() as usize);
    if window.len() as u64 == zset.len() {
        zset.require_all()?;
    }
    let walk = zset.by_rank(window.start as u64, window.len() as u64, options.desc)?;
    walk.map(|member| member.map(|(name, _)| name.to_vec())).collect()
}

/// The sort key of an element.
enum Weight {
    Score(f64),
    /// BY with ALPHA: the text, `None` if the pattern finds none.
    Text(Option<Vec<u8>>),
    /// The element itself, as text.
    Element,
}

fn weigh(
    cx: &mut Ctx<'_>,
    element: &[u8],
    options: &SortOptions<'_>,
    misses: &mut Misses,
) -> Result<Result<Weight, NotANumber>, Stop> {
    let Some(pattern) = &options.by else {
        return Ok(if options.alpha { Ok(Weight::Element) } else { score(element) });
    };
    let text = pattern.apply(cx, element, misses)?;
    Ok(match text {
        text if options.alpha => Ok(Weight::Text(text)),
        Some(text) => score(&text),
        None => Ok(Weight::Score(0.0)),
    })
}

/// Error: a weight is not a number.
struct NotANumber;

/// Parses a number like C's `strtod`: skips leading spaces, stops at a zero byte. An empty text is
/// 0; a subnormal number is refused.
fn score(text: &[u8]) -> Result<Weight, NotANumber> {
    let text = c_string(text);
    if text.is_empty() {
        return Ok(Weight::Score(0.0));
    }
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'\x0b';
    let from = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
    let number = parse_f64(&text[from..]).filter(|number| !number.is_subnormal());
    number.map(Weight::Score).ok_or(NotANumber)
}

/// Compares two elements with their weights. Unless the result is stored, the reference compares
/// texts as C strings.
fn compare(a: &(Weight, Vec<u8>), b: &(Weight, Vec<u8>), stored: bool) -> Ordering {
    fn text(text: &[u8], whole: bool) -> &[u8] {
        if whole { text } else { c_string(text) }
    }
    match (&a.0, &b.0) {
        (Weight::Score(x), Weight::Score(y)) => {
            x.partial_cmp(y).unwrap_or(Ordering::Equal).then_with(|| a.1.cmp(&b.1))
        }
        (Weight::Text(x), Weight::Text(y)) => {
            x.as_deref().map(|x| text(x, stored)).cmp(&y.as_deref().map(|y| text(y, stored)))
        }
        _ => text(&a.1, stored).cmp(text(&b.1, stored)),
    }
}

/// Sorts the elements as the options demand.
fn sort(
    cx: &mut Ctx<'_>,
    elements: Vec<Vec<u8>>,
    options: &SortOptions<'_>,
) -> Result<Vec<Vec<u8>>, Stop> {
    let mut misses = Misses::default();
    let mut weighed = Vec::with_capacity(elements.len());
    let mut all_numbers = true;
    for element in elements {
        match weigh(cx, &element, options, &mut misses)? {
            Ok(weight) => weighed.push((weight, element)),
            Err(NotANumber) => all_numbers = false,
        }
    }
    misses.check()?;
    if !all_numbers {
        return Err("ERR One or more scores can't be converted into double".into());
    }
    weighed.sort_by(|a, b| {
        let order = compare(a, b, options.store.is_some());
        if options.desc { order.reverse() } else { order }
    });
    Ok(weighed.into_iter().map(|(_, element)| element).collect())
}

/// Returns the values of the GET patterns for the elements; without GET the elements themselves.
fn get_values(
    cx: &mut Ctx<'_>,
    elements: Vec<Vec<u8>>,
    options: &SortOptions<'_>,
) -> Result<Vec<Option<Vec<u8>>>, Stop> {
    if options.get.is_empty() {
        return Ok(elements.into_iter().map(Some).collect());
    }
    let mut misses = Misses::default();
    let mut found = Vec::with_capacity(elements.len() * options.get.len());
    for element in &elements {
        for pattern in &options.get {
            found.push(pattern.apply(cx, element, &mut misses)?);
        }
    }
    misses.check()?;
    Ok(found)
}

/// Returns the values to reply with or to store.
fn sorted_values(
    cx: &mut Ctx<'_>,
    name: &[u8],
    options: &mut SortOptions<'_>,
) -> Result<Vec<Option<Vec<u8>>>, Stop> {
    let (mut elements, window) = elements(cx, name, options)?;
    if !options.nosort {
        elements = sort(cx, elements, options)?;
    }
    elements.truncate(window.end);
    elements.drain(..window.start);
    get_values(cx, elements, options)
}

/// Makes a sorted set that was sorted a skiplist, as the reference does; OBJECT ENCODING and the
/// order of ZSCAN reveal it. That changes no value.
fn make_skiplist(cx: &mut Ctx<'_>, name: &[u8]) {
    if let Ok(Some(mut entry)) = cx.store.typed_mut::<Zset>(cx.db, name)
        && let Some(zset) = entry.recoded::<Zset>()
    {
        zset.make_skiplist();
    }
}

fn sort_any(cx: &mut Ctx<'_>, args: Args<'_>, read_only: bool) -> Outcome {
    let cluster = cx.settings.cluster_enabled;
    let mut options = SortOptions::parse(args, read_only, cx.reads_all, cluster)?;
    let name = arg(args, 1)?;
    let found = sorted_values(cx, name, &mut options);
    if let (Some(target), Ok(_)) = (options.store, &found) {
        cx.store.peek(cx.db, target)?;
    }
    if !matches!(found, Err(Stop::Miss(_))) {
        make_skiplist(cx, name);
    }
    let found = found?;
    if let Some(target) = options.store {
        return store(cx, target, found);
    }
    cx.out.array(found.len());
    for value in &found {
        cx.out.bulk_or_null(value.as_deref());
    }
    Ok(())
}

/// Stores the values as a list, missing ones as empty elements; without values the key is deleted.
fn store(cx: &mut Ctx<'_>, target: &[u8], found: Vec<Option<Vec<u8>>>) -> Outcome {
    let count = found.len();
    let elements: Vec<_> = found.into_iter().map(Option::unwrap_or_default).collect();
    let value = list_of(&elements, cx.settings);
    cx.out.count(count);
    Ok(cx.put_result(target, value, NotifyFlags::LIST, "sortstore")?)
}

/// `SORT key [BY pattern] [LIMIT offset count] [GET pattern …] [ASC|DESC] [ALPHA] [STORE
/// destination]`
fn sort_command(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    sort_any(cx, args, false)
}

/// `SORT_RO key [BY pattern] [LIMIT offset count] [GET pattern …] [ASC|DESC] [ALPHA]`
fn sort_ro(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    sort_any(cx, args, true)
}

const COMPLEXITY: &str = "O(N+M*log(M)) where N is the number of elements and M the number of \
    elements returned; O(N) where nothing is sorted.";

/// Declarations of SORT and SORT_RO.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "sort",
        complexity: COMPLEXITY,
        summary: "Returns or stores the elements of a list, set or sorted set in order.",
        arity: -2,
        flags: flag!(WRITE | DENYOOM),
        keys: &[
            KeySpec::one(1, key!(RO | ACCESS)),
            KeySpec::unknown(key!(RO | ACCESS)),
            KeySpec { find: Find::Options(stored_key), ..KeySpec::unknown(key!(OW | UPDATE)) },
        ],
        acl: acl!(SET | SORTEDSET | LIST | DANGEROUS),
        run: Run::Keys(sort_command),
        ..Spec::NEW
    },
    Spec {
        name: "sort_ro",
        since: "7.0.0",
        complexity: COMPLEXITY,
        summary: "Returns the elements of a list, set or sorted set in order.",
        arity: -2,
        flags: flag!(READONLY),
        keys: &[KeySpec::one(1, key!(RO | ACCESS)), KeySpec::unknown(key!(RO | ACCESS))],
        acl: acl!(SET | SORTEDSET | LIST | DANGEROUS),
        run: Run::Keys(sort_ro),
        ..Spec::NEW
    },
];

#[cfg(test)]
#[path = "sort_tests.rs"]
mod tests;
