//! Signatures of requests.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method};
use leasehold_core::StoreTime;
use leasehold_http::sign::{SIGNATURE_AGE_MAX, Secret};
use leasehold_http::testing::{RawConnection, exchange, status_of};
use leasehold_pieces::serve::{PieceServer, ServeOptions};
use leasehold_store::SystemHost;
use leasehold_worker::Shutdown;

use crate::test_server::{NOW, TestServer, TestSource, artifact, secret};

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

async fn guarded() -> TestServer {
    let options = ServeOptions { secret: Some(secret()), ..ServeOptions::default() };
    TestServer::new(TestSource::new(10_000, 1_024), options).await
}

#[tokio::test]
async fn a_signed_request_is_answered() {
    let server = guarded().await;
    for path in [have(), format!("/v1/{}/pieces/1-3", artifact().as_str())] {
        let headers = signed(&secret(), &Method::GET, &path, NOW);
        assert_eq!(
            status_of(&exchange(server.addr, request("GET", &path, &headers)).await),
            Some(200),
            "{path}"
        );
    }
    let headers = signed(&secret(), &Method::HEAD, &have(), NOW);
    assert_eq!(status_of(&exchange(server.addr, request("HEAD", &have(), &headers)).await), Some(200));
    assert_eq!(server.counters.snapshot().answered, 3);
}

#[tokio::test]
async fn a_request_without_a_valid_signature_is_refused_without_reading() {
    let server = guarded().await;
    let get = |path: &str, at| signed(&secret(), &Method::GET, path, at);
    let other_piece = format!("/v1/{}/pieces/1", artifact().as_str());
    let too_old = NOW.minus(SIGNATURE_AGE_MAX + Duration::from_millis(1));
    for (headers, why) in [
        (HeaderMap::new(), "not signed"),
        (get(&other_piece, NOW), "wrong"),
        (get(&have(), too_old), "five minutes"),
    ] {
        let got = exchange(server.addr, request("GET", &have(), &headers)).await;
        let text = String::from_utf8_lossy(&got);
        assert_eq!(status_of(&got), Some(401), "{text}");
        assert!(text.contains(why) && text.contains("www-authenticate: Leasehold\r\n"), "{why}: {text}");
    }
    assert_eq!(server.asked(), 0);
    let refused = server.counters.snapshot().refused;
    assert_eq!((refused.unsigned, refused.bad_signature, refused.expired), (1, 1, 1));
    assert_eq!(RawConnection::connect(server.addr).await.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn no_signature_is_accepted_before_the_stores_time_is_known() {
    let options = ServeOptions { secret: Some(secret()), ..ServeOptions::default() };
    let source = Arc::new(TestSource::new(1, 1_024));
    let server = PieceServer::bind(source, options, Arc::new(SystemHost), Arc::new(|| None)).await.unwrap();
    let (addr, shutdown) = (server.addr(), Shutdown::default());
    let running = tokio::spawn(server.run(shutdown.clone()));
    let headers = signed(&secret(), &Method::GET, &have(), NOW);
    assert_eq!(status_of(&exchange(addr, request("GET", &have(), &headers)).await), Some(503));
    shutdown.drain();
    running.await.unwrap().unwrap();
}

#[test]
fn the_options_of_a_server_do_not_show_its_secret() {
    let secret = Secret::new(b"sixteen letters!").unwrap();
    let options = ServeOptions { secret: Some(secret), ..ServeOptions::default() };
    assert!(!format!("{options:?}").contains("sixteen"));
}
