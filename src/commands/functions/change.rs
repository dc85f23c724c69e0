//! Subcommands of FUNCTION that change the libraries. Each change is one record.

use crate::command::{RoundError, registry};
use crate::functions::{Edit, Library, Metadata, Policy};
use crate::node::Node;
use crate::routing::{Call, Waiting};
use crate::unit::said;
use crate::worker::refusal;
use flagstone_commands::help::syntax;
use flagstone_commands::{ErrorText, arg, is_word};
use flagstone_rdb::restore_functions;
use flagstone_storage::partition::LIBRARIES_SHARD;
use flagstone_storage::words::RoundWords;
use flagstone_wire::resp::Args;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time for inspecting the libraries of a payload, except the last one.
const RESTORE_LIMIT: Duration = Duration::from_secs(30);

/// Runs a job that takes up to half a second for each library on a thread of its own.
async fn on_own_thread<T: Send + 'static>(
    node: &Node,
    job: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, ErrorText> {
    let done = node.background.spawn_blocking(job).await;
    Ok(done.map_err(|_| "ERR the libraries could not be looked at")??)
}

/// `FUNCTION LOAD [REPLACE] code`
pub(super) fn load<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let last = args.len() - 1;
        let mut options = (2..last).filter_map(|at| args.get(at));
        if let Some(word) = options.find(|word| !is_word(word, "replace")) {
            let word = String::from_utf8_lossy(word);
            return Err(format!("ERR Unknown option given: {word}").into());
        }
        let policy = if last > 2 { Policy::Replace } else { Policy::Append };
        let code: Box<[u8]> = arg(args, last)?.into();
        let Metadata { name, .. } = Metadata::read(&code)?;
        let mut edit = cx.node.code.functions.edit().await;
        if policy == Policy::Append && edit.libraries().get(&name).is_some() {
            let name = String::from_utf8_lossy(&name);
            return Err(format!("ERR Library '{name}' already exists").into());
        }
        let max_vm_bytes = cx.node.code.scripts.max_vm_bytes;
        edit.has_room(code.len())?;
        let library = on_own_thread(cx.node, move || Library::inspect(&code, max_vm_bytes)).await?;
        edit.add(&[Arc::new(library)], policy)?;
        store(cx, edit, args).await?;
        cx.out.bulk(&name);
        Ok(())
    })
}

/// `FUNCTION DELETE library`
pub(super) fn delete<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let mut edit = cx.node.code.functions.edit().await;
        if !edit.remove(arg(args, 2)?) {
            return Err("ERR Library not found".into());
        }
        store(cx, edit, args).await?;
        cx.out.ok();
        Ok(())
    })
}

/// `FUNCTION FLUSH [ASYNC | SYNC]`: both modes are the same.
pub(super) fn flush<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        if args.len() > 3 {
            return Err(syntax("FUNCTION", arg(args, 1)?).into());
        }
        let known = args.get(2).is_none_or(|word| is_word(word, "sync") || is_word(word, "async"));
        if !known {
            return Err("ERR FUNCTION FLUSH only supports SYNC|ASYNC option".into());
        }
        let mut edit = cx.node.code.functions.edit().await;
        edit.clear();
        store(cx, edit, args).await?;
        cx.out.ok();
        Ok(())
    })
}

/// `FUNCTION RESTORE payload [FLUSH | APPEND | REPLACE]`
pub(super) fn restore<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        if args.len() > 4 {
            return Err(syntax("FUNCTION", arg(args, 1)?).into());
        }
        let policy = match args.get(3) {
            None => Policy::Append,
            Some(word) if is_word(word, "append") => Policy::Append,
            Some(word) if is_word(word, "replace") => Policy::Replace,
            Some(word) if is_word(word, "flush") => Policy::Flush,
            Some(_) => {
                return Err(
                    "ERR Wrong restore policy given, value should be either FLUSH, APPEND \
                            or REPLACE."
                        .into(),
                );
            }
        };
        let newer = cx.worker.settings().data.rdb_newer_versions;
        let codes = restore_functions(arg(args, 2)?, newer)?;
        let mut edit = cx.node.code.functions.edit().await;
        let max_vm_bytes = cx.node.code.scripts.max_vm_bytes;
        edit.has_room(codes.iter().map(Vec::len).sum())?;
        let inspect = move || {
            let began = Instant::now();
            let library = |code: &Vec<u8>| {
                if began.elapsed() > RESTORE_LIMIT {
                    return Err("ERR the libraries of the payload take too long".to_owned());
                }
                Library::inspect(code, max_vm_bytes).map(Arc::new)
            };
            codes.iter().map(library).collect::<Result<Vec<_>, String>>()
        };
        edit.add(&on_own_thread(cx.node, inspect).await?, policy)?;
        store(cx, edit, args).await?;
        cx.out.ok();
        Ok(())
    })
}

/// Error of changes of libraries in a cluster of several servers.
const SHARED: &str = "ERR The servers of a cluster over one bucket have no libraries of functions: use \
    EVAL, or SCRIPT LOAD on each server";

/// Returns the words of the running command, for replicas.
fn words_of(cx: &Call<'_>, args: Args<'_>) -> Vec<u8> {
    let mut said = RoundWords::default();
    if let Some(command) = registry::resolve(args)
        && cx.node.followers.feed.is_on()
    {
        said.want(true);
        said.command(0, said::words_of(command, args).into_iter());
    }
    said.into_bytes()
}

/// Stores a change as one record, at the worker that owns the libraries, and then puts it into
/// effect. Continues even if the future is dropped.
async fn store(cx: &Call<'_>, edit: Edit, args: Args<'_>) -> Result<(), RoundError> {
    if edit.changes().is_empty() {
        return Ok(());
    }
    let worker = cx.worker;
    if worker.node.cluster.is_some() {
        return Err(SHARED.into());
    }
    let words = words_of(cx, args);
    let owner = usize::from(LIBRARIES_SHARD) % worker.node.shard_workers;
    let stored = worker.peers.on_worker(owner, false, |worker| async move {
        let now_ms = worker.node.clock.now_ms();
        let put = worker.partition.borrow_mut().put_libraries(now_ms, &edit.changes(), words);
        let lsn = put.map_err(|error| refusal(&error))?;
        worker.wait_shown(&worker.showing(lsn)).await?;
        edit.finish(&worker.node.code.functions);
        Ok(())
    });
    stored.await.unwrap_or_else(|_| Err("ERR a worker is gone".into()))
}
