//! Re-signing of requests to S3 with the store time.
//!
//! Every request to S3 contains the time at which it was signed, and S3 refuses it if that is more than fifteen minutes
//! off (`RequestTimeTooSkewed`). `object_store` takes that time from the machine's wall clock, and small machines have
//! none that survives a power cut. The refusal has a date, so that the store time is known after it; from then on a
//! request whose date is surely wrong is signed again with the store time before it is sent.
//!
//! Only three things change: `x-amz-date`, the day in the credential's scope and the signature over both
//! ([Signature Version 4]). The list of signed headers and the hash of the body stay as `object_store` wrote them.
//! Requests with other signatures (Google, Azure, sessions of S3 Express, presigned URLs) are unchanged, and so is a
//! request whose access key is no longer the current one.
//!
//! A date is wrong only if it is outside the whole interval of the store time. The date in the request is checked, not
//! the wall clock, which may have jumped since. After a pause of a virtual machine the end of that interval is unknown,
//! and the wall clock may be more accurate.
//!
//! This does not help with certificates: over https, a clock that is outside the certificate's validity fails before
//! the first request is sent, as it must.
//!
//! [Signature Version 4]: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html

use aws_lc_rs::{digest, hmac};
use http::header::{AUTHORIZATION, HeaderValue};
use jiff::{Timestamp, civil, tz::TimeZone};
use leasehold_core::{Now, StoreTime};
use object_store::CredentialProvider;
use object_store::aws::{AwsCredential, AwsCredentialProvider};
use object_store::client::HttpRequest;
use std::fmt::{self, Write};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use url::{Position, Url};

/// Tolerated error of a date: far below the fifteen minutes that S3 allows, far above the time between signing and
/// sending.
const TOLERATED: Duration = Duration::from_mins(1);
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const DATE: &str = "x-amz-date";
const DATE_FORMAT: &str = "%Y%m%dT%H%M%SZ";

/// Re-signs requests. Clones share the credentials.
#[derive(Clone, Default)]
pub(super) struct Signer {
    /// Weak, because the provider may send its own requests through the connector that holds this signer.
    credentials: Arc<OnceLock<Weak<dyn CredentialProvider<Credential = AwsCredential>>>>,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer")
    }
}

impl Signer {
    /// Sets the source of the credentials, as long as the client that owns it lives.
    pub(super) fn learn(&self, credentials: &AwsCredentialProvider) {
        self.credentials.get_or_init(|| Arc::downgrade(credentials));
    }

    /// Signs the request with the store time if its date is surely wrong; none if it stays unchanged.
    pub(super) async fn redate(&self, request: &mut HttpRequest, now: Now) -> Option<()> {
        let signed = Signed::read(request)?;
        let is_wrong = signed.at.plus(TOLERATED) < now.earliest || signed.at > now.latest.plus(TOLERATED);
        if !is_wrong {
            return None;
        }
        let credential = self.credentials.get()?.upgrade()?.get_credential().await.ok()?;
        if credential.key_id != signed.key_id {
            return None;
        }
        signed.sign(request, &credential.secret_key, now.earliest)
    }
}

/// Time at which a request was signed; none if it cannot be re-signed.
pub(super) fn signed_at(request: &HttpRequest) -> Option<StoreTime> {
    Signed::read(request).map(|signed| signed.at)
}

/// True if a request signed at this time and answered with this date had a wrong clock. Twice the tolerance, so that
/// the next attempt is surely re-signed.
pub(super) fn is_misdated(signed: StoreTime, answered: StoreTime) -> bool {
    signed.since(answered).max(answered.since(signed)) > 2 * TOLERATED
}

/// Signature of a request.
struct Signed {
    at: StoreTime,
    key_id: String,
    region: String,
    /// Names of the signed headers, separated by semicolons.
    names: String,
}

