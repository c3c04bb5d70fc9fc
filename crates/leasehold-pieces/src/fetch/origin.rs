//! The store as a source of pieces: ranged reads of one object, as long as it is unchanged.

use bytes::Bytes;
use leasehold_core::{ArtifactId, Error, Kind, Reason, Result, keys};
use leasehold_store::store::Ranged;
use leasehold_store::{Client, Purpose, Version};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Reads of an object that is replaced before each of them.
const CHANGES_MAX: u32 = 4;

/// The data of one artifact in the store.
#[derive(Debug)]
pub(crate) struct Origin {
    client: Client,
    key: String,
    /// Version from the first read: later reads must be of the same object.
    version: Mutex<Option<Version>>,
}

impl Origin {
    pub(crate) fn new(client: Client, artifact: &ArtifactId) -> Self {
        Self { client, key: keys::artifact_data(artifact), version: Mutex::default() }
    }

    /// Reads the bytes in this range. An object that was replaced by an equal one, as by publishing again, is read again.
    pub(crate) async fn read(&self, range: Range<u64>) -> Result<Bytes> {
        for _ in 0..CHANGES_MAX {
            let known = self.version().clone();
            match self.client.get_range(Purpose::Fetch, &self.key, range.clone(), known.as_ref()).await? {
                Ranged::Found(object) => {
                    *self.version() = Some(object.version);
                    return Ok(object.body);
                }
                Ranged::Changed => *self.version() = None,
                Ranged::Missing => {
                    let message = format!("the data of the artifact is missing: there is no `{}`", self.key);
                    return Err(Error::new(Kind::Corrupt, message).with_reason(Reason::Missing));
                }
            }
        }
        Err(Error::new(Kind::Unavailable, format!("`{}` keeps changing; retry later", self.key)))
    }

    fn version(&self) -> std::sync::MutexGuard<'_, Option<Version>> {
        self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
