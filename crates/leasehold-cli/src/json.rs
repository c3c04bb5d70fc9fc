//! Parsing of JSON input.

use leasehold_core::{Error, Result};
use serde_json::Value;

/// Parses JSON. Refuses whole numbers beyond 64 bits, which would be stored as other numbers.
pub(crate) fn read(what: &str, text: &str) -> Result<Value> {
    check_numbers(what, text)?;
    serde_json::from_str(text).map_err(|error| Error::invalid(format!("{what} is not JSON: {error}")))
}

/// Refuses JSON with a whole number beyond 64 bits.
pub(crate) fn check_numbers(what: &str, text: &str) -> Result<()> {
    match too_large(text) {
        None => Ok(()),
        Some(number) => Err(Error::invalid(format!(
            "{what} has the number {number}, which does not fit into 64 bits; pass it as text"
        ))),
    }
}

/// First whole number that does not fit into 64 bits. Skips strings; does not check that the rest is JSON.
fn too_large(text: &str) -> Option<&str> {
    let mut rest = text;
    while let Some(at) = rest.find(|letter: char| letter == '"' || letter == '-' || letter.is_ascii_digit()) {
        rest = &rest[at..];
        if let Some(string) = rest.strip_prefix('"') {
            rest = after_string(string);
            continue;
        }
        let is_part = |letter: char| letter.is_ascii_digit() || "+-.eE".contains(letter);
        let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let is_whole = !number.contains(['.', 'e', 'E']);
        let has_digits = number.contains(|letter: char| letter.is_ascii_digit());
        if is_whole && has_digits && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
            return Some(number);
        }
        rest = after;
    }
    None
}

/// Text after the closing quote; empty if there is none.
fn after_string(text: &str) -> &str {
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            '"' => return &text[at + 1..],
            _ => {}
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_beyond_64_bits_are_found() {
        for (text, number) in [
            ("18446744073709551616", "18446744073709551616"),
            ("-9223372036854775809", "-9223372036854775809"),
            ("[1, {\"a\": 99999999999999999999}]", "99999999999999999999"),
            (r#"["a\"b", 99999999999999999999]"#, "99999999999999999999"),
            (r#"["é\\", 99999999999999999999]"#, "99999999999999999999"),
        ] {
            assert_eq!(too_large(text), Some(number), "{text}");
        }
        for text in [
            "18446744073709551615",
            "-9223372036854775808",
            "1e30",
            "99999999999999999999.5",
            r#""99999999999999999999""#,
            r#"{"99999999999999999999": "\"99999999999999999999"}"#,
            "-",
            "\"not closed 99999999999999999999",
            "",
        ] {
            assert_eq!(too_large(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        assert_eq!(read("the input", "18446744073709551615").unwrap().to_string(), "18446744073709551615");
        let refused = read("the input", "18446744073709551616").unwrap_err().to_string();
        assert_eq!(
            refused,
            "the input has the number 18446744073709551616, which does not fit into 64 bits; pass it as text"
        );
    }
}
