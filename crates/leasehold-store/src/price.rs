//! Prices of requests, per provider.
//!
//! List prices in US dollars per million requests, for the standard class in the cheapest large region, without storage
//! and traffic. They change: pass your own [`Prices`] where it matters.

use crate::ledger::{Snapshot, Verb};
use leasehold_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// US dollars per million requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Name of the provider.
    pub provider: String,
    /// Writes.
    pub put: f64,
    /// Reads, "not modified" included.
    pub get: f64,
    /// Pages of lists.
    pub list: f64,
    /// Removals.
    pub delete: f64,
    /// Metadata requests.
    pub head: f64,
}

/// Provider, put, get, list, delete, head.
const TABLE: [(&str, [f64; 5]); 5] = [
    ("aws", [5.00, 0.40, 5.00, 0.00, 0.40]),
    ("aws-express", [1.13, 0.03, 1.13, 0.00, 0.03]),
    ("r2", [4.50, 0.36, 4.50, 0.00, 0.36]),
    ("gcs", [5.00, 0.40, 5.00, 0.00, 0.40]),
    ("azure", [5.00, 0.40, 5.00, 0.00, 0.40]),
];

impl Prices {
    /// Names of the known providers.
    pub fn providers() -> impl Iterator<Item = &'static str> {
        TABLE.into_iter().map(|(name, _)| name)
    }

    /// Returns the prices of a known provider.
    pub fn of(provider: &str) -> Result<Self> {
        let row = TABLE.into_iter().find(|(name, _)| *name == provider);
        let Some((name, [put, get, list, delete, head])) = row else {
            let known: Vec<_> = Self::providers().collect();
            let known = known.join(", ");
            return Err(Error::invalid(format!("unknown provider `{provider}`; use one of {known}")));
        };
        Ok(Self { provider: name.into(), put, get, list, delete, head })
    }

    /// US dollars for a million requests with this verb.
    #[must_use]
    pub fn per_million(&self, verb: Verb) -> f64 {
        match verb {
            Verb::Put => self.put,
            Verb::Get => self.get,
            Verb::List => self.list,
            Verb::Delete => self.delete,
            Verb::Head => self.head,
        }
    }

    /// US dollars for a number of requests with this verb.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "more than 2^52 requests need no exact price")]
    pub fn cost(&self, verb: Verb, requests: u64) -> f64 {
        requests as f64 * self.per_million(verb) / 1e6
    }

    /// US dollars for all counted requests.
    #[must_use]
    pub fn total(&self, snapshot: &Snapshot) -> f64 {
        snapshot.lines().map(|(line, count)| self.cost(line.verb, count.requests)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Ledger, LedgerLine, Outcome, Purpose};

    #[test]
    fn a_million_tasks_with_five_puts_and_a_get_cost_25_dollars_40_on_s3() {
        let ledger = Ledger::default();
        for (verb, times) in [(Verb::Put, 5), (Verb::Get, 1), (Verb::Delete, 2)] {
            for _ in 0..times {
                ledger.count(LedgerLine { verb, purpose: Purpose::Claim, outcome: Outcome::Ok }, 0, 0);
            }
        }
        let one_task = Prices::of("aws").unwrap().total(&ledger.snapshot());
        assert!((one_task * 1e6 - 25.40).abs() < 1e-6);
    }

    #[test]
    fn an_unknown_provider_is_refused_with_the_known_ones() {
        let error = Prices::of("asw").unwrap_err();
        assert_eq!(error.to_string(), "unknown provider `asw`; use one of aws, aws-express, r2, gcs, azure");
    }
}
