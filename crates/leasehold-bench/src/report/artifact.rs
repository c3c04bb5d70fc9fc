//! Output of the command `artifact`.

use serde_json::json;

use super::{BenchReport, megabytes, spread};
use crate::artifact::{ArtifactPair, FetchMeasurement};

impl BenchReport {
    /// Prints the measurement of a fetch for the process that started it.
    pub(crate) fn fetch_measurement(fetch: &FetchMeasurement) -> anyhow::Result<()> {
        println!("{}", serde_json::to_string(fetch)?);
        Ok(())
    }

    /// Prints ours against the plain download.
    pub(crate) fn artifact(&mut self, pairs: &[ArtifactPair]) {
        if self.json {
            let rows: Vec<_> =
                pairs.iter().map(|pair| json!({"ours": pair.ours, "plain": pair.plain})).collect();
            self.stores.push(json!({"store": "s3", "artifact": rows}));
            return;
        }
        println!(
            "{:<6} {:>6} {:>9} {:>8} {:>14} {:>8} {:>9} {:>6} {:>14}",
            "side", "MB", "requests", "MB/s", "range", "cpu s", "memory MB", "ratio", "range"
        );
        for name in ["ours", "plain"] {
            let side = move |pair: &ArtifactPair| {
                if name == "ours" { pair.ours.clone() } else { pair.plain.clone() }
            };
            let of =
                |what: fn(&FetchMeasurement) -> f64| spread(pairs.iter().map(move |pair| what(&side(pair))));
            let (rate_middle, rates) = of(rate);
            let (ratio, ratios) = spread(pairs.iter().map(|pair| rate(&side(pair)) / rate(&pair.plain)));
            println!(
                "{name:<6} {:>6.0} {:>9.0} {rate_middle:>8.0} {rates:>14} {:>8.2} {:>9.0} {ratio:>6.2} {ratios:>14}",
                of(|fetch| megabytes(fetch.bytes)).0,
                of(requests).0,
                of(|fetch| fetch.cpu_seconds).0,
                of(|fetch| megabytes(fetch.memory_peak)).0,
            );
        }
        println!();
    }
}

fn rate(fetch: &FetchMeasurement) -> f64 {
    megabytes(fetch.bytes) / fetch.seconds
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 requests")]
fn requests(fetch: &FetchMeasurement) -> f64 {
    fetch.requests as f64
}
