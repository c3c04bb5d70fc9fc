//! Access control.
//!
//! Four threats, and the defence against each:
//!
//! * **Other machines on the network**: without a token the dashboard listens on the loopback address only. With one, every
//!   request except those for the page itself must carry it. Tokens are compared by their hashes, in constant time.
//! * **DNS rebinding** (a foreign page under a name that resolves to this machine): it would have the same origin, but the
//!   browser sends that name as the host. Without a token only names of this machine are accepted.
//! * **Cross-site request forgery**: a change needs a header that only scripts can set, and that a browser does not let a
//!   foreign script send without a preflight request; also, `Origin` must be our own host and `Sec-Fetch-Site` must not be
//!   foreign.
//! * **Script injection through a task**: responses are JSON and never sniffed, the page inserts all data as text, and its
//!   content security policy allows no scripts except its own files.

use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use http::{Method, StatusCode};
use leasehold_core::{Error, Result};
use std::fmt;
use std::net::IpAddr;

/// Header that every change must have.
const CHANGE: HeaderName = HeaderName::from_static("x-leasehold");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Shortest token: a shorter one could be found by brute force.
const TOKEN_BYTES_MIN: usize = 8;

/// Token that viewers must send. Only its hash is kept, and it is never printed.
#[derive(Clone)]
pub struct Token(blake3::Hash);

impl Token {
    /// Creates a token. Fails if it is too short, or if a header cannot carry it.
    pub fn new(text: &str) -> Result<Self> {
        if text.len() < TOKEN_BYTES_MIN {
            // Not the length of the token, which would weaken the secret in a log.
            let message = format!("dashboard token must have at least {TOKEN_BYTES_MIN} characters");
            return Err(Error::invalid(message));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = "dashboard token must contain only printable ASCII characters without spaces";
            return Err(Error::invalid(message));
        }
        Ok(Self(blake3::hash(text.as_bytes())))
    }

    fn matches(&self, sent: &str) -> bool {
        // Hashes are compared in constant time; the hashed text is the client's own.
        blake3::hash(sent.as_bytes()) == self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Access rules of a dashboard.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) token: Option<Token>,
    pub(crate) allows_actions: bool,
}

/// Reason for rejecting a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessDenied {
    /// The host is not this machine.
    Host,
    /// The token is missing or wrong.
    Token,
    /// The request comes from a foreign page, or a change does not come from our own page.
    Foreign,
    /// The request is a change, but the dashboard is read-only.
    ReadOnly,
}

impl AccessDenied {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Host | Self::Foreign | Self::ReadOnly => StatusCode::FORBIDDEN,
        }
    }
}

impl fmt::Display for AccessDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => {
                "without a token this dashboard accepts only names of this machine: open it at 127.0.0.1 or localhost"
            }
            Self::Token => "token required: send `authorization: Bearer TOKEN`, or open the page with #token=TOKEN",
            Self::Foreign => "cross-site request rejected; a change also needs the header `x-leasehold: 1`",
            Self::ReadOnly => "this dashboard is read-only; start it with --allow-actions to change tasks",
        })
    }
}

impl Access {
    /// Checks a request by its method, path and headers.
    pub(crate) fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), AccessDenied> {
        match &self.token {
            Some(token) if !is_public(path) && !bearer(headers).is_some_and(|sent| token.matches(sent)) => {
                return Err(AccessDenied::Token);
            }
            None if !single_header(headers, &HOST).is_some_and(names_this_machine) => {
                return Err(AccessDenied::Host);
            }
            _ => {}
        }
        // A foreign page cannot read the response, but the request would still cost.
        if !is_public(path) && !is_same_site(headers) {
            return Err(AccessDenied::Foreign);
        }
        if matches!(*method, Method::GET | Method::HEAD) {
            return Ok(());
        }
        if !is_own_change(headers) {
            return Err(AccessDenied::Foreign);
        }
        if self.allows_actions { Ok(()) } else { Err(AccessDenied::ReadOnly) }
    }
}

/// True for paths without data of the queue: the page must load before it can ask for a token.
fn is_public(path: &str) -> bool {
    path == "/" || path == "/healthz" || path.starts_with("/static/")
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = single_header(headers, &AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// Returns a header that occurs exactly once: with two, two readers could pick different ones.
fn single_header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn names_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    // Unlike a name, an address cannot be pointed here through DNS.
    let is_address = name.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback());
    is_address || name.eq_ignore_ascii_case("localhost")
}

