//! `leasehold cost` in a build without the feature `cost`, such as the Python package: says where the command is.

use clap::Args;
use leasehold_core::Error;
use std::ffi::OsString;

use crate::printer::Printer;

/// Any arguments, so that every use of the command gets the same answer.
#[derive(Debug, Args)]
pub(crate) struct CostArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _any: Vec<OsString>,
}

pub(crate) fn run(_: &CostArgs, _: &Printer) -> anyhow::Result<()> {
    Err(Error::invalid(
        "this build of leasehold has no command `cost`, which needs the simulator; \
         use the program that `cargo build --release -p leasehold-cli` builds",
    )
    .into())
}
