//! Producers and operators, on the nodes and with the bucket.

use leasehold_core::TaskId;
use leasehold_outpost::{Spool, Supervisor, SupervisorOptions};
use leasehold_queue::QueueLayout;
use leasehold_store::{Client, Host, HostExt};
use std::sync::Arc;
use std::time::Duration;

use super::actors::{BUCKET, OutpostActors, SECOND, connect, random_index};
use super::node::Node;
use crate::host::SimHost;

/// Maximum pause between two operations of a user.
const REST_MAX: Duration = Duration::from_secs(90);

impl OutpostActors {
    /// User on a node: submits, cancels, requeues and checks out.
    pub(super) async fn use_node(self, node: Node, host: Arc<SimHost>, client: Client) {
        let name = format!("{}/user", node.name);
        self.orders().open.remove(&name);
        let Some(spool) = self.open(&node, &host).await else { return };
        loop {
            host.sleep(host.random_below(REST_MAX)).await;
            let what = if self.is_calm() { 0 } else { host.random() % 8 };
            let done = match what {
                0..=3 => {
                    let Some(order) = self.next_submit(&name) else {
                        if self.is_calm() {
                            return;
                        }
                        continue;
                    };
                    let own = spool.clone();
                    let answer = host.blocking(move || own.submit(order)).await;
                    answer.as_ref().iter().for_each(|id| self.checker.record_submit(**id));
                    self.orders().open.remove(&name);
                    answer.map(|id| format!("submitted {id}"))
                }
                4 => {
                    self.on_random_task(&spool, &host, |spool, id| {
                        spool.cancel(id).map(|()| format!("cancelled {id}"))
                    })
                    .await
                }
                5 | 6 => {
                    self.on_random_task(&spool, &host, |spool, id| {
                        spool.requeue(id).map(|_| format!("requeued {id}"))
                    })
                    .await
                }
                _ => self.check_out(spool.clone(), &host, client.clone()).await,
            };
            self.note(&host, done.unwrap_or_else(|error| format!("failed at operation {what}: {error}")));
        }
    }

    async fn on_random_task(
        &self,
        spool: &Spool,
        host: &Arc<SimHost>,
        what: impl FnOnce(&Spool, &TaskId) -> leasehold_core::Result<String> + Send + 'static,
    ) -> leasehold_core::Result<String> {
        let Some(id) = self.random_task(host) else { return Ok("has no task yet".to_owned()) };
        let spool = spool.clone();
        host.blocking(move || what(&spool, &id)).await
    }

    async fn check_out(
        &self,
        spool: Spool,
        host: &Arc<SimHost>,
        client: Client,
    ) -> leasehold_core::Result<String> {
        let options = SupervisorOptions { outbox_interval: self.scan_every, ..SupervisorOptions::default() };
        let mut supervisor = Supervisor::new(spool, connect(client), options);
        let now = supervisor.now().await?;
        let until = now.latest_known().plus(SECOND * 60 + host.random_below(Duration::from_mins(30)));
        let most = 1 + random_index(host, 4);
        let taken = supervisor.check_out(most, &[], until).await?;
        Ok(format!("checked out {taken} until {until}"))
    }

    pub(super) async fn produce(self, host: Arc<SimHost>, client: Client) {
        self.orders().open.remove(BUCKET);
        let queue = self.queue(&host, client).await;
        loop {
            host.sleep(host.random_below(REST_MAX)).await;
            let Some(order) = self.next_submit(BUCKET) else { return };
            let answer = queue.submit_task(order).await;
            self.note(&host, format!("got {answer:?}"));
            if let Ok(submitted) = answer {
                self.checker.record_submit(submitted.id);
            }
            self.orders().open.remove(BUCKET);
        }
    }

    /// Operator with the bucket: cancels and retries.
    pub(super) async fn operate(self, host: Arc<SimHost>, client: Client) {
        let queue = self.queue(&host, client).await;
        while !self.is_calm() {
            host.sleep(host.random_below(REST_MAX * 2)).await;
            let Some(id) = self.random_task(&host) else { continue };
            let cancels = host.random().is_multiple_of(3);
            let done = if cancels { queue.cancel(&id).await } else { queue.retry(&id).await };
            let done = done.map(|done| format!("{done:?}").chars().take(60).collect::<String>());
            self.note(&host, format!("{} {id}: {done:?}", if cancels { "cancels" } else { "retries" }));
        }
    }
}
