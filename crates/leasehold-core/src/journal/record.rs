//! Records: the lines of a commit.
//!
//! A record contains the result of a decision. One line of JSON each:
//!
//! ```text
//! {"kind":"submit","record":{…the task, in the short form of its record…}}
//! {"kind":"claim","task":"…","change":{"rev":2,"at":"…","state":{"running":{…}},…,"event":{"name":"claim","by":"w1"}}}
//! {"kind":"heard","at":"…","by":"w1","tasks":["…"]}
//! {"kind":"archive","at":"…","added":[{"name":"…",…}],"tasks":[{"id":"…","rev":3}]}
//! ```
//!
//! All other kinds look like `claim` ([`ChangeKind`]). A program that meets a kind or a field that it does not know stops and
//! asks for an upgrade: it would drop state. A fence is not a record, but the header of a commit without records.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;

use super::archive::ArchiveChange;
use super::change::TaskChange;
use super::task::EncodedTask;
use crate::error::{Error, Kind, Result};
use crate::ids::{TaskId, WorkerId};
use crate::step::Event;
use crate::time::StoreTime;

/// Begin and end of the line of a submit. They are matched as they are, not parsed, because a replay reads millions of them:
/// what is between them is kept in memory as it is.
const SUBMIT: (&[u8], &[u8]) = (b"{\"kind\":\"submit\",\"record\":", b"}");

/// Kind of a change of the archive.
const ARCHIVE: &str = "archive";

/// One record: a line of a commit.
#[derive(Debug, Clone, PartialEq)]
pub enum JournalRecord {
    /// A task was submitted.
    Submit(EncodedTask),
    /// A task has changed.
    Change {
        /// Kind of the change.
        kind: ChangeKind,
        /// Id of the task.
        task: TaskId,
        /// Difference to the revision before.
        change: Box<TaskChange>,
    },
    /// A worker has renewed claims for the first time since the last fence (rule C3).
    Heard {
        /// Time of the renewal.
        at: StoreTime,
        /// Worker that holds the claims.
        by: WorkerId,
        /// Tasks of the claims.
        tasks: Vec<TaskId>,
    },
    /// The archive has changed, and tasks may have left the live state.
    Archive(Box<ArchiveChange>),
}

/// Kind of a change of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// A worker has claimed the task.
    Claim,
    /// Its worker has completed it.
    Complete,
    /// An attempt has failed.
    Fail,
    /// Its worker has postponed it.
    Snooze,
    /// Its worker has released it unused.
    Release,
    /// Its worker has stopped the handler, because the task was cancelled.
    Stop,
    /// It was cancelled, or its cancellation was requested.
    Cancel,
    /// It was scheduled for another time.
    Reschedule,
    /// It was retried.
    Retry,
    /// Its claim has expired.
    Timeout,
    /// It was not started before its expiry.
    Expire,
    /// It is past its retention, and no longer a task of the queue.
    Purge,
}

impl ChangeKind {
    /// Kind of the change that an event causes; none for events that the journal does not log: renewals, and the
    /// events of outposts, of index cleanup and of shard migrations.
    #[must_use]
    pub fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::Claim { .. } => Self::Claim,
            Event::Complete { .. } => Self::Complete,
            Event::Fail { .. } | Event::Exhaust { .. } => Self::Fail,
            Event::Snooze { .. } => Self::Snooze,
            Event::Release { .. } => Self::Release,
            Event::Stop { .. } => Self::Stop,
            Event::Cancel => Self::Cancel,
            Event::Reschedule { .. } => Self::Reschedule,
            Event::Retry => Self::Retry,
            Event::TimeOut => Self::Timeout,
            Event::Expire => Self::Expire,
            Event::Purge => Self::Purge,
            Event::TakeOver { .. }
            | Event::Renew { .. }
            | Event::CompleteOffline { .. }
            | Event::FailOffline { .. }
            | Event::Fence
            | Event::Move { .. } => return None,
        })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a record")]
