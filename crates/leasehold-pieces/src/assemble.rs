//! Assembles a file from pieces: each is verified in memory, written at its offset, and recorded in a *piece journal*.
//!
//! The piece journal (unrelated to the journal layout of a queue) lies beside the sparse file: a header, then one note
//! per verified piece, appended after the piece was written. After a crash the journal tells which pieces to check, and
//! each of them is verified again from the disk: a note may have survived a power cut that its piece has not. So no
//! verified piece is fetched again, and no unverified one is trusted. The process that assembles a file holds the lock
//! on its journal, so a file has one writer.
//!
//! The piece server, also in another process, reads the journal without the lock, to serve verified pieces.

use leasehold_core::piece::PieceMap;
use leasehold_core::{Error, Kind, Result};
use leasehold_store::mutant::breaks;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use crate::hash::{Algorithm, Sha256Hasher};
use crate::manifest::Manifest;

/// Length of a piece journal's header: its format, and the sizes of file and pieces.
const HEADER_BYTES: usize = 24;
const MAGIC: &[u8; 8] = b"leasejn1";
/// Length of a note: the number of the piece and the beginning of its hash.
const NOTE_BYTES: usize = 8;

/// A file that is being assembled.
#[derive(Debug)]
pub(crate) struct Assembly {
    manifest: Manifest,
    paths: Paths,
    file: File,
    /// True once the file has its final name and is no longer written to. Writers hold the read lock.
    is_closed: RwLock<bool>,
    progress: Mutex<Progress>,
}

/// Paths of a file that is being assembled.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    pub(crate) part: PathBuf,
    pub(crate) journal: PathBuf,
}

struct Progress {
    /// Holds the lock as long as it is open.
    journal: File,
    /// Pieces recorded by an earlier process, until they are verified.
    noted: PieceMap,
    verified: PieceMap,
    /// `None` if the piece hashes determine the hash of the whole: then the whole is valid when its pieces are.
    whole: Option<WholeHasher>,
}

/// Hash of the whole, computed along with the pieces in order, so that nothing is left to be read at the end.
struct WholeHasher {
    whole: Sha256Hasher,
    next: u32,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.verified.fmt(f)
    }
}

/// Result of opening a file to assemble.
#[derive(Debug)]
pub(crate) enum PartFile {
    /// The file is ours, with the progress of an earlier process.
    Ours(Box<Assembly>),
    /// Another process, or another fetch, assembles it.
    InUse,
}

/// Result of verifying and writing a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceOutcome {
    /// The piece matches its hash and is written.
    Verified,
    /// The piece does not match the manifest.
    Corrupt,
}

