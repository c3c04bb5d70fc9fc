//! Probe of a store's requirements, on temporary keys, before a queue is created in it.
//!
//! Some S3-compatible stores accept the headers of a condition and ignore them; on such a store two workers would both
//! win every race. No queue may run on it, and only a test can detect it.

use bytes::Bytes;
use futures::future::try_join_all;
use leasehold_core::{Error, Kind, Now, Result, keys};
use serde::Serialize;

use crate::client::{Client, PutOutcome};
use crate::host::HostExt;
use crate::ledger::Purpose::Admin;
use crate::store::{Get, List, Version, When};

/// Number of concurrent writers of one key.
const RACERS: usize = 8;

/// Result of a probe.
#[derive(Debug, Clone, Serialize)]
pub struct ProbeReport {
    /// Name of the store.
    pub store: String,
    /// Result of each requirement.
    pub findings: Vec<Finding>,
    /// Store time, if its answers have a date.
    #[serde(skip)]
    pub now: Option<Now>,
}

/// Requirement and its result. The JSON has older names: `demand`, `met` and `otherwise`.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// Behaviour that a store must have, as a verb phrase.
    #[serde(rename = "demand")]
    pub requirement: &'static str,
    /// True if the store has it.
    #[serde(rename = "met")]
    pub is_met: bool,
    /// Consequence if it does not.
    #[serde(rename = "otherwise")]
    pub consequence: &'static str,
}

impl ProbeReport {
    /// Returns an error with the first unmet requirement, unless all are met.
    pub fn verdict(&self) -> Result<()> {
        let Some(missing) = self.findings.iter().find(|finding| !finding.is_met) else { return Ok(()) };
        Err(Error::new(
            Kind::Invalid,
            format!(
                "{} does not {}: {}; use a store that does",
                self.store, missing.requirement, missing.consequence
            ),
        ))
    }
}

/// Probes a store. An error means that the probe failed; see [`ProbeReport::verdict`] for its result.
pub async fn probe(client: &Client) -> Result<ProbeReport> {
    let probe = Probe { client, name: client.host().random_name().to_string() };
    // A store that does not accept the first object fails at once.
    let PutOutcome::Written(first) = probe.put("object", &When::Absent).await? else {
        return Err(Error::new(Kind::Internal, "random probe key already exists"));
    };
    let tried = probe.try_all(first).await;
    // The temporary keys are removed in any case; they are never used again.
    for object in OBJECTS {
        let _ = client.delete(Admin, &probe.key(object)).await;
    }
    Ok(ProbeReport { store: client.describe(), findings: tried?, now: client.now() })
}

const OBJECTS: [&str; 3] = ["object", "race", "missing"];

struct Probe<'a> {
    client: &'a Client,
    name: String,
}

impl Probe<'_> {
    fn key(&self, object: &str) -> String {
        keys::probe(&self.name, object)
    }

    /// Creates a unique body.
    fn body(&self) -> Bytes {
        Bytes::from(self.client.write_id().to_string())
    }

    async fn put(&self, object: &str, when: &When) -> Result<PutOutcome> {
        self.client.put(Admin, &self.key(object), self.body(), when).await
    }

    async fn try_all(&self, first: Version) -> Result<Vec<Finding>> {
        let both_win = "two writers would both succeed, and tasks would run twice or be lost";
        let mut findings = Vec::new();
        let mut found =
            |requirement, is_met, consequence| findings.push(Finding { requirement, is_met, consequence });

        let created_again = self.put("object", &When::Absent).await?;
        found("refuse to create an existing object (if-none-match)", is_lost(&created_again), both_win);

        let old = self.version().await?.unwrap_or_else(|| first.clone());
        let updated = self.put("object", &When::Unchanged(old.clone())).await?;
        found("replace an unchanged object (if-match)", !is_lost(&updated), "no task could be claimed");
        let outdated = self.put("object", &When::Unchanged(old)).await?;
        found("refuse to replace a changed object (if-match)", is_lost(&outdated), both_win);
        let from_nothing = self.put("missing", &When::Unchanged(first)).await?;
        found("refuse to replace a missing object (if-match)", is_lost(&from_nothing), both_win);

        let winners = self.race(&When::Absent).await?;
        found("let exactly one of many concurrent creates succeed", winners == 1, both_win);
        let winners = match self.client.get(Admin, &self.key("race")).await? {
            Some(object) => self.race(&When::Unchanged(object.version)).await?,
            None => 0,
        };
        found("let exactly one of many concurrent updates succeed", winners == 1, both_win);

        let known = self.version().await?;
        let again = self.client.get_unless(Admin, &self.key("object"), known.as_ref()).await?;
        found(
            "report that an object is unchanged",
            again == Get::Unchanged,
            "every poll would fetch whole objects",
        );
        let page = self.client.list(Admin, &List::all(keys::probe(&self.name, ""))).await?;
        let keys: Vec<_> = page.entries.iter().map(|entry| entry.key.as_str()).collect();
        let listed = keys == [self.key("object"), self.key("race")];
        found("list new objects at once and in order", listed, "new tasks would not be found in time");
        found(
            "send a date with its answers",
            self.client.now().is_some(),
            "lease expiry could not be determined",
        );
        Ok(findings)
    }

    async fn version(&self) -> Result<Option<Version>> {
        let found = self.client.get(Admin, &self.key("object")).await?;
        Ok(found.map(|object| object.version))
    }

    /// Number of concurrent writers of one key that succeed.
    async fn race(&self, when: &When) -> Result<usize> {
        let puts = try_join_all((0..RACERS).map(|_| self.put("race", when))).await?;
        Ok(puts.iter().filter(|put| !is_lost(put)).count())
    }
}

fn is_lost(put: &PutOutcome) -> bool {
    !matches!(put, PutOutcome::Written(_))
}
