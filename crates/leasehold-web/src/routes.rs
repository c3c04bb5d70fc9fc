//! From a request to an answer.
//!
//! The order matters: first who asks, which costs nothing; then the body, bounded in size and time; only then the path. So
//! whoever is refused has made the server do nothing. Every answer, refusals included, carries the headers that keep a
//! browser from doing more with it than to show it.

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
use leasehold_core::{Error, Kind, Matter};
use leasehold_pieces::serve::door::{Answers, Line};
use leasehold_queue::Queue;
use leasehold_store::host::Running;
use leasehold_store::{Prices, Snapshot};
use serde_json::json;
use tokio::sync::oneshot;

use crate::access::{Access, Refused};
use crate::figures::Counted;
use crate::opened::Opened;
use crate::sampler::Shared;
use crate::{SettingRow, WebOptions, api, metrics, page};

/// Most bytes of a request's body: a filter has a few hundred.
const BODY_BYTES_MAX: usize = 64 * 1_024;
/// Longest wait for it.
const BODY_WAIT: Duration = Duration::from_secs(10);

/// What the page may do: run its own scripts and styles, and ask us. Nothing from elsewhere, no frames, no forms.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What all answers share.
pub(crate) struct App {
    pub(crate) shared: Arc<Shared>,
    /// The queue as the rest of the process uses it, for its ledger.
    process: Queue,
    pub(crate) access: Access,
    pub(crate) prices: Prices,
    pub(crate) settings: Vec<SettingRow>,
    pub(crate) counted: Counted,
    pub(crate) opened: Opened,
    /// Which run of the server this is: revisions count from its start.
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
            opened: Opened::default(),
            run: format!("{:08x}", host.random() & 0xffff_ffff),
            doing: Mutex::default(),
        }
    }

    /// Does something to its end, also if whoever asked for it does not wait.
    pub(crate) async fn see_through<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let (tell, told) = oneshot::channel();
        let work = async move {
            // Nobody listens any more if the viewer has left.
            let _ = tell.send(work.await);
        };
        let running = self.shared.host().spawn(Box::pin(work));
        {
            let mut doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
            doing.retain_mut(|one| one.now_or_never().is_none());
            doing.push(running);
        }
        told.await.map_err(|_| Error::new(Kind::Internal, "the change was broken off"))
    }

    /// What was begun comes to its end.
    pub(crate) async fn finish(&self) {
        let doing = std::mem::take(&mut *self.doing.lock().unwrap_or_else(PoisonError::into_inner));
        join_all(doing).await;
    }

    /// Everything that this process has asked the store for.
    pub(crate) fn spent(&self) -> Snapshot {
        self.process.client().ledger().snapshot().plus(&self.shared.queue().client().ledger().snapshot())
    }
}

/// What stands at the door: the paths, and what their answers share.
pub(crate) struct Site {
    app: Arc<App>,
    router: Router,
}

impl Site {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self { router: router(app.clone()), app }
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("queue", &self.shared.queue()).finish_non_exhaustive()
    }
}

/// The paths.
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
        .fallback(async || refusal(StatusCode::NOT_FOUND, "there is nothing here"))
        .method_not_allowed_fallback(async || {
            refusal(StatusCode::METHOD_NOT_ALLOWED, "this is not done to that path")
        })
        .with_state(app)
}

impl Answers for Site {
    type Body = Body;

    async fn answer(self: Arc<Self>, line: Arc<Line>, request: Request<Incoming>) -> Response {
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

impl Site {
    async fn give(&self, request: Request<Incoming>) -> Response {
        let (head, body) = request.into_parts();
        if let Err(refused) = self.app.access.check(&head.method, head.uri.path(), &head.headers) {
            return refuse(refused);
        }
        let body = match self.whole(body).await {
            Ok(body) => body,
            Err(mut answer) => {
                // What is left of the body would be taken for the next request.
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                return answer;
            }
        };
        let request = Request::from_parts(head, Body::from(body));
        let Ok(answer) = TowerToHyperService::new(self.router.clone()).call(request).await;
        answer
    }

    /// The body of a request, if it comes in time and is not too large.
    async fn whole(&self, body: Incoming) -> Result<Bytes, Response> {
        let late = self.app.shared.host().sleep(BODY_WAIT);
        match select(Box::pin(Limited::new(body, BODY_BYTES_MAX).collect()), late).await {
            Either::Left((Ok(body), _)) => Ok(body.to_bytes()),
            Either::Left((Err(error), _)) if error.is::<LengthLimitError>() => {
                let words = format!("a request has at most {BODY_BYTES_MAX} bytes");
                Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, &words))
            }
            Either::Left((Err(_), _)) => Err(refusal(StatusCode::BAD_REQUEST, "the request broke off")),
            Either::Right(_) => {
                Err(refusal(StatusCode::REQUEST_TIMEOUT, "the request did not come whole in time"))
            }
        }
    }
}

