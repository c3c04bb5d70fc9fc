//! Claims a task that is free, or whose lease has expired; ends the claim: complete, fail, release, stop.
//!
//! A claim writes the whole lease to a temporary file and links it to its place: of any number of processes one succeeds. A
//! stale lease is replaced under the lock on the task's directory after it was read again, never removed and then created,
//! which would let several processes win.

use leasehold_core::limits::DISK_LEASE;
use leasehold_core::outpost::{Consistency, DiskLease, NodeNow, OpKind, SpoolFile};
use leasehold_core::settlement::Settlement;
use leasehold_core::task::Claim;
use leasehold_core::{Event, HexName, LeaseId, Result, State, Task, TaskId, WorkerId, step};
use leasehold_store::HostExt;
use leasehold_store::mutant::breaks;
use std::time::Duration;

use super::change::{ChangeOutcome, FileChange, LeaseChange, SpoolChange, json};
use super::folder::{LeaseFile, TaskFolder};
use super::outbox::op;
use super::record::NotedRecord;
use super::{HeldTask, LeaseStatus, Spool, lost, refused};

impl Spool {
    /// Claims a task that is due and free, or whose lease is stale. `None` if another worker holds it, or if it cannot be
    /// claimed.
    ///
    /// In a strict queue a claim is tentative until the bucket has confirmed it, unless the task was checked out; in a
    /// relaxed queue it is tentative too, but its holder need not wait.
    pub fn claim(&self, id: &TaskId, worker: &WorkerId, instance: &HexName) -> Result<Option<HeldTask>> {
        let Some(folder) = self.lock_task(id)? else { return Ok(None) };
        let Some(noted) = folder.record()? else { return Ok(None) };
        let now = self.now();
        let before = match folder.lease(&now)? {
            LeaseFile::Free => None,
            LeaseFile::Lease(lease) if lease.is_stale(&now) || breaks("live-lease-taken") => Some(lease),
            LeaseFile::Corrupt { is_old: Some(true) } => Some(self.assumed_lease(&noted, worker)),
            LeaseFile::Lease(_) | LeaseFile::Corrupt { .. } => return Ok(None),
        };
        if noted.note.cancelled {
            // The cancellation was sent already; what is left to send is that no worker runs under the claim.
            let stop = |lease: DiskLease| OpKind::Stop { lease_id: lease.lease_id };
            let op = before.map(|lease| op(&noted.task, &noted.note, &now, stop(lease)));
            folder.cancel(&noted, &now, op)?;
            return Ok(None);
        }
        match before {
            None if noted.is_local_and_expired(&now) => folder.expire(&noted, &now).map(|()| None),
            None if !noted.is_due(&now) => Ok(None),
            Some(stale) if stale.attempt >= noted.task.max_attempts => {
                folder.time_out(&noted, &stale, &now)?;
                Ok(None)
            }
            before => folder.take_lease(&noted, before.as_ref(), worker, instance, &now),
        }
    }

    /// Renews the lease of its holder. Fails with kind `Lost` if the lease is no longer its own.
    pub fn heartbeat(&self, held: &mut HeldTask) -> Result<LeaseStatus> {
        let id = held.task.id;
        let folder = self.lock_task(&id)?.ok_or_else(|| lost(&id))?;
        let now = self.now();
        let (noted, lease) = folder.record_and_lease(held, &now)?;
        let lease = lease.renewed(&now);
        if !breaks("no-heartbeat") {
            self.disk.replace(&self.path(&SpoolFile::Lease(id)), &json(&lease), self.lease_durability())?;
        }
        let status = LeaseStatus { cancelled: noted.note.cancelled, confirmed: !lease.tentative };
        held.task = running(self, &noted, &lease, &now)?;
        held.lease = lease;
        Ok(status)
    }

    /// Checks the lease without renewing it. A holder uses it to wait for the bucket's confirmation.
    pub fn lease_status(&self, held: &HeldTask) -> Result<LeaseStatus> {
        let id = held.task.id;
        let folder = self.lock_task(&id)?.ok_or_else(|| lost(&id))?;
        let (noted, lease) = folder.record_and_lease(held, &self.now())?;
        Ok(LeaseStatus { cancelled: noted.note.cancelled, confirmed: !lease.tentative })
    }

