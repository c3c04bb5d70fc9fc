//! Claims a task that is free, or whose lease has expired.
//!
//! A claim writes the whole lease to a temporary file and links it to its place: of any number of processes one succeeds. A
//! stale lease is replaced under the lock on the task's directory after it was read again, never removed and then created,
//! which would let several processes win.

use leasehold_core::limits::DISK_LEASE;
use leasehold_core::outpost::{Consistency, DiskLease, NodeNow, OpKind, SpoolFile};
use leasehold_core::task::Claim;
use leasehold_core::{Event, HexName, LeaseId, Result, State, Task, TaskId, WorkerId, step};
use leasehold_store::mutant::{Rule, breaks};
use std::time::Duration;

use super::change::{ChangeOutcome, FileChange, LeaseChange, SpoolChange, json};
use super::folder::{Folder, Found};
use super::kept::NotedRecord;
use super::outbox::op;
use super::{Beat, HeldTask, Spool, lost, refused};
use crate::disk::Lasting;

impl Spool {
    /// Claims a task that is due and free, or whose lease is stale. `None` if another worker holds it, or if it cannot be
    /// claimed.
    ///
    /// In a strict queue a claim is tentative until the bucket has confirmed it, unless the task was checked out; in a
    /// relaxed queue it is tentative too, but its holder need not wait.
    pub fn claim(&self, id: &TaskId, worker: &WorkerId, instance: &HexName) -> Result<Option<HeldTask>> {
        let Some(folder) = self.locked(id)? else { return Ok(None) };
        let Some(kept) = folder.kept()? else { return Ok(None) };
        let now = self.now();
        let before = match folder.lease(&now)? {
            Found::Free => None,
            Found::Lease(lease) if lease.is_stale(&now) || breaks(Rule::LiveLeaseTaken) => Some(lease),
            Found::Lease(_) => return Ok(None),
            Found::Torn { is_old: true } => Some(self.guessed(&kept, worker)),
            Found::Torn { is_old: false } => return folder.note_torn(&now).map(|()| None),
        };
        if kept.note.cancelled {
            // The cancellation was sent already; what is left to send is that no worker runs under the claim.
            let stop = |lease: DiskLease| OpKind::Stop { lease_id: lease.lease_id };
            let op = before.map(|lease| op(&kept.task, &kept.note, &now, stop(lease)));
            folder.cancel(&kept, &now, op)?;
            return Ok(None);
        }
        match before {
            None if kept.is_ours_and_late(&now) => folder.expire(&kept, &now).map(|()| None),
            None if !kept.is_due(&now) => Ok(None),
            Some(stale) if stale.attempt >= kept.task.max_attempts => {
                folder.time_out(&kept, &stale, &now)?;
                Ok(None)
            }
            before => folder.take(&kept, before.as_ref(), worker, instance, &now),
        }
    }

    /// Renews the lease of its holder. Fails with kind `Lost` if the lease is no longer its own.
    pub fn heartbeat(&self, held: &mut HeldTask) -> Result<Beat> {
        let id = held.task.id;
        let folder = self.locked(&id)?.ok_or_else(|| lost(&id))?;
        let now = self.now();
        let (kept, lease) = folder.held(held, &now)?;
        let lease = lease.renewed(&now);
        if !breaks(Rule::NoHeartbeat) {
            self.disk.replace(&self.path(&SpoolFile::Lease(id)), &json(&lease), self.lease_lasting())?;
        }
        let beat = Beat { cancelled: kept.note.cancelled, confirmed: !lease.tentative };
        held.task = running(self, &kept, &lease, &now)?;
        held.lease = lease;
        Ok(beat)
    }

    /// Checks the lease without renewing it. A holder uses it to wait for the bucket's confirmation.
    pub fn standing(&self, held: &HeldTask) -> Result<Beat> {
        let id = held.task.id;
        let folder = self.locked(&id)?.ok_or_else(|| lost(&id))?;
        let (kept, lease) = folder.held(held, &self.now())?;
        Ok(Beat { cancelled: kept.note.cancelled, confirmed: !lease.tentative })
    }

    /// Lower bound of the epoch and attempt of a lease that cannot be read, as a lease.
    fn guessed(&self, kept: &NotedRecord, worker: &WorkerId) -> DiskLease {
        let at = kept.task.updated_at;
        DiskLease {
            worker_id: worker.clone(),
            node_id: self.config.node_id.clone(),
            instance: self.random_name(),
            epoch: kept.task.epoch.saturating_add(1),
            attempt: kept.task.attempt.saturating_add(1),
            created_at: at,
            heartbeat_at: at,
            expires_at: at,
            tentative: true,
            lease_id: self.random_name(),
            clock: kept.note.clock,
            boot_id: String::new(),
        }
    }
}

