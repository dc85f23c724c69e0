//! Random elements with repetition, drawn as they are asked for: there may be many more than
//! elements.

use super::spread::Positions;
use rand::RngExt;
use rand::rngs::ThreadRng;

/// The elements among which is drawn.
enum DrawPool<'a, V> {
    /// All of a collection that is in memory.
    All(Positions<'a, Option<V>>),
    Some(Vec<(&'a [u8], &'a V)>),
}

/// Iterator over random elements.
pub(crate) struct Draw<'a, V> {
    pool: DrawPool<'a, V>,
    /// Number of elements in the pool.
    of: usize,
    left: usize,
    rng: ThreadRng,
}

impl<'a, V> Draw<'a, V> {
    /// Draws `count` times from all elements of a collection; none if it is empty.
    pub(super) fn of_all(all: Positions<'a, Option<V>>, count: usize) -> Self {
        let of = all.len();
        Self::new(DrawPool::All(all), of, count)
    }

    /// Draws `count` times from some elements; none if there are none.
    pub(super) fn of_some(some: Vec<(&'a [u8], &'a V)>, count: usize) -> Self {
        let of = some.len();
        Self::new(DrawPool::Some(some), of, count)
    }

    fn new(pool: DrawPool<'a, V>, of: usize, count: usize) -> Self {
        Self { pool, of, left: if of == 0 { 0 } else { count }, rng: rand::rng() }
    }
}

impl<'a, V> Iterator for Draw<'a, V> {
    type Item = (&'a [u8], &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let at = self.rng.random_range(0..self.of);
        match &self.pool {
            DrawPool::All(all) => {
                let (name, value) = all.get(at)?;
                Some((name, value.as_ref()?))
            }
            DrawPool::Some(some) => some.get(at).copied(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<V> ExactSizeIterator for Draw<'_, V> {}
