//! Objects that are too large to be read. In the place of their bytes readers get a short text that no format accepts: such an
//! object is corrupt for everyone, and has a version, so that it can be replaced on condition.

use crate::limits::OBJECT_BYTES_MAX;

/// The text in the place of an object of so many bytes.
#[must_use]
pub fn unread(bytes: u64) -> Vec<u8> {
    format!("\0it has {bytes} bytes, and at most {OBJECT_BYTES_MAX} are read").into_bytes()
}

/// The reason why an object was not read, if it was not.
#[must_use]
pub fn why_unread(body: &[u8]) -> Option<&str> {
    std::str::from_utf8(body.strip_prefix(b"\0")?).ok()
}

/// The reason why a body does not parse.
#[must_use]
pub fn why_corrupt(body: &[u8], error: &serde_json::Error) -> String {
    why_unread(body).map_or_else(|| error.to_string(), ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_was_not_read_says_how_large_it_is() {
        let body = unread(1 << 31);
        assert_eq!(why_unread(&body), Some("it has 2147483648 bytes, and at most 16777216 are read"));
        assert_eq!(why_unread(b"{}"), None);
        let error = serde_json::from_slice::<serde_json::Value>(&body).unwrap_err();
        assert_eq!(Some(why_corrupt(&body, &error).as_str()), why_unread(&body));
    }
}