struct ChangeLine<'a> {
    kind: ChangeKind,
    task: TaskId,
    change: Cow<'a, TaskChange>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a record")]
struct HeardLine<'a> {
    kind: HeardKind,
    at: StoreTime,
    by: Cow<'a, WorkerId>,
    tasks: Cow<'a, [TaskId]>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HeardKind {
    Heard,
}

#[derive(Serialize)]
struct ArchiveLine<'a> {
    kind: &'static str,
    #[serde(flatten)]
    change: &'a ArchiveChange,
}

/// A line of any kind.
#[derive(Deserialize)]
struct AnyLine {
    kind: String,
}

/// Parses the line of a change of the archive. Not by a struct with a kind and the change: that would accept fields that
/// this program does not know.
fn read_archive(line: &[u8]) -> Result<ArchiveChange, String> {
    let mut fields: Map<String, Value> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    fields.shift_remove("kind");
    serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())
}

impl JournalRecord {
    /// Appends the line of this record, with its line end.
    pub fn write(&self, lines: &mut Vec<u8>) {
        let expected = "a record has no keys that are not text";
        match self {
            Self::Submit(task) => {
                for part in [SUBMIT.0, task.body(), SUBMIT.1] {
                    lines.extend_from_slice(part);
                }
            }
            Self::Change { kind, task, change } => {
                let line = ChangeLine { kind: *kind, task: *task, change: Cow::Borrowed(change) };
                serde_json::to_writer(&mut *lines, &line).expect(expected);
            }
            Self::Heard { at, by, tasks } => {
                let (by, tasks) = (Cow::Borrowed(by), Cow::Borrowed(&tasks[..]));
                let line = HeardLine { kind: HeardKind::Heard, at: *at, by, tasks };
                serde_json::to_writer(&mut *lines, &line).expect(expected);
            }
            Self::Archive(change) => {
                let line = ArchiveLine { kind: ARCHIVE, change };
                serde_json::to_writer(&mut *lines, &line).expect(expected);
            }
        }
        lines.push(b'\n');
    }

    /// Parses a line, without its line end.
    pub fn read(line: &[u8]) -> Result<Self> {
        let submit = line.strip_prefix(SUBMIT.0).and_then(|rest| rest.strip_suffix(SUBMIT.1));
        if let Some(body) = submit {
            return EncodedTask::read(body).map(Self::Submit);
        }
        match serde_json::from_slice::<ChangeLine>(line) {
            Ok(ChangeLine { kind, task, change }) => {
                Ok(Self::Change { kind, task, change: Box::new(change.into_owned()) })
            }
            Err(error) => Self::read_rare(line, &error),
        }
    }

    /// Parses a line of another kind than a change. `why` is the error of parsing it as a change, for a line of no kind.
    fn read_rare(line: &[u8], why: &serde_json::Error) -> Result<Self> {
        let kind = serde_json::from_slice(line).map(|AnyLine { kind }| kind);
        let why = match kind.as_deref() {
            Ok("heard") => match serde_json::from_slice::<HeardLine>(line) {
                Ok(HeardLine { at, by, tasks, .. }) => {
                    return Ok(Self::Heard { at, by: by.into_owned(), tasks: tasks.into_owned() });
                }
                Err(error) => error.to_string(),
            },
            Ok(ARCHIVE) => match read_archive(line) {
                Ok(change) => return Ok(Self::Archive(Box::new(change))),
                Err(error) if error.starts_with("unknown field") => format!("{error}; upgrade leasehold"),
                Err(error) => error,
            },
            Ok("submit") => "the task of a submit must follow its kind".to_owned(),
            Ok(kind) if serde_json::from_value::<ChangeKind>(kind.into()).is_err() => {
                format!("this program does not know the kind `{kind}`; upgrade leasehold")
            }
            _ if why.to_string().starts_with("unknown field") => format!("{why}; upgrade leasehold"),
            _ => why.to_string(),
        };
        Err(Error::new(Kind::Corrupt, format!("a record of the journal is corrupt: {why}")))
    }
}
