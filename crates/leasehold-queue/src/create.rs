//! Creating `queue.json`, and restoring it after it was lost.
//!
//! The key of a task is derived from its id and from `shard_prefix_len` in `queue.json`. A second `queue.json` over the
//! tasks of a lost one could contain another number: its clients would not find the tasks, and would remove their index
//! entries as unneeded. So no queue is created where keys of a queue exist. [`Queue::restore`](crate::Queue::restore)
//! derives the number from the keys of the tasks.

use futures::future::try_join_all;
use leasehold_core::{Error, Kind, Reason, Result, ShardLen, keys};
use leasehold_store::{Client, HostExt, List, OpenMode, Purpose, PutOutcome, Version, When};
use serde_json::Map;
use std::collections::BTreeSet;

use crate::connect::{QueueConfig, QueueLocation};
use crate::discover::folders;
use crate::meta::{FORMAT, LayoutName, QueueMeta, parse_meta};

/// Opens a store and restores its `queue.json` if it is missing.
pub(crate) async fn restored(place: QueueLocation, config: &QueueConfig) -> Result<Client> {
    let client = place.client(OpenMode::Create)?;
    if client.get(Purpose::Admin, keys::QUEUE).await?.is_none() {
        let wanted = config.shard_prefix_len.map(ShardLen::new).transpose()?;
        let layout = restored_layout(&client, config).await?;
        let shard_len = match (shard_len_of_tasks(&client).await?, wanted) {
            (Some(found), Some(wanted)) if found != wanted => {
                return Err(Error::invalid(format!(
                    "shard_prefix_len is set to {}, but the tasks are in shards of {}; remove the setting, or correct it",
                    wanted.digits(),
                    digits(found.digits())
                )));
            }
            (found, wanted) => found.or(wanted).unwrap_or(ShardLen::DEFAULT),
        };
        put(&client, layout, shard_len).await?;
    }
    Ok(client)
}

/// Chooses the layout of a new queue. In a folder of this host every process can reach the broker. Elsewhere that depends on
/// the network and on settings, so the layout `journal` is used on request only.
pub(crate) fn layout_of_new_queue(client: &Client, config: &QueueConfig) -> Result<LayoutName> {
    let names_shards = config.shard_prefix_len.is_some() || config.direct.is_some();
    let needs_objects = config.needs_objects || names_shards;
    match config.layout {
        Some(LayoutName::Journal) if names_shards => Err(Error::invalid(
            "a queue in the layout `journal` has no shards and no direct dispatch; remove the options about them, or create \
             the queue in the layout `objects`",
        )),
        Some(layout) => Ok(layout),
        None if needs_objects || client.local_folder().is_none() => Ok(LayoutName::Objects),
        None => Ok(LayoutName::Journal),
    }
}

/// The layout that the keys of a queue show; that of a new queue if they show none.
async fn restored_layout(client: &Client, config: &QueueConfig) -> Result<LayoutName> {
    let found = match (key_below(client, keys::JOURNAL).await?, key_below(client, keys::TASKS).await?) {
        // Only the layout `objects` has keys of other kinds.
        (None, None) if any_key(client).await?.is_some() => LayoutName::Objects,
        (None, None) => return layout_of_new_queue(client, config),
        (None, Some(_)) => LayoutName::Objects,
        (Some(_), None) => LayoutName::Journal,
        (Some(_), Some(_)) => {
            let message = format!(
                "there are keys of two layouts, `{}` and `{}`; restore queue.json from a backup",
                keys::TASKS,
                keys::JOURNAL
            );
            return Err(Error::new(Kind::Corrupt, message));
        }
    };
    match config.layout {
        Some(wanted) if wanted != found => Err(Error::invalid(format!(
            "layout {wanted} is required, but the keys are those of layout {found}"
        ))),
        _ => Ok(found),
    }
}

