//! HTTP routes.
//!
//! The order matters: first access control, which costs nothing; then the body, bounded in size and time; only then the
//! path. So a rejected request costs the server no work. Every response, including errors, carries the security headers
//! that restrict what a browser may do with it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{Either, join_all, select};
use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use leasehold_core::{Error, Kind, Reason};
use leasehold_http::{Connection, RequestHandler};
use leasehold_queue::Queue;
use leasehold_store::host::Running;
use leasehold_store::{Client, Prices, Snapshot};
use serde_json::json;
use tokio::sync::oneshot;

use crate::access::{Access, AccessDenied};
use crate::figures::FiguresCache;
use crate::sampler::Shared;
use crate::snapshot::DOWN_AFTER;
use crate::task_cache::TaskCache;
use crate::{SettingRow, WebOptions, api, metrics, page};

/// Largest request body: a filter has a few hundred bytes.
const BODY_BYTES_MAX: usize = 64 * 1_024;
/// Longest wait for a request body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Content security policy: own scripts, styles and requests only; no other origins, frames or forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// State shared by all handlers.
pub(crate) struct App {
    pub(crate) shared: Arc<Shared>,
    /// Client as used by the rest of the process, for its ledger.
    process: Client,
    pub(crate) access: Access,
    pub(crate) prices: Prices,
    pub(crate) settings: Vec<SettingRow>,
    pub(crate) figures: FiguresCache,
    pub(crate) task_cache: TaskCache,
    /// Random id of this server process: revisions count from its start.
    pub(crate) run: String,
    in_progress: Mutex<Vec<Running>>,
}

impl App {
    pub(crate) fn new(queue: &Queue, options: WebOptions) -> leasehold_core::Result<Self> {
        let WebOptions { token, allows_actions, pace, prices, settings, .. } = options;
        let own: Queue = match queue.journal() {
            Ok(journal) => journal.with_own_ledger().acting_as("dashboard").into(),
            Err(_) => queue.objects()?.with_own_ledger().acting_as("dashboard").into(),
        };
        Ok(Self {
            shared: Arc::new(Shared::new(own, pace)?),
            process: queue.client()?.clone(),
            access: Access { token, allows_actions },
            prices,
            settings,
            figures: FiguresCache::default(),
            task_cache: TaskCache::default(),
            run: format!("{:08x}", queue.host().random() & 0xffff_ffff),
            in_progress: Mutex::default(),
        })
    }

    /// Runs a future to completion even if the client disconnects.
    pub(crate) async fn run_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let (sender, receiver) = oneshot::channel();
        let work = async move {
            // The send fails if the client has disconnected.
            let _ = sender.send(work.await);
        };
        let running = self.shared.host().spawn(Box::pin(work));
        {
            let mut in_progress = self.in_progress.lock().unwrap_or_else(PoisonError::into_inner);
            in_progress.retain_mut(|one| one.now_or_never().is_none());
            in_progress.push(running);
        }
        receiver.await.map_err(|_| Error::new(Kind::Internal, "the change was aborted"))
    }

    /// Waits for all changes in progress.
    pub(crate) async fn finish(&self) {
        let in_progress =
            std::mem::take(&mut *self.in_progress.lock().unwrap_or_else(PoisonError::into_inner));
        join_all(in_progress).await;
    }

    /// Request counts of this process.
    pub(crate) fn spent(&self) -> Snapshot {
        self.process.ledger().snapshot().plus(&self.shared.client().ledger().snapshot())
    }
}

/// HTTP service: the router and its shared state.
pub(crate) struct Routes {
    app: Arc<App>,
    router: Router,
}

impl Routes {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self { router: router(app.clone()), app }
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("queue", &self.shared.queue()).finish_non_exhaustive()
    }
}