    /// Stands in for a lease that cannot be read: with the lowest epoch and attempt that it can have had.
    fn assumed_lease(&self, noted: &NotedRecord, worker: &WorkerId) -> DiskLease {
        let at = noted.task.updated_at;
        DiskLease {
            worker_id: worker.clone(),
            node_id: self.config.node_id.clone(),
            instance: self.host.random_name(),
            epoch: noted.task.epoch.saturating_add(1),
            attempt: noted.task.attempt.saturating_add(1),
            created_at: at,
            heartbeat_at: at,
            expires_at: at,
            tentative: true,
            lease_id: self.host.random_name(),
            clock: noted.note.clock,
            boot_id: String::new(),
        }
    }

    /// Ends the claim on a task: it moves to `completed/` or `failed/`, or is free again.
    pub fn settle(&self, held: &HeldTask, settlement: Settlement) -> Result<Task> {
        let id = held.task.id;
        let Some(folder) = self.lock_task(&id)? else { return self.already_completed(held, &settlement) };
        let now = self.now();
        let event = settlement.event(held.lease.lease_id.clone(), now.present());
        let (noted, lease) = folder.record_and_lease(held, &now)?;
        let task = running(self, &noted, &lease, &now)?;
        folder.settle(&task, &noted, event, &now)
    }

    /// Returns the task if its completion took effect earlier: a completion that failed half-way, as on a full disk, is
    /// finished by the next process that locks the task.
    fn already_completed(&self, held: &HeldTask, settlement: &Settlement) -> Result<Task> {
        let is_it = |task: &Task| match settlement {
            Settlement::Complete { output, .. } => {
                task.lease_id.as_ref() == Some(&held.lease.lease_id) && task.output() == Some(output)
            }
            _ => false,
        };
        self.get(&held.task.id)?.filter(is_it).ok_or_else(|| lost(&held.task.id))
    }
}

