//! Signatures on the requests of peers: whoever knows the secret may ask.
//!
//! A request carries the time at which it was signed and an HMAC-SHA-256 over its method, its path and that time, so
//! what was signed for one request does not serve for another. Time is the store's time on both sides (promise P6): a
//! peer without a clock of its own can still ask and be asked.
//!
//! What this does not do: it hides nothing (pieces travel in the clear, as they do without a secret), and the very same
//! request can be sent again by whoever overheard it, for five minutes, to any peer. Requests only read, and who
//! overheard one has seen the answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};
use leasehold_core::{Error, Now, Result, StoreTime};

/// How far the time of a signature may be off. The store's time is known to a second or two; the rest is for requests
/// that wait in queues. Less would refuse slow peers, more would let an overheard request live longer.
pub const SIGNATURE_AGE_MAX: Duration = Duration::from_mins(5);

/// Shortest secret: 128 bits, if they are random. A word that someone can guess protects nothing.
pub const SECRET_BYTES_MIN: usize = 16;

/// The header with the time of the signature: milliseconds since 1970, in the store's time.
pub const TIME: HeaderName = HeaderName::from_static("x-leasehold-time");

const SCHEME: &str = "Leasehold ";

/// The present in the store's time; nothing before the store has said anything.
pub type Present = Arc<dyn Fn() -> Option<Now> + Send + Sync>;

/// What all peers of a cluster know and nobody else. It is never printed; clones share it.
#[derive(Clone)]
pub struct Secret(Arc<hmac::Key>);

impl Secret {
    /// Takes a secret; refuses one that is too short.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(Error::invalid(format!(
                "the secret of the peers has {} bytes; it needs at least {SECRET_BYTES_MIN}",
                bytes.len()
            )));
        }
        Ok(Self(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, bytes))))
    }

    /// Signs a request: puts both headers in.
    pub fn sign(&self, method: &Method, uri: &Uri, at: StoreTime, headers: &mut HeaderMap) {
        let time = at.as_millis().to_string();
        let tag = hmac::sign(&self.0, &signed_text(method, uri, &time));
        let header = |text: &str| HeaderValue::from_str(text).expect("digits and letters");
        headers.insert(AUTHORIZATION, header(&format!("{SCHEME}{}", to_hex(tag.as_ref()))));
        headers.insert(TIME, header(&time));
    }

    /// Checks a request. The signature comes first, in constant time: only who knows the secret is told about time.
    pub fn verify(&self, method: &Method, uri: &Uri, headers: &HeaderMap, now: Now) -> Result<(), Unproven> {
        let tag = only(headers, &AUTHORIZATION).and_then(|text| text.strip_prefix(SCHEME));
        let (tag, time) = tag.zip(only(headers, &TIME)).ok_or(Unproven::Unsigned)?;
        let tag = from_hex(tag).ok_or(Unproven::Wrong)?;
        let at = time.parse().map(StoreTime::from_millis).map_err(|_| Unproven::Wrong)?;
        hmac::verify(&self.0, &signed_text(method, uri, time), &tag).map_err(|_| Unproven::Wrong)?;
        if is_off(at, now) { Err(Unproven::Expired) } else { Ok(()) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Why a request is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unproven {
    /// It carries no signature, or two.
    Unsigned,
    /// Its signature was right, too long ago or too far ahead.
    Expired,
    /// Its signature is another secret's, or another request's.
    Wrong,
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsigned => "the request is not signed",
            Self::Expired => "the signature is more than five minutes off the store's time",
            Self::Wrong => "the signature is wrong",
        })
    }
}

impl std::error::Error for Unproven {}

/// Off beyond doubt: all that the present may be is too far from the time of the signature. Doubt about the present is
/// ours, not the peer's fault, and it never makes an old signature young: the earliest present moves on by itself.
fn is_off(at: StoreTime, now: Now) -> bool {
    at.plus(SIGNATURE_AGE_MAX) < now.earliest || at > now.latest.plus(SIGNATURE_AGE_MAX)
}

/// Every part with its length before it, so that no two requests have the same text.
fn signed_text(method: &Method, uri: &Uri, time: &str) -> Vec<u8> {
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    let mut text = b"leasehold-pieces-1".to_vec();
    for part in [method.as_str(), path, time] {
        text.extend_from_slice(&(part.len() as u64).to_be_bytes());
        text.extend_from_slice(part.as_bytes());
    }
    text
}

/// The value of a header that is there exactly once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())?.to_str().ok()
}

fn to_hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// The 32 bytes of a signature; nothing else is one.
fn from_hex(text: &str) -> Option<[u8; 32]> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect();
    bytes?.try_into().ok()
}
