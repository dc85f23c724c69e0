//! The values that SORT looks up for its elements: those of BY and GET. They are first found, so that
//! all missing ones are loaded together, and then read where they are, in the store: many elements may
//! have the same large one.

use crate::{Ctx, Misses, Outcome, Stop};
use flagstone_storage::Store;
use flagstone_storage::encoding::MAX_KEY;
use flagstone_storage::store::{OrLoad, Part};
use flagstone_storage::value::string::CHUNK;
use flagstone_storage::value::{Entry, Str, Value};
use std::borrow::Cow;
use std::cmp::Ordering;

/// A pattern of BY or GET.
pub(super) enum Pattern<'a> {
    /// `#`: the element itself.
    Element,
    /// A pattern without `*`: no value.
    Nothing,
    /// A key, made by replacing the first `*` with the element; the value is the key's string, or a
    /// field of its hash.
    Key { before: &'a [u8], after: &'a [u8], field: Option<&'a [u8]> },
}

impl<'a> Pattern<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
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

    /// Returns the key and the field of an element; `None` if no key has that name.
    fn key(&self, element: &[u8]) -> Option<(Vec<u8>, Option<&'a [u8]>)> {
        let Self::Key { before, after, field } = *self else { return None };
        let key = [before, element, after].concat();
        (key.len() <= MAX_KEY).then_some((key, field))
    }

    /// Finds the value for an element. Missing data is recorded.
    pub(super) fn find<'s>(
        &self,
        cx: &'s mut Ctx<'_>,
        element: &'s [u8],
        use_as: SortUse,
        misses: &mut SortMisses,
    ) -> Result<Option<SortText<'s>>, Stop> {
        if let Self::Element = self {
            return Ok(Some(SortText::Bytes(element)));
        }
        let Some((key, field)) = self.key(element) else { return Ok(None) };
        let (db, due_ms) = (cx.db, cx.due_ms());
        let Some(entry) = misses.missing.note(cx.store.entry(db, &key))? else { return Ok(None) };
        let found = text_in(entry, field, use_as, due_ms);
        misses.met_expired |= matches!(found, Ok(Looked::Expired));
        let text = found.map(|found| match found {
            Looked::Text(text) => Some(text),
            Looked::Expired | Looked::Nothing => None,
        });
        misses.missing.note(text.or_load(db, &key))
    }
}

/// The use of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SortUse {
    /// All of it is compared, returned or stored.
    Text,
    /// It is a number, or the command fails.
    Number,
}

/// Returns the text before the first zero byte: the reference treats these texts as C strings.
pub(super) fn c_string(text: &[u8]) -> &[u8] {
    crate::until_zero_byte(text)
}

/// The data that is missing, and if any of the fields met has expired.
#[derive(Debug, Default)]
pub(super) struct SortMisses {
    missing: Misses,
    met_expired: bool,
}

impl SortMisses {
    /// Returns true if no data is missing.
    pub(super) fn is_empty(&self) -> bool {
        self.missing.is_empty()
    }

    /// Stops the command if data is missing.
    pub(super) fn check(&mut self) -> Outcome {
        std::mem::take(&mut self.missing).check()
    }

    /// Returns true if a field was met that has expired, but is still there.
    pub(super) fn met_expired(&self) -> bool {
        self.met_expired
    }
}

/// A look-up in an entry.
enum Looked<'s> {
    Text(SortText<'s>),
    /// A field that has expired, but is still there.
    Expired,
    Nothing,
}

/// Returns true for the bytes of numbers, infinities among them, and of the spaces before them.
fn is_of_number(byte: u8) -> bool {
    byte.is_ascii_hexdigit()
        || byte.is_ascii_whitespace()
        || b"+-.\x0b".contains(&byte)
        || b"inptxy".contains(&byte.to_ascii_lowercase())
}

/// Returns the position of the first byte that is of no number.
fn end_of_number(text: &[u8]) -> Option<usize> {
    text.iter().position(|byte| !is_of_number(*byte))
}

/// Checks that as much of a string is in memory as its use takes. The first chunk of nearly every large one
/// tells that it is no number.
fn require_for(string: &Str, use_as: SortUse) -> Result<(), Part> {
    if use_as == SortUse::Number
        && string.len() > CHUNK
        && end_of_number(&string.range(0..CHUNK)?).is_some()
    {
        return Ok(());
    }
    string.require(0..string.len())
}

fn text_in<'s>(
    entry: &'s Entry,
    field: Option<&[u8]>,
    use_as: SortUse,
    due_ms: u64,
) -> Result<Looked<'s>, Part> {
    match (&entry.value, field) {
        (Value::Str(string), None) => {
            require_for(string, use_as)?;
            Ok(Looked::Text(SortText::of(string)))
        }
        (Value::Hash(hash), Some(name)) => Ok(match hash.peek(name)? {
            Some(field) if field.is_expired(due_ms) => Looked::Expired,
            Some(field) => Looked::Text(SortText::Bytes(&field.value)),
            None => Looked::Nothing,
        }),
        _ => Ok(Looked::Nothing),
    }
}