/// Builds the router.
fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(async || file("index.html")))
        .route("/static/{*name}", get(async |Path(name): Path<String>| file(&name)))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics::metrics))
        .route("/api/overview", get(api::overview::overview))
        .route("/api/tasks", get(api::tasks::tasks))
        .route("/api/tasks/retry", post(api::actions::retry_all))
        .route("/api/tasks/cancel", post(api::actions::cancel_all))
        .route("/api/tasks/{id}", get(api::task::task))
        .route("/api/tasks/{id}/{action}", post(api::actions::act))
        .route("/api/workers", get(api::workers::workers))
        .route("/api/shards", get(api::shards::shards))
        .route("/api/artifacts", get(api::artifacts::artifacts))
        .route("/api/outposts", get(api::outposts::outposts))
        .route("/api/settings", get(api::settings))
        .fallback(async || error_response(StatusCode::NOT_FOUND, "path not found"))
        .method_not_allowed_fallback(async || {
            error_response(StatusCode::METHOD_NOT_ALLOWED, "method not allowed for this path")
        })
        .with_state(app)
}

impl RequestHandler for Routes {
    type Body = Body;

    async fn handle(self: Arc<Self>, connection: Arc<Connection>, request: Request<Incoming>) -> Response {
        connection.request_received();
        let mut answer = self.respond(request).await;
        let headers = answer.headers_mut();
        let fixed = [
            (CACHE_CONTROL, "no-store"),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
        ];
        for (name, value) in fixed {
            headers.insert(name, HeaderValue::from_static(value));
        }
        connection.body_handed_over();
        answer
    }
}

impl Routes {
    async fn respond(&self, request: Request<Incoming>) -> Response {
        let (head, body) = request.into_parts();
        if let Err(refused) = self.app.access.check(&head.method, head.uri.path(), &head.headers) {
            return denied_response(refused);
        }
        let body = match self.read_body(body).await {
            Ok(body) => body,
            Err(mut answer) => {
                // The rest of the body would be parsed as the next request.
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                return answer;
            }
        };
        let request = Request::from_parts(head, Body::from(body));
        let Ok(answer) = TowerToHyperService::new(self.router.clone()).call(request).await;
        answer
    }

    /// Reads the body of a request, bounded in size and time.
    async fn read_body(&self, body: Incoming) -> Result<Bytes, Response> {
        let late = self.app.shared.host().sleep(BODY_TIMEOUT);
        match select(Box::pin(Limited::new(body, BODY_BYTES_MAX).collect()), late).await {
            Either::Left((Ok(body), _)) => Ok(body.to_bytes()),
            Either::Left((Err(error), _)) if error.is::<LengthLimitError>() => {
                let words = format!("request body must be at most {BODY_BYTES_MAX} bytes");
                Err(error_response(StatusCode::PAYLOAD_TOO_LARGE, &words))
            }
            Either::Left((Err(_), _)) => {
                Err(error_response(StatusCode::BAD_REQUEST, "request body ended early"))
            }
            Either::Right(_) => {
                Err(error_response(StatusCode::REQUEST_TIMEOUT, "request body did not arrive in time"))
            }
        }
    }
}

/// Error as an HTTP response.
#[derive(Debug)]
pub(crate) struct ApiError(Error);

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match self.0.reason() {
            Some(Reason::Missing) => StatusCode::NOT_FOUND,
            _ => {
                StatusCode::from_u16(self.0.kind().http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
        };
        error_response(status, &self.0.to_string())
    }
}

/// Builds an error response.
pub(crate) fn error_response(status: StatusCode, why: &str) -> Response {
    (status, axum::Json(json!({"error": why}))).into_response()
}

