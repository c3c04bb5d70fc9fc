//! `leasehold artifact`: publishes, fetches, lists and prunes artifacts, files in the store named by their hash.

use clap::{Args, Subcommand};
use leasehold_core::{Result, StoreTime};
use leasehold_pieces::prune::prune;
use leasehold_pieces::publish::publish_with_progress;
use leasehold_pieces::{Algorithm, Manifest, PublishOptions, Published};
use leasehold_store::{Client, OpenMode};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::existing_client;
use crate::durations::duration;
use crate::printer::{Printer, line};
use crate::settings::Settings;
use crate::settings::typed::PiecesSettings;
use crate::table::count;

mod get;
mod ls;

pub(crate) use get::ArtifactGetArgs;
pub(crate) use ls::ArtifactLsArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum ArtifactCommand {
    /// Publish a file to the store, unless it is there, and print its hash
    #[command(after_help = "Example:\n  leasehold artifact put model.bin --keep 90d")]
    Put(ArtifactPutArgs),
    /// Fetch an artifact from the cache, from peers or from the store
    #[command(after_help = "Example:\n  leasehold artifact get HASH -o model.bin")]
    Get(ArtifactGetArgs),
    /// List artifacts: one list request per 500 artifacts; with `--long`, also one get per artifact
    #[command(after_help = "Example:\n  leasehold artifact ls --long")]
    Ls(ArtifactLsArgs),
    /// Mark artifacts that are past their retention, and delete those marked at least a day ago
    #[command(after_help = "Example:\n  leasehold artifact prune")]
    Prune,
}

#[derive(Debug, Args)]
pub(crate) struct ArtifactPutArgs {
    /// File to publish
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the artifact [default: name of the file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Media type, such as text/csv [default: none]
    #[arg(long, value_name = "TYPE")]
    media_type: Option<String>,
    /// Hash function: blake3 or sha256
    #[arg(long, value_name = "HASH", default_value = "blake3")]
    hash: Algorithm,
    /// Size of a piece in bytes, a power of two [default: 1048576, more for very large files]
    #[arg(long, value_name = "BYTES")]
    piece_size: Option<u32>,
    /// Retention in seconds, or with a unit such as 45m, 12h, 90d; publishing again renews it once half of it is over (setting
    /// `pieces.keep_days`) [default: 30d]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    keep: Option<Duration>,
}

pub(crate) async fn run(
    command: &ArtifactCommand,
    settings: &Settings,
    printer: &Printer,
) -> anyhow::Result<()> {
    let mode = match command {
        ArtifactCommand::Put(_) => OpenMode::Create,
        ArtifactCommand::Prune => OpenMode::Write,
        ArtifactCommand::Get(_) | ArtifactCommand::Ls(_) => OpenMode::Read,
    };
    let client = existing_client(&settings.queue, mode)?;
    match command {
        ArtifactCommand::Put(args) => put(&client, args, &settings.pieces, printer).await,
        ArtifactCommand::Get(args) => get::run(&client, args, &settings.pieces, printer).await,
        ArtifactCommand::Ls(args) => ls::run(&client, args, printer).await,
        ArtifactCommand::Prune => prune_artifacts(&client, printer).await,
    }
}

async fn put(
    client: &Client,
    args: &ArtifactPutArgs,
    settings: &PiecesSettings,
    printer: &Printer,
) -> anyhow::Result<()> {
    let options = PublishOptions {
        name: args.name.clone(),
        media_type: args.media_type.clone(),
        algorithm: args.hash,
        piece_bytes: args.piece_size,
        keep: args.keep.unwrap_or(settings.keep),
    };
    let Published { manifest, was_there } = publish_file(client, &args.file, &options, printer).await?;
    if printer.is_json() {
        let mut json = manifest_json(&manifest);
        json.insert("was_there".to_owned(), was_there.into());
        line(Value::Object(json));
    } else {
        line(&manifest.artifact);
    }
    Ok(())
}

/// Publishes a file to the store.
pub(super) async fn publish_file(
    client: &Client,
    file: &Path,
    options: &PublishOptions,
    printer: &Printer,
) -> Result<Published> {
    let bar = printer.bytes("publishing");
    let report = |bytes, total| {
        bar.set_length(total);
        bar.set_position(bytes);
    };
    let published =
        publish_with_progress(client, file, options, &report, Box::pin(futures::future::pending())).await;
    bar.finish_and_clear();
    published
}

/// Manifest as JSON, without the hashes of the pieces.
fn manifest_json(manifest: &Manifest) -> Map<String, Value> {
    let json = json!({
        "artifact": manifest.artifact,
        "size": manifest.cut.size(),
        "pieces": manifest.cut.pieces(),
        "piece_bytes": manifest.cut.piece_bytes(),
        "name": manifest.name,
        "media_type": manifest.media_type,
        "published_at": manifest.published_at,
        "kept_until": kept_until(manifest),
    });
    match json {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn kept_until(manifest: &Manifest) -> StoreTime {
    manifest.published_at.plus(Duration::from_secs(manifest.keep_secs))
}

async fn prune_artifacts(client: &Client, printer: &Printer) -> anyhow::Result<()> {
    let clock = printer.clock("scanning artifacts");
    let pruned = prune(client).await;
    clock.finish_and_clear();
    let pruned = pruned?;
    if printer.is_json() {
        line(serde_json::to_string(&pruned)?);
    } else {
        let scanned = count(pruned.scanned, "artifact", "artifacts");
        line(format_args!(
            "{scanned} scanned, {} marked for deletion by a prune a day later, {} deleted",
            pruned.marked, pruned.deleted
        ));
    }
    Ok(())
}
