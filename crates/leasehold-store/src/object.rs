//! Buckets: S3 and compatible, Google, Azure, through the one crate `object_store`.
//!
//! Its own retries are off. It would repeat puts on condition after 5xx, 408 and 429 by itself, so that a put
//! that was carried out comes back as "precondition failed": a race won that looks lost. Every call here is one
//! request, and what its answer means is decided from the status that was seen on the wire
//! (`http`), not from the error it was turned into. Requests to S3 are dated by the store's time where the
//! machine's own clock is wrong (`sign`).

mod address;
mod aws_files;
mod http;
mod large;
mod sign;

pub use address::{AccessKey, BucketAddress, Provider};

use ::http::StatusCode;
use bytes::Bytes;
use leasehold_core::limits::OBJECT_BYTES_MAX;
use leasehold_core::unread::unread;
use leasehold_core::{Error, Kind, Result, StoreTime};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use std::error::Error as StdError;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use crate::clock::Clock;
use crate::host::Host;
use crate::seam::{
    Answer, Cause, Cursor, Entry, Failure, Get, List, Object, Page, PartId, PutAnswer, Ranged, Store,
    UploadId, Version, When,
};
use http::Exchange;

/// What we use of `object_store`'s three clients.
trait Remote: ObjectStore + PaginatedListStore + MultipartStore {}
impl<T: ObjectStore + PaginatedListStore + MultipartStore> Remote for T {}

/// Objects in a bucket.
#[derive(Debug)]
pub struct BucketStore {
    remote: Arc<dyn Remote>,
    clock: Arc<Clock>,
    host: Arc<dyn Host>,
    address: BucketAddress,
}

impl BucketStore {
    /// A client of the bucket at this address. Sends nothing yet.
    pub fn open(mut address: BucketAddress, host: &Arc<dyn Host>) -> Result<Self> {
        let clock = Arc::new(Clock::dated(host.clone()));
        let remote = address.connect(&clock, host)?;
        Ok(Self { remote, clock, host: host.clone(), address })
    }

    fn path(&self, key: &str) -> Result<Path, Failure> {
        Path::parse(format!("{}{key}", self.address.prefix)).map_err(|error| {
            Failure::last(Kind::Invalid, format!("key `{key}` cannot be used")).because(error)
        })
    }

    async fn send<T>(&self, call: impl Future<Output = object_store::Result<T>>) -> Result<T, Refused> {
        let (result, exchange) = http::observed(call).await;
        result.map_err(|error| Refused { exchange, error })
    }

    async fn read(&self, path: &Path, options: GetOptions) -> Result<(Bytes, ObjectMeta), Refused> {
        self.read_up_to(u64::MAX, path, options).await
    }

    /// Reads an object unless it is too large. Dropping the answer closes its connection, so the bytes are not sent for
    /// nothing.
    async fn read_whole(&self, path: &Path, options: GetOptions) -> Result<(Bytes, ObjectMeta), Refused> {
        self.read_up_to(OBJECT_BYTES_MAX, path, options).await
    }

    async fn read_up_to(
        &self,
        max: u64,
        path: &Path,
        options: GetOptions,
    ) -> Result<(Bytes, ObjectMeta), Refused> {
        let call = async {
            let answer = self.remote.get_opts(path, options).await?;
            let meta = answer.meta.clone();
            if meta.size > max {
                return Ok((unread(meta.size).into(), meta));
            }
            Ok((answer.bytes().await?, meta))
        };
        self.send(call).await
    }

    fn object(&self, body: Bytes, meta: &ObjectMeta) -> Result<Object, Failure> {
        let version = self.version(meta.e_tag.as_deref(), meta.version.as_deref())?;
        Ok(Object { body, version })
    }

    /// S3 and Azure know versions by etag. Google writes on condition of the generation and reads on condition
    /// of the etag, so both are kept.
    fn version(&self, e_tag: Option<&str>, generation: Option<&str>) -> Result<Version, Failure> {
        let Some(e_tag) = e_tag else {
            let message = format!("{} sends no etag, and writes on condition need one", self.describe());
            return Err(Failure::last(Kind::Invalid, message));
        };
        Ok(match (self.address.provider, generation) {
            (Provider::Google, Some(generation)) => Version::new(format!("{e_tag}{SEPARATOR}{generation}")),
            _ => Version::new(e_tag),
        })
    }

    fn page(&self, answer: object_store::list::PaginatedListResult) -> Page {
        let prefix = self.address.prefix.as_str();
        let own = |path: &Path| path.as_ref().strip_prefix(prefix).map(str::to_owned);
        let entry = |meta: &ObjectMeta| {
            let modified = StoreTime::from_millis(meta.last_modified.timestamp_millis());
            Some(Entry { key: own(&meta.location)?, modified, size: meta.size })
        };
        let result = answer.result;
        Page {
            entries: result.objects.iter().filter_map(entry).collect(),
            prefixes: result.common_prefixes.iter().filter_map(own).map(|prefix| prefix + "/").collect(),
            next: answer.page_token.map(Cursor),
        }
    }
}

