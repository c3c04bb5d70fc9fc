//! Fixture: a dashboard on an in-memory queue.

use std::net::SocketAddr;
use std::sync::Arc;

use leasehold_core::{NewTask, TaskId};
use leasehold_queue::ObjectQueue;
use leasehold_store::host::Running;
use leasehold_store::{Client, Host, MemoryStore, Prices, SystemHost};
use leasehold_web::{Dashboard, RefreshPace, SettingRow, Token, WebOptions};
use leasehold_worker::Shutdown;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::raw::{Answer, exchange};

/// Token of the guarded dashboard.
pub(crate) const TOKEN: &str = "open-sesame";

/// A running dashboard; stops when it is dropped.
pub(crate) struct DashboardFixture {
    pub(crate) addr: SocketAddr,
    pub(crate) queue: ObjectQueue,
    _running: Running,
}

/// Creates an in-memory queue.
pub(crate) async fn queue() -> ObjectQueue {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    ObjectQueue::connect(Client::new(Arc::new(MemoryStore::new(&host)), host)).await.unwrap()
}

/// Options for loopback, with actions.
pub(crate) fn options() -> WebOptions {
    WebOptions {
        addr: ([127, 0, 0, 1], 0).into(),
        token: None,
        allows_actions: true,
        pace: RefreshPace::Folder,
        prices: Prices::of("aws").unwrap(),
        settings: vec![SettingRow {
            key: "queue.store".into(),
            value: json!("memory://"),
            from: "--store".into(),
        }],
    }
}

impl DashboardFixture {
    pub(crate) async fn new() -> Self {
        Self::with(options()).await
    }

    pub(crate) async fn guarded() -> Self {
        Self::with(WebOptions { token: Some(Token::new(TOKEN).unwrap()), ..options() }).await
    }

    pub(crate) async fn with(options: WebOptions) -> Self {
        let queue = queue().await;
        let dashboard = Dashboard::bind(queue.clone().into(), options).await.unwrap();
        let addr = dashboard.addr();
        let running = SystemHost.spawn(Box::pin(dashboard.run(Shutdown::default())));
        Self { addr, queue, _running: running }
    }

    pub(crate) async fn submit(&self, task_type: &str, input: Value) -> TaskId {
        self.queue.submit_task(NewTask::new(task_type, input).unwrap()).await.unwrap().id
    }

    /// Sends a request with these headers and the host.
    pub(crate) async fn request(&self, method: &str, path: &str, headers: &[&str]) -> Answer {
        self.request_with_body(method, path, headers, "").await
    }

    pub(crate) async fn request_with_body(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &str,
    ) -> Answer {
        let headers = headers.iter().map(|header| format!("{header}\r\n")).collect::<Vec<_>>().concat();
        let host =
            if headers.contains("host: ") { String::new() } else { format!("host: {}\r\n", self.addr) };
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{host}{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        exchange(self.addr, request).await.expect("an answer")
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[]).await
    }

    /// Sends a change, as the page does.
    pub(crate) async fn post(&self, path: &str, body: &str) -> Answer {
        let origin = format!("origin: http://{}", self.addr);
        self.request_with_body(
            "POST",
            path,
            &["x-leasehold: 1", "sec-fetch-site: same-origin", &origin],
            body,
        )
        .await
    }

    /// Sends a change and disconnects without waiting for the response.
    pub(crate) async fn post_and_leave(&self, path: &str, body: &str) {
        let mut stream = tokio::net::TcpStream::connect(self.addr).await.unwrap();
        let (addr, length) = (self.addr, body.len());
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {addr}\r\nx-leasehold: 1\r\ncontent-length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        // The first of many is changed: the action is in progress.
        self.poll_until("/api/overview", |overview| overview["counts"]["cancelled"].as_u64() > Some(0)).await;
    }

    /// Polls until the response satisfies a condition.
    pub(crate) async fn poll_until(&self, path: &str, holds: impl Fn(&Value) -> bool) -> Value {
        loop {
            let answer = self.get(path).await.json();
            if holds(&answer) {
                return answer;
            }
        }
    }

    /// Polls until all tasks have been read.
    pub(crate) async fn until_read(&self) -> Value {
        self.poll_until("/api/overview", |overview| overview["sample"]["is_complete"] == true).await
    }
}
