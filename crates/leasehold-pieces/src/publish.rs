//! Uploads a file to the store under its hash.
//!
//! Requests: 1 get of the manifest. That is all if the artifact is there and young; 1 put more if it is old or expired.
//! Otherwise the data first (1 put up to [`ONE_PUT_BYTES_MAX`], beyond it 1 for each part and 2), then 1 put of the manifest:
//! where there is a manifest, there is the data.

use bytes::Bytes;
use futures::future::{BoxFuture, Either, pending, select};
use futures::{StreamExt, TryStreamExt, stream};
use leasehold_core::limits::UPLOAD_PART_BYTES;
use leasehold_core::piece::PieceCut;
use leasehold_core::{ArtifactId, Error, Kind, Now, Reason, Result, StoreTime, keys};
use leasehold_store::mutant::breaks;
use leasehold_store::{Client, Decision, HostExt, Object, Purpose, PutOutcome, Version, update_from};
use leasehold_worker::ProgressFn;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::assemble::io_error;
use crate::hash::{Algorithm, Hash, Sha256Hasher};
use crate::manifest::{Manifest, ManifestRecord};
use crate::prune::EXPIRED_PERIOD;

/// Largest file that is sent by one put; a larger one is sent in parts.
pub const ONE_PUT_BYTES_MAX: u64 = UPLOAD_PART_BYTES;

/// Parts that are uploaded, and held in memory, at once.
const PARTS_AT_ONCE: usize = 4;

/// Default retention of an artifact.
pub const RETENTION_DEFAULT: Duration = Duration::from_hours(30 * 24);

/// Time after which no store carries out a signed request.
pub(crate) const DELETE_COMPLETES_WITHIN: Duration = Duration::from_hours(1);

/// Opens a pipe without waiting for its writer. It has no effect on files.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();

/// Attempts to publish while other processes change the manifest.
const ATTEMPTS_MAX: u32 = 8;

/// Options for publishing a file.
#[derive(Debug, Clone)]
pub struct PublishOptions {
    /// Name of the artifact; the file name by default.
    pub name: Option<String>,
    /// MIME type of the file.
    pub media_type: Option<String>,
    /// Hash algorithm, which determines the artifact's id.
    pub algorithm: Algorithm,
    /// Size of a piece; by default it follows from the size of the file.
    pub piece_bytes: Option<u32>,
    /// Retention from the publish that writes the manifest. A manifest is written again only when half of its retention is
    /// over, so the data is certain to stay for half of this time.
    pub keep: Duration,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self {
            name: None,
            media_type: None,
            algorithm: Algorithm::default(),
            piece_bytes: None,
            keep: RETENTION_DEFAULT,
        }
    }
}

/// An artifact that is in the store.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// Manifest of the artifact.
    pub manifest: Manifest,
    /// True if its data was already in the store, so that none was sent.
    pub was_there: bool,
}

/// Uploads a file to the store, unless it is already there. Its data is kept for at least half of `options.keep` and a day:
/// a manifest that is younger than half of that is not written again.
pub async fn publish(client: &Client, path: &Path, options: &PublishOptions) -> Result<Published> {
    publish_with_progress(client, path, options, &|_, _| (), Box::pin(pending())).await
}

/// Publishes a file and reports progress: calls `report` with the bytes sent and the total, or never if nothing has to be
/// sent. When `stopped` completes, it cancels and removes the parts sent so far; dropping the future instead leaves them to
/// the store's rule for unfinished uploads.
pub async fn publish_with_progress(
    client: &Client,
    path: &Path,
    options: &PublishOptions,
    report: ProgressFn<'_>,
    mut stopped: BoxFuture<'_, ()>,
) -> Result<Published> {
    let source = match select(Box::pin(Source::open(client, path, options)), &mut stopped).await {
        Either::Left((source, _)) => Arc::new(source?),
        Either::Right(_) => return Err(cancelled(path)),
    };
    let manifest = &source.manifest;
    let key = keys::manifest(&manifest.artifact);
    let mut found = client.get(Purpose::Fetch, &key).await?;
    let mut sent = None;
    for _ in 0..ATTEMPTS_MAX {
        match write_manifest(client, manifest, options.keep, found, sent.as_ref()).await? {
            ManifestOutcome::Published(manifest) => {
                if breaks("manifest-before-data") {
                    source.send(client, report, &mut stopped).await?;
                }
                return Ok(Published { manifest, was_there: sent.is_none() });
            }
            ManifestOutcome::Retry => found = client.get(Purpose::Fetch, &key).await?,
            ManifestOutcome::NeedsData(over, now) => {
                sent =
                    Some(SentData { over: over.as_ref().map(|object| object.version.clone()), began: now });
                source.send(client, report, &mut stopped).await?;
                found = over;
            }
        }
    }
    let artifact = &manifest.artifact;
    let message = format!("artifact {artifact} is being published and removed at the same time; retry later");
    Err(Error::new(Kind::Unavailable, message))
}

/// Data that was sent. It counts only as long as the manifest is unchanged: a process that has changed it since may have
/// deleted the data.
struct SentData {
    over: Option<Version>,
    began: Now,
}

