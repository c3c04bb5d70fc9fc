//! Semantics of ranges and of uploads in parts, for stores without their own.

use bytes::{Bytes, BytesMut};
use leasehold_core::Kind;
use leasehold_core::limits::UPLOAD_PARTS_MAX;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::store::{Failure, Object, PartId, Ranged, UploadId, Version};

/// Returns a range of an object in memory.
pub fn range_of(
    key: &str,
    object: Option<&Object>,
    range: &Range<u64>,
    unchanged: Option<&Version>,
) -> Result<Ranged, Failure> {
    let Some(object) = object else { return Ok(Ranged::Missing) };
    if unchanged.is_some_and(|version| object.version != *version) {
        return Ok(Ranged::Changed);
    }
    let range = clamp_range(key, range, object.body.len() as u64)?;
    let place = |at: u64| usize::try_from(at).expect("the range is within a body in memory");
    let body = object.body.slice(place(range.start)..place(range.end));
    Ok(Ranged::Found(Object { body, version: object.version.clone() }))
}

/// Cuts a range to the length of an object.
pub(crate) fn clamp_range(key: &str, range: &Range<u64>, bytes: u64) -> Result<Range<u64>, Failure> {
    check_range(key, range)?;
    if range.start >= bytes {
        return Err(range_beyond_end(key, range));
    }
    Ok(range.start..range.end.min(bytes))
}

/// Rejects an empty range: there is no request for it.
pub(crate) fn check_range(key: &str, range: &Range<u64>) -> Result<(), Failure> {
    if range.is_empty() {
        return Err(Failure::permanent(
            Kind::Invalid,
            format!("range {range:?} of `{key}` must not be empty"),
        ));
    }
    Ok(())
}

pub(crate) fn range_beyond_end(key: &str, range: &Range<u64>) -> Failure {
    Failure::permanent(Kind::Invalid, format!("range {range:?} begins beyond the end of `{key}`"))
}

/// Uploads whose parts are kept in memory.
#[derive(Debug, Default)]
pub struct Uploads {
    under_way: BTreeMap<UploadId, Upload>,
    begun: u64,
}

#[derive(Debug)]
struct Upload {
    key: String,
    part_bytes: u64,
    parts: BTreeMap<usize, Bytes>,
}

impl Uploads {
    /// Begins an upload.
    pub fn begin(&mut self, key: &str, part_bytes: u64) -> UploadId {
        self.begun += 1;
        let id = UploadId::new(format!("u{}", self.begun));
        let upload = Upload { key: key.to_owned(), part_bytes, parts: BTreeMap::new() };
        self.under_way.insert(id.clone(), upload);
        id
    }

    /// Stores a part.
    pub fn part(&mut self, key: &str, id: &UploadId, number: usize, body: Bytes) -> Result<PartId, Failure> {
        let upload = self.under_way.get_mut(id).filter(|upload| upload.key == key);
        let upload = upload.ok_or_else(|| upload_not_found(key))?;
        let part = part_id(key, number, body.len() as u64, upload.part_bytes)?;
        upload.parts.insert(number, body);
        Ok(part)
    }

    /// Ends the upload and returns the assembled body.
    pub fn end(&mut self, key: &str, id: &UploadId, parts: &[PartId]) -> Result<Bytes, Failure> {
        let upload =
            self.under_way.get(id).filter(|upload| upload.key == key).ok_or_else(|| upload_not_found(key))?;
        let bytes = total_bytes(key, parts, upload.part_bytes)?;
        let mut body = BytesMut::new();
        upload.parts.values().take(parts.len()).for_each(|part| body.extend_from_slice(part));
        if body.len() as u64 != bytes {
            return Err(parts_mismatch(key));
        }
        self.under_way.remove(id);
        Ok(body.freeze())
    }

    /// Removes an upload.
    pub fn abort(&mut self, id: &UploadId) {
        self.under_way.remove(id);
    }
}

/// Creates the id of a part from its number and length, from which [`total_bytes`] detects missing parts.
pub(crate) fn part_id(key: &str, number: usize, bytes: u64, part_bytes: u64) -> Result<PartId, Failure> {
    if number as u64 >= UPLOAD_PARTS_MAX {
        let message =
            format!("upload of `{key}` can have at most {UPLOAD_PARTS_MAX} parts, got part {number}");
        return Err(Failure::permanent(Kind::Invalid, message));
    }
    if bytes == 0 || bytes > part_bytes {
        let message = format!("part {number} of `{key}` must have 1 to {part_bytes} bytes, got {bytes}");
        return Err(Failure::permanent(Kind::Invalid, message));
    }
    Ok(PartId::new(format!("{number}-{bytes}")))
}

/// Total length of the parts, if none is missing, too small or out of order.
pub(crate) fn total_bytes(key: &str, parts: &[PartId], part_bytes: u64) -> Result<u64, Failure> {
    let mut bytes = 0;
    for (expected, part) in parts.iter().enumerate() {
        let read = |(number, bytes): (&str, &str)| Some((number.parse().ok()?, bytes.parse().ok()?));
        let known: Option<(usize, u64)> = part.as_str().split_once('-').and_then(read);
        let (_, of_part) =
            known.filter(|(number, _)| *number == expected).ok_or_else(|| parts_mismatch(key))?;
        if of_part < part_bytes && expected + 1 < parts.len() {
            return Err(parts_mismatch(key));
        }
        bytes += of_part;
    }
    if bytes == 0 { Err(parts_mismatch(key)) } else { Ok(bytes) }
}

/// Failure for an upload that has ended, was aborted, or never began.
pub(crate) fn upload_not_found(key: &str) -> Failure {
    Failure::permanent(Kind::Lost, format!("upload of `{key}` no longer exists"))
}

pub(crate) fn parts_mismatch(key: &str) -> Failure {
    Failure::permanent(Kind::Invalid, format!("parts of the upload of `{key}` are missing or out of order"))
}
