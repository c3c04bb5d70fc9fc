//! Storage of a journal's log: files in a folder on a disk of this host, or objects anywhere else.

use leasehold_store::{Client, LocalFolder, Log};

use super::broker::maintenance::SnapshotLimits;
use super::commit::Linger;

/// Log of a queue, and what depends on its storage.
#[derive(Debug, Clone)]
pub(super) struct LogHome {
    pub(super) log: Log,
    pub(super) linger: Linger,
    pub(super) snapshots: SnapshotLimits,
}

impl LogHome {
    pub(super) fn of(client: &Client, snapshots: SnapshotLimits) -> Self {
        match client.local_folder() {
            Some(LocalFolder { root, options }) => {
                let log = Log::in_folder(&root, options, client.host().clone());
                Self { log, linger: Linger::FOLDER, snapshots }
            }
            None => Self { log: Log::in_bucket(client.clone()), linger: Linger::BUCKET, snapshots },
        }
    }
}
