//! Cold reads of a worker: what the commands of one tick miss is asked for together, so that they
//! cost one hand-over to the background and, when they run again, one journal record.

use super::Worker;
use flagstone_storage::store::Need;
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::{Notify, oneshot};

/// What one command waits for.
struct Request {
    needs: Vec<Need>,
    done: oneshot::Sender<Result<(), String>>,
}

/// The requests that nobody sees to yet.
#[derive(Default)]
pub(super) struct Loader {
    queue: RefCell<Vec<Request>>,
    due: Notify,
}

impl Worker {
    /// Loads what is not in memory; the keys are locked. `Err`: the text for the client.
    pub(crate) async fn load(&self, needs: Vec<Need>) -> Result<(), String> {
        let (done, loaded) = oneshot::channel();
        self.loader.queue.borrow_mut().push(Request { needs, done });
        self.loader.due.notify_one();
        loaded.await.unwrap_or_else(|_| Err("ERR the command was abandoned".into()))
    }

    /// Sees to the requests; runs as long as the worker.
    pub(crate) async fn run_loader(self: Rc<Self>) {
        loop {
            self.loader.due.notified().await;
            let requests = self.loader.queue.take();
            if !requests.is_empty() {
                tokio::task::spawn_local(self.clone().load_together(requests));
            }
        }
    }

    async fn load_together(self: Rc<Self>, requests: Vec<Request>) {
        let all = requests.iter().flat_map(|request| request.needs.iter().cloned()).collect();
        let loaded = self.load_now(all).await;
        let alone = requests.len() == 1;
        for request in requests {
            let result = match &loaded {
                Err(_) if !alone => {
                    // One of them cannot be read: the others do not suffer for it.
                    self.load_now(request.needs).await
                }
                loaded => loaded.clone(),
            };
            // A command that is gone needs nothing.
            let _ = request.done.send(result);
        }
    }

    async fn load_now(&self, needs: Vec<Need>) -> Result<(), String> {
        // Ranges of elements are read as pending rows and engine know them: so they must know all.
        if needs.iter().any(|need| need.part.is_some()) && self.partition.borrow().store.is_dirty()
        {
            self.commit();
        }
        let plan = self.partition.borrow_mut().plan_load(needs);
        let loaded = plan.run(&self.node.background).await;
        let finished = self.partition.borrow_mut().finish_load(loaded);
        self.evict();
        finished.map_err(|error| {
            tracing::error!("{error:#}");
            format!("ERR the data could not be read: {error:#}")
        })
    }
}
