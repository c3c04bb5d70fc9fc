//! What a server endures.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::raw::exchange;
use crate::stand::Stand;

#[tokio::test]
async fn a_head_has_an_end() {
    let stand = Stand::new().await;
    let long = format!("GET / HTTP/1.1\r\nhost: {}\r\nx: {}\r\n\r\n", stand.addr, "x".repeat(20_000));
    assert_eq!(exchange(stand.addr, long).await.map(|answer| answer.status), Some(431));
    let many = "x: 1\r\n".repeat(100);
    let many = format!("GET / HTTP/1.1\r\nhost: {}\r\n{many}\r\n", stand.addr);
    assert_eq!(exchange(stand.addr, many).await.map(|answer| answer.status), Some(431));
}

#[tokio::test]
async fn a_body_has_an_end() {
    let stand = Stand::new().await;
    let body = format!("{{\"q\": \"{}\"}}", "x".repeat(64 * 1_024));
    let answer = stand.post("/api/tasks/retry", &body).await;
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    let fits = format!("{{\"q\": \"{}\"}}", "x".repeat(60 * 1_024));
    assert_eq!(stand.post("/api/tasks/retry", &fits).await.status, 200);
}

#[tokio::test]
async fn garbage_is_no_request() {
    let stand = Stand::new().await;
    for garbage in ["\0\0\0\r\n\r\n", "hello\r\n\r\n", "GET /\r\n\r\n"] {
        let status = exchange(stand.addr, garbage).await.map(|answer| answer.status);
        assert!(matches!(status, None | Some(400)), "{garbage:?}: {status:?}");
    }
    assert_eq!(stand.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn one_connection_too_many_is_told_so_and_the_next_is_served() {
    let stand = Stand::new().await;
    let mut open = Vec::new();
    for _ in 0..256 {
        let mut stream = TcpStream::connect(stand.addr).await.unwrap();
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", stand.addr);
        stream.write_all(request.as_bytes()).await.unwrap();
        // Answered, so that it is known to have been taken.
        stream.read_u8().await.unwrap();
        open.push(stream);
    }
    assert_eq!(stand.get("/healthz").await.status, 503);
    drop(open);
    loop {
        // Until the server has noticed that they are gone.
        if stand.get("/healthz").await.status == 200 {
            break;
        }
    }
}
