//! Shared by the tests: a client without retries, and the path of the real server.

use std::path::PathBuf;

use object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store::{
    ClientOptions, ObjectStoreExt, PutMode, PutOptions, PutResult, RetryConfig, UpdateVersion,
};

pub(crate) const BUCKET: &str = "bucket-1";

/// Path of the real server.
pub(crate) fn binary() -> PathBuf {
    crate::program("LEASEHOLD_WEED")
}

/// S3 client that sends one request per call.
pub(crate) fn client(endpoint: &str) -> AmazonS3 {
    client_of(endpoint, BUCKET)
}

/// S3 client for another bucket.
pub(crate) fn client_of(endpoint: &str, bucket: &str) -> AmazonS3 {
    builder(endpoint, bucket).with_disable_bulk_delete(true).build().unwrap()
}

/// Builder of both, with which a delete would be a `POST ?delete`.
pub(crate) fn builder(endpoint: &str, bucket: &str) -> AmazonS3Builder {
    AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_bucket_name(bucket)
        .with_region("us-east-1")
        .with_access_key_id("test")
        .with_secret_access_key("testsecret")
        .with_virtual_hosted_style_request(false)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .with_client_options(ClientOptions::new().with_allow_http(true))
}

pub(crate) async fn create(
    store: &AmazonS3,
    key: &str,
    body: &'static str,
) -> object_store::Result<PutResult> {
    put(store, key, body, PutMode::Create).await
}

pub(crate) async fn update(
    store: &AmazonS3,
    key: &str,
    body: &'static str,
    old: &PutResult,
) -> object_store::Result<PutResult> {
    put(store, key, body, PutMode::Update(UpdateVersion { e_tag: old.e_tag.clone(), version: None })).await
}

pub(crate) async fn put(
    store: &AmazonS3,
    key: &str,
    body: &'static str,
    mode: PutMode,
) -> object_store::Result<PutResult> {
    object_store::ObjectStore::put_opts(store, &key.into(), body.into(), PutOptions::from(mode)).await
}

pub(crate) async fn read(store: &AmazonS3, key: &str) -> object_store::Result<String> {
    let bytes = store.get(&key.into()).await?.bytes().await?;
    Ok(String::from_utf8(bytes.to_vec()).unwrap())
}

pub(crate) async fn is_missing(store: &AmazonS3, key: &str) -> bool {
    matches!(read(store, key).await, Err(object_store::Error::NotFound { .. }))
}
