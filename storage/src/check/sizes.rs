//! The sizes of keys: how many of each type have about which size, by database.

use crate::store::big::measure;
use crate::value::Value;
use std::collections::BTreeMap;
use std::fmt;

/// The sizes of each type, as `INFO keysizes` of Redis 8 names them, in the order of types of
/// `measure`; streams have no such line there.
const NAMES: [&str; 6] =
    ["strings_sizes", "hashes_items", "sets_items", "lists_items", "zsets_items", "streams_items"];

/// Numbers of keys by size: bytes of a string, elements of another value. A class has the sizes from
/// a power of two to the next.
///
/// They are shown as lines in the form of `INFO keysizes` of Redis 8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySizes(BTreeMap<(u32, usize), BTreeMap<u64, u64>>);

impl KeySizes {
    /// Counts a key of a database.
    pub(super) fn add(&mut self, db: u32, value: &Value) {
        if let Some((kind, size)) = measure(value) {
            let class = size.checked_ilog2().map_or(0, |power| 1 << power);
            *self.0.entry((db, kind)).or_default().entry(class).or_default() += 1;
        }
    }
}

/// Writes the least size of a class: `512`, `1K`, `32M`.
fn write_class(f: &mut fmt::Formatter<'_>, class: u64) -> fmt::Result {
    match class.checked_ilog2().unwrap_or(0) / 10 {
        0 => write!(f, "{class}"),
        1 => write!(f, "{}K", class >> 10),
        2 => write!(f, "{}M", class >> 20),
        _ => write!(f, "{}G", class >> 30),
    }
}

impl fmt::Display for KeySizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((db, kind), classes) in &self.0 {
            write!(f, "db{db}_distrib_{}:", NAMES[*kind])?;
            for (n, (&class, count)) in classes.iter().enumerate() {
                f.write_str(if n == 0 { "" } else { "," })?;
                write_class(f, class)?;
                write!(f, "={count}")?;
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Set, SetEncoding, Str};

    #[test]
    fn a_class_begins_at_a_power_of_two() {
        let mut sizes = KeySizes::default();
        for len in [0, 1, 2, 3, 4, 1023, 1024, 1025, (1 << 21) - 1] {
            sizes.add(3, &Value::Str(Str::new(&vec![b'x'; len])));
        }
        let mut set = Set::new(SetEncoding::Table);
        set.add(b"member");
        sizes.add(0, &Value::Set(Box::new(set)));
        sizes.add(0, &Value::Absent);
        let shown = "db0_distrib_sets_items:1=1\n\
            db3_distrib_strings_sizes:0=1,1=1,2=2,4=1,512=1,1K=2,1M=1\n";
        assert_eq!(sizes.to_string(), shown);
    }

    #[test]
    fn great_classes_are_short() {
        let class = |class: u64| KeySizes([((0, 1), [(class, 1)].into())].into()).to_string();
        let shown = [512, 1 << 10, 1 << 19, 1 << 20, 1 << 30, 1 << 42].map(class);
        let classes = shown.each_ref().map(|line| line.trim_end().rsplit(':').next());
        assert_eq!(classes, ["512=1", "1K=1", "512K=1", "1M=1", "1G=1", "4096G=1"].map(Some));
    }
}
