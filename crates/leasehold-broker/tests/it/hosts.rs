//! Processes on several hosts: those without the socket of the broker connect over TLS.

use leasehold_broker::{BrokerConnections, NetworkListen};
use leasehold_core::{HexName, Kind, Status};
use leasehold_queue::BrokerTransport;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::bucket::{SharedBucket, loopback};
use crate::sharing::start_worker;

#[tokio::test]
async fn a_worker_and_a_producer_on_other_hosts_use_the_broker() {
    let bucket = SharedBucket::new();
    let broker = bucket.broker(loopback()).await;
    let (working, waiting) = (bucket.closed_host("w").await, bucket.closed_host("p").await);
    let (shutdown, worker) = start_worker(&working, "w1");
    let submitted = waiting.submit("double", 21).await.unwrap();
    let task = waiting.wait(&submitted.id, Some(Duration::from_mins(1))).await.unwrap();
    assert_eq!(task.status(), Status::Completed);
    assert_eq!(broker.get(&submitted.id).await.unwrap(), task);
    assert!(bucket.lease().await.contains("\"epoch\":1,"), "the first broker still serves");
    assert_eq!(bucket.registered().await, 0, "the broker deletes the keys that it has read");
    shutdown.drain();
    assert_eq!(worker.await.unwrap(), 1);
    for queue in [waiting, working, broker] {
        queue.close().await.unwrap();
    }
}

#[tokio::test]
async fn many_requests_of_another_host_are_answered() {
    let bucket = SharedBucket::new();
    let broker = bucket.broker(loopback()).await;
    let client = bucket.closed_host("client").await;
    // More than may be open at once, and answers far above what one TLS record carries.
    let submits = (0..3_000).map(|number| client.submit("many", format!("{number:0>1000}")).into_future());
    assert!(futures::future::join_all(submits).await.iter().all(Result::is_ok));
    let listed: Vec<_> =
        futures::TryStreamExt::try_collect(client.list(leasehold_queue::Filter::default())).await.unwrap();
    assert_eq!(listed.len(), 3_001);
    assert_eq!(broker.stats().await.unwrap().due, 3_001);
    client.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test]
async fn a_process_that_cannot_write_to_the_bucket_reads_from_the_broker_and_changes_nothing() {
    let bucket = SharedBucket::new();
    let broker = bucket.broker(loopback()).await;
    let submitted = broker.submit("second", Value::Null).await.unwrap();
    let reader = bucket.reading_host("reader").await;
    assert_eq!(reader.get(&submitted.id).await.unwrap(), broker.get(&submitted.id).await.unwrap());
    let refused = [
        reader.submit("third", Value::Null).await.unwrap_err(),
        reader.cancel(&submitted.id).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.to_string().contains("`journal/0/clients/`; give it write access"), "{error}");
    }
    assert_eq!(reader.stats().await.unwrap().due, 2);
    assert_eq!(broker.get(&submitted.id).await.unwrap().status(), Status::Pending);
    reader.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test]
