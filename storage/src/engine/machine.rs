//! A fact of the machine without which SlateDB cannot open an engine.

use anyhow::{Result, ensure};
use std::fs;
use std::path::Path;

/// The file in which the kernel lists the CPUs. SlateDB divides its default caches by their number,
/// and panics if it finds none, even where these caches are not used.
const STAT: &str = "/proc/stat";

/// Checks that SlateDB finds the machine's CPUs, which it does not in a chroot without `/proc`.
///
/// # Errors
/// The reason why it does not, and the remedy.
pub(crate) fn check_cpus() -> Result<()> {
    check_in(Path::new(STAT))
}

fn check_in(stat: &Path) -> Result<()> {
    let text = fs::read_to_string(stat).unwrap_or_default();
    let cpus = text.lines().skip(1).take_while(|line| line.starts_with("cpu")).count();
    ensure!(
        cpus > 0,
        "{} lists no CPUs: /proc has to be mounted, in a chroot too (mount -t proc proc /proc)",
        stat.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_cpus_is_refused_with_the_file_that_lists_them() {
        check_cpus().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let stat = dir.path().join("stat");
        for text in [None, Some(""), Some("cpu  1 2 3\nintr 5\n")] {
            if let Some(text) = text {
                fs::write(&stat, text).unwrap();
            }
            let error = check_in(&stat).unwrap_err().to_string();
            assert!(error.contains("stat lists no CPUs"), "{error}");
        }
        fs::write(&stat, "cpu  1 2 3\ncpu7 1 2 3\nintr 5\n").unwrap();
        check_in(&stat).unwrap();
    }
}
