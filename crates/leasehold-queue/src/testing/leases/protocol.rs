//! The interface of the protocol, so that the suite can run broken variants of it.

use futures::future::BoxFuture;
use leasehold_core::{Holder, Result};
use leasehold_store::Client;
use serde_json::{Map, Value};

use crate::lease::{HeldLease, Leases, Renewed, Taken};

/// A lease protocol. The default methods are the real protocol; a variant overrides what it breaks.
pub trait Protocol: Send + Sync {
    /// Takes the lease at `key` if it is free.
    fn take<'a>(
        &'a self,
        client: &'a Client,
        holder: &'a Holder,
        key: &'a str,
        subject: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Taken>> {
        Box::pin(async move { leases(client, holder)?.take(key, subject, None).await })
    }

    /// Renews a lease.
    fn renew<'a>(
        &'a self,
        client: &'a Client,
        holder: &'a Holder,
        held: &'a mut HeldLease,
    ) -> BoxFuture<'a, Result<Renewed>> {
        Box::pin(async move { leases(client, holder)?.renew(held).await })
    }

    /// Releases a lease.
    fn release<'a>(
        &'a self,
        client: &'a Client,
        holder: &'a Holder,
        held: HeldLease,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { leases(client, holder)?.release(held).await })
    }
}

/// The real protocol: [`Leases`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Real;

impl Protocol for Real {}

fn leases(client: &Client, holder: &Holder) -> Result<Leases> {
    Leases::new(client.clone(), holder.clone())
}
