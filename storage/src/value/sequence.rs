//! A long sequence of counted pieces (list nodes, blocks of a sorted set): finds a piece by
//! position or by order without walking over all of them.
//!
//! Pieces are in groups of up to [`GROUP_MAX`], which know their sums; a search goes over the
//! groups' sums, then over one group. The sort keys of pieces are stored together, apart from the
//! pieces: a search by order reads little memory.

use crate::reclaim::{Parts, Reclaimed};
use std::collections::VecDeque;

/// Maximum number of pieces in a group.
const GROUP_MAX: usize = 128;

/// Number of pieces below which a group stores no ranks: most sequences are short.
const UNRANKED: usize = 8;

/// A piece of a sequence.
pub(crate) trait SequencePiece: Send + 'static {
    /// Returns the number of its elements; `None` if it is unknown.
    fn count(&self) -> Option<u64>;

    /// Returns the sort key of the piece, as far as a number can represent it.
    fn rank(&self) -> u64;
}

/// See the module's description.
#[derive(Clone, Debug)]
pub(crate) struct Sequence<T: SequencePiece> {
    groups: Reclaimed<VecDeque<PieceGroup<T>>>,
    pieces: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct PieceGroup<T> {
    pieces: VecDeque<T>,
    /// The rank of the first piece.
    rank: u64,
    /// The ranks of all pieces, or empty.
    ranks: Vec<u64>,
    /// Number of elements of the counted pieces.
    count: u64,
    uncounted: usize,
}

/// Position of a piece; valid until a piece is inserted or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At {
    group: usize,
    piece: usize,
}

impl<T: SequencePiece> Default for Sequence<T> {
    fn default() -> Self {
        Self { groups: Reclaimed::default(), pieces: 0 }
    }
}

impl<T: SequencePiece> Parts for VecDeque<PieceGroup<T>> {
    fn parts(&self) -> usize {
        self.len() * GROUP_MAX
    }
}

impl<T: SequencePiece> PieceGroup<T> {
    fn new(pieces: VecDeque<T>) -> Self {
        let mut group = Self { pieces, rank: 0, ranks: Vec::new(), count: 0, uncounted: 0 };
        for piece in &group.pieces {
            match piece.count() {
                Some(count) => group.count += count,
                None => group.uncounted += 1,
            }
        }
        group.rank_all();
        group
    }

    fn rank_all(&mut self) {
        self.rank = self.pieces.front().map_or(0, SequencePiece::rank);
        self.ranks.clear();
        if self.pieces.len() >= UNRANKED {
            self.ranks.extend(self.pieces.iter().map(SequencePiece::rank));
        }
    }

    fn insert(&mut self, at: usize, piece: T) {
        self.add(piece.count());
        let rank = piece.rank();
        self.pieces.insert(at, piece);
        if at == 0 {
            self.rank = rank;
        }
        if self.ranks.len() + 1 == self.pieces.len() && !self.ranks.is_empty() {
            self.ranks.insert(at, rank);
        } else if self.pieces.len() >= UNRANKED {
            self.rank_all();
        }
    }

    fn remove(&mut self, at: usize) -> Option<T> {
        let piece = self.pieces.remove(at)?;
        self.subtract(piece.count());
        if at < self.ranks.len() {
            self.ranks.remove(at);
        }
        if let Some(first) = self.pieces.front().filter(|_| at == 0) {
            self.rank = first.rank();
        }
        Some(piece)
    }

    fn update<R>(&mut self, at: usize, change: impl FnOnce(&mut T) -> R) -> R {
        let piece = &mut self.pieces[at];
        let before = piece.count();
        let result = change(piece);
        let (after, rank) = (piece.count(), piece.rank());
        if before != after {
            self.subtract(before);
            self.add(after);
        }
        if at == 0 {
            self.rank = rank;
        }
        if let Some(known) = self.ranks.get_mut(at) {
            *known = rank;
        }
        result
    }

