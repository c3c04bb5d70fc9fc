//! Address of a bucket, and its client.

use leasehold_core::{Error, Result, limits};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientConfigKey, ClientOptions, RetryConfig, StaticCredentialProvider};
use std::sync::Arc;

use super::http::{DatedConnector, Endpoint};
use super::sign::Signer;
use super::{Remote, aws_files};
use crate::clock::Clock;
use crate::host::Host;

/// Protocol of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// S3 and compatible.
    Aws,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

impl Provider {
    pub(super) fn credentials_hint(self) -> &'static str {
        match self {
            Provider::Aws => "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            Provider::Google => "set GOOGLE_APPLICATION_CREDENTIALS to the path of a service account key",
            Provider::Azure => "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        }
    }
}

/// Access key for S3.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey {
    /// Id of the key.
    pub id: String,
    /// Secret of the key.
    pub secret: String,
}

impl std::fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Address of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketAddress {
    /// Protocol of the bucket.
    pub provider: Provider,
    /// Name of the bucket.
    pub bucket: String,
    /// Prefix of every key: empty, or ends in a slash.
    pub prefix: String,
    /// Endpoint; none for the provider's own.
    pub endpoint: Option<String>,
    /// Region; none for the provider's environment variables and files.
    pub region: Option<String>,
    /// Access key; none for the provider's environment variables and files. S3 only.
    pub access_key: Option<AccessKey>,
}

impl BucketAddress {
    /// Parses `s3://bucket/prefix`, `gs://…` or `az://…`; none for other schemes.
    #[must_use]
    pub fn parse(uri: &str) -> Option<Result<Self>> {
        let (scheme, rest) = uri.split_once("://")?;
        let provider = match scheme {
            "s3" => Provider::Aws,
            "gs" => Provider::Google,
            "az" => Provider::Azure,
            _ => return None,
        };
        Some(Self::from_parts(provider, uri, rest))
    }

    fn from_parts(provider: Provider, uri: &str, rest: &str) -> Result<Self> {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_matches('/');
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if rest.contains('@') && !bucket.bytes().all(plain) {
            return Err(no_keys("store address"));
        }
        if bucket.is_empty() || !bucket.bytes().all(plain) {
            return Err(Error::invalid(format!(
                "`{uri}` names no bucket; use an address like s3://bucket/prefix"
            )));
        }
        if !prefix.is_empty() {
            leasehold_core::keys::check_key(prefix)?;
        }
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Self { provider, bucket: bucket.into(), prefix, endpoint: None, region: None, access_key: None })
    }

    /// Name of the bucket for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        let scheme = match self.provider {
            Provider::Aws => "s3",
            Provider::Google => "gs",
            Provider::Azure => "az",
        };
        format!("{scheme}://{}/{}", self.bucket, self.prefix).trim_end_matches('/').to_owned()
    }

    pub(super) fn place(&self) -> String {
        match (&self.endpoint, self.provider) {
            (Some(endpoint), _) => endpoint.clone(),
            (None, Provider::Aws) => "Amazon S3".into(),
            (None, Provider::Google) => "Google Cloud Storage".into(),
            (None, Provider::Azure) => "Azure Blob Storage".into(),
        }
    }

    /// Creates a client. The endpoint may come from a variable or a profile: the effective one is stored.
    pub(super) fn connect(&mut self, clock: &Arc<Clock>, host: &Arc<dyn Host>) -> Result<Arc<dyn Remote>> {
        let described = self.describe();
        let (s3, google, azure) = (self.s3(), self.google(), self.azure());
        let mut connector = |endpoint: Option<String>, parts| {
            self.endpoint.clone_from(&endpoint);
            DatedConnector {
                clock: clock.clone(),
                host: host.clone(),
                endpoint: Endpoint { exactly: endpoint.as_deref().and_then(host_of), parts },
                signer: Signer::default(),
            }
        };
        let built = match self.provider {
            Provider::Aws => {
                let s3 = s3?;
                let endpoint = s3_endpoint(&s3);
                signing(s3, connector(endpoint, &[".s3.", ".s3-", ".s3express-"]))
            }
            Provider::Google => {
                let endpoint = google.get_config_value(&GoogleConfigKey::BaseUrl);
                check_endpoint(endpoint.as_deref())?;
                let connector = connector(endpoint, &[".storage.googleapis.com"]);
                google.with_http_connector(connector).build().map(|gs| Arc::new(gs) as _)
            }
            Provider::Azure => {
                let endpoint = azure.get_config_value(&AzureConfigKey::Endpoint);
                check_endpoint(endpoint.as_deref())?;
                let connector = connector(endpoint, &[".blob."]);
                azure.with_http_connector(connector).build().map(|az| Arc::new(az) as _)
            }
        };
        built.map_err(|error| {
            Error::invalid(format!("{described} has an invalid configuration: {error}")).because(error)
        })
    }

    fn s3(&self) -> Result<AmazonS3Builder> {
        let mut s3 = AmazonS3Builder::from_env();
        if let Some(key) = &self.access_key {
            // Separate credentials: a session token from the variables belongs to another key.
            let (key_id, secret_key) = (key.id.clone(), key.secret.clone());
            let credential = AwsCredential { key_id, secret_key, token: None };
            s3 = s3
                .with_access_key_id(&key.id)
                .with_credentials(Arc::new(StaticCredentialProvider::new(credential)));
        }
        s3 = aws_files::complete(s3)?;
        if let Some(endpoint) = &self.endpoint {
            // This configuration key takes precedence, so that no variable overrides the endpoint.
            s3 = s3.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
        }
        if let Some(region) = &self.region {
            s3 = s3.with_region(region);
        }
        let endpoint = s3_endpoint(&s3);
        check_endpoint(endpoint.as_deref())?;
        let asked = s3.get_config_value(&AmazonS3ConfigKey::Client(ClientConfigKey::AllowHttp));
        let allow_http = asked.as_deref() == Some("true") || endpoint.as_deref().is_some_and(is_loopback);
        if let Some(endpoint) = endpoint.filter(|url| url.starts_with("http://") && !allow_http) {
            return Err(Error::invalid(format!(
                "plain http to {endpoint} is not encrypted; use https, or set AWS_ALLOW_HTTP=true"
            )));
        }
        let options = client_options(allow_http);
        Ok(s3
            .with_bucket_name(&self.bucket)
            .with_client_options(options)
            .with_retry(no_retries())
            // One request per removal, as counted in the ledger.
            .with_disable_bulk_delete(true))
    }

    fn google(&self) -> GoogleCloudStorageBuilder {
        GoogleCloudStorageBuilder::from_env()
            .with_bucket_name(&self.bucket)
            .with_client_options(client_options(false))
            .with_retry(no_retries())
    }

    fn azure(&self) -> MicrosoftAzureBuilder {
        let mut azure = MicrosoftAzureBuilder::from_env().with_container_name(&self.bucket);
        if let Some(endpoint) = &self.endpoint {
            azure = azure.with_endpoint(endpoint.clone());
        }
        let is_local = self.endpoint.as_deref().is_some_and(is_loopback);
        azure.with_client_options(client_options(is_local)).with_retry(no_retries())
    }
}

