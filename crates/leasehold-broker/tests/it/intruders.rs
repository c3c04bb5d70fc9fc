//! Connections of the network that are not those of a client, to a transport without a queue: the time of its host stands
//! still, so only what a test does ends a connection.

use leasehold_broker::testing::{Impostor, TlsProbe, connect_from};
use leasehold_broker::{BrokerConnections, NetworkListen};
use leasehold_core::{HexName, Kind, keys};
use leasehold_http::testing::{ManualHost, within_timeout};
use leasehold_queue::{
    AcceptedClient, BrokerAddress, BrokerListener, BrokerTransport, ClientAccess, NetworkAddress,
};
use leasehold_store::{Client, MemoryStore, Purpose};
use serde_json::Value;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::bucket::{SharedBucket, addr, loopback};

/// Time that an intruder has for its handshake.
const HELLO_WAIT: Duration = Duration::from_secs(10);

/// Listener of a broker that has taken the lease.
struct TestListener {
    listener: BrokerListener,
    network: NetworkAddress,
    instance: HexName,
    store: Client,
    host: ManualHost,
    _directory: TempDir,
}

impl TestListener {
    async fn new() -> Self {
        let host = ManualHost::new();
        let memory = MemoryStore::new(&(Arc::new(host.clone()) as _));
        Self::over(Client::new(Arc::new(memory), Arc::new(host.clone())), host).await
    }

