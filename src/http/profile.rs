//! `/profile`: which code of the process takes CPU time, for administrators.
//!
//! While a profile is taken, a timer interrupts the running threads, and the stack of each is counted.
//! Code inside the C library (and so the kernel on its behalf) is left out: an interrupted library may
//! hold locks that are needed to walk its stack.

use super::access::Caller;
use super::answer::{Denial, typed};
use super::{Site, rights};
use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use pprof::{Frames, ProfilerGuardBuilder, UnresolvedReport};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// Samples per second of CPU time. It is no divisor of the frequencies at which work repeats.
const RATE: i32 = 99;

/// Seconds of a profile that names none, and of the longest one: its answer comes within the time of
/// a request.
const USUAL_SECONDS: u64 = 10;
const MAX_SECONDS: u64 = 20;

/// Libraries whose code is not interrupted.
const LEFT_OUT: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// Held while a profile is taken: the process has one timer for it.
static TAKING: Mutex<()> = Mutex::const_new(());

/// `GET /profile?seconds=N`: one stack a line, outermost function first, and the number of its samples,
/// as tools for flame graphs read it. The caller may run SLOWLOG, as administrators do.
pub(super) async fn profile(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Result<Response, Denial> {
    let seconds = seconds(uri.query().unwrap_or_default())?;
    let _work = rights::may_administer(&site, &caller).await?;
    let _alone = TAKING.try_lock().map_err(|_| {
        Denial::new(StatusCode::CONFLICT, "ERR a profile is being taken; try again later")
    })?;
    let failed = |error: pprof::Error| Denial::unavailable(format!("ERR no profile: {error}"));
    let builder = ProfilerGuardBuilder::default().frequency(RATE).blocklist(&LEFT_OUT);
    let guard = builder.build().map_err(failed)?;
    tracing::info!(seconds, "a profile of CPU time is taken");
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let report = guard.report().build_unresolved().map_err(failed)?;
    drop(guard);
    // Names are looked up in the program's file, which may take seconds.
    let text = tokio::task::spawn_blocking(move || folded(report)).await;
    let text = text.map_err(|_| Denial::unavailable("ERR no profile: its thread has ended"))?;
    Ok(typed("text/plain; charset=utf-8", text))
}

/// Returns the duration that a query asks for.
fn seconds(query: &str) -> Result<u64, Denial> {
    let given = query.split('&').find_map(|pair| pair.strip_prefix("seconds="));
    match given.map_or(Ok(USUAL_SECONDS), str::parse) {
        Ok(seconds @ 1..=MAX_SECONDS) => Ok(seconds),
        _ => Err(Denial::bad(format!("ERR seconds has to be 1 to {MAX_SECONDS}"))),
    }
}

/// Returns a line for each stack.
fn folded(report: UnresolvedReport) -> String {
    let mut counts: BTreeMap<String, isize> = BTreeMap::new();
    for (frames, count) in report.data {
        *counts.entry(stack(&Frames::from(frames))).or_default() += count;
    }
    counts.iter().map(|(stack, count)| format!("{stack} {count}\n")).collect()
}

/// Returns a stack as text: the thread, then the functions from the outermost one on.
fn stack(frames: &Frames) -> String {
    let functions = frames.frames.iter().rev().flat_map(|inlined| inlined.iter().rev());
    let names = functions.map(|function| function.name().replace([';', '\n'], ","));
    std::iter::once(frames.thread_name_or_id()).chain(names).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pprof::Symbol;

    #[test]
    fn durations_are_bounded() {
        assert_eq!(seconds("").expect("the usual one"), USUAL_SECONDS);
        assert_eq!(seconds("a=1&seconds=20").expect("the longest one"), 20);
        for wrong in ["seconds=0", "seconds=21", "seconds=", "seconds=-1", "seconds=x"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stacks_begin_with_the_thread_and_end_with_the_innermost_function() {
        let named = |name: &str| Symbol {
            name: Some(name.as_bytes().to_vec()),
            addr: None,
            lineno: None,
            filename: None,
        };
        let frames = Frames {
            frames: vec![vec![named("inlined"), named("inner")], vec![named("outer;x")]],
            thread_name: "worker-0".to_owned(),
            thread_id: 1,
            sample_timestamp: std::time::SystemTime::UNIX_EPOCH,
        };
        assert_eq!(stack(&frames), "worker-0;outer,x;inner;inlined");
    }
}
