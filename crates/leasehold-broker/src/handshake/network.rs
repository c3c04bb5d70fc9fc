//! First lines of a connection over the network.
//!
//! A broker that refuses a client says why, instead of its own first line: `{"leasehold_broker":1,"refused":"…"}`. After the
//! first lines a client says whether it has registered its key, and the broker what it may do:
//!
//! ```text
//! client   {"registered":true}
//! broker   {"may_change":true}
//! ```

use bytes::Bytes;
use leasehold_core::{Error, HexName, Kind, Result};
use serde::{Deserialize, Serialize};

use super::{Hello, VERSION, check_instance, check_version, line, parse, refused};
use crate::transport::LeaseSecret;

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

/// Returns the line of a broker that refuses a client.
pub(crate) fn refusal(why: &Error) -> Bytes {
    let refused = Some(why.to_string());
    line(&Hello { leasehold_broker: VERSION, instance: None, secret: None, refused })
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

/// Compares hashes: the time of a comparison of secrets would show how much of a guess is right.
fn is_equal(sent: &LeaseSecret, secret: &LeaseSecret) -> bool {
    blake3::hash(sent.expose()) == blake3::hash(secret.expose())
}

#[cfg(test)]
mod tests {
    use super::super::{check, hello};
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
}