    /// Returns the number of pieces for which `begins` holds: all with a smaller rank, none with a
    /// greater one.
    fn until(&self, rank: u64, begins: impl Fn(&T) -> bool) -> usize {
        if self.ranks.is_empty() {
            return self.pieces.partition_point(begins);
        }
        let smaller = self.ranks.partition_point(|other| *other < rank);
        let same = self.ranks[smaller..].partition_point(|other| *other == rank);
        let (mut low, mut high) = (smaller, smaller + same);
        while low < high {
            let middle = low.midpoint(high);
            if begins(&self.pieces[middle]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn add(&mut self, count: Option<u64>) {
        match count {
            Some(count) => self.count += count,
            None => self.uncounted += 1,
        }
    }

    fn subtract(&mut self, count: Option<u64>) {
        match count {
            Some(count) => self.count -= count,
            None => self.uncounted -= 1,
        }
    }
}

impl<T: SequencePiece> Sequence<T> {
    /// Returns the number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.pieces
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces == 0
    }

    pub(crate) fn first(&self) -> Option<At> {
        (!self.is_empty()).then_some(At { group: 0, piece: 0 })
    }

    pub(crate) fn last(&self) -> Option<At> {
        let group = self.groups.len().checked_sub(1)?;
        Some(At { group, piece: self.groups[group].pieces.len() - 1 })
    }

    pub(crate) fn next(&self, at: At) -> Option<At> {
        if at.piece + 1 < self.groups[at.group].pieces.len() {
            return Some(At { group: at.group, piece: at.piece + 1 });
        }
        (at.group + 1 < self.groups.len()).then_some(At { group: at.group + 1, piece: 0 })
    }

    pub(crate) fn prev(&self, at: At) -> Option<At> {
        if at.piece > 0 {
            return Some(At { group: at.group, piece: at.piece - 1 });
        }
        let group = at.group.checked_sub(1)?;
        Some(At { group, piece: self.groups[group].pieces.len() - 1 })
    }

    pub(crate) fn get(&self, at: At) -> &T {
        &self.groups[at.group].pieces[at.piece]
    }

    /// Changes a piece, and updates the sums.
    pub(crate) fn update<R>(&mut self, at: At, change: impl FnOnce(&mut T) -> R) -> R {
        self.groups[at.group].update(at.piece, change)
    }

    /// Returns all pieces in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.groups.iter().flat_map(|group| group.pieces.iter())
    }

    /// Inserts a piece before another one, or at the end if `None`, and returns its position.
    pub(crate) fn insert(&mut self, before: Option<At>, piece: T) -> At {
        let mut at = match (before, self.groups.len()) {
            (Some(at), _) => at,
            (None, 0) => At { group: 0, piece: 0 },
            (None, n) => At { group: n - 1, piece: self.groups[n - 1].pieces.len() },
        };
        if self.groups.is_empty() {
            // Most sequences are short.
            self.groups.reserve_exact(1);
            self.groups.push_back(PieceGroup::new(VecDeque::with_capacity(1)));
        }
        if self.groups[at.group].pieces.len() >= GROUP_MAX {
            at = self.split_group(at);
        }
        self.groups[at.group].insert(at.piece, piece);
        self.pieces += 1;
        at
    }

    /// Makes room in a full group for a piece to be inserted at `at`. At the ends a new group is
    /// begun, so that the groups of a queue are full.
    fn split_group(&mut self, at: At) -> At {
        let pieces = &mut self.groups[at.group].pieces;
        let cut = match at.piece {
            0 => 0,
            end if end == pieces.len() => pieces.len(),
            _ => pieces.len() / 2,
        };
        let tail = pieces.split_off(cut);
        let head = std::mem::take(pieces);
        self.groups[at.group] = PieceGroup::new(head);
        self.groups.insert(at.group + 1, PieceGroup::new(tail));
        if cut == 0 || at.piece < cut {
            at
        } else {
            At { group: at.group + 1, piece: at.piece - cut }
        }
    }

    /// Removes a piece, and returns it and the position of the one behind it.
    pub(crate) fn remove(&mut self, at: At) -> (T, Option<At>) {
        let group = &mut self.groups[at.group];
        #[allow(clippy::expect_used, reason = "a place stays while nothing is inserted or removed")]
        let piece = group.remove(at.piece).expect("a place that was found");
        self.pieces -= 1;
        let len = group.pieces.len();
        if len == 0 {
            self.groups.remove(at.group);
        }
        let next = if len > 0 && at.piece < len {
            Some(at)
        } else {
            let group = if len == 0 { at.group } else { at.group + 1 };
            (group < self.groups.len()).then_some(At { group, piece: 0 })
        };
        (piece, next)
    }

    /// Returns the last piece for which `begins` holds. `begins` must hold for all pieces with a
    /// smaller rank, for none with a greater one, and for none behind one for which it does not.
    pub(crate) fn last_where(&self, rank: u64, begins: impl Fn(&T) -> bool) -> Option<At> {
        let groups = self.groups.partition_point(|group| {
            group.rank < rank || (group.rank == rank && begins(&group.pieces[0]))
        });
        let group = groups.checked_sub(1)?;
        let piece = self.groups[group].until(rank, begins) - 1;
        Some(At { group, piece })
    }

    /// Returns the number of elements before a piece, if all of them were counted.
    pub(crate) fn count_before(&self, at: At) -> Option<u64> {
        self.count_between(At { group: 0, piece: 0 }, Some(at))
    }

    /// Returns the number of elements behind a piece, if all of them were counted.
    pub(crate) fn count_after(&self, at: At) -> Option<u64> {
        self.next(at).map_or(Some(0), |next| self.count_between(next, None))
    }

    /// Returns the number of elements from a piece on and before another one (`None`: to the end),
    /// if all of them were counted.
    pub(crate) fn count_between(&self, from: At, to: Option<At>) -> Option<u64> {
        let to = to.unwrap_or(At { group: self.groups.len(), piece: 0 });
        let mut sum = 0;
        for (g, group) in self.groups.iter().enumerate().take(to.group + 1).skip(from.group) {
            let first = if g == from.group { from.piece } else { 0 };
            let end = if g == to.group { to.piece } else { group.pieces.len() };
            if end.saturating_sub(first) == group.pieces.len() {
                sum += (group.uncounted == 0).then_some(group.count)?;
                continue;
            }
            for piece in group.pieces.range(first.min(end)..end) {
                sum += piece.count()?;
            }
        }
        Some(sum)
    }

    /// Returns the number of elements of the counted pieces.
    pub(crate) fn total(&self) -> u64 {
        self.groups.iter().map(|group| group.count).sum()
    }

    /// Returns the first uncounted piece from one on and before another (`None`: to the end).
    pub(crate) fn first_uncounted(&self, from: At, to: Option<At>) -> Option<At> {
        let groups = self.groups.iter().enumerate().skip(from.group);
        for (g, group) in groups.filter(|(_, group)| group.uncounted > 0) {
            let first = if g == from.group { from.piece } else { 0 };
            let found = (first..group.pieces.len())
                .find(|&p| group.pieces[p].count().is_none())
                .map(|piece| At { group: g, piece });
            if let Some(found) = found {
                return Some(found).filter(|found| to.is_none_or(|to| *found < to));
            }
        }
        None
    }

    /// Returns the piece with the element at a position from the start, and the number of the
    /// piece's elements before it; returns the first uncounted piece (with `None`) if that comes
    /// earlier.
    pub(crate) fn find(&self, position: u64) -> Option<(At, Option<u64>)> {
        let mut left = position;
        for (g, group) in self.groups.iter().enumerate() {
            if group.uncounted == 0 && left >= group.count {
                left -= group.count;
                continue;
            }
            for (p, piece) in group.pieces.iter().enumerate() {
                let at = At { group: g, piece: p };
                match piece.count() {
                    None => return Some((at, None)),
                    Some(count) if left < count => return Some((at, Some(left))),
                    Some(count) => left -= count,
                }
            }
        }
        None
    }

    /// Like [`find`](Self::find), from the end: the last element is at position 0, and the number
    /// is that of the piece's elements behind it.
    pub(crate) fn find_back(&self, position: u64) -> Option<(At, Option<u64>)> {
        let mut left = position;
        for (g, group) in self.groups.iter().enumerate().rev() {
            if group.uncounted == 0 && left >= group.count {
                left -= group.count;
                continue;
            }
            for (p, piece) in group.pieces.iter().enumerate().rev() {
                let at = At { group: g, piece: p };
                match piece.count() {
                    None => return Some((at, None)),
                    Some(count) if left < count => return Some((at, Some(left))),
                    Some(count) => left -= count,
                }
            }
        }
        None
    }

    /// Returns the number of uncounted pieces.
    pub(crate) fn uncounted(&self) -> usize {
        self.groups.iter().map(|group| group.uncounted).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SequencePiece for (u64, Option<u64>) {
        fn count(&self) -> Option<u64> {
            self.1
        }

        /// Not exact.
        fn rank(&self) -> u64 {
            self.0 / 3
        }
    }

    /// Compares all results with a plain vector's.
    fn check(sequence: &Sequence<(u64, Option<u64>)>, model: &[(u64, Option<u64>)]) {
        assert_eq!(sequence.len(), model.len());
        assert!(sequence.iter().eq(model.iter()));
        let mut at = sequence.first();
        let mut before = Some(0);
        for piece in model {
            let place = at.unwrap();
            assert_eq!(sequence.get(place), piece);
            assert_eq!(sequence.count_before(place), before);
            before = before.zip(piece.1).map(|(sum, count)| sum + count);
            at = sequence.next(place);
        }
        assert_eq!(at, None);
        assert_eq!(sequence.last().and_then(|at| sequence.next(at)), None);
    }

    #[test]
    fn a_sequence_is_as_a_vector() {
        use rand::{RngExt, SeedableRng, rngs::SmallRng};
        let mut rng = SmallRng::seed_from_u64(7);
        let (mut sequence, mut model) = (Sequence::default(), Vec::new());
        for n in 0..3000u64 {
            let i = rng.random_range(0..=model.len());
            let place = |sequence: &Sequence<_>, i: usize| {
                (0..i).fold(sequence.first(), |at, _| at.and_then(|at| sequence.next(at)))
            };
            let at = place(&sequence, i);
            if n % 3 == 2 && i < model.len() {
                let (piece, next) = sequence.remove(at.unwrap());
                assert_eq!(piece, model.remove(i));
                assert_eq!(next.map(|at| *sequence.get(at)), model.get(i).copied());
            } else {
                let piece = (n, (n % 50 != 0).then_some(n % 7));
                let at = sequence.insert(at, piece);
                assert_eq!(*sequence.get(at), piece);
                model.insert(i, piece);
            }
            if n % 100 == 0 {
                check(&sequence, &model);
            }
        }
        check(&sequence, &model);
    }

    #[test]
    fn a_piece_is_found_by_order_while_they_come_and_go() {
        use rand::{RngExt, SeedableRng, rngs::SmallRng};
        let mut rng = SmallRng::seed_from_u64(3);
        let (mut sequence, mut model) = (Sequence::default(), std::collections::BTreeSet::new());
        for n in 0..6000u64 {
            let number = rng.random_range(0..900);
            let begins = |piece: &(u64, Option<u64>)| piece.0 <= number;
            let at = sequence.last_where(number / 3, begins);
            assert_eq!(at.map(|at| sequence.get(at).0), model.range(..=number).last().copied());
            let found = at.filter(|at| sequence.get(*at).0 == number);
            match (found, at) {
                // The sequence grows, then shrinks.
                (Some(at), _) if n > 3000 || n % 5 == 0 => {
                    sequence.remove(at);
                    model.remove(&number);
                }
                (None, at) if n < 4000 => {
                    let next = at.map_or(sequence.first(), |at| sequence.next(at));
                    sequence.insert(next, (number, Some(1)));
                    model.insert(number);
                }
                (_, Some(at)) if !model.contains(&(number + 1)) && begins(sequence.get(at)) => {
                    // A piece moves up to a free number.
                    let old = sequence.update(at, |piece| std::mem::replace(&mut piece.0, number));
                    model.remove(&old);
                    model.insert(number);
                }
                _ => {}
            }
        }
        assert!(sequence.iter().map(|piece| piece.0).eq(model));
    }

    #[test]
    fn positions_are_found_from_both_ends() {
        let mut sequence = Sequence::default();
        for n in 0..1000 {
            sequence.insert(None, (n, Some(3)));
        }
        let (at, rest) = sequence.find(301).unwrap();
        assert_eq!((sequence.get(at).0, rest), (100, Some(1)));
        let (at, rest) = sequence.find_back(0).unwrap();
        assert_eq!((sequence.get(at).0, rest), (999, Some(0)));
        assert_eq!(sequence.find(3000), None);
        let at = sequence.last_where(500 / 3, |piece| piece.0 <= 500).unwrap();
        assert_eq!(sequence.count_before(at), Some(1500));
        sequence.update(at, |piece| piece.1 = None);
        assert_eq!((sequence.find(1502).unwrap().1, sequence.uncounted()), (None, 1));
        assert_eq!(sequence.find(1499).unwrap().1, Some(2));
        assert_eq!(sequence.count_after(at), Some(1497));
    }
}
