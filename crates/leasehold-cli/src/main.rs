//! Program `leasehold`. Its code is in the library of this crate, which Python runs too.

use std::process::ExitCode;

fn main() -> ExitCode {
    let program = std::env::current_exe().map_or_else(|_| "leasehold".into(), Into::into);
    ExitCode::from(leasehold_cli::main(&[program], std::env::args_os()))
}
