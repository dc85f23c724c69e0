//! Sorted sets.

pub mod blocking;
pub mod combine;
mod parse;
pub mod pop;
pub mod random;
pub mod range;
pub mod read;
pub mod remove;
pub mod scan;
pub mod write;

use super::{Ctx, ErrorText, KeySpec, Stop, arg, draws, key};
use crate::DataSettings;
use flagstone_rdb::ZsetForm;
use flagstone_storage::store::Part;
use flagstone_storage::value::Zset;
use flagstone_wire::resp::{Args, Reply};

/// Key spec of commands that read members.
const READS: &[KeySpec] = &[KeySpec::one(1, key!(RO | ACCESS))];
/// Key spec of commands that remove members.
const REMOVES: &[KeySpec] = &[KeySpec::one(1, key!(RW | DELETE))];

/// Returns the key, the first argument of most commands here.
fn key_arg(args: Args<'_>) -> Result<&[u8], ErrorText> {
    arg(args, 1)
}

/// Returns the sorted set of a key for reading.
fn zset_of<'a>(cx: &'a mut Ctx<'_>, key: &[u8]) -> Result<Option<&'a Zset>, Stop> {
    Ok(cx.store.typed(cx.db, key)?)
}

/// Returns true if `count` members, the longest with `longest` bytes, exceed the limits of a
/// listpack.
pub(super) fn outgrows_listpack(count: u64, longest: usize, settings: &DataSettings) -> bool {
    count > settings.zset_max_listpack_entries as u64 || longest > settings.zset_max_listpack_value
}

/// Sets the score of a member, which is new or in memory. A listpack becomes a skiplist if it has
/// to.
fn put(zset: &mut Zset, name: &[u8], score: f64, settings: &DataSettings) {
    let is_new = || zset.score(name).is_ok_and(|score| score.is_none());
    if !zset.is_skiplist() && is_new() && outgrows_listpack(zset.len() + 1, name.len(), settings) {
        zset.make_skiplist();
    }
    zset.set(name, score);
}

/// Returns a sorted set of members without duplicates: a listpack if they fit.
pub(super) fn zset_from_members<N: AsRef<[u8]>>(
    members: &[(N, f64)],
    settings: &DataSettings,
) -> Zset {
    let longest = members.iter().map(|(name, _)| name.as_ref().len()).max().unwrap_or(0);
    let mut zset = Zset::new(outgrows_listpack(members.len() as u64, longest, settings));
    for (name, score) in members {
        zset.set(name.as_ref(), *score);
    }
    zset
}

/// Returns the sorted set of a payload. A listpack stays one if its members are not too many,
/// whatever their length, as in Redis.
pub(super) fn restored(
    form: ZsetForm,
    members: &[(Vec<u8>, f64)],
    settings: &DataSettings,
) -> Zset {
    let count = members.len() as u64;
    if form == ZsetForm::Skiplist || outgrows_listpack(count, 0, settings) {
        return zset_from_members(members, settings);
    }
    members.iter().map(|(name, score)| (&**name, *score)).collect()
}

/// Members that are independent of the sorted set's later changes.
type OwnedMembers = Vec<(Box<[u8]>, f64)>;

/// Copies all members of a walk.
fn collect_members<'a>(
    walk: impl Iterator<Item = Result<(&'a [u8], f64), Part>>,
) -> Result<OwnedMembers, Part> {
    walk.map(|item| item.map(|(name, score)| (name.into(), score))).collect()
}

/// Replies with members, and their scores if `with_scores`: in RESP3 as pairs.
pub(super) fn reply<N: AsRef<[u8]>>(out: &mut Reply, members: &[(N, f64)], with_scores: bool) {
    reply_each(out, members.iter().map(|(name, score)| (name, *score)), with_scores);
}

/// Like [`reply`], with members that are found one after the other.
fn reply_each<N: AsRef<[u8]>>(
    out: &mut Reply,
    members: impl ExactSizeIterator<Item = (N, f64)>,
    with_scores: bool,
) {
    let pairs = with_scores && out.is_resp3();
    out.array(if with_scores && !pairs { members.len() * 2 } else { members.len() });
    draws::write_each(out, members, |out, (name, score)| {
        if pairs {
            out.array(2);
        }
        out.bulk(name.as_ref());
        if with_scores {
            out.double(score);
        }
    });
}

#[cfg(test)]
mod tests;