async fn a_process_on_another_host_becomes_the_broker_when_the_broker_closes() {
    let bucket = SharedBucket::new();
    let broker = bucket.broker(loopback()).await;
    let (next, client) = (bucket.host("next", loopback()).await, bucket.closed_host("client").await);
    next.submit("second", Value::Null).await.unwrap();
    client.submit("third", Value::Null).await.unwrap();
    let before = bucket.address().await.network.unwrap();
    broker.close().await.unwrap();
    next.submit("fourth", Value::Null).await.unwrap();
    bucket.hide_socket().await;
    client.submit("fifth", Value::Null).await.unwrap();
    // The roles are exchanged.
    assert_eq!(broker.stats().await.unwrap().due, 5);
    let after = bucket.address().await.network.unwrap();
    assert_ne!((before.secret, before.fingerprint), (after.secret, after.fingerprint));
    for queue in [client, broker, next] {
        queue.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_broker_that_does_not_listen_leaves_no_address_of_an_earlier_one() {
    let bucket = SharedBucket::new();
    bucket.broker(loopback()).await.close().await.unwrap();
    assert!(bucket.address().await.network.is_some());
    let silent = bucket.closed_host("silent").await;
    silent.submit("second", Value::Null).await.unwrap();
    assert_eq!(bucket.address().await.network, None);
    silent.close().await.unwrap();
    let alone = bucket.alone("alone").await;
    alone.submit("third", Value::Null).await.unwrap();
    assert_eq!(bucket.address_if_any().await, None);
    alone.close().await.unwrap();
}

#[tokio::test]
async fn a_socket_of_another_boot_is_not_used() {
    let bucket = SharedBucket::new();
    let broker = bucket.host("broker", loopback()).await;
    broker.submit("first", Value::Null).await.unwrap();
    let mut address = bucket.address().await;
    assert!(address.boot.is_some());
    let transport = BrokerConnections::new(bucket.directory(), None);
    // As if the socket were in a directory that hosts share: the connection would be refused, which is no evidence.
    (address.boot, address.network) = (Some("another".to_owned()), None);
    let connected = transport.connect(&bucket.client(), &address, &HexName::from_random(1)).await;
    assert_eq!(connected.unwrap_err().kind(), Kind::Unavailable);
    broker.close().await.unwrap();
}

#[tokio::test]
async fn a_refused_connection_of_the_network_is_no_evidence_that_a_broker_has_ended() {
    let bucket = SharedBucket::new();
    bucket.broker(loopback()).await.close().await.unwrap();
    // The address of a broker that no longer listens.
    let address = bucket.address().await;
    let transport = BrokerConnections::new(bucket.directory(), None);
    let error = transport.connect(&bucket.client(), &address, &HexName::from_random(1)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains("failed to connect to the broker at 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn a_connection_that_is_cut_before_the_answer_leaves_one_task() {
    let bucket = SharedBucket::new();
    let line = Line::new().await;
    let broker = bucket.broker(line.listen()).await;
    let client = bucket.closed_host("client").await;
    client.submit("connected", Value::Null).await.unwrap();
    line.cut_next_answer();
    let submitted = client.submit("cut", Value::Null).await.unwrap();
    assert!(line.was_cut(), "the first connection ended before its answer");
    let stats = broker.stats().await.unwrap();
    assert_eq!(stats.due, 3, "first, connected, cut");
    assert_eq!(broker.get(&submitted.id).await.unwrap(), client.get(&submitted.id).await.unwrap());
    client.close().await.unwrap();
    broker.close().await.unwrap();
}

#[tokio::test]
async fn what_was_recorded_on_a_line_has_no_effect_when_it_is_sent_again() {
    let bucket = SharedBucket::new();
    let line = Line::new().await;
    let broker = bucket.broker(line.listen()).await;
    let client = bucket.closed_host("client").await;
    client.submit("recorded", Value::Null).await.unwrap();
    client.close().await.unwrap();
    let recorded = line.recorded();
    assert!(recorded.len() > 500, "a handshake and a submit");
    let secret = bucket.address().await.network.unwrap().secret;
    assert!(!recorded.windows(secret.expose().len()).any(|part| part == secret.expose()));
    let mut replay = TcpStream::connect(line.broker).await.unwrap();
    let _ = replay.write_all(&recorded).await;
    let _ = replay.read_to_end(&mut Vec::new()).await;
    assert_eq!(broker.stats().await.unwrap().due, 2, "first, recorded");
    broker.close().await.unwrap();
}

/// Network between a broker and its clients: it passes and records bytes.
struct Line {
    /// Address that clients use, and that of the broker.
    front: SocketAddr,
    broker: SocketAddr,
    state: Arc<LineState>,
}

#[derive(Default)]
struct LineState {
    recorded: Mutex<Vec<u8>>,
    cut: watch::Sender<Cut>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Cut {
    #[default]
    Not,
    /// With the next bytes of the broker.
    Next,
    Done,
}

#[expect(clippy::disallowed_methods, reason = "a network is made of listeners and tasks")]
impl Line {
    async fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let front = listener.local_addr().unwrap();
        // Another address of this machine with the same port.
        let broker = SocketAddr::from(([127, 0, 0, 2], front.port()));
        let state = Arc::<LineState>::default();
        let passing = state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let passing = passing.clone();
                tokio::spawn(async move {
                    let Ok(broker) = TcpStream::connect(broker).await else { return };
                    passing.pass(client, broker).await;
                });
            }
        });
        Self { front, broker, state }
    }

    fn listen(&self) -> NetworkListen {
        NetworkListen::new(self.broker, Some(self.front)).unwrap()
    }

    fn cut_next_answer(&self) {
        self.state.cut.send_replace(Cut::Next);
    }

    fn was_cut(&self) -> bool {
        *self.state.cut.borrow() == Cut::Done
    }

    fn recorded(&self) -> Vec<u8> {
        self.state.recorded.lock().unwrap().clone()
    }
}

impl LineState {
    async fn pass(&self, mut client: TcpStream, mut broker: TcpStream) {
        let (mut sent, mut answered) = (vec![0; 16_384], vec![0; 16_384]);
        loop {
            tokio::select! {
                read = client.read(&mut sent) => match read {
                    Ok(bytes @ 1..) => {
                        self.recorded.lock().unwrap().extend_from_slice(&sent[..bytes]);
                        if broker.write_all(&sent[..bytes]).await.is_err() { return }
                    }
                    _ => return,
                },
                read = broker.read(&mut answered) => match read {
                    Ok(bytes @ 1..) => {
                        if *self.cut.borrow() == Cut::Next {
                            self.cut.send_replace(Cut::Done);
                            return;
                        }
                        if client.write_all(&answered[..bytes]).await.is_err() { return }
                    }
                    _ => return,
                },
            }
        }
    }
}
