//! Client of good and misbehaving peers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use leasehold_core::Kind;
use leasehold_core::piece::PieceCut;
use leasehold_http::sign::Secret;
use leasehold_http::testing::{ManualHost, RawConnection, within_timeout};
use leasehold_pieces::peer::{PeerClient, PeerFailure, PeerOptions};
use leasehold_pieces::serve::ServeOptions;
use leasehold_store::{Host, SystemHost};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::test_server::{TestServer, TestSource, artifact, present, secret};

fn client_on(addr: SocketAddr, secret: Option<Secret>, host: Arc<dyn Host>) -> PeerClient {
    PeerClient::new(&format!("http://{addr}"), secret, host, present(), PeerOptions::default()).unwrap()
}

fn client(addr: SocketAddr) -> PeerClient {
    client_on(addr, None, Arc::new(SystemHost))
}

/// Behaviour of a bad peer after its response.
#[derive(Clone, Copy)]
enum Then {
    Close,
    Stay,
}

/// A peer that sends the same response to every request.
struct BadPeer {
    addr: SocketAddr,
    /// Number of complete responses it has sent.
    said: watch::Sender<u64>,
    _running: JoinSet<()>,
}

impl BadPeer {
    async fn new(answer: impl Into<Vec<u8>>, then: Then) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let answer = Arc::new(answer.into());
        let said = watch::Sender::new(0);
        let (mut running, says) = (JoinSet::new(), said.clone());
        running.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(talk(RawConnection(stream), answer.clone(), says.clone(), then));
            }
        });
        Self { addr, said, _running: running }
    }
}

async fn talk(mut raw: RawConnection, answer: Arc<Vec<u8>>, said: watch::Sender<u64>, then: Then) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let Ok(byte) = raw.0.read_u8().await else { return };
        request.push(byte);
    }
    raw.send(&*answer).await;
    said.send_modify(|said| *said += 1);
    if matches!(then, Then::Stay) {
        raw.rest().await;
    }
}

/// Two pieces of 1,024 bytes.
fn cut() -> PieceCut {
    PieceCut::new(2_048, 1_024).unwrap()
}

fn answer(length: usize, body: usize) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
    [head.into_bytes(), vec![7; body]].concat()
}

async fn failure(bytes: impl Into<Vec<u8>>, then: Then) -> PeerFailure {
    let peer = BadPeer::new(bytes, then).await;
    within_timeout(client(peer.addr).pieces(&artifact(), &cut(), 0..2, &|_| ())).await.unwrap_err()
}

