//! Places in the order of a sorted set: by score, then by name. They compare like the keys of the
//! rows.

use super::Name;
use crate::encoding::RowKey;
use anyhow::Context;
use std::borrow::Cow;

/// The first byte of the element keys of the order.
pub(in crate::value) const PREFIX: u8 = 1;

/// A place in the order, of an item or between two: [`ordered`] score, then [`row_name`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::value) struct OrderPlace {
    pub(super) score: u64,
    pub(super) name: Name,
}

/// A borrowed [`OrderPlace`].
pub(super) type PlaceKey<'a> = (u64, &'a [u8]);

/// Returns a number that sorts like the score; both zeros have the same.
pub(super) fn ordered(score: f64) -> u64 {
    let bits = (score + 0.0).to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

/// Returns the score that sorts like the number, or the nearest one.
pub(super) fn unordered(number: u64) -> f64 {
    let bits = if number >> 63 == 0 { !number } else { number & !(1 << 63) };
    let score = f64::from_bits(bits);
    match (score.is_nan(), number >> 63) {
        (false, _) => score,
        (true, 0) => f64::NEG_INFINITY,
        (true, _) => f64::INFINITY,
    }
}

/// Returns the name in the form of a row's key: of one that is too long only the beginning, then a
/// digest.
pub(super) fn row_name(name: &[u8]) -> Cow<'_, [u8]> {
    RowKey::ordered_name(name)
}

impl OrderPlace {
    /// Returns the place before all items.
    pub(in crate::value) fn first() -> Self {
        Self::default()
    }

    /// Returns the place behind all items.
    pub(in crate::value) fn last() -> Self {
        Self { score: u64::MAX, name: Name::new() }
    }

    /// Returns the place before all items of a score.
    pub(in crate::value) fn before_score(score: f64) -> Self {
        Self { score: ordered(score), name: Name::new() }
    }

    /// Returns the place behind all items of a score.
    pub(in crate::value) fn after_score(score: f64) -> Self {
        Self { score: ordered(score) + 1, name: Name::new() }
    }

    /// Returns the place of an item, existing or not.
    pub(in crate::value) fn of(score: f64, name: &[u8]) -> Self {
        Self { score: ordered(score), name: Name::from_slice(&row_name(name)) }
    }

    /// Returns the place right behind an item, existing or not.
    pub(in crate::value) fn after(score: f64, name: &[u8]) -> Self {
        let mut place = Self::of(score, name);
        place.name.push(0);
        place
    }

    pub(super) fn key(&self) -> PlaceKey<'_> {
        (self.score, &self.name)
    }

    /// Returns the element key of an item at this place.
    pub(in crate::value) fn element(&self) -> Vec<u8> {
        let mut element = Vec::with_capacity(9 + self.name.len());
        element.push(PREFIX);
        element.extend_from_slice(&self.score.to_be_bytes());
        element.extend_from_slice(&self.name);
        element
    }

    /// Returns the place of an element key.
    pub(super) fn of_element(element: &[u8]) -> anyhow::Result<Self> {
        let rest = element.get(1..).and_then(<[u8]>::split_first_chunk::<8>);
        let (score, name) = rest.context("the key of an element row has no score")?;
        Ok(Self { score: u64::from_be_bytes(*score), name: Name::from_slice(name) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_sort_as_scores_do() {
        let scores =
            [f64::NEG_INFINITY, f64::MIN, -1.5, -5e-324, 0.0, 5e-324, 1.0, f64::MAX, f64::INFINITY];
        assert!(scores.iter().all(|&score| unordered(ordered(score)) == score));
        assert!(scores.is_sorted_by_key(|&score| ordered(score)));
        assert_eq!(ordered(-0.0), ordered(0.0));
        assert_eq!(unordered(u64::MAX), f64::INFINITY);
    }

    #[test]
    fn places_sort_as_their_element_keys_do() {
        let long = |last: u8| [vec![b'x'; 40_000], vec![last]].concat();
        let mut places = vec![
            OrderPlace::first(),
            OrderPlace::before_score(-1.0),
            OrderPlace::of(-1.0, b""),
            OrderPlace::after(-1.0, b"a"),
            OrderPlace::of(-1.0, b"ab"),
            OrderPlace::after_score(-1.0),
            OrderPlace::of(0.0, &long(b'a')),
            OrderPlace::after(0.0, &long(b'a')),
            OrderPlace::of(0.0, &[b'x'; 32 * 1024]),
            OrderPlace::of(-0.0, &long(b'b')),
            OrderPlace::last(),
        ];
        places.sort();
        let elements: Vec<Vec<u8>> = places.iter().map(OrderPlace::element).collect();
        assert!(elements.is_sorted());
        for (place, element) in places.iter().zip(&elements) {
            assert_eq!(OrderPlace::of_element(element).unwrap(), *place);
        }
    }
}
