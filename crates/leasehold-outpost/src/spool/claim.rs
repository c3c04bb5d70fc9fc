//! Taking a task, and taking it from those who are not heard of any more.
//!
//! Whoever claims writes a whole lease and links it to its place: of any number of processes one succeeds. A lease that
//! nobody keeps alive is replaced under the lock on the task's directory after another look at it, never removed and then
//! made again, which would let several win.

use leasehold_core::limits::DISK_LEASE;
use leasehold_core::outpost::{Consistency, Deed, DiskLease, NodeNow, SpoolFile};
use leasehold_core::task::Claim;
use leasehold_core::{Event, HexName, LeaseId, Result, State, Task, TaskId, WorkerId, step};
use leasehold_store::mutant::{Rule, breaks};
use std::time::Duration;

use super::change::{Change, Next, Outcome, Then, json};
use super::folder::{Folder, Found};
use super::kept::Kept;
use super::outbox::op;
use super::{Beat, Held, Spool, lost, refused};
use crate::disk::Lasting;

impl Spool {
    /// Takes a task that is due and free, or whose holder was not heard of for too long. Nothing if another has it, or if
    /// there is nothing to take.
    ///
    /// In a strict queue a claim is tentative until the bucket has confirmed it, unless the task was checked out; in a
    /// relaxed queue it is tentative too, but its holder need not wait.
    pub fn claim(&self, id: &TaskId, worker: &WorkerId, instance: &HexName) -> Result<Option<Held>> {
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
            // The bucket was told; what it does not know is that nobody runs under the claim any more.
            let stop = |lease: DiskLease| Deed::Stop { lease_id: lease.lease_id };
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

    /// Its holder is heard of. An error of kind `Lost` if it is not the holder any more.
    pub fn heartbeat(&self, held: &mut Held) -> Result<Beat> {
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

    /// The same without being heard of: how a holder waits for the bucket's word.
    pub fn standing(&self, held: &Held) -> Result<Beat> {
        let id = held.task.id;
        let folder = self.locked(&id)?.ok_or_else(|| lost(&id))?;
        let (kept, lease) = folder.held(held, &self.now())?;
        Ok(Beat { cancelled: kept.note.cancelled, confirmed: !lease.tentative })
    }

    /// What a lease that cannot be read must at least have been.
    fn guessed(&self, kept: &Kept, worker: &WorkerId) -> DiskLease {
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
        kept: &Kept,
        before: Option<&DiskLease>,
        worker: &WorkerId,
        instance: &HexName,
        now: &NodeNow,
    ) -> Result<Option<Held>> {
        let spool = self.spool;
        let checkout = kept.note.checkout.as_ref().filter(|_| before.is_none());
        let live =
            checkout.filter(|checkout| now.bucket.is_some_and(|now| now.is_before(checkout.expires_at)));
        let (epoch, attempt) =
            before.map_or((kept.task.epoch, kept.task.attempt), |lease| (lease.epoch, lease.attempt));
        // A check-out that has run out was a claim too.
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
        // One that was guessed has no name that anybody else knows.
        let known = before.filter(|lease| !lease.boot_id.is_empty());
        let from =
            known.map(|lease| &lease.lease_id).or(checkout.map(|checkout| &checkout.lease_id)).cloned();
        // A check-out that nobody took, or a claim whose holder had to wait for the bucket's word.
        let had_to_wait =
            |lease: &DiskLease| lease.tentative && spool.config.consistency == Consistency::Strict;
        let is_unused = from.is_some() && before.is_none_or(had_to_wait);
        let deed = Deed::Claim { lease_id: lease.lease_id.clone(), from, is_unused };
        let op = live.is_none().then(|| op(&task, &kept.note, now, deed));
        let next = if before.is_some() { Next::Replace(lease.clone()) } else { Next::Take(lease.clone()) };
        let change = Change { op, then: Then::Stay { record: None, lease: next } };
        self.write_down(&change, spool.lease_lasting())?;
        match self.carry_out(change, false)? {
            Outcome::There => Ok(Some(Held { task, lease })),
            Outcome::Gone | Outcome::Beaten => Ok(None),
        }
    }

    /// It was not started in time.
    fn expire(&self, kept: &Kept, now: &NodeNow) -> Result<()> {
        let mut task = kept.task.clone();
        // It was judged by the clock of its times, which need not be the one of today.
        task.expires_at = Some(now.present().earliest.minus(Duration::from_millis(1)));
        let expired =
            step(&task, &Event::Expire, &self.spool.act(now)).map_err(|why| refused(&self.id, &why))?;
        let task = Task { expires_at: kept.task.expires_at, ..expired.task };
        let record = Kept { task, note: kept.note.stamped(now) }.value();
        self.make(Change { op: None, then: Then::End { record } }, Lasting::Yes)
    }

    /// The last attempt was lost too.
    fn time_out(&self, kept: &Kept, stale: &DiskLease, now: &NodeNow) -> Result<()> {
        let error = format!("the lease of {} ran out", stale.worker_id);
        let held = running(self.spool, kept, stale, now)?;
        self.failed(&held, kept, &stale.lease_id, &error, true, None, now).map(|_| ())
    }

    /// The record and the lease, if it is still that of this holder.
    pub(super) fn held(&self, held: &Held, now: &NodeNow) -> Result<(Kept, DiskLease)> {
        let Found::Lease(lease) = self.lease(now)? else { return Err(lost(&self.id)) };
        let is_ours = lease.lease_id == held.lease.lease_id && lease.instance == held.lease.instance;
        if !is_ours {
            return Err(lost(&self.id));
        }
        let kept = self.kept()?.ok_or_else(|| lost(&self.id))?;
        Ok((kept, lease))
    }
}

/// The task as its holder has it. Whether it may start was decided before, by the clock of its times.
pub(super) fn running(spool: &Spool, kept: &Kept, lease: &DiskLease, now: &NodeNow) -> Result<Task> {
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
