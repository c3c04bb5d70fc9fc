//! TLS 1.3 between two processes that know each other by the fingerprints of their public keys.
//!
//! Both ends have a key pair that is made for one broker or one connection, and present its public key itself (RFC 7250):
//! there are no certificates, and so no names, no authorities and no expiry, which would need a correct clock. The broker's
//! fingerprint is in the lease; the client accepts no other key. The broker accepts any key of a client, and learns its
//! fingerprint: [`access`](crate::access) decides what it may do.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use leasehold_core::{Error, Kind, Result};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::aws_lc_rs::{default_provider, sign::any_eddsa_type};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, PeerIncompatible, ServerConfig,
    SignatureScheme,
};

/// Key pair of one end. It is never printed.
#[derive(Clone)]
pub(crate) struct TlsIdentity {
    key: Arc<CertifiedKey>,
    fingerprint: String,
}

impl TlsIdentity {
    /// Makes a key pair. Its bits come from the library of the keys and not from the host: nothing that is replayed depends
    /// on them.
    pub(crate) fn new() -> Result<Self> {
        let failed =
            |why: &str| Error::new(Kind::Internal, format!("failed to make a key pair for TLS: {why}"));
        let document =
            Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| failed("no random bits"))?;
        let document = PrivatePkcs8KeyDer::from(document.as_ref().to_vec());
        let key = any_eddsa_type(&document).map_err(|error| failed(&error.to_string()))?;
        let public = key.public_key().ok_or_else(|| failed("it has no public key"))?.as_ref().to_vec();
        let fingerprint = fingerprint(&public);
        Ok(Self { key: Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], key)), fingerprint })
    }

    /// Fingerprint of the public key: 64 hex digits.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Configuration of a broker.
    pub(crate) fn server(&self) -> Result<ServerConfig> {
        let provider = Arc::new(default_provider());
        let clients = Arc::new(AnyKey { algorithms: provider.signature_verification_algorithms });
        let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
        let mut config = config
            .map_err(unsupported)?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(self.key.clone())));
        // Each connection proves its key.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// Configuration of a client of the broker with this fingerprint.
    pub(crate) fn client(&self, broker: &str) -> Result<ClientConfig> {
        let provider = Arc::new(default_provider());
        let pinned = PinnedKey {
            fingerprint: broker.to_owned(),
            algorithms: provider.signature_verification_algorithms,
        };
        let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]);
        let mut config = config
            .map_err(unsupported)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(pinned))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(self.key.clone())));
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// Fingerprint of a public key, as it is encoded in a handshake.
pub(crate) fn fingerprint(public_key: &[u8]) -> String {
    blake3::hash(public_key).to_hex().to_string()
}

fn unsupported(error: rustls::Error) -> Error {
    Error::new(Kind::Internal, format!("TLS is not supported: {error}")).because(error)
}

/// Accepts the broker with one fingerprint.
#[derive(Debug)]
struct PinnedKey {
    fingerprint: String,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinnedKey {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if fingerprint(key) == self.fingerprint {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_signature(message, key, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Accepts every client that proves to have the key that it presents.
#[derive(Debug)]
struct AnyKey {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_signature(message, key, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

fn verify_signature(
    message: &[u8],
    key: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    verify_tls13_signature_with_raw_key(
        message,
        &SubjectPublicKeyInfoDer::from(key.as_ref()),
        signed,
        algorithms,
    )
}
