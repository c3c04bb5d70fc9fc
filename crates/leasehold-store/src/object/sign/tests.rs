use super::*;
use crate::host::{Host, SystemHost};
use crate::ledger::Purpose;
use crate::object::AccessKey;
use crate::{BucketAddress, BucketStore, Client, List, PutOutcome, When};
use http::{Method, Request, Response, StatusCode};
use leasehold_core::Kind;
use object_store::StaticCredentialProvider;
use object_store::aws::AwsAuthorizer;
use object_store::client::HttpRequestBody;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;

const YEAR: Duration = Duration::from_hours(365 * 24);
const KEY_ID: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

fn credential(token: Option<&str>) -> AwsCredential {
    AwsCredential { key_id: KEY_ID.into(), secret_key: SECRET.into(), token: token.map(str::to_owned) }
}

/// A request as `object_store` signs it, by the real clock.
fn signed(method: Method, uri: &str, body: &'static str, credential: &AwsCredential) -> HttpRequest {
    let body = HttpRequestBody::from(body.as_bytes().to_vec());
    let mut request = Request::builder().method(method).uri(uri).body(body).unwrap();
    for (name, value) in [
        ("if-match", "\"a  b\""),
        ("content-type", " x/y ; z "),
        ("x-amz-meta-a", "1"),
        ("content-length", "5"),
    ] {
        request.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    request.headers_mut().append("x-amz-meta-a", HeaderValue::from_static("2"));
    AwsAuthorizer::new(credential, "s3", "eu-west-1").try_authorize(&mut request, None).unwrap();
    request
}

/// Signer, and the credentials that must outlive it.
fn signer(credential: AwsCredential) -> (Signer, AwsCredentialProvider) {
    let credentials: AwsCredentialProvider = Arc::new(StaticCredentialProvider::new(credential));
    let signer = Signer::default();
    signer.learn(&credentials);
    (signer, credentials)
}

#[tokio::test]
async fn re_signing_gives_the_same_bytes_as_object_store() {
    for uri in [
        "https://bucket.s3.eu-west-1.amazonaws.com/",
        "https://s3.eu-west-1.amazonaws.com:443/bucket/a%20b/%C3%A4%2B~'()!*,:@=$&",
        "https://S3.eu-west-1.amazonaws.com/bucket?list-type=2&prefix=a%2Fb%20c&start-after=z%2B~*'()&delimiter=%2F",
        "http://127.0.0.1:8333/bucket?x=1+2&continuation-token=%3D%3D&b&B=&x=%C3%A4&x=1",
        "http://[::1]:80/bucket/k?session",
    ] {
        for (method, body, token) in [(Method::GET, "", None), (Method::PUT, "hello", Some("tok/en+=="))] {
            let expected = signed(method.clone(), uri, body, &credential(token));
            let at = signed_at(&expected).unwrap();
            // An equal request, signed by a machine whose clock is a year behind.
            let mut request = signed(method, uri, body, &credential(token));
            let old = at.minus(YEAR);
            Signed::read(&request).unwrap().sign(&mut request, SECRET, old).unwrap();
            assert_ne!(request.headers(), expected.headers());
            let (signer, _credentials) = signer(credential(token));
            signer.redate(&mut request, Now::exactly(at)).await.unwrap();
            assert_eq!(request.headers(), expected.headers(), "{uri}");
        }
    }
}

/// The first example in the documentation of Signature Version 4 for S3, signed a decade too late.
#[tokio::test]
async fn a_clock_that_is_years_off_leads_to_the_signature_that_aws_publishes() {
    let uri = "https://examplebucket.s3.amazonaws.com/test.txt";
    let mut request = Request::get(uri).header("range", "bytes=0-9").body(HttpRequestBody::empty()).unwrap();
    AwsAuthorizer::new(&credential(None), "s3", "us-east-1").try_authorize(&mut request, None).unwrap();
    let (signer, _credentials) = signer(credential(None));
    signer.redate(&mut request, Now::exactly("2013-05-24T00:00:00Z".parse().unwrap())).await.unwrap();
    assert_eq!(request.headers()["x-amz-date"], "20130524T000000Z");
    assert_eq!(
        request.headers()[AUTHORIZATION],
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
         SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
         Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    );
}

#[tokio::test]
async fn requests_that_are_not_surely_wrong_or_not_ours_stay_unchanged() {
    let sound = || signed(Method::GET, "http://127.0.0.1/b/k", "", &credential(None));
    let with = |name: &'static str, value: String| {
        let mut request = sound();
        request.headers_mut().insert(name, HeaderValue::try_from(value).unwrap());
        request
    };
    let authorization = sound().headers()[AUTHORIZATION].to_str().unwrap().to_owned();
    let at = signed_at(&sound()).unwrap();
    let later = Now::exactly(at.plus(YEAR));
    let second = Duration::from_secs(1);
    let near = Now::exactly(at.plus(TOLERATED).minus(second));
    // A virtual machine was paused: the store's time is this or any later one.
    let open = Now { earliest: at.minus(YEAR), latest: StoreTime::NEVER, is_consistent: true };
    let (ours, _credentials) = signer(credential(None));
    let (rotated, _rotated) = signer(AwsCredential { key_id: "other".into(), ..credential(None) });
    for (request, now, signer) in [
        (sound(), near, &ours),
        (sound(), open, &ours),
        (sound(), later, &rotated),
        (sound(), later, &Signer::default()),
        (with("x-amz-s3session-token", "t".into()), later, &ours),
        (with("authorization", "Bearer t".into()), later, &ours),
        (with("authorization", authorization.replace("/s3/", "/sts/")), later, &ours),
        (with("authorization", authorization.replace(";host;", ";gone;host;")), later, &ours),
        (with("x-amz-date", "today".into()), later, &ours),
    ] {
        let mut after = signed(Method::GET, "http://127.0.0.1/b/k", "", &credential(None));
        *after.headers_mut() = request.headers().clone();
        assert!(signer.redate(&mut after, now).await.is_none(), "{:?}", request.headers());
        assert_eq!(after.headers(), request.headers());
    }
    let mut request = sound();
    assert!(ours.redate(&mut request, later).await.is_some(), "but this one is re-signed");
}

