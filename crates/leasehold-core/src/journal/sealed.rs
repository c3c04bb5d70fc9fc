//! Header line with a checksum over itself and over the bytes after it.
//!
//! The checksum is the last field of a JSON object on one line. It is the BLAKE3 hash of the line up to `,"checksum"` and
//! of the bytes that belong to the header, so that no changed bit stays unnoticed, in the header either.

use serde::Serialize;

use super::commit::CommitHash;
use crate::ids::hex;

/// Text between the hashed part of a line and its checksum.
const CHECKSUM: &[u8] = b",\"checksum\":\"";

/// Text after the checksum, without the line end.
const LINE_END: &[u8] = b"\"}";

/// Length of a hash in text.
const HASH_DIGITS: usize = 64;

/// Returns the line of a header to which `rest` belongs, with its end, and the hash of both.
///
/// # Panics
///
/// If the header has keys that are not text.
#[must_use]
pub fn seal(header: &impl Serialize, rest: &[u8]) -> (Vec<u8>, CommitHash) {
    let mut line = serde_json::to_vec(header).expect("a header has no keys that are not text");
    // The brace comes back after the checksum.
    line.pop();
    let hash = hash_of(&line, rest);
    line.extend_from_slice(CHECKSUM);
    line.extend_from_slice(hash.to_string().as_bytes());
    line.extend_from_slice(LINE_END);
    line.push(b'\n');
    (line, hash)
}

/// Returns the first line without its end, if it has at most `bytes_max` bytes with it.
#[must_use]
pub fn first_line(body: &[u8], bytes_max: usize) -> Option<&[u8]> {
    let head = &body[..body.len().min(bytes_max)];
    head.iter().position(|byte| *byte == b'\n').map(|end| &head[..end])
}

/// Returns the hash of a line without its end and of `rest`, if the checksum is right; otherwise the reason.
pub fn check(line: &[u8], rest: &[u8]) -> Result<CommitHash, &'static str> {
    let (hashed, checksum) = split(line).ok_or("its header has no checksum at the end")?;
    let hash = hash_of(hashed, rest);
    // As text: a parser would accept digits of either case, and a changed bit would stay unnoticed.
    if hex(hash.as_bytes()).as_bytes() == checksum { Ok(hash) } else { Err("its checksum does not match") }
}

/// Splits a line into the part that is hashed and the checksum.
fn split(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = line.strip_suffix(LINE_END)?;
    let (rest, checksum) = rest.split_at_checked(rest.len().checked_sub(HASH_DIGITS)?)?;
    Some((rest.strip_suffix(CHECKSUM)?, checksum))
}

fn hash_of(hashed: &[u8], rest: &[u8]) -> CommitHash {
    let hash = blake3::Hasher::new().update(hashed).update(rest).finalize();
    CommitHash::from_bytes(hash.into())
}
