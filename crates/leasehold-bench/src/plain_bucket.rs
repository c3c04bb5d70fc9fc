//! Baseline of buckets: the same requests as plain calls of `object_store`, with the same settings.

use anyhow::{Context, ensure};
use bytes::Bytes;
use leasehold_core::limits::{PAGE_KEYS_MAX, RESPONSE_TIMEOUT};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    RetryConfig, UpdateVersion,
};
use std::ops::Range;
use std::time::Duration;

use crate::operation::{BenchRequest, RequestSlot, body};
use crate::round::Calls;

pub(crate) struct PlainBucket {
    s3: AmazonS3,
    prefix: &'static str,
}

impl PlainBucket {
    /// Opens the bucket. The settings must equal those in `leasehold-store`, `object/address.rs`.
    pub(crate) fn open(endpoint: &str, bucket: &str, prefix: &'static str) -> anyhow::Result<Self> {
        let options = ClientOptions::new()
            .with_allow_http(true)
            .with_connect_timeout(Duration::from_secs(5))
            .with_timeout(2 * RESPONSE_TIMEOUT);
        let s3 = AmazonS3Builder::new()
            .with_endpoint(endpoint)
            .with_region("us-east-1")
            .with_access_key_id("test")
            .with_secret_access_key("testsecret")
            .with_bucket_name(bucket)
            .with_client_options(options)
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .with_disable_bulk_delete(true)
            .build()?;
        Ok(Self { s3, prefix })
    }

    /// Returns the bytes in a range of an object.
    pub(crate) async fn range(&self, key: &str, range: Range<u64>) -> anyhow::Result<Bytes> {
        Ok(self.s3.get_range(&self.path(key)?, range).await?)
    }

    fn path(&self, key: &str) -> anyhow::Result<Path> {
        Ok(Path::parse(format!("{}{key}", self.prefix))?)
    }

    async fn put(&self, key: &str, payload: PutPayload, mode: PutMode) -> anyhow::Result<UpdateVersion> {
        let options = PutOptions { mode, ..PutOptions::default() };
        Ok(self.s3.put_opts(&self.path(key)?, payload, options).await?.into())
    }
}

impl Calls for PlainBucket {
    type Version = UpdateVersion;

    async fn version(&self, key: &str) -> anyhow::Result<UpdateVersion> {
        let meta = self.s3.get(&self.path(key)?).await?.meta;
        Ok(UpdateVersion { e_tag: meta.e_tag, version: meta.version })
    }

    async fn call(
        &self,
        operation: BenchRequest,
        slot: RequestSlot,
        known: &mut Option<UpdateVersion>,
    ) -> anyhow::Result<()> {
        match operation {
            BenchRequest::Put => {
                self.put(&slot.key(), body().into(), PutMode::Create).await?;
            }
            BenchRequest::Replace => {
                let mode = PutMode::Update(known.take().context("no version to replace")?);
                *known = Some(self.put(&slot.own_key(), body().into(), mode).await?);
            }
            BenchRequest::Index => {
                self.put(&slot.key(), PutPayload::default(), PutMode::Overwrite).await?;
            }
            BenchRequest::Get => {
                let answer = self.s3.get_opts(&self.path(&slot.own_key())?, GetOptions::default()).await?;
                ensure!(!answer.bytes().await?.is_empty(), "nothing was read");
            }
            BenchRequest::Unmodified => {
                let if_none_match = known.as_ref().and_then(|known| known.e_tag.clone());
                let options = GetOptions { if_none_match, ..GetOptions::default() };
                let answer = self.s3.get_opts(&self.path(&slot.own_key())?, options).await;
                ensure!(matches!(answer, Err(Error::NotModified { .. })), "the object has changed");
            }
            BenchRequest::List => {
                let options = PaginatedListOptions {
                    offset: slot.page_after().map(|after| format!("{}{after}", self.prefix)),
                    max_keys: Some(PAGE_KEYS_MAX),
                    ..PaginatedListOptions::default()
                };
                let prefix = format!("{}{}/", self.prefix, slot.directory);
                let keys = self.s3.list_paginated(Some(&prefix), options).await?.result.objects.len();
                ensure!(keys == PAGE_KEYS_MAX, "a page of {keys} keys");
            }
            BenchRequest::Delete => self.s3.delete(&self.path(&slot.key())?).await?,
        }
        Ok(())
    }
}
