//! Placeholder for objects that are too large to read. Instead of their bytes, readers get a short text that no format
//! accepts: the object counts as corrupt, and it has a version, so that it can be replaced conditionally.

use crate::limits::OBJECT_BYTES_MAX;

/// Placeholder for an object of `bytes` bytes.
#[must_use]
pub fn placeholder(bytes: u64) -> Vec<u8> {
    format!("\0it has {bytes} bytes; the limit is {OBJECT_BYTES_MAX}").into_bytes()
}

/// Reason why an object was not read; none if the body is not a placeholder.
#[must_use]
pub fn reason(body: &[u8]) -> Option<&str> {
    std::str::from_utf8(body.strip_prefix(b"\0")?).ok()
}

/// Reason why a body does not parse.
#[must_use]
pub fn corrupt_reason(body: &[u8], error: &serde_json::Error) -> String {
    reason(body).map_or_else(|| error.to_string(), ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_placeholder_names_the_size_of_the_object() {
        let body = placeholder(1 << 31);
        assert_eq!(reason(&body), Some("it has 2147483648 bytes; the limit is 16777216"));
        assert_eq!(reason(b"{}"), None);
        let error = serde_json::from_slice::<serde_json::Value>(&body).unwrap_err();
        assert_eq!(Some(corrupt_reason(&body, &error).as_str()), reason(&body));
    }
}
