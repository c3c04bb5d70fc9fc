//! One file per command.

mod doctor;

use leasehold_store::{Client, Host, OpenOptions, SystemHost, open};
use std::sync::Arc;

use crate::args::{Args, Command, Global};
use crate::printer::Printer;

pub(crate) async fn run(args: Args, printer: &Printer) -> anyhow::Result<()> {
    let client = connect(&args.global)?;
    match args.command {
        Command::Doctor => doctor::run(client, printer).await,
    }
}

fn connect(global: &Global) -> anyhow::Result<Client> {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    Ok(Client::new(open(&global.store, &OpenOptions::default(), &host)?, host))
}
