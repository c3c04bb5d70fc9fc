//! Requests to a broker of another process, and its answers, as lines of text.
//!
//! ```text
//! {"id":7,"call":{"submit":{…}}}               {"id":7,"answer":{…}}
//! {"id":8,"call":{"claim":{…}}}                {"id":8,"answer":{…}}<tab>{…a task…}<tab>{…a task…}
//! {"id":9,"call":{"import":null}}<tab>{…}      {"id":9,"error":{"kind":"invalid","message":"…"}}
//! ```
//!
//! A line is JSON, and each task that belongs to it follows as JSON after a tab: no JSON contains a raw tab. Answers come in any
//! order. A connection that closes leaves the outcome of its requests unknown, as the end of a broker in this process does.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Either, select};
use leasehold_core::journal::{
    ArchiveName, ArchiveRef, ArchivedRange, ClaimRequest, ExportPage, JournalCounts, JournalTask, Operated,
    RenewRequest, SettleRequest, SubmitRequest, TaskPage, TaskPlace,
};
use leasehold_core::retention::Retention;
use leasehold_core::scan::DrainWait;
use leasehold_core::step::Rejected;
use leasehold_core::{Error, Event, HexName, Kind, Reason, Result, StoreTime, Task, TaskId, keys, record};
use leasehold_store::Host;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::oneshot;

use super::changes::{ChangePage, ChangePosition};
use super::query::{StateAnswer, StateQuery};
use super::request::{AnswerTo, BrokerRequest, ClaimAnswer, ClaimPoll, Freshness, PurgePlace, WorkerReport};
use leasehold_broker::ClientAccess;

/// A request, without its tasks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Call {
    Submit { task: Box<SubmitRequest>, by: String },
    Claim { request: ClaimRequest, source: HexName, waits: bool },
    Renew(RenewRequest),
    Settle(Box<SettleRequest>),
    Operate { id: TaskId, operation: Operation, by: String },
    Purge { retention: Retention, at: PurgePlace, by: String },
    PurgeTask { id: TaskId, retention: Retention, by: String },
    Import,
    Orphans(Vec<ArchiveName>),
    Read { query: StateQuery, freshness: Freshness },
    Watch { id: TaskId, rev: u64 },
    StopClaims(HexName),
    Status,
    Workers,
    Changes { since: Option<ChangePosition> },
    Report(WorkerReport),
}

impl Call {
    /// True if it changes nothing.
    fn only_reads(&self) -> bool {
        matches!(
            self,
            Self::Read { .. } | Self::Watch { .. } | Self::Status | Self::Workers | Self::Changes { .. }
        )
    }
}

/// Event of an operator.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Operation {
    Cancel,
    Retry,
    Reschedule(StoreTime),
}

#[derive(Serialize, Deserialize)]
struct CallLine {
    id: u64,
    call: Call,
}

#[derive(Serialize, Deserialize)]
struct AnswerLine {
    id: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answer: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<WireError>,
}

