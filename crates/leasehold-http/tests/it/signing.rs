//! Signatures of requests.

use std::time::Duration;

use http::{HeaderMap, Method, Uri};
use leasehold_core::{Kind, Now, StoreTime};
use leasehold_http::sign::{SIGNATURE_AGE_MAX, Secret, SignatureError};

const MILLI: Duration = Duration::from_millis(1);
const NOW: StoreTime = StoreTime::from_millis(1_800_000_000_000);
const PATH: &str = "/v1/file/have";

fn secret() -> Secret {
    Secret::new(b"a secret of peers").unwrap()
}

fn signed(secret: &Secret, method: &Method, path: &str, at: StoreTime) -> HeaderMap {
    let mut headers = HeaderMap::new();
    secret.sign(method, &path.parse().unwrap(), at, &mut headers);
    headers
}

/// Verifies a GET of [`PATH`] with these headers.
fn verify(headers: &HeaderMap, now: Now) -> Result<(), SignatureError> {
    secret().verify(&Method::GET, &Uri::from_static(PATH), headers, now)
}

#[test]
fn a_signature_is_valid_for_one_request_and_one_secret() {
    let right = signed(&secret(), &Method::GET, PATH, NOW);
    let without = |name: &str| {
        let mut headers = right.clone();
        headers.remove(name);
        headers
    };
    let with = |name: &'static str, value: &str| {
        let mut headers = right.clone();
        headers.insert(name, value.parse().unwrap());
        headers
    };
    let mut twice = right.clone();
    twice.append("authorization", right["authorization"].clone());
    let other = Secret::new(b"a secret of others").unwrap();
    let shortened = right["authorization"].to_str().unwrap()[..70].to_owned();
    let later = (NOW.as_millis() + 1).to_string();
    let get = |path: &str, at| signed(&secret(), &Method::GET, path, at);

    assert_eq!(verify(&right, Now::exactly(NOW)), Ok(()));
    for (what, headers, error) in [
        ("no headers", HeaderMap::new(), SignatureError::Unsigned),
        ("no signature", without("authorization"), SignatureError::Unsigned),
        ("no time", without("x-leasehold-time"), SignatureError::Unsigned),
        ("two signatures", twice, SignatureError::Unsigned),
        ("another scheme", with("authorization", "Basic Zm9vOmJhcg=="), SignatureError::Unsigned),
        ("no hex", with("authorization", "Leasehold zz"), SignatureError::Invalid),
        ("an empty signature", with("authorization", "Leasehold "), SignatureError::Invalid),
        ("half a signature", with("authorization", &shortened), SignatureError::Invalid),
        ("another time", with("x-leasehold-time", &later), SignatureError::Invalid),
        ("no time at all", with("x-leasehold-time", "noon"), SignatureError::Invalid),
        ("another secret", signed(&other, &Method::GET, PATH, NOW), SignatureError::Invalid),
        ("another path's signature", get("/v1/file/pieces/1", NOW), SignatureError::Invalid),
        ("another query's signature", get("/v1/file/have?x=1", NOW), SignatureError::Invalid),
        ("another method's signature", signed(&secret(), &Method::HEAD, PATH, NOW), SignatureError::Invalid),
        ("too old", get(PATH, NOW.minus(SIGNATURE_AGE_MAX + MILLI)), SignatureError::Expired),
        ("too young", get(PATH, NOW.plus(SIGNATURE_AGE_MAX + MILLI)), SignatureError::Expired),
    ] {
        assert_eq!(verify(&headers, Now::exactly(NOW)), Err(error), "{what}");
    }
}

#[test]
fn a_signature_is_the_same_in_every_version() {
    let headers = signed(&secret(), &Method::GET, PATH, NOW);
    assert_eq!(headers["x-leasehold-time"], "1800000000000");
    assert_eq!(
        headers["authorization"],
        "Leasehold 0973635cd51a49f2f3de614cbd40f52d24c10db017859e55653a763b7ce4d857"
    );
}

#[test]
fn a_signature_holds_for_five_minutes_either_way_and_only_certain_lateness_counts() {
    let vague = Now { earliest: NOW, latest: StoreTime::NEVER, is_consistent: true };
    let exact = Now::exactly(NOW);
    let age = SIGNATURE_AGE_MAX;
    for (at, now, expected) in [
        (NOW, exact, Ok(())),
        (NOW.minus(age), exact, Ok(())),
        (NOW.plus(age), exact, Ok(())),
        (NOW.minus(age + MILLI), exact, Err(SignatureError::Expired)),
        (NOW.plus(age + MILLI), exact, Err(SignatureError::Expired)),
        (NOW.minus(age + MILLI), vague, Err(SignatureError::Expired)),
        (NOW.plus(age + MILLI), vague, Ok(())),
        (StoreTime::from_millis(i64::MIN), exact, Err(SignatureError::Expired)),
        (StoreTime::from_millis(i64::MAX), exact, Err(SignatureError::Expired)),
        (StoreTime::from_millis(0), exact, Err(SignatureError::Expired)),
    ] {
        let headers = signed(&secret(), &Method::GET, PATH, at);
        assert_eq!(verify(&headers, now), expected, "{} at {now:?}", at.as_millis());
    }
}

#[test]
fn a_secret_is_long_enough_and_never_shown() {
    let error = Secret::new(b"fifteen letters").unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert_eq!(error.to_string(), "peer secret must have at least 16 bytes, got 15");
    let secret = Secret::new(b"sixteen letters!").unwrap();
    assert_eq!(format!("{secret:?}"), "Secret");
}
