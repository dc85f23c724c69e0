//! Members and their positions: GEOADD, GEOPOS, GEODIST, GEOHASH.

use super::area::distance;
use super::grid::{Cell, MAX_STEP, Position, WHOLE_EARTH};
use super::{position_arg, read_key, reply_distance, reply_position, unit_arg};
use crate::zset::read::each_score;
use crate::zset::write::{ZaddOptions, add_pairs};
use crate::{Ctx, Group, KeySpec, Names, Outcome, Run, Spec, Stop, arg, error, flag, is_word, key};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Zset;
use flagstone_wire::resp::{Args, Reply};

/// `GEOADD key [NX | XX] [CH] (longitude latitude member)…`
fn geoadd(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let mut options = ZaddOptions::default();
    let (mut first, mut only_new, mut only_old) = (2, false, false);
    while let Some(word) = args.get(first) {
        let (is_new, is_old) = (is_word(word, "NX"), is_word(word, "XX"));
        if !(is_new || is_old || is_word(word, "CH")) {
            break;
        }
        options.take(word);
        only_new |= is_new;
        only_old |= is_old;
        first += 1;
    }
    let words = args.len() - first;
    if !words.is_multiple_of(3) || (only_new && only_old) {
        return Err(error::SYNTAX.into());
    }
    let place = |at| Ok((position_arg(args, at)?.score(), arg(args, at + 2)?));
    let pairs: Vec<(f64, &[u8])> =
        (first..args.len()).step_by(3).map(place).collect::<Result<_, Stop>>()?;
    if pairs.is_empty() {
        return Err(error::SYNTAX.into());
    }
    add_pairs(cx, arg(args, 1)?, &pairs, options)?;
    if cx.is_heard() {
        say_scores(cx, args, first, &pairs);
    }
    Ok(())
}

/// Says a ZADD of the scores; the options end at `first`.
fn say_scores(cx: &mut Ctx<'_>, args: Args<'_>, first: usize, pairs: &[(f64, &[u8])]) {
    let scores: Vec<String> = pairs.iter().map(|(score, _)| format!("{score:.0}")).collect();
    let mut words: Vec<&[u8]> = args.iter().take(first).collect();
    words[0] = b"ZADD";
    for (score, (_, name)) in scores.iter().zip(pairs) {
        words.extend([score.as_bytes(), name]);
    }
    cx.say_change(&words);
}

/// Writes a reply for each of the members from the second argument on: `reply` with its position,
/// or `none` if it does not exist.
fn show(
    cx: &mut Ctx<'_>,
    args: Args<'_>,
    reply: impl Fn(&mut Reply, Position),
    none: impl Fn(&mut Reply),
) -> Outcome {
    each_score(cx, args, |out, score| match score {
        Some(score) => reply(out, Position::of_score(score)),
        None => none(out),
    })
}

/// `GEOPOS key [member…]`
fn geopos(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, reply_position, Reply::null_array)
}

/// `GEOHASH key [member…]`
fn geohash(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let reply = |out: &mut Reply, position: Position| {
        out.bulk(&Cell::of(position, &WHOLE_EARTH, MAX_STEP).text());
    };
    show(cx, args, reply, Reply::null)
}

/// `GEODIST key member member [M | KM | FT | MI]`
fn geodist(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let unit = match args.len() {
        4 => 1.0,
        5 => unit_arg(args, 4)?,
        _ => return Err(error::SYNTAX.into()),
    };
    let key = arg(args, 1)?;
    let mut places = None;
    if let Some(zset) = cx.store.typed::<Zset>(cx.db, key)? {
        let names = [arg(args, 2)?, arg(args, 3)?];
        zset.require(names.into_iter()).or_load(cx.db, key)?;
        let [from, to] = names.map(|name| zset.score(name).ok().flatten());
        places = from.zip(to);
    }
    match places {
        Some((from, to)) => {
            let meters = distance(Position::of_score(from), Position::of_score(to));
            reply_distance(cx.out, meters / unit);
        }
        None => cx.out.null(),
    }
    Ok(())
}

/// Common declaration of the commands that read members.
const READ: Spec = Spec {
    group: Group::Geo,
    since: "3.2.0",
    complexity: "O(N) where N is the number of members named.",
    arity: -2,
    flags: flag!(READONLY),
    keys: &[read_key(1)],
    ..Spec::NEW
};

/// Declarations of the commands on named members.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "geoadd",
        names: Some(Names::behind(&["NX", "XX", "CH"], 4, 3)),
        complexity: "O(log(N)) for each member, N being how many the sorted set has.",
        summary: "Adds members with their positions, or moves them.",
        arity: -5,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(1, key!(RW | UPDATE))],
        run: Run::Keys(geoadd),
        ..READ
    },
    Spec {
        name: "geopos",
        names: Some(Names::from(2, 1)),
        summary: "Returns the longitudes and latitudes of members.",
        run: Run::Keys(geopos),
        ..READ
    },
    Spec {
        name: "geodist",
        complexity: "O(1)",
        summary: "Returns the distance between two members.",
        arity: -4,
        run: Run::Keys(geodist),
        ..READ
    },
    Spec {
        name: "geohash",
        names: Some(Names::from(2, 1)),
        summary: "Returns the positions of members as geohashes.",
        run: Run::Keys(geohash),
        ..READ
    },
];
