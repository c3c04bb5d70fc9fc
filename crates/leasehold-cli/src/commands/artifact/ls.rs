//! `leasehold artifact ls`: lists the artifacts of a store.

use clap::Args;
use futures::{StreamExt, stream};
use leasehold_core::{ArtifactId, Error, Result, StoreTime, keys};
use leasehold_pieces::Manifest;
use leasehold_pieces::manifest::ManifestRecord;
use leasehold_pieces::prune::{ListedArtifact, list};
use leasehold_store::{Client, Purpose};
use serde_json::{Map, Value, json};

use super::{kept_until, manifest_json};
use crate::printer::{Printer, line};
use crate::table::{self, Cell, MOMENT, TextTable};

/// Number of manifests that are read at once.
const AT_ONCE: usize = 32;

#[derive(Debug, Args)]
pub(crate) struct ArtifactLsArgs {
    /// Also read the manifests, and show names and retention
    #[arg(long)]
    long: bool,
}

/// Row of the list: an artifact, its objects, and its manifest if that was read.
struct Row {
    artifact: ArtifactId,
    listed: ListedArtifact,
    /// `None` if the manifest was not read.
    read: Option<ManifestState>,
}

/// State of a manifest.
enum ManifestState {
    Published(Manifest),
    Expired(Manifest),
    Deleting,
    Corrupt(Error),
}

impl Row {
    /// State in JSON: with `--long` in the words of the record, which are older than those of the guide.
    fn state(&self) -> &'static str {
        match &self.read {
            Some(ManifestState::Published(_)) => "kept",
            Some(ManifestState::Expired(_)) => "leaving",
            Some(ManifestState::Deleting) => "closing",
            Some(ManifestState::Corrupt(_)) => "corrupt",
            None if self.listed.manifest.is_some() => "published",
            // Its publisher is still uploading it, or has crashed.
            None => "unfinished",
        }
    }

    /// State in the text output, in the words of the guide.
    fn state_text(&self) -> &'static str {
        match &self.read {
            Some(ManifestState::Published(_)) => "published",
            Some(ManifestState::Expired(_)) => "expired",
            Some(ManifestState::Deleting) => "deleting",
            _ => self.state(),
        }
    }

    fn manifest(&self) -> Option<&Manifest> {
        match &self.read {
            Some(ManifestState::Published(manifest) | ManifestState::Expired(manifest)) => Some(manifest),
            _ => None,
        }
    }

    fn size(&self) -> Option<u64> {
        self.listed.data.map(|(_, size)| size)
    }

    fn json(&self) -> Value {
        let mut json = match self.manifest() {
            Some(manifest) => manifest_json(manifest),
            None => Map::from_iter([
                ("artifact".to_owned(), json!(self.artifact)),
                ("size".to_owned(), json!(self.size())),
                ("published_at".to_owned(), json!(self.listed.manifest)),
            ]),
        };
        json.insert("state".to_owned(), self.state().into());
        Value::Object(json)
    }

    fn cells(&self, now: StoreTime, long: bool) -> Vec<Cell> {
        let moment = |at: Option<StoreTime>| at.map_or_else(String::new, |at| table::moment(at, now));
        let size = self.size().map_or_else(String::new, |size| size.to_string());
        let mut cells = vec![Cell::from(&self.artifact), size.into()];
        let manifest = self.manifest();
        cells.push(moment(manifest.map(|manifest| manifest.published_at).or(self.listed.manifest)).into());
        if long {
            cells.push(moment(manifest.map(kept_until)).into());
        }
        cells.push(self.state_text().into());
        if long {
            let name = manifest.and_then(|manifest| manifest.name.as_deref());
            cells.push(name.unwrap_or_default().into());
        }
        cells
    }
}

pub(super) async fn run(client: &Client, args: &ArtifactLsArgs, printer: &Printer) -> anyhow::Result<()> {
    let clock = printer.clock("listing");
    let listed = list(client, Purpose::Admin).await?;
    let rows = stream::iter(listed).map(async |(artifact, listed)| {
        let read = match listed.manifest {
            Some(_) if args.long => read_manifest(client, &artifact).await?,
            _ => None,
        };
        Ok::<_, Error>(Row { artifact, listed, read })
    });
    let rows: Vec<Result<Row>> = rows.buffered(AT_ONCE).collect().await;
    clock.finish_and_clear();
    let rows = rows.into_iter().collect::<Result<Vec<_>>>()?;
    if printer.is_json() {
        for row in &rows {
            line(row.json());
        }
    } else if rows.is_empty() {
        printer.note("no artifacts");
    } else {
        print_table(client, &rows, args.long, printer);
    }
    let corrupt = rows.into_iter().filter_map(|row| match row.read {
        Some(ManifestState::Corrupt(error)) => Some(error),
        _ => None,
    });
    // Only the first corrupt manifest is reported as the error.
    corrupt.take(1).try_for_each(|error| Err(error.into()))
}

fn print_table(client: &Client, rows: &[Row], long: bool, printer: &Printer) {
    let now = client.now().map_or(StoreTime::NEVER, |now| now.earliest);
    let mut table =
        TextTable::default().left("ARTIFACT", 0).right("BYTES", 0).left("PUBLISHED (UTC)", MOMENT);
    if long {
        table = table.left("EXPIRES (UTC)", MOMENT);
    }
    table = table.left("STATE", 0);
    if long {
        table = table.left("NAME", 0);
    }
    table.rows(&rows.iter().map(|row| row.cells(now, long)).collect::<Vec<_>>(), printer);
}

/// Reads a manifest. Requests: 1 get.
async fn read_manifest(client: &Client, artifact: &ArtifactId) -> Result<Option<ManifestState>> {
    let key = keys::manifest(artifact);
    let Some(object) = client.get(Purpose::Admin, &key).await? else { return Ok(None) };
    Ok(Some(match ManifestRecord::read(&key, artifact, &object.body) {
        Ok(ManifestRecord::Published(manifest)) => ManifestState::Published(without_hashes(manifest)),
        Ok(ManifestRecord::Expired(manifest, _)) => ManifestState::Expired(without_hashes(manifest)),
        Ok(ManifestRecord::Deleting(_)) => ManifestState::Deleting,
        Err(error) => ManifestState::Corrupt(error),
    }))
}

/// Drops the hashes of the pieces: they are not shown, and those of a hundred thousand artifacts would not fit into memory.
fn without_hashes(manifest: Manifest) -> Manifest {
    Manifest { pieces: Vec::new(), ..manifest }
}
