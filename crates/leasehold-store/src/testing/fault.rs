//! What the proxy sees of a request and what it may do to it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use http::header::{CONTENT_LENGTH, IF_MATCH, IF_NONE_MATCH};
use http::request::Parts;

/// Decides for each request what shall happen to it.
pub type Plan = Box<dyn Fn(&Seen) -> Fault + Send + Sync>;

/// The plan of a network without faults.
#[must_use]
pub fn pass() -> Plan {
    Box::new(|_| Fault::Pass)
}

/// A plan that gives the fault to the first request that fits and lets all others pass.
pub fn once(fits: impl Fn(&Seen) -> bool + Send + Sync + 'static, fault: Fault) -> Plan {
    let spent = AtomicBool::new(false);
    Box::new(
        move |seen| {
            if fits(seen) && !spent.swap(true, Ordering::Relaxed) { fault.clone() } else { Fault::Pass }
        },
    )
}

/// What happens to one request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing out of the ordinary.
    Pass,
    /// The server applies the request, but its answer never arrives.
    DropAnswer,
    /// The request never arrives at the server.
    DropRequest,
    /// The request arrives late, or its answer does.
    Delay {
        /// Waited before the server gets the request.
        before: Duration,
        /// Waited between the server's answer and its delivery.
        after: Duration,
    },
    /// The answer breaks off in the middle of its body; one without a body is dropped whole.
    CutAnswer,
    /// The proxy answers by itself, with a body of type XML.
    Answer {
        /// The HTTP status, from 200 to 599.
        status: u16,
        /// The whole body.
        body: String,
    },
    /// The connection closes at once, and the server gets the request only after this time: the
    /// write lands when the client has already given up.
    ApplyLate(Duration),
}

impl Fault {
    /// An answer with the error body of S3, for example `503` and `SlowDown`.
    #[must_use]
    pub fn error(status: u16, code: &str) -> Self {
        Self::Answer { status, body: error_xml(code) }
    }
}

/// The body with which S3 explains a refusal.
pub(super) fn error_xml(code: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
         <Message>made by a test</Message><RequestId>0</RequestId></Error>"
    )
}

/// The kinds of requests that a bill tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// An object is written, or an upload in parts is begun, goes on or ends.
    Put,
    /// An object is read, or a setting of a bucket.
    Get,
    /// Keys, or buckets, are listed.
    List,
    /// One object is deleted, or many by one `POST ?delete`.
    Delete,
    /// An object's head is read.
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

/// Whether a GET lists: by the word of the second version, or as the first version does it, by
/// naming no key. A bucket's settings (`?location`) name no key either and are no list.
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

/// One request as the proxy sees it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its number, counted from 0 in the order of arrival at this proxy.
    pub index: u64,
    /// The HTTP method.
    pub method: Method,
    /// The path as sent, percent-encoded, with the bucket.
    pub path: String,
    /// The query as sent, empty if there is none.
    pub query: String,
    /// What the request is for.
    pub kind: RequestKind,
    /// Whether it has an `If-Match` or an `If-None-Match`.
    pub conditional: bool,
    /// The length of its body, as announced.
    pub body_bytes: u64,
}

impl Seen {
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
pub struct Counts {
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

impl Counts {
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

impl fmt::Display for Counts {
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
