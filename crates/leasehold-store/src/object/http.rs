//! Wrapper of the HTTP connector of `object_store`: passes the date of every answer to the clock, and records its
//! status for the caller.
//!
//! `object_store` merges statuses (409 on create becomes "already exists", 404 under if-match becomes "precondition
//! failed"), so the status is recorded here, before that happens.
//!
//! It also dates requests by the machine's wall clock, which may be wrong; those are signed again here, with the store
//! time ([`sign`]).

use async_trait::async_trait;
use http::StatusCode;
use http::header::DATE;
use leasehold_core::StoreTime;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use std::cell::RefCell;
use std::future::Future;
use std::sync::Arc;

use super::sign::{self, Signer};
use crate::clock::Clock;
use crate::host::Host;

/// HTTP exchange of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exchange {
    /// No request was sent: the credentials or the configuration are wrong.
    Unsent,
    /// The store answered with this status.
    Answered(StatusCode),
    /// The store refused the request, which was signed with a wrong clock according to the store's date.
    Misdated,
    /// No connection could be made.
    Unreached,
    /// Sent, but not answered.
    Unanswered,
}

tokio::task_local! {
    static EXCHANGE: RefCell<Exchange>;
}

/// Runs one call and returns its HTTP exchange. Retries are off, so there is at most one request.
pub(super) async fn observed<T>(call: impl Future<Output = T>) -> (T, Exchange) {
    EXCHANGE
        .scope(RefCell::new(Exchange::Unsent), async move {
            let result = call.await;
            (result, EXCHANGE.with(|exchange| *exchange.borrow()))
        })
        .await
}

/// Creates HTTP clients that pass the dates of their answers to the clock.
#[derive(Debug)]
pub(super) struct DatedConnector {
    pub(super) clock: Arc<Clock>,
    pub(super) host: Arc<dyn Host>,
    pub(super) endpoint: Endpoint,
    pub(super) signer: Signer,
}

/// Hosts of the store. The connector also carries requests for credentials, whose hosts have clocks of their own.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    /// Exact host name.
    pub(super) exactly: Option<String>,
    /// Parts of host names, if there is no exact one.
    pub(super) parts: &'static [&'static str],
}

impl Endpoint {
    fn is_store(&self, host: &str) -> bool {
        match &self.exactly {
            Some(exactly) => host == exactly || host.ends_with(&format!(".{exactly}")),
            None => self.parts.iter().any(|part| format!(".{host}").contains(part)),
        }
    }
}

impl HttpConnector for DatedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(DatedService {
            inner: ReqwestConnector::default().connect(options)?,
            clock: self.clock.clone(),
            host: self.host.clone(),
            endpoint: self.endpoint.clone(),
            signer: self.signer.clone(),
        }))
    }
}

#[derive(Debug)]
struct DatedService {
    inner: HttpClient,
    clock: Arc<Clock>,
    host: Arc<dyn Host>,
    endpoint: Endpoint,
    signer: Signer,
}

#[async_trait]
impl HttpService for DatedService {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if !request.uri().host().is_some_and(|host| self.endpoint.is_store(host)) {
            return self.inner.execute(request).await;
        }
        if let Some(now) = self.clock.now() {
            self.signer.redate(&mut request, now).await;
        }
        let signed = sign::signed_at(&request);
        note(Exchange::Unanswered);
        let sent = self.host.instant();
        let answer = self.inner.execute(request).await;
        let received = self.host.instant();
        match &answer {
            Ok(response) => {
                let date_secs = response.headers().get(DATE).and_then(|date| seconds(date.as_bytes()));
                if let Some(date_secs) = date_secs {
                    self.clock.observe(date_secs, sent, received);
                }
                note(meaning(response.status(), signed, date_secs));
            }
            Err(error) if error.kind() == HttpErrorKind::Connect => note(Exchange::Unreached),
            Err(_) => {}
        }
        answer
    }
}

fn note(exchange: Exchange) {
    // Outside an observed call (such as a refresh of credentials) there is no receiver.
    let _ = EXCHANGE.try_with(|noted| *noted.borrow_mut() = exchange);
}

/// Interprets a status. Any 403 to a request with a wrong date is attributed to the date: stores use different codes
/// for it, and if the cause is another, the next attempt has the right date and shows it.
fn meaning(status: StatusCode, signed: Option<StoreTime>, date_secs: Option<i64>) -> Exchange {
    let date = date_secs.map(|secs| StoreTime::from_millis(secs.saturating_mul(1_000)));
    match (signed, date) {
        (Some(signed), Some(date)) if status == StatusCode::FORBIDDEN && sign::is_misdated(signed, date) => {
            Exchange::Misdated
        }
        _ => Exchange::Answered(status),
    }
}

/// Parses an HTTP date into seconds since 1970.
fn seconds(date: &[u8]) -> Option<i64> {
    let date = std::str::from_utf8(date).ok()?;
    let seconds = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_second();
    PLAUSIBLE.contains(&seconds).then_some(seconds)
}

/// Accepted dates, from 2000 to 2200; others are ignored.
const PLAUSIBLE: std::ops::Range<i64> = 946_684_800..7_258_118_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_dates_are_read() {
        assert_eq!(seconds(b"Sun, 15 Nov 2026 20:14:31 GMT"), Some(1_794_773_671));
        assert_eq!(seconds(b"Fri, 31 Dec 9999 23:59:59 GMT"), None);
        assert_eq!(seconds(b"1994-11-06"), None);
        assert_eq!(seconds(b"\xff"), None);
    }

    #[test]
    fn only_dates_of_the_stores_own_hosts_are_used() {
        let aws = Endpoint { exactly: None, parts: &[".s3.", ".s3-", ".s3express-"] };
        for host in
            ["s3.eu-west-1.amazonaws.com", "b.s3.eu-west-1.amazonaws.com", "b.s3express-a.x.amazonaws.com"]
        {
            assert!(aws.is_store(host), "{host}");
        }
        for host in ["sts.eu-west-1.amazonaws.com", "169.254.169.254", "login.microsoftonline.com"] {
            assert!(!aws.is_store(host), "{host}");
        }
        let own = Endpoint { exactly: Some("127.0.0.1".into()), parts: &[] };
        assert!(own.is_store("127.0.0.1") && !own.is_store("169.254.169.254"));
    }
}
