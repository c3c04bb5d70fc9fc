//! Spans for an OpenTelemetry collector on loopback.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::fixture::QueueFixture;

/// Collector that records every request, with its path.
fn collector() -> (SocketAddr, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, (sender, received)) = (listener.local_addr().unwrap(), channel());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let sender = sender.clone();
            std::thread::spawn(move || while take(stream.as_ref().unwrap(), &sender).is_some() {});
        }
    });
    (addr, received)
}

/// Reads one request of a connection, unless it has ended.
fn take(stream: &TcpStream, sender: &Sender<(String, Vec<u8>)>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        lines.push(line.trim().to_ascii_lowercase());
    }
    let length = lines.iter().find_map(|line| line.strip_prefix("content-length: "))?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    sender.send((lines[0].clone(), body)).ok()?;
    let mut stream = stream;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()
}

fn has(body: &[u8], text: &str) -> bool {
    body.windows(text.len()).any(|part| part == text.as_bytes())
}

#[test]
fn the_span_of_a_task_reaches_the_collector_before_the_worker_ends() {
    let fixture = QueueFixture::new();
    let id = fixture.run(&["submit", "-t", "greet"]);
    let (addr, received) = collector();
    let mut worker = fixture.command(&["worker", "--id", "ada", "--exec", "greet=cat", "--drain"]);
    worker.env_remove("LEASEHOLD_LOG");
    let status = worker.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{addr}")).output().unwrap().status;
    assert!(status.success());
    let sent: Vec<_> = received.try_iter().collect();
    let (path, body) = sent.iter().find(|(_, body)| has(body, &id)).expect("a span with the task's id");
    assert!(path.starts_with("post /v1/traces "), "{path}");
    for text in [
        "service.name",
        "leasehold",
        "task",
        "task.id",
        "task.type",
        "greet",
        "worker",
        "ada",
        "claimed",
        "completed",
    ] {
        assert!(has(body, text), "{text}");
    }
}

#[test]
fn an_unreachable_collector_does_not_delay_a_worker() {
    let fixture = QueueFixture::new();
    fixture.run(&["submit", "-t", "greet"]);
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut worker = fixture.command(&["worker", "--exec", "greet=cat", "--drain"]);
    let output = worker.env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{gone}")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