impl Folder<'_> {
    fn take(
        &self,
        kept: &NotedRecord,
        before: Option<&DiskLease>,
        worker: &WorkerId,
        instance: &HexName,
        now: &NodeNow,
    ) -> Result<Option<HeldTask>> {
        let spool = self.spool;
        let checkout = kept.note.checkout.as_ref().filter(|_| before.is_none());
        let live =
            checkout.filter(|checkout| now.bucket.is_some_and(|now| now.is_before(checkout.expires_at)));
        let (epoch, attempt) =
            before.map_or((kept.task.epoch, kept.task.attempt), |lease| (lease.epoch, lease.attempt));
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
            tentative: live.is_none() && !breaks(Rule::ClaimUnconfirmed),
            lease_id: live.map_or_else(|| spool.random_name(), |checkout| checkout.lease_id.clone()),
            clock: now.mark(),
            boot_id: now.boot_id.clone(),
        };
        let task = running(spool, kept, &lease, now)?;
        // A guessed lease has an id that the bucket does not know.
        let known = before.filter(|lease| !lease.boot_id.is_empty());
        let from =
            known.map(|lease| &lease.lease_id).or(checkout.map(|checkout| &checkout.lease_id)).cloned();
        // A check-out without a claim here, or a claim whose holder had to wait for confirmation.
        let had_to_wait =
            |lease: &DiskLease| lease.tentative && spool.config.consistency == Consistency::Strict;
        let is_unused = from.is_some() && before.is_none_or(had_to_wait);
        let deed = OpKind::Claim { lease_id: lease.lease_id.clone(), from, is_unused };
        let op = live.is_none().then(|| op(&task, &kept.note, now, deed));
        let next = if before.is_some() {
            LeaseChange::Replace(lease.clone())
        } else {
            LeaseChange::Take(lease.clone())
        };
        let change = SpoolChange { op, then: FileChange::Stay { record: None, lease: next } };
        self.write_down(&change, spool.lease_lasting())?;
        match self.carry_out(change, false)? {
            ChangeOutcome::There => Ok(Some(HeldTask { task, lease })),
            ChangeOutcome::Gone | ChangeOutcome::Beaten => Ok(None),
        }
    }

    /// Expires a task that was not started in time.
    fn expire(&self, kept: &NotedRecord, now: &NodeNow) -> Result<()> {
        let mut task = kept.task.clone();
        // Its expiry was checked by the clock of its times, which need not be the current one.
        task.expires_at = Some(now.present().earliest.minus(Duration::from_millis(1)));
        let expired =
            step(&task, &Event::Expire, &self.spool.act(now)).map_err(|why| refused(&self.id, &why))?;
        let task = Task { expires_at: kept.task.expires_at, ..expired.task };
        let record = NotedRecord { task, note: kept.note.stamped(now) }.value();
        self.make(SpoolChange { op: None, then: FileChange::End { record } }, Lasting::Yes)
    }

    /// Fails a task whose last attempt was lost.
    fn time_out(&self, kept: &NotedRecord, stale: &DiskLease, now: &NodeNow) -> Result<()> {
        let error = format!("lease of worker {} expired", stale.worker_id);
        let held = running(self.spool, kept, stale, now)?;
        self.failed(&held, kept, &stale.lease_id, &error, true, None, now).map(|_| ())
    }

    /// Reads the record and the lease; fails if the lease is no longer this holder's.
    pub(super) fn held(&self, held: &HeldTask, now: &NodeNow) -> Result<(NotedRecord, DiskLease)> {
        let Found::Lease(lease) = self.lease(now)? else { return Err(lost(&self.id)) };
        let is_ours = lease.lease_id == held.lease.lease_id && lease.instance == held.lease.instance;
        if !is_ours {
            return Err(lost(&self.id));
        }
        let kept = self.kept()?.ok_or_else(|| lost(&self.id))?;
        Ok((kept, lease))
    }
}

/// Returns the task as running under a lease. The caller has checked that it is due, by the clock of its times.
pub(super) fn running(spool: &Spool, kept: &NotedRecord, lease: &DiskLease, now: &NodeNow) -> Result<Task> {
    let mut act = spool.act(now);
    act.by = lease.worker_id.to_string();
    let mut task = kept.task.clone();
    task.epoch = lease.epoch.saturating_sub(1);
    task.attempt = lease.attempt.saturating_sub(1);
    task.expires_at = None;
    task.state = State::Pending { available_at: act.now.earliest };
    let lease_id: LeaseId = lease.lease_id.clone();
    let event = Event::Claim { worker: lease.worker_id.clone(), lease_id, lease: DISK_LEASE };
    let claimed = step(&task, &event, &act).map_err(|why| refused(&task.id, &why))?;
    let mut task = claimed.task;
    task.expires_at = kept.task.expires_at;
    let cancel_requested = kept.note.cancelled;
    let by = lease.worker_id.clone();
    task.state =
        State::Running(Claim { by, expires_at: lease.expires_at, renewed_at: None, cancel_requested });
    Ok(task)
}
