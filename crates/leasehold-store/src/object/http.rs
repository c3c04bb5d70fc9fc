//! The HTTP seam of `object_store`, wrapped once: every answer's date feeds the clock, and its status is kept
//! where the request was made.
//!
//! `object_store` folds statuses together (409 on create becomes "already exists", 404 under if-match becomes
//! "precondition failed"), so what the store really said is noted here, before that happens.
//!
//! It also dates requests by the machine's wall clock, which may be wrong; those are signed anew here, with the
//! store's time ([`sign`]).

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

/// What happened on the wire during one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exchange {
    /// No request left for the store: the credentials or the configuration are at fault.
    Unsent,
    /// The store answered with this status.
    Answered(StatusCode),
    /// The store refused, and by its own date the request was signed with a wrong clock.
    Misdated,
    /// No connection could be made.
    Unreached,
    /// Sent, but not answered.
    Unanswered,
}

tokio::task_local! {
    static EXCHANGE: RefCell<Exchange>;
}

/// Runs one call and says what happened on the wire. Retries are off, so there is one request at most.
pub(super) async fn observed<T>(call: impl Future<Output = T>) -> (T, Exchange) {
    EXCHANGE
        .scope(RefCell::new(Exchange::Unsent), async move {
            let result = call.await;
            (result, EXCHANGE.with(|exchange| *exchange.borrow()))
        })
        .await
}

/// Makes HTTP clients whose answers feed the clock.
#[derive(Debug)]
pub(super) struct DatedConnector {
    pub(super) clock: Arc<Clock>,
    pub(super) host: Arc<dyn Host>,
    pub(super) endpoint: Endpoint,
    pub(super) signer: Signer,
}

/// Which hosts are the store. The same seam also carries requests for credentials, whose hosts have clocks of
/// their own.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    /// This host is.
    pub(super) exactly: Option<String>,
    /// So is every host with such a part in its name.
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
    // Outside a call of ours (a credential refreshed on its own) there is nobody to tell.
    let _ = EXCHANGE.try_with(|noted| *noted.borrow_mut() = exchange);
}

/// Any 403 to a request with a wrong date counts as due to it: not all stores say so in the same words, and if
/// it was not, the next try has the right date and shows it.
fn meaning(status: StatusCode, signed: Option<StoreTime>, date_secs: Option<i64>) -> Exchange {
    let date = date_secs.map(|secs| StoreTime::from_millis(secs.saturating_mul(1_000)));
    match (signed, date) {
        (Some(signed), Some(date)) if status == StatusCode::FORBIDDEN && sign::is_misdated(signed, date) => {
            Exchange::Misdated
        }
        _ => Exchange::Answered(status),
    }
}

/// Seconds since 1970 of an HTTP date.
fn seconds(date: &[u8]) -> Option<i64> {
    let date = std::str::from_utf8(date).ok()?;
    let seconds = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_second();
    PLAUSIBLE.contains(&seconds).then_some(seconds)
}

/// From 2000 to 2200: any other date is nonsense, and better unheard.
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
    fn only_the_stores_own_hosts_tell_the_time() {
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