impl SentData {
    /// Returns whether the data still counts. A missing manifest may also mean that the artifact was published and removed
    /// meanwhile, but that takes longer than a day.
    fn is_valid(&self, found: Option<&Object>, now: Now) -> bool {
        self.over.as_ref() == found.map(|object| &object.version)
            && now.is_before(self.began.earliest.plus(EXPIRED_PERIOD))
    }
}

/// Computes the id that a file would be published under.
pub(crate) async fn artifact_id_of(
    client: &Client,
    path: &Path,
    options: &PublishOptions,
) -> Result<ArtifactId> {
    Ok(Source::open(client, path, options).await?.manifest.artifact)
}

/// Outcome of an attempt to write the manifest.
enum ManifestOutcome {
    Published(Manifest),
    /// Data must be sent first. Holds the object that was read, and the time of the read.
    NeedsData(Option<Object>, Now),
    Retry,
}

/// Writes a manifest that says *published*, if the data is there.
async fn write_manifest(
    client: &Client,
    manifest: &Manifest,
    keep: Duration,
    found: Option<Object>,
    sent: Option<&SentData>,
) -> Result<ManifestOutcome> {
    let artifact = &manifest.artifact;
    let key = keys::manifest(artifact);
    let updated = update_from(client, Purpose::Fetch, &key, found, |found| {
        let record = found.map(|object| ManifestRecord::read(&key, artifact, &object.body)).transpose()?;
        let now = client.now().ok_or_else(time_unknown)?;
        let has_data = sent.is_some_and(|sent| sent.is_valid(found, now));
        let state = record
            .map_or(Ok(ArtifactState::Missing), |record| artifact_state(record, now, keep, artifact))?;
        let next = match (state, has_data || breaks("manifest-before-data")) {
            (ArtifactState::LongEnough(manifest), _) => {
                return Ok(Decision::Leave(ManifestOutcome::Published(manifest)));
            }
            (ArtifactState::Missing, false) => {
                return Ok(Decision::Leave(ManifestOutcome::NeedsData(found.cloned(), now)));
            }
            (ArtifactState::NeedsRenewal(there), _) => there,
            (ArtifactState::Missing, true) => manifest.clone(),
        };
        let published_at = now.latest_known();
        let next = Manifest { published_at, keep_secs: next.keep_secs.max(keep.as_secs()), ..next };
        let body = ManifestRecord::Published(next.clone()).write(artifact, client.write_id());
        Ok(Decision::write(body, ManifestOutcome::Published(next)))
    });
    let updated = updated.await?;
    // Written and then changed by another process: it may be expired again.
    Ok(if matches!(updated.put, Some(PutOutcome::Superseded(_))) {
        ManifestOutcome::Retry
    } else {
        updated.result
    })
}

/// State of an artifact for a publisher.
enum ArtifactState {
    /// Data is there for at least half of the requested retention.
    LongEnough(Manifest),
    /// Data is there, but the manifest must be renewed.
    NeedsRenewal(Manifest),
    /// Data must be sent.
    Missing,
}

fn artifact_state(
    record: ManifestRecord,
    now: Now,
    keep: Duration,
    artifact: &ArtifactId,
) -> Result<ArtifactState> {
    Ok(match record {
        ManifestRecord::Published(manifest) => {
            let half = Duration::from_secs(manifest.keep_secs.min(keep.as_secs())) / 2;
            let is_long_enough = manifest.keep_secs >= keep.as_secs();
            let is_young = now.is_before(manifest.published_at.plus(half));
            if is_young && is_long_enough {
                ArtifactState::LongEnough(manifest)
            } else {
                ArtifactState::NeedsRenewal(manifest)
            }
        }
        // Data is deleted only while the manifest says *deleting*, and it cannot say so once we have written *published*.
        ManifestRecord::Expired(manifest, _) if breaks("expired-trusted") => {
            ArtifactState::LongEnough(manifest)
        }
        ManifestRecord::Expired(manifest, _) => ArtifactState::NeedsRenewal(manifest),
        ManifestRecord::Deleting(_) if breaks("deleting-not-awaited") => ArtifactState::Missing,
        ManifestRecord::Deleting(since) if now.is_past(since.plus(DELETE_COMPLETES_WITHIN)) => {
            ArtifactState::Missing
        }
        ManifestRecord::Deleting(since) => {
            let until = since.plus(DELETE_COMPLETES_WITHIN);
            return Err(Error::new(
                Kind::Unavailable,
                format!("artifact {artifact} is being removed; publish it again after {until}"),
            )
            .with_reason(Reason::NotYet));
        }
    })
}

/// A file to publish, with the manifest computed when it was hashed.
struct Source {
    file: File,
    path: PathBuf,
    manifest: Manifest,
}

impl Source {
    /// Reads and hashes the file.
    async fn open(client: &Client, path: &Path, options: &PublishOptions) -> Result<Self> {
        let (path, options) = (path.to_owned(), options.clone());
        client.host().blocking(move || Self::open_now(path, &options)).await
    }

