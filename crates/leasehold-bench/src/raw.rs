//! The command `raw`: every kind of request on every store, ours against plain calls of the same kind.

use anyhow::ensure;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

use crate::args::{BenchStore, RawArgs};
use crate::client_calls::Ours;
use crate::measure::{Measurement, Pair};
use crate::operation::BenchRequest;
use crate::report::BenchReport;
use crate::round::AsyncSide;
use crate::store_under_test::StoreUnderTest;

pub(crate) fn run(raw: &RawArgs) -> anyhow::Result<()> {
    ensure!(raw.seconds > 0.0 && raw.seconds < 3_600.0, "--seconds must be above 0 and below an hour");
    let runtime = Arc::new(tokio::runtime::Builder::new_multi_thread().enable_all().build()?);
    let mut report = BenchReport::new(raw.json);
    let mut folders = Vec::new();
    for place in raw.site.stores(&BenchStore::ALL) {
        let store = StoreUnderTest::open(place, &raw.site, &runtime)?;
        report.requests(place, &compare(raw, &store, &runtime)?);
        folders.push(store.into_folder());
    }
    report.finish();
    Ok(())
}

fn compare(
    raw: &RawArgs,
    store: &StoreUnderTest,
    runtime: &Arc<Runtime>,
) -> anyhow::Result<Vec<Measurement>> {
    let client = store.client("ours")?;
    let ours = AsyncSide { calls: Arc::new(Ours(client.clone())), runtime: runtime.clone() };
    let pair = Pair { ours: &ours, plain: &*store.plain, ledger: client.ledger() };
    pair.prepare()?;
    let mut measured = Vec::new();
    for operation in BenchRequest::ALL {
        if !raw.operation.is_empty() && !raw.operation.iter().any(|name| name == operation.name()) {
            continue;
        }
        for in_flight in &raw.in_flight {
            BenchReport::progress(store.place, &format!("{} {in_flight}", operation.name()));
            measured.push(pair.measure(operation, *in_flight, Duration::from_secs_f64(raw.seconds))?);
        }
    }
    Ok(measured)
}
