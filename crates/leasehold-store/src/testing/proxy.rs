//! Proxy that injects the faults of a bad network.
//!
//! It reads the whole request before it decides about it, and once it has forwarded the request, the client cannot
//! cancel it: a request that the client gave up may still be applied, which is the case that users of a store must
//! handle. Headers, path and body are forwarded unchanged, because a signature covers them.

#![expect(clippy::disallowed_methods, reason = "faults of a real network happen in real time")]

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::header::{CONTENT_TYPE, DATE};
use http::request::Parts;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};

use super::fault::{Fault, FaultPlan, ObservedRequest, RequestCounts};
use super::listen::{Body, Closed, Listener, whole};
use super::stamp::Stamp;

/// Proxy on a free loopback port, stopped when dropped.
pub struct Proxy {
    listener: Listener,
    state: Arc<ProxyState>,
}

impl Proxy {
    /// Starts a proxy in front of `upstream`, which reads `http://HOST:PORT`.
    pub async fn start(upstream: &str, plan: FaultPlan) -> io::Result<Self> {
        let state = Arc::new(ProxyState::new(upstream, plan)?);
        let shared = Arc::clone(&state);
        // The answers are the server's; one without a date must stay without.
        let listener = Listener::start(false, move |request| Arc::clone(&shared).serve(request)).await?;
        Ok(Self { listener, state })
    }

    /// Address for clients, as `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.listener.endpoint()
    }

    /// Changes the plan for the requests that arrive from now on.
    pub fn set_plan(&self, plan: FaultPlan) {
        *lock(&self.state.plan) = Arc::new(plan);
    }

    /// Counts of the requests that arrived so far.
    #[must_use]
    pub fn counts(&self) -> RequestCounts {
        *lock(&self.state.seen)
    }

    /// Counts of the requests that were forwarded so far.
    #[must_use]
    pub fn forwarded(&self) -> RequestCounts {
        *lock(&self.state.forwarded)
    }

    /// Waits until the server has answered all requests that arrived here and are forwarded, however late.
    ///
    /// # Cancel safety
    /// A wait that is dropped changes nothing.
    pub async fn settled(&self) {
        poll_fn(|context| {
            let mut in_flight = lock(&self.state.in_flight);
            let Some(in_flight) = in_flight.as_mut() else { return std::task::Poll::Ready(()) };
            while std::task::ready!(in_flight.poll_join_next(context)).is_some() {}
            std::task::Poll::Ready(())
        })
        .await;
    }

    /// Stops the proxy with all requests in flight, and returns when its port is closed.
    pub async fn stop(mut self) {
        self.state.close();
        self.listener.stop().await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.close();
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Proxy").field("listener", &self.listener).finish_non_exhaustive()
    }
}

/// Result of a forwarded request: its fault, and the server's answer if there is one.
type Forwarded = (Fault, Result<Response<Bytes>, Closed>);

/// State shared by all connections.
struct ProxyState {
    upstream: Authority,
    client: Client<HttpConnector, Full<Bytes>>,
    plan: Mutex<Arc<FaultPlan>>,
    arrivals: AtomicU64,
    seen: Mutex<RequestCounts>,
    forwarded: Mutex<RequestCounts>,
    /// Requests in flight to the server; none once the proxy has stopped.
    in_flight: Mutex<Option<JoinSet<()>>>,
}

