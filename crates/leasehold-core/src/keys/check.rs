//! Validation of keys, for all stores.

use super::RESERVED;
use crate::error::{Error, Result};
use crate::limits::{KEY_BYTES_MAX, SEGMENT_BYTES_MAX};

/// Rejects a key that could leave a folder, or that some stores do not accept.
pub fn check_key(key: &str) -> Result<()> {
    let fault = if key.len() > KEY_BYTES_MAX {
        Some("is longer than 768 bytes")
    } else if key.starts_with(RESERVED) {
        Some("begins with `.leasehold`, which is reserved for the store")
    } else {
        key.split('/').find_map(segment_fault)
    };
    match fault {
        Some(fault) => Err(Error::invalid(format!("key `{}` {fault}", key.escape_debug()))),
        None => Ok(()),
    }
}

/// Rejects a prefix that no valid key has. It may end in the middle of a segment.
pub fn check_prefix(prefix: &str) -> Result<()> {
    // Any accepted prefix is the beginning of an accepted key.
    check_key(&format!("{prefix}x"))
}

fn segment_fault(segment: &str) -> Option<&'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.=+@~".contains(&byte);
    match segment {
        "" => Some("has an empty segment"),
        "." | ".." => Some("has a segment that is `.` or `..`"),
        _ if segment.len() > SEGMENT_BYTES_MAX => Some("has a segment longer than 255 bytes"),
        _ if !segment.bytes().all(plain) => Some("has a character other than letters, digits and `-_.=+@~`"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_that_could_leave_the_root_are_refused() {
        for key in
            ["", "/", "/etc/passwd", "a//b", "a/", "..", "a/../b", "./a", "a/.", "a\0b", "a\\b", "a b", "ä"]
        {
            assert!(check_key(key).is_err(), "{key:?} was accepted");
        }
        assert!(check_key(".leasehold/locks/00").is_err());
        assert!(check_key(&"x".repeat(256)).is_err());
        assert!(check_key(&["x"; 400].join("/")).is_err());
        let error = check_key("a/../b").unwrap_err();
        assert_eq!(error.to_string(), "key `a/../b` has a segment that is `.` or `..`");
    }

    #[test]
    fn prefixes_that_could_leave_the_root_are_refused() {
        for prefix in ["/", "../", "/etc/", "a//", ".leasehold/", "a/../"] {
            assert!(check_prefix(prefix).is_err(), "{prefix:?} was accepted");
        }
        for prefix in ["", "a", "a/", "ready/0/2026"] {
            check_prefix(prefix).unwrap();
        }
    }

    proptest! {
        #[test]
        fn an_accepted_key_stays_below_the_root(key in "[a-z./\\\\\0-]{0,12}") {
            if check_key(&key).is_ok() {
                let path = std::path::Path::new(&key);
                let all_normal = path.components().all(|c| matches!(c, std::path::Component::Normal(_)));
                prop_assert!(path.is_relative() && all_normal);
            }
        }
    }
}
