//! Limits on connections and on the size of requests.

use leasehold_core::Kind;
use leasehold_http::testing::{RawConnection, RawResponse, exchange, status_of};
use leasehold_http::{HttpListener, ListenerEvent, ListenerLimits};
use leasehold_store::SystemHost;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

use crate::test_server::{LIMITS, TestServer};

fn may_open_many_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Status of a response on a connection that may be refused.
async fn status_if_accepted(mut connection: RawConnection) -> Option<u16> {
    connection.0.write_all(b"GET /2 HTTP/1.1\r\nhost: x\r\n\r\n").await.ok()?;
    connection.response().await.ok().map(|response| response.status)
}

#[tokio::test]
async fn of_a_thousand_connections_those_within_the_limit_are_served_and_the_others_get_503() {
    may_open_many_files();
    let server = TestServer::new(LIMITS).await;
    let mut clients = JoinSet::new();
    for size in 0..1_000_usize {
        let addr = server.addr;
        clients.spawn(async move {
            let mut connection = RawConnection::connect(addr).await;
            let request = format!("GET /{size} HTTP/1.1\r\nhost: x\r\n\r\n");
            // A refused connection may be closed by now.
            let _ = connection.0.write_all(request.as_bytes()).await;
            (size, connection.response().await, connection)
        });
    }
    let clients = clients.join_all().await;
    let (mut answered, mut rejected) = (0, 0);
    for (size, response, _) in &clients {
        match response {
            Ok(RawResponse { status: 200, body, .. }) => {
                assert_eq!(body.len(), *size);
                answered += 1;
            }
            Ok(RawResponse { status: 503, head, .. }) => {
                assert!(head.contains("retry-after: 1\r\n"), "{head}");
                rejected += 1;
            }
            Ok(other) => panic!("{other:?}"),
            // Its request crossed the response: a reset.
            Err(_) => {}
        }
    }
    // All are still open, so no place was reused.
    assert_eq!(answered, 64);
    assert!(rejected > 0);
    assert_eq!((server.count(ListenerEvent::Connected), server.count(ListenerEvent::Refused)), (64, 936));

    drop(clients);
    while status_if_accepted(RawConnection::connect(server.addr).await).await != Some(200) {}
}

#[tokio::test]
async fn one_address_cannot_lock_out_the_others() {
    let server = TestServer::new(ListenerLimits { per_address_max: 2, ..LIMITS }).await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut connection = RawConnection::connect(server.addr).await;
        assert_eq!(connection.get("/1").await.status, 200);
        open.push(connection);
    }
    let third = RawConnection::connect(server.addr).await.response().await.unwrap();
    assert_eq!(third.status, 503);
    // All addresses in 127.0.0.0/8 are this machine's.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 2], 0).into()).unwrap();
    let mut other = RawConnection(socket.connect(server.addr).await.unwrap());
    assert_eq!(other.get("/1").await.status, 200);
}

#[tokio::test]
async fn a_request_head_is_limited_in_size_and_garbage_is_an_event() {
    let server = TestServer::new(LIMITS).await;
    let long = format!("GET /1 HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "x".repeat(20_000));
    assert_eq!(status_of(&exchange(server.addr, long).await), Some(431));
    let many = format!("GET /1 HTTP/1.1\r\nhost: x\r\n{}\r\n", "x: 1\r\n".repeat(100));
    assert_eq!(status_of(&exchange(server.addr, many).await), Some(431));
    let garbage = exchange(server.addr, "hello\r\n\r\n").await;
    assert!(matches!(status_of(&garbage), None | Some(400)), "{}", garbage.escape_ascii());
    while server.count(ListenerEvent::InvalidRequest) < 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(RawConnection::connect(server.addr).await.get("/1").await.status, 200);
}

#[tokio::test]
async fn a_handler_that_panics_ends_only_its_connection() {
    let server = TestServer::new(LIMITS).await;
    let mut other = RawConnection::connect(server.addr).await;
    assert_eq!(other.get("/1").await.status, 200);
    let request = "GET /panic HTTP/1.1\r\nhost: x\r\n\r\n";
    assert_eq!(exchange(server.addr, request).await, b"");
    assert_eq!(other.get("/1").await.status, 200);
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let server = TestServer::new(LIMITS).await;
    let error = HttpListener::bind(server.addr, LIMITS, Arc::new(SystemHost)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().starts_with(&format!("cannot listen on `{}`: ", server.addr)), "{error}");
}