impl ProxyState {
    fn new(upstream: &str, plan: FaultPlan) -> io::Result<Self> {
        let uri: Uri = upstream.parse().map_err(io::Error::other)?;
        let upstream = uri
            .authority()
            .cloned()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("`{uri}` names no host")))?;
        // Every request has its own connection, and none is retried: after a restart of the server an idle connection
        // would be a fault that is not in the plan.
        let client = Client::builder(TokioExecutor::new())
            .retry_canceled_requests(false)
            .pool_max_idle_per_host(0)
            .http1_preserve_header_case(true)
            .build_http();
        Ok(Self {
            upstream,
            client,
            plan: Mutex::new(Arc::new(plan)),
            arrivals: AtomicU64::new(0),
            seen: Mutex::default(),
            forwarded: Mutex::default(),
            in_flight: Mutex::new(Some(JoinSet::new())),
        })
    }

    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Closed> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| Closed)?.to_bytes();
        // If the forwarding task ends without a result, the connection is closed.
        let (fault, answer) = self.spawn_forward(head, body).await.map_err(|_| Closed)?;
        match fault {
            Fault::Pass => Ok(answer?.map(whole)),
            Fault::CutAnswer => cut(answer?),
            Fault::Answer { status, body } => own_answer(status, body),
            Fault::Delay { after, .. } => {
                let answer = answer?;
                pause(after).await;
                Ok(answer.map(whole))
            }
            Fault::DropRequest | Fault::DropAnswer | Fault::ApplyLate(_) => Err(Closed),
        }
    }

    /// Forwards a request in a task of its own, because the connection's task ends when the client disconnects. The
    /// plan is called within it, so that a test that learns of a request from the plan can wait for its end.
    fn spawn_forward(self: &Arc<Self>, head: Parts, body: Bytes) -> oneshot::Receiver<Forwarded> {
        let seen = ObservedRequest::new(self.arrivals.fetch_add(1, Ordering::Relaxed), &head);
        lock(&self.seen).add(seen.kind);
        let (sender, receiver) = oneshot::channel();
        if let Some(in_flight) = lock(&self.in_flight).as_mut() {
            // Finished tasks would otherwise stay in the set for ever.
            while in_flight.try_join_next().is_some() {}
            in_flight.spawn(Arc::clone(self).forward(seen, head, body, sender));
        }
        receiver
    }

    async fn forward(
        self: Arc<Self>,
        seen: ObservedRequest,
        head: Parts,
        body: Bytes,
        sender: oneshot::Sender<Forwarded>,
    ) {
        let plan = Arc::clone(&lock(&self.plan));
        let fault = plan(&seen);
        let wait = match &fault {
            Fault::Delay { before, .. } => *before,
            Fault::ApplyLate(wait) => *wait,
            _ => Duration::ZERO,
        };
        let forward = async {
            pause(wait).await;
            lock(&self.forwarded).add(seen.kind);
            self.send_upstream(head, body).await.map_err(|_| Closed)
        };
        let answer = match &fault {
            Fault::DropRequest | Fault::Answer { .. } => Err(Closed),
            Fault::ApplyLate(_) => {
                drop(sender);
                // The client is gone.
                let _ = forward.await;
                return;
            }
            _ => forward.await,
        };
        // The client may have disconnected meanwhile.
        let _ = sender.send((fault, answer));
    }

    /// Sends the request to the server and reads its whole answer.
    async fn send_upstream(&self, mut head: Parts, body: Bytes) -> io::Result<Response<Bytes>> {
        let mut uri = head.uri.into_parts();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Some(self.upstream.clone());
        head.uri = Uri::from_parts(uri).map_err(io::Error::other)?;
        let request = Request::from_parts(head, Full::new(body));
        let answer = self.client.request(request).await.map_err(io::Error::other)?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        Ok(Response::from_parts(head, body))
    }

    fn close(&self) {
        // Dropping the set aborts its tasks, and no more can be added.
        lock(&self.in_flight).take();
    }
}

/// Answer of the proxy itself, with a date as on S3.
fn own_answer(status: u16, body: String) -> Result<Response<Body>, Closed> {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, "application/xml")
        .header(DATE, Stamp::now().http())
        .body(whole(body))
        .map_err(|_| Closed)
}

/// Sends the head and half of the body, and closes the connection.
fn cut(answer: Response<Bytes>) -> Result<Response<Body>, Closed> {
    let (head, body) = answer.into_parts();
    if body.is_empty() {
        // Its head would be the whole answer: nothing would be missing.
        return Err(Closed);
    }
    let half = body.slice(..body.len() / 2);
    let end = stream::once(async {
        // Yielding once lets the half be sent; an immediate error would drop it.
        yield_now().await;
        Err(io::Error::other(Closed))
    });
    let frames = stream::once(async { Ok(Frame::data(half)) }).chain(end);
    Ok(Response::from_parts(head, BodyExt::boxed(StreamBody::new(frames))))
}

/// Pauses, unless the delay is zero: the timer rounds up to the next millisecond.
async fn pause(wait: Duration) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}

/// Locks despite poisoning: a panic of a plan must not be hidden by later panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
