//! Request counts (the *ledger*): every request by verb, purpose and outcome, with its bytes.
//!
//! Buckets bill by request, so requests are counted where they are sent, for every kind of store. Counting costs
//! three relaxed additions. Prices are in [`price`](crate::price).

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// Write, with or without a condition.
    Put,
    /// Read, including those answered "not modified".
    Get,
    /// One page of a list.
    List,
    /// Removal.
    Delete,
    /// Metadata of an object, without its bytes.
    Head,
}

/// Purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// Submitting tasks.
    Submit,
    /// Scanning for work.
    Discover,
    /// Claiming tasks.
    Claim,
    /// Recording results of tasks.
    Settle,
    /// Renewing claims.
    Renew,
    /// Leases on shards, worker ids and duties.
    Lease,
    /// Recovery and index cleanup.
    Sweep,
    /// Syncing an outpost.
    Sync,
    /// Transferring artifacts and their pieces.
    Fetch,
    /// Reading and writing a journal.
    Journal,
    /// Operator commands: inspection, probes, migrations.
    Admin,
}

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Success.
    Ok,
    /// The condition did not hold.
    Lost,
    /// The object does not exist.
    NotFound,
    /// The object still has the known version.
    NotModified,
    /// The store throttled the request.
    Throttled,
    /// Surely not carried out.
    Failed,
    /// No answer: possibly carried out.
    Ambiguous,
}

const VERBS: [Verb; 5] = [Verb::Put, Verb::Get, Verb::List, Verb::Delete, Verb::Head];
const PURPOSES: [Purpose; 11] = [
    Purpose::Submit,
    Purpose::Discover,
    Purpose::Claim,
    Purpose::Settle,
    Purpose::Renew,
    Purpose::Lease,
    Purpose::Sweep,
    Purpose::Sync,
    Purpose::Fetch,
    Purpose::Journal,
    Purpose::Admin,
];
const OUTCOMES: [Outcome; 7] = [
    Outcome::Ok,
    Outcome::Lost,
    Outcome::NotFound,
    Outcome::NotModified,
    Outcome::Throttled,
    Outcome::Failed,
    Outcome::Ambiguous,
];
const ROWS: usize = VERBS.len() * PURPOSES.len() * OUTCOMES.len();

impl Verb {
    /// Name in machine-readable output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Put => "put",
            Self::Get => "get",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Head => "head",
        }
    }
}

impl Purpose {
    /// Name in machine-readable output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Discover => "discover",
            Self::Claim => "claim",
            Self::Settle => "settle",
            Self::Renew => "renew",
            Self::Lease => "lease",
            Self::Sweep => "sweep",
            Self::Sync => "sync",
            Self::Fetch => "fetch",
            Self::Journal => "journal",
            Self::Admin => "admin",
        }
    }
}

impl Outcome {
    /// Name in machine-readable output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Lost => "lost",
            Self::NotFound => "not-found",
            Self::NotModified => "not-modified",
            Self::Throttled => "throttled",
            Self::Failed => "failed",
            Self::Ambiguous => "ambiguous",
        }
    }
}

/// Request counters, shared by all clients of one store.
pub struct Ledger {
    rows: Box<[Row; ROWS]>,
}

#[derive(Default)]
struct Row {
    requests: AtomicU64,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { rows: Box::new(std::array::from_fn(|_| Row::default())) }
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("requests", &self.snapshot().requests()).finish()
    }
}

impl Ledger {
    /// Counts one request.
    pub fn count(&self, line: LedgerLine, bytes_sent: usize, bytes_received: usize) {
        let row = &self.rows[line.index()];
        row.requests.fetch_add(1, Relaxed);
        row.bytes_sent.fetch_add(bytes_sent as u64, Relaxed);
        row.bytes_received.fetch_add(bytes_received as u64, Relaxed);
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let counted = |line: LedgerLine| {
            let row = &self.rows[line.index()];
            let count = Count {
                requests: row.requests.load(Relaxed),
                bytes_sent: row.bytes_sent.load(Relaxed),
                bytes_received: row.bytes_received.load(Relaxed),
            };
            (count.requests > 0).then_some((line, count))
        };
        Snapshot { lines: LedgerLine::all().filter_map(counted).collect() }
    }
}

/// Line of the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LedgerLine {
    /// Verb of the requests.
    pub verb: Verb,
    /// Purpose of the requests.
    pub purpose: Purpose,
    /// Outcome of the requests.
    pub outcome: Outcome,
}