#[derive(Serialize, Deserialize)]
struct WireError {
    kind: String,
    message: String,
    #[serde(default)]
    is_outcome_unknown: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Content of an answer: JSON, and tasks.
struct Content {
    json: Value,
    tasks: Vec<Vec<u8>>,
}

/// Longest wait for a change of a task, after which its reader reads it again.
const WATCH_MAX: Duration = Duration::from_secs(5);

/// Receiver of the answer to a request that was sent to another process.
pub(super) struct RemoteAnswer {
    /// True if the broker answers at once, and not only when a task is due or has changed.
    pub(super) is_prompt: bool,
    complete: Box<dyn FnOnce(Result<Content>) -> UndeliveredClaims + Send>,
}

/// Claims whose caller no longer waits: they are released.
pub(super) type UndeliveredClaims = Vec<SettleRequest>;

/// Encodes a request, and returns the receiver of its answer; none if it concerns this process only.
pub(super) fn encode_call(id: u64, request: BrokerRequest) -> Option<(Bytes, RemoteAnswer)> {
    let mut tasks = Vec::new();
    let (call, answer) = match request {
        BrokerRequest::Submit { task, by, answer } => {
            (Call::Submit { task, by: by.to_string() }, plain(answer))
        }
        BrokerRequest::Claim(ClaimPoll { request, source, waits, answer }) => {
            (Call::Claim { request, source, waits }, claimed(answer))
        }
        BrokerRequest::Renew { renewal, answer } => (Call::Renew(renewal), plain(answer)),
        BrokerRequest::Settle { settlement, answer } => {
            (Call::Settle(settlement), RemoteAnswer::of(answer, read_optional_task))
        }
        BrokerRequest::Operate { id, event, by, answer } => {
            let operation = match event {
                Event::Cancel => Operation::Cancel,
                Event::Retry => Operation::Retry,
                Event::Reschedule { at } => Operation::Reschedule(at),
                event => {
                    let message = format!("`{}` is not an operation", event.name());
                    let _ = answer.send(Err(Error::invalid(message)));
                    return None;
                }
            };
            (Call::Operate { id, operation, by: by.to_string() }, RemoteAnswer::of(answer, read_operated))
        }
        BrokerRequest::Purge { retention, at, by, answer } => {
            (Call::Purge { retention: (*retention).clone(), at, by: by.to_string() }, plain(answer))
        }
        BrokerRequest::PurgeTask { id, retention, by, answer } => {
            (Call::PurgeTask { id, retention: (*retention).clone(), by: by.to_string() }, plain(answer))
        }
        BrokerRequest::Import { task, answer } => {
            tasks.push(task.encode().body().to_vec());
            (Call::Import, plain(answer))
        }
        BrokerRequest::Orphans { names, answer } => (Call::Orphans(names), plain(answer)),
        BrokerRequest::Read { query, freshness, answer } => {
            (Call::Read { query, freshness }, RemoteAnswer::of(answer, read_state_answer))
        }
        BrokerRequest::Watch { id, rev, answer } => (Call::Watch { id, rev }, notice(answer)),
        BrokerRequest::StopClaims { source } => (Call::StopClaims(source), RemoteAnswer::ignored()),
        BrokerRequest::Status { answer } => (Call::Status, plain(answer)),
        BrokerRequest::Workers { answer } => (Call::Workers, plain(answer)),
        BrokerRequest::Changes { since, answer } => {
            (Call::Changes { since }, RemoteAnswer::of(answer, read_changes))
        }
        BrokerRequest::Report(report) => (Call::Report(report), RemoteAnswer::ignored()),
        BrokerRequest::Close => return None,
    };
    Some((line(&CallLine { id, call }, tasks), answer))
}

/// Completes the request that a line answers; `take` returns the receiver of an id.
pub(super) fn complete(
    line: &[u8],
    take: impl FnOnce(u64) -> Option<RemoteAnswer>,
) -> Result<UndeliveredClaims> {
    let (AnswerLine { id, answer, error }, tasks) = parse::<AnswerLine>(line)?;
    let Some(waiting) = take(id) else { return Ok(UndeliveredClaims::new()) };
    let content = match error {
        Some(error) => Err(error.read()),
        None => Ok(Content { json: answer.unwrap_or_default(), tasks }),
    };
    Ok((waiting.complete)(content))
}

/// Claims in the line of an answer.
pub(super) fn claims_of(line: &[u8]) -> UndeliveredClaims {
    let tasks = parse::<AnswerLine>(line).map(|(_, tasks)| tasks).unwrap_or_default();
    let tasks = tasks.iter().filter_map(|body| record::read_elsewhere("an answer of the broker", body).ok());
    tasks.filter_map(|task| SettleRequest::release(&task)).collect()
}

/// Parses a request of another process. The future is the line of its answer; none if the broker has ended before it. A
/// request that the client may not send has an answer, and does not reach the broker.
///
/// A reader that waits for a change is answered after [`WATCH_MAX`] in any case, so that one that has given up is forgotten.
pub(super) fn decode_call(
    line: &[u8],
    host: &dyn Host,
    access: ClientAccess,
) -> Result<(Option<BrokerRequest>, BoxFuture<'static, Option<Bytes>>)> {
    let (CallLine { id, call }, mut tasks) = parse::<CallLine>(line)?;
    if access == ClientAccess::ReadOnly && !call.only_reads() {
        let denied = answer_line(id, Err(may_only_read()));
        return Ok((None, std::future::ready(Some(denied)).boxed()));
    }
    let (request, answer) = match call {
        Call::Submit { task, by } => {
            serve(id, json, |answer| BrokerRequest::Submit { task, by: by.into(), answer })
        }
        Call::Claim { request, source, waits } => serve(id, claim_content, |answer| {
            BrokerRequest::Claim(ClaimPoll { request, source, waits, answer })
        }),
        Call::Renew(renewal) => serve(id, json, |answer| BrokerRequest::Renew { renewal, answer }),
        Call::Settle(settlement) => {
            serve(id, optional_task, |answer| BrokerRequest::Settle { settlement, answer })
        }
        Call::Operate { id: task, operation, by } => {
            let event = match operation {
                Operation::Cancel => Event::Cancel,
                Operation::Retry => Event::Retry,
                Operation::Reschedule(at) => Event::Reschedule { at },
            };
            serve(id, operated, |answer| BrokerRequest::Operate { id: task, event, by: by.into(), answer })
        }
        Call::Purge { retention, at, by } => serve(id, json, |answer| BrokerRequest::Purge {
            retention: retention.into(),
            at,
            by: by.into(),
            answer,
        }),
        Call::PurgeTask { id: task, retention, by } => serve(id, json, |answer| BrokerRequest::PurgeTask {
            id: task,
            retention: retention.into(),
            by: by.into(),
            answer,
        }),
        Call::Import => {
            let body = tasks.pop().ok_or_else(|| malformed("an import without a task"))?;
            let task = Box::new(JournalTask::decode(&body)?);
            serve(id, json, |answer| BrokerRequest::Import { task, answer })
        }
        Call::Orphans(names) => serve(id, json, |answer| BrokerRequest::Orphans { names, answer }),
        Call::Read { query, freshness } => {
            serve(id, state_answer, |answer| BrokerRequest::Read { query, freshness, answer })
        }
        Call::Watch { id: task, rev } => {
            let (answer, changed) = oneshot::channel();
            let over = host.sleep(WATCH_MAX);
            let line = async move {
                let is_over_or_changed = match select(changed, over).await {
                    Either::Left((changed, _)) => changed.is_ok(),
                    Either::Right(_) => true,
                };
                is_over_or_changed.then(|| answer_line(id, Ok(Content::of(Value::Null))))
            };
            (BrokerRequest::Watch { id: task, rev, answer }, line.boxed())
        }
        Call::StopClaims(source) => (BrokerRequest::StopClaims { source }, acknowledged(id)),
        Call::Status => serve(id, json, |answer| BrokerRequest::Status { answer }),
        Call::Workers => serve(id, json, |answer| BrokerRequest::Workers { answer }),
        Call::Changes { since } => serve(id, changes, |answer| BrokerRequest::Changes { since, answer }),
        Call::Report(report) => (BrokerRequest::Report(report), acknowledged(id)),
    };
    Ok((Some(request), answer))
}

fn may_only_read() -> Error {
    let message = format!(
        "this process may read the queue, and not change it: the broker found no object of this process below `{}`; give \
         it write access to the bucket",
        keys::JOURNAL_CLIENTS
    );
    Error::new(Kind::Denied, message)
}

// ---- lines ----

fn line(first: &impl Serialize, tasks: Vec<Vec<u8>>) -> Bytes {
    let mut line = serde_json::to_vec(first).expect("a line has no keys that are not text");
    for task in tasks {
        line.push(b'\t');
        line.extend_from_slice(&task);
    }
    line.push(b'\n');
    line.into()
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Result<(T, Vec<Vec<u8>>)> {
    let mut parts = line.split(|byte| *byte == b'\t');
    let first = serde_json::from_slice(parts.next().unwrap_or_default())
        .map_err(|error| malformed(format!("{error}; all processes of a queue need the same version")))?;
    Ok((first, parts.map(<[u8]>::to_vec).collect()))
}

fn malformed(why: impl std::fmt::Display) -> Error {
    Error::invalid(format!("a line between a broker and its client is malformed: {why}"))
}

fn answer_line(id: u64, content: Result<Content>) -> Bytes {
    match content {
        Ok(Content { json, tasks }) => line(&AnswerLine { id, answer: Some(json), error: None }, tasks),
        Err(error) => line(&AnswerLine { id, answer: None, error: Some(WireError::of(&error)) }, Vec::new()),
    }
}

impl WireError {
    fn of(error: &Error) -> Self {
        Self {
            kind: error.kind().name().to_owned(),
            message: error.to_string(),
            is_outcome_unknown: error.outcome_is_unknown(),
            reason: error.reason().map(|reason| reason.name().to_owned()),
        }
    }

    fn read(self) -> Error {
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == self.kind).unwrap_or(Kind::Internal);
        let reasons = [Reason::Missing, Reason::Conflict, Reason::NotYet];
        let reason = reasons.into_iter().find(|reason| Some(reason.name()) == self.reason.as_deref());
        let mut read = Error::new(kind, self.message);
        if self.is_outcome_unknown {
            read = read.with_unknown_outcome();
        }
        match reason {
            Some(reason) => read.with_reason(reason),
            None => read,
        }
    }
}

// ---- the two ends of a request ----

impl RemoteAnswer {
    fn of<T: Send + 'static>(answer: AnswerTo<T>, read: fn(Content) -> Result<T>) -> Self {
        let complete = move |content: Result<Content>| {
            // The caller may have given up.
            let _ = answer.send(content.and_then(read));
            UndeliveredClaims::new()
        };
        Self { is_prompt: true, complete: Box::new(complete) }
    }