#[tokio::test]
async fn a_client_gets_the_pieces_of_a_server() {
    for secret in [None, Some(secret())] {
        let options = ServeOptions { secret: secret.clone(), ..ServeOptions::default() };
        let server = TestServer::new(TestSource::new(10_000, 1_024).without(3), options).await;
        let (client, cut) = (client_on(server.addr, secret, Arc::new(SystemHost)), server.source.cut);
        let map = client.have(&artifact(), &cut).await.unwrap().unwrap();
        assert_eq!((map.count(), map.has(3)), (9, false));
        let heard = AtomicU64::new(0);
        let on_bytes = |bytes| {
            heard.fetch_add(bytes, SeqCst);
        };
        assert_eq!(
            client.pieces(&artifact(), &cut, 4..10, &on_bytes).await.unwrap(),
            server.source.run(4..10)
        );
        assert_eq!(heard.load(SeqCst), 10_000 - 4 * 1_024);
        let missing = client.pieces(&artifact(), &cut, 2..4, &|_| ()).await.unwrap_err();
        assert_eq!(missing, PeerFailure::InvalidData("requested pieces not found".into()));
        let unknown = leasehold_core::ArtifactId::blake3([1; 32]);
        assert_eq!(client.have(&unknown, &cut).await.unwrap(), None);
        // All over one connection, including error responses.
        assert_eq!(server.counters.snapshot().connections, 1);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_client_with_another_secret_is_rejected() {
    let options = ServeOptions { secret: Some(secret()), ..ServeOptions::default() };
    let server = TestServer::new(TestSource::new(2_048, 1_024), options).await;
    for secret in [None, Some(Secret::new(b"another secret of peers").unwrap())] {
        let client = client_on(server.addr, secret, Arc::new(SystemHost));
        assert_eq!(client.have(&artifact(), &cut()).await.unwrap_err().kind(), Kind::Denied);
        let failure = client.pieces(&artifact(), &cut(), 0..1, &|_| ()).await.unwrap_err();
        let rejected = "request signature rejected; check the peer secret";
        assert_eq!(failure, PeerFailure::InvalidData(rejected.into()));
    }
    assert_eq!(server.asked(), 0);
}

#[tokio::test]
async fn a_client_stays_within_its_connection_limit() {
    let server = TestServer::new(TestSource::new(10_000, 1_024).shut(), ServeOptions::default()).await;
    let client = Arc::new(client(server.addr));
    let mut asking = JoinSet::new();
    for _ in 0..20 {
        let (client, cut) = (client.clone(), server.source.cut);
        asking.spawn(async move { client.pieces(&artifact(), &cut, 0..4, &|_| ()).await });
    }
    server.source.holds(4).await;
    server.source.open();
    for bytes in asking.join_all().await {
        assert_eq!(bytes.unwrap(), server.source.run(0..4));
    }
    assert_eq!((server.counters.snapshot().connections, server.source.readers_max()), (4, 4));
}

#[tokio::test]
async fn a_connection_that_the_server_closed_meanwhile_is_replaced() {
    let (host, options) = (ManualHost::new(), ServeOptions::default());
    let server = TestServer::on(TestSource::new(2_048, 1_024), options.clone(), Arc::new(host.clone())).await;
    let client = client(server.addr);
    for connections in 1..4 {
        assert!(client.have(&artifact(), &cut()).await.unwrap().unwrap().is_full());
        assert_eq!(server.counters.snapshot().connections, connections);
        host.asleep(1, options.idle_wait).await;
        host.advance(options.idle_wait);
    }
}

#[tokio::test]
async fn a_response_of_the_wrong_length_is_rejected_unread() {
    let heard = AtomicU64::new(0);
    let on_bytes = |bytes| {
        heard.fetch_add(bytes, SeqCst);
    };
    for (length, words) in [
        (2_047, "2047 bytes instead of 2048"),
        (2_049, "2049 bytes instead of 2048"),
        (0, "0 bytes instead of 2048"),
    ] {
        // The connection stays open, so a client that waits for more than the head would wait for ever.
        let peer = BadPeer::new(answer(length, 0), Then::Stay).await;
        let failure = client(peer.addr).pieces(&artifact(), &cut(), 0..2, &on_bytes).await.unwrap_err();
        assert_eq!(failure, PeerFailure::InvalidData(words.into()));
    }
    let endless = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n400\r\n";
    for endless in [endless, "HTTP/1.1 200 OK\r\n\r\n"] {
        let peer = BadPeer::new(endless, Then::Stay).await;
        let failure = client(peer.addr).pieces(&artifact(), &cut(), 0..2, &on_bytes).await.unwrap_err();
        assert_eq!(failure, PeerFailure::InvalidData("an unknown number of bytes instead of 2048".into()));
    }
    assert_eq!(heard.load(SeqCst), 0);
}

#[tokio::test]
async fn surplus_bytes_are_not_read_as_the_next_response() {
    let smuggled = [answer(2_048, 0), vec![9; 2_048]].concat();
    let peer = BadPeer::new([answer(2_048, 2_048), smuggled].concat(), Then::Stay).await;
    let client = client(peer.addr);
    for _ in 0..2 {
        assert_eq!(client.pieces(&artifact(), &cut(), 0..2, &|_| ()).await.unwrap(), vec![7; 2_048]);
    }
    assert_eq!(*peer.said.borrow(), 2);
}

#[tokio::test]
async fn a_connection_that_breaks_is_the_networks_fault() {
    assert_eq!(failure("", Then::Close).await, PeerFailure::NetworkError);
    assert_eq!(failure("HTTP/1.1 200 OK\r\ncontent-le", Then::Close).await, PeerFailure::NetworkError);
    assert_eq!(failure(answer(2_048, 0), Then::Close).await, PeerFailure::NetworkError);
    assert_eq!(failure(answer(2_048, 2_047), Then::Close).await, PeerFailure::NetworkError);
    let addr = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let closed = client(addr);
    assert_eq!(closed.pieces(&artifact(), &cut(), 0..1, &|_| ()).await, Err(PeerFailure::NetworkError));
    assert_eq!(closed.have(&artifact(), &cut()).await.unwrap_err().kind(), Kind::Unavailable);
}

#[tokio::test]
async fn error_responses_are_classified() {
    let busy = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
    assert_eq!(failure(busy, Then::Stay).await, PeerFailure::NetworkError);
    for (status, words) in [
        ("404 Not Found", "requested pieces not found"),
        ("500 Internal Server Error", "unexpected status 500 Internal Server Error"),
        ("206 Partial Content", "unexpected status 206 Partial Content"),
        ("302 Found\r\nlocation: http://127.0.0.1:1/", "unexpected status 302 Found"),
    ] {
        let failed = failure(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"), Then::Stay).await;
        assert_eq!(failed, PeerFailure::InvalidData(words.into()));
    }
    for garbage in [
        "\0\u{1}\u{2} hello there, this is no HTTP\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "SSH-2.0-OpenSSH_9.6\r\n",
    ] {
        let PeerFailure::InvalidData(words) = failure(garbage, Then::Stay).await else { panic!("{garbage}") };
        assert!(words.starts_with("invalid HTTP response"), "{words}");
    }
}

#[tokio::test]
async fn a_peer_that_sends_nothing_times_out() {
    let wait = PeerOptions::default().stall_timeout;
    for (said, bytes) in [
        (Vec::new(), 0),
        (b"HTTP/1.1 200 OK\r\n".to_vec(), 0),
        (answer(2_048, 0), 0),
        (answer(2_048, 100), 100),
    ] {
        let (peer, host) = (BadPeer::new(said, Then::Stay).await, ManualHost::new());
        let client = client_on(peer.addr, None, Arc::new(host.clone()));
        let heard = watch::Sender::new(0);
        let on_bytes = |bytes| heard.send_modify(|heard| *heard += bytes);
        let time = async {
            peer.said.subscribe().wait_for(|said| *said == 1).await.unwrap();
            heard.subscribe().wait_for(|heard| *heard == bytes).await.unwrap();
            loop {
                host.asleep(1, wait).await;
                host.advance(Duration::from_secs(1));
                tokio::task::yield_now().await;
            }
        };
        let (artifact, cut) = (artifact(), cut());
        let failed = tokio::select! {
            failed = within_timeout(client.pieces(&artifact, &cut, 0..2, &on_bytes)) => failed,
            () = time => unreachable!(),
        };
        assert_eq!(failed, Err(PeerFailure::Timeout));
        assert_eq!(*heard.borrow(), bytes);
    }
}

#[tokio::test]
async fn a_wrong_piece_map_is_rejected() {
    let said = |size: &str, piece_bytes: &str, map: &[u8]| {
        let head = format!("HTTP/1.1 200 OK\r\n{size}{piece_bytes}content-length: {}\r\n\r\n", map.len());
        [head.as_bytes(), map].concat()
    };
    let (size, piece) = ("x-leasehold-size: 2048\r\n", "x-leasehold-piece-bytes: 1024\r\n");
    for (bytes, words) in [
        (
            said("x-leasehold-size: 2049\r\n", piece, &[3]),
            "2049 bytes in pieces of 1024 instead of 2048 in pieces of 1024",
        ),
        (said(size, "x-leasehold-piece-bytes: 2048\r\n", &[3]), "2048 bytes in pieces of 2048"),
        (said("", piece, &[3]), "an unknown number of bytes"),
        (said(size, "x-leasehold-piece-bytes: many\r\n", &[3]), "in pieces of an unknown number"),
        (said(size, piece, &[]), "a map with 0 bytes instead of 1"),
        (said(size, piece, &[3, 0]), "a map with 2 bytes instead of 1"),
        (said(size, piece, &[7]), "piece map has more than 2 pieces"),
    ] {
        let peer = BadPeer::new(bytes, Then::Stay).await;
        let error = client(peer.addr).have(&artifact(), &cut()).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(
            error.to_string().contains("map does not match the manifest")
                && error.to_string().contains(words),
            "{error}"
        );
    }
    let honest = BadPeer::new(said(size, piece, &[2]), Then::Stay).await;
    assert_eq!(
        client(honest.addr).have(&artifact(), &cut()).await.unwrap().unwrap().iter().collect::<Vec<_>>(),
        [1]
    );
}

#[test]
fn only_http_host_and_port_is_a_peer_address() {
    let read = |address: &str| {
        PeerClient::new(address, None, Arc::new(SystemHost), present(), PeerOptions::default()).map(drop)
    };
    for right in ["http://10.0.0.7:7070", "http://node-3:7070/", "http://[::1]:7070"] {
        assert!(read(right).is_ok(), "{right}");
    }
    for wrong in [
        "",
        "10.0.0.7:7070",
        "https://a:1",
        "http://",
        "http://a:1/x",
        "http://a:1/?x",
        "http://u:p@a:1",
        "ftp://a",
    ] {
        assert_eq!(read(wrong).unwrap_err().kind(), Kind::Invalid, "{wrong}");
    }
}
