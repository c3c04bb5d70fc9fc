//! What is too large to be held at once: ranges of objects, and uploads in parts.
//!
//! # Lost answers
//!
//! A range is read again. A part is sent again: the same bytes under the same number are the same part. Beginning again
//! leaves parts-to-be behind that nobody fills; a bucket should have a rule that removes unfinished uploads.
//!
//! The end of an upload can go unanswered and still have happened. Then, and when it is refused because the upload is not
//! there any more, the object is **looked for**: one read of its last byte and of one more, which gives a single byte only
//! if the object is there with the right length. That is proof enough because uploads are for objects whose key says
//! what they hold: whoever has written it, it is the same. Nothing else may be uploaded in parts.

use bytes::Bytes;
use leasehold_core::limits::{
    RANGE_BYTES_MAX, UPLOAD_BYTES_MAX, UPLOAD_END_WAIT, answer_wait, upload_part_bytes,
};
use leasehold_core::{Error, Kind, Result, keys};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Answered, Client, doubtful, may_have_happened, outcome};
use crate::health::RequestClass;
use crate::ledger::{Outcome, Purpose, Verb};
use crate::parts::check_range;
use crate::seam::{Cause, PartId, Ranged, UploadId, Version};

impl Client {
    /// Reads the bytes of an object that lie in a range, if it is still the version that an earlier ranged read or an
    /// upload has told. A range beyond the end is cut; one that is empty, begins beyond the end or has more than
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
                "{bytes} bytes of `{key}` are too many for one read; at most {RANGE_BYTES_MAX}"
            )));
        }
        let mut patience = self.patience_for(answer_wait(bytes));
        loop {
            match self.get_range_once(purpose, key, &range, unchanged).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => patience.after(failure).await?,
            }
        }
    }

    /// Begins to upload an object of so many bytes. Its key says what it holds: whatever stands there is replaced, and
    /// lost answers are settled by its length alone.
    pub async fn upload(&self, purpose: Purpose, key: &str, bytes: u64) -> Result<Upload> {
        keys::check_key(key)?;
        if bytes == 0 || bytes > UPLOAD_BYTES_MAX {
            return Err(Error::invalid(format!(
                "`{key}` cannot be uploaded in parts with {bytes} bytes; from 1 to {UPLOAD_BYTES_MAX}"
            )));
        }
        let part_bytes = upload_part_bytes(bytes);
        let mut patience = self.patience();
        loop {
            let sent = self.sent(Verb::Put, purpose, 0);
            let answer = self.in_time(self.store.upload_begin(key, part_bytes)).await;
            sent.ended(outcome(&answer, |_| Outcome::Ok), 0);
            self.note(RequestClass::Write, &answer);
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
                Err(failure) => patience.after(failure).await?,
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
        let sent = self.sent(Verb::Get, purpose, 0);
        let wait = answer_wait(range.end - range.start);
        let answer = self.within(wait, self.store.get_range(key, range.clone(), unchanged)).await;
        let ended = outcome(&answer, |ranged| match ranged {
            Ranged::Found(_) => Outcome::Ok,
            Ranged::Missing => Outcome::NotFound,
            Ranged::Changed => Outcome::Lost,
        });
        let received = if let Ok(Ranged::Found(object)) = &answer { object.body.len() } else { 0 };
        sent.ended(ended, received);
        // A range that a caller asks for in vain says nothing about the store.
        if !matches!(&answer, Err(failure) if failure.cause == Cause::Final(Kind::Invalid)) {
            self.note(RequestClass::Read, &answer);
        }
        answer
    }
}

/// An upload under way. Nothing is seen of it until [`finish`](Self::finish); whoever does not get so far calls
/// [`abort`](Self::abort), because its parts take up room until then.
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
    /// Which bytes of the object each part holds, by its number.
    pub fn parts(&self) -> impl Iterator<Item = (usize, Range<u64>)> + use<> {
        let (bytes, part_bytes) = (self.bytes, self.part_bytes);
        (0..).map_while(move |number| Some((number, part_range(number, bytes, part_bytes)?)))
    }

    /// Sends a part, in any order, several at once, or again.
    pub async fn part(&self, number: usize, body: Bytes) -> Result<()> {
        let range = part_range(number, self.bytes, self.part_bytes);
        if range.is_none_or(|range| range.end - range.start != body.len() as u64) {
            let (key, bytes) = (&self.key, body.len());
            return Err(Error::invalid(format!("`{key}` has no part {number} of {bytes} bytes")));
        }
        let wait = answer_wait(body.len() as u64);
        let mut patience = self.client.patience_for(wait);
        loop {
            let sent = self.client.sent(Verb::Put, self.purpose, body.len());
            let store = &self.client.store;
            let answer = store.upload_part(&self.key, &self.id, number, body.clone());
            let answer = self.client.within(wait, answer).await;
            sent.ended(outcome(&answer, |_| Outcome::Ok), 0);
            self.client.note(RequestClass::Write, &answer);
            match answer {
                Ok(part) => {
                    self.all_sent().insert(number, part);
                    return Ok(());
                }
                Err(failure) => patience.after(failure).await?,
            }
        }
    }

    /// Makes an object of the parts. The version is for ranged reads. If the outcome is unknown, the object may be there
    /// or appear later: look again, or upload it again.
    pub async fn finish(self) -> Result<Version> {
        let parts: Vec<_> = self.all_sent().values().cloned().collect();
        let needed = self.parts().count();
        if parts.len() != needed {
            let (key, sent) = (&self.key, parts.len());
            return Err(Error::invalid(format!("`{key}` has {needed} parts, and {sent} were sent")));
        }
        let mut patience = self.client.patience_for(UPLOAD_END_WAIT);
        let mut in_doubt = false;
        loop {
            let failure = match self.end_once(parts.clone()).await {
                Ok(version) => return Ok(version),
                Err(failure) => failure,
            };
            in_doubt |= may_have_happened(&failure);
            // Also when it is refused for good: an earlier try of ours may be the reason.
            if matches!(failure.cause, Cause::Unanswered | Cause::Final(_))
                && let Some(version) = self.find().await
            {
                return Ok(version);
            }
            patience.after(failure).await.map_err(|error| doubtful(error, in_doubt))?;
        }
    }

    /// Gives up, and frees the room that the parts take up.
    pub async fn abort(self) -> Result<()> {
        let mut patience = self.client.patience();
        loop {
            let sent = self.client.sent(Verb::Delete, self.purpose, 0);
            let answer = self.client.in_time(self.client.store.upload_abort(&self.key, &self.id)).await;
            sent.ended(outcome(&answer, |()| Outcome::Ok), 0);
            self.client.note(RequestClass::Write, &answer);
            match answer {
                Ok(()) => return Ok(()),
                Err(failure) => patience.after(failure).await?,
            }
        }
    }

    async fn end_once(&self, parts: Vec<PartId>) -> Answered<Version> {
        let sent = self.client.sent(Verb::Put, self.purpose, 0);
        let answer = self.client.store.upload_end(&self.key, &self.id, parts);
        let answer = self.client.within(UPLOAD_END_WAIT, answer).await;
        sent.ended(outcome(&answer, |_| Outcome::Ok), 0);
        self.client.note(RequestClass::Write, &answer);
        answer
    }

    /// The object, if it is there with the right length.
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
