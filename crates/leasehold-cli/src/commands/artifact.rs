//! `leasehold artifact`: files in the store, named by their hash.

use clap::{Args, Subcommand};
use futures::{StreamExt, stream};
use indicatif::ProgressBar;
use leasehold_core::piece::PeerKind;
use leasehold_core::piece::manager::PeerStats;
use leasehold_core::{ArtifactId, Error, Kind, Result, StoreTime, keys};
use leasehold_pieces::manifest::Record;
use leasehold_pieces::prune::{Listed, list, prune};
use leasehold_pieces::publish::publish_telling;
use leasehold_pieces::{Algorithm, Cached, FetchEvent, Fetched, Manifest, PublishOptions, Published};
use leasehold_store::{Client, HostExt, Purpose};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{client, pieces};
use crate::printer::{Printer, line};
use crate::settings::Settings;
use crate::settings::kind::plain;
use crate::settings::typed::Pieces;
use crate::table::{self, Cell, MOMENT, Table, count};

/// So many manifests are read at once.
const AT_ONCE: usize = 32;
/// Who was blamed for what is told so many times; the counts of each peer are always told.
const BLAMED_MAX: usize = 100;

#[derive(Debug, Subcommand)]
pub(crate) enum Artifact {
    /// Put a file into the store, unless it is there, and print its hash
    #[command(after_help = "Example:\n  leasehold artifact put model.bin --keep 90d")]
    Put(Put),
    /// Get an artifact: from the cache of this machine, from peers and from the store
    #[command(after_help = "Example:\n  leasehold artifact get HASH -o model.bin")]
    Get(Get),
    /// List artifacts: one list request for every 500; with `--long` one get more for each
    #[command(after_help = "Example:\n  leasehold artifact ls --long")]
    Ls(Ls),
    /// Remove artifacts that are not kept any more: they can be read for one more day, and go with the next prune
    #[command(after_help = "Example:\n  leasehold artifact prune")]
    Prune,
}

#[derive(Debug, Args)]
pub(crate) struct Put {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What to call it; by default as the file is called
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// What kind of file it is, such as text/csv
    #[arg(long, value_name = "TYPE")]
    media_type: Option<String>,
    /// How it is hashed: blake3 or sha256
    #[arg(long, value_name = "HASH", default_value = "blake3")]
    hash: Algorithm,
    /// How large its pieces are, in bytes; by default 1 MiB, and more for very large files
    #[arg(long, value_name = "BYTES")]
    piece_size: Option<u32>,
    /// How long it is kept at least: seconds, or like 45m, 12h, 90d (setting `pieces.keep_days`)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    keep: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The artifact's hash
    #[arg(value_name = "HASH")]
    artifact: ArtifactId,
    /// Where to put it, or `-` for standard output; the file is there whole or not at all
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The cache to use (setting `pieces.cache`)
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<String>,
    /// Fetch it from the store alone
    #[arg(long)]
    pub(crate) no_peers: bool,
    /// Tell who gave what, and who was blamed for what
    #[arg(short, long)]
    verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Read the manifests, too: names, and how long they are kept
    #[arg(long)]
    long: bool,
}

pub(crate) async fn run(command: &Artifact, settings: &Settings, printer: &Printer) -> anyhow::Result<()> {
    let client = client(&settings.queue)?;
    match command {
        Artifact::Put(args) => put(&client, args, &settings.pieces, printer).await,
        Artifact::Get(args) => get(&client, args, &settings.pieces, printer).await,
        Artifact::Ls(args) => ls(&client, args, printer).await,
        Artifact::Prune => remove(&client, printer).await,
    }
}

async fn put(client: &Client, args: &Put, settings: &Pieces, printer: &Printer) -> anyhow::Result<()> {
    let options = PublishOptions {
        name: args.name.clone(),
        media_type: args.media_type.clone(),
        algorithm: args.hash,
        piece_bytes: args.piece_size,
        keep: args.keep.unwrap_or(settings.keep),
    };
    let Published { manifest, was_there } = published(client, &args.file, &options, printer).await?;
    if printer.is_json() {
        let mut told = told(&manifest);
        told.insert("was_there".to_owned(), was_there.into());
        line(Value::Object(told));
    } else {
        line(&manifest.artifact);
    }
    Ok(())
}

