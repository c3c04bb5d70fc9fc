//! First lines of either end of a connection.
//!
//! ```text
//! client   {"leasehold_broker":1,"instance":"…"}          the broker that the lease names; over TLS with its `secret`
//! broker   {"leasehold_broker":1,"instance":"…"}          its own id; the client disconnects if it is another
//! ```
//!
//! A broker that refuses a client of the network says why, instead: `{"leasehold_broker":1,"refused":"…"}`. After these
//! lines, a client of the network says whether it has registered its key, and the broker what it may do:
//!
//! ```text
//! client   {"registered":true}
//! broker   {"may_change":true}
//! ```

use bytes::Bytes;
use leasehold_core::{Error, HexName, Kind, Result};
use leasehold_queue::LeaseSecret;
use serde::{Deserialize, Serialize};

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

/// Statement of a client about its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Registration {
    pub(crate) registered: bool,
}

/// Answer of the broker to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Permission {
    pub(crate) may_change: bool,
}

/// Returns the first line of a process that names the broker `instance`; over the network with the secret.
pub(crate) fn hello(instance: &HexName, secret: Option<&LeaseSecret>) -> Bytes {
    let (instance, secret) = (Some(instance.clone()), secret.cloned());
    line(&Hello { leasehold_broker: VERSION, instance, secret, refused: None })
}

/// Returns the line of a broker that refuses a client.
pub(crate) fn refusal(why: &Error) -> Bytes {
    let refused = Some(why.to_string());
    line(&Hello { leasehold_broker: VERSION, instance: None, secret: None, refused })
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

/// Checks the first line of a client that came over the network. One without the secret learns nothing else.
pub(crate) fn check_client(line: &[u8], instance: &HexName, secret: &LeaseSecret) -> Result<()> {
    let hello = parse::<Hello>(line)?;
    check_version(&hello)?;
    if !hello.secret.as_ref().is_some_and(|sent| is_equal(sent, secret)) {
        let message = "the first line does not have the secret of the lease; read the lease again";
        return Err(Error::new(Kind::Denied, message));
    }
    check_instance(&hello, instance)
}

/// Reads the answer of the broker to a registration, or its refusal.
pub(crate) fn permission(line: &[u8]) -> Result<Permission> {
    if let Ok(Hello { refused: Some(why), .. }) = parse(line) {
        return Err(refused(&why));
    }
    parse(line)
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

/// Compares hashes: the time of a comparison of secrets would show how much of a guess is right.
fn is_equal(sent: &LeaseSecret, secret: &LeaseSecret) -> bool {
    blake3::hash(sent.expose()) == blake3::hash(secret.expose())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_client_with_the_secret_learns_that_the_broker_is_another_one() {
        let (ours, other) = (HexName::from_random(1), HexName::from_random(2));
        let (secret, guess) = (LeaseSecret::from_random(3), LeaseSecret::from_random(4));
        let checked = |line: Bytes| check_client(&line, &ours, &secret).map_err(|error| error.kind());
        assert_eq!(checked(hello(&ours, Some(&secret))), Ok(()));
        assert_eq!(checked(hello(&other, Some(&secret))), Err(Kind::Unavailable));
        for without in [None, Some(&guess)] {
            assert_eq!(checked(hello(&ours, without)), Err(Kind::Denied));
            assert_eq!(checked(hello(&other, without)), Err(Kind::Denied));
        }
    }

    #[test]
    fn a_refusal_is_the_error_of_the_client() {
        let refused = refusal(&Error::new(Kind::Denied, "too early"));
        let error = check(&refused, &HexName::from_random(1)).unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().ends_with("refused the connection: too early"), "{error}");
    }

    #[test]
    fn a_line_that_is_not_understood_is_not_quoted() {
        let secret = LeaseSecret::from_random(3);
        let text = String::from_utf8(secret.expose().to_vec()).unwrap();
        let line = format!("{{\"leasehold_broker\":\"{text}\"}}");
        assert!(!check(line.as_bytes(), &HexName::from_random(1)).unwrap_err().to_string().contains(&text));
    }
}
