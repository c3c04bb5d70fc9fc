//! Benchmarks: number of requests first, then rates against a baseline of the same run.
//!
//! | module | content |
//! | --- | --- |
//! | [`args`] | command-line arguments |
//! | [`raw`] | the command `raw`: every kind of request on every store, ours against plain calls |
//! | [`queue`] | the command `queue`: tasks submitted and run, against the limit |
//! | [`journal`] | the command `journal`: tasks of a journal, against bare appends and syncs, or bare puts |
//! | [`contestant`] | the command `contestant`: one stage of a comparison with other task queues |
//! | [`depth`] | the command `depth`: few and many waiting, and the worker's memory |
//! | [`manager`] | the command `manager`: cost of assigning pieces to peers |
//! | [`dashboard`] | the command `dashboard`: response time over many tasks, and memory |
//! | [`artifact`] | the command `artifact`: one fetched into a cache, against a plain download |
//! | [`limit`] | tasks per second that the raw request rate of a store allows |
//! | [`store_under_test`] | the folder or the bucket that is measured |
//! | [`operation`] | the kinds of request, and the keys they are aimed at |
//! | [`round`] | a round of concurrent requests: asynchronous calls, or threads |
//! | [`client_calls`] | the calls as the rest of Leasehold makes them |
//! | [`plain_bucket`], [`plain_folder`] | the same calls without Leasehold: the baselines |
//! | [`measure`] | ours and the baseline in alternating rounds, and the result |
//! | [`histogram`] | latencies in a fixed amount of memory |
//! | [`memory`] | peak and current memory of this process |
//! | [`report`] | the only place that prints |
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod args;
mod artifact;
mod client_calls;
mod contestant;
mod dashboard;
mod depth;
mod histogram;
mod journal;
mod limit;
mod manager;
mod measure;
mod memory;
mod operation;
mod plain_bucket;
mod plain_folder;
mod queue;
mod raw;
mod report;
mod round;
mod store_under_test;

use clap::Parser;

fn main() -> anyhow::Result<()> {
    match args::Args::parse().command {
        args::Command::Raw(raw) => raw::run(&raw),
        args::Command::Queue(queue) => queue::run(&queue),
        args::Command::Journal(journal) => journal::run(&journal),
        args::Command::Contestant(contestant) => contestant::run(&contestant),
        args::Command::JournalProcess(process) => journal::process(&process),
        args::Command::Depth(depth) => depth::run(&depth),
        args::Command::Manager(manager) => manager::run(&manager),
        args::Command::Dashboard(dashboard) => dashboard::run(&dashboard),
        args::Command::Work(work) => depth::work(&work),
        args::Command::Artifact(artifact) => artifact::run(&artifact),
        args::Command::Fetch(fetch) => artifact::work(&fetch),
    }
}
