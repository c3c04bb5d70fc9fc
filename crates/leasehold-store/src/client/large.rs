//! Large objects: ranged reads, and uploads in parts.
//!
//! # Lost answers
//!
//! A range is read again. A part is sent again: the same bytes under the same number are the same part. Beginning an
//! upload again leaves an empty one behind; a bucket should have a lifecycle rule that removes unfinished uploads.
//!
//! The end of an upload can go unanswered and still have been carried out. Then, and when it is refused because the
//! upload no longer exists, the object is **looked up**: one read of its last byte and the one after it, which returns
//! a single byte only if the object exists with the right length. That is sufficient because uploads are only for
//! objects whose key determines their content: every writer writes the same. Nothing else may be uploaded in parts.

use bytes::Bytes;
use leasehold_core::limits::{
    RANGE_BYTES_MAX, UPLOAD_BYTES_MAX, UPLOAD_FINISH_TIMEOUT, response_timeout, upload_part_bytes,
};
use leasehold_core::{Error, Kind, Result, keys};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Answered, Client, mark_if_unknown, may_have_happened, outcome};
use crate::health::RequestClass;
use crate::ledger::{Outcome, Purpose, Verb};
use crate::parts::check_range;
use crate::store::{Cause, PartId, Ranged, UploadId, Version};

impl Client {
    /// Reads a range of bytes of an object, if it still has the version that an earlier ranged read or an upload has
    /// returned. A range beyond the end is cut; one that is empty, begins beyond the end or has more than
    /// [`RANGE_BYTES_MAX`] bytes is invalid.
    pub async fn get_range(
        &self,
        purpose: Purpose,
        key: &str,
        range: Range<u64>,
        unchanged: Option<&Version>,
    ) -> Result<Ranged> {
        keys::check_key(key)?;
        check_range(key, &range).map_err(|failure| failure.error)?;
        let bytes = range.end - range.start;
        if bytes > RANGE_BYTES_MAX {
            return Err(Error::invalid(format!(
                "range of `{key}` must be at most {RANGE_BYTES_MAX} bytes, got {bytes}"
            )));
        }
        let mut budget = self.retry_budget_for(response_timeout(bytes));
        loop {
            match self.get_range_once(purpose, key, &range, unchanged).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => budget.after(failure).await?,
            }
        }
    }

    /// Begins to upload an object of `bytes` bytes. Its key must determine its content: an existing object is replaced,
    /// and lost answers are resolved by its length alone.
    pub async fn upload(&self, purpose: Purpose, key: &str, bytes: u64) -> Result<Upload> {
        keys::check_key(key)?;
        if bytes == 0 || bytes > UPLOAD_BYTES_MAX {
            return Err(Error::invalid(format!(
                "upload of `{key}` must have 1 to {UPLOAD_BYTES_MAX} bytes, got {bytes}"
            )));
        }
        let part_bytes = upload_part_bytes(bytes);
        let mut budget = self.retry_budget();
        loop {
            let request = self.start_request(Verb::Put, purpose, 0);
            let answer = self.in_time(self.store.upload_begin(key, part_bytes)).await;
            request.finish(outcome(&answer, |_| Outcome::Ok), 0);
            self.record_health(RequestClass::Write, &answer);
            match answer {
                Ok(id) => {
                    let (client, key) = (self.clone(), key.to_owned());
                    return Ok(Upload {
                        client,
                        purpose,
                        key,
                        id,
                        bytes,
                        part_bytes,
                        sent: Mutex::default(),
                    });
                }
                Err(failure) => budget.after(failure).await?,
            }
        }
    }

    async fn get_range_once(
        &self,
        purpose: Purpose,
        key: &str,
        range: &Range<u64>,
        unchanged: Option<&Version>,
    ) -> Answered<Ranged> {
        let request = self.start_request(Verb::Get, purpose, 0);
        let wait = response_timeout(range.end - range.start);
        let answer = self.within(wait, self.store.get_range(key, range.clone(), unchanged)).await;
        let ended = outcome(&answer, |ranged| match ranged {
            Ranged::Found(_) => Outcome::Ok,
            Ranged::Missing => Outcome::NotFound,
            Ranged::Changed => Outcome::Lost,
        });
        let received = if let Ok(Ranged::Found(object)) = &answer { object.body.len() } else { 0 };
        request.finish(ended, received);
        // An invalid range of the caller says nothing about the store.
        if !matches!(&answer, Err(failure) if failure.cause == Cause::Final(Kind::Invalid)) {
            self.record_health(RequestClass::Read, &answer);
        }
        answer
    }
}

