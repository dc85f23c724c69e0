//! The allocator, its figures, and its memory given back to the system.

#[cfg(target_os = "linux")]
mod blocks;

#[cfg(target_os = "linux")]
pub use blocks::Allocator;
#[cfg(not(target_os = "linux"))]
pub use mimalloc::MiMalloc as Allocator;

use std::ffi::{CStr, c_char, c_void};

/// Size in bytes from which on a block is a mapping of its own, where the system can move these.
pub(crate) const MAPPED: usize = 4 << 20;

/// Maximum length of the report in bytes; parts that do not fit are left out.
const MAX_REPORT: usize = 64 << 10;

/// Returns the allocator's report on the whole process, as text.
pub(crate) fn report() -> String {
    let mut text = String::new();
    let arg = (&raw mut text).cast::<c_void>();
    // SAFETY: the callback gets `arg` only during the call, on this thread.
    unsafe { libmimalloc_sys::mi_stats_print_out(Some(put), arg) };
    text
}

/// Appends a part of the report.
///
/// # Safety
/// `message` is a string that ends with a zero, `text` the [`String`] to append to.
unsafe extern "C" fn put(message: *const c_char, text: *mut c_void) {
    // SAFETY: `report` gives a String that outlives the call, and nothing else uses it meanwhile.
    let text = unsafe { &mut *text.cast::<String>() };
    // SAFETY: the allocator gives strings that end with a zero.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    if text.len() + message.len() <= MAX_REPORT {
        text.push_str(&message);
    }
}

/// Gives the free memory of this thread, and of threads that have ended, back to the system.
pub(crate) fn purge() {
    // SAFETY: it may be called at any time.
    unsafe { libmimalloc_sys::mi_collect(true) };
}

/// Returns the bytes that the allocator has from the system, and the greatest so far.
pub(crate) fn committed() -> (u64, u64) {
    let (mut now, mut peak) = (0_usize, 0_usize);
    let none = std::ptr::null_mut();
    // SAFETY: each pointer is null or valid for the call.
    unsafe {
        libmimalloc_sys::mi_process_info(
            none,
            none,
            none,
            none,
            none,
            &raw mut now,
            &raw mut peak,
            none,
        );
    };
    #[cfg(target_os = "linux")]
    let (mapped, mapped_peak) = blocks::mapped();
    #[cfg(not(target_os = "linux"))]
    let (mapped, mapped_peak) = (0, 0);
    ((now + mapped) as u64, (peak + mapped_peak) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_text_and_memory_can_be_purged() {
        purge();
        let text = report();
        assert!(text.contains("subproc") && text.len() <= MAX_REPORT, "{text}");
        let (now, peak) = committed();
        assert!(peak >= now);
    }
}
