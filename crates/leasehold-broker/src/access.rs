//! Proof that a client may write to the bucket: an object whose key is the fingerprint of its public key.
//!
//! ```text
//! client   ── TLS: proves that it has the private key ──▶ broker
//! client   ── put journal/0/clients/{fingerprint} ──▶ bucket
//! client   ── {"registered":true} ──▶ broker ── get, delete ──▶ bucket
//! ```
//!
//! A process that can only read the bucket sees the keys of others, but does not have their private keys, and can put none of
//! its own. The object is needed once: the connection itself is the proof from then on. It has no content, so the key is
//! written without a condition, and no two connections have the same key.
//!
//! Requests: 1 put of the client; 1 get and 1 delete of the broker. Each broker that listens for other hosts lists what failed
//! connections have left.

use bytes::Bytes;
use leasehold_core::{Kind, Result, keys};
use leasehold_store::{Client, List, Purpose};
use std::time::Duration;

use crate::transport::ClientAccess;

/// Age at which the object of a connection that has failed is deleted: a day is longer than any handshake, and than a late put.
const LEFTOVER_AGE_MIN: Duration = Duration::from_hours(24);

/// Time in which a client registers its key, with the retries of its store.
pub(crate) const REGISTER_TIMEOUT: Duration = Duration::from_secs(20);

/// Registers the key of a client. False if it may not write to the bucket. Requests: 1 put.
pub(crate) async fn register(store: &Client, fingerprint: &str) -> Result<bool> {
    let store = store.clone().with_timeout(REGISTER_TIMEOUT);
    match store.put_always(Purpose::Journal, &keys::journal_client(fingerprint), Bytes::new()).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == Kind::Denied => {
            tracing::info!(%error, "cannot write to the bucket, connecting to the broker to read only");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Reads what a client with this key may do, and deletes its object. Requests: 1 get, 1 delete.
pub(crate) async fn verify(store: &Client, fingerprint: &str) -> Result<ClientAccess> {
    let key = keys::journal_client(fingerprint);
    if store.get(Purpose::Journal, &key).await?.is_none() {
        return Ok(ClientAccess::ReadOnly);
    }
    delete(store, &key).await;
    Ok(ClientAccess::Full)
}

/// Deletes the objects of connections that have failed. Requests: 1 list of at most a thousand, 1 delete for each.
pub(crate) async fn delete_leftovers(store: &Client) -> Result<()> {
    let page = store.list(Purpose::Journal, &List::all(keys::JOURNAL_CLIENTS)).await?;
    let now = store.known_now()?;
    for entry in page.entries.iter().filter(|entry| now.is_past(entry.modified.plus(LEFTOVER_AGE_MIN))) {
        delete(store, &entry.key).await;
    }
    Ok(())
}

/// Deletes an object, or leaves it to a later broker.
async fn delete(store: &Client, key: &str) {
    if let Err(error) = store.delete(Purpose::Journal, key).await {
        tracing::debug!(%error, "failed to delete the key of a client");
    }
}
