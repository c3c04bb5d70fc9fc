//! `queue.json`: the settings that all clients of a queue share, stored in the queue itself.
//!
//! They are the format, the layout, and the number of digits that name a shard. A program that does not know the format or
//! the layout of a queue refuses to open it, and so does one whose settings disagree (promise P8).

use bytes::Bytes;
use leasehold_core::ids::parse_name;
use leasehold_core::oversize::corrupt_reason;
use leasehold_core::{Error, HexName, Kind, Result, ShardLen, StoreTime, WriteId, keys};
use leasehold_store::{Client, OpenMode, Purpose};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::connect::{QueueConfig, QueueLocation};
use crate::create::{create, layout_of_new_queue, no_queue};
use crate::meta_cache::{MetaSnapshot, Migrating, PreviousShardLen};

/// Newest format of `queue.json` that this program supports.
pub(crate) const FORMAT: u32 = 1;

/// Layout of a queue: where its tasks are kept, and how they are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayoutName {
    /// Every task is an object. A queue without the field has this layout.
    #[default]
    Objects,
    /// One process at a time, the broker, writes the decisions for many tasks in one commit of a log.
    Journal,
}

impl LayoutName {
    /// All layouts that this program supports.
    pub const ALL: [LayoutName; 2] = [LayoutName::Objects, LayoutName::Journal];

    /// Name in `queue.json`, settings and messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            LayoutName::Objects => "objects",
            LayoutName::Journal => "journal",
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for LayoutName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for LayoutName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        parse_name("layout", text, &Self::ALL.map(|layout| (layout.as_str(), layout)))
    }
}

/// Content of `queue.json`: the settings that all clients of a queue share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueMeta {
    /// Format of `queue.json`.
    pub format: u32,
    /// Layout of the tasks.
    #[serde(default, skip_serializing_if = "LayoutName::is_default")]
    pub layout: LayoutName,
    /// Random id of the queue; `leasehold init --restore` replaces it.
    pub queue_id: HexName,
    /// Number of hex digits that name a shard.
    pub shard_prefix_len: ShardLen,
    /// Time at which the queue was created.
    pub created_at: StoreTime,
    /// Id of the last write of `queue.json`.
    pub write_id: WriteId,
    /// The migration in progress, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrating: Option<Migrating>,
    /// The previous number of digits, after a migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<PreviousShardLen>,
    /// Fields written by a newer program, preserved unchanged.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

impl QueueMeta {
    pub(crate) fn to_bytes(&self) -> Bytes {
        Bytes::from(serde_json::to_vec_pretty(self).expect("maps with text for keys, numbers and text"))
    }

    /// Refuses a client that wants another layout or number of digits.
    fn check(&self, config: &QueueConfig) -> Result<()> {
        if let Some(wanted) = config.layout.filter(|wanted| *wanted != self.layout) {
            return Err(Error::invalid(format!(
                "this queue has the layout `{}`, not `{wanted}`; use a store without a queue, or move its tasks with \
                 `leasehold export` and `import`",
                self.layout
            )));
        }
        let has = self.shard_prefix_len;
        match config.shard_prefix_len {
            Some(wanted) if self.layout == LayoutName::Journal => Err(Error::invalid(format!(
                "shard_prefix_len is set to {wanted}, but this queue has the layout `journal`, which has no shards; remove the \
                 setting, or use a queue that was created with `--layout objects`"
            ))),
            Some(wanted) if wanted != has.digits() => Err(Error::invalid(format!(
                "shard_prefix_len is set to {wanted}, but this queue has {}; remove the setting, or correct it",
                has.digits()
            ))),
            _ => Ok(()),
        }
    }
}

/// Opens a store and reads its `queue.json`, or creates it if it is missing and the configuration allows it.
pub(crate) async fn open_meta(place: QueueLocation, config: &QueueConfig) -> Result<(Client, MetaSnapshot)> {
    let client = place.client(config.mode)?;
    let wanted = config.shard_prefix_len.map(ShardLen::new).transpose()?;
    let requested_at = client.host().instant();
    let (meta, version) = match client.get(Purpose::Admin, keys::QUEUE).await? {
        Some(object) => (parse_meta(&object.body)?, object.version),
        None if config.mode == OpenMode::Create => {
            let layout = layout_of_new_queue(&client, config)?;
            create(&client, layout, wanted.unwrap_or(ShardLen::DEFAULT)).await?
        }
        None => return Err(no_queue(&client).await),
    };
    meta.check(config)?;
    Ok((client, MetaSnapshot { meta: Arc::new(meta), version, requested_at }))
}

/// The fields by which a program tells whether it can use a queue.
#[derive(Deserialize)]
struct Format {
    format: u32,
    layout: Option<String>,
}

pub(crate) fn parse_meta(body: &[u8]) -> Result<QueueMeta> {
    let corrupt = |why: String| Error::new(Kind::Corrupt, format!("failed to read queue.json: {why}"));
    let Format { format, layout } =
        serde_json::from_slice(body).map_err(|error| corrupt(corrupt_reason(body, &error)))?;
    if format > FORMAT {
        return Err(corrupt(format!(
            "format {format} is not supported, only up to {FORMAT}; upgrade leasehold"
        )));
    }
    if let Some(layout) = layout.filter(|layout| layout.parse::<LayoutName>().is_err()) {
        return Err(corrupt(format!(
            "layout `{layout}` is not supported, only {}; upgrade leasehold",
            LayoutName::ALL.map(|layout| format!("`{layout}`")).join(" and ")
        )));
    }
    serde_json::from_slice(body).map_err(|error| corrupt(error.to_string()))
}
