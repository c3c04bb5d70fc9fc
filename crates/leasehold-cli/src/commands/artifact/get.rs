//! `leasehold artifact get`: a file from the cache, from peers and from the store.

use clap::Args;
use indicatif::ProgressBar;
use leasehold_core::piece::PeerKind;
use leasehold_core::piece::manager::PeerStats;
use leasehold_core::{ArtifactId, Error, Kind, Matter, Result};
use leasehold_pieces::{Cached, FetchEvent, Fetched};
use leasehold_store::{Client, HostExt};
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::commands::pieces;
use crate::printer::{Printer, escaped, line};
use crate::settings::typed::Pieces;
use crate::table::count;

/// Who was blamed for what is told so many times; the counts of each peer are always told.
const BLAMED_MAX: usize = 100;

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

pub(super) async fn run(
    client: &Client,
    args: &Get,
    settings: &Pieces,
    printer: &Printer,
) -> anyhow::Result<()> {
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
    if error.matter() == Some(Matter::Missing) {
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
            printer.note(&escaped(&format!("{peer}: {why}")));
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
