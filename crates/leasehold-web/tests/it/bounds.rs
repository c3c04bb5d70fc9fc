//! Limits of the server: sizes, garbage, connections.

use std::time::Duration;

use leasehold_store::{Host, SystemHost};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fixture::DashboardFixture;
use crate::raw::{Answer, connect_from, exchange, exchange_from};

/// Requests the health of a dashboard from another address of this machine.
async fn health_from(source: [u8; 4], fixture: &DashboardFixture) -> Answer {
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", fixture.addr);
    exchange_from(source, fixture.addr, request).await.unwrap()
}

#[tokio::test]
async fn a_request_head_is_limited_in_size() {
    let fixture = DashboardFixture::new().await;
    let long = format!("GET / HTTP/1.1\r\nhost: {}\r\nx: {}\r\n\r\n", fixture.addr, "x".repeat(20_000));
    assert_eq!(exchange(fixture.addr, long).await.map(|answer| answer.status), Some(431));
    let many = "x: 1\r\n".repeat(100);
    let many = format!("GET / HTTP/1.1\r\nhost: {}\r\n{many}\r\n", fixture.addr);
    assert_eq!(exchange(fixture.addr, many).await.map(|answer| answer.status), Some(431));
}

#[tokio::test]
async fn a_request_body_is_limited_in_size() {
    let fixture = DashboardFixture::new().await;
    let body = format!("{{\"q\": \"{}\"}}", "x".repeat(64 * 1_024));
    let answer = fixture.post("/api/tasks/retry", &body).await;
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    let fits = format!("{{\"q\": \"{}\"}}", "x".repeat(60 * 1_024));
    assert_eq!(fixture.post("/api/tasks/retry", &fits).await.status, 200);
}

#[tokio::test]
async fn garbage_is_rejected() {
    let fixture = DashboardFixture::new().await;
    for garbage in ["\0\0\0\r\n\r\n", "hello\r\n\r\n", "GET /\r\n\r\n"] {
        let status = exchange(fixture.addr, garbage).await.map(|answer| answer.status);
        assert!(matches!(status, None | Some(400)), "{garbage:?}: {status:?}");
    }
    assert_eq!(fixture.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn one_connection_too_many_gets_503_and_a_later_one_is_served() {
    let fixture = DashboardFixture::new().await;
    let mut open = Vec::new();
    for number in 0..256_u16 {
        let source = [127, 0, 0, 2 + u8::try_from(number / 64).unwrap()];
        let mut stream = connect_from(source, fixture.addr).await;
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", fixture.addr);
        stream.write_all(request.as_bytes()).await.unwrap();
        // A response proves that the connection was accepted.
        stream.read_u8().await.unwrap();
        open.push(stream);
    }
    assert_eq!(fixture.get("/healthz").await.status, 503);
    drop(open);
    loop {
        // Until the server has noticed that they are closed.
        if fixture.get("/healthz").await.status == 200 {
            break;
        }
    }
}

#[tokio::test]
async fn half_open_requests_of_one_address_do_not_block_other_addresses() {
    let fixture = DashboardFixture::guarded().await;
    let mut open = Vec::new();
    for _ in 0..400 {
        let mut stream = TcpStream::connect(fixture.addr).await.unwrap();
        // It may already have been rejected.
        let _ = stream.write_all(b"GET / HT").await;
        open.push(stream);
    }
    assert_eq!(health_from([127, 0, 0, 2], &fixture).await.status, 200);
    // A client that does not finish its request is disconnected, and then the same address is served again, too.
    let began = SystemHost.instant();
    let _ = open[0].read_to_end(&mut Vec::new()).await;
    let waited = SystemHost.instant().since(began);
    assert!(waited < Duration::from_secs(5), "disconnected after {waited:?}");
    while fixture.get("/healthz").await.status != 200 {}
}
