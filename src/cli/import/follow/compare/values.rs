//! Values in a form that does not depend on the server, and comparisons of large ones in pieces.

use super::super::side::{Pair, words};
use super::{Comparison, EXPIRY_TOLERANCE_MS, KeyFacts};
use crate::cli::connection::Reply;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// Bytes of a large value that are asked for at once, about, and the maximum number of its elements.
const PIECE_BYTES: u64 = 256 << 10;
const PIECE_ELEMENTS: u64 = 1024;
/// Entries of a stream, or of a list of pending ones, that are asked for at once.
const PIECE_ENTRIES: &[u8] = b"256";

/// The command that tells when fields of a hash expire.
const HASH_TIMES: &str = "HPEXPIRETIME";

/// A value's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    None,
    String,
    List,
    Set,
    SortedSet,
    Hash,
    Stream,
    /// The type of a module.
    Other,
}

/// Commands that not every source has.
#[derive(Debug, Default)]
pub(super) struct Probe {
    pub(super) has_expiry_times: bool,
    pub(super) has_field_times: bool,
    pub(super) has_libraries: bool,
}

impl Probe {
    /// Asks the source.
    pub(super) fn of(pair: &mut Pair) -> Result<Self> {
        let mut knows = |command: &str| -> Result<bool> {
            let reply = pair.source.call(&[b"COMMAND", b"INFO", command.as_bytes()])?;
            let reply = reply.into_array()?;
            Ok(matches!(reply.first(), Some(Reply::Array(facts)) if !facts.is_empty()))
        };
        Ok(Self {
            has_expiry_times: knows("PEXPIRETIME")?,
            has_field_times: knows(HASH_TIMES)?,
            has_libraries: knows("FUNCTION")?,
        })
    }

    /// Returns the command that tells when a key expires; of older servers, in how long.
    pub(super) fn expiry_command(&self) -> &'static [u8] {
        if self.has_expiry_times { b"PEXPIRETIME" } else { b"PTTL" }
    }
}

impl ValueKind {
    pub(super) fn of(name: &str) -> Self {
        match name {
            "none" => Self::None,
            "string" => Self::String,
            "list" => Self::List,
            "set" => Self::Set,
            "zset" => Self::SortedSet,
            "hash" => Self::Hash,
            "stream" => Self::Stream,
            _ => Self::Other,
        }
    }

    /// Returns true if one command reads all of a value.
    pub(super) fn is_read_whole(self) -> bool {
        !matches!(self, Self::None | Self::Stream | Self::Other)
    }

    /// Returns the command that reads all of a value.
    pub(super) fn whole(self, key: &[u8]) -> Vec<Vec<u8>> {
        match self {
            Self::List => words(&[b"LRANGE", key, b"0", b"-1"]),
            Self::Set => words(&[b"SMEMBERS", key]),
            Self::SortedSet => words(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]),
            Self::Hash => words(&[b"HGETALL", key]),
            _ => words(&[b"GET", key]),
        }
    }

    fn len_command(self) -> &'static [u8] {
        match self {
            Self::List => b"LLEN",
            Self::Set => b"SCARD",
            Self::SortedSet => b"ZCARD",
            Self::Hash => b"HLEN",
            _ => b"STRLEN",
        }
    }

    /// Orders a reply with all of a value, if its order means nothing.
    pub(super) fn sort(self, reply: &mut Reply) {
        let Reply::Array(elements) = reply else { return };
        let width = match self {
            Self::Set => 1,
            Self::Hash => 2,
            _ => return,
        };
        let mut groups: Vec<Vec<Reply>> = elements.chunks(width).map(<[Reply]>::to_vec).collect();
        groups.sort_by(|one, other| bytes_of(one.first()).cmp(bytes_of(other.first())));
        *elements = groups.into_iter().flatten().collect();
    }
}

fn bytes_of(reply: Option<&Reply>) -> &[u8] {
    match reply {
        Some(Reply::Bulk(bytes)) => bytes,
        _ => b"",
    }
}

