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
use leasehold_pieces::serve::door::{Answers, Connection};
use leasehold_queue::Queue;
use leasehold_store::host::Running;
use leasehold_store::{Prices, Snapshot};
use serde_json::json;
use tokio::sync::oneshot;

use crate::access::{Access, AccessDenied};
use crate::figures::Counted;
use crate::sampler::Shared;
use crate::task_cache::TaskCache;
use crate::{SettingRow, WebOptions, api, metrics, page};

/// Largest request body: a filter has a few hundred bytes.
const BODY_BYTES_MAX: usize = 64 * 1_024;
/// Longest wait for a request body.
const BODY_WAIT: Duration = Duration::from_secs(10);

/// Content security policy: own scripts, styles and requests only; no other origins, frames or forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// State shared by all handlers.
pub(crate) struct App {
    pub(crate) shared: Arc<Shared>,
    /// Queue as used by the rest of the process, for its ledger.
    process: Queue,
    pub(crate) access: Access,
    pub(crate) prices: Prices,
    pub(crate) settings: Vec<SettingRow>,
    pub(crate) counted: Counted,
    pub(crate) opened: TaskCache,
    /// Random id of this server process: revisions count from its start.
    pub(crate) run: String,
    doing: Mutex<Vec<Running>>,
}

impl App {
    pub(crate) fn new(queue: Queue, options: WebOptions) -> Self {
        let WebOptions { token, allows_actions, pace, prices, settings, .. } = options;
        let own = queue.counted_apart().acting_as("dashboard");
        let host = queue.client().host().clone();
        Self {
            shared: Arc::new(Shared::new(own, pace)),
            process: queue,
            access: Access { token, allows_actions },
            prices,
            settings,
            counted: Counted::default(),
            opened: TaskCache::default(),
            run: format!("{:08x}", host.random() & 0xffff_ffff),
            doing: Mutex::default(),
        }
    }

    /// Runs a future to completion even if the client disconnects.
    pub(crate) async fn see_through<T: Send + 'static>(
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
            let mut doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
            doing.retain_mut(|one| one.now_or_never().is_none());
            doing.push(running);
        }
        receiver.await.map_err(|_| Error::new(Kind::Internal, "the change was aborted"))
    }

    /// Waits for all changes in progress.
    pub(crate) async fn finish(&self) {
        let doing = std::mem::take(&mut *self.doing.lock().unwrap_or_else(PoisonError::into_inner));
        join_all(doing).await;
    }

    /// Request counts of this process.
    pub(crate) fn spent(&self) -> Snapshot {
        self.process.client().ledger().snapshot().plus(&self.shared.queue().client().ledger().snapshot())
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
        .fallback(async || refusal(StatusCode::NOT_FOUND, "path not found"))
        .method_not_allowed_fallback(async || {
            refusal(StatusCode::METHOD_NOT_ALLOWED, "method not allowed for this path")
        })
        .with_state(app)
}

impl Answers for Routes {
    type Body = Body;

    async fn answer(self: Arc<Self>, line: Arc<Connection>, request: Request<Incoming>) -> Response {
        line.asked();
        let mut answer = self.give(request).await;
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
        line.handed_over();
        answer
    }
}

