//! Stores in buckets: S3 and compatible, Google, Azure, through the crate `object_store`.
//!
//! The retries of that crate are off. It would repeat conditional puts after 5xx, 408 and 429, so that a put that was
//! carried out returns "precondition failed": a won race that looks lost. Every call here is one request, and its
//! answer is interpreted by the HTTP status (`http`), not by the error of the crate. Requests to S3 are dated with the
//! store time if the machine's own clock is wrong (`sign`).

mod address;
mod aws_files;
mod http;
mod large;
mod sign;

pub use address::{AccessKey, BucketAddress, Provider};

use ::http::StatusCode;
use bytes::Bytes;
use leasehold_core::limits::OBJECT_BYTES_MAX;
use leasehold_core::oversize;
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
use crate::store::{
    Answer, Cause, Cursor, Failure, Get, List, ListEntry, Object, Page, PartId, PutAnswer, Ranged, Store,
    UploadId, Version, When,
};
use http::Exchange;

/// Traits of `object_store`'s three clients that are used here.
trait Remote: ObjectStore + PaginatedListStore + MultipartStore {}
impl<T: ObjectStore + PaginatedListStore + MultipartStore> Remote for T {}

/// Store in a bucket.
#[derive(Debug)]
pub struct BucketStore {
    remote: Arc<dyn Remote>,
    clock: Arc<Clock>,
    host: Arc<dyn Host>,
    address: BucketAddress,
}

impl BucketStore {
    /// Creates a client of the bucket at this address. Sends no request.
    pub fn open(mut address: BucketAddress, host: &Arc<dyn Host>) -> Result<Self> {
        let clock = Arc::new(Clock::dated(host.clone()));
        let remote = address.connect(&clock, host)?;
        Ok(Self { remote, clock, host: host.clone(), address })
    }

    fn path(&self, key: &str) -> Result<Path, Failure> {
        Path::parse(format!("{}{key}", self.address.prefix)).map_err(|error| {
            Failure::permanent(Kind::Invalid, format!("key `{key}` is invalid for this store")).because(error)
        })
    }

    async fn send<T>(&self, call: impl Future<Output = object_store::Result<T>>) -> Result<T, Refused> {
        let (result, exchange) = http::observed(call).await;
        result.map_err(|error| Refused { exchange, error })
    }

    async fn read(&self, path: &Path, options: GetOptions) -> Result<(Bytes, ObjectMeta), Refused> {
        self.read_up_to(u64::MAX, path, options).await
    }

