//! Small S3 server in memory that can be configured to violate the requirements of a queue.
//!
//! The probe of a store must detect each of these violations. By default the server behaves correctly, so that the
//! probe can be seen to pass as well. It accepts every signature and every bucket. It proves nothing about S3 itself;
//! for that there is the real server.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH,
    LAST_MODIFIED, RANGE,
};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::fault::error_xml;
use super::listen::{Body, Closed, Listener, whole};
use super::listing::{decoded, deleted_xml, keys_in, parameters, xml};
use super::stamp::Stamp;

/// Violations of the server; by default none.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each stands for itself and all may be combined")]
pub struct Violations {
    /// Ignores `If-None-Match`, so that a create overwrites.
    pub ignore_if_none_match: bool,
    /// Ignores `If-Match`, so that an update from an old version succeeds.
    pub ignore_if_match: bool,
    /// Sends no `Date`.
    pub no_date: bool,
    /// Answers every request with 403 `AccessDenied`.
    pub deny_all: bool,
    /// Answers every request with 404 `NoSuchBucket`.
    pub no_bucket: bool,
    /// Answers every request with 404 and no body.
    pub bare_not_found: bool,
    /// Lists the keys at the time of the previous list; the first list is empty.
    pub stale_lists: bool,
}

/// Server on a free loopback port, stopped when dropped.
#[derive(Debug)]
pub struct FaultyServer {
    listener: Listener,
}

impl FaultyServer {
    /// Starts a server without any objects.
    pub async fn start(violations: Violations) -> io::Result<Self> {
        let state = Arc::new(Mutex::new(ServerState { violations, ..ServerState::default() }));
        let serve = move |request| serve(Arc::clone(&state), request);
        Ok(Self { listener: Listener::start(!violations.no_date, serve).await? })
    }

    /// Address, as `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.listener.endpoint()
    }

    /// Stops the server and returns when its port is closed.
    pub async fn stop(mut self) {
        self.listener.stop().await;
    }
}

/// Stored object.
#[derive(Clone, Debug)]
pub(super) struct ServerObject {
    pub(super) bytes: Bytes,
    pub(super) etag: String,
    pub(super) modified: Stamp,
}

/// All objects by `BUCKET/KEY`.
pub(super) type Objects = BTreeMap<String, ServerObject>;

#[derive(Debug, Default)]
struct ServerState {
    violations: Violations,
    objects: Objects,
    /// Keys that stale lists return now, and from the next list on.
    shown: Objects,
    next_shown: Objects,
}

type Answer = Response<Body>;

async fn serve(state: Arc<Mutex<ServerState>>, request: Request<Incoming>) -> Result<Answer, Closed> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Closed)?.to_bytes();
    // One lock around the whole request makes every condition atomic with its write.
    Ok(lock(&state).answer(&head, body))
}

