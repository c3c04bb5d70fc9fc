//! The folder of a node, a real directory, and checks on it.

use leasehold_core::outpost::{Consistency, Op, QueuePath, SyncRefusal};
use leasehold_core::{Name, Result};
use leasehold_outpost::{FileHook, OutpostConfig, Spool};
use leasehold_store::Host;
use serde::Deserialize;
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use tempfile::TempDir;

use super::checker::OutpostChecker;
use crate::executor::ProcessId;
use crate::host::SimHost;
use crate::random::SimRandom;

/// Directory in memory, which is faster than a disk.
const MEMORY: &str = "/dev/shm";

/// A machine with a folder. Clones share it.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) consistency: Consistency,
    data: Arc<TempDir>,
    /// Kills a process, if faults may kill processes.
    process_killer: Arc<dyn Fn(ProcessId) -> bool + Send + Sync>,
    /// Rate of file changes before which the process is killed, in ten thousandths.
    kill_per_ten_thousand: u32,
}

/// A file in `conflicts/`.
#[derive(Deserialize)]
pub(super) struct ConflictFile {
    pub(super) op: Op,
    pub(super) why: SyncRefusal,
}

impl Node {
    pub(super) fn new(
        name: String,
        consistency: Consistency,
        process_killer: Arc<dyn Fn(ProcessId) -> bool + Send + Sync>,
        kill_per_ten_thousand: u32,
    ) -> io::Result<Self> {
        let data = if Path::new(MEMORY).is_dir() { TempDir::new_in(MEMORY)? } else { TempDir::new()? };
        Ok(Self { name, consistency, data: Arc::new(data), process_killer, kill_per_ten_thousand })
    }

    /// Opens the spool for a process of this node.
    pub(super) fn open(&self, host: &Arc<SimHost>) -> Result<Spool> {
        let mut config = OutpostConfig::new(Name::checked("node", &self.name)?);
        config.consistency = self.consistency;
        let as_host: Arc<dyn Host> = host.clone();
        let spool = Spool::create(self.data.path(), &queue_path()?, config, as_host)?;
        let rng = Mutex::new(SimRandom::new(host.random()));
        let kills = KillBetweenSteps {
            node: self.clone(),
            process: host.process(),
            rng,
            is_dead: AtomicBool::new(false),
        };
        let spool =
            spool.with_boot_id(&format!("{}-{}", self.name, host.boot())).with_file_hook(Arc::new(kills));
        spool.recover()?;
        Ok(spool)
    }

    pub(super) fn has_nothing_to_send(&self) -> bool {
        self.names("outbox").is_empty()
    }

    /// Returns whether the result of a run is recorded here.
    pub(super) fn has_result(&self, id: &str, run: u64) -> bool {
        let completed = read(&self.folder("completed").join(format!("{id}.json")));
        if completed.is_some_and(|record| record["output"]["run"] == run) {
            return true;
        }
        let ops = self.names("outbox");
        let mut ops = ops.iter().filter_map(|name| read(&self.folder("outbox").join(name)));
        ops.any(|op| op["op"] == "complete" && op["output"]["run"] == run)
    }

    pub(super) fn conflicts(&self) -> Vec<ConflictFile> {
        let names = self.names("conflicts");
        let read = |name: &String| fs::read(self.folder("conflicts").join(name)).ok();
        names.iter().filter_map(read).filter_map(|body| serde_json::from_slice(&body).ok()).collect()
    }

    /// Checks that nothing is left to send, all tasks have ended, each task is in one place, and there are no
    /// other files.
    pub(super) fn check_folders(&self, checker: &OutpostChecker) -> std::result::Result<(), String> {
        let name = &self.name;
        for folder in ["outbox", "pending", "tmp"] {
            let left = self.names(folder);
            if !left.is_empty() {
                let about = left.iter().map(|id| checker.record(id)).collect::<Vec<_>>().join(", ");
                return Err(format!("folders: {folder}/ of {name} is not empty: {left:?} {about}"));
            }
        }
        let (completed, failed) = (self.names("completed"), self.names("failed"));
        match completed.iter().find(|id| failed.contains(id)) {
            Some(twice) => Err(format!("folders: {twice} is both completed and failed on {name}")),
            None => Ok(()),
        }
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let Ok(read) = fs::read_dir(self.folder(folder)) else { return Vec::new() };
        let mut names: Vec<_> =
            read.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
        names.sort();
        names
    }

    fn folder(&self, folder: &str) -> PathBuf {
        let of = queue_path().expect("the names are valid");
        self.data.path().join(of.folder()).join(folder)
    }
}

fn queue_path() -> Result<QueuePath> {
    QueuePath::new("spring", "pictures")
}

fn read(path: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Kills a process between two changes of files.
struct KillBetweenSteps {
    node: Node,
    process: ProcessId,
    rng: Mutex<SimRandom>,
    is_dead: AtomicBool,
}

impl std::fmt::Debug for KillBetweenSteps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KillBetweenSteps").field("process", &self.process).finish_non_exhaustive()
    }
}

impl FileHook for KillBetweenSteps {
    fn step(&self, what: &'static str) -> io::Result<()> {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        let kills = rng.happens(self.node.kill_per_ten_thousand);
        if self.is_dead.load(Relaxed) || kills && (self.node.process_killer)(self.process) {
            self.is_dead.store(true, Relaxed);
            return Err(io::Error::other(format!("the process was killed before a {what}")));
        }
        Ok(())
    }
}
