//! Commands on whole databases: FLUSHDB, FLUSHALL, SWAPDB. They take every worker whole, in
//! order, and change generations by one record for all shards.

use super::coordinator::{acquire_whole, send_all};
use super::hold::Apply;
use super::on_all;
use crate::node::Node;
use crate::worker::Worker;
use flagstone_storage::commit::Sealed;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Empties databases.
pub async fn flush(worker: &Rc<Worker>, dbs: Vec<u32>) -> Result<(), String> {
    change(worker, None, move |worker, sealed, apply| {
        for db in dbs {
            let dead = worker.partition.borrow().store.generation(db);
            let generation = worker.node.next_generation.fetch_add(1, Ordering::Relaxed) as u32;
            for ops in sealed.ops.values_mut() {
                ops.generation(db, generation, dead);
            }
            apply.generations.push((db, generation));
        }
    })
    .await
}

/// Exchanges two databases.
pub async fn swap(worker: &Rc<Worker>, a: u32, b: u32) -> Result<(), String> {
    change(worker, Some((a, b)), move |worker, sealed, apply| {
        let partition = worker.partition.borrow();
        for ops in sealed.ops.values_mut() {
            ops.generation(a, partition.store.generation(b), 0);
            ops.generation(b, partition.store.generation(a), 0);
        }
        apply.swap = Some((a, b));
    })
    .await
}

/// Takes all workers, writes one record for all shards, and has it applied everywhere. The task
/// goes on to the end even if the future is dropped.
async fn change(
    worker: &Rc<Worker>,
    swap: Option<(u32, u32)>,
    make: impl FnOnce(&Rc<Worker>, &mut Sealed, &mut Template) + 'static,
) -> Result<(), String> {
    let coordinator = worker.clone();
    tokio::task::spawn_local(async move { change_now(&coordinator, swap, make).await })
        .await
        .unwrap_or_else(|_| Err("ERR the command was abandoned".into()))
}

#[derive(Default)]
struct Template {
    generations: Vec<(u32, u32)>,
    swap: Option<(u32, u32)>,
}

async fn change_now(
    worker: &Rc<Worker>,
    swap: Option<(u32, u32)>,
    make: impl FnOnce(&Rc<Worker>, &mut Sealed, &mut Template),
) -> Result<(), String> {
    let node = &worker.node;
    let mut holds = BTreeMap::new();
    let mut refused = None;
    // Workers that own no shard know the databases too, and come last.
    for target in 0..node.mailboxes.len() {
        match acquire_whole(node, target).await {
            Ok(hold) => {
                holds.insert(target, hold);
            }
            Err(text) => {
                refused = Some(text);
                break;
            }
        }
    }
    if let (None, Some((a, b))) = (&refused, swap) {
        refused = load_watched(node, a, b).await.err();
    }
    let mut template = Template::default();
    let mut record = None;
    if refused.is_none() {
        let mut sealed = Sealed::default();
        for shard in 0..node.layout.shards {
            sealed.ops.entry(shard).or_default();
        }
        make(worker, &mut sealed, &mut template);
        let body = sealed.body();
        match node.journal.append(node.clock.now_ms(), &sealed.shards(), &[&body]) {
            Ok(lsn) => record = Some((lsn, Arc::new(body))),
            Err(error) => refused = Some(format!("ERR the write could not be stored: {error}")),
        }
    }
    let lsn = record.as_ref().map(|(lsn, _)| *lsn);
    let applies = holds
        .into_iter()
        .map(|(target, hold)| {
            let mut apply = Apply { hold, record: record.clone(), ..Apply::default() };
            if record.is_some() {
                apply.generations = template.generations.clone();
                apply.swap = template.swap;
            }
            (target, apply)
        })
        .collect();
    send_all(node, applies).await;
    match (refused, lsn) {
        (None, Some(lsn)) => {
            worker.wait_shown(worker.round_showing(lsn)).await.map_err(|e| e.0)?;
            node.invalidate_everything(&worker.settings());
            Ok(())
        }
        (text, _) => Err(text.unwrap_or_else(|| "ERR nothing was changed".into())),
    }
}

/// Has every worker know what is watched in one of two databases of the other, to tell whether it
/// changes with them. They are held whole.
async fn load_watched(node: &Node, a: u32, b: u32) -> Result<(), String> {
    let load = move |worker: Rc<Worker>| async move { worker.load_watched(a, b).await };
    let loaded = on_all(node, true, load).await.map_err(|_| "ERR a worker is gone")?;
    loaded.into_iter().collect()
}