/// Builds a client whose connector can re-sign requests: the credentials are known only once the client exists.
fn signing(s3: AmazonS3Builder, connector: DatedConnector) -> object_store::Result<Arc<dyn Remote>> {
    let signer = connector.signer.clone();
    let s3 = s3.with_http_connector(connector).build()?;
    signer.learn(s3.credentials());
    Ok(Arc::new(s3))
}

/// Effective endpoint, by the precedence of `object_store`.
fn s3_endpoint(s3: &AmazonS3Builder) -> Option<String> {
    let value = |key| s3.get_config_value(&key);
    value(AmazonS3ConfigKey::S3Endpoint).or_else(|| value(AmazonS3ConfigKey::Endpoint))
}

/// Disables the retries of `object_store`: [`Client`](crate::Client) retries, with the rule for lost answers.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn client_options(allow_http: bool) -> ClientOptions {
    ClientOptions::new()
        .with_allow_http(allow_http)
        // An address that drops packets is reported as soon as one that refuses connections.
        .with_connect_timeout(crate::health::REPORT_AFTER)
        // `Client` times out earlier, depending on the request, which frees the connection. This timeout is for the
        // largest part of the largest upload.
        .with_timeout(limits::response_timeout(limits::upload_part_bytes(limits::UPLOAD_BYTES_MAX)))
}

fn host_of(endpoint: &str) -> Option<String> {
    endpoint.parse::<http::Uri>().ok()?.host().map(str::to_owned)
}

/// Rejects an endpoint that is not a URL: `object_store` panics when it signs the first request to one. Endpoints come
/// from settings, variables and profile files.
fn check_endpoint(endpoint: Option<&str>) -> Result<()> {
    let Some(endpoint) = endpoint else { return Ok(()) };
    if has_user(endpoint) {
        return Err(no_keys("endpoint"));
    }
    // An endpoint that may contain a password is not shown.
    let got = if endpoint.contains('@') { String::new() } else { format!(", got `{endpoint}`") };
    let lower = endpoint.to_ascii_lowercase();
    if !["http://", "https://"].iter().any(|scheme| lower.starts_with(scheme)) {
        return Err(Error::invalid(format!("endpoint must start with http:// or https://{got}")));
    }
    if host_of(endpoint).is_none() || url::Url::parse(endpoint).is_err() {
        return Err(Error::invalid(format!("endpoint must be like https://host:port{got}")));
    }
    Ok(())
}

fn has_user(endpoint: &str) -> bool {
    endpoint.parse::<http::Uri>().is_ok_and(|uri| uri.authority().is_some_and(|it| it.as_str().contains('@')))
}

