//! The command `dashboard`: response time and memory of the dashboard over many tasks.
//!
//! The queue is in memory, so that only the dashboard itself is measured: reading all tasks into its table,
//! and then each view, requested over loopback again and again. Its memory is the growth of the process
//! during the reading; the tasks themselves exist before.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use leasehold_core::NewTask;
use leasehold_queue::ObjectQueue;
use leasehold_store::{Client, Host, MemoryStore, Prices, SystemHost};
use leasehold_web::{Dashboard, RefreshPace, WebOptions};
use leasehold_worker::Shutdown;
use serde_json::{Value, json};

use crate::args;
use crate::memory;
use crate::report::BenchReport;

/// Paths of the views.
const VIEWS: [&str; 6] = [
    "/api/overview",
    "/api/tasks?limit=200",
    "/api/tasks?q=no-such-words",
    "/api/tasks?status=due&sort=waiting&offset=50000",
    "/api/workers",
    "/metrics",
];

/// Measurements.
pub(crate) struct DashboardMeasurement {
    /// Time from the first scan to the last task.
    pub(crate) reading: Duration,
    pub(crate) memory_before: u64,
    pub(crate) memory_after: u64,
    /// Per view: median time, maximum time, and size in bytes.
    pub(crate) views: Vec<(&'static str, Duration, Duration, usize)>,
}

pub(crate) fn run(args: &args::DashboardBenchArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let queue = runtime.block_on(filled(args.tasks))?;
    let options = WebOptions {
        addr: ([127, 0, 0, 1], 0).into(),
        token: None,
        allows_actions: false,
        pace: RefreshPace::Folder,
        prices: Prices::of("aws")?,
        settings: Vec::new(),
    };
    let dashboard = runtime.block_on(Dashboard::bind(queue.into(), options))?;
    let (addr, shutdown) = (dashboard.addr(), Shutdown::default());
    let serving = runtime.spawn(dashboard.run(shutdown.clone()));
    let measured = measure(args, addr)?;
    shutdown.abort();
    runtime.block_on(serving)?;
    BenchReport::dashboard(args, &measured);
    Ok(())
}

/// Creates a queue with a number of tasks of a few types and tags.
async fn filled(tasks: u32) -> anyhow::Result<ObjectQueue> {
    let host: Arc<dyn Host> = Arc::new(SystemHost);
    let queue = ObjectQueue::connect(Client::new(Arc::new(MemoryStore::new(&host)), host)).await?;
    for number in 0..tasks {
        let mut task = NewTask::new(&format!("type-{}", number % 7), json!({"number": number}))?;
        task.tags.insert("customer".into(), format!("c-{}", number % 1_000));
        queue.submit_task(task).await?;
    }
    Ok(queue)
}

fn measure(args: &args::DashboardBenchArgs, addr: SocketAddr) -> anyhow::Result<DashboardMeasurement> {
    let (memory_before, began) = (memory::resident()?, Instant::now());
    loop {
        let overview: Value = serde_json::from_slice(&get(addr, "/api/overview")?)?;
        if overview["sample"]["is_complete"] == true {
            ensure!(overview["counts"]["pending"] == args.tasks, "the dashboard did not count all tasks");
            break;
        }
    }
    let reading = began.elapsed();
    let views = VIEWS.into_iter().map(|view| {
        let mut times = Vec::new();
        let mut bytes = 0;
        for _ in 0..args.rounds {
            let asked = Instant::now();
            bytes = get(addr, view)?.len();
            times.push(asked.elapsed());
        }
        times.sort_unstable();
        Ok((view, times[times.len() / 2], times[times.len() - 1], bytes))
    });
    let views = views.collect::<anyhow::Result<_>>()?;
    Ok(DashboardMeasurement { reading, memory_before, memory_after: memory::resident()?, views })
}

/// Makes one request on a connection of its own. Returns the body of its answer.
fn get(addr: SocketAddr, path: &str) -> anyhow::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(addr)?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "{path} was not answered with 200");
    let head = answer
        .windows(4)
        .position(|part| part == b"\r\n\r\n")
        .context("the answer has no end of its headers")?;
    Ok(answer.split_off(head + 4))
}