/// True if a change comes from our own page, or from a program.
fn is_own_change(headers: &HeaderMap) -> bool {
    let is_marked = single_header(headers, &CHANGE) == Some("1");
    let is_same = !headers.contains_key(ORIGIN) || {
        let origin = single_header(headers, &ORIGIN).and_then(|origin| origin.split_once("://"));
        origin
            .zip(single_header(headers, &HOST))
            .is_some_and(|((_, origin), host)| origin.eq_ignore_ascii_case(host))
    };
    is_marked && is_same_site(headers) && is_same
}

/// True if the request comes from our own page, from a typed address, or from a program, which sends no such header.
fn is_same_site(headers: &HeaderMap) -> bool {
    !headers.contains_key(FETCH_SITE)
        || single_header(headers, &FETCH_SITE).is_some_and(|site| matches!(site, "same-origin" | "none"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const TOKEN: &str = "correct-horse";

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    fn guarded(token: bool, allows_actions: bool) -> Access {
        Access { token: token.then(|| Token::new(TOKEN).unwrap()), allows_actions }
    }

    #[test]
    fn with_a_token_only_the_page_itself_is_public() {
        let access = guarded(true, true);
        let asks = |path: &str, pairs: &[_]| access.check(&Method::GET, path, &headers(pairs));
        for path in ["/", "/static/app.js", "/healthz"] {
            assert_eq!(asks(path, &[]), Ok(()), "{path}");
        }
        for path in ["/api/overview", "/metrics", "/staticfoo", "//", "/healthz/", "/api/tasks"] {
            assert_eq!(asks(path, &[]), Err(AccessDenied::Token), "{path}");
        }
        let right = [("authorization", "Bearer correct-horse")];
        assert_eq!(asks("/api/overview", &right), Ok(()));
        assert_eq!(asks("/api/overview", &[("authorization", "bearer correct-horse")]), Ok(()));
        for wrong in [
            "Bearer correct-hors",
            "Bearer correct-horse1",
            "Bearer ",
            "correct-horse",
            "Basic correct-horse",
        ] {
            assert_eq!(
                asks("/api/overview", &[("authorization", wrong)]),
                Err(AccessDenied::Token),
                "{wrong}"
            );
        }
        assert_eq!(asks("/api/overview", &[right[0], right[0]]), Err(AccessDenied::Token), "twice");
    }

    #[test]
    fn without_a_token_only_names_of_this_machine_are_hosts() {
        let access = guarded(false, false);
        let asks = |pairs: &[_]| access.check(&Method::GET, "/", &headers(pairs));
        for host in ["localhost", "LOCALHOST:7423", "127.0.0.1:1", "127.0.0.2", "[::1]:7423", "[::1]"] {
            assert_eq!(asks(&[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7423",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]",
            "",
            "[::1",
            "0.0.0.0",
        ] {
            assert_eq!(asks(&[("host", host)]), Err(AccessDenied::Host), "{host}");
        }
        assert_eq!(asks(&[]), Err(AccessDenied::Host));
    }

    #[test]
    fn changes_are_accepted_from_our_own_page_only() {
        let access = guarded(false, true);
        let (host, mark) = (("host", "127.0.0.1:7423"), ("x-leasehold", "1"));
        let posts = |pairs: &[_]| access.check(&Method::POST, "/api/tasks/retry", &headers(pairs));
        assert_eq!(posts(&[host, mark]), Ok(()), "a program");
        let own = ("origin", "http://127.0.0.1:7423");
        assert_eq!(posts(&[host, mark, own, ("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(posts(&[host, own]), Err(AccessDenied::Foreign), "a form cannot set the header");
        for origin in
            ["http://evil.example", "null", "http://127.0.0.1:8000", "http://127.0.0.1:7423.evil.example"]
        {
            assert_eq!(posts(&[host, mark, ("origin", origin)]), Err(AccessDenied::Foreign), "{origin}");
        }
        for site in ["cross-site", "same-site", "x"] {
            assert_eq!(posts(&[host, mark, ("sec-fetch-site", site)]), Err(AccessDenied::Foreign), "{site}");
        }
        assert_eq!(posts(&[host, mark, own, own]), Err(AccessDenied::Foreign), "two origins");
    }

    #[test]
    fn a_read_only_dashboard_rejects_changes() {
        let posts = headers(&[("host", "localhost"), ("x-leasehold", "1")]);
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            let refused = guarded(false, false).check(&method, "/api/tasks/cancel", &posts);
            assert_eq!(refused, Err(AccessDenied::ReadOnly), "{method}");
        }
    }

    #[test]
    fn a_token_is_never_printed_and_must_be_valid() {
        assert_eq!(format!("{:?}", guarded(true, true).token), "Some(Token)");
        for wrong in ["", "short", "has a space", "ümlaut-täken"] {
            assert!(Token::new(wrong).is_err(), "{wrong}");
        }
    }
}
