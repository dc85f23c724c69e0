//! SORT and SORT_RO. The keys of BY and GET depend on the elements: they are not declared, but
//! found while the command runs.

use super::dump::list_of;
use super::sort_values::{Pattern, SortMisses, SortText, SortUse, SortValues, c_string};
use crate::{
    Ctx, Find, KeySpec, Outcome, Run, Spec, Stop, acl, arg, error, flag, int_arg, is_word, key,
    string,
};
use flagstone_rdb::PART_OVERHEAD;
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::slot::slot_of;
use flagstone_storage::store::{OrLoad, Part};
use flagstone_storage::value::{List, Value, Zset};
use flagstone_storage::words::NAMES_AT_ONCE;
use flagstone_wire::num::parse_f64;
use flagstone_wire::resp::Args;
use flagstone_wire::resp::reply::FRAME;
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
enum Weight<'s> {
    Score(f64),
    /// BY with ALPHA: the text, `None` if the pattern finds none.
    Text(Option<SortText<'s>>),
    /// The element itself, as text.
    Element,
}

/// Returns the sort key of an element. Missing data is recorded, and a text is only found: it is read
/// in the store once all are there.
fn weigh(
    cx: &mut Ctx<'_>,
    element: &[u8],
    options: &SortOptions<'_>,
    misses: &mut SortMisses,
) -> Result<Result<Weight<'static>, NotANumber>, Stop> {
    let Some(pattern) = &options.by else {
        return Ok(if options.alpha { Ok(Weight::Element) } else { score(element) });
    };
    let use_as = if options.alpha { SortUse::Text } else { SortUse::Number };
    let text = pattern.find(cx, element, use_as, misses)?;
    Ok(match text {
        _ if options.alpha => Ok(Weight::Text(None)),
        Some(text) => text.number().ok_or(NotANumber).and_then(|text| score(&text)),
        None => Ok(Weight::Score(0.0)),
    })
}

/// Error: a weight is not a number.
struct NotANumber;

/// Parses a number like C's `strtod`: skips leading spaces, stops at a zero byte. An empty text is
/// 0; a subnormal number is refused.
fn score(text: &[u8]) -> Result<Weight<'static>, NotANumber> {
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
fn compare(a: (&Weight<'_>, &[u8]), b: (&Weight<'_>, &[u8]), stored: bool) -> Ordering {
    let bytes = |text| SortText::Bytes(text);
    match (a.0, b.0) {
        (Weight::Score(x), Weight::Score(y)) => {
            x.partial_cmp(y).unwrap_or(Ordering::Equal).then_with(|| a.1.cmp(b.1))
        }
        (Weight::Text(Some(x)), Weight::Text(Some(y))) => x.compare(y, stored),
        (Weight::Text(x), Weight::Text(y)) => x.is_some().cmp(&y.is_some()),
        _ => bytes(a.1).compare(&bytes(b.1), stored),
    }
}

/// Sorts the elements as the options demand.
fn sort(
    cx: &mut Ctx<'_>,
    mut elements: Vec<Vec<u8>>,
    options: &SortOptions<'_>,
    misses: &mut SortMisses,
) -> Result<Vec<Vec<u8>>, Stop> {
    let mut weights = Vec::with_capacity(elements.len());
    let mut all_numbers = true;
    for element in &elements {
        match weigh(cx, element, options, misses)? {
            Ok(weight) => weights.push(weight),
            Err(NotANumber) => all_numbers = false,
        }
    }
    misses.check()?;
    if !all_numbers {
        return Err("ERR One or more scores can't be converted into double".into());
    }
    let mut order: Vec<usize> = (0..elements.len()).collect();
    let (values, stored) = (SortValues::of(cx.store, cx.db), options.store.is_some());
    let mut weights: Vec<Weight<'_>> = weights;
    if let Some(pattern) = options.by.as_ref().filter(|_| options.alpha) {
        weights.clear();
        weights.extend(elements.iter().map(|one| Weight::Text(values.value(pattern, one))));
    }
    order.sort_by(|&a, &b| {
        let (x, y) = ((&weights[a], &elements[a][..]), (&weights[b], &elements[b][..]));
        let order = compare(x, y, stored);
        if options.desc { order.reverse() } else { order }
    });
    drop(weights);
    Ok(order.into_iter().map(|at| std::mem::take(&mut elements[at])).collect())
}

