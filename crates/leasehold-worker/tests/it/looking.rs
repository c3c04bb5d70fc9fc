//! What goes on while a worker looks for work.

use leasehold_core::{Index, Status};
use leasehold_queue::Queue;
use leasehold_store::ledger::{Line, Outcome};
use leasehold_store::seam::Answer;
use leasehold_store::{Around, Client, Host, List, MemoryStore, Page, Store, SystemHost};
use leasehold_worker::{Shutdown, TaskError, Worker};
use serde_json::json;
use std::sync::Arc;
use tokio::sync::{Notify, watch};

use crate::{options, status, submit};

/// A store whose lists do not answer while the gate is closed; everything else does.
#[derive(Debug)]
struct SlowLists {
    store: MemoryStore,
    is_open: watch::Receiver<bool>,
    /// Told of every look for work that has to wait.
    held: Arc<Notify>,
}

impl Around for SlowLists {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        let mut is_open = self.is_open.clone();
        Box::pin(async move {
            if !*is_open.borrow() && list.prefix == Index::Ready.root() {
                self.held.notify_one();
            }
            let _ = is_open.wait_for(|is_open| *is_open).await;
            self.store.list(list).await
        })
    }
}

/// A worker whose handler says when it starts and then waits until it is told to finish.
fn patient(queue: &Queue, started: &Arc<Notify>, finish: &Arc<Notify>) -> Worker {
    let (started, finish) = (started.clone(), finish.clone());
    let worker = Worker::new(queue.clone(), "w1", None).unwrap();
    let worker = worker.handle("patient", move |_, (): ()| {
        started.notify_one();
        let finish = finish.clone();
        async move {
            finish.notified().await;
            Ok::<_, TaskError>(())
        }
    });
    worker.unwrap().options(options())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_is_settled_during_a_look() {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let (gate, is_open) = watch::channel(true);
    let [held, started, finish] = [(); 3].map(|()| Arc::new(Notify::new()));
    let store = SlowLists { store: MemoryStore::new(&host), is_open, held: held.clone() };
    let queue = Queue::connect(Client::new(Arc::new(store), host)).await.unwrap();
    let first = submit(&queue, "patient", json!(null)).await;
    let running = tokio::spawn(patient(&queue, &started, &finish).run(Shutdown::default()));
    started.notified().await;
    gate.send(false).unwrap();
    // Its news makes the worker look, unless it did so by itself before.
    let second = submit(&queue, "patient", json!(null)).await;
    held.notified().await;
    finish.notify_one();
    while status(&queue, &first).await != Status::Completed {
        tokio::task::yield_now().await;
    }
    assert_eq!(status(&queue, &second).await, Status::Pending);
    gate.send(true).unwrap();
    finish.notify_one();
    assert_eq!(running.await.unwrap().unwrap().completed, 2);
    // The look was waited for: had it been given up first, that would stand here.
    let unanswered = |line: &Line| line.outcome == Outcome::Ambiguous;
    assert_eq!(queue.client().ledger().snapshot().count(unanswered), 0);
}