impl Signed {
    fn read(request: &HttpRequest) -> Option<Self> {
        let header = |name: &str| request.headers().get(name)?.to_str().ok();
        if header("x-amz-s3session-token").is_some() {
            return None;
        }
        let fields = header(AUTHORIZATION.as_str())?.strip_prefix(ALGORITHM)?.strip_prefix(" Credential=")?;
        let (credential, fields) = fields.split_once(", SignedHeaders=")?;
        let (names, _) = fields.split_once(", Signature=")?;
        // From the right, because some stores allow slashes in the names of keys.
        let scope: Vec<_> = credential.rsplitn(5, '/').collect();
        let ["aws4_request", "s3", region, _, key_id] = scope[..] else { return None };
        let date =
            civil::DateTime::strptime(DATE_FORMAT, header(DATE)?).ok()?.to_zoned(TimeZone::UTC).ok()?;
        let at = StoreTime::from_millis(date.timestamp().as_millisecond());
        Some(Self { at, key_id: key_id.into(), region: region.into(), names: names.into() })
    }

    fn sign(&self, request: &mut HttpRequest, secret: &str, at: StoreTime) -> Option<()> {
        let Self { key_id, region, names, .. } = self;
        let date = Timestamp::from_millisecond(at.as_millis()).ok()?.strftime(DATE_FORMAT).to_string();
        let day = date.split('T').next()?;
        let dated = HeaderValue::from_str(&date).ok()?;
        let canonical = canonical(request, names, &dated)?;
        let scope = format!("{day}/{region}/s3/aws4_request");
        let hash = hex(digest::digest(&digest::SHA256, canonical.as_bytes()).as_ref());
        let text = format!("{ALGORITHM}\n{date}\n{scope}\n{hash}");
        let key = scope.split('/').fold(format!("AWS4{secret}").into_bytes(), |key, part| hmac(&key, part));
        let signature = hex(&hmac(&key, &text));
        let authorization =
            format!("{ALGORITHM} Credential={key_id}/{scope}, SignedHeaders={names}, Signature={signature}");
        let authorization = HeaderValue::from_str(&authorization).ok()?;
        request.headers_mut().insert(DATE, dated);
        request.headers_mut().insert(AUTHORIZATION, authorization);
        Some(())
    }
}

/// Canonical form of a request, which is signed. The URL is parsed as by `object_store`, which signs it, and by the
/// HTTP client, which sends it.
fn canonical(request: &HttpRequest, names: &str, date: &HeaderValue) -> Option<String> {
    let url = Url::parse(&request.uri().to_string()).ok()?;
    let mut query: Vec<_> = url.query_pairs().map(|(name, value)| (strict(&name), strict(&value))).collect();
    query.sort_unstable();
    let query: Vec<_> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut text = format!("{}\n{}\n{}\n", request.method(), url.path(), query.join("&"));
    for name in names.split(';') {
        let values: Vec<_> = match name {
            // Added by the HTTP client later.
            "host" => vec![url[Position::BeforeHost..Position::AfterPort].to_owned()],
            DATE => vec![date.to_str().ok()?.to_owned()],
            _ => request.headers().get_all(name).iter().map(single_spaced).collect::<Option<_>>()?,
        };
        if values.is_empty() {
            return None;
        }
        writeln!(text, "{name}:{}", values.join(",")).ok()?;
    }
    let body = request.headers().get("x-amz-content-sha256")?.to_str().ok()?;
    Some(format!("{text}\n{names}\n{body}"))
}

fn single_spaced(value: &HeaderValue) -> Option<String> {
    let words: Vec<_> = std::str::from_utf8(value.as_bytes()).ok()?.split_whitespace().collect();
    Some(words.join(" "))
}

/// Escapes a query as AWS requires.
fn strict(text: &str) -> String {
    let mut strict = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            strict.push(char::from(byte));
        } else {
            // Writing into a string cannot fail.
            let _ = write!(strict, "%{byte:02X}");
        }
    }
    strict
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()
}

#[cfg(test)]
mod tests;
