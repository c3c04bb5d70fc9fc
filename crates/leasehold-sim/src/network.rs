//! The network between processes and the bucket: slow, and it loses messages.
//!
//! A request in flight is a task of the world, not of its sender's process. So the write of a client that
//! gave up, or was killed, may still be carried out minutes later.

use bytes::Bytes;
use leasehold_store::store::{
    Cause, Failure, Get, List, Page, PartId, PutAnswer, Ranged, UploadId, Version, When,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

use crate::bucket::SimBucket;
use crate::executor::{Executor, ProcessId};
use crate::faults::{Events, Faults, RequestFault, USUAL_LATENCY_MAX};
use crate::host::SimHost;
use crate::random::SimRandom;
use crate::trace::Trace;
use crate::world::inner::machine_of;

/// Number of hosts that answer for the bucket.
const HOSTS: usize = 5;
/// Maximum error of their clocks; the clock of a store must tolerate 500 ms.
const HOST_OFF_NS: i64 = 400_000_000;

/// A request to the bucket.
#[derive(Debug, Clone)]
pub(crate) enum Request {
    Get(String, Option<Version>),
    Put(String, Bytes, When),
    Delete(String),
    List(List),
    GetRange(String, Range<u64>, Option<Version>),
    Begin(String, u64),
    Part(String, UploadId, usize, Bytes),
    End(String, UploadId, Vec<PartId>),
    Abort(String, UploadId),
}

/// An answer of the bucket.
#[derive(Debug)]
pub(crate) enum Reply {
    Get(Get),
    Put(PutAnswer),
    Deleted,
    Page(Page),
    Ranged(Ranged),
    Begun(UploadId),
    Part(PartId),
    Ended(Version),
    Aborted,
}

/// An answer as it arrives at the process.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) reply: Result<Reply, Failure>,
    /// Date in whole seconds, and the virtual time when it was made; none if no host has answered.
    pub(crate) date: Option<(i64, Duration)>,
}

/// The network of one world.
#[derive(Debug)]
pub(crate) struct Network {
    executor: Executor,
    bucket: Arc<SimBucket>,
    trace: Trace,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rng: SimRandom,
    faults: Faults,
    events: Events,
    /// Number of requests that each process has sent.
    sent: BTreeMap<String, u64>,
    hosts_off_ns: [i64; HOSTS],
    /// Processes to kill in this instant.
    processes_to_kill: Vec<ProcessId>,
    /// Machines that do not reach the bucket.
    cut: BTreeSet<String>,
}

impl Network {
    pub(crate) fn new(
        executor: Executor,
        bucket: Arc<SimBucket>,
        trace: Trace,
        mut rng: SimRandom,
        faults: Faults,
    ) -> Self {
        let hosts_off_ns = std::array::from_fn(|_| rng.around_zero(HOST_OFF_NS));
        let state = Mutex::new(State {
            rng,
            faults,
            events: Events::default(),
            sent: BTreeMap::new(),
            hosts_off_ns,
            processes_to_kill: Vec::new(),
            cut: BTreeSet::new(),
        });
        Self { executor, bucket, trace, state }
    }