impl ServerState {
    fn answer(&mut self, head: &Parts, body: Bytes) -> Answer {
        let path = decoded(head.uri.path().trim_start_matches('/'));
        let (bucket, key) = path.split_once('/').unwrap_or((&path, ""));
        let is_bucket = key.is_empty();
        match head.method {
            _ if self.violations.deny_all => refusal(StatusCode::FORBIDDEN, "AccessDenied"),
            _ if self.violations.no_bucket => refusal(StatusCode::NOT_FOUND, "NoSuchBucket"),
            _ if self.violations.bare_not_found => empty(StatusCode::NOT_FOUND),
            Method::GET if is_bucket => self.list(bucket, head.uri.query().unwrap_or_default()),
            Method::POST if is_bucket => self.delete_many(bucket, &body),
            Method::PUT | Method::HEAD | Method::DELETE if is_bucket => empty(StatusCode::OK),
            Method::PUT => self.put(path, &head.headers, body),
            Method::GET | Method::HEAD => self.get(&path, head),
            Method::DELETE => self.delete(&path, &head.headers),
            _ => refusal(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        }
    }

    fn put(&mut self, path: String, headers: &HeaderMap, bytes: Bytes) -> Answer {
        if let Some(refused) = self.refuses(&path, headers) {
            return refused;
        }
        let object = ServerObject { etag: etag(&bytes), bytes, modified: Stamp::now() };
        let answer = with(empty(StatusCode::OK), ETAG, &object.etag);
        self.objects.insert(path, object);
        answer
    }

    fn delete(&mut self, path: &str, headers: &HeaderMap) -> Answer {
        if let Some(refused) = self.refuses(path, headers) {
            return refused;
        }
        self.objects.remove(path);
        empty(StatusCode::NO_CONTENT)
    }

    fn delete_many(&mut self, bucket: &str, body: &[u8]) -> Answer {
        let keys = keys_in(&String::from_utf8_lossy(body));
        for key in &keys {
            self.objects.remove(&format!("{bucket}/{key}"));
        }
        xml_answer(StatusCode::OK, deleted_xml(&keys))
    }

    /// Answer to a write whose condition does not hold. As on AWS, `If-Match` on a missing key is 404 and not 412.
    fn refuses(&self, path: &str, headers: &HeaderMap) -> Option<Answer> {
        let there = self.objects.get(path);
        let failed = || refusal(StatusCode::PRECONDITION_FAILED, "PreconditionFailed");
        if let Some(tags) = self.if_none_match(headers)
            && there.is_some_and(|object| matches(tags, &object.etag))
        {
            return Some(failed());
        }
        match (self.if_match(headers), there) {
            (Some(_), None) => Some(refusal(StatusCode::NOT_FOUND, "NoSuchKey")),
            (Some(tags), Some(object)) if !matches(tags, &object.etag) => Some(failed()),
            _ => None,
        }
    }

    fn get(&self, path: &str, head: &Parts) -> Answer {
        let Some(object) = self.objects.get(path) else {
            return refusal(StatusCode::NOT_FOUND, "NoSuchKey");
        };
        if self.if_match(&head.headers).is_some_and(|tags| !matches(tags, &object.etag)) {
            return refusal(StatusCode::PRECONDITION_FAILED, "PreconditionFailed");
        }
        if self.if_none_match(&head.headers).is_some_and(|tags| matches(tags, &object.etag)) {
            return with(empty(StatusCode::NOT_MODIFIED), ETAG, &object.etag);
        }
        let answer = content(object, header(&head.headers, &RANGE), head.method == Method::HEAD);
        let answer = with(answer, ETAG, &object.etag);
        let answer = with(answer, ACCEPT_RANGES, "bytes");
        with(answer, LAST_MODIFIED, &object.modified.http())
    }

    fn list(&mut self, bucket: &str, query: &str) -> Answer {
        let query = parameters(query);
        // The pages of one list must be consistent, so only the first page updates the view.
        if self.violations.stale_lists && !query.contains_key("continuation-token") {
            self.shown = std::mem::replace(&mut self.next_shown, self.objects.clone());
        }
        let objects = if self.violations.stale_lists { &self.shown } else { &self.objects };
        xml_answer(StatusCode::OK, xml(objects, bucket, &query))
    }

    fn if_match<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        header(headers, &IF_MATCH).filter(|_| !self.violations.ignore_if_match)
    }

    fn if_none_match<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        header(headers, &IF_NONE_MATCH).filter(|_| !self.violations.ignore_if_none_match)
    }
}

/// Answer with the object or a range of it. A HEAD has the length of the omitted body.
fn content(object: &ServerObject, range: Option<&str>, bodiless: bool) -> Answer {
    let length = object.bytes.len();
    let wanted = range.and_then(|range| bounds(range, length));
    let (start, end) = wanted.unwrap_or((0, length));
    if start > end || (wanted.is_some() && start >= length) {
        return refusal(StatusCode::RANGE_NOT_SATISFIABLE, "InvalidRange");
    }
    let body = if bodiless { Bytes::new() } else { object.bytes.slice(start..end) };
    let mut answer = Response::new(whole(body));
    if wanted.is_some() {
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        let range = format!("bytes {start}-{}/{length}", end.saturating_sub(1));
        answer = with(answer, CONTENT_RANGE, &range);
    }
    with(answer, CONTENT_LENGTH, &(end - start).to_string())
}

/// Half-open bounds of `bytes=A-B`, `bytes=A-` or `bytes=-N`; any other range is ignored, as HTTP allows.
fn bounds(range: &str, length: usize) -> Option<(usize, usize)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    match (first.parse::<usize>().ok(), last.parse::<usize>().ok()) {
        (Some(first), Some(last)) => Some((first, length.min(last.saturating_add(1)))),
        (Some(first), None) if last.is_empty() => Some((first, length)),
        (None, Some(count)) if first.is_empty() => Some((length.saturating_sub(count), length)),
        _ => None,
    }
}

/// FNV-1a of 128 bits: like the etag of S3 it depends only on the content and has 32 digits.
fn etag(bytes: &[u8]) -> String {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const START: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let add = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    format!("\"{:032x}\"", bytes.iter().fold(START, add))
}

fn matches(tags: &str, etag: &str) -> bool {
    tags.split(',').map(str::trim).any(|tag| tag == "*" || tag.trim_matches('"') == etag.trim_matches('"'))
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(whole(Bytes::new()));
    *answer.status_mut() = status;
    answer
}

fn refusal(status: StatusCode, code: &str) -> Answer {
    xml_answer(status, error_xml(code))
}

fn xml_answer(status: StatusCode, body: String) -> Answer {
    let mut answer = Response::new(whole(body));
    *answer.status_mut() = status;
    with(answer, CONTENT_TYPE, "application/xml")
}

fn with(mut answer: Answer, name: HeaderName, value: &str) -> Answer {
    let value = value.parse().expect("values have only visible characters");
    answer.headers_mut().insert(name, value);
    answer
}

fn lock(state: &Mutex<ServerState>) -> MutexGuard<'_, ServerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
