//! One file per command.

mod config;
mod doctor;

use leasehold_store::{Client, Host, SystemHost, open};
use std::sync::Arc;

use crate::args::{Args, Command, ConfigCommand, Global};
use crate::printer::Printer;
use crate::settings::typed::Queue;
use crate::settings::{self, Flags, Surroundings};

pub(crate) async fn run(args: Args, printer: &Printer) -> anyhow::Result<()> {
    let around = Surroundings::of_process()?;
    let load = || settings::load(&around, &flags(&args.global));
    match args.command {
        Command::Config { command: ConfigCommand::Paths } => config::paths(&around, printer),
        Command::Config { command: ConfigCommand::Show } => config::show(&load()?, printer),
        Command::Doctor => doctor::run(connect(&load()?.queue)?, printer).await?,
    }
    Ok(())
}

/// The flags that every command understands, as settings.
fn flags(global: &Global) -> Flags {
    Flags::default().with_profile(global.profile.as_deref()).with(
        "--store",
        "queue.store",
        global.store.as_deref(),
    )
}

fn connect(queue: &Queue) -> anyhow::Result<Client> {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    Ok(Client::new(open(&queue.store, &queue.open, &host)?, host))
}
