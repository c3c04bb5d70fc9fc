//! Who may ask for what.
//!
//! Four dangers, and what stands against each:
//!
//! * **Someone on the network** asks: without a token the dashboard listens on the loopback address only. With one, every
//!   request but those for the page itself must carry it. Tokens are compared by their hashes, in constant time.
//! * **A page from elsewhere, under a name that suddenly means this machine** (DNS rebinding): it would be of the same
//!   origin, but the browser sends that name as the host. Without a token only names of this machine are accepted.
//! * **A page from elsewhere that posts a form** to this address: a change needs a header that only scripts can set, and
//!   which a browser does not let a foreign script send without asking first; besides, `Origin` must be our own host and
//!   `Sec-Fetch-Site` must not be foreign.
//! * **Something in a task that wants to be a script**: answers are JSON and never sniffed, the page puts everything in as
//!   text, and its policy allows no script but its own files.

use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use http::{Method, StatusCode};
use leasehold_core::{Error, Result};
use std::fmt;
use std::net::IpAddr;

/// The header that every change must have.
const CHANGE: HeaderName = HeaderName::from_static("x-leasehold");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Shortest token: what can be tried out is no secret.
const TOKEN_BYTES_MIN: usize = 8;

/// What viewers have to know. Only its hash is kept, and it is never printed.
#[derive(Clone)]
pub struct Token(blake3::Hash);

impl Token {
    /// Takes a token; refuses one that is too short, or that no header can carry.
    pub fn new(text: &str) -> Result<Self> {
        if text.len() < TOKEN_BYTES_MIN {
            let message =
                format!("the dashboard's token is too short; use at least {TOKEN_BYTES_MIN} characters");
            return Err(Error::invalid(message));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message =
                "the dashboard's token has a character other than letters, digits and signs of ASCII";
            return Err(Error::invalid(message));
        }
        Ok(Self(blake3::hash(text.as_bytes())))
    }

    fn is(&self, said: &str) -> bool {
        // Hashes are compared in constant time; what is hashed is what the client has sent itself.
        blake3::hash(said.as_bytes()) == self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// What is allowed here.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) token: Option<Token>,
    pub(crate) allows_actions: bool,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The host is not this machine.
    Host,
    /// No token, or a wrong one.
    Token,
    /// A page from elsewhere asks, or a change did not come from our own page.
    Foreign,
    /// A change, but only looking is allowed.
    ReadOnly,
}

impl Refused {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Host | Self::Foreign | Self::ReadOnly => StatusCode::FORBIDDEN,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => {
                "without a token this dashboard answers only to the names of this machine: open it at 127.0.0.1 or localhost"
            }
            Self::Token => "a token is needed: send `authorization: Bearer TOKEN`, or open the page with #token=TOKEN",
            Self::Foreign => "only the dashboard's own page may ask; a change needs the header `x-leasehold: 1`, too",
            Self::ReadOnly => "this dashboard only shows; start it with --allow-actions to change tasks",
        })
    }
}

impl Access {
    /// Whether this may be asked.
    pub(crate) fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Refused> {
        match &self.token {
            Some(token) if !is_open(path) && !bearer(headers).is_some_and(|said| token.is(said)) => {
                return Err(Refused::Token);
            }
            None if !one(headers, &HOST).is_some_and(names_this_machine) => return Err(Refused::Host),
            _ => {}
        }
        // A page from elsewhere gets no answer to read, but asking costs.
        if !is_open(path) && !is_near(headers) {
            return Err(Refused::Foreign);
        }
        if matches!(*method, Method::GET | Method::HEAD) {
            return Ok(());
        }
        if !is_own(headers) {
            return Err(Refused::Foreign);
        }
        if self.allows_actions { Ok(()) } else { Err(Refused::ReadOnly) }
    }
}