/// Returns the elements that are selected, in order. The values of the GET patterns for them are in
/// memory then. `None`: there is no room for a reply of them.
fn selected(
    cx: &mut Ctx<'_>,
    name: &[u8],
    options: &mut SortOptions<'_>,
    misses: &mut SortMisses,
) -> Result<Option<Vec<Vec<u8>>>, Stop> {
    let (mut elements, window) = elements(cx, name, options)?;
    if !options.nosort {
        elements = sort(cx, elements, options, misses)?;
    }
    elements.truncate(window.end);
    elements.drain(..window.start);
    for element in &elements {
        for pattern in &options.get {
            pattern.find(cx, element, SortUse::Text, misses)?;
        }
    }
    if !misses.is_empty() && !foresee(cx, &elements, options)? {
        return Ok(None);
    }
    misses.check()?;
    Ok(Some(elements))
}

/// Returns true if there is room for a reply of the values, as far as their sizes are known before they are
/// loaded. Fails if a list of them would be too large.
fn foresee(
    cx: &mut Ctx<'_>,
    elements: &[Vec<u8>],
    options: &SortOptions<'_>,
) -> Result<bool, Stop> {
    let values = SortValues::of(cx.store, cx.db);
    if options.store.is_some() {
        let (all, _) = values.all_known_bytes(elements, &options.get, PART_OVERHEAD);
        return if all > cx.longest_made() { Err(error::TOO_MUCH_MADE.into()) } else { Ok(true) };
    }
    let (all, greatest) = values.all_known_bytes(elements, &options.get, FRAME);
    Ok(cx.out.foresee(all, greatest))
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
    let mut misses = SortMisses::default();
    let found = selected(cx, name, &mut options, &mut misses);
    if let (Some(target), Ok(_)) = (options.store, &found) {
        cx.store.peek(cx.db, target)?;
    }
    if !matches!(found, Err(Stop::Miss(_))) {
        make_skiplist(cx, name);
    }
    let Some(elements) = found? else { return Ok(()) };
    if let Some(target) = options.store {
        return store(cx, target, &elements, &options, misses.met_expired());
    }
    let count = elements.len() * options.get.len().max(1);
    let (values, out) = (SortValues::of(cx.store, cx.db), &mut *cx.out);
    out.array(count);
    for value in values.all(&elements, &options.get) {
        match &value {
            Some(SortText::Big(text)) => string::bulk(out, text).or_load(cx.db, name)?,
            Some(text) => out.bulk(&text.whole()),
            None => out.null(),
        }
        if out.is_lost() {
            break;
        }
    }
    Ok(())
}

/// Stores the values as a list, missing ones as empty elements; without values the key is deleted.
fn store(
    cx: &mut Ctx<'_>,
    target: &[u8],
    elements: &[Vec<u8>],
    options: &SortOptions<'_>,
    met_expired: bool,
) -> Outcome {
    let values = SortValues::of(cx.store, cx.db).all(elements, &options.get);
    if !options.get.is_empty() {
        let mut left = cx.longest_made();
        for value in values.clone() {
            let bytes = PART_OVERHEAD + value.map_or(0, |text| text.len());
            left = left.checked_sub(bytes).ok_or(error::TOO_MUCH_MADE)?;
        }
    }
    let list = list_of(values.map(SortText::stored), cx.settings);
    cx.out.count(elements.len() * options.get.len().max(1));
    if met_expired && cx.is_heard() {
        say_list(cx, target, &list)?;
    }
    Ok(cx.put_result(target, list, NotifyFlags::LIST, "sortstore")?)
}

/// Says the stored list itself: replicas do not know that a field has expired which it would depend
/// on there.
fn say_list(cx: &mut Ctx<'_>, target: &[u8], list: &Value) -> Outcome {
    cx.say(&[b"DEL", target]);
    let Value::List(list) = list else { return Ok(()) };
    let mut words: Vec<&[u8]> = vec![b"RPUSH", target];
    for element in list.range(0, list.len(), false).or_load(cx.db, target)? {
        if words.len() == NAMES_AT_ONCE {
            cx.say(&words);
            words.truncate(2);
        }
        words.push(element);
    }
    if words.len() > 2 {
        cx.say(&words);
    }
    Ok(())
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
