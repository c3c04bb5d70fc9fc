//! Signatures on requests, made with a secret that clients and servers share.
//!
//! A request carries the time at which it was signed and an HMAC-SHA-256 over its method, its path and that time, so
//! a signature is valid only for this method, path and time. Time is the store's time on both sides (promise P6): a peer without a
//! correct clock of its own can still send and verify requests.
//!
//! Limits: nothing is encrypted, with or without a secret, a request's body is not signed, and an eavesdropper can replay a
//! request for five minutes, to any server with the same secret. So a signature is enough for requests that only read, as
//! those for pieces: an eavesdropper has already seen the response.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};
use leasehold_core::{Error, Now, Result, StoreTime};

/// Largest difference between a signature's time and the present. The store's time is known to a second or two; the rest is
/// for requests that wait in queues. Less would refuse slow peers, more would allow replays for longer.
pub const SIGNATURE_AGE_MAX: Duration = Duration::from_mins(5);

/// Shortest secret: 128 bits, if they are random. A secret that can be guessed protects nothing.
pub const SECRET_BYTES_MIN: usize = 16;

/// Header with the time of the signature: milliseconds since 1970, in the store's time.
pub const TIME_HEADER: HeaderName = HeaderName::from_static("x-leasehold-time");

/// First part of every signed text, so that the secret signs nothing else by accident. Part of the protocol between peers.
const DOMAIN: &[u8] = b"leasehold-pieces-1";

const SCHEME: &str = "Leasehold ";

/// Returns the current time of the store; `None` before the first response of the store.
pub type SignClock = Arc<dyn Fn() -> Option<Now> + Send + Sync>;

/// Secret shared by all peers of a cluster. It is never printed; clones share it.
#[derive(Clone)]
pub struct Secret(Arc<hmac::Key>);

impl Secret {
    /// Creates a secret; refuses one that is too short.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(Error::invalid(format!(
                "peer secret must have at least {SECRET_BYTES_MIN} bytes, got {}",
                bytes.len()
            )));
        }
        Ok(Self(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, bytes))))
    }

    /// Signs a request: inserts both headers.
    pub fn sign(&self, method: &Method, uri: &Uri, at: StoreTime, headers: &mut HeaderMap) {
        let time = at.as_millis().to_string();
        let tag = hmac::sign(&self.0, &signed_text(method, uri, &time));
        let header = |text: &str| HeaderValue::from_str(text).expect("digits and letters");
        headers.insert(AUTHORIZATION, header(&format!("{SCHEME}{}", to_hex(tag.as_ref()))));
        headers.insert(TIME_HEADER, header(&time));
    }

    /// Verifies a request. The signature is checked first, in constant time: only a client that knows the secret learns
    /// whether its time is wrong.
    pub fn verify(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        now: Now,
    ) -> Result<(), SignatureError> {
        let tag = single_header(headers, &AUTHORIZATION).and_then(|text| text.strip_prefix(SCHEME));
        let (tag, time) = tag.zip(single_header(headers, &TIME_HEADER)).ok_or(SignatureError::Unsigned)?;
        let tag = from_hex(tag).ok_or(SignatureError::Invalid)?;
        let at = time.parse().map(StoreTime::from_millis).map_err(|_| SignatureError::Invalid)?;
        hmac::verify(&self.0, &signed_text(method, uri, time), &tag).map_err(|_| SignatureError::Invalid)?;
        if is_outside_window(at, now) { Err(SignatureError::Expired) } else { Ok(()) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Reason for which a signature is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SignatureError {
    /// The request carries no signature, or two.
    Unsigned,
    /// The signature is valid, but too old or from the future.
    Expired,
    /// The signature was made with another secret, or for another request.
    Invalid,
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unsigned => "the request is not signed",
            Self::Expired => "the signature differs from the store's time by more than five minutes",
            Self::Invalid => "the signature is wrong",
        })
    }
}

impl std::error::Error for SignatureError {}

/// True if every possible current time is too far from the time of the signature. Uncertainty about the current time is not
/// the peer's fault, and it never makes an old signature valid again: the earliest possible time only grows.
fn is_outside_window(at: StoreTime, now: Now) -> bool {
    at.plus(SIGNATURE_AGE_MAX) < now.earliest || at > now.latest.plus(SIGNATURE_AGE_MAX)
}

/// Text to sign: every part with its length before it, so that no two requests have the same text.
fn signed_text(method: &Method, uri: &Uri, time: &str) -> Vec<u8> {
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    let mut text = DOMAIN.to_vec();
    for part in [method.as_str(), path, time] {
        text.extend_from_slice(&(part.len() as u64).to_be_bytes());
        text.extend_from_slice(part.as_bytes());
    }
    text
}

/// Value of a header that is present exactly once.
fn single_header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())?.to_str().ok()
}

fn to_hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

/// Parses the 32 bytes of a signature.
fn from_hex(text: &str) -> Option<[u8; 32]> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect();
    bytes?.try_into().ok()
}