impl LedgerLine {
    fn all() -> impl Iterator<Item = LedgerLine> {
        VERBS.into_iter().flat_map(|verb| {
            PURPOSES.into_iter().flat_map(move |purpose| {
                OUTCOMES.into_iter().map(move |outcome| LedgerLine { verb, purpose, outcome })
            })
        })
    }

    fn index(self) -> usize {
        let (verb, purpose, outcome) = (self.verb as usize, self.purpose as usize, self.outcome as usize);
        (verb * PURPOSES.len() + purpose) * OUTCOMES.len() + outcome
    }
}

impl fmt::Display for LedgerLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.verb.name(), self.purpose.name(), self.outcome.name())
    }
}

/// Counts of one line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Number of requests.
    pub requests: u64,
    /// Bytes of bodies sent.
    pub bytes_sent: u64,
    /// Bytes of bodies received.
    pub bytes_received: u64,
}

/// Copy of the counts at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    lines: BTreeMap<LedgerLine, Count>,
}

impl Snapshot {
    /// Iterates over the lines with any requests, in order of verb, purpose, outcome.
    pub fn lines(&self) -> impl Iterator<Item = (LedgerLine, Count)> + '_ {
        self.lines.iter().map(|(line, count)| (*line, *count))
    }

    /// Number of all requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.count(|_| true)
    }

    /// Number of requests with this verb.
    #[must_use]
    pub fn verb(&self, verb: Verb) -> u64 {
        self.count(|line| line.verb == verb)
    }

    /// Number of requests on the lines that match.
    pub fn count(&self, fits: impl Fn(&LedgerLine) -> bool) -> u64 {
        self.lines.iter().filter(|(line, _)| fits(line)).map(|(_, count)| count.requests).sum()
    }

    /// Sum of both counts.
    #[must_use]
    pub fn plus(mut self, other: &Snapshot) -> Snapshot {
        for (line, more) in &other.lines {
            let count = self.lines.entry(*line).or_default();
            count.requests += more.requests;
            count.bytes_sent += more.bytes_sent;
            count.bytes_received += more.bytes_received;
        }
        self
    }

    /// Difference to an `earlier` copy.
    #[must_use]
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let since = |(line, count): (&LedgerLine, &Count)| {
            let before = earlier.lines.get(line).copied().unwrap_or_default();
            let count = Count {
                requests: count.requests.saturating_sub(before.requests),
                bytes_sent: count.bytes_sent.saturating_sub(before.bytes_sent),
                bytes_received: count.bytes_received.saturating_sub(before.bytes_received),
            };
            (count.requests > 0).then_some((*line, count))
        };
        Snapshot { lines: self.lines.iter().filter_map(since).collect() }
    }
}

impl Serialize for Snapshot {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Flat {
            #[serde(flatten)]
            line: LedgerLine,
            #[serde(flatten)]
            count: Count,
        }
        serializer.collect_seq(self.lines().map(|(line, count)| Flat { line, count }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM_LOST: LedgerLine =
        LedgerLine { verb: Verb::Put, purpose: Purpose::Claim, outcome: Outcome::Lost };

    #[test]
    fn every_line_has_its_own_place() {
        let places: std::collections::BTreeSet<_> = LedgerLine::all().map(LedgerLine::index).collect();
        assert_eq!(places.len(), ROWS);
        assert_eq!(places.last(), Some(&(ROWS - 1)));
    }

    #[test]
    fn counts_can_be_added_and_subtracted() {
        let ledger = Ledger::default();
        ledger.count(CLAIM_LOST, 100, 0);
        let before = ledger.snapshot();
        ledger.count(CLAIM_LOST, 50, 7);
        ledger.count(LedgerLine { verb: Verb::Get, ..CLAIM_LOST }, 0, 9);
        let all = ledger.snapshot();
        assert_eq!((all.requests(), all.verb(Verb::Put), all.verb(Verb::Get)), (3, 2, 1));
        let since = all.since(&before);
        assert_eq!(since.requests(), 2);
        let (line, count) = since.lines().next().unwrap();
        assert_eq!(line, CLAIM_LOST);
        assert_eq!(count, Count { requests: 1, bytes_sent: 50, bytes_received: 7 });
        assert_eq!(before.plus(&since), all);
    }

    #[test]
    fn machines_read_one_object_per_line() {
        let ledger = Ledger::default();
        ledger.count(CLAIM_LOST, 1, 2);
        assert_eq!(
            serde_json::to_string(&ledger.snapshot()).unwrap(),
            r#"[{"verb":"put","purpose":"claim","outcome":"lost","requests":1,"bytes_sent":1,"bytes_received":2}]"#
        );
    }
}
