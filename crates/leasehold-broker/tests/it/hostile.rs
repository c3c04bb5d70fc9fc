//! Connections that are not those of a client.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::SharedFolder;

/// First line of a client.
fn hello(socket: &std::path::Path) -> String {
    let instance = socket.file_stem().unwrap().to_str().unwrap();
    format!("{{\"leasehold_broker\":1,\"instance\":\"{instance}\"}}\n")
}

/// Reads until the broker disconnects.
async fn until_disconnected(stream: &mut UnixStream) -> usize {
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await.unwrap_or_default()
}

#[tokio::test]
async fn only_this_user_may_open_the_socket() {
    let folder = SharedFolder::new();
    let queue = folder.process("broker").await;
    queue.submit("first", Value::Null).await.unwrap();
    let socket = folder.socket();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&socket), mode(socket.parent().unwrap())), (0o600, 0o700));
    queue.close().await.unwrap();
    assert!(!socket.exists(), "the socket is removed");
}

#[tokio::test]
async fn nonsense_ends_its_own_connection_only() {
    let folder = SharedFolder::new();
    let (broker, client) = (folder.process("broker").await, folder.process("client").await);
    broker.submit("first", Value::Null).await.unwrap();
    let socket = folder.socket();
    let first_lines = [
        "\n".to_owned(),
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "x".repeat(100_000),
        hello(&socket).replace(":1,", ":2,"),
    ];
    for text in first_lines {
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        // The broker may have disconnected before all of it is written.
        let _ = stream.write_all(text.as_bytes()).await;
        until_disconnected(&mut stream).await;
    }
    for line in
        ["{}\n", "{\"id\":1,\"call\":{\"settle\":{}}}\n", "{\"id\":1,\"call\":\"import\"}\n", "\u{0}\t\t\n"]
    {
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        stream.write_all(hello(&socket).as_bytes()).await.unwrap();
        stream.write_all(line.as_bytes()).await.unwrap();
        until_disconnected(&mut stream).await;
    }
    assert!(client.submit("second", Value::Null).await.unwrap().is_new);
    client.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test]
async fn a_line_beyond_the_limit_is_refused_before_it_is_held() {
    let folder = SharedFolder::new();
    let broker = folder.process("broker").await;
    broker.submit("first", Value::Null).await.unwrap();
    let socket = folder.socket();
    let mut stream = UnixStream::connect(&socket).await.unwrap();
    stream.write_all(hello(&socket).as_bytes()).await.unwrap();
    let chunk = vec![b'x'; 1_024 * 1_024];
    let mut written = 0;
    while stream.write_all(&chunk).await.is_ok() {
        written += chunk.len();
        assert!(written <= 16 * 1_024 * 1_024, "the broker reads on");
    }
    broker.close().await.unwrap();
}

#[tokio::test]
async fn a_thousand_idle_connections_keep_nobody_from_working() {
    let folder = SharedFolder::new();
    let (broker, client) = (folder.process("broker").await, folder.process("client").await);
    broker.submit("first", Value::Null).await.unwrap();
    client.submit("connected", Value::Null).await.unwrap();
    let socket = folder.socket();
    let mut idle = Vec::new();
    for _ in 0..1_000 {
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        stream.write_all(hello(&socket).as_bytes()).await.unwrap();
        idle.push(stream);
    }
    assert!(client.submit("second", Value::Null).await.unwrap().is_new);
    assert!(broker.submit("third", Value::Null).await.unwrap().is_new);
    drop(idle);
    client.close().await.unwrap();
    broker.close().await.unwrap();
}
