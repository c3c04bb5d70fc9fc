//! The calls as the rest of Leasehold makes them: through [`Client`], counted and with retries.

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use leasehold_store::{Client, Get, List, Purpose, PutOutcome, Version, When};

use crate::operation::{BenchRequest, RequestSlot, body};
use crate::round::Calls;

pub(crate) struct Ours(pub(crate) Client);

impl Calls for Ours {
    type Version = Version;

    async fn version(&self, key: &str) -> anyhow::Result<Version> {
        let found = self.0.get(Purpose::Admin, key).await?;
        found.map(|object| object.version).with_context(|| format!("`{key}` does not exist"))
    }

    async fn call(
        &self,
        operation: BenchRequest,
        slot: RequestSlot,
        known: &mut Option<Version>,
    ) -> anyhow::Result<()> {
        let client = &self.0;
        match operation {
            BenchRequest::Put => {
                written(client.put(Purpose::Submit, &slot.key(), body(), &When::Absent).await?)?;
            }
            BenchRequest::Replace => {
                let when = When::Unchanged(known.take().context("no version to replace")?);
                *known = Some(written(client.put(Purpose::Claim, &slot.own_key(), body(), &when).await?)?);
            }
            BenchRequest::Index => {
                client.put_always(Purpose::Submit, &slot.key(), Bytes::new()).await?;
            }
            BenchRequest::Get => {
                let found = client.get(Purpose::Claim, &slot.own_key()).await?;
                ensure!(found.is_some_and(|object| !object.body.is_empty()), "nothing was read");
            }
            BenchRequest::Unmodified => {
                let answer = client.get_unless(Purpose::Discover, &slot.own_key(), known.as_ref()).await?;
                ensure!(answer == Get::Unchanged, "the object has changed");
            }
            BenchRequest::List => {
                let list = List { after: slot.page_after(), ..List::all(format!("{}/", slot.directory)) };
                let page = client.list(Purpose::Discover, &list).await?;
                ensure!(page.entries.len() == list.limit, "a page of {} keys", page.entries.len());
            }
            BenchRequest::Delete => client.delete(Purpose::Sweep, &slot.key()).await?,
        }
        Ok(())
    }
}

fn written(put: PutOutcome) -> anyhow::Result<Version> {
    match put {
        PutOutcome::Written(version) => Ok(version),
        PutOutcome::Superseded(_) | PutOutcome::Lost(_) => {
            bail!("a put lost a race without a competing writer")
        }
    }
}