/// What holds nothing of the queue: the page has to be there before it can ask for a token.
fn is_open(path: &str) -> bool {
    path == "/" || path == "/healthz" || path.starts_with("/static/")
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = one(headers, &AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// The header, if it is there once: two would let two readers see different ones.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn names_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    // An address is no name that someone could have pointed here.
    let is_address = name.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback());
    is_address || name.eq_ignore_ascii_case("localhost")
}

/// Whether a change comes from our own page, or from a program.
fn is_own(headers: &HeaderMap) -> bool {
    let is_marked = one(headers, &CHANGE) == Some("1");
    let is_same = !headers.contains_key(ORIGIN) || {
        let origin = one(headers, &ORIGIN).and_then(|origin| origin.split_once("://"));
        origin.zip(one(headers, &HOST)).is_some_and(|((_, origin), host)| origin.eq_ignore_ascii_case(host))
    };
    is_marked && is_near(headers) && is_same
}

/// Whether our own page asks, a person who has typed the address, or a program, which says nothing of it.
fn is_near(headers: &HeaderMap) -> bool {
    !headers.contains_key(FETCH_SITE)
        || one(headers, &FETCH_SITE).is_some_and(|site| matches!(site, "same-origin" | "none"))
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
    fn with_a_token_only_the_page_itself_is_open() {
        let access = guarded(true, true);
        let asks = |path: &str, pairs: &[_]| access.check(&Method::GET, path, &headers(pairs));
        for path in ["/", "/static/app.js", "/healthz"] {
            assert_eq!(asks(path, &[]), Ok(()), "{path}");
        }
        for path in ["/api/overview", "/metrics", "/staticfoo", "//", "/healthz/", "/api/tasks"] {
            assert_eq!(asks(path, &[]), Err(Refused::Token), "{path}");
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
            assert_eq!(asks("/api/overview", &[("authorization", wrong)]), Err(Refused::Token), "{wrong}");
        }
        assert_eq!(asks("/api/overview", &[right[0], right[0]]), Err(Refused::Token), "twice");
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
            assert_eq!(asks(&[("host", host)]), Err(Refused::Host), "{host}");
        }
        assert_eq!(asks(&[]), Err(Refused::Host));
    }

    #[test]
    fn changes_are_taken_from_our_own_page_only() {
        let access = guarded(false, true);
        let (host, mark) = (("host", "127.0.0.1:7423"), ("x-leasehold", "1"));
        let posts = |pairs: &[_]| access.check(&Method::POST, "/api/tasks/retry", &headers(pairs));
        assert_eq!(posts(&[host, mark]), Ok(()), "a program");
        let own = ("origin", "http://127.0.0.1:7423");
        assert_eq!(posts(&[host, mark, own, ("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(posts(&[host, own]), Err(Refused::Foreign), "a form cannot set the mark");
        for origin in
            ["http://evil.example", "null", "http://127.0.0.1:8000", "http://127.0.0.1:7423.evil.example"]
        {
            assert_eq!(posts(&[host, mark, ("origin", origin)]), Err(Refused::Foreign), "{origin}");
        }
        for site in ["cross-site", "same-site", "x"] {
            assert_eq!(posts(&[host, mark, ("sec-fetch-site", site)]), Err(Refused::Foreign), "{site}");
        }
        assert_eq!(posts(&[host, mark, own, own]), Err(Refused::Foreign), "two origins");
    }

    #[test]
    fn a_dashboard_that_only_shows_takes_no_change() {
        let posts = headers(&[("host", "localhost"), ("x-leasehold", "1")]);
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            let refused = guarded(false, false).check(&method, "/api/tasks/cancel", &posts);
            assert_eq!(refused, Err(Refused::ReadOnly), "{method}");
        }
    }

    #[test]
    fn a_token_is_never_printed_and_must_be_worth_something() {
        assert_eq!(format!("{:?}", guarded(true, true).token), "Some(Token)");
        for wrong in ["", "short", "has a space", "ümlaut-täken"] {
            assert!(Token::new(wrong).is_err(), "{wrong}");
        }
    }
}
