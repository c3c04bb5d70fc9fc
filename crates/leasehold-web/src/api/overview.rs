//! Overview: counts, charts, cost, and the age of the data.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::{AGE, ETAG};
use http::{HeaderMap, HeaderName, StatusCode};
use leasehold_core::{ShardLen, StoreTime};
use leasehold_store::{Prices, Purpose, Snapshot, Verb};
use serde::Serialize;
use serde_json::{Value, json};

use super::row::TaskRow;
use super::{age, broker, now};
use crate::figures::Figures;
use crate::pace::RefreshPace;
use crate::routes::{ApiError, App, matches_etag};
use crate::snapshot::QueueSnapshot;
use crate::viewers::Topic;

/// Newest task that failed with an error, and the number of tasks with the same error.
#[derive(Debug, Serialize)]
struct FailureRow<'a> {
    #[serde(flatten)]
    row: TaskRow<'a>,
    count: u64,
}

/// Data of the overview. A client that already has this revision gets 304 with its age.
pub(crate) async fn overview(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, ApiError> {
    app.shared.viewers.record(Topic::Queue);
    let now = now(&app)?;
    let snapshot = app.shared.snapshot();
    let tag = format!("\"{}-{}\"", app.run, snapshot.revision());
    let known: [(HeaderName, String); 2] =
        [(ETAG, tag.clone()), (AGE, whole_age(&app, &snapshot).to_string())];
    if matches_etag(&headers, &tag) {
        return Ok((StatusCode::NOT_MODIFIED, known).into_response());
    }
    let figures = app.figures.get(&snapshot, now);
    Ok((known, Json(overview_json(&app, &snapshot, &figures, now))).into_response())
}

/// Seconds since the newest read.
fn whole_age(app: &App, snapshot: &QueueSnapshot) -> u64 {
    let newest = [snapshot.index.as_ref().map(|index| index.at), snapshot.pass.ended];
    let newest = newest.into_iter().flatten().max_by_key(|at| at.boot_ns);
    newest.map_or(0, |at| app.shared.host().instant().since(at).as_secs())
}

fn overview_json(app: &App, snapshot: &QueueSnapshot, figures: &Figures, now: StoreTime) -> Value {
    let queue = app.shared.queue();
    let failures = figures.failures.iter().filter_map(|failures| {
        let row = snapshot.table.get(&failures.newest)?;
        Some(FailureRow { row: TaskRow::new(row, now), count: failures.count })
    });
    let failures: Vec<_> = failures.collect();
    let index = snapshot.index.as_ref().map(|index| {
        let stats = &index.value;
        json!({
            "due": stats.due,
            "scheduled": stats.scheduled,
            "running": stats.running,
            "oldest_due_secs": stats.oldest_due_secs,
        })
    });
    let mut charts = json!(figures.chart);
    charts["depth"] = json!(snapshot.depth());
    json!({
        "now": now,
        "store": queue.describe(),
        "layout": if app.shared.journal().is_some() { "journal" } else { "objects" },
        "shards": app.shared.shard_len().map(ShardLen::count),
        "broker": app.shared.journal().map(|_| broker::broker(app, &snapshot.journal)),
        "version": env!("CARGO_PKG_VERSION"),
        "allow_actions": app.access.allows_actions,
        "provider": app.prices.provider,
        "is_billed": app.shared.pace == RefreshPace::Bucket,
        "has": {
            "artifacts": snapshot.has_artifacts,
            "outposts": figures.has_outposts,
        },
        "sample": sample(app, snapshot),
        "counts": figures.counts,
        "index": index,
        "oldest_due_secs": figures.oldest_due_secs,
        "types": figures.types,
        "untaken": figures.unclaimed,
        "charts": charts,
        "cost": {
            "process": process(&app.spent(), &app.prices),
            // Changes in a journal share commits: they are not derived from histories.
            "tasks": app.shared.journal().is_none().then(|| tasks(figures, &app.prices)),
        },
        "recent_failures": failures,
    })
}

/// Age of the data, and the cost of sampling.
fn sample(app: &App, snapshot: &QueueSnapshot) -> Value {
    let (shared, pass) = (&app.shared, &snapshot.pass);
    let own = shared.client().ledger().snapshot();
    json!({
        "revision": format!("{}-{}", app.run, snapshot.revision()),
        "age_secs": whole_age(app, snapshot),
        "index_age_secs": age(app, snapshot.index.as_ref().map(|index| index.at)),
        "tasks_age_secs": age(app, pass.ended),
        "is_complete": pass.ended.is_some() && !pass.is_cut,
        "is_cut": pass.is_cut,
        "rows": snapshot.table.len(),
        "unlisted": unlisted(snapshot),
        "read": pass.read,
        "listed": pass.listed,
        "corrupt": snapshot.table.corrupt() + pass.denied,
        "error": snapshot.fault(shared.host().instant()).map(|fault| &fault.text),
        "requests": own.requests(),
        "usd": app.prices.total(&own),
        "requests_per_hour": snapshot.requests_per_hour(shared.host().instant(), own.requests()),
    })
}

/// Number of finished tasks that are counted and not in the table: they are archived.
fn unlisted(snapshot: &QueueSnapshot) -> u64 {
    let finished = snapshot.index.as_ref().and_then(|index| index.value.finished.as_ref());
    let finished: u64 = finished.into_iter().flat_map(|finished| finished.values()).sum();
    finished.saturating_sub(snapshot.table.final_len() as u64)
}

/// Requests of this process to the store.
fn process(spent: &Snapshot, prices: &Prices) -> Value {
    let mut purposes: BTreeMap<Purpose, BTreeMap<Verb, u64>> = BTreeMap::new();
    for (line, count) in spent.lines() {
        *purposes.entry(line.purpose).or_default().entry(line.verb).or_default() += count.requests;
    }
    let rows = purposes.into_iter().map(|(purpose, verbs)| {
        let of = |verb| verbs.get(&verb).copied().unwrap_or(0);
        json!({
            "purpose": purpose.name(),
            "put": of(Verb::Put),
            "get": of(Verb::Get) + of(Verb::Head),
            "list": of(Verb::List),
            "delete": of(Verb::Delete),
            "usd": verbs.iter().map(|(verb, requests)| prices.cost(*verb, *requests)).sum::<f64>(),
        })
    });
    let rows: Vec<_> = rows.collect();
    json!({"requests": spent.requests(), "usd": prices.total(spent), "by_purpose": rows})
}

/// Requests and cost of all changes of tasks, by any process.
#[expect(clippy::cast_precision_loss, reason = "a price for people")]
fn tasks(figures: &Figures, prices: &Prices) -> Value {
    let usd = figures.cost.usd(prices);
    let per_million = (figures.tasks > 0).then(|| usd * 1e6 / figures.tasks as f64);
    json!({
        "tasks": figures.tasks,
        "requests": figures.cost.requests(),
        "usd": usd,
        "usd_per_million": per_million,
    })
}
