//! Requests to a dashboard.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Address in the output of a dashboard.
pub(crate) fn address(printed: &str) -> String {
    let (_, rest) = printed.split_once("http://").unwrap();
    rest.split('/').next().unwrap().to_owned()
}

/// Sends one request and reads the whole answer.
pub(crate) fn ask(address: &str, request: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Body of an answer as JSON.
pub(crate) fn json(answer: &str) -> Value {
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}
