//! First lines of either end of a connection.
//!
//! ```text
//! client   {"leasehold_broker":1,"instance":"…"}          the broker that the lease names; over TLS with its `secret`
//! broker   {"leasehold_broker":1,"instance":"…"}          its own id; the client disconnects if it is another
//! ```
//!
//! More lines are exchanged over the network (`network`).

#[cfg(feature = "network")]
pub(crate) mod network;

use bytes::Bytes;
use leasehold_core::{Error, HexName, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::transport::LeaseSecret;

/// Version of the lines between a broker and its clients.
const VERSION: u32 = 1;

/// Maximum length of a first line.
pub(crate) const HELLO_BYTES_MAX: usize = 1_024;

/// First line. No `Debug`: it may have the secret.
#[derive(Serialize, Deserialize)]
struct Hello {
    leasehold_broker: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance: Option<HexName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<LeaseSecret>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// Returns the first line of a process that names the broker `instance`; over the network with the secret.
pub(crate) fn hello(instance: &HexName, secret: Option<&LeaseSecret>) -> Bytes {
    let (instance, secret) = (Some(instance.clone()), secret.cloned());
    line(&Hello { leasehold_broker: VERSION, instance, secret, refused: None })
}

/// Checks the first line of the other end.
pub(crate) fn check(line: &[u8], instance: &HexName) -> Result<()> {
    let hello = parse::<Hello>(line)?;
    check_version(&hello)?;
    if let Some(why) = &hello.refused {
        return Err(refused(why));
    }
    check_instance(&hello, instance)
}

/// Parses a line of the handshake.
pub(crate) fn parse<T: for<'a> Deserialize<'a>>(line: &[u8]) -> Result<T> {
    // The error of the parser could quote a part of the line.
    serde_json::from_slice(line).map_err(|_| {
        Error::new(Kind::Unavailable, "the other end of the connection is not a leasehold process")
    })
}

/// Returns a line of the handshake.
pub(crate) fn line(content: &impl Serialize) -> Bytes {
    let mut line = serde_json::to_vec(content).expect("it has no keys that are not text");
    line.push(b'\n');
    line.into()
}

fn refused(why: &str) -> Error {
    Error::new(Kind::Unavailable, format!("the broker has refused the connection: {why}"))
}

fn check_version(hello: &Hello) -> Result<()> {
    if hello.leasehold_broker == VERSION {
        return Ok(());
    }
    let (theirs, ours) = (hello.leasehold_broker, VERSION);
    let message = format!(
        "the other process has version {theirs} of the broker's protocol, this one has {ours}; \
         run the same version of leasehold in all processes of a queue"
    );
    Err(Error::new(Kind::Unavailable, message))
}

fn check_instance(hello: &Hello, instance: &HexName) -> Result<()> {
    if hello.instance.as_ref() == Some(instance) {
        return Ok(());
    }
    Err(Error::new(Kind::Unavailable, "the lease names another broker; retry"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_not_understood_is_not_quoted() {
        let secret = LeaseSecret::from_random(3);
        let text = String::from_utf8(secret.expose().to_vec()).unwrap();
        let line = format!("{{\"leasehold_broker\":\"{text}\"}}");
        assert!(!check(line.as_bytes(), &HexName::from_random(1)).unwrap_err().to_string().contains(&text));
    }
}