/// Puts a file into the store.
pub(super) async fn published(
    client: &Client,
    file: &Path,
    options: &PublishOptions,
    printer: &Printer,
) -> Result<Published> {
    let bar = printer.bytes("publishing");
    let tell = |bytes, total| {
        bar.set_length(total);
        bar.set_position(bytes);
    };
    let published = publish_telling(client, file, options, &tell, Box::pin(futures::future::pending())).await;
    bar.finish_and_clear();
    published
}

async fn get(client: &Client, args: &Get, settings: &Pieces, printer: &Printer) -> anyhow::Result<()> {
    let to_stdout = args.output == Path::new("-");
    if to_stdout && printer.is_json() {
        let message = "standard output cannot be both the file and JSON about it; give -o a file";
        return Err(Error::invalid(message).into());
    }
    if !to_stdout {
        // Nothing is fetched in vain.
        check_place(&args.output)?;
    }
    let artifacts = pieces::artifacts(client, settings)?;
    let seen = Seen::new(printer);
    let fetched = artifacts.fetch(&args.artifact, &|event| seen.hear(event)).await;
    seen.bar.finish_and_clear();
    let (cached, fetched) = fetched.map_err(|error| elsewhere(client, error))?;
    let (size, to) = (cached.manifest().cut.size(), args.output.clone());
    let name = cached.manifest().name.clone();
    client.host().blocking(move || hand_over(&cached, &to, to_stdout)).await?;
    if printer.is_json() {
        line(json!({
            "artifact": args.artifact,
            "file": args.output,
            "size": size,
            "name": name,
            "was_cached": fetched.leases.is_none(),
            "fetched": seen.json(&fetched),
        }));
    } else if args.verbose {
        seen.tell(&fetched, printer);
    }
    Ok(())
}

/// Refuses a place where no file can be made, as far as that can be seen.
fn check_place(file: &Path) -> Result<()> {
    let refused = |why: String| Err(Error::invalid(why));
    if file.is_dir() {
        return refused(format!("{} is a directory; name a file in it", file.display()));
    }
    if file.exists() && !file.is_file() {
        // It would be replaced, and a machine without /dev/null is a sad one.
        return refused(format!("{0} is no plain file; write `-o - > {0}`", file.display()));
    }
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return refused(format!("there is no directory {}; make it first", folder.display()));
    }
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).map_err(|error| {
        let error = io::Error::from(error);
        let message = format!("cannot write {}: {error}", file.display());
        Error::new(Kind::Denied, message).because(error)
    })
}

fn hand_over(cached: &Cached, to: &Path, to_stdout: bool) -> Result<()> {
    if !to_stdout {
        return cached.copy_to(to);
    }
    let copied = File::open(cached.path()).and_then(|mut file| io::copy(&mut file, &mut io::stdout().lock()));
    match copied {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::new(Kind::Unavailable, format!("cannot write to standard output: {error}")))
        }
        // Whoever reads it has seen enough.
        _ => Ok(()),
    }
}

/// An artifact that is not there may be in another store: says in which one it was looked for.
fn elsewhere(client: &Client, error: Error) -> Error {
    if error.matter() == Some(leasehold_core::Matter::Missing) {
        return Error::new(error.kind(), format!("{error} ({})", client.describe()));
    }
    error
}

/// What was heard of a fetch.
struct Seen {
    bar: ProgressBar,
    blamed: Mutex<Vec<(String, String)>>,
}

impl Seen {
    fn new(printer: &Printer) -> Self {
        Self { bar: printer.bytes("fetching"), blamed: Mutex::default() }
    }

    fn hear(&self, event: FetchEvent) {
        match event {
            FetchEvent::Progress { bytes, bytes_total, .. } => {
                let is_first = self.bar.length() != Some(bytes_total);
                self.bar.set_length(bytes_total);
                self.bar.set_position(bytes);
                if is_first {
                    // What an earlier fetch has left was not fetched in no time.
                    self.bar.reset_eta();
                }
            }
            FetchEvent::Blamed { peer, why } => {
                let mut blamed = self.blamed();
                if blamed.len() < BLAMED_MAX {
                    blamed.push((peer, why));
                }
            }
        }
    }

