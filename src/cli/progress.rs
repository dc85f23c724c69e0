//! Progress bars on a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Creates a progress bar for so many bytes, if the number is known.
pub(super) fn bytes(total: Option<u64>, quiet: bool) -> ProgressBar {
    match total {
        Some(total) => styled(
            ProgressBar::new(total),
            "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {msg} {eta}",
            quiet,
        ),
        None => {
            styled(ProgressBar::new_spinner(), "{spinner} {bytes} {bytes_per_sec} {msg}", quiet)
        }
    }
}

/// Creates a progress bar for about so many keys.
pub(super) fn keys(total: u64, quiet: bool) -> ProgressBar {
    styled(ProgressBar::new(total), "{bar:40} {pos}/{len} keys {per_sec} {eta}", quiet)
}

/// Creates a line that changes.
pub(super) fn line(quiet: bool) -> ProgressBar {
    styled(ProgressBar::new_spinner(), "{spinner} {msg}", quiet)
}

fn styled(bar: ProgressBar, template: &str, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