#[test]
fn nothing_secret_is_shown() {
    let (signer, _credentials) = signer(credential(Some("token")));
    assert_eq!(format!("{signer:?}"), "Signer");
}

/// Bucket whose time is a year ahead of ours. Records the statuses of its answers.
struct Future {
    credentials_are_good: bool,
    answers: Mutex<Vec<u16>>,
}

impl Future {
    fn now() -> StoreTime {
        StoreTime::from_millis(SystemHost.instant().wall_ns / 1_000_000).plus(YEAR)
    }

    fn answer(&self, request: &Request<hyper::body::Incoming>) -> Response<String> {
        let date = request.headers()[DATE].to_str().unwrap();
        let date = civil::DateTime::strptime(DATE_FORMAT, date).unwrap().to_zoned(TimeZone::UTC).unwrap();
        let skew_ms = Self::now().as_millis() - date.timestamp().as_millisecond();
        let (status, body) = match request.method() {
            _ if skew_ms.abs() > 15 * 60_000 => (403, "<Error><Code>RequestTimeTooSkewed</Code></Error>"),
            _ if !self.credentials_are_good => (403, "<Error><Code>InvalidAccessKeyId</Code></Error>"),
            &Method::GET => (200, "<ListBucketResult></ListBucketResult>"),
            _ => (200, ""),
        };
        self.answers.lock().unwrap().push(status);
        let now = Timestamp::from_millisecond(Self::now().as_millis()).unwrap();
        let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&now).unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        Response::builder()
            .status(status)
            .header("date", date)
            .header("etag", "\"v\"")
            .body(body.into())
            .unwrap()
    }

    /// Answers one request per connection, for ever.
    async fn serve(&self, listener: tokio::net::TcpListener) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service =
                hyper::service::service_fn(async |request| Ok::<_, Infallible>(self.answer(&request)));
            let stream = hyper_util::rt::TokioIo::new(stream);
            // An error means that the client closed the connection.
            let _ = hyper::server::conn::http1::Builder::new()
                .keep_alive(false)
                .serve_connection(stream, service)
                .await;
        }
    }
}

fn client_of(server: SocketAddr) -> Client {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let address = BucketAddress {
        endpoint: Some(format!("http://{server}")),
        access_key: Some(AccessKey { id: KEY_ID.into(), secret: SECRET.into() }),
        ..BucketAddress::parse("s3://bucket/prefix").unwrap().unwrap()
    };
    Client::new(Arc::new(BucketStore::open(address, &host).unwrap()), host)
}

/// Runs a test against such a bucket and returns the statuses of its answers.
#[expect(clippy::disallowed_methods, reason = "a test server")]
async fn in_future(credentials_are_good: bool, test: impl AsyncFnOnce(Client)) -> Vec<u16> {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let client = client_of(listener.local_addr().unwrap());
    let future = Future { credentials_are_good, answers: Mutex::default() };
    tokio::select! {
        () = future.serve(listener) => {}
        () = test(client) => {}
    }
    future.answers.into_inner().unwrap()
}

#[tokio::test]
async fn a_machine_whose_clock_is_a_year_off_is_refused_once_and_then_served() {
    let answers = in_future(true, async |client| {
        let put = client.put(Purpose::Submit, "a", "x".into(), &When::Absent).await.unwrap();
        assert!(matches!(put, PutOutcome::Written(_)));
        client.put_always(Purpose::Submit, "b+c", "y".into()).await.unwrap();
        client.list(Purpose::Discover, &List::all("a").after("a~b")).await.unwrap();
        client.delete(Purpose::Sweep, "a").await.unwrap();
        let (now, future) = (client.now().unwrap(), Future::now());
        assert!(now.is_consistent && now.earliest <= future && future <= now.latest, "{now:?} {future}");
    });
    assert_eq!(answers.await, [403, 200, 200, 200, 200]);
}

#[tokio::test]
async fn bad_credentials_on_a_machine_whose_clock_is_a_year_off_fail_at_once() {
    let answers = in_future(false, async |client| {
        let error = client.get(Purpose::Submit, "a").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.to_string().contains("refuses these credentials"), "{error}");
    });
    assert_eq!(answers.await, [403, 403]);
}

#[tokio::test]
async fn a_removal_is_not_retried_and_reports_that_the_clock_is_wrong() {
    let answers = in_future(true, async |client| {
        let error = client.delete(Purpose::Sweep, "a").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(!error.outcome_is_unknown() && error.to_string().contains("clock is wrong"), "{error}");
    });
    assert_eq!(answers.await, [403]);
}