/// Creates the queue, unless keys of a queue exist.
///
/// Requests: 11 lists in addition to those of the probe, once in the life of a queue.
pub(crate) async fn create(
    client: &Client,
    layout: LayoutName,
    shard_prefix_len: ShardLen,
) -> Result<(QueueMeta, Version)> {
    if let Some(key) = any_key(client).await? {
        // Another client may have created the queue since `queue.json` was read.
        return match client.get(Purpose::Admin, keys::QUEUE).await? {
            Some(object) => Ok((parse_meta(&object.body)?, object.version)),
            None => Err(queue_json_lost(client, &key)),
        };
    }
    put(client, layout, shard_prefix_len).await
}

/// The error of a client that found no `queue.json` and may not create one.
///
/// Requests: 11 lists.
pub(crate) async fn no_queue(client: &Client) -> Error {
    match any_key(client).await {
        Err(error) => error,
        Ok(Some(key)) => queue_json_lost(client, &key),
        Ok(None) => {
            Error::invalid(format!("no queue at {}; create one with `leasehold init`", client.describe()))
                .with_reason(Reason::Missing)
        }
    }
}

fn queue_json_lost(client: &Client, key: &str) -> Error {
    let store = client.describe();
    let message = format!(
        "queue.json is missing at {store}, but there are keys of a queue, such as `{key}`; restore queue.json from a \
         backup, or run `leasehold init --restore`"
    );
    Error::new(Kind::Corrupt, message)
}

/// Any key that only a queue has.
async fn any_key(client: &Client) -> Result<Option<String>> {
    let lists = keys::QUEUE_PREFIXES.map(|prefix| key_below(client, prefix));
    Ok(try_join_all(lists).await?.into_iter().flatten().next())
}

/// Any key with this prefix.
async fn key_below(client: &Client, prefix: &'static str) -> Result<Option<String>> {
    let page = client.list(Purpose::Admin, &List::all(prefix).limit(1)).await?;
    Ok(page.entries.into_iter().next().map(|entry| entry.key))
}

/// The number of digits that name a shard in the keys of tasks, else of index entries; none if there are neither.
async fn shard_len_of_tasks(client: &Client) -> Result<Option<ShardLen>> {
    for root in [keys::TASKS, "ready/", "leases/"] {
        let found = shard_digits(client, root).await?;
        let (Some(first), Some(last)) = (found.first(), found.last()) else { continue };
        if first != last {
            let message = format!(
                "{root} has shards of {} and of {}: the number of shards was being changed; restore queue.json from a \
                 backup",
                digits(*first),
                digits(*last)
            );
            return Err(Error::new(Kind::Corrupt, message));
        }
        return ShardLen::new(*first).map(Some);
    }
    Ok(None)
}

async fn shard_digits(client: &Client, root: &str) -> Result<BTreeSet<u8>> {
    let digits = |name: &String| {
        let digits = u8::try_from(name.len()).ok()?;
        ShardLen::new(digits).ok()?.parse(name).ok().map(|_| digits)
    };
    Ok(folders(client, Purpose::Admin, root).await?.iter().filter_map(digits).collect())
}

fn digits(number: u8) -> String {
    if number == 1 { "1 digit".to_owned() } else { format!("{number} digits") }
}

/// Writes `queue.json` into a store that honours conditions, unless another client has written it first.
async fn put(
    client: &Client,
    layout: LayoutName,
    shard_prefix_len: ShardLen,
) -> Result<(QueueMeta, Version)> {
    leasehold_store::probe(client).await?.verdict()?;
    let now = client
        .now()
        .ok_or_else(|| Error::new(Kind::Internal, "store was probed, but its time is unknown"))?;
    let meta = QueueMeta {
        format: FORMAT,
        layout,
        queue_id: client.host().random_name(),
        shard_prefix_len,
        created_at: now.earliest,
        write_id: client.write_id(),
        migrating: None,
        left: None,
        unknown: Map::new(),
    };
    match client.put(Purpose::Admin, keys::QUEUE, meta.to_bytes(), &When::Absent).await? {
        PutOutcome::Written(version) => Ok((meta, version)),
        PutOutcome::Lost(Some(object)) | PutOutcome::Superseded(object) => {
            Ok((parse_meta(&object.body)?, object.version))
        }
        PutOutcome::Lost(None) => {
            Err(Error::new(Kind::Unavailable, "queue.json was removed while being created; try again"))
        }
    }
}
