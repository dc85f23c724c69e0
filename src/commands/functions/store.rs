//! Stores changes of the libraries: each as one record or, in a cluster of several servers, as one
//! object that the map names.

use super::change::LibraryChange;
use crate::command::{Patience, Request, RoundError, registry};
use crate::functions::{Edit, LibraryFate, SharedLibraries};
use crate::node::{Node, limits};
use crate::routing::{Call, CallOutcome, at_rest};
use crate::unit::said;
use crate::worker::{Worker, refusal};
use flagstone_commands::{ErrorText, flag};
use flagstone_storage::journal::Lsn;
use flagstone_storage::partition::LIBRARIES_SHARD;
use flagstone_storage::words::RoundWords;
use flagstone_wire::resp::Args;
use std::sync::Arc;

/// Times that a change is made anew because another server's change was first.
const ATTEMPTS: usize = 32;

/// Makes a change, stores it, and then puts it into effect. Once it is made it continues even if the
/// future is dropped.
pub(super) async fn store(cx: &Call<'_>, mut change: LibraryChange, args: Args<'_>) -> CallOutcome {
    if cx.session.may_repeat {
        change.may_repeat();
    }
    let mut edit = cx.node.code.functions.edit().await;
    let Some(shared) = cx.node.code.shared.clone() else {
        change.make(cx.node, &mut edit, None).await?;
        return store_rows(cx, edit, args).await;
    };
    let sharing = share(cx.node.clone(), shared, edit, change);
    let shared = cx.node.background.spawn(sharing).await;
    Ok(shared.map_err(|_| "ERR the libraries could not be changed")??)
}

/// Stores a change as one record, at the worker that owns the libraries. The command may have been admitted long
/// before: a pause that has begun since delays it, except in a transaction, which may have begun the pause itself.
async fn store_rows(cx: &Call<'_>, mut edit: Edit, args: Args<'_>) -> CallOutcome {
    if edit.changes().is_empty() {
        return Ok(());
    }
    let worker = cx.worker;
    let (request, may_wait, words) = (cx.session.request(), !cx.session.in_exec, words_of(args));
    let patience = if request.is_of_stream() { Patience::Endless } else { Patience::Short };
    let owner = usize::from(LIBRARIES_SHARD) % worker.node.shard_workers;
    let stored = worker.peers.on_worker(owner, false, move |worker| async move {
        let pauses = &worker.node.pauses;
        let lsn = loop {
            if may_wait {
                pauses.wait(true).await;
            }
            let (storing, words) = (worker.clone(), words.clone());
            let job = async move {
                let is_paused = may_wait && storing.node.pauses.now().is_some();
                let put = (!is_paused).then(|| put_rows(&storing, &request, &edit, words));
                (edit, put)
            };
            let put;
            (edit, put) = at_rest(&worker, patience, job).await?;
            if let Some(put) = put {
                break put?;
            }
        };
        worker.wait_shown(&worker.showing(lsn)).await?;
        edit.apply(&worker.node.code.functions);
        Ok::<_, RoundError>(())
    });
    Ok(stored.await.map_err(|_| "ERR a worker is gone")??)
}

/// Puts the rows of a change into the journal while no command runs, unless this server has become a replica.
fn put_rows(
    worker: &Worker,
    request: &Request,
    edit: &Edit,
    words: Vec<u8>,
) -> Result<Lsn, RoundError> {
    let (node, settings) = (&worker.node, worker.settings());
    if let Some(text) = limits::refused_late(&node.health, &settings, request, flag!(WRITE)) {
        return Err(RoundError::refused(text));
    }
    let now_ms = node.clock.now_ms();
    let put = worker.partition.borrow_mut().put_libraries(now_ms, &edit.changes(), words);
    put.map_err(|error| refusal(&error))
}

/// Returns the words of the running command, for replicas.
fn words_of(args: Args<'_>) -> Vec<u8> {
    let mut said = RoundWords::default();
    if let Some(command) = registry::resolve(args) {
        said.want(true);
        said.command(0, said::words_of(command, args).into_iter());
    }
    said.into_bytes()
}

/// Makes a change of the libraries of a cluster, and stores it: anew as long as other servers are
/// first.
async fn share(
    node: Arc<Node>,
    shared: Arc<SharedLibraries>,
    mut edit: Edit,
    mut change: LibraryChange,
) -> Result<(), ErrorText> {
    let functions = &node.code.functions;
    let away = |error: String| format!("TRYAGAIN nothing has changed: {error}");
    for _ in 0..ATTEMPTS {
        let mut base = shared.newest_map().await.map_err(away)?;
        // What removes all of them mends an object that cannot be read.
        if base.functions().is_none() || !change.removes_all() {
            base = shared.load(functions, &mut edit, base).await.map_err(away)?;
        }
        change.make(&node, &mut edit, Some(&shared)).await?;
        if edit.changes().is_empty() && shared.is_loaded(&base) {
            return Ok(());
        }
        let fate = shared.store(functions, &mut edit, &base).await?;
        let (pruning, unneeded) = (shared.clone(), fate.unneeded());
        node.background.spawn(async move { pruning.prune(unneeded).await });
        if let LibraryFate::Counts { .. } = fate {
            return Ok(());
        }
        edit.begin_again();
    }
    Err("TRYAGAIN other servers change the libraries faster than they can be changed here".into())
}