/// A text that is read where it is stored.
#[derive(Clone, Debug)]
pub(super) enum SortText<'s> {
    Bytes(&'s [u8]),
    /// The digits of an integer.
    Digits(Box<[u8]>),
    /// A string in chunks.
    Big(&'s Str),
}

impl<'s> SortText<'s> {
    /// Returns the text of a string that is in memory as a whole.
    pub(super) fn of(string: &'s Str) -> Self {
        match string {
            Str::Int(number) => Self::Digits(number.to_string().into_bytes().into()),
            Str::Emb(bytes) => Self::Bytes(bytes),
            Str::Raw(bytes) => Self::Bytes(bytes),
            Str::Big(_) => Self::Big(string),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Digits(digits) => digits.len(),
            Self::Big(string) => string.len(),
        }
    }

    /// Returns all of it.
    pub(super) fn whole(&self) -> Cow<'_, [u8]> {
        self.piece(0, self.len())
    }

    /// Returns the text of the number that it may be, up to the first zero byte; `None` if it is none. Of a
    /// large text no more is read than tells that.
    pub(super) fn number(&self) -> Option<Cow<'_, [u8]>> {
        let first = self.piece(0, CHUNK);
        match end_of_number(&first) {
            Some(end) => (first[end] == 0).then(|| self.piece(0, end)),
            None => Some(self.whole()),
        }
    }

    /// Returns an element of the stored list: a missing value is an empty one.
    pub(super) fn stored(value: Option<Self>) -> Vec<u8> {
        value.map(|text| text.whole().into_owned()).unwrap_or_default()
    }

    /// Returns up to `len` bytes from `at` on.
    fn piece(&self, at: usize, len: usize) -> Cow<'_, [u8]> {
        let from = at.min(self.len());
        let range = from..from + len.min(self.len() - from);
        match self {
            Self::Bytes(bytes) => Cow::Borrowed(&bytes[range]),
            Self::Digits(digits) => Cow::Borrowed(&digits[range]),
            // It was found in memory.
            Self::Big(string) => string.range(range).unwrap_or_default(),
        }
    }

    /// Compares two texts, up to their first zero bytes unless `whole`. Of large ones no more is read
    /// than decides.
    pub(super) fn compare(&self, other: &Self, whole: bool) -> Ordering {
        let is_same = match (self, other) {
            (Self::Bytes(a), Self::Bytes(b)) => std::ptr::eq(*a, *b),
            (Self::Big(a), Self::Big(b)) => std::ptr::eq(*a, *b),
            _ => false,
        };
        if is_same {
            return Ordering::Equal;
        }
        let mut at = 0;
        loop {
            let (mine, others) = (self.piece(at, CHUNK), other.piece(at, CHUNK));
            let (a, b) = match whole {
                true => (&mine[..], &others[..]),
                false => (c_string(&mine), c_string(&others)),
            };
            // A shorter piece is the end of its text.
            let order = a.cmp(b);
            if order != Ordering::Equal || a.len() < CHUNK {
                return order;
            }
            at += CHUNK;
        }
    }
}

/// The values in the store, once all that are needed were found there.
#[derive(Clone, Copy)]
pub(super) struct SortValues<'s> {
    store: &'s Store,
    db: u32,
}

impl<'s> SortValues<'s> {
    pub(super) fn of(store: &'s Store, db: u32) -> Self {
        Self { store, db }
    }

    /// Returns the value of a pattern for an element.
    pub(super) fn value(self, pattern: &Pattern<'_>, element: &'s [u8]) -> Option<SortText<'s>> {
        if let Pattern::Element = pattern {
            return Some(SortText::Bytes(element));
        }
        let (key, field) = pattern.key(element)?;
        let entry = self.store.found(self.db, &key)?;
        match text_in(entry, field, SortUse::Text, self.store.due_ms()) {
            Ok(Looked::Text(text)) => Some(text),
            Ok(Looked::Expired | Looked::Nothing) | Err(_) => None,
        }
    }

    /// Returns the bytes of the value of a pattern for an element, as far as they are known before it is in
    /// memory.
    fn known_bytes(self, pattern: &Pattern<'_>, element: &'s [u8]) -> usize {
        let string = pattern
            .key(element)
            .filter(|(_, field)| field.is_none())
            .and_then(|(key, _)| self.store.found(self.db, &key));
        match string.map(|entry| &entry.value) {
            Some(Value::Str(string)) => string.len(),
            _ => self.value(pattern, element).map_or(0, |text| text.len()),
        }
    }

    /// Returns the bytes of all values, as far as they are known, with `each` more for each of them, and those
    /// of the greatest one.
    pub(super) fn all_known_bytes(
        self,
        elements: &'s [Vec<u8>],
        patterns: &'s [Pattern<'s>],
        each: usize,
    ) -> (usize, usize) {
        let pairs = elements.iter().flat_map(|one| patterns.iter().map(move |it| (one, it)));
        let sizes = pairs.map(|(element, pattern)| self.known_bytes(pattern, element) + each);
        sizes.fold((0, 0), |(all, greatest), size| (all + size, greatest.max(size)))
    }

    /// Returns the values of the patterns for each element; without patterns the elements themselves.
    pub(super) fn all(
        self,
        elements: &'s [Vec<u8>],
        patterns: &'s [Pattern<'s>],
    ) -> impl Iterator<Item = Option<SortText<'s>>> + Clone {
        let patterns = if patterns.is_empty() { &[Pattern::Element] } else { patterns };
        elements
            .iter()
            .flat_map(move |element| patterns.iter().map(move |one| self.value(one, element)))
    }
}
