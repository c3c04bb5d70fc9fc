//! Large objects: ranged reads, and uploads in parts.
//!
//! All three clients of `object_store` upload in parts. On Azure nothing is sent for the beginning and the abort of an
//! upload: unused parts are removed after a week.

use bytes::Bytes;
use http::StatusCode;
use object_store::multipart::PartId as RemotePartId;
use object_store::{GetOptions, GetRange, PutPayload};
use std::ops::Range;

use super::{BucketStore, Refused, e_tag};
use crate::parts::{check_range, parts_mismatch, range_beyond_end, upload_not_found};
use crate::store::{Failure, PartId, Ranged, UploadId, Version};

impl BucketStore {
    pub(super) async fn read_range(
        &self,
        key: &str,
        range: Range<u64>,
        unchanged: Option<&Version>,
    ) -> Result<Ranged, Failure> {
        check_range(key, &range)?;
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: unchanged.map(e_tag),
            ..GetOptions::default()
        };
        match self.read(&self.path(key)?, options).await {
            Ok((body, meta)) => self.object(body, &meta).map(Ranged::Found),
            Err(refused) if refused.is(StatusCode::PRECONDITION_FAILED) => Ok(Ranged::Changed),
            Err(refused) if refused.is(StatusCode::RANGE_NOT_SATISFIABLE) => {
                Err(range_beyond_end(key, &range))
            }
            Err(refused) if refused.is_without_object() => Ok(Ranged::Missing),
            Err(refused) => Err(self.address.explain(refused)),
        }
    }

    pub(super) async fn begin(&self, key: &str) -> Result<UploadId, Failure> {
        let path = self.path(key)?;
        let begun = self.send(self.remote.create_multipart(&path)).await;
        begun.map(UploadId::new).map_err(|refused| self.address.explain(refused))
    }

    pub(super) async fn send_part(
        &self,
        key: &str,
        upload: &UploadId,
        number: usize,
        body: Bytes,
    ) -> Result<PartId, Failure> {
        let (path, id) = (self.path(key)?, upload.as_str().to_owned());
        let sent = self.send(self.remote.put_part(&path, &id, number, PutPayload::from(body))).await;
        sent.map(|part| PartId::new(part.content_id)).map_err(|refused| self.in_upload(key, refused))
    }

    pub(super) async fn end(
        &self,
        key: &str,
        upload: &UploadId,
        parts: Vec<PartId>,
    ) -> Result<Version, Failure> {
        // Without parts `object_store` would send an empty part first: two requests.
        if parts.is_empty() {
            return Err(parts_mismatch(key));
        }
        let (path, id) = (self.path(key)?, upload.as_str().to_owned());
        let parts = parts.iter().map(|part| RemotePartId { content_id: part.as_str().to_owned() }).collect();
        let ended = self.send(self.remote.complete_multipart(&path, &id, parts)).await;
        let put = ended.map_err(|refused| self.in_upload(key, refused))?;
        self.version(put.e_tag.as_deref(), put.version.as_deref())
    }

    pub(super) async fn abort(&self, key: &str, upload: &UploadId) -> Result<(), Failure> {
        let (path, id) = (self.path(key)?, upload.as_str().to_owned());
        match self.send(self.remote.abort_multipart(&path, &id)).await {
            Err(refused) if !refused.is_without_object() => Err(self.address.explain(refused)),
            _ => Ok(()),
        }
    }

    fn in_upload(&self, key: &str, refused: Refused) -> Failure {
        if refused.is_without_object() { upload_not_found(key) } else { self.address.explain(refused) }
    }
}