    fn blamed(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.blamed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn json(&self, fetched: &Fetched) -> Value {
        let blamed = self.blamed();
        let blamed: Vec<_> = blamed.iter().map(|(peer, why)| json!({"peer": peer, "why": why})).collect();
        json!({
            "origin_bytes": fetched.origin_bytes,
            "origin_requests": fetched.origin_requests,
            "peer_bytes": fetched.peer_bytes,
            "duplicate_bytes": fetched.duplicate_bytes,
            "resumed_bytes": fetched.resumed_bytes,
            "peers": peers(fetched).iter().map(peer_json).collect::<Vec<_>>(),
            "blamed": blamed,
        })
    }

    fn tell(&self, fetched: &Fetched, printer: &Printer) {
        if fetched.leases.is_none() {
            return printer.note("it was in the cache");
        }
        printer.note(&format!(
            "{} bytes from the store in {}, {} from peers, {} twice, {} were here",
            fetched.origin_bytes,
            count(fetched.origin_requests, "request", "requests"),
            fetched.peer_bytes,
            fetched.duplicate_bytes,
            fetched.resumed_bytes
        ));
        for PeerStats { peer, tally, .. } in peers(fetched) {
            printer.note(&format!(
                "{peer}: {}, {} bytes; {} corrupt, {} broken off, {} unanswered, {} senseless, {} too late",
                count(tally.pieces, "piece", "pieces"),
                tally.bytes,
                tally.corrupt,
                tally.network_errors,
                tally.timeouts,
                tally.invalid_data,
                tally.expiries
            ));
        }
        for (peer, why) in self.blamed().iter() {
            printer.note(&plain(&format!("{peer}: {why}")));
        }
    }
}

fn peers(fetched: &Fetched) -> &[PeerStats] {
    fetched.leases.as_ref().map_or(&[], |leases| &leases.peers)
}

fn peer_json(stats: &PeerStats) -> Value {
    let PeerStats { peer, kind, score, tally, is_on_parole, is_quarantined, .. } = stats;
    let kind = match kind {
        PeerKind::Origin => "origin",
        PeerKind::Peer => "peer",
    };
    json!({
        "peer": peer.to_string(),
        "kind": kind,
        "pieces": tally.pieces,
        "bytes": tally.bytes,
        "failures": {
            "corrupt": tally.corrupt,
            "network_errors": tally.network_errors,
            "timeouts": tally.timeouts,
            "invalid_data": tally.invalid_data,
            "expiries": tally.expiries,
        },
        "score": score,
        "is_on_parole": is_on_parole,
        "is_quarantined": is_quarantined,
    })
}

/// What is known of an artifact.
struct Row {
    artifact: ArtifactId,
    listed: Listed,
    /// Nothing if it was not read.
    read: Option<Read>,
}

/// What its manifest says.
enum Read {
    Kept(Manifest),
    Leaving(Manifest),
    Closing,
    Corrupt(Error),
}

impl Row {
    fn state(&self) -> &'static str {
        match &self.read {
            Some(Read::Kept(_)) => "kept",
            Some(Read::Leaving(_)) => "leaving",
            Some(Read::Closing) => "closing",
            Some(Read::Corrupt(_)) => "corrupt",
            None if self.listed.manifest.is_some() => "published",
            // Someone is at it, or has died over it.
            None => "unfinished",
        }
    }

    fn manifest(&self) -> Option<&Manifest> {
        match &self.read {
            Some(Read::Kept(manifest) | Read::Leaving(manifest)) => Some(manifest),
            _ => None,
        }
    }

    fn size(&self) -> Option<u64> {
        self.listed.data.map(|(_, size)| size)
    }

    fn json(&self) -> Value {
        let mut told = match self.manifest() {
            Some(manifest) => told(manifest),
            None => Map::from_iter([
                ("artifact".to_owned(), json!(self.artifact)),
                ("size".to_owned(), json!(self.size())),
                ("published_at".to_owned(), json!(self.listed.manifest)),
            ]),
        };
        told.insert("state".to_owned(), self.state().into());
        Value::Object(told)
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
        cells.push(self.state().into());
        if long {
            let name = manifest.and_then(|manifest| manifest.name.as_deref());
            cells.push(plain(name.unwrap_or_default()).into());
        }
        cells
    }
}