/// A value: its elements, each with the field's value or the score.
type Parts = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns the parts of a value, or of a piece, in a form in which equal ones are equal. An error of the
/// server's, as of a key that has another type by now, is a part that nothing else is equal to.
pub(super) fn parts(kind: ValueKind, reply: Reply) -> Result<Parts> {
    let elements = match reply {
        Reply::Array(elements) => elements,
        Reply::Bulk(bytes) => return Ok(vec![(bytes, Vec::new())]),
        Reply::Error(error) => return Ok(vec![(Vec::new(), error.into_bytes())]),
        Reply::Null => return Ok(Vec::new()),
        other => bail!("unexpected reply {other:?}"),
    };
    let mut elements = elements.into_iter().map(Reply::into_bulk);
    let mut parts = Parts::new();
    while let Some(element) = elements.next().transpose()? {
        let second = match kind {
            ValueKind::Hash => elements.next().transpose()?.context("a field without a value")?,
            ValueKind::SortedSet => score(&elements.next().transpose()?.context("no score")?)?,
            _ => Vec::new(),
        };
        parts.push((element, second));
    }
    if matches!(kind, ValueKind::Set | ValueKind::Hash) {
        parts.sort();
    }
    Ok(parts)
}

/// Returns a score's bits: servers print them with different numbers of digits.
fn score(text: &[u8]) -> Result<Vec<u8>> {
    let number: f64 = std::str::from_utf8(text)?.parse().context("a score")?;
    Ok((number + 0.0).to_bits().to_be_bytes().to_vec())
}

/// Returns a digest of a reply.
pub(super) fn fingerprint(reply: &Reply) -> [u8; 32] {
    let mut hash = Sha256::new();
    add(&mut hash, reply);
    hash.finalize().into()
}

fn add(hash: &mut Sha256, reply: &Reply) {
    let mut bytes = |kind: u8, bytes: &[u8]| {
        hash.update([kind]);
        hash.update(bytes.len().to_be_bytes());
        hash.update(bytes);
    };
    match reply {
        Reply::Status(text) => bytes(0, text.as_bytes()),
        Reply::Error(text) => bytes(1, text.as_bytes()),
        Reply::Integer(number) => bytes(2, &number.to_be_bytes()),
        Reply::Bulk(text) => bytes(3, text),
        Reply::Null => bytes(4, b""),
        Reply::Array(elements) => {
            bytes(5, &elements.len().to_be_bytes());
            elements.iter().for_each(|element| add(hash, element));
        }
    }
}

/// Returns the question for the expiries of a hash's fields.
pub(super) fn times(key: &[u8], fields: &[&[u8]]) -> Vec<Vec<u8>> {
    let count = fields.len().to_string();
    let mut question = words(&[HASH_TIMES.as_bytes(), key, b"FIELDS", count.as_bytes()]);
    question.extend(fields.iter().map(|field| field.to_vec()));
    question
}

/// Compares expiries of fields.
pub(super) fn are_close(here: &Reply, there: &Reply) -> bool {
    match (here, there) {
        (Reply::Array(here), Reply::Array(there)) => {
            here.len() == there.len()
                && here.iter().zip(there).all(|(one, other)| are_close(one, other))
        }
        (Reply::Integer(one), Reply::Integer(other)) => {
            one == other
                || (*one >= 0 && *other >= 0 && one.abs_diff(*other) <= EXPIRY_TOLERANCE_MS)
        }
        (one, other) => one == other,
    }
}

/// Returns names and code of the libraries in a reply to FUNCTION LIST.
pub(super) fn libraries(reply: Reply) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut found = Vec::new();
    for library in reply.into_array().context("FUNCTION LIST")? {
        let mut facts = library.into_array()?.into_iter();
        let (mut name, mut code) = (Vec::new(), Vec::new());
        while let (Some(field), Some(value)) = (facts.next(), facts.next()) {
            match (bytes_of(Some(&field)), value) {
                (b"library_name", Reply::Bulk(text)) => name = text,
                (b"library_code", Reply::Bulk(text)) => code = text,
                _ => {}
            }
        }
        found.push((name, code));
    }
    found.sort();
    Ok(found)
}

