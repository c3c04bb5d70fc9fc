//! Process that uses a store on behalf of tests, so that several can run at once and be killed.
//!
//! `increment ADDRESS KEY TIMES` · `create ADDRESS ROOT COUNT` · `overwrite ADDRESS ROOT KEYS` (until killed) ·
//! `entries ADDRESS ROOT COUNT` (writes empty objects) · `group-…` (any of these with [`FolderAccess::Group`]) ·
//! `log FOLDER EPOCH STEP` (takes a log over and commits, prints what is committed, and aborts before system call number STEP;
//! until killed if STEP is 0) ·
//! `hold-weed BINARY BUCKET 0` (until killed; `-` for no bucket; prints process id, endpoint and first port).
#![expect(clippy::print_stdout, reason = "the test that started it reads what it prints")]

use bytes::Bytes;
use leasehold_core::journal::LogPosition;
use leasehold_core::{Error, Result};
use leasehold_store::testing::conformance::races::{create_all, increment};
use leasehold_store::testing::log_conformance::serve;
use leasehold_store::testing::{DiskHook, DiskStep, HookedDirectory, SeaweedFs, StepFate, whole_body};
use leasehold_store::{
    Client, CommitOutcome, FolderAccess, FolderLogDirectory, FolderOptions, Host, HostExt, Log, OpenOptions,
    Purpose, SystemHost, open,
};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [action, address, key, number] = arguments[..] else {
        return Err(Error::invalid("ACTION ADDRESS KEY NUMBER"));
    };
    let number: usize = number.parse().map_err(|_| Error::invalid("NUMBER must be a number"))?;
    match action {
        "hold-weed" => return hold_weed(address, key).await,
        "log" => return write_log(address, key, number).await,
        _ => {}
    }
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let (action, access) = match action.strip_prefix("group-") {
        Some(action) => (action, FolderAccess::Group),
        None => (action, FolderAccess::Private),
    };
    let folder = FolderOptions { access, ..FolderOptions::default() };
    let client = Client::new(open(address, &OpenOptions { folder, ..OpenOptions::default() }, &host)?, host);
    match action {
        "increment" => {
            let process = std::process::id().to_string();
            for _ in 0..number {
                increment(&client, key, &process).await?;
            }
            println!("{number}");
        }
        "create" => println!("{}", create_all(&client, key, number).await?),
        "entries" => {
            for entry in 0..number {
                client.put_always(Purpose::Admin, &format!("{key}{entry}/entry"), Bytes::new()).await?;
            }
            println!("{number}");
        }
        "overwrite" => overwrite(&client, key, number).await?,
        _ => return Err(Error::invalid("increment, create, entries, overwrite, log or hold-weed")),
    }
    Ok(())
}

/// Starts a real server, prints its process id and address, and keeps it running until killed.
async fn hold_weed(binary: &str, bucket: &str) -> Result<()> {
    let failed = |error| Error::invalid("weed").because(error);
    let weed = SeaweedFs::start(binary.as_ref()).await.map_err(failed)?;
    if bucket != "-" {
        weed.create_bucket(bucket).await.map_err(failed)?;
    }
    println!("{}\n{}\n{}", weed.pid().unwrap_or(0), weed.endpoint(), weed.base_port());
    std::future::pending().await
}

/// Number of commits of a process that aborts.
const COMMITS: u32 = 3;

/// Aborts the process before a system call.
#[derive(Debug)]
struct AbortAt(AtomicUsize);

impl DiskHook for AbortAt {
    fn step(&self, _: u32, _: DiskStep) -> StepFate {
        if self.0.fetch_sub(1, Relaxed) == 1 {
            std::process::abort();
        }
        StepFate::Done
    }
}

/// Takes a log over and commits, with small segments; prints every record when it is committed.
async fn write_log(root: &str, epoch: &str, step: usize) -> Result<()> {
    let epoch: u64 = epoch.parse().map_err(|_| Error::invalid("EPOCH must be a number"))?;
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let directory = FolderLogDirectory::new(root.as_ref(), FolderOptions::default(), host.clone());
    let hook = Arc::new(AbortAt(AtomicUsize::new(step)));
    let log = Log::in_directory(Arc::new(HookedDirectory::new(Arc::new(directory), hook)), host);
    let serving = serve(&log.with_segment_bytes(2_000), epoch, LogPosition::START).await;
    let mut serving = serving.map_err(Error::invalid)?;
    let mut out = std::io::stdout();
    for number in 0.. {
        if step > 0 && number == COMMITS {
            break;
        }
        let records = format!("\"{epoch}-{number}\"\n");
        match serving.writer.commit(Bytes::from(records.clone()), 1).await? {
            CommitOutcome::Committed(_) => {}
            CommitOutcome::Superseded => {
                println!("superseded");
                break;
            }
            CommitOutcome::Mismatch(error) => return Err(error),
        }
        // The test may have ended, or stopped reading: then this process ends too.
        if write!(out, "{records}").and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    Ok(())
}

/// Overwrites random keys with bodies whose integrity can be checked, and prints each acknowledged key.
async fn overwrite(client: &Client, root: &str, keys: usize) -> Result<()> {
    let mut out = std::io::stdout();
    loop {
        let random = client.host().random_bits();
        let key = format!("{root}{:03}", random % keys as u128);
        let size = usize::try_from(random >> 64).unwrap_or(0) % 100_000;
        let body = whole_body(&client.write_id(), size);
        client.put_always(Purpose::Admin, &key, Bytes::from(body)).await?;
        // The test may have ended, or stopped reading: then this process ends too.
        if writeln!(out, "{key}").and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
    }
}
