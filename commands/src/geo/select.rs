//! Partial sorting: only the first of many items are put in order.

use std::cmp::Ordering;

/// Maximum number of items that are sorted by insertion.
const FEW: usize = 7;

/// Number of items from which on the pivot is chosen from nine items instead of three.
const MANY: usize = 40;

/// Moves the `count` smallest items to the front, in order. Equal items end in the order of the
/// reference, which takes the quicksort of Bentley and McIlroy ("Engineering a Sort Function") and
/// skips the ranges behind the first items.
pub(super) fn sort_first<T>(
    mut items: &mut [T],
    mut count: usize,
    order: &impl Fn(&T, &T) -> Ordering,
) {
    while count > 0 && items.len() >= FEW {
        let pivot = pivot(items, order);
        items.swap(0, pivot);
        let (less, greater) = partition(items, order);
        sort_first(&mut items[..less], count, order);
        let behind = items.len() - greater;
        items = &mut items[behind..];
        count = count.saturating_sub(behind);
    }
    if count > 0 {
        insert(items, order);
    }
}

fn insert<T>(items: &mut [T], order: &impl Fn(&T, &T) -> Ordering) {
    for end in 1..items.len() {
        let mut at = end;
        while at > 0 && order(&items[at - 1], &items[at]).is_gt() {
            items.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// Returns the index of the median of three or of nine items.
fn pivot<T>(items: &[T], order: &impl Fn(&T, &T) -> Ordering) -> usize {
    let (middle, last) = (items.len() / 2, items.len() - 1);
    let median = |a, b, c| median(items, order, [a, b, c]);
    if items.len() == FEW {
        middle
    } else if items.len() > MANY {
        let d = items.len() / 8;
        let first = median(0, d, 2 * d);
        let middle = median(middle - d, middle, middle + d);
        let last = median(last - 2 * d, last - d, last);
        median(first, middle, last)
    } else {
        median(0, middle, last)
    }
}

fn median<T>(items: &[T], order: &impl Fn(&T, &T) -> Ordering, [a, b, c]: [usize; 3]) -> usize {
    let compare = |x: usize, y: usize| order(&items[x], &items[y]);
    if compare(a, b).is_lt() {
        match compare(b, c) {
            Ordering::Less => b,
            _ if compare(a, c).is_lt() => c,
            _ => a,
        }
    } else {
        match compare(b, c) {
            Ordering::Greater => b,
            _ if compare(a, c).is_lt() => a,
            _ => c,
        }
    }
}

/// Moves items less than the first before those equal to it, and greater ones behind; returns the
/// numbers of lesser and greater items.
fn partition<T>(items: &mut [T], order: &impl Fn(&T, &T) -> Ordering) -> (usize, usize) {
    let len = items.len();
    // Equal items are collected at both ends: before `a`, and behind `d`.
    let (mut a, mut b, mut c, mut d) = (1, 1, len - 1, len - 1);
    loop {
        while b <= c {
            match order(&items[b], &items[0]) {
                Ordering::Greater => break,
                Ordering::Equal => {
                    items.swap(a, b);
                    a += 1;
                }
                Ordering::Less => {}
            }
            b += 1;
        }
        while b <= c {
            match order(&items[c], &items[0]) {
                Ordering::Less => break,
                Ordering::Equal => {
                    items.swap(c, d);
                    d -= 1;
                }
                Ordering::Greater => {}
            }
            c -= 1;
        }
        if b > c {
            break;
        }
        items.swap(b, c);
        b += 1;
        c -= 1;
    }
    let (less, greater) = (b - a, d - c);
    let front = a.min(less);
    exchange(items, 0, b - front, front);
    let back = greater.min(len - 1 - d);
    exchange(items, b, len - back, back);
    (less, greater)
}

/// Swaps `count` items from `a` on with as many from `b` on.
fn exchange<T>(items: &mut [T], a: usize, b: usize, count: usize) {
    (0..count).for_each(|i| items.swap(a + i, b + i));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn the_first_are_in_order() {
        let mut rng = SmallRng::seed_from_u64(7);
        for len in 0..200 {
            for most in [2, 20, 10_000] {
                let items: Vec<(u32, usize)> =
                    (0..len).map(|i| (rng.random_range(0..most), i)).collect();
                let count = rng.random_range(0..=len);
                let mut sorted = items.clone();
                sorted.sort();
                let mut first = items;
                sort_first(&mut first, count, &|a, b| a.0.cmp(&b.0));
                let keys = |items: &[(u32, usize)]| -> Vec<u32> {
                    items[..count].iter().map(|item| item.0).collect()
                };
                assert_eq!(keys(&first), keys(&sorted), "{len} {count}");
                first.sort();
                assert_eq!(first, sorted);
            }
        }
    }

    #[test]
    fn equal_items_move_as_in_the_reference() {
        let order = |a: &(u8, u8), b: &(u8, u8)| a.0.cmp(&b.0);
        let mut few: Vec<(u8, u8)> = vec![(1, 0), (0, 1), (1, 2), (0, 3)];
        sort_first(&mut few, 2, &order);
        assert_eq!(few, [(0, 1), (0, 3), (1, 0), (1, 2)]);
        let places = |items: &[(u8, u8)]| -> Vec<u8> { items.iter().map(|item| item.1).collect() };
        let mut equal: Vec<(u8, u8)> = (0..9).map(|i| (0, i)).collect();
        sort_first(&mut equal, 3, &order);
        assert_eq!(places(&equal), [8, 1, 2, 3, 4, 5, 6, 7, 0]);
        let mut many: Vec<(u8, u8)> = (0..60).map(|i| ((u32::from(i) * 7 % 5) as u8, i)).collect();
        sort_first(&mut many, 20, &order);
        let first = [30, 35, 50, 15, 5, 55, 20, 40, 0, 45, 10, 25, 18, 48, 38, 8, 43, 13, 3, 53];
        assert_eq!(places(&many[..20]), first);
    }
}