    fn open_now(path: PathBuf, options: &PublishOptions) -> Result<Self> {
        let opened = || {
            // Opening a pipe without a writer would block for ever.
            let file = File::options().read(true).custom_flags(NONBLOCK).open(&path)?;
            let found = file.metadata()?;
            Ok((file, found))
        };
        let (mut file, found) = opened().map_err(|error| cannot_read(&path, error))?;
        if !found.is_file() {
            return Err(Error::invalid(format!("{} is not a file", path.display())));
        }
        let cut = match options.piece_bytes {
            Some(bytes) => PieceCut::new(found.len(), bytes)?,
            None => PieceCut::usual(found.len())?,
        };
        let (artifact, pieces) = hash(&mut file, &path, cut, options.algorithm)?;
        let file_name = || path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let manifest = Manifest {
            artifact,
            cut,
            pieces,
            name: options.name.clone().or_else(file_name),
            media_type: options.media_type.clone(),
            published_at: StoreTime::from_millis(0),
            keep_secs: options.keep.as_secs(),
        };
        Ok(Self { file, path, manifest })
    }

    /// Uploads the bytes. The key is their hash, so an existing object may be replaced.
    async fn send(
        self: &Arc<Self>,
        client: &Client,
        report: ProgressFn<'_>,
        stopped: &mut BoxFuture<'_, ()>,
    ) -> Result<()> {
        let (key, size) = (keys::artifact_data(&self.manifest.artifact), self.manifest.cut.size());
        let sent = AtomicU64::new(0);
        report(0, size);
        if size <= ONE_PUT_BYTES_MAX {
            let bytes = self.read(client, 0..size).await?;
            client.put_always(Purpose::Fetch, &key, bytes).await?;
            return Ok(());
        }
        let upload = client.upload(Purpose::Fetch, &key, size).await?;
        let parts = stream::iter(upload.parts()).map(|(number, range)| {
            let upload = &upload;
            let sent = &sent;
            async move {
                let bytes = range.end - range.start;
                upload.part(number, self.read(client, range).await?).await?;
                report(sent.fetch_add(bytes, Relaxed) + bytes, size);
                Ok::<_, Error>(())
            }
        });
        let all = parts.buffer_unordered(PARTS_AT_ONCE).try_collect::<()>();
        let done = match select(Box::pin(all), stopped).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => Err(cancelled(&self.path)),
        };
        if let Err(error) = done {
            if let Err(left) = upload.abort().await {
                tracing::warn!(%key, error = %left, "failed to abort upload, its parts stay in the store");
            }
            return Err(error);
        }
        upload.finish().await?;
        Ok(())
    }

    /// Reads bytes of the file, and verifies that they are still those that were hashed.
    async fn read(self: &Arc<Self>, client: &Client, range: Range<u64>) -> Result<Bytes> {
        let source = self.clone();
        client.host().blocking(move || source.read_now(&range)).await
    }

    fn read_now(&self, range: &Range<u64>) -> Result<Bytes> {
        let cut = &self.manifest.cut;
        // Whole pieces, because only these can be verified.
        let pieces = cut.pieces_of(range);
        let whole = cut.bytes_of_run(&pieces);
        let mut bytes = vec![0; length(&whole)];
        let read = self.file.read_exact_at(&mut bytes, whole.start);
        read.map_err(|error| cannot_read(&self.path, error))?;
        if !self.manifest.matches(pieces, &bytes) {
            return Err(changed(&self.path));
        }
        Ok(Bytes::from(bytes).slice(length(&(whole.start..range.start))..length(&(whole.start..range.end))))
    }
}

/// Hashes a file and each of its pieces.
fn hash(
    file: &mut File,
    path: &Path,
    cut: PieceCut,
    algorithm: Algorithm,
) -> Result<(ArtifactId, Vec<Hash>)> {
    let mut whole = Sha256Hasher::new();
    let mut pieces = Vec::with_capacity(cut.pieces() as usize);
    let mut buffer = Vec::new();
    for piece in 0..cut.pieces() {
        buffer.resize(cut.len_of(piece) as usize, 0);
        file.read_exact(&mut buffer).map_err(|error| cannot_read(path, error))?;
        if algorithm == Algorithm::Sha256 {
            whole.update(&buffer);
        }
        pieces.push(algorithm.hash_piece(&cut, piece, &buffer));
    }
    let whole = algorithm.hash_from_pieces(&pieces).unwrap_or_else(|| whole.finish());
    Ok((algorithm.artifact_id(whole), pieces))
}

fn cancelled(path: &Path) -> Error {
    Error::new(Kind::Unavailable, format!("publishing {} was cancelled", path.display()))
}

fn length(range: &Range<u64>) -> usize {
    usize::try_from(range.end - range.start).expect("a part fits into memory")
}

fn cannot_read(path: &Path, error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::invalid(format!("there is no file {}", path.display())).because(error)
        }
        std::io::ErrorKind::UnexpectedEof => changed(path),
        _ => io_error("read", path, error),
    }
}

fn changed(path: &Path) -> Error {
    Error::invalid(format!("{} changed while it was being published; publish it again", path.display()))
}

pub(crate) fn time_unknown() -> Error {
    Error::new(Kind::Unavailable, "the store's time is not known yet; retry later")
}
