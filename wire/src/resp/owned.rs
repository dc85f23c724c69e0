//! Arguments that own their bytes: composed ones, and those that outlive the input buffer.

use super::Args;

/// The arguments of a command, which owns their bytes.
#[derive(Clone, Debug, Default)]
pub struct OwnedArgs {
    bytes: Vec<u8>,
    ranges: Vec<(u32, u32)>,
}

impl OwnedArgs {
    /// Creates an empty list with room for so many arguments of so many bytes together.
    pub fn with_capacity(args: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ranges: Vec::with_capacity(args) }
    }

    /// Appends an argument.
    pub fn push(&mut self, arg: &[u8]) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(arg);
        self.ranges.push((start, self.bytes.len() as u32));
    }

    /// Replaces the argument at an index.
    pub fn replace(&mut self, index: usize, arg: &[u8]) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(arg);
        if let Some(range) = self.ranges.get_mut(index) {
            *range = (start, self.bytes.len() as u32);
        }
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ranges.clear();
    }

    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the approximate memory use in bytes.
    pub fn memory(&self) -> usize {
        self.bytes.len() + self.ranges.len() * size_of::<(u32, u32)>()
    }

    /// Returns the arguments in the form that commands take.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
    }
}

impl From<Args<'_>> for OwnedArgs {
    fn from(args: Args<'_>) -> Self {
        let mut owned = Self::with_capacity(args.len(), args.iter().map(<[u8]>::len).sum());
        args.iter().for_each(|arg| owned.push(arg));
        owned
    }
}

impl<T: AsRef<[u8]>> FromIterator<T> for OwnedArgs {
    fn from_iter<I: IntoIterator<Item = T>>(words: I) -> Self {
        let mut owned = Self::default();
        words.into_iter().for_each(|word| owned.push(word.as_ref()));
        owned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_as_they_were_put() {
        let mut owned: OwnedArgs = ["set", "k", ""].into_iter().collect();
        owned.push(b"ex");
        owned.replace(1, b"other");
        owned.replace(9, b"nowhere");
        let copy = OwnedArgs::from(owned.args());
        assert_eq!(copy.args().iter().collect::<Vec<_>>(), [&b"set"[..], b"other", b"", b"ex"]);
        owned.clear();
        assert!(owned.is_empty() && copy.len() == 4);
    }
}