/// Error for credentials in an address, which messages would show; this one does not.
fn no_keys(what: &str) -> Error {
    Error::invalid(format!(
        "{what} must not contain a user or password; set queue.access_key_id and queue.secret_access_key, or the \
         provider's environment variables"
    ))
}

/// True for an endpoint on loopback, where plain http is no risk.
fn is_loopback(endpoint: &str) -> bool {
    host_of(endpoint).is_some_and(|host| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::Kind;

    #[test]
    fn addresses_are_read_and_named() {
        for (uri, bucket, prefix, described) in [
            ("s3://tasks", "tasks", "", "s3://tasks"),
            ("s3://tasks/", "tasks", "", "s3://tasks"),
            ("gs://tasks/a/b/", "tasks", "a/b/", "gs://tasks/a/b"),
            ("az://tasks/a", "tasks", "a/", "az://tasks/a"),
        ] {
            let address = BucketAddress::parse(uri).unwrap().unwrap();
            assert_eq!((address.bucket.as_str(), address.prefix.as_str()), (bucket, prefix));
            assert_eq!(address.describe(), described);
        }
        assert!(BucketAddress::parse("file:///x").is_none());
        assert!(BucketAddress::parse("./x").is_none());
        for wrong in ["s3://", "s3:///x", "s3://a b", "s3://a/../b"] {
            assert!(BucketAddress::parse(wrong).unwrap().is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_in_addresses_are_refused_and_not_shown() {
        let host: Arc<dyn Host> = Arc::new(crate::host::SystemHost);
        let clock = Arc::new(Clock::dated(host.clone()));
        let mut address = BucketAddress {
            endpoint: Some("http://me:secret@127.0.0.1:1".into()),
            ..BucketAddress::parse("s3://tasks").unwrap().unwrap()
        };
        let mut errors = vec![address.connect(&clock, &host).unwrap_err()];
        for uri in ["s3://me:secret@tasks/x", "s3://me:sec/secret@tasks"] {
            errors.push(BucketAddress::parse(uri).unwrap().unwrap_err());
        }
        for error in errors {
            let shown = format!("{error} {error:?}");
            assert!(
                shown.contains("must not contain a user or password") && !shown.contains("secret@"),
                "{shown}"
            );
        }
    }

    #[test]
    fn an_endpoint_that_is_not_an_address_is_refused() {
        let host: Arc<dyn Host> = Arc::new(crate::host::SystemHost);
        let clock = Arc::new(Clock::dated(host.clone()));
        let scheme = "endpoint must start with http:// or https://";
        let form = "endpoint must be like https://host:port";
        for (endpoint, message) in [
            ("127.0.0.1:1", format!("{scheme}, got `127.0.0.1:1`")),
            ("localhost", format!("{scheme}, got `localhost`")),
            ("localhost:8333", format!("{scheme}, got `localhost:8333`")),
            ("ftp://x", format!("{scheme}, got `ftp://x`")),
            ("/me@secret", scheme.to_owned()),
            ("http://", format!("{form}, got `http://`")),
            ("http:// x", format!("{form}, got `http:// x`")),
            ("http://127.0.0.1:99999", format!("{form}, got `http://127.0.0.1:99999`")),
        ] {
            for uri in ["s3://tasks", "az://tasks"] {
                let mut address = BucketAddress {
                    endpoint: Some(endpoint.into()),
                    ..BucketAddress::parse(uri).unwrap().unwrap()
                };
                let error = address.connect(&clock, &host).unwrap_err();
                assert_eq!((error.kind(), error.to_string()), (Kind::Invalid, message.clone()));
            }
        }
        for endpoint in ["http://127.0.0.1:1", "HTTPS://store.example", "https://store.example/path/"] {
            check_endpoint(Some(endpoint)).unwrap();
        }
    }

    #[test]
    fn plain_http_is_for_loopback_only() {
        for url in ["http://127.0.0.1:8333", "http://localhost:1", "http://[::1]:9", "http://127.9.9.9"] {
            assert!(is_loopback(url), "{url}");
        }
        for url in ["http://example.com", "http://10.0.0.1:9000", "nonsense"] {
            assert!(!is_loopback(url), "{url}");
        }
    }

    #[test]
    fn google_and_azure_clients_are_built_from_their_usual_settings() {
        let host: Arc<dyn Host> = Arc::new(crate::host::SystemHost);
        let clock = Arc::new(Clock::dated(host.clone()));
        let mut google = BucketAddress::parse("gs://tasks/q").unwrap().unwrap();
        // Without a key file the client searches for one only when it sends a request.
        google.connect(&clock, &host).unwrap();
        let mut azure = BucketAddress {
            endpoint: Some("http://127.0.0.1:10000/devstoreaccount1".into()),
            ..BucketAddress::parse("az://tasks/q").unwrap().unwrap()
        };
        let error = azure.connect(&clock, &host).unwrap_err();
        assert!(error.to_string().starts_with("az://tasks/q has an invalid configuration"), "{error}");
    }
}