/// Upload in progress, invisible until [`finish`](Self::finish). Otherwise call [`abort`](Self::abort), because its
/// parts take up space until then.
#[derive(Debug)]
pub struct Upload {
    client: Client,
    purpose: Purpose,
    key: String,
    id: UploadId,
    bytes: u64,
    part_bytes: u64,
    sent: Mutex<BTreeMap<usize, PartId>>,
}

impl Upload {
    /// Byte range of each part, by its number.
    pub fn parts(&self) -> impl Iterator<Item = (usize, Range<u64>)> + use<> {
        let (bytes, part_bytes) = (self.bytes, self.part_bytes);
        (0..).map_while(move |number| Some((number, part_range(number, bytes, part_bytes)?)))
    }

    /// Sends a part. Parts may be sent in any order, concurrently, or again.
    pub async fn part(&self, number: usize, body: Bytes) -> Result<()> {
        let range = part_range(number, self.bytes, self.part_bytes);
        if range.is_none_or(|range| range.end - range.start != body.len() as u64) {
            let (key, bytes) = (&self.key, body.len());
            return Err(Error::invalid(format!("upload of `{key}` has no part {number} of {bytes} bytes")));
        }
        let wait = response_timeout(body.len() as u64);
        let mut budget = self.client.retry_budget_for(wait);
        loop {
            let request = self.client.start_request(Verb::Put, self.purpose, body.len());
            let store = &self.client.store;
            let answer = store.upload_part(&self.key, &self.id, number, body.clone());
            let answer = self.client.within(wait, answer).await;
            request.finish(outcome(&answer, |_| Outcome::Ok), 0);
            self.client.record_health(RequestClass::Write, &answer);
            match answer {
                Ok(part) => {
                    self.all_sent().insert(number, part);
                    return Ok(());
                }
                Err(failure) => budget.after(failure).await?,
            }
        }
    }

    /// Assembles the parts into an object. The version is for ranged reads. If the outcome is unknown, the object may
    /// exist or appear later: check again, or upload it again.
    pub async fn finish(self) -> Result<Version> {
        let parts: Vec<_> = self.all_sent().values().cloned().collect();
        let needed = self.parts().count();
        if parts.len() != needed {
            let (key, sent) = (&self.key, parts.len());
            return Err(Error::invalid(format!("upload of `{key}` needs {needed} parts, got {sent}")));
        }
        let mut budget = self.client.retry_budget_for(UPLOAD_FINISH_TIMEOUT);
        let mut in_doubt = false;
        loop {
            let failure = match self.end_once(parts.clone()).await {
                Ok(version) => return Ok(version),
                Err(failure) => failure,
            };
            in_doubt |= may_have_happened(&failure);
            // Also after a final refusal: an earlier attempt of our own may be the reason.
            if matches!(failure.cause, Cause::Unanswered | Cause::Final(_))
                && let Some(version) = self.find().await
            {
                return Ok(version);
            }
            budget.after(failure).await.map_err(|error| mark_if_unknown(error, in_doubt))?;
        }
    }

    /// Abandons the upload and removes its parts.
    pub async fn abort(self) -> Result<()> {
        let mut budget = self.client.retry_budget();
        loop {
            let request = self.client.start_request(Verb::Delete, self.purpose, 0);
            let answer = self.client.in_time(self.client.store.upload_abort(&self.key, &self.id)).await;
            request.finish(outcome(&answer, |()| Outcome::Ok), 0);
            self.client.record_health(RequestClass::Write, &answer);
            match answer {
                Ok(()) => return Ok(()),
                Err(failure) => budget.after(failure).await?,
            }
        }
    }

    async fn end_once(&self, parts: Vec<PartId>) -> Answered<Version> {
        let request = self.client.start_request(Verb::Put, self.purpose, 0);
        let answer = self.client.store.upload_end(&self.key, &self.id, parts);
        let answer = self.client.within(UPLOAD_FINISH_TIMEOUT, answer).await;
        request.finish(outcome(&answer, |_| Outcome::Ok), 0);
        self.client.record_health(RequestClass::Write, &answer);
        answer
    }

    /// Version of the object, if it exists with the right length.
    async fn find(&self) -> Option<Version> {
        let range = self.bytes - 1..self.bytes + 1;
        let read = self.client.get_range(self.purpose, &self.key, range, None).await;
        read.ok()?.found().filter(|object| object.body.len() == 1).map(|object| object.version)
    }

    fn all_sent(&self) -> MutexGuard<'_, BTreeMap<usize, PartId>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn part_range(number: usize, bytes: u64, part_bytes: u64) -> Option<Range<u64>> {
    let start = part_bytes.checked_mul(number as u64).filter(|start| *start < bytes)?;
    Some(start..bytes.min(start + part_bytes))
}