impl Comparison<'_, '_> {
    /// Compares a value in pieces. Returns false if it differs, or has changed meanwhile.
    pub(super) fn compare_large(&mut self, key: &[u8], facts: &KeyFacts) -> Result<bool> {
        if facts.kind == ValueKind::Stream {
            return self.compare_stream(key);
        }
        let (len, other) = self.pair.ask_one(words(&[facts.kind.len_command(), key]))?;
        if len != other {
            return Ok(false);
        }
        let Reply::Integer(len) = len else { return Ok(false) };
        let len = len.unsigned_abs();
        let element = (facts.bytes / len.max(1)).max(1);
        let count = (PIECE_BYTES / element).clamp(1, PIECE_ELEMENTS);
        match facts.kind {
            ValueKind::String => self.compare_ranges(key, facts.kind, (len, PIECE_BYTES)),
            ValueKind::List | ValueKind::SortedSet => {
                self.compare_ranges(key, facts.kind, (len, count))
            }
            _ => self.compare_scanned(key, facts.kind, count),
        }
    }

    /// Compares a value whose elements have an order.
    fn compare_ranges(
        &mut self,
        key: &[u8],
        kind: ValueKind,
        (len, step): (u64, u64),
    ) -> Result<bool> {
        let mut from = 0;
        while from < len {
            (self.pulse)(self.pair)?;
            let (first, last) = (from.to_string(), (from + step - 1).to_string());
            let range = [first.as_bytes(), last.as_bytes()];
            let question = match kind {
                ValueKind::List => words(&[b"LRANGE", key, range[0], range[1]]),
                ValueKind::SortedSet => words(&[b"ZRANGE", key, range[0], range[1], b"WITHSCORES"]),
                _ => words(&[b"GETRANGE", key, range[0], range[1]]),
            };
            let (here, there) = self.pair.ask_one(question)?;
            if parts(kind, here)? != parts(kind, there)? {
                return Ok(false);
            }
            from += step;
        }
        Ok(true)
    }

    /// Compares a set or a hash: both have as many elements, so those of the source have to be in the
    /// target.
    fn compare_scanned(&mut self, key: &[u8], kind: ValueKind, count: u64) -> Result<bool> {
        let scan: &[u8] = if kind == ValueKind::Set { b"SSCAN" } else { b"HSCAN" };
        let (mut cursor, count) = (b"0".to_vec(), count.to_string());
        loop {
            (self.pulse)(self.pair)?;
            let page = self.pair.source.ask(&[scan, key, &cursor, b"COUNT", count.as_bytes()])?;
            let Reply::Array(page) = page else { return Ok(false) };
            let Ok([next, page]) = <[Reply; 2]>::try_from(page) else {
                bail!("a malformed reply to a scan")
            };
            let piece = parts(kind, page)?;
            for elements in piece.chunks(PIECE_ELEMENTS as usize) {
                let is_there = match kind {
                    ValueKind::Set => self.has_members(key, elements)?,
                    _ => self.has_fields(key, elements)?,
                };
                if !is_there {
                    return Ok(false);
                }
            }
            cursor = next.into_bulk()?;
            if cursor == b"0" {
                return Ok(true);
            }
        }
    }

    fn has_members(&mut self, key: &[u8], elements: &[(Vec<u8>, Vec<u8>)]) -> Result<bool> {
        let mut question: Vec<&[u8]> = vec![b"SMISMEMBER", key];
        question.extend(elements.iter().map(|(member, _)| member.as_slice()));
        let reply = self.pair.target.ask(&question)?;
        let Reply::Array(are_there) = reply else { return Ok(false) };
        Ok(are_there.iter().all(|is_there| *is_there == Reply::Integer(1)))
    }

