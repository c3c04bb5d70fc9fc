//! Process that uses a store on behalf of tests, so that several can run at once and be killed.
//!
//! `increment ADDRESS KEY TIMES` · `create ADDRESS ROOT COUNT` · `overwrite ADDRESS ROOT KEYS` (until killed) ·
//! `entries ADDRESS ROOT COUNT` (writes empty objects) · `group-…` (any of these with [`FolderAccess::Group`]) ·
//! `hold-weed BINARY BUCKET 0` (until killed; `-` for no bucket; prints process id, endpoint and first port).
#![expect(clippy::print_stdout, reason = "the test that started it reads what it prints")]

use bytes::Bytes;
use leasehold_core::{Error, Result};
use leasehold_store::testing::conformance::races::{create_all, increment};
use leasehold_store::testing::{SeaweedFs, whole_body};
use leasehold_store::{
    Client, FolderAccess, FolderOptions, Host, HostExt, OpenOptions, Purpose, SystemHost, open,
};
use std::io::Write;
use std::sync::Arc;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [action, address, key, number] = arguments[..] else {
        return Err(Error::invalid("ACTION ADDRESS KEY NUMBER"));
    };
    let number: usize = number.parse().map_err(|_| Error::invalid("NUMBER must be a number"))?;
    if action == "hold-weed" {
        return hold_weed(address, key).await;
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
        _ => return Err(Error::invalid("increment, create, entries, overwrite or hold-weed")),
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
