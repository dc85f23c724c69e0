//! Runs Lua code for a limited time that cannot be killed: the compilation of a script, or the
//! loading of a library.

use flagstone_lua::Watch;
use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    /// Time at which the code on this thread has to end.
    static END: Cell<Option<Instant>> = const { Cell::new(None) };
    static IS_LATE: Cell<bool> = const { Cell::new(false) };
}

/// Runs Lua code with a watch that ends it after `limit`; also returns true if it did.
pub fn within<T>(limit: Duration, run: impl FnOnce(Watch) -> T) -> (T, bool) {
    let before = (END.replace(Some(Instant::now() + limit)), IS_LATE.replace(false));
    let ran = run(|_| {
        let is_late = END.get().is_some_and(|end| Instant::now() >= end);
        IS_LATE.set(is_late);
        !is_late
    });
    END.set(before.0);
    (ran, IS_LATE.replace(before.1))
}
