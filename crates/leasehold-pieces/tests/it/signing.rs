//! Signatures of requests.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Uri};
use leasehold_core::{Kind, Now, StoreTime};
use leasehold_pieces::serve::{PieceServer, ServeOptions};
use leasehold_pieces::sign::{SIGNATURE_AGE_MAX, Secret, Unproven};
use leasehold_store::SystemHost;
use leasehold_worker::Shutdown;

use crate::raw::{Raw, exchange, status_of};
use crate::stand::{NOW, Stand, TestShelf, artifact, secret};

const MILLI: Duration = Duration::from_millis(1);

fn have() -> String {
    format!("/v1/{}/have", artifact().as_str())
}

fn signed(secret: &Secret, method: &Method, path: &str, at: StoreTime) -> HeaderMap {
    let mut headers = HeaderMap::new();
    secret.sign(method, &path.parse().unwrap(), at, &mut headers);
    headers
}

/// A raw request, with headers that may be of another request.
fn request(method: &str, path: &str, headers: &HeaderMap) -> String {
    let lines = headers.iter().map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap()));
    let headers = lines.collect::<Vec<_>>().concat();
    format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n")
}

async fn guarded() -> Stand {
    let options = ServeOptions { secret: Some(secret()), ..ServeOptions::default() };
    Stand::new(TestShelf::new(10_000, 1_024), options).await
}

#[tokio::test]
async fn a_signed_request_is_answered() {
    let stand = guarded().await;
    for path in [have(), format!("/v1/{}/pieces/1-3", artifact().as_str())] {
        let headers = signed(&secret(), &Method::GET, &path, NOW);
        assert_eq!(
            status_of(&exchange(stand.addr, request("GET", &path, &headers)).await),
            Some(200),
            "{path}"
        );
    }
    let headers = signed(&secret(), &Method::HEAD, &have(), NOW);
    assert_eq!(status_of(&exchange(stand.addr, request("HEAD", &have(), &headers)).await), Some(200));
    assert_eq!(stand.tally.served().answered, 3);
}

#[tokio::test]
async fn a_request_without_a_valid_signature_is_refused_without_reading() {
    let stand = guarded().await;
    let right = signed(&secret(), &Method::GET, &have(), NOW);
    let without = |name: &str| {
        let mut headers = right.clone();
        headers.remove(name);
        headers
    };
    let with = |name: &'static str, value: &str| {
        let mut headers = right.clone();
        headers.insert(name, value.parse().unwrap());
        headers
    };
    let mut twice = right.clone();
    twice.append("authorization", right["authorization"].clone());
    let other = Secret::new(b"a secret of others").unwrap();
    let other_piece = format!("/v1/{}/pieces/1", artifact().as_str());
    let shortened = right["authorization"].to_str().unwrap()[..70].to_owned();
    let later = (NOW.as_millis() + 1).to_string();
    let get = |path: &str, at| signed(&secret(), &Method::GET, path, at);

    for (what, headers, answer) in [
        ("no headers", HeaderMap::new(), "not signed"),
        ("no signature", without("authorization"), "not signed"),
        ("no time", without("x-leasehold-time"), "not signed"),
        ("two signatures", twice, "not signed"),
        ("another scheme", with("authorization", "Basic Zm9vOmJhcg=="), "not signed"),
        ("no hex", with("authorization", "Leasehold zz"), "wrong"),
        ("an empty signature", with("authorization", "Leasehold "), "not signed"),
        ("half a signature", with("authorization", &shortened), "wrong"),
        ("another time", with("x-leasehold-time", &later), "wrong"),
        ("no time at all", with("x-leasehold-time", "noon"), "wrong"),
        ("another secret", signed(&other, &Method::GET, &have(), NOW), "wrong"),
        ("another path's signature", get(&other_piece, NOW), "wrong"),
        ("another method's signature", signed(&secret(), &Method::HEAD, &have(), NOW), "wrong"),
        ("too old", get(&have(), NOW.minus(SIGNATURE_AGE_MAX + MILLI)), "five minutes"),
        ("too young", get(&have(), NOW.plus(SIGNATURE_AGE_MAX + MILLI)), "five minutes"),
    ] {
        let got = exchange(stand.addr, request("GET", &have(), &headers)).await;
        let text = String::from_utf8_lossy(&got);
        assert_eq!(status_of(&got), Some(401), "{what}: {text}");
        assert!(text.contains(answer) && text.contains("www-authenticate: Leasehold\r\n"), "{what}: {text}");
    }
    assert_eq!(stand.asked(), 0);
    let refused = stand.tally.served().refused;
    assert_eq!((refused.unsigned, refused.forged, refused.expired), (6, 7, 2));
    assert_eq!(Raw::connect(stand.addr).await.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn no_signature_is_accepted_before_the_stores_time_is_known() {
    let options = ServeOptions { secret: Some(secret()), ..ServeOptions::default() };
    let shelf = Arc::new(TestShelf::new(1, 1_024));
    let server = PieceServer::bind(shelf, options, Arc::new(SystemHost), Arc::new(|| None)).await.unwrap();
    let (addr, shutdown) = (server.addr(), Shutdown::default());
    let running = tokio::spawn(server.run(shutdown.clone()));
    let headers = signed(&secret(), &Method::GET, &have(), NOW);
    assert_eq!(status_of(&exchange(addr, request("GET", &have(), &headers)).await), Some(503));
    shutdown.drain();
    running.await.unwrap().unwrap();
}

#[test]
fn a_signature_holds_for_five_minutes_either_way_and_only_certain_lateness_counts() {
    let uri: Uri = have().parse().unwrap();
    let verify =
        |at, now| secret().verify(&Method::GET, &uri, &signed(&secret(), &Method::GET, &have(), at), now);
    let vague = Now { earliest: NOW, latest: StoreTime::NEVER, steady: true };
    let exact = Now::exactly(NOW);
    let age = SIGNATURE_AGE_MAX;
    for (at, now, expected) in [
        (NOW, exact, Ok(())),
        (NOW.minus(age), exact, Ok(())),
        (NOW.plus(age), exact, Ok(())),
        (NOW.minus(age + MILLI), exact, Err(Unproven::Expired)),
        (NOW.plus(age + MILLI), exact, Err(Unproven::Expired)),
        (NOW.minus(age + MILLI), vague, Err(Unproven::Expired)),
        (NOW.plus(age + MILLI), vague, Ok(())),
        (StoreTime::from_millis(i64::MIN), exact, Err(Unproven::Expired)),
        (StoreTime::from_millis(i64::MAX), exact, Err(Unproven::Expired)),
        (StoreTime::from_millis(0), exact, Err(Unproven::Expired)),
    ] {
        assert_eq!(verify(at, now), expected, "{} at {now:?}", at.as_millis());
    }
}

#[test]
fn a_secret_is_long_enough_and_never_shown() {
    let error = Secret::new(b"fifteen letters").unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert_eq!(error.to_string(), "peer secret must have at least 16 bytes, got 15");
    let secret = Secret::new(b"sixteen letters!").unwrap();
    assert_eq!(format!("{secret:?}"), "Secret");
    let options = ServeOptions { secret: Some(secret), ..ServeOptions::default() };
    assert!(!format!("{options:?}").contains("sixteen"));
}
