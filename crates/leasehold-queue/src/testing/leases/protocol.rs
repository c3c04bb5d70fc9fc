//! The protocol as the suite sees it, so that broken variants can stand in for the real one.

use futures::future::BoxFuture;
use leasehold_core::{Holder, Result};
use leasehold_store::Client;
use serde_json::{Map, Value};

use crate::lease::{HeldLease, Leases, Renewed, Taken};

/// A way to hold something for a while. What a variant does not break, it leaves to the real one.
pub trait Protocol: Send + Sync {
    /// Takes what lies at `key`, if it is free.
    fn take<'a>(
        &'a self,
        client: &'a Client,
        holder: &'a Holder,
        key: &'a str,
        subject: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Taken>> {
        Box::pin(async move { leases(client, holder)?.take(key, subject, None).await })
    }

    /// Keeps it for longer.
    fn renew<'a>(
        &'a self,
        client: &'a Client,
        holder: &'a Holder,
        held: &'a mut HeldLease,
    ) -> BoxFuture<'a, Result<Renewed>> {
        Box::pin(async move { leases(client, holder)?.renew(held).await })
    }

    /// Gives it back.
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