const SEPARATOR: char = ' ';

impl Store for BucketStore {
    fn get<'a>(&'a self, key: &'a str, unless: Option<&'a Version>) -> Answer<'a, Get> {
        Box::pin(async move {
            let path = self.path(key)?;
            let options = GetOptions { if_none_match: unless.map(e_tag), ..GetOptions::default() };
            match self.read_whole(&path, options).await {
                Ok((body, meta)) => self.object(body, &meta).map(Get::Found),
                Err(refused) if refused.is(StatusCode::NOT_MODIFIED) => Ok(Get::Unchanged),
                Err(refused) if refused.is_without_object() => Ok(Get::Missing),
                Err(refused) => Err(self.address.explain(refused)),
            }
        })
    }

    fn put<'a>(&'a self, key: &'a str, body: Bytes, when: &'a When) -> Answer<'a, PutAnswer> {
        Box::pin(async move {
            let path = self.path(key)?;
            let mode = match when {
                When::Always => PutMode::Overwrite,
                When::Absent => PutMode::Create,
                When::Unchanged(version) => PutMode::Update(update_version(version)),
            };
            let options = PutOptions { mode, ..PutOptions::default() };
            match self.send(self.remote.put_opts(&path, PutPayload::from(body), options)).await {
                // Without an etag nobody knows what it was that answered: perhaps it has written, perhaps not.
                Ok(put) => self
                    .version(put.e_tag.as_deref(), put.version.as_deref())
                    .map(PutAnswer::Written)
                    .map_err(|failure| Failure { cause: Cause::Unanswered, ..failure }),
                Err(refused) if refused.is_about(when) => Ok(PutAnswer::Refused),
                // A put that names no version needs nothing to be there, but the bucket.
                Err(refused) if refused.is(StatusCode::NOT_FOUND) => Err(self.address.no_bucket(refused)),
                Err(refused) => Err(self.address.explain(refused)),
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let path = self.path(key)?;
            match self.send(self.remote.delete(&path)).await {
                // Azure answers a removal of nothing with a good status around a bad one.
                Err(Refused { error: object_store::Error::NotFound { .. }, exchange })
                    if exchange != Exchange::Answered(StatusCode::NOT_FOUND) =>
                {
                    Ok(())
                }
                Err(refused) if !refused.is(StatusCode::NOT_FOUND) || refused.is_without_bucket() => {
                    Err(self.address.explain(refused))
                }
                _ => Ok(()),
            }
        })
    }

    fn list<'a>(&'a self, list: &'a List) -> Answer<'a, Page> {
        Box::pin(async move {
            let prefix = format!("{}{}", self.address.prefix, list.prefix);
            let options = PaginatedListOptions {
                offset: list.after.as_ref().map(|after| format!("{}{after}", self.address.prefix)),
                delimiter: list.delimited.then_some("/".into()),
                max_keys: Some(list.limit),
                page_token: list.cursor.clone().map(|cursor| cursor.0),
                ..PaginatedListOptions::default()
            };
            let call = self.remote.list_paginated((!prefix.is_empty()).then_some(&prefix), options);
            match self.send(call).await {
                Ok(answer) => Ok(self.page(answer)),
                // The page arrived, but `object_store` cannot read one of its keys, and never will.
                Err(Refused { error: error @ object_store::Error::InvalidPath { .. }, .. }) => {
                    let message =
                        format!("{} holds a key that cannot be read: {error}; remove it", self.describe());
                    Err(Failure::last(Kind::Corrupt, message).because(error))
                }
                Err(refused) => Err(self.address.explain(refused)),
            }
        })
    }

    fn get_range<'a>(
        &'a self,
        key: &'a str,
        range: Range<u64>,
        unchanged: Option<&'a Version>,
    ) -> Answer<'a, Ranged> {
        Box::pin(self.read_range(key, range, unchanged))
    }

    fn upload_begin<'a>(&'a self, key: &'a str, _part_bytes: u64) -> Answer<'a, UploadId> {
        Box::pin(self.begin(key))
    }

    fn upload_part<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        number: usize,
        body: Bytes,
    ) -> Answer<'a, PartId> {
        Box::pin(self.send_part(key, upload, number, body))
    }

    fn upload_end<'a>(
        &'a self,
        key: &'a str,
        upload: &'a UploadId,
        parts: Vec<PartId>,
    ) -> Answer<'a, Version> {
        Box::pin(self.end(key, upload, parts))
    }

    fn upload_abort<'a>(&'a self, key: &'a str, upload: &'a UploadId) -> Answer<'a, ()> {
        Box::pin(self.abort(key, upload))
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn describe(&self) -> String {
        self.address.describe()
    }

    /// With connections of its own, but the same clock: what one learns of the store's time, the other knows.
    fn apart(&self) -> Option<Arc<dyn Store>> {
        let mut address = self.address.clone();
        let remote = address.connect(&self.clock, &self.host).ok()?;
        Some(Arc::new(Self { remote, clock: self.clock.clone(), host: self.host.clone(), address }))
    }
}

