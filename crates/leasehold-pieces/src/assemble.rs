//! A file in the making: pieces are verified in memory, written at their place, and noted in a journal.
//!
//! Beside the sparse file lies its journal: who made it, then one note per verified piece, appended after the piece was
//! written. After a crash the journal says which pieces to look at, and each of them is verified once more from the
//! disk: a note may have survived a power cut that its piece has not. So no verified piece is fetched again, and no
//! unverified one is trusted. The journal is locked by whoever assembles: one file has one maker.
//!
//! Others (the piece server, also in another process) read the journal without the lock, to serve what is verified.

use leasehold_core::piece::PieceMap;
use leasehold_core::{Error, Kind, Result};
use leasehold_store::mutant::{Rule, breaks};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use crate::hash::{Algorithm, Whole};
use crate::manifest::Manifest;

/// What a journal begins with: its format and the size of the pieces it speaks of.
const HEAD_BYTES: usize = 24;
const MAGIC: &[u8; 8] = b"leasejn1";
/// A note: the number of the piece and the beginning of its hash.
const NOTE_BYTES: usize = 8;

/// A file that is being put together.
#[derive(Debug)]
pub(crate) struct Assembly {
    manifest: Manifest,
    paths: Paths,
    file: File,
    /// It has its name, and is written to no more. Read by those who write.
    is_closed: RwLock<bool>,
    progress: Mutex<Progress>,
}

/// Where a file in the making lies.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    pub(crate) part: PathBuf,
    pub(crate) journal: PathBuf,
}

struct Progress {
    /// Locked as long as it is open.
    journal: File,
    /// What an earlier maker has noted, until it was looked at.
    noted: PieceMap,
    verified: PieceMap,
    /// Nothing if the manifest has proved itself: then the whole is right when its pieces are.
    whole: Option<Follower>,
}

/// The hash of the whole follows the pieces from the beginning, so that nothing is left to be read at the end.
struct Follower {
    whole: Whole,
    next: u32,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.verified.fmt(f)
    }
}

/// Whether a file is ours to make.
#[derive(Debug)]
pub(crate) enum Opened {
    /// It is, from where an earlier maker came to.
    Ours(Box<Assembly>),
    /// Another process, or another fetch, is at it.
    Others,
}

/// What became of the bytes of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It is right, and in its place.
    Verified,
    /// It is not what the manifest says.
    Wrong,
}