impl Assembly {
    /// Opens or creates the file of a manifest. Pieces recorded by an earlier process count only after [`Self::resume`].
    pub(crate) fn open(paths: Paths, manifest: Manifest) -> Result<PartFile> {
        let Some(journal) = lock_journal(&paths.journal)? else { return Ok(PartFile::InUse) };
        let opened = (|| {
            let noted = read_journal(&paths.journal, &manifest)?;
            let mut options = File::options();
            let file = options.read(true).write(true).create(true).truncate(false).open(&paths.part)?;
            if noted.is_none() {
                journal.set_len(0)?;
                file.set_len(0)?;
                (&journal).write_all(&journal_header(&manifest))?;
            }
            file.set_len(manifest.cut.size())?;
            Ok((file, noted.unwrap_or_else(|| PieceMap::none(manifest.cut.pieces()))))
        })();
        let (file, noted) = opened.map_err(|error| io_error("open", &paths.part, error))?;
        let algorithm = Algorithm::of(&manifest.artifact);
        let whole =
            (algorithm == Algorithm::Sha256).then(|| WholeHasher { whole: Sha256Hasher::new(), next: 0 });
        let verified = PieceMap::none(noted.len());
        let progress = Mutex::new(Progress { journal, noted, verified, whole });
        Ok(PartFile::Ours(Box::new(Self { manifest, paths, file, is_closed: RwLock::new(false), progress })))
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Pieces that are verified and written.
    pub(crate) fn verified(&self) -> PieceMap {
        self.progress().verified.clone()
    }

    /// Verifies and writes the bytes of a piece. Blocks.
    pub(crate) fn write_piece(&self, piece: u32, bytes: &[u8]) -> Result<PieceOutcome> {
        let is_whole = bytes.len() == self.manifest.cut.len_of(piece) as usize;
        if !is_whole || !self.manifest.matches(piece..piece + 1, bytes) {
            return Ok(PieceOutcome::Corrupt);
        }
        // The slower of two peers that were asked for the piece may answer after the file is finished.
        let is_closed = self.is_closed.read().unwrap_or_else(PoisonError::into_inner);
        if *is_closed {
            return Ok(PieceOutcome::Verified);
        }
        let written = self.file.write_all_at(bytes, self.manifest.cut.bytes_of(piece).start);
        written.map_err(|error| io_error("write", &self.paths.part, error))?;
        let mut progress = self.progress();
        if progress.verified.insert(piece) {
            let noted = progress.journal.write_all(&journal_note(piece, &self.manifest));
            noted.map_err(|error| io_error("write", &self.paths.journal, error))?;
        }
        self.hash_contiguous(&mut progress, Some((piece, bytes)))?;
        Ok(PieceOutcome::Verified)
    }

    /// Verifies the whole and moves the file to its final name. Blocks. A file that does not match its hash is removed.
    pub(crate) fn finish(&self, to: &Path) -> Result<()> {
        let mut is_closed = self.is_closed.write().unwrap_or_else(PoisonError::into_inner);
        let mut progress = self.progress();
        if !progress.verified.is_full() {
            return Err(Error::new(
                Kind::Internal,
                "cannot finish a file before all its pieces are verified",
            ));
        }
        self.hash_contiguous(&mut progress, None)?;
        let whole = progress.whole.take().map(|hasher| hasher.whole.finish());
        if whole.is_some_and(|whole| Algorithm::Sha256.artifact_id(whole) != self.manifest.artifact) {
            self.discard();
            return Err(Error::new(
                Kind::Corrupt,
                format!(
                    "pieces of artifact {} match their hashes, but the whole file does not: the manifest is corrupt",
                    self.manifest.artifact
                ),
            ));
        }
        let named = (|| {
            self.file.set_modified(complete_mtime())?;
            self.file.sync_all()?;
            // Under its final name the file is in use until we drop it: no process may remove it in the same moment.
            flock(&self.file, FlockOperation::NonBlockingLockShared)?;
            fs::rename(&self.paths.part, to)
        })();
        named.map_err(|error| io_error("finish", to, error))?;
        *is_closed = true;
        // Not before the rename: after a crash in between, no process could resume the part.
        if let Err(error) = self.write_protect() {
            tracing::debug!(path = %to.display(), %error, "failed to make cached artifact read-only");
        }
        // No other process can have started on it: it is locked, and its part is gone.
        let _ = fs::remove_file(&self.paths.journal);
        Ok(())
    }

    /// Makes the file read-only. Handlers get the file itself and must not modify it by mistake.
    fn write_protect(&self) -> io::Result<()> {
        let mut permissions = self.file.metadata()?.permissions();
        permissions.set_readonly(true);
        self.file.set_permissions(permissions)
    }

    /// Removes the part and its piece journal.
    pub(crate) fn discard(&self) {
        let _ = fs::remove_file(&self.paths.part);
        let _ = fs::remove_file(&self.paths.journal);
    }

    /// Verifies the pieces recorded by an earlier process. Blocks: reads all of them.
    pub(crate) fn resume(&self) -> Result<()> {
        let mut kept: Vec<u8> = journal_header(&self.manifest).into();
        let mut progress = self.progress();
        let mut buffer = Vec::new();
        let nothing = PieceMap::none(self.manifest.cut.pieces());
        let noted = std::mem::replace(&mut progress.noted, nothing);
        for piece in noted.iter() {
            self.read_into(&mut buffer, piece)?;
            let is_right = self.manifest.matches(piece..piece + 1, &buffer);
            if is_right || breaks("piece-journal-trusted") {
                progress.verified.insert(piece);
                kept.extend(journal_note(piece, &self.manifest));
                self.hash_contiguous(&mut progress, Some((piece, &buffer)))?;
            }
        }
        let journal = &progress.journal;
        let rewritten = journal.metadata().and_then(|found| {
            if found.len() == kept.len() as u64 {
                // Every note is valid. Leaving the journal untouched is safest: a crash right now loses nothing.
                return Ok(());
            }
            // Drops notes of pieces that are corrupt, and a note that was cut off by a crash.
            let mut journal = journal;
            journal.set_len(0).and_then(|()| journal.write_all(&kept))
        });
        rewritten.map_err(|error| io_error("write", &self.paths.journal, error))
    }

    /// Continues the hash of the whole as far as the file is verified without gaps; `fresh` is a piece still in memory.
    fn hash_contiguous(&self, progress: &mut Progress, fresh: Option<(u32, &[u8])>) -> Result<()> {
        let Progress { verified, whole: Some(WholeHasher { whole, next }), .. } = progress else {
            return Ok(());
        };
        let mut buffer = Vec::new();
        while verified.has(*next) {
            match fresh {
                Some((piece, bytes)) if piece == *next => whole.update(bytes),
                _ => {
                    self.read_into(&mut buffer, *next)?;
                    whole.update(&buffer);
                }
            }
            *next += 1;
        }
        Ok(())
    }

    fn read_into(&self, buffer: &mut Vec<u8>, piece: u32) -> Result<()> {
        let bytes = self.manifest.cut.bytes_of(piece);
        buffer.resize(self.manifest.cut.len_of(piece) as usize, 0);
        let read = self.file.read_exact_at(buffer, bytes.start);
        read.map_err(|error| io_error("read", &self.paths.part, error))
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Modification time of every complete file: a later write changes it. An even second, which all file systems can store.
fn complete_mtime() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(262_968)
}

/// True if a file was not written to since it was complete.
pub(crate) fn is_unmodified(found: &Metadata) -> bool {
    found.modified().is_ok_and(|at| at == complete_mtime())
}

/// Reads the verified pieces from the piece journal; `None` if it is missing or for another cut.
pub(crate) fn read_journal(journal: &Path, manifest: &Manifest) -> io::Result<Option<PieceMap>> {
    let bytes = match fs::read(journal) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(notes) = bytes.strip_prefix(journal_header(manifest).as_slice()) else { return Ok(None) };
    let mut map = PieceMap::none(manifest.cut.pieces());
    for noted in notes.chunks_exact(NOTE_BYTES) {
        let piece = u32::from_le_bytes([noted[0], noted[1], noted[2], noted[3]]);
        if piece < map.len() && noted == journal_note(piece, manifest) {
            map.insert(piece);
        }
    }
    Ok(Some(map))
}

fn journal_header(manifest: &Manifest) -> [u8; HEADER_BYTES] {
    let mut head = [0; HEADER_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..16].copy_from_slice(&manifest.cut.size().to_le_bytes());
    head[16..20].copy_from_slice(&manifest.cut.piece_bytes().to_le_bytes());
    head
}

fn journal_note(piece: u32, manifest: &Manifest) -> [u8; NOTE_BYTES] {
    let mut note = [0; NOTE_BYTES];
    note[..4].copy_from_slice(&piece.to_le_bytes());
    note[4..].copy_from_slice(&manifest.pieces[piece as usize].prefix());
    note
}

/// Opens a piece journal and locks it; `None` if another process holds the lock. Retries if the journal was removed meanwhile.
fn lock_journal(path: &Path) -> Result<Option<File>> {
    let lock = || -> io::Result<Option<File>> {
        loop {
            let file = File::options().read(true).append(true).create(true).open(path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            if is_still_at(&file, path)? {
                return Ok(Some(file));
            }
        }
    };
    lock().map_err(|error| io_error("open", path, error))
}

/// Returns whether the open file is the one at this path now.
pub(crate) fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    match fs::metadata(path) {
        Ok(there) => Ok(there.ino() == file.metadata()?.ino()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Error for a file system call that failed.
pub(crate) fn io_error(what: &str, path: &Path, error: io::Error) -> Error {
    let path = path.display();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::new(Kind::Unavailable, format!("cannot {what} {path}: the disk is full"))
        }
        ErrorKind::FileTooLarge => Error::invalid(format!("cannot {what} {path}: file size limit exceeded")),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            Error::new(Kind::Denied, format!("cannot {what} {path}: {error}"))
        }
        _ => Error::new(Kind::Unavailable, format!("cannot {what} {path}: {error}")),
    }
    .because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::StoreTime;
    use leasehold_core::piece::PieceCut;

    const BYTES: &[u8] = b"what is in the file";

    fn open_assembly(directory: &Path) -> Box<Assembly> {
        let manifest = Manifest {
            artifact: Algorithm::Blake3.artifact_id(Algorithm::Blake3.hash(BYTES)),
            cut: PieceCut::usual(BYTES.len() as u64).unwrap(),
            pieces: vec![Algorithm::Blake3.hash(BYTES)],
            name: None,
            media_type: None,
            published_at: StoreTime::from_millis(0),
            keep_secs: 60,
        };
        let paths = Paths { part: directory.join("part"), journal: directory.join("journal") };
        match Assembly::open(paths, manifest).unwrap() {
            PartFile::Ours(assembly) => assembly,
            PartFile::InUse => panic!("it is ours"),
        }
    }

    #[test]
    fn an_unfinished_file_can_be_resumed() {
        let directory = tempfile::tempdir().unwrap();
        let assembly = open_assembly(directory.path());
        assembly.write_piece(0, BYTES).unwrap();
        assembly.finish(&directory.path().join("not/there")).unwrap_err();
        let left = fs::metadata(directory.path().join("part")).unwrap();
        assert!(!left.permissions().readonly());
        drop(assembly);
        let assembly = open_assembly(directory.path());
        assembly.resume().unwrap();
        let named = directory.path().join("data");
        assembly.finish(&named).unwrap();
        assert!(fs::metadata(&named).unwrap().permissions().readonly());
        assert_eq!(fs::read(&named).unwrap(), BYTES);
    }

    #[test]
    fn a_finished_file_is_locked_until_it_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let (assembly, named) = (open_assembly(directory.path()), directory.path().join("data"));
        assembly.write_piece(0, BYTES).unwrap();
        assembly.finish(&named).unwrap();
        let lock = || flock(File::open(&named).unwrap(), FlockOperation::NonBlockingLockExclusive);
        assert_eq!(lock().unwrap_err(), rustix::io::Errno::WOULDBLOCK);
        drop(assembly);
        lock().unwrap();
    }

    #[test]
    fn a_late_piece_does_not_modify_a_finished_file() {
        let directory = tempfile::tempdir().unwrap();
        let (assembly, named) = (open_assembly(directory.path()), directory.path().join("data"));
        assembly.write_piece(0, BYTES).unwrap();
        assembly.finish(&named).unwrap();
        assert_eq!(assembly.write_piece(0, BYTES).unwrap(), PieceOutcome::Verified);
        assert!(is_unmodified(&fs::metadata(&named).unwrap()));
    }
}