    pub(crate) fn faults(&self) -> Faults {
        self.state().faults.clone()
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Calls a function with the numbering of the faults.
    pub(crate) fn events<R>(&self, access: impl FnOnce(&mut Events) -> R) -> R {
        access(&mut self.state().events)
    }

    /// Returns the number of requests that a process has sent.
    pub(crate) fn sent(&self, process: &str) -> u64 {
        self.state().sent.get(process).copied().unwrap_or_default()
    }

    /// Kills a process after this step, if processes may be killed. Returns whether it will be.
    pub(crate) fn kill_after_step(&self, process: ProcessId) -> bool {
        let mut state = self.state();
        let is_killed = state.faults.crash_at_write > 0 && state.events.next_is_injected();
        if is_killed {
            state.processes_to_kill.push(process);
        }
        is_killed
    }

    /// Cuts or restores the link of a machine.
    pub(crate) fn set_cut(&self, machine: &str, is_cut: bool) {
        let mut state = self.state();
        if is_cut {
            state.cut.insert(machine.to_owned())
        } else {
            state.cut.remove(machine)
        };
    }

    fn is_cut(&self, process: &str) -> bool {
        self.state().cut.contains(machine_of(process))
    }

    pub(crate) fn take_processes_to_kill(&self) -> Vec<ProcessId> {
        std::mem::take(&mut self.state().processes_to_kill)
    }

    /// Sends a request. The connection was broken if the sender of the answer is dropped.
    pub(crate) fn send(self: &Arc<Self>, from: &SimHost, request: Request) -> oneshot::Receiver<Delivered> {
        let (sender, receiver) = oneshot::channel();
        let on_condition = matches!(&request, Request::Put(_, _, when) if *when != When::Always);
        let mut state = self.state();
        *state.sent.entry(from.name().to_owned()).or_default() += 1;
        let State { rng, faults, events, hosts_off_ns, .. } = &mut *state;
        let drawn = (faults.request_fault(rng, on_condition), faults.latency(rng), faults.latency(rng));
        let in_time = |latency: Duration, events: &mut Events| {
            let is_usual = latency <= USUAL_LATENCY_MAX;
            if is_usual || events.next_is_injected() { latency } else { USUAL_LATENCY_MAX }
        };
        let is_put = matches!(&request, Request::Put(..) | Request::End(..));
        let in_flight = InFlightRequest {
            fault: if drawn.0 == RequestFault::Served || events.next_is_injected() {
                drawn.0
            } else {
                RequestFault::Served
            },
            there: in_time(drawn.1, events),
            back: in_time(drawn.2, events),
            // The client notices a broken connection at once, or only by its timeout.
            noticed: rng.happens(5_000),
            crash: rng.happens(faults.crash_at_write) && is_put && events.next_is_injected(),
            host_off_ns: hosts_off_ns[rng.index(HOSTS)],
            process: from.process(),
            name: from.name().to_owned(),
            network: self.clone(),
            request,
        };
        drop(state);
        self.executor.spawn(ProcessId::WORLD, Box::pin(in_flight.deliver(sender)));
        receiver
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request, with all faults and latencies that were drawn for it.
struct InFlightRequest {
    fault: RequestFault,
    there: Duration,
    back: Duration,
    noticed: bool,
    crash: bool,
    host_off_ns: i64,
    process: ProcessId,
    name: String,
    network: Arc<Network>,
    request: Request,
}

impl InFlightRequest {
    async fn deliver(self, sender: oneshot::Sender<Delivered>) {
        let executor = self.network.executor.clone();
        executor.sleep(self.there).await;
        if self.network.is_cut(&self.name) {
            self.note("→ link is cut");
            return self.lose(sender).await;
        }
        let delivered = match self.fault {
            RequestFault::Served => self.serve(""),
            RequestFault::ThrottledButApplied => {
                self.serve(" (answered: slow down)");
                self.failed(Cause::Throttled, "slow down (from a proxy)")
            }
            RequestFault::Throttled => {
                self.note("→ slow down");
                self.failed(Cause::Throttled, "slow down")
            }
            RequestFault::Unreached => {
                self.note("→ connection refused");
                Delivered { date: None, ..self.failed(Cause::Unreached, "connection refused") }
            }
            RequestFault::Refused => {
                self.note("→ refused spuriously");
                Delivered { reply: Ok(Reply::Put(PutAnswer::Refused)), date: Some(self.date()) }
            }
            RequestFault::Lost => {
                self.note("→ request lost");
                return self.lose(sender).await;
            }
            RequestFault::AnswerLost => {
                self.serve(" (answer lost)");
                return self.lose(sender).await;
            }
            RequestFault::Late(by) => {
                self.note("→ request delayed");
                let carried_out_late = async {
                    executor.sleep(by).await;
                    self.serve(" (late)");
                };
                futures::future::join(carried_out_late, self.lose(sender)).await;
                return;
            }
        };
        executor.sleep(self.back).await;
        if self.network.is_cut(&self.name) {
            return self.lose(sender).await;
        }
        // The client may have given up.
        let _ = sender.send(delivered);
    }

    /// Loses the answer: the client notices that the connection is gone, or waits for its timeout.
    async fn lose(&self, mut sender: oneshot::Sender<Delivered>) {
        if self.noticed {
            self.network.executor.sleep(self.back).await;
        } else {
            sender.closed().await;
        }
    }

    fn serve(&self, how: &str) -> Delivered {
        let bucket = &self.network.bucket;
        let reply = match &self.request {
            Request::Get(key, unless) => Ok(Reply::Get(bucket.get(key, unless.as_ref()))),
            Request::Put(key, body, when) => Ok(Reply::Put(bucket.put(key, body.clone(), when))),
            Request::Delete(key) => {
                bucket.delete(key);
                Ok(Reply::Deleted)
            }
            Request::List(list) => bucket.list(list).map(Reply::Page),
            Request::GetRange(key, range, unchanged) => {
                bucket.get_range(key, range, unchanged.as_ref()).map(Reply::Ranged)
            }
            Request::Begin(key, part_bytes) => Ok(Reply::Begun(bucket.upload_begin(key, *part_bytes))),
            Request::Part(key, upload, number, body) => {
                bucket.upload_part(key, upload, *number, body.clone()).map(Reply::Part)
            }
            Request::End(key, upload, parts) => bucket.upload_end(key, upload, parts).map(Reply::Ended),
            Request::Abort(_, upload) => {
                bucket.upload_abort(upload);
                Ok(Reply::Aborted)
            }
        };
        match &reply {
            Ok(reply) => self.note(format_args!("→ {reply}{how}")),
            Err(failure) => self.note(format_args!("→ {}{how}", failure.error)),
        }
        if self.crash && matches!(reply, Ok(Reply::Put(PutAnswer::Written(_)) | Reply::Ended(_))) {
            self.network.state().processes_to_kill.push(self.process);
        }
        Delivered { reply, date: Some(self.date()) }
    }

    fn failed(&self, cause: Cause, why: &str) -> Delivered {
        Delivered { reply: Err(Failure::transient(cause, why)), date: Some(self.date()) }
    }

    fn date(&self) -> (i64, Duration) {
        let secs = (self.network.bucket.time_ns() + self.host_off_ns).div_euclid(1_000_000_000);
        (secs, self.network.executor.now())
    }

    fn note(&self, what: impl fmt::Display) {
        let now = self.network.executor.now();
        self.network.trace.line(now, &self.name, format_args!("{} {what}", self.request));
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Get(key, None) => write!(f, "get {key}"),
            Self::Get(key, Some(version)) => write!(f, "get {key} unless {}", version.as_str()),
            Self::Put(key, _, When::Absent) => write!(f, "put {key} if absent"),
            Self::Put(key, _, When::Unchanged(version)) => {
                write!(f, "put {key} if unchanged {}", version.as_str())
            }
            Self::Put(key, _, When::Always) => write!(f, "put {key}"),
            Self::Delete(key) => write!(f, "delete {key}"),
            Self::List(list) => {
                write!(f, "list {}", list.prefix)?;
                list.after.iter().try_for_each(|after| write!(f, " after {after}"))?;
                list.cursor.iter().try_for_each(|_| write!(f, " (next page)"))
            }
            Self::GetRange(key, range, unchanged) => {
                write!(f, "get {key} {}..{}", range.start, range.end)?;
                unchanged.iter().try_for_each(|version| write!(f, " if unchanged {}", version.as_str()))
            }
            Self::Begin(key, _) => write!(f, "begin {key}"),
            Self::Part(key, upload, number, _) => write!(f, "part {number} of {key} {}", upload.as_str()),
            Self::End(key, upload, _) => write!(f, "end {key} {}", upload.as_str()),
            Self::Abort(key, upload) => write!(f, "abort {key} {}", upload.as_str()),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Get(Get::Found(object)) => write!(f, "found {}", object.version.as_str()),
            Self::Get(Get::Missing) | Self::Ranged(Ranged::Missing) => f.write_str("missing"),
            Self::Get(Get::Unchanged) => f.write_str("unchanged"),
            Self::Put(PutAnswer::Written(version)) | Self::Ended(version) => {
                write!(f, "written {}", version.as_str())
            }
            Self::Put(PutAnswer::Refused) => f.write_str("refused"),
            Self::Deleted => f.write_str("deleted"),
            Self::Page(page) => {
                write!(f, "{} keys, {} prefixes", page.entries.len(), page.prefixes.len())
            }
            Self::Ranged(Ranged::Found(object)) => {
                write!(f, "found {} bytes of {}", object.body.len(), object.version.as_str())
            }
            Self::Ranged(Ranged::Changed) => f.write_str("changed"),
            Self::Begun(upload) => write!(f, "begun {}", upload.as_str()),
            Self::Part(part) => write!(f, "has {}", part.as_str()),
            Self::Aborted => f.write_str("aborted"),
        }
    }
}
