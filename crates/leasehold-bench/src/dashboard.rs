//! The command `dashboard`: how long it takes to answer over many tasks, and how much memory it takes.
//!
//! The queue is in memory, so that only the dashboard itself is measured: the reading of all tasks into its table, and then
//! each view, asked for over loopback again and again. Its memory is what the process has more after the reading than
//! before; the tasks themselves were there before.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use leasehold_core::NewTask;
use leasehold_queue::Queue;
use leasehold_store::{Client, Host, MemoryStore, Prices, SystemHost};
use leasehold_web::{Dashboard, Pace, WebOptions};
use leasehold_worker::Shutdown;
use serde_json::{Value, json};

use crate::args;
use crate::memory;
use crate::report::Report;

/// The views, with what is asked for in them.
const VIEWS: [&str; 6] = [
    "/api/overview",
    "/api/tasks?limit=200",
    "/api/tasks?q=no-such-words",
    "/api/tasks?status=due&sort=waiting&offset=50000",
    "/api/workers",
    "/metrics",
];

/// What was measured.
pub(crate) struct Measured {
    /// From the first look to the last task.
    pub(crate) reading: Duration,
    pub(crate) memory_before: u64,
    pub(crate) memory_after: u64,
    /// How long each view took: the middle, the longest, and how many bytes it has.
    pub(crate) views: Vec<(&'static str, Duration, Duration, usize)>,
}

pub(crate) fn run(args: &args::Dashboard) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let queue = runtime.block_on(filled(args.tasks))?;
    let options = WebOptions {
        addr: ([127, 0, 0, 1], 0).into(),
        token: None,
        allows_actions: false,
        pace: Pace::Folder,
        prices: Prices::of("aws")?,
        settings: Vec::new(),
    };
    let dashboard = runtime.block_on(Dashboard::bind(queue, options))?;
    let (addr, shutdown) = (dashboard.addr(), Shutdown::default());
    let serving = runtime.spawn(dashboard.run(shutdown.clone()));
    let measured = measure(args, addr)?;
    shutdown.abort();
    runtime.block_on(serving)?;
    Report::dashboard(args, &measured);
    Ok(())
}

/// A queue with so many tasks of a few types and tags.
async fn filled(tasks: u32) -> anyhow::Result<Queue> {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let queue = Queue::connect(Client::new(Arc::new(MemoryStore::new(&host)), host)).await?;
    for number in 0..tasks {
        let mut task = NewTask::new(&format!("type-{}", number % 7), json!({"number": number}))?;
        task.tags.insert("customer".into(), format!("c-{}", number % 1_000));
        queue.submit_task(task).await?;
    }
    Ok(queue)
}

fn measure(args: &args::Dashboard, addr: SocketAddr) -> anyhow::Result<Measured> {
    let (memory_before, began) = (memory::resident()?, Instant::now());
    loop {
        let overview: Value = serde_json::from_slice(&ask(addr, "/api/overview")?)?;
        if overview["sample"]["is_complete"] == true {
            ensure!(overview["counts"]["pending"] == args.tasks, "not all tasks were counted");
            break;
        }
    }
    let reading = began.elapsed();
    let views = VIEWS.into_iter().map(|view| {
        let mut times = Vec::new();
        let mut bytes = 0;
        for _ in 0..args.rounds {
            let asked = Instant::now();
            bytes = ask(addr, view)?.len();
            times.push(asked.elapsed());
        }
        times.sort_unstable();
        Ok((view, times[times.len() / 2], times[times.len() - 1], bytes))
    });
    let views = views.collect::<anyhow::Result<_>>()?;
    Ok(Measured { reading, memory_before, memory_after: memory::resident()?, views })
}

/// One request on a connection of its own; the body of its answer.
fn ask(addr: SocketAddr, path: &str) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(addr)?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "{path} was not answered");
    let head = answer.windows(4).position(|part| part == b"\r\n\r\n").context("an answer without an end")?;
    Ok(answer.split_off(head + 4))
}
