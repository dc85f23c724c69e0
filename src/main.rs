//! The `flagstone` program: runs a subcommand, or reads its configuration and runs the server.

use flagstone::allocator::Allocator;
use flagstone::cli;
use flagstone::config::{Config, Startup};
use flagstone::log;
use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// `mi_option_purge_delay` and `mi_option_arena_purge_mult` of mimalloc 3, which the bindings do not
/// name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
const ARENA_PURGE_MULT: libmimalloc_sys::mi_option_t = 24;

/// Milliseconds for which freed memory is kept before it returns to the system (arenas: ten times
/// that), so that the memory of one hand-over serves the next.
const KEEP_MS: std::ffi::c_long = 2000;

/// Memory budget in bytes below which memory comes in small pages, and freed arenas return to the
/// system at once: of huge pages, some 100 MB stay unused, and as much would wait in arenas, so that
/// the budget would be exceeded. Above, both make some commands a few percent faster.
const LARGE_BUDGET: u64 = 4 << 30;

/// Makes the system give this process small pages only.
#[cfg(target_os = "linux")]
fn refuse_huge_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        eprintln!("flagstone: huge pages stay, and memory may exceed the budget: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn refuse_huge_pages() {}

/// Exit status of a start whose configuration is refused.
const REFUSED: u8 = 2;

/// Reports why the program ends, in the log too if that is a file.
fn complain(reason: &str) {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "flagstone: {reason}");
    if log::is_file() {
        tracing::error!("{reason}");
    }
}

fn main() -> ExitCode {
    if let Some(status) = cli::run(std::env::args_os(), refuse_huge_pages) {
        return status;
    }
    // SAFETY: options may be set at any time.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, KEEP_MS) };
    let config = match Config::load_process() {
        Ok(Startup::Run(config)) => config,
        Ok(Startup::Help(text)) => {
            cli::say(&format!("{text}\n{}", cli::overview()));
            return ExitCode::SUCCESS;
        }
        Ok(Startup::Print(text)) => {
            cli::say(&text);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            complain(&error.to_string());
            return ExitCode::from(REFUSED);
        }
    };
    if config.settings().memory_budget < LARGE_BUDGET {
        refuse_huge_pages();
        // SAFETY: options may be set at any time.
        unsafe { libmimalloc_sys::mi_option_set(ARENA_PURGE_MULT, 0) };
    }
    let prepared = match flagstone::server::prepare(config) {
        Ok(prepared) => prepared,
        Err(error) => {
            complain(&format!("{error:#}"));
            return ExitCode::from(REFUSED);
        }
    };
    match flagstone::server::run(prepared) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