    fn ignored() -> Self {
        Self { is_prompt: true, complete: Box::new(|_| UndeliveredClaims::new()) }
    }
}

fn plain<T: DeserializeOwned + Send + 'static>(answer: AnswerTo<T>) -> RemoteAnswer {
    RemoteAnswer::of(answer, |content| serde_json::from_value(content.json).map_err(malformed))
}

fn notice(answer: oneshot::Sender<()>) -> RemoteAnswer {
    let complete = move |content: Result<Content>| {
        if content.is_ok() {
            let _ = answer.send(());
        }
        UndeliveredClaims::new()
    };
    RemoteAnswer { is_prompt: false, complete: Box::new(complete) }
}

/// Answer whose claims are to be released if the caller has given up: this process has them, but nobody runs them.
fn claimed(answer: AnswerTo<ClaimAnswer>) -> RemoteAnswer {
    let complete = move |content: Result<Content>| {
        let Err(Ok(unsent)) = answer.send(content.and_then(read_claim)) else {
            return UndeliveredClaims::new();
        };
        unsent.tasks.into_iter().filter_map(|task| SettleRequest::release(&task)).collect()
    };
    RemoteAnswer { is_prompt: false, complete: Box::new(complete) }
}

/// Request to the broker, and the line of its answer. A connection that is closed drops the line, and with it the receiver of
/// the answer, so that claims that are made for it later are released (rule C6). One that was answered before stands until it
/// expires.
fn serve<T: Send + 'static>(
    id: u64,
    write: fn(&T) -> Result<Content>,
    request: impl FnOnce(AnswerTo<T>) -> BrokerRequest,
) -> (BrokerRequest, BoxFuture<'static, Option<Bytes>>) {
    let (answer, answered) = oneshot::channel::<Result<T>>();
    let line = async move {
        answered.await.ok().map(|answer| answer_line(id, answer.and_then(|answer| write(&answer))))
    };
    (request(answer), line.boxed())
}