impl Assembly {
    /// Opens or begins the file of a manifest. What an earlier maker has noted counts only after [`Self::resume`].
    pub(crate) fn open(paths: Paths, manifest: Manifest) -> Result<Opened> {
        let Some(journal) = locked(&paths.journal)? else { return Ok(Opened::Others) };
        let opened = (|| {
            let noted = read_notes(&paths.journal, &manifest)?;
            let mut options = File::options();
            let file = options.read(true).write(true).create(true).truncate(false).open(&paths.part)?;
            if noted.is_none() {
                journal.set_len(0)?;
                file.set_len(0)?;
                (&journal).write_all(&head(&manifest))?;
            }
            file.set_len(manifest.cut.size())?;
            Ok((file, noted.unwrap_or_else(|| PieceMap::none(manifest.cut.pieces()))))
        })();
        let (file, noted) = opened.map_err(|error| failed("open", &paths.part, error))?;
        let algorithm = Algorithm::of(&manifest.artifact);
        let whole = (algorithm == Algorithm::Sha256).then(|| Follower { whole: Whole::new(), next: 0 });
        let verified = PieceMap::none(noted.len());
        let progress = Mutex::new(Progress { journal, noted, verified, whole });
        Ok(Opened::Ours(Box::new(Self { manifest, paths, file, is_closed: RwLock::new(false), progress })))
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The pieces that are right and in their places.
    pub(crate) fn verified(&self) -> PieceMap {
        self.progress().verified.clone()
    }

    /// Takes in the bytes of a piece. Blocks.
    pub(crate) fn place(&self, piece: u32, bytes: &[u8]) -> Result<Placed> {
        let is_whole = bytes.len() == self.manifest.cut.len_of(piece) as usize;
        if !is_whole || !self.manifest.holds(piece..piece + 1, bytes) {
            return Ok(Placed::Wrong);
        }
        // The second of two peers that were asked for it may come when all is done.
        let is_closed = self.is_closed.read().unwrap_or_else(PoisonError::into_inner);
        if *is_closed {
            return Ok(Placed::Verified);
        }
        let written = self.file.write_all_at(bytes, self.manifest.cut.bytes_of(piece).start);
        written.map_err(|error| failed("write", &self.paths.part, error))?;
        let mut progress = self.progress();
        if progress.verified.insert(piece) {
            let noted = progress.journal.write_all(&note(piece, &self.manifest));
            noted.map_err(|error| failed("write", &self.paths.journal, error))?;
        }
        self.follow(&mut progress, Some((piece, bytes)))?;
        Ok(Placed::Verified)
    }

    /// Verifies the whole and gives the file its name. Blocks. A whole that is not what its name says is removed.
    pub(crate) fn finish(&self, to: &Path) -> Result<()> {
        let mut is_closed = self.is_closed.write().unwrap_or_else(PoisonError::into_inner);
        let mut progress = self.progress();
        if !progress.verified.is_full() {
            return Err(Error::new(
                Kind::Internal,
                "a file was to be finished before all its pieces were there",
            ));
        }
        self.follow(&mut progress, None)?;
        let whole = progress.whole.take().map(|follower| follower.whole.finish());
        if whole.is_some_and(|whole| Algorithm::Sha256.name(whole) != self.manifest.artifact) {
            self.discard();
            return Err(Error::new(
                Kind::Corrupt,
                format!(
                    "every piece of artifact {} is as its manifest says, but the whole is not: the manifest is wrong",
                    self.manifest.artifact
                ),
            ));
        }
        let named = (|| {
            self.file.set_modified(sealed_at())?;
            self.file.sync_all()?;
            // Under its name it is in use until its maker lets it go: nobody shall remove it in the same moment.
            flock(&self.file, FlockOperation::NonBlockingLockShared)?;
            fs::rename(&self.paths.part, to)
        })();
        named.map_err(|error| failed("finish", to, error))?;
        *is_closed = true;
        // Not before: were this the last thing that we do, nobody could go on with the part.
        if let Err(error) = self.write_protect() {
            tracing::debug!("{} stays as it is: {error}", to.display());
        }
        // Nobody else can have begun with it: it is locked, and its part is gone.
        let _ = fs::remove_file(&self.paths.journal);
        Ok(())
    }

    /// Handlers are given the file itself: what they must not change, they should not be able to change by mistake.
    fn write_protect(&self) -> io::Result<()> {
        let mut permissions = self.file.metadata()?.permissions();
        permissions.set_readonly(true);
        self.file.set_permissions(permissions)
    }

    /// Removes the file in the making.
    pub(crate) fn discard(&self) {
        let _ = fs::remove_file(&self.paths.part);
        let _ = fs::remove_file(&self.paths.journal);
    }

    /// Verifies what an earlier maker has noted. Blocks: reads all of it.
    pub(crate) fn resume(&self) -> Result<()> {
        let mut kept: Vec<u8> = head(&self.manifest).into();
        let mut progress = self.progress();
        let mut buffer = Vec::new();
        let nothing = PieceMap::none(self.manifest.cut.pieces());
        let noted = std::mem::replace(&mut progress.noted, nothing);
        for piece in noted.iter() {
            self.read_into(&mut buffer, piece)?;
            let is_right = self.manifest.holds(piece..piece + 1, &buffer);
            if is_right || breaks(Rule::JournalTrusted) {
                progress.verified.insert(piece);
                kept.extend(note(piece, &self.manifest));
                self.follow(&mut progress, Some((piece, &buffer)))?;
            }
        }
        let journal = &progress.journal;
        let rewritten = journal.metadata().and_then(|found| {
            if found.len() == kept.len() as u64 {
                // Every note holds. Not to touch them is safest: a crash right now loses nothing.
                return Ok(());
            }
            // What did not hold is no longer claimed to be there, and a note that was cut off by a crash goes.
            let mut journal = journal;
            journal.set_len(0).and_then(|()| journal.write_all(&kept))
        });
        rewritten.map_err(|error| failed("write", &self.paths.journal, error))
    }

    /// Hashes on from the beginning as far as the file is verified; `fresh` is a piece that is still in memory.
    fn follow(&self, progress: &mut Progress, fresh: Option<(u32, &[u8])>) -> Result<()> {
        let Progress { verified, whole: Some(Follower { whole, next }), .. } = progress else {
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
        read.map_err(|error| failed("read", &self.paths.part, error))
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stamp of every file that is whole: whoever writes to it later changes that. An even second, which all file systems
/// can keep.
fn sealed_at() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(262_968)
}

/// Whether nobody has written to a file since it was whole.
pub(crate) fn is_sealed(found: &Metadata) -> bool {
    found.modified().is_ok_and(|at| at == sealed_at())
}

/// The pieces that the journal of a file in the making says are verified; nothing if it speaks of another cut, or if
/// there is none.
pub(crate) fn read_notes(journal: &Path, manifest: &Manifest) -> io::Result<Option<PieceMap>> {
    let bytes = match fs::read(journal) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(notes) = bytes.strip_prefix(head(manifest).as_slice()) else { return Ok(None) };
    let mut map = PieceMap::none(manifest.cut.pieces());
    for noted in notes.chunks_exact(NOTE_BYTES) {
        let piece = u32::from_le_bytes([noted[0], noted[1], noted[2], noted[3]]);
        if piece < map.len() && noted == note(piece, manifest) {
            map.insert(piece);
        }
    }
    Ok(Some(map))
}

fn head(manifest: &Manifest) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..16].copy_from_slice(&manifest.cut.size().to_le_bytes());
    head[16..20].copy_from_slice(&manifest.cut.piece_bytes().to_le_bytes());
    head
}

fn note(piece: u32, manifest: &Manifest) -> [u8; NOTE_BYTES] {
    let mut note = [0; NOTE_BYTES];
    note[..4].copy_from_slice(&piece.to_le_bytes());
    note[4..].copy_from_slice(&manifest.pieces[piece as usize].beginning());
    note
}

/// Opens a journal and locks it; nothing if another has it. One that was removed while we waited for it is not it.
fn locked(path: &Path) -> Result<Option<File>> {
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
    lock().map_err(|error| failed("open", path, error))
}

/// Whether the open file is the one that lies at this path now.
pub(crate) fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    match fs::metadata(path) {
        Ok(there) => Ok(there.ino() == file.metadata()?.ino()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A file system call that failed, in one sentence.
pub(crate) fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    let path = path.display();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::new(Kind::Unavailable, format!("the disk is full: cannot {what} {path}"))
        }
        ErrorKind::FileTooLarge => {
            Error::invalid(format!("files of this size are not allowed here: cannot {what} {path}"))
        }
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
    use leasehold_core::piece::Cut;

    const BYTES: &[u8] = b"what is in the file";

    fn begun(directory: &Path) -> Box<Assembly> {
        let manifest = Manifest {
            artifact: Algorithm::Blake3.name(Algorithm::Blake3.hash(BYTES)),
            cut: Cut::usual(BYTES.len() as u64).unwrap(),
            pieces: vec![Algorithm::Blake3.hash(BYTES)],
            name: None,
            media_type: None,
            published_at: StoreTime::from_millis(0),
            keep_secs: 60,
        };
        let paths = Paths { part: directory.join("part"), journal: directory.join("journal") };
        match Assembly::open(paths, manifest).unwrap() {
            Opened::Ours(assembly) => assembly,
            Opened::Others => panic!("it is ours"),
        }
    }

    #[test]
    fn a_file_that_did_not_get_its_name_can_be_gone_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let assembly = begun(directory.path());
        assembly.place(0, BYTES).unwrap();
        assembly.finish(&directory.path().join("not/there")).unwrap_err();
        let left = fs::metadata(directory.path().join("part")).unwrap();
        assert!(!left.permissions().readonly());
        drop(assembly);
        let assembly = begun(directory.path());
        assembly.resume().unwrap();
        let named = directory.path().join("data");
        assembly.finish(&named).unwrap();
        assert!(fs::metadata(&named).unwrap().permissions().readonly());
        assert_eq!(fs::read(&named).unwrap(), BYTES);
    }

    #[test]
    fn a_file_that_just_got_its_name_is_in_use() {
        let directory = tempfile::tempdir().unwrap();
        let (assembly, named) = (begun(directory.path()), directory.path().join("data"));
        assembly.place(0, BYTES).unwrap();
        assembly.finish(&named).unwrap();
        let lock = || flock(File::open(&named).unwrap(), FlockOperation::NonBlockingLockExclusive);
        assert_eq!(lock().unwrap_err(), rustix::io::Errno::WOULDBLOCK);
        drop(assembly);
        lock().unwrap();
    }

    #[test]
    fn a_piece_that_comes_when_all_is_done_does_not_touch_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let (assembly, named) = (begun(directory.path()), directory.path().join("data"));
        assembly.place(0, BYTES).unwrap();
        assembly.finish(&named).unwrap();
        assert_eq!(assembly.place(0, BYTES).unwrap(), Placed::Verified);
        assert!(is_sealed(&fs::metadata(&named).unwrap()));
    }
}