fn denied_response(refused: AccessDenied) -> Response {
    let mut answer = error_response(refused.status(), &refused.to_string());
    let headers = answer.headers_mut();
    if refused == AccessDenied::Token {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn file(name: &str) -> Response {
    match page::find(name) {
        Some(file) => ([(CONTENT_TYPE, file.media_type)], file.bytes).into_response(),
        None => error_response(StatusCode::NOT_FOUND, "file not found"),
    }
}

/// Health check: 503 if the store cannot be read, or no broker can be reached. Sends no requests to the store.
pub(crate) async fn healthz(State(app): State<Arc<App>>) -> Response {
    let (snapshot, now) = (app.shared.snapshot(), app.shared.host().instant());
    // The path is public: the error, which names the store, is not included, nor the process of the broker.
    if snapshot.is_down(now, DOWN_AFTER) {
        (StatusCode::SERVICE_UNAVAILABLE, "store unavailable\n").into_response()
    } else if snapshot.journal.is_without_broker(now, DOWN_AFTER) {
        (StatusCode::SERVICE_UNAVAILABLE, "no broker can be reached\n").into_response()
    } else {
        "ok\n".into_response()
    }
}

/// True if the client already has this revision.
pub(crate) fn matches_etag(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get(http::header::IF_NONE_MATCH).and_then(|known| known.to_str().ok());
    known.is_some_and(|known| known.split(',').any(|one| one.trim().trim_start_matches("W/") == tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::SampleCost;
    use crate::sampler;
    use crate::snapshot::{Part, ReadAttempt};
    use crate::testing::{DashboardFixture, StoreState};
    use leasehold_store::Host;

    #[tokio::test]
    async fn health_is_bad_only_after_reads_have_failed_for_a_minute() {
        let fixture = DashboardFixture::new().await;
        let health = async || healthz(State(fixture.app.clone())).await.status().as_u16();
        let note = |failed: Option<&Error>| {
            let attempt =
                ReadAttempt { at: fixture.app.shared.host().instant(), cost: SampleCost::default() };
            fixture.app.shared.snapshot_mut().note(Part::Index, attempt, failed);
        };
        let error = Error::invalid("no such bucket");
        note(Some(&error));
        assert_eq!(health().await, 200, "it may be transient");
        fixture.host.advance(Duration::from_mins(1));
        note(Some(&error));
        assert_eq!(health().await, 503);
        note(None);
        assert_eq!(health().await, 200);
        assert_eq!(fixture.requests(), [0, 0], "no request was sent to the store");
    }

    #[tokio::test]
    async fn health_is_bad_within_90_s_of_an_outage_without_viewers() {
        // Waits that race are added up by the fixture's clock: each of the two tries at a silent store lasts as long as the
        // probe waits and, in addition, as long as the store client does.
        let silent_secs = 90 + 2 * leasehold_core::limits::RESPONSE_TIMEOUT.as_secs();
        for (state, secs) in [
            (StoreState::Denied, 90),
            (StoreState::Unavailable, 90),
            (StoreState::Empty, 90),
            (StoreState::Silent, silent_secs),
        ] {
            let (fixture, switch) = DashboardFixture::with_failing_store().await;
            let health = async || healthz(State(fixture.app.clone())).await.status().as_u16();
            // Runs the sampler without viewers, moving the clock by its pauses.
            let pass = async |secs: u64, wanted: u16| {
                let began = fixture.host.instant();
                loop {
                    let pause = sampler::objects::index(&fixture.app.shared).await;
                    let took = fixture.host.instant().since(began).as_secs();
                    assert!(took <= secs, "{state:?}: not {wanted} after {took} s");
                    if health().await == wanted {
                        break;
                    }
                    fixture.host.advance(pause);
                }
            };
            fixture.view_and_sample().await;
            // The last count before the outage is one without viewers, who are counted for some seconds.
            fixture.host.advance(Duration::from_mins(1));
            sampler::objects::index(&fixture.app.shared).await;
            assert_eq!(health().await, 200);
            switch.set(state);
            pass(secs, 503).await;
            switch.set(StoreState::Well);
            pass(20, 200).await;
        }
    }

    /// A viewer would see an empty queue.
    #[tokio::test]
    async fn a_folder_that_is_gone_is_bad_health_with_viewers_too() {
        let (fixture, switch) = DashboardFixture::with_failing_store().await;
        fixture.view_and_sample().await;
        switch.set(StoreState::Empty);
        fixture.view_and_sample().await;
        let overview = fixture.overview().await.to_string();
        assert!(overview.contains("queue.json is missing at"), "{overview}");
        fixture.view_and_sample().await;
        assert_eq!(healthz(State(fixture.app.clone())).await.status().as_u16(), 503);
        switch.set(StoreState::Well);
        fixture.view_and_sample().await;
        assert_eq!(healthz(State(fixture.app.clone())).await.status().as_u16(), 200);
    }

    #[tokio::test]
    async fn a_single_failure_without_viewers_is_not_bad_health() {
        let (fixture, switch) = DashboardFixture::with_failing_store().await;
        fixture.view_and_sample().await;
        fixture.host.advance(Duration::from_mins(2));
        switch.set(StoreState::Denied);
        sampler::objects::index(&fixture.app.shared).await;
        assert_eq!(healthz(State(fixture.app.clone())).await.status().as_u16(), 200);
    }
}
