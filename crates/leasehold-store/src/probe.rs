//! Is this store good enough? Proved on throw-away keys, before anything is entrusted to it.
//!
//! Some S3-compatibles accept the headers of a condition and ignore them; on such a store two workers would
//! both win every race. Nothing may run on it, and the only way to know is to try.

use bytes::Bytes;
use futures::future::try_join_all;
use leasehold_core::{Error, HexName, Kind, Now, Result, keys};
use serde::Serialize;

use crate::client::{Client, Put};
use crate::host::HostExt;
use crate::ledger::Purpose::Admin;
use crate::seam::{Get, List, Version, When};

/// How many writers race for one key.
const RACERS: usize = 8;

/// What a probe found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The store that was probed.
    pub store: String,
    /// Each thing that was tried.
    pub findings: Vec<Finding>,
    /// The store's time, if its answers carry it.
    #[serde(skip)]
    pub now: Option<Now>,
}

/// One thing that was tried.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// What a store has to do.
    pub demand: &'static str,
    /// Whether it did.
    pub met: bool,
    /// What follows if it did not.
    pub otherwise: &'static str,
}

impl Report {
    /// An error that says what is missing, unless all demands were met.
    pub fn verdict(&self) -> Result<()> {
        let Some(missing) = self.findings.iter().find(|finding| !finding.met) else { return Ok(()) };
        Err(Error::new(
            Kind::Invalid,
            format!(
                "{} does not {}: {}; use a store that does",
                self.store, missing.demand, missing.otherwise
            ),
        ))
    }
}

/// Probes a store. An error means that it could not even be tried; see [`Report::verdict`] for the rest.
pub async fn probe(client: &Client) -> Result<Report> {
    let probe = Probe { client, name: HexName::from_random(client.host().random_bits()).to_string() };
    // A store that does not even take the first object is told of at once.
    let Put::Written(first) = probe.put("object", &When::Absent).await? else {
        return Err(Error::new(Kind::Internal, "a key that nobody can know was taken"));
    };
    let tried = probe.try_all(first).await;
    // Whatever was found, the throw-away keys go; they are never used again.
    for object in OBJECTS {
        let _ = client.delete(Admin, &probe.key(object)).await;
    }
    Ok(Report { store: client.describe(), findings: tried?, now: client.now() })
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

    /// A body unlike any other.
    fn body(&self) -> Bytes {
        Bytes::from(self.client.write_id().to_string())
    }

    async fn put(&self, object: &str, when: &When) -> Result<Put> {
        self.client.put(Admin, &self.key(object), self.body(), when).await
    }

    async fn try_all(&self, first: Version) -> Result<Vec<Finding>> {
        let both_win = "two writers would both win, and tasks would run twice or be lost";
        let mut findings = Vec::new();
        let mut found = |demand, met, otherwise| findings.push(Finding { demand, met, otherwise });

        let created_again = self.put("object", &When::Absent).await?;
        found("refuse to create what is there (if-none-match)", is_lost(&created_again), both_win);

        let old = self.version().await?.unwrap_or_else(|| first.clone());
        let updated = self.put("object", &When::Unchanged(old.clone())).await?;
        found("replace what is unchanged (if-match)", !is_lost(&updated), "nothing could ever be claimed");
        let outdated = self.put("object", &When::Unchanged(old)).await?;
        found("refuse to replace what has changed (if-match)", is_lost(&outdated), both_win);
        let from_nothing = self.put("missing", &When::Unchanged(first)).await?;
        found("refuse to replace what is gone (if-match)", is_lost(&from_nothing), both_win);

        let winners = self.race(&When::Absent).await?;
        found("let exactly one of many creators win", winners == 1, both_win);
        let winners = match self.client.get(Admin, &self.key("race")).await? {
            Some(object) => self.race(&When::Unchanged(object.version)).await?,
            None => 0,
        };
        found("let exactly one of many writers win", winners == 1, both_win);

        let known = self.version().await?;
        let again = self.client.get_unless(Admin, &self.key("object"), known.as_ref()).await?;
        found(
            "say that an object is unchanged",
            again == Get::Unchanged,
            "every poll would fetch whole objects",
        );
        let page = self.client.list(Admin, &List::all(keys::probe(&self.name, ""))).await?;
        let keys: Vec<_> = page.entries.iter().map(|entry| entry.key.as_str()).collect();
        let listed = keys == [self.key("object"), self.key("race")];
        found("list at once, and in order, what was written", listed, "new tasks would not be found in time");
        found("date its answers", self.client.now().is_some(), "nobody could tell when a lease has run out");
        Ok(findings)
    }

    async fn version(&self) -> Result<Option<Version>> {
        let found = self.client.get(Admin, &self.key("object")).await?;
        Ok(found.map(|object| object.version))
    }

    /// How many of several writers of one key are told that they have won.
    async fn race(&self, when: &When) -> Result<usize> {
        let puts = try_join_all((0..RACERS).map(|_| self.put("race", when))).await?;
        Ok(puts.iter().filter(|put| !is_lost(put)).count())
    }
}

fn is_lost(put: &Put) -> bool {
    !matches!(put, Put::Written(_))
}