/// What a read on condition names.
fn e_tag(version: &Version) -> String {
    version.as_str().split(SEPARATOR).next().unwrap_or_default().to_owned()
}

fn update_version(version: &Version) -> UpdateVersion {
    let mut parts = version.as_str().split(SEPARATOR).map(str::to_owned);
    UpdateVersion { e_tag: parts.next(), version: parts.next() }
}

/// A call without a usable result, and what was seen on the wire.
#[derive(Debug)]
struct Refused {
    exchange: Exchange,
    error: object_store::Error,
}

impl Refused {
    fn is(&self, status: StatusCode) -> bool {
        self.exchange == Exchange::Answered(status)
    }

    /// 412 and 409 speak of the condition. So does 404 under if-match, and 304 under if-none-match on some
    /// compatibles; a missing bucket does not.
    fn is_about(&self, when: &When) -> bool {
        let Exchange::Answered(status) = self.exchange else { return false };
        let speaks = [StatusCode::PRECONDITION_FAILED, StatusCode::CONFLICT, StatusCode::NOT_MODIFIED];
        match when {
            When::Always => false,
            When::Absent => speaks.contains(&status),
            When::Unchanged(_) => speaks.contains(&status) || self.is_without_object(),
        }
    }

    /// 404, and not for want of a bucket: there is no such object, or no such upload.
    fn is_without_object(&self) -> bool {
        self.is(StatusCode::NOT_FOUND) && !self.is_without_bucket()
    }

    fn is_without_bucket(&self) -> bool {
        self.says("NoSuchBucket") || self.says("ContainerNotFound")
    }

    /// Whether the store gave this code as its reason.
    fn says(&self, code: &str) -> bool {
        let code = format!("<Code>{code}</Code>");
        let mut next: Option<&(dyn StdError + 'static)> = Some(&self.error);
        while let Some(error) = next {
            if error.to_string().contains(&code) {
                return true;
            }
            next = error.source();
        }
        false
    }

    fn cause(&self) -> Cause {
        match self.exchange {
            // The credentials could not be had, which may pass, as when they are being renewed; or it was turned away
            // at the door for its date, and the next try is signed with the time that the refusal told. Either way
            // it surely was not carried out.
            Exchange::Unsent | Exchange::Unreached | Exchange::Misdated => Cause::Unreached,
            Exchange::Unanswered => Cause::Unanswered,
            Exchange::Answered(status) => match status.as_u16() {
                // 409 speaks of another request for the same key at the same time: wait and ask again.
                409 | 429 | 503 => Cause::Throttled,
                401 | 403 => Cause::Final(Kind::Denied),
                400 if self.says("ExpiredToken") || self.says("InvalidToken") => Cause::Final(Kind::Denied),
                400 if self.says("RequestTimeout") => Cause::Unanswered,
                501 => Cause::Final(Kind::Invalid),
                // A good status, but the body did not arrive whole.
                200..300 | 408 | 500.. => Cause::Unanswered,
                _ => Cause::Final(Kind::Invalid),
            },
        }
    }
}

impl BucketAddress {
    /// The failure of a request that finds no bucket.
    fn no_bucket(&self, refused: Refused) -> Failure {
        let (bucket, place) = (&self.bucket, self.place());
        let message = format!("bucket `{bucket}` does not exist at {place}; create it, or correct the name");
        Failure::last(Kind::Invalid, message).because(refused.error)
    }

    /// The failure in one sentence that says what is wrong and what to do.
    fn explain(&self, refused: Refused) -> Failure {
        if refused.is_without_bucket() {
            return self.no_bucket(refused);
        }
        let cause = refused.cause();
        let store = self.describe();
        let message = match cause {
            _ if refused.exchange == Exchange::Misdated || refused.says("RequestTimeTooSkewed") => {
                format!("{store} refuses requests because this machine's clock is wrong; set it")
            }
            Cause::Unreached if refused.exchange == Exchange::Unsent => {
                format!("no credentials for {store}; {}", self.provider.credentials_hint())
            }
            Cause::Unreached => {
                format!("{store} cannot be reached at {}; check the address and the network", self.place())
            }
            Cause::Unanswered => format!("{store} did not give a usable answer"),
            Cause::Throttled => format!("{store} asks to slow down"),
            Cause::Final(Kind::Denied) => format!(
                "{store} refuses these credentials; check them, and that they may read, write, list and delete"
            ),
            Cause::Final(_) => format!(
                "{store} refuses the request; check the region, the endpoint and the bucket's settings"
            ),
        };
        let (cause, kind) = match cause {
            Cause::Final(kind) => (cause, kind),
            _ if refused.exchange == Exchange::Unsent => (cause, Kind::Denied),
            _ => (cause, Kind::Unavailable),
        };
        Failure { cause, error: Error::new(kind, message).because(refused.error) }
    }
}
