//! The calls as the rest of Leasehold makes them: through [`Client`], counted and with patience.

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use leasehold_store::{Client, Get, List, Purpose, Put, Version, When};

use crate::operation::{Operation, Spot, body};
use crate::side::Calls;

pub(crate) struct Ours(pub(crate) Client);

impl Calls for Ours {
    type Version = Version;

    async fn version(&self, key: &str) -> anyhow::Result<Version> {
        let found = self.0.get(Purpose::Admin, key).await?;
        found.map(|object| object.version).with_context(|| format!("`{key}` is not there"))
    }

    async fn call(
        &self,
        operation: Operation,
        spot: Spot,
        known: &mut Option<Version>,
    ) -> anyhow::Result<()> {
        let client = &self.0;
        match operation {
            Operation::Put => {
                written(client.put(Purpose::Submit, &spot.key(), body(), &When::Absent).await?)?;
            }
            Operation::Replace => {
                let when = When::Unchanged(known.take().context("no version to replace")?);
                *known = Some(written(client.put(Purpose::Claim, &spot.own_key(), body(), &when).await?)?);
            }
            Operation::Index => {
                client.put_always(Purpose::Submit, &spot.key(), Bytes::new()).await?;
            }
            Operation::Get => {
                let found = client.get(Purpose::Claim, &spot.own_key()).await?;
                ensure!(found.is_some_and(|object| !object.body.is_empty()), "nothing was read");
            }
            Operation::Unmodified => {
                let answer = client.get_unless(Purpose::Discover, &spot.own_key(), known.as_ref()).await?;
                ensure!(answer == Get::Unchanged, "the object has changed");
            }
            Operation::List => {
                let list = List { after: spot.page_after(), ..List::all(format!("{}/", spot.directory)) };
                let page = client.list(Purpose::Discover, &list).await?;
                ensure!(page.entries.len() == list.limit, "a page of {} keys", page.entries.len());
            }
            Operation::Delete => client.delete(Purpose::Sweep, &spot.key()).await?,
        }
        Ok(())
    }
}

fn written(put: Put) -> anyhow::Result<Version> {
    match put {
        Put::Written(version) => Ok(version),
        Put::Overtaken(_) | Put::Lost(_) => bail!("a put lost a race that nobody ran against it"),
    }
}
