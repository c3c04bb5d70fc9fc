//! A proxy that does to requests what bad networks do.
//!
//! It takes a request in whole before it decides about it, and once it has sent the request on,
//! nothing the client does can call it back: a request that was given up may still be applied,
//! which is the very case that a store's user must get right. Headers, the path and the body go
//! on unchanged, because a signature covers them.

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

use super::fault::{Counts, Fault, Plan, Seen};
use super::listen::{Body, Closed, Listener, whole};
use super::stamp::Stamp;

/// A proxy on a free loopback port, ended when dropped.
pub struct Proxy {
    listener: Listener,
    road: Arc<Road>,
}

impl Proxy {
    /// Starts a proxy in front of `upstream`, which reads `http://HOST:PORT`.
    pub async fn start(upstream: &str, plan: Plan) -> io::Result<Self> {
        let road = Arc::new(Road::new(upstream, plan)?);
        let shared = Arc::clone(&road);
        // The answers are the upstream's; one without a date must stay so.
        let listener = Listener::start(false, move |request| Arc::clone(&shared).serve(request)).await?;
        Ok(Self { listener, road })
    }

    /// The address for clients, as `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.listener.endpoint()
    }

    /// Changes the plan for the requests that arrive from now on.
    pub fn set_plan(&self, plan: Plan) {
        *lock(&self.road.plan) = Arc::new(plan);
    }

    /// What has arrived here so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        *lock(&self.road.seen)
    }

    /// What was sent on to the server so far.
    #[must_use]
    pub fn forwarded(&self) -> Counts {
        *lock(&self.road.forwarded)
    }

    /// Waits until the server has answered all that arrived here and is sent on, however late.
    ///
    /// # Cancel safety
    /// A wait that is dropped changes nothing.
    pub async fn settled(&self) {
        poll_fn(|context| {
            let mut flights = lock(&self.road.flights);
            let Some(flights) = flights.as_mut() else { return std::task::Poll::Ready(()) };
            while std::task::ready!(flights.poll_join_next(context)).is_some() {}
            std::task::Poll::Ready(())
        })
        .await;
    }

    /// Ends the proxy, with everything still on its way, and returns when its port is closed.
    pub async fn stop(mut self) {
        self.road.close();
        self.listener.stop().await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.road.close();
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Proxy").field("listener", &self.listener).finish_non_exhaustive()
    }
}

/// What comes back from a flight: its fault, and the server's answer if it was asked.
type Landing = (Fault, Result<Response<Bytes>, Closed>);

/// What all connections share.
struct Road {
    upstream: Authority,
    client: Client<HttpConnector, Full<Bytes>>,
    plan: Mutex<Arc<Plan>>,
    arrivals: AtomicU64,
    seen: Mutex<Counts>,
    forwarded: Mutex<Counts>,
    /// The requests on their way to the server; none once the proxy has ended.
    flights: Mutex<Option<JoinSet<()>>>,
}

impl Road {
    fn new(upstream: &str, plan: Plan) -> io::Result<Self> {
        let uri: Uri = upstream.parse().map_err(io::Error::other)?;
        let upstream = uri
            .authority()
            .cloned()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("`{uri}` names no host")))?;
        // Every request has its own connection, and none is tried twice: after a restart of the
        // server an idle connection would be a fault that is not in the plan.
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
            flights: Mutex::new(Some(JoinSet::new())),
        })
    }

    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Closed> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(|_| Closed)?.to_bytes();
        // The end of the flight without a word, for whatever reason, ends the connection.
        let (fault, answer) = self.launch(head, body).await.map_err(|_| Closed)?;
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

    /// Starts the flight of a request: a task of its own, because the connection's ends when the
    /// client leaves. The plan is asked within it, so that whoever heard of a request from the
    /// plan can wait for its flight.
    fn launch(self: &Arc<Self>, head: Parts, body: Bytes) -> oneshot::Receiver<Landing> {
        let seen = Seen::new(self.arrivals.fetch_add(1, Ordering::Relaxed), &head);
        lock(&self.seen).add(seen.kind);
        let (sender, receiver) = oneshot::channel();
        if let Some(flights) = lock(&self.flights).as_mut() {
            // Those that have landed would otherwise stay in the set for ever.
            while flights.try_join_next().is_some() {}
            flights.spawn(Arc::clone(self).fly(seen, head, body, sender));
        }
        receiver
    }

    async fn fly(self: Arc<Self>, seen: Seen, head: Parts, body: Bytes, land: oneshot::Sender<Landing>) {
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
            self.ask(head, body).await.map_err(|_| Closed)
        };
        let answer = match &fault {
            Fault::DropRequest | Fault::Answer { .. } => Err(Closed),
            Fault::ApplyLate(_) => {
                drop(land);
                // Nobody is left who could be told the outcome.
                let _ = forward.await;
                return;
            }
            _ => forward.await,
        };
        // The client may have left in the meantime.
        let _ = land.send((fault, answer));
    }

    /// Asks the server and reads its whole answer.
    async fn ask(&self, mut head: Parts, body: Bytes) -> io::Result<Response<Bytes>> {
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
        // Dropping the set aborts what is in it, and nothing can be added any more.
        lock(&self.flights).take();
    }
}

/// An answer of the proxy's own; it has a date as an answer of S3 has.
fn own_answer(status: u16, body: String) -> Result<Response<Body>, Closed> {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, "application/xml")
        .header(DATE, Stamp::now().http())
        .body(whole(body))
        .map_err(|_| Closed)
}

/// The head, half of the body, and then the end of the connection.
fn cut(answer: Response<Bytes>) -> Result<Response<Body>, Closed> {
    let (head, body) = answer.into_parts();
    if body.is_empty() {
        // Its head would be the whole answer, and nothing would be missing.
        return Err(Closed);
    }
    let half = body.slice(..body.len() / 2);
    let end = stream::once(async {
        // To wait once lets the half be sent; an error at once would drop it unsent.
        yield_now().await;
        Err(io::Error::other(Closed))
    });
    let frames = stream::once(async { Ok(Frame::data(half)) }).chain(end);
    Ok(Response::from_parts(head, BodyExt::boxed(StreamBody::new(frames))))
}

/// The timer rounds up to the next millisecond, which must not slow what has no delay.
async fn pause(wait: Duration) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}

/// A panic of a plan must not hide behind the panics of everyone who counts afterwards.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