/// Line of an answer without content.
fn acknowledged(id: u64) -> BoxFuture<'static, Option<Bytes>> {
    std::future::ready(Some(answer_line(id, Ok(Content::of(Value::Null))))).boxed()
}

// ---- contents ----

impl Content {
    fn of(json: Value) -> Self {
        Self { json, tasks: Vec::new() }
    }

    /// Parses the JSON, and the tasks.
    fn read<T: DeserializeOwned>(self) -> Result<(T, Vec<Task>)> {
        let tasks = self.tasks.iter().map(|body| record::read_elsewhere("an answer of the broker", body));
        Ok((serde_json::from_value(self.json).map_err(malformed)?, tasks.collect::<Result<_>>()?))
    }
}

fn json<T: Serialize>(value: &T) -> Result<Content> {
    serde_json::to_value(value).map(Content::of).map_err(malformed)
}

fn with_tasks<'a>(value: impl Serialize, tasks: impl IntoIterator<Item = &'a Task>) -> Result<Content> {
    let tasks = tasks.into_iter().map(record::write).collect();
    Ok(Content { tasks, ..json(&value)? })
}

fn claim_content(answer: &ClaimAnswer) -> Result<Content> {
    with_tasks(answer.upcoming, &answer.tasks)
}

fn read_claim(content: Content) -> Result<ClaimAnswer> {
    let (upcoming, tasks) = content.read::<Option<DrainWait>>()?;
    Ok(ClaimAnswer { tasks, upcoming })
}