impl TaskFolder<'_> {
    fn take_lease(
        &self,
        noted: &NotedRecord,
        before: Option<&DiskLease>,
        worker: &WorkerId,
        instance: &HexName,
        now: &NodeNow,
    ) -> Result<Option<HeldTask>> {
        let spool = self.spool;
        let checkout = noted.note.checkout.as_ref().filter(|_| before.is_none());
        let live =
            checkout.filter(|checkout| now.bucket.is_some_and(|now| now.is_before(checkout.expires_at)));
        let (epoch, attempt) =
            before.map_or((noted.task.epoch, noted.task.attempt), |lease| (lease.epoch, lease.attempt));
        // An expired check-out was a claim, too.
        let epoch = checkout.map_or(epoch, |checkout| checkout.epoch.max(epoch));
        let at = now.present().earliest;
        let lease = DiskLease {
            worker_id: worker.clone(),
            node_id: spool.config.node_id.clone(),
            instance: instance.clone(),
            epoch: live.map_or(epoch.saturating_add(1), |checkout| checkout.epoch),
            attempt: attempt.saturating_add(1),
            created_at: at,
            heartbeat_at: at,
            expires_at: at.plus(DISK_LEASE),
            tentative: live.is_none() && !breaks("claim-unconfirmed"),
            lease_id: live.map_or_else(|| spool.host.random_name(), |checkout| checkout.lease_id.clone()),
            clock: now.clock(),
            boot_id: now.boot_id.clone(),
        };
        let task = running(spool, noted, &lease, now)?;
        // An assumed lease has an id that the bucket does not know.
        let known = before.filter(|lease| !lease.boot_id.is_empty());
        let from =
            known.map(|lease| &lease.lease_id).or(checkout.map(|checkout| &checkout.lease_id)).cloned();
        // A check-out without a claim here, or a claim whose holder had to wait for confirmation.
        let had_to_wait =
            |lease: &DiskLease| lease.tentative && spool.config.consistency == Consistency::Strict;
        let is_unused = from.is_some() && before.is_none_or(had_to_wait);
        let kind = OpKind::Claim { lease_id: lease.lease_id.clone(), from, is_unused };
        let op = live.is_none().then(|| op(&task, &noted.note, now, kind));
        let next = if before.is_some() {
            LeaseChange::Replace(lease.clone())
        } else {
            LeaseChange::Take(lease.clone())
        };
        let change = SpoolChange { op, then: FileChange::Stay { record: None, lease: next } };
        self.record_change(&change, spool.lease_durability())?;
        Ok((self.execute(change, false)? == ChangeOutcome::Present).then_some(HeldTask { task, lease }))
    }

    /// Expires a task that was not started in time.
    fn expire(&self, noted: &NotedRecord, now: &NodeNow) -> Result<()> {
        let mut task = noted.task.clone();
        // Its expiry was checked by the clock of its times, which need not be the current one.
        task.expires_at = Some(now.present().earliest.minus(Duration::from_millis(1)));
        let expired = step(&task, &Event::Expire, &self.spool.step_context(now))
            .map_err(|why| refused(&self.id, &why))?;
        let task = Task { expires_at: noted.task.expires_at, ..expired.task };
        self.end_with(&NotedRecord { task, note: noted.note.stamped(now) }, None)
    }

    /// Fails a task whose last attempt was lost.
    fn time_out(&self, noted: &NotedRecord, stale: &DiskLease, now: &NodeNow) -> Result<()> {
        let error = format!("claim of worker {} expired", stale.worker_id);
        let held = running(self.spool, noted, stale, now)?;
        let failed = Event::Fail { lease_id: stale.lease_id.clone(), error, retryable: true, after: None };
        self.settle(&held, noted, failed, now).map(|_| ())
    }

    /// Reads the record and the lease; fails if the lease is no longer this holder's.
    pub(super) fn record_and_lease(
        &self,
        held: &HeldTask,
        now: &NodeNow,
    ) -> Result<(NotedRecord, DiskLease)> {
        let LeaseFile::Lease(lease) = self.lease(now)? else { return Err(lost(&self.id)) };
        let is_ours = lease.lease_id == held.lease.lease_id && lease.instance == held.lease.instance;
        if !is_ours {
            return Err(lost(&self.id));
        }
        let noted = self.record()?.ok_or_else(|| lost(&self.id))?;
        Ok((noted, lease))
    }

    /// Records and executes the end of the claim under which a task runs.
    pub(super) fn settle(
        &self,
        task: &Task,
        noted: &NotedRecord,
        event: Event,
        now: &NodeNow,
    ) -> Result<Task> {
        let mut context = self.spool.step_context(now);
        if let State::Running(claim) = &task.state {
            context.by = claim.by.to_string();
        }
        let next = step(task, &event, &context).map_err(|why| refused(&self.id, &why))?.task;
        let op = op(task, &noted.note, now, OpKind::ending(event)?);
        // A check-out ends with its claim.
        let mut note = noted.note.stamped(now);
        note.checkout = None;
        let noted = NotedRecord { task: next.clone(), note };
        if next.status().is_final() {
            self.end_with(&noted, Some(op))?;
        } else {
            self.rewrite(&noted, Some(op), LeaseChange::Drop)?;
        }
        Ok(next)
    }
}

/// Returns the task as running under a lease. The caller has checked that it is due, by the clock of its times.
pub(super) fn running(spool: &Spool, noted: &NotedRecord, lease: &DiskLease, now: &NodeNow) -> Result<Task> {
    let mut context = spool.step_context(now);
    context.by = lease.worker_id.to_string();
    let mut task = noted.task.clone();
    task.epoch = lease.epoch.saturating_sub(1);
    task.attempt = lease.attempt.saturating_sub(1);
    task.expires_at = None;
    task.state = State::Pending { available_at: context.now.earliest };
    let lease_id: LeaseId = lease.lease_id.clone();
    let event = Event::Claim { worker: lease.worker_id.clone(), lease_id, lease: DISK_LEASE };
    let claimed = step(&task, &event, &context).map_err(|why| refused(&task.id, &why))?;
    let mut task = claimed.task;
    task.expires_at = noted.task.expires_at;
    let cancel_requested = noted.note.cancelled;
    let by = lease.worker_id.clone();
    task.state =
        State::Running(Claim { by, expires_at: lease.expires_at, renewed_at: None, cancel_requested });
    Ok(task)
}
