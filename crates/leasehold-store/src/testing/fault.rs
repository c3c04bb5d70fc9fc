//! Requests as the proxy observes them, and the faults that it can inject.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use http::header::{CONTENT_LENGTH, IF_MATCH, IF_NONE_MATCH};
use http::request::Parts;

/// Decides the fault of each request.
pub type FaultPlan = Box<dyn Fn(&ObservedRequest) -> Fault + Send + Sync>;

/// Plan without faults.
#[must_use]
pub fn pass() -> FaultPlan {
    Box::new(|_| Fault::Pass)
}

/// Plan that applies the fault to the first matching request and passes all others.
pub fn once(fits: impl Fn(&ObservedRequest) -> bool + Send + Sync + 'static, fault: Fault) -> FaultPlan {
    let spent = AtomicBool::new(false);
    Box::new(
        move |seen| {
            if fits(seen) && !spent.swap(true, Ordering::Relaxed) { fault.clone() } else { Fault::Pass }
        },
    )
}

/// Fault of one request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// No fault.
    Pass,
    /// The server applies the request, but its answer never arrives.
    DropAnswer,
    /// The request never arrives at the server.
    DropRequest,
    /// The request or its answer is delayed.
    Delay {
        /// Delay before the server gets the request.
        before: Duration,
        /// Delay between the server's answer and its delivery.
        after: Duration,
    },
    /// The answer is cut in the middle of its body; one without a body is dropped.
    CutAnswer,
    /// The proxy answers itself, with an XML body.
    Answer {
        /// HTTP status, from 200 to 599.
        status: u16,
        /// Body of the answer.
        body: String,
    },
    /// The connection closes at once, and the server gets the request only after this time: the write is applied after
    /// the client has given up.
    ApplyLate(Duration),
}

impl Fault {
    /// Answer with the error body of S3, for example `503` and `SlowDown`.
    #[must_use]
    pub fn error(status: u16, code: &str) -> Self {
        Self::Answer { status, body: error_xml(code) }
    }
}

/// Error body of S3.
pub(super) fn error_xml(code: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
         <Message>made by a test</Message><RequestId>0</RequestId></Error>"
    )
}

/// Kinds of requests that are billed differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Writes an object, or begins, continues or ends an upload in parts.
    Put,
    /// Reads an object, or a setting of a bucket.
    Get,
    /// Lists keys or buckets.
    List,
    /// Deletes one object, or many by one `POST ?delete`.
    Delete,
    /// Reads the metadata of an object.
    Head,
    /// Anything else.
    Other,
}

impl RequestKind {
    fn of(method: &Method, path: &str, query: &str) -> Self {
        match *method {
            Method::PUT => Self::Put,
            Method::GET if lists(path, query) => Self::List,
            Method::GET => Self::Get,
            Method::HEAD => Self::Head,
            Method::DELETE => Self::Delete,
            Method::POST if names(query).any(|name| name == "delete") => Self::Delete,
            Method::POST if names(query).any(|name| name == "uploads" || name == "uploadId") => Self::Put,
            _ => Self::Other,
        }
    }
}

/// True if a GET is a list: by the `list-type` of version 2, or without a key as in version 1. Requests for a bucket's
/// settings (`?location`) have no key either, and are not lists.
fn lists(path: &str, query: &str) -> bool {
    const WORDS: [&str; 8] = [
        "prefix",
        "delimiter",
        "marker",
        "max-keys",
        "start-after",
        "continuation-token",
        "versions",
        "uploads",
    ];
    let on_bucket = !path.trim_matches('/').contains('/');
    let like_list = query.is_empty() || names(query).any(|name| WORDS.contains(&name));
    query.split('&').any(|pair| pair == "list-type=2") || (on_bucket && like_list)
}

fn names(query: &str) -> impl Iterator<Item = &str> {
    query.split('&').map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name))
}

/// Request as the proxy observes it.
#[derive(Clone, Debug)]
pub struct ObservedRequest {
    /// Number, counted from 0 in order of arrival at this proxy.
    pub index: u64,
    /// HTTP method.
    pub method: Method,
    /// Path as sent, percent-encoded, with the bucket.
    pub path: String,
    /// Query as sent, empty if there is none.
    pub query: String,
    /// Kind of the request.
    pub kind: RequestKind,
    /// True if it has an `If-Match` or an `If-None-Match`.
    pub conditional: bool,
    /// Announced length of its body.
    pub body_bytes: u64,
}

impl ObservedRequest {
    pub(super) fn new(index: u64, head: &Parts) -> Self {
        let path = head.uri.path().to_owned();
        let query = head.uri.query().unwrap_or_default().to_owned();
        let kind = RequestKind::of(&head.method, &path, &query);
        let conditional = head.headers.contains_key(IF_MATCH) || head.headers.contains_key(IF_NONE_MATCH);
        let announced =
            head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let body_bytes = announced.unwrap_or(0);
        Self { index, method: head.method.clone(), path, query, kind, conditional, body_bytes }
    }
}

/// Numbers of requests by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Objects written.
    pub put: u64,
    /// Objects read.
    pub get: u64,
    /// Pages of lists.
    pub list: u64,
    /// Requests that delete, however many objects each names.
    pub delete: u64,
    /// Heads read.
    pub head: u64,
    /// All other requests.
    pub other: u64,
}

impl RequestCounts {
    pub(super) fn add(&mut self, kind: RequestKind) {
        *match kind {
            RequestKind::Put => &mut self.put,
            RequestKind::Get => &mut self.get,
            RequestKind::List => &mut self.list,
            RequestKind::Delete => &mut self.delete,
            RequestKind::Head => &mut self.head,
            RequestKind::Other => &mut self.other,
        } += 1;
    }
}

impl fmt::Display for RequestCounts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { put, get, list, delete, head, other } = self;
        write!(formatter, "{put} put, {get} get, {list} list, {delete} delete, {head} head, {other} other")
    }
}

#[cfg(test)]
mod tests {
    use super::{Method, RequestKind};

    #[test]
    fn a_request_has_the_kind_it_is_billed_as() {
        use RequestKind::{Delete, Get, Head, List, Other, Put};
        let known = [
            ("GET", "/b/k", "", Get),
            ("GET", "/b/k", "prefix=x", Get),
            ("GET", "/b", "list-type=2&prefix=a%2F", List),
            ("GET", "/b/", "prefix=a", List),
            ("GET", "/b", "", List),
            ("GET", "/", "", List),
            ("GET", "/b", "location", Get),
            ("PUT", "/b/k", "", Put),
            ("HEAD", "/b/k", "", Head),
            ("DELETE", "/b/k", "", Delete),
            ("POST", "/b", "delete", Delete),
            ("POST", "/b/k", "uploads", Put),
            ("PUT", "/b/k", "partNumber=1&uploadId=u", Put),
            ("POST", "/b/k", "uploadId=u", Put),
            ("DELETE", "/b/k", "uploadId=u", Delete),
            ("POST", "/b/k", "restore", Other),
        ];
        for (method, path, query, kind) in known {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let found = RequestKind::of(&method, path, query);
            assert_eq!(found, kind, "{method} {path}?{query}");
        }
    }
}