    fn has_fields(&mut self, key: &[u8], elements: &[(Vec<u8>, Vec<u8>)]) -> Result<bool> {
        let fields: Vec<&[u8]> = elements.iter().map(|(field, _)| field.as_slice()).collect();
        let mut question: Vec<&[u8]> = vec![b"HMGET", key];
        question.extend(&fields);
        let Reply::Array(values) = self.pair.target.ask(&question)? else { return Ok(false) };
        let are_same = values.len() == elements.len()
            && elements.iter().zip(&values).all(|((_, here), there)| bytes_of(Some(there)) == here);
        if !are_same || !self.probe.has_field_times || fields.is_empty() {
            return Ok(are_same);
        }
        let (here, there) = self.pair.ask_one(times(key, &fields))?;
        Ok(are_close(&here, &there))
    }

    /// Compares entries, and the groups with their pending entries.
    fn compare_stream(&mut self, key: &[u8]) -> Result<bool> {
        let (here, there) = self.pair.ask_one(words(&[b"XINFO", b"STREAM", key]))?;
        let facts = [b"length".as_slice(), b"last-generated-id"];
        if picked(&here, &facts) != picked(&there, &facts) {
            return Ok(false);
        }
        if !self.compare_entries(&[b"XRANGE", key])? {
            return Ok(false);
        }
        let (here, there) = self.pair.ask_one(words(&[b"XINFO", b"GROUPS", key]))?;
        let (Reply::Array(here), Reply::Array(there)) = (here, there) else { return Ok(false) };
        let facts = [b"name".as_slice(), b"last-delivered-id", b"pending"];
        let sorted = |groups: &[Reply]| {
            let mut groups: Vec<_> = groups.iter().map(|group| picked(group, &facts)).collect();
            groups.sort_by(|one, other| bytes_of(one.first()).cmp(bytes_of(other.first())));
            groups
        };
        let groups = sorted(&here);
        if groups != sorted(&there) {
            return Ok(false);
        }
        for group in groups {
            let name = bytes_of(group.first());
            if !self.compare_entries(&[b"XPENDING", key, name])? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Compares what a command lists by ids, in pieces.
    fn compare_entries(&mut self, command: &[&[u8]]) -> Result<bool> {
        let is_pending = command.len() > 2;
        let mut from = b"-".to_vec();
        loop {
            (self.pulse)(self.pair)?;
            let mut question = words(command);
            question.extend(words(&[&from, b"+"]));
            if !is_pending {
                question.push(b"COUNT".to_vec());
            }
            question.push(PIECE_ENTRIES.to_vec());
            let (mut here, mut there) = self.pair.ask_one(question)?;
            if is_pending {
                without_idle(&mut here);
                without_idle(&mut there);
            }
            if here != there {
                return Ok(false);
            }
            let Reply::Array(entries) = here else { return Ok(false) };
            let last = entries.last().map(|entry| match entry {
                Reply::Array(parts) => bytes_of(parts.first()).to_vec(),
                _ => Vec::new(),
            });
            match last.map(|id| behind(&id)).transpose()?.flatten() {
                Some(id) => from = id,
                None => return Ok(true),
            }
        }
    }
}

/// Returns fields of a reply that is a list of names and values.
fn picked(reply: &Reply, names: &[&[u8]]) -> Vec<Reply> {
    let Reply::Array(facts) = reply else { return vec![reply.clone()] };
    let value = |name: &&[u8]| {
        let pair = facts.chunks(2).find(|pair| bytes_of(pair.first()) == *name);
        pair.and_then(|pair| pair.get(1)).cloned().unwrap_or(Reply::Null)
    };
    names.iter().map(value).collect()
}

/// Takes the time since the delivery out of pending entries: each server counts it itself.
fn without_idle(reply: &mut Reply) {
    let Reply::Array(entries) = reply else { return };
    for entry in entries {
        if let Reply::Array(parts) = entry
            && parts.len() > 2
        {
            parts.remove(2);
        }
    }
}

/// Returns the id behind another one; `None` behind the last one that there can be.
fn behind(id: &[u8]) -> Result<Option<Vec<u8>>> {
    let text = std::str::from_utf8(id)?;
    let (ms, number) = text.split_once('-').context("a malformed id")?;
    let (ms, number): (u64, u64) = (ms.parse()?, number.parse()?);
    let next = match number.checked_add(1) {
        Some(number) => Some((ms, number)),
        None => ms.checked_add(1).map(|ms| (ms, 0)),
    };
    Ok(next.map(|(ms, number)| format!("{ms}-{number}").into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(words: &[&str]) -> Reply {
        Reply::Array(words.iter().map(|word| Reply::Bulk(word.as_bytes().to_vec())).collect())
    }

    #[test]
    fn equal_values_have_equal_parts() {
        let same = |kind, one: &[&str], other: &[&str]| {
            parts(kind, array(one)).unwrap() == parts(kind, array(other)).unwrap()
        };
        assert!(same(ValueKind::Set, &["a", "b"], &["b", "a"]));
        assert!(!same(ValueKind::List, &["a", "b"], &["b", "a"]));
        assert!(same(ValueKind::Hash, &["a", "1", "b", "2"], &["b", "2", "a", "1"]));
        assert!(!same(ValueKind::Hash, &["a", "1", "b", "2"], &["b", "1", "a", "2"]));
        assert!(same(ValueKind::SortedSet, &["a", "0.1"], &["a", "0.10000000000000001"]));
        assert!(same(ValueKind::SortedSet, &["a", "-0", "b", "inf"], &["a", "0", "b", "inf"]));
        assert!(!same(ValueKind::SortedSet, &["a", "1"], &["a", "2"]));
        assert_ne!(
            parts(ValueKind::String, Reply::Error("e".into())).unwrap(),
            parts(ValueKind::String, Reply::Bulk(b"e".to_vec())).unwrap()
        );
        let mut one = array(&["b", "2", "a", "1"]);
        ValueKind::Hash.sort(&mut one);
        assert_eq!(fingerprint(&one), fingerprint(&array(&["a", "1", "b", "2"])));
        assert_ne!(fingerprint(&array(&["ab"])), fingerprint(&array(&["a", "b"])));
    }

    #[test]
    fn ids_and_pending_entries_are_read() {
        let max = u64::MAX;
        assert_eq!(behind(b"5-7").unwrap().unwrap(), b"5-8");
        assert_eq!(behind(format!("5-{max}").as_bytes()).unwrap().unwrap(), b"6-0");
        assert_eq!(behind(format!("{max}-{max}").as_bytes()).unwrap(), None);
        assert!(behind(b"5").is_err());
        let entry = |idle| {
            let id = Reply::Bulk(b"1-1".to_vec());
            let consumer = Reply::Bulk(b"c".to_vec());
            Reply::Array(vec![Reply::Array(vec![id, consumer, idle, Reply::Integer(2)])])
        };
        let (mut one, mut other) = (entry(Reply::Integer(5)), entry(Reply::Integer(9)));
        without_idle(&mut one);
        without_idle(&mut other);
        assert_eq!(one, other);
    }

    #[test]
    fn expiries_of_fields_may_differ_a_little() {
        let times =
            |times: &[i64]| Reply::Array(times.iter().map(|time| Reply::Integer(*time)).collect());
        assert!(are_close(&times(&[-1, 5000, -2]), &times(&[-1, 5001, -2])));
        assert!(!are_close(&times(&[-1]), &times(&[5])));
        assert!(!are_close(&times(&[5000]), &times(&[9000])));
        assert!(!are_close(&times(&[]), &times(&[1])));
    }
}