#[expect(clippy::ref_option, reason = "the answer of a settlement is an option")]
fn optional_task(task: &Option<Task>) -> Result<Content> {
    with_tasks((), task)
}

fn read_optional_task(content: Content) -> Result<Option<Task>> {
    let ((), mut tasks) = content.read()?;
    Ok(tasks.pop())
}

fn operated(operated: &Operated) -> Result<Content> {
    match operated {
        Operated::Done(task) => with_tasks(None::<Rejected>, [&**task]),
        Operated::Rejected(why, task) => with_tasks(Some(why), [&**task]),
    }
}

fn read_operated(content: Content) -> Result<Operated> {
    let (rejected, mut tasks) = content.read::<Option<Rejected>>()?;
    let task = Box::new(tasks.pop().ok_or_else(|| malformed("an operation without a task"))?);
    Ok(match rejected {
        None => Operated::Done(task),
        Some(why) => Operated::Rejected(why, task),
    })
}

/// A [`ChangePage`] without its tasks.
#[derive(Serialize, Deserialize)]
struct ChangeContent {
    position: ChangePosition,
    is_gap: bool,
    gone: Vec<TaskId>,
    has_more: bool,
}

fn changes(page: &ChangePage) -> Result<Content> {
    let ChangePage { position, is_gap, tasks, gone, has_more } = page;
    let (position, gone) = (position.clone(), gone.clone());
    with_tasks(ChangeContent { position, is_gap: *is_gap, gone, has_more: *has_more }, tasks)
}

fn read_changes(content: Content) -> Result<ChangePage> {
    let (ChangeContent { position, is_gap, gone, has_more }, tasks) = content.read()?;
    Ok(ChangePage { position, is_gap, tasks, gone, has_more })
}

/// A [`StateAnswer`] without its tasks.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StateContent {
    Live,
    Archived(Vec<ArchiveRef>),
    Find(BTreeSet<TaskId>, Vec<ArchiveRef>),
    List { archived: ArchivedRange, next: Option<TaskId> },
    Export { archived: ArchivedRange, next: Option<TaskId> },
    Count(JournalCounts),
}

fn state_answer(answer: &StateAnswer) -> Result<Content> {
    match answer {
        StateAnswer::Place(TaskPlace::Live(task)) => with_tasks(StateContent::Live, [&**task]),
        StateAnswer::Place(TaskPlace::Archived(objects)) => json(&StateContent::Archived(objects.clone())),
        StateAnswer::Find(ids, objects) => json(&StateContent::Find(ids.clone(), objects.clone())),
        StateAnswer::List(TaskPage { tasks, archived, next }) => {
            with_tasks(StateContent::List { archived: archived.clone(), next: *next }, tasks)
        }
        StateAnswer::Export(ExportPage { tasks, archived, next }) => {
            let tasks = tasks.iter().map(|task| task.encode().body().to_vec()).collect();
            Ok(Content { tasks, ..json(&StateContent::Export { archived: archived.clone(), next: *next })? })
        }
        StateAnswer::Count(counts) => json(&StateContent::Count(counts.clone())),
    }
}

fn read_state_answer(content: Content) -> Result<StateAnswer> {
    let first = content.json.clone();
    if let StateContent::Export { archived, next } = serde_json::from_value(first).map_err(malformed)? {
        let tasks = content.tasks.iter().map(|body| JournalTask::decode(body)).collect::<Result<_>>()?;
        return Ok(StateAnswer::Export(ExportPage { tasks, archived, next }));
    }
    let (first, mut tasks) = content.read()?;
    Ok(match first {
        StateContent::Live => {
            let task = tasks.pop().ok_or_else(|| malformed("a live task without its content"))?;
            StateAnswer::Place(TaskPlace::Live(Box::new(task)))
        }
        StateContent::Archived(objects) => StateAnswer::Place(TaskPlace::Archived(objects)),
        StateContent::Find(ids, objects) => StateAnswer::Find(ids, objects),
        StateContent::List { archived, next } => StateAnswer::List(TaskPage { tasks, archived, next }),
        StateContent::Export { .. } => return Err(malformed("an export")),
        StateContent::Count(counts) => StateAnswer::Count(counts),
    })
}