    async fn over(store: Client, host: ManualHost) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let transport = BrokerConnections::new(directory.path().to_owned(), Some(loopback()));
        let instance = HexName::from_random(7);
        let prepared = transport.prepare(&store, &instance).unwrap();
        let network = prepared.address.network.clone().unwrap();
        let listener = (prepared.listen)().await.unwrap();
        Self { listener, network, instance, store, host, _directory: directory }
    }

    async fn probe(&self) -> TlsProbe {
        // The listener's thread may be about to listen.
        loop {
            match TlsProbe::connect(addr(&self.network), &self.network.fingerprint).await {
                Ok(probe) => return probe,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn hello(&self) -> String {
        hello(&self.instance, std::str::from_utf8(self.network.secret.expose()).unwrap())
    }

    /// A client that has sent its first line and says that it is registered.
    async fn registered_probe(&self) -> (TlsProbe, String) {
        let mut probe = self.probe().await;
        probe.send(&self.hello()).await.unwrap();
        assert!(probe.line().await.unwrap().contains(self.instance.as_str()));
        probe.send("{\"registered\":true}\n").await.unwrap();
        let permission = probe.line().await.unwrap();
        (probe, permission)
    }

    async fn accepted(&mut self) -> AcceptedClient {
        within_timeout(self.listener.accepted.recv()).await.unwrap()
    }

    /// Checks that clients are served.
    async fn assert_serves(&mut self) {
        let mut probe = self.probe().await;
        self.store
            .put_always(Purpose::Admin, &keys::journal_client(&probe.fingerprint), bytes::Bytes::new())
            .await
            .unwrap();
        probe.send(&format!("{}{{\"registered\":true}}\n", self.hello())).await.unwrap();
        assert!(probe.line().await.unwrap().contains(self.instance.as_str()));
        assert_eq!(probe.line().await.unwrap(), "{\"may_change\":true}");
        let mut client = self.accepted().await;
        probe.send("to the broker\n").await.unwrap();
        assert_eq!(within_timeout(client.channel.receiver.recv()).await.unwrap(), "to the broker");
        client.channel.sender.send("to the client\n".into()).await.unwrap();
        assert_eq!(probe.line().await.unwrap(), "to the client");
    }
}

fn hello(instance: &HexName, secret: &str) -> String {
    format!("{{\"leasehold_broker\":1,\"instance\":\"{instance}\",\"secret\":\"{secret}\"}}\n")
}

/// Reads until the broker disconnects; returns what it has sent.
async fn until_disconnected(mut stream: TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    let _ = within_timeout(stream.read_to_end(&mut read)).await;
    read
}

#[tokio::test]
async fn a_client_without_the_secret_is_refused_and_learns_nothing() {
    let mut listener = TestListener::new().await;
    let instance = &listener.instance;
    let first_lines = [
        format!("{{\"leasehold_broker\":1,\"instance\":\"{instance}\"}}\n"),
        hello(instance, ""),
        hello(instance, &"0".repeat(32)),
        hello(&HexName::from_random(8), &"0".repeat(32)),
    ];
    for first in first_lines {
        let mut probe = listener.probe().await;
        probe.send(&first).await.unwrap();
        let refused = probe.line().await.unwrap();
        let expected = "{\"leasehold_broker\":1,\"refused\":\"the first line does not have the secret of the lease; read the lease again\"}";
        assert_eq!(refused, expected);
        assert_eq!(probe.line().await, None, "it is disconnected");
    }
    listener.assert_serves().await;
}

#[tokio::test]
async fn a_client_that_means_another_broker_is_refused() {
    let mut listener = TestListener::new().await;
    let mut probe = listener.probe().await;
    let secret = std::str::from_utf8(listener.network.secret.expose()).unwrap();
    probe.send(&hello(&HexName::from_random(8), secret)).await.unwrap();
    assert!(probe.line().await.unwrap().contains("the lease names another broker"));
    assert_eq!(probe.line().await, None);
    listener.assert_serves().await;
}

#[tokio::test]
async fn a_client_that_has_not_registered_its_key_may_only_read() {
    let mut listener = TestListener::new().await;
    let (_probe, permission) = listener.registered_probe().await;
    assert_eq!(permission, "{\"may_change\":false}");
    assert_eq!(listener.accepted().await.access, ClientAccess::ReadOnly);
    listener.assert_serves().await;
}

#[tokio::test]
async fn a_key_that_another_process_has_registered_is_of_no_use() {
    let mut listener = TestListener::new().await;
    let mut other = listener.probe().await;
    let key = keys::journal_client(&other.fingerprint);
    listener.store.put_always(Purpose::Admin, &key, bytes::Bytes::new()).await.unwrap();
    let (_intruder, permission) = listener.registered_probe().await;
    assert_eq!(permission, "{\"may_change\":false}");
    assert_eq!(listener.accepted().await.access, ClientAccess::ReadOnly);
    // The other process is not affected.
    other.send(&listener.hello()).await.unwrap();
    other.line().await.unwrap();
    other.send("{\"registered\":true}\n").await.unwrap();
    assert_eq!(other.line().await.unwrap(), "{\"may_change\":true}");
    assert_eq!(listener.accepted().await.access, ClientAccess::Full);
    assert!(listener.store.get(Purpose::Admin, &key).await.unwrap().is_none(), "it is used once");
}

#[tokio::test]
async fn a_client_that_may_only_read_sends_short_lines() {
    let mut listener = TestListener::new().await;
    let (mut probe, _) = listener.registered_probe().await;
    let mut client = listener.accepted().await;
    let long = "x".repeat(60_000) + "\n";
    probe.send(&long).await.unwrap();
    assert_eq!(within_timeout(client.channel.receiver.recv()).await.unwrap().len(), 60_000);
    let _ = probe.send(&"x".repeat(200_000)).await;
    assert!(within_timeout(client.channel.receiver.recv()).await.is_none(), "it is disconnected");
    listener.assert_serves().await;
}

#[tokio::test]
async fn a_client_does_not_send_the_secret_to_a_process_without_the_key_of_the_broker() {
    let listener = TestListener::new().await;
    let impostor = Impostor::new();
    let (tcp, transport) = fake_broker().await;
    let mut address = BrokerAddress { network: Some(listener.network.clone()), ..Default::default() };
    address.network.as_mut().unwrap().addresses = vec![tcp.local_addr().unwrap().to_string()];
    let connecting = transport.connect(&listener.store, &address, &listener.instance);
    let accepting = async { impostor.accept(tcp.accept().await.unwrap().0).await };
    let (connected, received) = within_timeout(futures::future::join(connecting, accepting)).await;
    let error = connected.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(received.is_err(), "the client has sent {received:?}");
    // The same process with the key in the lease receives it: the check can fail.
    address.network.as_mut().unwrap().fingerprint = impostor.fingerprint().to_owned();
    let connecting = transport.connect(&listener.store, &address, &listener.instance);
    let accepting = async { impostor.accept(tcp.accept().await.unwrap().0).await };
    let (_, received) = within_timeout(futures::future::join(connecting, accepting)).await;
    assert_eq!(received.unwrap(), listener.hello());
}

#[tokio::test]
async fn a_broker_that_does_not_answer_is_tried_again_half_a_minute_later() {
    let listener = TestListener::new().await;
    drop(listener.probe().await);
    // The kernel accepts connections, and no process reads them.
    let (tcp, transport) = fake_broker().await;
    let mut network = listener.network.clone();
    network.addresses = vec![tcp.local_addr().unwrap().to_string()];
    network.fingerprint = Impostor::new().fingerprint().to_owned();
    let address = BrokerAddress { network: Some(network), ..Default::default() };
    let wait = Duration::from_secs(4);
    let connect = || transport.connect(&listener.store, &address, &listener.instance);
    let passing = async {
        listener.host.asleep(1, wait).await;
        listener.host.advance(wait);
    };
    let (connected, ()) = within_timeout(futures::future::join(connect(), passing)).await;
    let error = connected.unwrap_err();
    assert!(error.to_string().contains("sent no handshake line within 4s"), "{error}");
    listener.host.advance(Duration::from_secs(29));
    let error = within_timeout(connect()).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("did not answer over TLS; the next attempt is made 30s after the last one"),
        "{error}"
    );
    // Another broker has another key.
    let mut other = address.clone();
    other.network = Some(listener.network.clone());
    within_timeout(transport.connect(&listener.store, &other, &listener.instance)).await.unwrap();
    listener.host.advance(Duration::from_secs(1));
    let passing = async {
        listener.host.asleep(1, wait).await;
        listener.host.advance(wait);
    };
    let (connected, ()) = within_timeout(futures::future::join(connect(), passing)).await;
    let error = connected.unwrap_err();
    assert!(error.to_string().contains("sent no handshake line within 4s"), "{error}");
}

#[expect(clippy::disallowed_methods, reason = "this process is not the broker")]
async fn fake_broker() -> (TcpListener, BrokerConnections) {
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    (tcp, BrokerConnections::new("unused".into(), None))
}

#[tokio::test]
async fn bytes_that_are_no_handshake_end_their_own_connection_only() {
    let mut listener = TestListener::new().await;
    listener.assert_serves().await;
    let garbage: [Vec<u8>; 5] = [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        listener.hello().into_bytes(),
        vec![0; 100_000],
        // A handshake record that announces more than it has.
        [vec![22, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc], vec![0; 70_000]].concat(),
        b"\x15\x03\x01\x00\x02\x02\x28".to_vec(),
    ];
    for bytes in garbage {
        let mut stream = TcpStream::connect(addr(&listener.network)).await.unwrap();
        // It may be disconnected before all of it is written.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let answer = until_disconnected(stream).await;
        assert!(answer.len() < 100, "an alert at most: {answer:?}");
    }
    listener.assert_serves().await;
}

#[tokio::test]
async fn a_first_line_that_does_not_end_is_refused_before_it_is_held() {
    let mut listener = TestListener::new().await;
    let mut probe = listener.probe().await;
    let mut sent = 0;
    while probe.send(&"x".repeat(65_536)).await.is_ok() {
        sent += 65_536;
        assert!(sent <= 64 * 1_024 * 1_024, "the broker reads on");
    }
    assert_eq!(probe.line().await, None);
    listener.assert_serves().await;
}

#[tokio::test]
async fn clients_that_are_slow_to_greet_are_disconnected() {
    let mut listener = TestListener::new().await;
    listener.assert_serves().await;
    // Nothing, a part of a handshake, and a handshake without a first line.
    let silent = TcpStream::connect(addr(&listener.network)).await.unwrap();
    let mut partial = TcpStream::connect(addr(&listener.network)).await.unwrap();
    partial.write_all(&[22, 3, 1]).await.unwrap();
    let mut greeted = listener.probe().await;
    listener.host.asleep(3, HELLO_WAIT).await;
    listener.host.advance(HELLO_WAIT);
    assert_eq!(until_disconnected(silent).await, b"");
    assert_eq!(until_disconnected(partial).await, b"");
    assert_eq!(greeted.line().await, None);
    listener.assert_serves().await;
}

#[tokio::test]
async fn a_client_that_falls_silent_is_disconnected() {
    let mut listener = TestListener::new().await;
    let (mut probe, _) = listener.registered_probe().await;
    let mut client = listener.accepted().await;
    let silence = Duration::from_secs(15);
    listener.host.asleep(1, silence).await;
    listener.host.advance(Duration::from_secs(14));
    probe.send("\n").await.unwrap();
    assert_eq!(within_timeout(client.channel.receiver.recv()).await.unwrap(), "");
    listener.host.asleep(1, silence).await;
    listener.host.advance(silence);
    assert!(within_timeout(client.channel.receiver.recv()).await.is_none());
    assert_eq!(probe.line().await, None);
    listener.assert_serves().await;
}

#[tokio::test]
async fn a_client_that_reads_no_answers_is_disconnected() {
    let mut listener = TestListener::new().await;
    let (mut probe, _) = listener.registered_probe().await;
    let mut client = listener.accepted().await;
    let answer = bytes::Bytes::from("x".repeat(1_024 * 1_024) + "\n");
    while client.channel.sender.try_send(answer.clone()).is_ok() {}
    // It shows all the time that it runs.
    for _ in 0..60 {
        let _ = probe.send("\n").await;
        match within_timeout(client.channel.receiver.recv()).await {
            Some(line) => assert_eq!(line, ""),
            None => return listener.assert_serves().await,
        }
        listener.host.advance(Duration::from_secs(1));
    }
    panic!("the broker waits on");
}

#[tokio::test]
async fn a_thousand_connections_of_one_host_leave_room_for_others() {
    let mut listener = TestListener::new().await;
    listener.assert_serves().await;
    let mut held = Vec::new();
    for _ in 0..1_000 {
        held.push(connect_from([127, 0, 0, 3], addr(&listener.network)).await.unwrap());
    }
    // The other half is refused, and the first half waits for its handshakes.
    listener.host.asleep(512, HELLO_WAIT).await;
    for stream in held.drain(512..) {
        assert_eq!(until_disconnected(stream).await, b"");
    }
    listener.assert_serves().await;
    listener.host.advance(HELLO_WAIT);
    for stream in held {
        assert_eq!(until_disconnected(stream).await, b"");
    }
    let stream = connect_from([127, 0, 0, 3], addr(&listener.network)).await.unwrap();
    listener.host.asleep(1, HELLO_WAIT).await;
    drop(stream);
}

#[tokio::test]
async fn a_port_scan_does_no_harm() {
    let mut listener = TestListener::new().await;
    listener.assert_serves().await;
    for number in 0..300 {
        let stream = connect_from([127, 0, 0, 4], addr(&listener.network)).await.unwrap();
        if number % 2 == 0 {
            // As a scanner does, with a reset instead of an end.
            stream.set_zero_linger().unwrap();
        }
        drop(stream);
    }
    listener.assert_serves().await;
}

#[tokio::test]
async fn a_listener_that_is_dropped_closes_its_port_and_its_connections() {
    let mut listener = TestListener::new().await;
    let (mut probe, _) = listener.registered_probe().await;
    let client = listener.accepted().await;
    let waiting = TcpStream::connect(addr(&listener.network)).await.unwrap();
    let addr = addr(&listener.network);
    let BrokerListener { accepted, work } = listener.listener;
    drop(accepted);
    // Only the connection in its handshake ends at once; the other one when the broker has sent its last answer.
    assert_eq!(until_disconnected(waiting).await, b"");
    client.channel.sender.send("last answer\n".into()).await.unwrap();
    drop(client);
    assert_eq!(probe.line().await.unwrap(), "last answer");
    assert_eq!(probe.line().await, None);
    within_timeout(work).await;
    assert_eq!(TcpStream::connect(addr).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn keys_that_failed_connections_have_left_are_deleted_after_a_day() {
    let host = ManualHost::new();
    let memory = MemoryStore::new(&(Arc::new(host.clone()) as _));
    let store = Client::new(Arc::new(memory), Arc::new(host.clone()));
    let put = |name| {
        let (store, key) = (&store, keys::journal_client(name));
        async move { store.put_always(Purpose::Admin, &key, bytes::Bytes::new()).await.unwrap() }
    };
    put("old").await;
    host.advance(Duration::from_hours(25));
    put("young").await;
    let mut listener = TestListener::over(store.clone(), host).await;
    listener.assert_serves().await;
    while store.get(Purpose::Admin, &keys::journal_client("old")).await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    assert!(store.get(Purpose::Admin, &keys::journal_client("young")).await.unwrap().is_some());
}

#[tokio::test]
async fn a_port_that_is_taken_is_bound_when_it_is_free() {
    #[expect(clippy::disallowed_methods, reason = "another program has the port")]
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let listen = NetworkListen::new(other.local_addr().unwrap(), None).unwrap();
    let bucket = SharedBucket::new();
    let broker = bucket.broker(listen).await;
    drop(other);
    let client = bucket.closed_host("client").await;
    // Until the broker has tried again, the client is not connected.
    loop {
        match client.submit("second", Value::Null).await {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), Kind::Unavailable, "{error}"),
        }
    }
    assert_eq!(broker.stats().await.unwrap().due, 2);
    client.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test]
async fn no_log_message_and_no_debug_output_has_the_secret() {
    let logs = capture_logs();
    let bucket = SharedBucket::new();
    let broker = bucket.broker(loopback()).await;
    let client = bucket.closed_host("client").await;
    client.submit("second", Value::Null).await.unwrap();
    let address = bucket.address().await;
    let network = address.network.clone().unwrap();
    let secret = std::str::from_utf8(network.secret.expose()).unwrap().to_owned();
    assert!(secret.len() == 32 && bucket.lease().await.contains(&secret));
    // An intruder, and one with the secret in the wrong place.
    let mut probe = TlsProbe::connect(addr(&network), &network.fingerprint).await.unwrap();
    probe.send(&format!("{{\"leasehold_broker\":\"{secret}\"}}\n")).await.unwrap();
    let refused = probe.line().await.unwrap();
    assert!(refused.contains("is not a leasehold process") && !refused.contains(&secret), "{refused}");
    let lease: leasehold_core::Lease = serde_json::from_str(&bucket.lease().await).unwrap();
    // A queue prints its store, and a store in memory its objects; a bucket has none to print.
    let printed = format!("{address:?}{network:?}{lease:?}{:?}", network.secret);
    client.close().await.unwrap();
    broker.close().await.unwrap();
    let logged = String::from_utf8(logs.lock().unwrap().clone()).unwrap();
    assert!(logged.contains("broker listens for other hosts"), "logs are captured");
    assert!(!logged.contains(&secret), "a log message has the secret");
    assert!(!printed.contains(&secret), "{printed}");
}

/// Captures everything that this process logs from now on, down to the finest level.
fn capture_logs() -> Arc<Mutex<Vec<u8>>> {
    static LOGS: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();
    struct Capture(Arc<Mutex<Vec<u8>>>);
    impl Write for Capture {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let logs = LOGS.get_or_init(|| {
        let logs = Arc::<Mutex<Vec<u8>>>::default();
        let written = logs.clone();
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_writer(move || Capture(written.clone()))
            .init();
        logs
    });
    logs.clone()
}
