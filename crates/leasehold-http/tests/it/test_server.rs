//! A listener with a handler that answers with as many bytes as its path says.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use leasehold_http::testing::within_timeout;
use leasehold_http::{Connection, HttpListener, ListenerEvent, ListenerLimits, RequestHandler};
use leasehold_store::host::{End, Running};
use leasehold_store::{Host, SystemHost};
use tokio::sync::watch;

pub(crate) const LIMITS: ListenerLimits = ListenerLimits {
    connections_max: 64,
    per_address_max: 64,
    header_wait: Duration::from_secs(10),
    idle_wait: Duration::from_secs(30),
};

/// Stage of a shutdown that a test requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    No,
    Drain,
    Abort,
}

/// Answers `/N` with N bytes, `/gate` when the gate is open; `/panic` panics.
pub(crate) struct TestHandler {
    events: Mutex<Vec<ListenerEvent>>,
    is_open: watch::Sender<bool>,
    at_gate: watch::Sender<u64>,
}

impl RequestHandler for TestHandler {
    type Body = Full<Bytes>;

    async fn handle(
        self: Arc<Self>,
        connection: Arc<Connection>,
        request: Request<Incoming>,
    ) -> Response<Full<Bytes>> {
        connection.request_received();
        let bytes = match request.uri().path() {
            "/gate" => {
                self.at_gate.send_modify(|requests| *requests += 1);
                self.is_open.subscribe().wait_for(|is_open| *is_open).await.unwrap();
                4
            }
            "/panic" => panic!("the handler panics"),
            path => path[1..].parse().unwrap(),
        };
        connection.body_handed_over();
        Response::new(Full::new(vec![b'x'; bytes].into()))
    }

    fn on_event(&self, event: ListenerEvent) {
        self.events.lock().unwrap().push(event);
    }
}

/// A running listener.
pub(crate) struct TestServer {
    pub(crate) addr: SocketAddr,
    handler: Arc<TestHandler>,
    stop: watch::Sender<Stop>,
    running: Running,
}

impl TestServer {
    pub(crate) async fn new(limits: ListenerLimits) -> Self {
        Self::on(limits, Arc::new(SystemHost)).await
    }

    pub(crate) async fn on(limits: ListenerLimits, host: Arc<dyn Host>) -> Self {
        let listener = HttpListener::bind(([127, 0, 0, 1], 0).into(), limits, host).await.unwrap();
        let handler = Arc::new(TestHandler {
            events: Mutex::default(),
            is_open: watch::Sender::new(false),
            at_gate: watch::Sender::new(0),
        });
        let (addr, stop) = (listener.addr(), watch::Sender::new(Stop::No));
        let reached = |stage| {
            let mut stop = stop.subscribe();
            async move { drop(stop.wait_for(|stop| *stop >= stage).await.unwrap()) }
        };
        let (drain, abort) = (reached(Stop::Drain), reached(Stop::Abort));
        let running = SystemHost.spawn(Box::pin(listener.run(handler.clone(), drain, abort)));
        Self { addr, handler, stop, running }
    }

    /// Number of events of this kind so far.
    pub(crate) fn count(&self, event: ListenerEvent) -> usize {
        self.handler.events.lock().unwrap().iter().filter(|one| **one == event).count()
    }

    /// Waits until this many requests wait at the gate.
    pub(crate) async fn holds(&self, requests: u64) {
        within_timeout(self.handler.at_gate.subscribe().wait_for(|at_gate| *at_gate >= requests))
            .await
            .unwrap();
    }

    pub(crate) fn open_gate(&self) {
        self.handler.is_open.send_replace(true);
    }

    pub(crate) fn stop(&self, stop: Stop) {
        self.stop.send_replace(stop);
    }

    /// Waits until the listener has ended.
    pub(crate) async fn ended(self) {
        assert_eq!(within_timeout(self.running).await, End::Done);
    }
}
