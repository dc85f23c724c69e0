//! The result of a comparison.

use super::Difference;
use std::fmt;

/// Number of keys that a verdict names.
const SHOWN: usize = 10;
/// Bytes of a key's name that it shows.
const NAME_BYTES: usize = 200;

/// Counts of keys, by result.
#[derive(Debug, Default)]
pub(in super::super) struct Verdict {
    /// Keys of the source that were compared.
    pub(super) keys: u64,
    different: u64,
    missing: u64,
    extra: u64,
    /// Keys that the source changed between all looks.
    pub(super) unsettled: u64,
    pub(super) libraries_differ: bool,
    /// True if there are so many differences that the rest was not compared.
    pub(super) is_cut: bool,
    /// The first ones, in words.
    named: Vec<String>,
}

impl Verdict {
    /// Counts a key that differs.
    pub(super) fn count(&mut self, database: u64, key: &[u8], difference: Difference) {
        let (count, text) = match difference {
            Difference::Missing => (&mut self.missing, "is missing at the target"),
            Difference::Extra => (&mut self.extra, "is at the target only"),
            Difference::Kind => (&mut self.different, "has another type"),
            Difference::Expiry => (&mut self.different, "has another expiry"),
            Difference::Value => (&mut self.different, "has another value"),
        };
        *count += 1;
        if self.named.len() < SHOWN {
            let cut = if key.len() > NAME_BYTES { "…" } else { "" };
            let name = key[..key.len().min(NAME_BYTES)].escape_ascii();
            self.named.push(format!("\"{name}{cut}\" (database {database}) {text}"));
        }
    }

    /// Returns the number of keys that differ.
    pub(super) fn differences(&self) -> u64 {
        self.different + self.missing + self.extra
    }

    /// Returns true if no difference was found.
    pub(in super::super) fn is_same(&self) -> bool {
        self.differences() == 0 && !self.libraries_differ
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, different, missing, extra, unsettled, .. } = self;
        let at_least = if self.is_cut { "at least " } else { "" };
        write!(
            f,
            "{keys} keys compared: {at_least}{different} different, {missing} missing, {extra} extra"
        )?;
        if *unsettled > 0 {
            write!(f, ", {unsettled} written too often to tell while writers run")?;
        }
        if self.libraries_differ {
            f.write_str("; the libraries of functions differ (FUNCTION LIST)")?;
        }
        for line in &self.named {
            write!(f, "\n  {line}")?;
        }
        let rest = self.differences() - self.named.len() as u64;
        if rest > 0 {
            write!(f, "\n  and {rest} more")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_names_the_first_keys() {
        let mut verdict = Verdict { keys: 20, ..Verdict::default() };
        assert!(verdict.is_same());
        assert_eq!(verdict.to_string(), "20 keys compared: 0 different, 0 missing, 0 extra");
        verdict.count(3, b"a\n", Difference::Missing);
        for _ in 0..11 {
            verdict.count(0, &[b'x'; 300], Difference::Value);
        }
        let text = verdict.to_string();
        assert!(text.starts_with("20 keys compared: 11 different, 1 missing, 0 extra\n"), "{text}");
        assert!(text.contains("\"a\\n\" (database 3) is missing at the target"), "{text}");
        assert!(text.ends_with("\n  and 2 more") && text.contains("xx…\""), "{text}");
        assert!(!verdict.is_same());
    }
}
