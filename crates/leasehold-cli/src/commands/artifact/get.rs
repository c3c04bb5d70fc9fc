//! `leasehold artifact get`: fetches an artifact from the cache, from peers and from the store.

use clap::Args;
use indicatif::ProgressBar;
use leasehold_core::piece::PeerKind;
use leasehold_core::piece::manager::PeerStats;
use leasehold_core::{ArtifactId, Error, Kind, Reason, Result};
use leasehold_pieces::{Cached, FetchEvent, Fetched};
use leasehold_store::{Client, HostExt};
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::commands::pieces;
use crate::printer::{Printer, escaped, line};
use crate::settings::typed::PiecesSettings;
use crate::table::count;

/// Maximum number of blamed peers that are reported; the counts of each peer are always reported.
const BLAMED_MAX: usize = 100;

#[derive(Debug, Args)]
pub(crate) struct ArtifactGetArgs {
    /// Hash of the artifact
    #[arg(value_name = "HASH")]
    artifact: ArtifactId,
    /// File to write, or `-` for standard output; a file is written completely or not at all
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Cache directory (setting `pieces.cache`) [default: ~/.cache/leasehold]
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<String>,
    /// Fetch only from the store, not from peers
    #[arg(long)]
    pub(crate) no_peers: bool,
    /// Print bytes and failures of the store and of each peer
    #[arg(short, long)]
    verbose: bool,
}

pub(super) async fn run(
    client: &Client,
    args: &ArtifactGetArgs,
    settings: &PiecesSettings,
    printer: &Printer,
) -> anyhow::Result<()> {
    let to_stdout = args.output == Path::new("-");
    if to_stdout && printer.is_json() {
        let message = "-o - and --json cannot both use standard output; give -o a file";
        return Err(Error::invalid(message).into());
    }
    if !to_stdout {
        // Before the fetch, so that nothing is fetched in vain.
        check_output_path(&args.output)?;
    }
    let artifacts = pieces::artifacts(client, settings)?;
    let progress = FetchProgress::new(printer);
    let fetched = artifacts.fetch(&args.artifact, &|event| progress.on_event(event)).await;
    progress.bar.finish_and_clear();
    let (cached, fetched) = fetched.map_err(|error| with_store_name(client, error))?;
    let (size, to) = (cached.manifest().cut.size(), args.output.clone());
    let name = cached.manifest().name.clone();
    client.host().blocking(move || write_output(&cached, &to, to_stdout)).await?;
    if printer.is_json() {
        line(json!({
            "artifact": args.artifact,
            "file": args.output,
            "size": size,
            "name": name,
            "was_cached": fetched.leases.is_none(),
            "fetched": progress.json(&fetched),
        }));
    } else if args.verbose {
        progress.print(&fetched, printer);
    }
    Ok(())
}

/// Refuses a path where no file can be created, as far as that can be known beforehand.
fn check_output_path(file: &Path) -> Result<()> {
    let refused = |why: String| Err(Error::invalid(why));
    if file.is_dir() {
        return refused(format!("{} is a directory; name a file in it", file.display()));
    }
    if file.exists() && !file.is_file() {
        // The rename would replace a device such as /dev/null.
        return refused(format!("{0} is not a regular file; use `-o - > {0}`", file.display()));
    }
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return refused(format!("directory {} does not exist; create it first", folder.display()));
    }
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).map_err(|error| {
        let error = io::Error::from(error);
        let message = format!("cannot write {}: {error}", file.display());
        Error::new(Kind::Denied, message).because(error)
    })
}

fn write_output(cached: &Cached, to: &Path, to_stdout: bool) -> Result<()> {
    if !to_stdout {
        return cached.copy_to(to);
    }
    let copied = File::open(cached.path()).and_then(|mut file| io::copy(&mut file, &mut io::stdout().lock()));
    match copied {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::new(Kind::Unavailable, format!("cannot write to standard output: {error}")))
        }
        // The reader has closed the pipe, as in `… | head`.
        _ => Ok(()),
    }
}

/// Adds the store to an error about a missing artifact, which may be in another store.
fn with_store_name(client: &Client, error: Error) -> Error {
    if error.reason() == Some(Reason::Missing) {
        return Error::new(error.kind(), format!("{error} ({})", client.describe()));
    }
    error
}

/// Events of a fetch: its progress, and the peers that were blamed.
struct FetchProgress {
    bar: ProgressBar,
    blamed: Mutex<Vec<(String, String)>>,
}

impl FetchProgress {
    fn new(printer: &Printer) -> Self {
        Self { bar: printer.bytes("fetching"), blamed: Mutex::default() }
    }

    fn on_event(&self, event: FetchEvent) {
        match event {
            FetchEvent::Progress { bytes, bytes_total, .. } => {
                let is_first = self.bar.length() != Some(bytes_total);
                self.bar.set_length(bytes_total);
                self.bar.set_position(bytes);
                if is_first {
                    // Bytes of an earlier fetch must not count for the rate.
                    self.bar.reset_eta();
                }
            }
            FetchEvent::PeerFailed { peer, reason } => {
                let mut blamed = self.blamed();
                if blamed.len() < BLAMED_MAX {
                    blamed.push((peer, reason));
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

    fn print(&self, fetched: &Fetched, printer: &Printer) {
        if fetched.leases.is_none() {
            return printer.note("read from the cache");
        }
        printer.note(&format!(
            "{} bytes from the store in {}, {} from peers, {} duplicate, {} resumed",
            fetched.origin_bytes,
            count(fetched.origin_requests, "request", "requests"),
            fetched.peer_bytes,
            fetched.duplicate_bytes,
            fetched.resumed_bytes
        ));
        for PeerStats { peer, kind, counters, .. } in peers(fetched) {
            let source = if *kind == PeerKind::Origin { "store".to_owned() } else { format!("peer {peer}") };
            printer.note(&format!(
                "{source}: {}, {} bytes; {} corrupt, {} network errors, {} timeouts, {} invalid, {} expired",
                count(counters.pieces, "piece", "pieces"),
                counters.bytes,
                counters.corrupt,
                counters.network_errors,
                counters.timeouts,
                counters.invalid_data,
                counters.expiries
            ));
        }
        for (peer, why) in self.blamed().iter() {
            printer.note(&escaped(&format!("{peer}: {why}")));
        }
    }
}

fn peers(fetched: &Fetched) -> &[PeerStats] {
    fetched.leases.as_ref().map_or(&[], |leases| &leases.peers)
}

fn peer_json(stats: &PeerStats) -> Value {
    let PeerStats { peer, kind, score, counters, is_on_parole, is_quarantined, .. } = stats;
    let kind = match kind {
        PeerKind::Origin => "origin",
        PeerKind::Peer => "peer",
    };
    json!({
        "peer": peer.to_string(),
        "kind": kind,
        "pieces": counters.pieces,
        "bytes": counters.bytes,
        "failures": {
            "corrupt": counters.corrupt,
            "network_errors": counters.network_errors,
            "timeouts": counters.timeouts,
            "invalid_data": counters.invalid_data,
            "expiries": counters.expiries,
        },
        "score": score,
        "is_on_parole": is_on_parole,
        "is_quarantined": is_quarantined,
    })
}