async fn ls(client: &Client, args: &Ls, printer: &Printer) -> anyhow::Result<()> {
    let clock = printer.clock("listing");
    let listed = list(client, Purpose::Admin).await?;
    let rows = stream::iter(listed).map(async |(artifact, listed)| {
        let read = match listed.manifest {
            Some(_) if args.long => read(client, &artifact).await?,
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
        printer.note("there are no artifacts");
    } else {
        show(client, &rows, args.long, printer);
    }
    let corrupt = rows.into_iter().filter_map(|row| match row.read {
        Some(Read::Corrupt(error)) => Some(error),
        _ => None,
    });
    // The first stands for all: what is wrong with it is what someone has to look at.
    corrupt.take(1).try_for_each(|error| Err(error.into()))
}

fn show(client: &Client, rows: &[Row], long: bool, printer: &Printer) {
    let now = client.now().map_or(StoreTime::NEVER, |now| now.earliest);
    let mut table = Table::default().left("ARTIFACT", 0).right("BYTES", 0).left("PUBLISHED (UTC)", MOMENT);
    if long {
        table = table.left("KEPT UNTIL", MOMENT);
    }
    table = table.left("STATE", 0);
    if long {
        table = table.left("NAME", 0);
    }
    table.rows(&rows.iter().map(|row| row.cells(now, long)).collect::<Vec<_>>(), printer);
}

/// Reads a manifest. Requests: 1 get.
async fn read(client: &Client, artifact: &ArtifactId) -> Result<Option<Read>> {
    let key = keys::manifest(artifact);
    let Some(object) = client.get(Purpose::Admin, &key).await? else { return Ok(None) };
    Ok(Some(match Record::read(&key, artifact, &object.body) {
        Ok(Record::Kept(manifest)) => Read::Kept(without_hashes(manifest)),
        Ok(Record::Leaving(manifest, _)) => Read::Leaving(without_hashes(manifest)),
        Ok(Record::Closing(_)) => Read::Closing,
        Err(error) => Read::Corrupt(error),
    }))
}

/// Hashes of pieces are not shown, and those of a hundred thousand artifacts need more memory than there is.
fn without_hashes(manifest: Manifest) -> Manifest {
    Manifest { pieces: Vec::new(), ..manifest }
}

/// A manifest for machines, without the hashes of the pieces.
fn told(manifest: &Manifest) -> Map<String, Value> {
    let told = json!({
        "artifact": manifest.artifact,
        "size": manifest.cut.size(),
        "pieces": manifest.cut.pieces(),
        "piece_bytes": manifest.cut.piece_bytes(),
        "name": manifest.name,
        "media_type": manifest.media_type,
        "published_at": manifest.published_at,
        "kept_until": kept_until(manifest),
    });
    match told {
        Value::Object(told) => told,
        _ => Map::new(),
    }
}

fn kept_until(manifest: &Manifest) -> StoreTime {
    manifest.published_at.plus(Duration::from_secs(manifest.keep_secs))
}

async fn remove(client: &Client, printer: &Printer) -> anyhow::Result<()> {
    let clock = printer.clock("looking");
    let pruned = prune(client).await;
    clock.finish_and_clear();
    let pruned = pruned?;
    if printer.is_json() {
        line(serde_json::to_string(&pruned)?);
    } else {
        let seen = count(pruned.seen, "artifact", "artifacts");
        line(format_args!("{seen} seen, {} to go in a day, {} removed", pruned.leaving, pruned.removed));
    }
    Ok(())
}

/// Reads seconds, or a number with a unit.
fn duration(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration; write seconds, or like 45m, 12h, 90d");
    let (number, unit) = match text.find(|letter: char| !letter.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let secs = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    Ok(Duration::from_secs(number.checked_mul(secs).ok_or_else(wrong)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, secs) in [("90", 90), ("90s", 90), ("45m", 2_700), ("12h", 43_200), ("90d", 7_776_000)] {
            assert_eq!(duration(text).unwrap(), Duration::from_secs(secs));
        }
        for text in ["", "d", "1.5d", "-1", "1w", "99999999999999999999", "999999999999999999d"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