/// The failure of something that was asked for, as an answer.
#[derive(Debug)]
pub(crate) struct Failed(Error);

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let status = match self.0.matter() {
            Some(Matter::Missing) => StatusCode::NOT_FOUND,
            _ => {
                StatusCode::from_u16(self.0.kind().http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
        };
        refusal(status, &self.0.to_string())
    }
}

/// An answer that says why there is none.
pub(crate) fn refusal(status: StatusCode, why: &str) -> Response {
    (status, axum::Json(json!({"error": why}))).into_response()
}

fn refuse(refused: Refused) -> Response {
    let mut answer = refusal(refused.status(), &refused.to_string());
    let headers = answer.headers_mut();
    if refused == Refused::Token {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn file(name: &str) -> Response {
    match page::find(name) {
        Some(file) => ([(CONTENT_TYPE, file.media_type)], file.bytes).into_response(),
        None => refusal(StatusCode::NOT_FOUND, "the page has no such file"),
    }
}

/// Whether the store can be read; asks it for nothing.
async fn healthz(State(app): State<Arc<App>>) -> Response {
    const PATIENCE: Duration = Duration::from_mins(1);
    if app.shared.board().is_down(app.shared.host().instant(), PATIENCE) {
        // Whoever may not look is not told where the store is.
        (StatusCode::SERVICE_UNAVAILABLE, "the store cannot be read\n").into_response()
    } else {
        "ok\n".into_response()
    }
}

/// Whether a viewer has this revision already.
pub(crate) fn has(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get(http::header::IF_NONE_MATCH).and_then(|known| known.to_str().ok());
    known.is_some_and(|known| known.split(',').any(|one| one.trim().trim_start_matches("W/") == tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{Part, Tried};
    use crate::pace::Took;
    use crate::sampler;
    use crate::testing::{Ill, Stand};
    use leasehold_store::Host;

    #[tokio::test]
    async fn health_is_bad_only_when_the_store_could_not_be_read_for_a_minute() {
        let stand = Stand::new().await;
        let health = async || healthz(State(stand.app.clone())).await.status().as_u16();
        let note = |failed: Option<&Error>| {
            let tried = Tried { at: stand.app.shared.host().instant(), took: Took::default() };
            stand.app.shared.board_mut().note(Part::Index, tried, failed);
        };
        let error = Error::invalid("no such bucket");
        note(Some(&error));
        assert_eq!(health().await, 200, "it may pass");
        stand.host.advance(Duration::from_mins(1));
        note(Some(&error));
        assert_eq!(health().await, 503);
        note(None);
        assert_eq!(health().await, 200);
        assert_eq!(stand.asked(), [0, 0], "the store was not asked");
    }

    #[tokio::test]
    async fn health_is_bad_within_90_s_of_the_stores_death_although_nobody_looks() {
        for ill in [Ill::Denied, Ill::Unavailable, Ill::Silent] {
            let (stand, state) = Stand::ailing().await;
            let health = async || healthz(State(stand.app.clone())).await.status().as_u16();
            // Seconds of the sampler, with nobody but itself to let time pass.
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
    async fn one_failure_while_nobody_looks_is_no_bad_health() {
        let (stand, state) = Stand::ailing().await;
        stand.look().await;
        stand.host.advance(Duration::from_mins(2));
        state.set(Ill::Denied);
        sampler::index(&stand.app.shared).await;
        assert_eq!(healthz(State(stand.app.clone())).await.status().as_u16(), 200);
    }
}
