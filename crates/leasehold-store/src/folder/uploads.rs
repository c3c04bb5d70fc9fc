//! Uploads in parts: temporary files that are renamed into place at the end.
//!
//! They belong to this process, so that their files are not removed as abandoned while it lives (`temps`), however long
//! an upload takes. Parts may be written concurrently; the end waits for running writes and rejects later ones, because
//! a file that is in place is never written again.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::temps::Temp;
use super::{Durability, FolderError};
use crate::parts::{part_id, parts_mismatch, total_bytes, upload_not_found};
use crate::store::{PartId, UploadId, Version};

#[derive(Default)]
pub(super) struct FolderUploads {
    under_way: Mutex<HashMap<UploadId, Arc<Upload>>>,
}

struct Upload {
    key: String,
    part_bytes: u64,
    /// None once the upload has ended. Shared by the writers of parts.
    open: RwLock<Option<Open>>,
}

struct Open {
    file: File,
    temp: Temp,
}

impl FolderUploads {
    pub(super) fn begin(&self, key: &str, part_bytes: u64, temp: Temp, file: File) -> UploadId {
        let id = UploadId::new(temp.name());
        let open = RwLock::new(Some(Open { file, temp }));
        self.under_way().insert(id.clone(), Arc::new(Upload { key: key.to_owned(), part_bytes, open }));
        id
    }

    pub(super) fn part(
        &self,
        key: &str,
        id: &UploadId,
        number: usize,
        body: &[u8],
        durability: Durability,
    ) -> Result<PartId, FolderError> {
        let upload = self.find(key, id).ok_or_else(|| upload_not_found(key))?;
        let part = part_id(key, number, body.len() as u64, upload.part_bytes)?;
        let place = upload.part_bytes.checked_mul(number as u64).ok_or_else(|| parts_mismatch(key))?;
        let open = upload.open.read().unwrap_or_else(PoisonError::into_inner);
        let Open { file, .. } = open.as_ref().ok_or_else(|| upload_not_found(key))?;
        file.write_all_at(body, place).map_err(FolderError::NotDone)?;
        // Each part is synced, so that the end has little left to sync and is answered in time.
        if durability == Durability::Fsync {
            file.sync_data().map_err(FolderError::NotDone)?;
        }
        Ok(part)
    }

    /// Ends an upload: `place` renames the file into place. A failure before the rename may be retried.
    pub(super) fn end(
        &self,
        key: &str,
        id: &UploadId,
        parts: &[PartId],
        place: impl FnOnce(&File, &mut Temp) -> io::Result<()>,
    ) -> Result<Version, FolderError> {
        let upload = self.find(key, id).ok_or_else(|| upload_not_found(key))?;
        let bytes = total_bytes(key, parts, upload.part_bytes)?;
        let mut open = upload.open.write().unwrap_or_else(PoisonError::into_inner);
        let Open { file, temp } = open.as_mut().ok_or_else(|| upload_not_found(key))?;
        if file.metadata()?.len() != bytes {
            return Err(parts_mismatch(key).into());
        }
        place(file, temp)?;
        let version = file.metadata().map(|metadata| version(&metadata));
        *open = None;
        self.under_way().remove(id);
        Ok(version?)
    }

    /// Aborts an upload. The file is removed with its last user.
    pub(super) fn abort(&self, key: &str, id: &UploadId) {
        if let Some(upload) = self.find(key, id) {
            self.under_way().remove(id);
            *upload.open.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    fn find(&self, key: &str, id: &UploadId) -> Option<Arc<Upload>> {
        self.under_way().get(id).filter(|upload| upload.key == key).cloned()
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<UploadId, Arc<Upload>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Version of a file for ranged reads. A file in place is never written again, so that other content is another file.
/// An inode number may be reused, but not in the same nanosecond.
pub(super) fn version(metadata: &Metadata) -> Version {
    let (number, length) = (metadata.ino(), metadata.len());
    Version::new(format!("{number}-{}.{}-{length}", metadata.mtime(), metadata.mtime_nsec()))
}