impl Routes {
    async fn give(&self, request: Request<Incoming>) -> Response {
        let (head, body) = request.into_parts();
        if let Err(refused) = self.app.access.check(&head.method, head.uri.path(), &head.headers) {
            return refuse(refused);
        }
        let body = match self.whole(body).await {
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
    async fn whole(&self, body: Incoming) -> Result<Bytes, Response> {
        let late = self.app.shared.host().sleep(BODY_WAIT);
        match select(Box::pin(Limited::new(body, BODY_BYTES_MAX).collect()), late).await {
            Either::Left((Ok(body), _)) => Ok(body.to_bytes()),
            Either::Left((Err(error), _)) if error.is::<LengthLimitError>() => {
                let words = format!("request body must be at most {BODY_BYTES_MAX} bytes");
                Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, &words))
            }
            Either::Left((Err(_), _)) => Err(refusal(StatusCode::BAD_REQUEST, "request body ended early")),
            Either::Right(_) => {
                Err(refusal(StatusCode::REQUEST_TIMEOUT, "request body did not arrive in time"))
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
        let status = match self.0.matter() {
            Some(Reason::Missing) => StatusCode::NOT_FOUND,
            _ => {
                StatusCode::from_u16(self.0.kind().http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
        };
        refusal(status, &self.0.to_string())
    }
}

/// Builds an error response.
pub(crate) fn refusal(status: StatusCode, why: &str) -> Response {
    (status, axum::Json(json!({"error": why}))).into_response()
}

fn refuse(refused: AccessDenied) -> Response {
    let mut answer = refusal(refused.status(), &refused.to_string());
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
        None => refusal(StatusCode::NOT_FOUND, "file not found"),
    }
}

/// Health check: 503 if the store cannot be read. Sends no requests to the store.
async fn healthz(State(app): State<Arc<App>>) -> Response {
    const PATIENCE: Duration = Duration::from_mins(1);
    if app.shared.board().is_down(app.shared.host().instant(), PATIENCE) {
        // The path is public: the error, which names the store, is not included.
        (StatusCode::SERVICE_UNAVAILABLE, "store unavailable\n").into_response()
    } else {
        "ok\n".into_response()
    }
}

/// True if the client already has this revision.
pub(crate) fn has(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get(http::header::IF_NONE_MATCH).and_then(|known| known.to_str().ok());
    known.is_some_and(|known| known.split(',').any(|one| one.trim().trim_start_matches("W/") == tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::Took;
    use crate::sampler;
    use crate::snapshot::{Part, Tried};
    use crate::testing::{Ill, TestStand};
    use leasehold_store::Host;

    #[tokio::test]
    async fn health_is_bad_only_after_reads_have_failed_for_a_minute() {
        let stand = TestStand::new().await;
        let health = async || healthz(State(stand.app.clone())).await.status().as_u16();
        let note = |failed: Option<&Error>| {
            let tried = Tried { at: stand.app.shared.host().instant(), took: Took::default() };
            stand.app.shared.board_mut().note(Part::Index, tried, failed);
        };
        let error = Error::invalid("no such bucket");
        note(Some(&error));
        assert_eq!(health().await, 200, "it may be transient");
        stand.host.advance(Duration::from_mins(1));
        note(Some(&error));
        assert_eq!(health().await, 503);
        note(None);
        assert_eq!(health().await, 200);
        assert_eq!(stand.asked(), [0, 0], "no request was sent to the store");
    }

    #[tokio::test]
    async fn health_is_bad_within_90_s_of_an_outage_without_viewers() {
        for ill in [Ill::Denied, Ill::Unavailable, Ill::Silent] {
            let (stand, state) = TestStand::ailing().await;
            let health = async || healthz(State(stand.app.clone())).await.status().as_u16();
            // Runs the sampler without viewers, moving the clock by its pauses.
            let pass = async |secs: u64, wanted: u16| {
                let began = stand.host.instant();
                loop {
                    let pause = sampler::index(&stand.app.shared).await;
                    let took = stand.host.instant().since(began).as_secs();
                    assert!(took <= secs, "{ill:?}: not {wanted} after {took} s");
                    if health().await == wanted {
                        break;
                    }
                    stand.host.advance(pause);
                }
            };
            stand.look().await;
            assert_eq!(health().await, 200);
            state.set(ill);
            pass(90, 503).await;
            state.set(Ill::Well);
            pass(20, 200).await;
        }
    }

    #[tokio::test]
    async fn a_single_failure_without_viewers_is_not_bad_health() {
        let (stand, state) = TestStand::ailing().await;
        stand.look().await;
        stand.host.advance(Duration::from_mins(2));
        state.set(Ill::Denied);
        sampler::index(&stand.app.shared).await;
        assert_eq!(healthz(State(stand.app.clone())).await.status().as_u16(), 200);
    }
}
