//! Numbers: how many requests a thing takes, and then how fast it is, against a baseline of the same run.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`args`] | what can be asked for |
//! | [`raw`] | the command `raw`: every kind of request on every store, ours against plain calls |
//! | [`queue`] | the command `queue`: tasks submitted and worked off, against the limit |
//! | [`depth`] | the command `depth`: few and many waiting, and the worker's memory |
//! | [`manager`] | the command `manager`: what it costs to decide who fetches which piece |
//! | [`dashboard`] | the command `dashboard`: how long it takes to answer over many tasks, and its memory |
//! | [`artifact`] | the command `artifact`: one fetched into a cache, against a plain download |
//! | [`limit`] | what the raw request rate of a store allows |
//! | [`ground`] | the folder or the bucket that is measured |
//! | [`operation`] | the kinds of request, and the keys they are aimed at |
//! | [`side`] | a round of requests, in flight together: asynchronous calls, or threads |
//! | [`ours`] | the calls as the rest of Leasehold makes them |
//! | [`plain_bucket`], [`plain_folder`] | the same calls without us: the baselines |
//! | [`measure`] | ours and the baseline in alternating rounds, and what they come to |
//! | [`histogram`] | latencies in a fixed amount of memory |
//! | [`memory`] | the most memory that this process has had |
//! | [`report`] | the only place that prints |
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod args;
mod artifact;
mod dashboard;
mod depth;
mod ground;
mod histogram;
mod limit;
mod manager;
mod measure;
mod memory;
mod operation;
mod ours;
mod plain_bucket;
mod plain_folder;
mod queue;
mod raw;
mod report;
mod side;

use clap::Parser;

fn main() -> anyhow::Result<()> {
    match args::Args::parse().command {
        args::Command::Raw(raw) => raw::run(&raw),
        args::Command::Queue(queue) => queue::run(&queue),
        args::Command::Depth(depth) => depth::run(&depth),
        args::Command::Manager(manager) => manager::run(&manager),
        args::Command::Dashboard(dashboard) => dashboard::run(&dashboard),
        args::Command::Work(work) => depth::work(&work),
        args::Command::Artifact(artifact) => artifact::run(&artifact),
        args::Command::Carry(carry) => artifact::work(&carry),
    }
}