    /// Reads an object, unless it is too large. Dropping the answer closes the connection, so that the bytes are not
    /// transferred.
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
                return Ok((oversize::placeholder(meta.size).into(), meta));
            }
            Ok((answer.bytes().await?, meta))
        };
        self.send(call).await
    }

    fn object(&self, body: Bytes, meta: &ObjectMeta) -> Result<Object, Failure> {
        let version = self.version(meta.e_tag.as_deref(), meta.version.as_deref())?;
        Ok(Object { body, version })
    }

    /// Creates a version. S3 and Azure identify versions by etag. Google uses the generation for conditional writes and
    /// the etag for conditional reads, so both are kept.
    fn version(&self, e_tag: Option<&str>, generation: Option<&str>) -> Result<Version, Failure> {
        let Some(e_tag) = e_tag else {
            let message = format!(
                "{} sends no etag, which conditional writes need; use another store, or check for a proxy that answers instead",
                self.describe()
            );
            return Err(Failure::permanent(Kind::Invalid, message));
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
            Some(ListEntry { key: own(&meta.location)?, modified, size: meta.size })
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
                // Without an etag the outcome is unknown: the answer may not be the store's.
                Ok(put) => self
                    .version(put.e_tag.as_deref(), put.version.as_deref())
                    .map(PutAnswer::Written)
                    .map_err(|failure| Failure { cause: Cause::Unanswered, ..failure }),
                Err(refused) if refused.is_about(when) => Ok(PutAnswer::Refused),
                // A put without a version can only miss the bucket.
                Err(refused) if refused.is(StatusCode::NOT_FOUND) => Err(self.address.no_bucket(refused)),
                Err(refused) => Err(self.address.explain(refused)),
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let path = self.path(key)?;
            match self.send(self.remote.delete(&path)).await {
                // Azure answers a delete of a missing object with a good status around a bad one.
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
                // The page arrived, but `object_store` cannot parse one of its keys.
                Err(Refused { error: error @ object_store::Error::InvalidPath { .. }, .. }) => {
                    let message = format!("{} has an invalid key: {error}; remove it", self.describe());
                    Err(Failure::permanent(Kind::Corrupt, message).because(error))
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

    /// Returns a store with connections of its own, but a shared clock.
    fn detached(&self) -> Option<Arc<dyn Store>> {
        let mut address = self.address.clone();
        let remote = address.connect(&self.clock, &self.host).ok()?;
        Some(Arc::new(Self { remote, clock: self.clock.clone(), host: self.host.clone(), address }))
    }
}

/// Etag for a conditional read.
fn e_tag(version: &Version) -> String {
    version.as_str().split(SEPARATOR).next().unwrap_or_default().to_owned()
}

fn update_version(version: &Version) -> UpdateVersion {
    let mut parts = version.as_str().split(SEPARATOR).map(str::to_owned);
    UpdateVersion { e_tag: parts.next(), version: parts.next() }
}

/// Failed call, with the HTTP exchange.
#[derive(Debug)]
struct Refused {
    exchange: Exchange,
    error: object_store::Error,
}

impl Refused {
    fn is(&self, status: StatusCode) -> bool {
        self.exchange == Exchange::Answered(status)
    }

    /// True if the condition was refused: 412 and 409, also 404 under if-match, and 304 under if-none-match on some
    /// compatible stores; not for a missing bucket.
    fn is_about(&self, when: &When) -> bool {
        let Exchange::Answered(status) = self.exchange else { return false };
        let speaks = [StatusCode::PRECONDITION_FAILED, StatusCode::CONFLICT, StatusCode::NOT_MODIFIED];
        match when {
            When::Always => false,
            When::Absent => speaks.contains(&status),
            When::Unchanged(_) => speaks.contains(&status) || self.is_without_object(),
        }
    }

    /// True for 404 that is not due to a missing bucket: the object or the upload does not exist.
    fn is_without_object(&self) -> bool {
        self.is(StatusCode::NOT_FOUND) && !self.is_without_bucket()
    }

    fn is_without_bucket(&self) -> bool {
        self.says("NoSuchBucket") || self.says("ContainerNotFound")
    }

    /// True if the answer has this error code.
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
            // The credentials could not be loaded, which may pass, as during their renewal; or the request was rejected
            // for its date, and the next attempt is signed with the date of the refusal. Either way it was surely not
            // carried out.
            Exchange::Unsent | Exchange::Unreached | Exchange::Misdated => Cause::Unreached,
            Exchange::Unanswered => Cause::Unanswered,
            Exchange::Answered(status) => match status.as_u16() {
                // 409 means a concurrent request for the same key: wait and retry.
                409 | 429 | 503 => Cause::Throttled,
                401 | 403 => Cause::Final(Kind::Denied),
                400 if self.says("ExpiredToken") || self.says("InvalidToken") => Cause::Final(Kind::Denied),
                400 if self.says("RequestTimeout") => Cause::Unanswered,
                501 => Cause::Final(Kind::Invalid),
                // A good status, but an incomplete body.
                200..300 | 408 | 500.. => Cause::Unanswered,
                _ => Cause::Final(Kind::Invalid),
            },
        }
    }
}

impl BucketAddress {
    /// Failure of a request to a missing bucket.
    fn no_bucket(&self, refused: Refused) -> Failure {
        let (bucket, place) = (&self.bucket, self.place());
        let message = format!("bucket `{bucket}` does not exist at {place}; create it or check its name");
        Failure::permanent(Kind::Invalid, message).because(refused.error)
    }

    /// Failure with a message that explains the problem and what to do.
    fn explain(&self, refused: Refused) -> Failure {
        if refused.is_without_bucket() {
            return self.no_bucket(refused);
        }
        let cause = refused.cause();
        let store = self.describe();
        let message = match cause {
            _ if refused.exchange == Exchange::Misdated || refused.says("RequestTimeTooSkewed") => {
                format!("{store} refuses requests because this machine's clock is wrong; set the clock")
            }
            Cause::Unreached if refused.exchange == Exchange::Unsent => {
                format!("no credentials for {store}; {}", self.provider.credentials_hint())
            }
            Cause::Unreached => {
                format!("{store} cannot be reached at {}; check the address and the network", self.place())
            }
            Cause::Unanswered => format!("no usable answer from {store}"),
            Cause::Throttled => format!("{store} is throttling requests"),
            Cause::Final(Kind::Denied) if refused.says("ExpiredToken") => {
                format!("{store} refuses these credentials, which have expired; renew them")
            }
            Cause::Final(Kind::Denied) => format!(
                "{store} refuses these credentials; check them and their permissions to read, write, list and delete"
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
