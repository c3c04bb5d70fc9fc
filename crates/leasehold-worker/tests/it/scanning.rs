//! Running tasks during a scan.

use leasehold_core::{Index, Status};
use leasehold_queue::ObjectQueue;
use leasehold_store::ledger::{LedgerLine, Outcome};
use leasehold_store::store::Answer;
use leasehold_store::{Client, DelegatingStore, Host, List, MemoryStore, Page, Store, SystemHost};
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
    /// Notified of every scan that has to wait.
    waiting: Arc<Notify>,
}

impl DelegatingStore for SlowLists {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        let mut is_open = self.is_open.clone();
        Box::pin(async move {
            if !*is_open.borrow() && list.prefix == Index::Ready.root() {
                self.waiting.notify_one();
            }
            let _ = is_open.wait_for(|is_open| *is_open).await;
            self.store.list(list).await
        })
    }
}

/// A worker whose handler notifies when it starts and then waits for a signal to finish.
fn patient(queue: &ObjectQueue, started: &Arc<Notify>, finish: &Arc<Notify>) -> Worker {
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
async fn running_tasks_are_settled_during_a_scan() {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let (gate, is_open) = watch::channel(true);
    let [waiting, started, finish] = [(); 3].map(|()| Arc::new(Notify::new()));
    let store = SlowLists { store: MemoryStore::new(&host), is_open, waiting: waiting.clone() };
    let queue = ObjectQueue::connect(Client::new(Arc::new(store), host)).await.unwrap();
    let first = submit(&queue, "patient", json!(null)).await;
    let running = tokio::spawn(patient(&queue, &started, &finish).run(Shutdown::default()));
    started.notified().await;
    gate.send(false).unwrap();
    // The submit makes the worker scan, unless it did so by itself before.
    let second = submit(&queue, "patient", json!(null)).await;
    waiting.notified().await;
    finish.notify_one();
    while status(&queue, &first).await != Status::Completed {
        tokio::task::yield_now().await;
    }
    assert_eq!(status(&queue, &second).await, Status::Pending);
    gate.send(true).unwrap();
    finish.notify_one();
    assert_eq!(running.await.unwrap().unwrap().completed, 2);
    // The scan was waited for: had it been abandoned first, that would be recorded here.
    let unanswered = |line: &LedgerLine| line.outcome == Outcome::Ambiguous;
    assert_eq!(queue.client().ledger().snapshot().count(unanswered), 0);
}
