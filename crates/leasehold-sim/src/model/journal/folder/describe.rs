//! The steps of a counterexample in words.

use super::{FolderAction, FolderModel, FolderRule, FolderWorld, Phase, Survivors};
use crate::model::DescribeAction;

impl DescribeAction for FolderModel {
    fn describe(&self, world: &FolderWorld, action: &FolderAction) -> String {
        match action {
            FolderAction::TakeOver(me) => format!("{} {}", name(*me), self.describe_take_over(world, *me)),
            FolderAction::Append(me) => format!("{} appends a frame", name(*me)),
            FolderAction::Sync(me) => format!("{} syncs its segment", name(*me)),
            FolderAction::SyncFails(me) => format!("{} syncs its segment: the sync fails", name(*me)),
            FolderAction::Acknowledge(me) => self.describe_acknowledge(world, *me),
            FolderAction::Kill(me) => format!("{} is killed", name(*me)),
            FolderAction::PowerLoss(survivors) => describe_power_loss(world, *survivors),
        }
    }
}

impl FolderModel {
    fn describe_take_over(&self, world: &FolderWorld, me: usize) -> String {
        match world.processes[me] {
            Phase::Following => format!("reads epoch {}", world.epoch.seen),
            Phase::Locking { epoch } => self.describe_lock(world, epoch),
            Phase::Locked { epoch, .. } => format!("writes epoch {epoch}"),
            Phase::Written { .. } => "syncs the epoch file".into(),
            Phase::Durable { .. } if !self.has(FolderRule::EndAfterEpoch) => {
                "uses the end that it has read".into()
            }
            Phase::Durable { .. } => format!("reads the end of the log: {}", self.describe_end(world)),
            Phase::Ended { epoch, .. } => {
                format!("creates segment {} with epoch {epoch}", world.segments.len() + 1)
            }
            Phase::Created { .. } => "syncs the header".into(),
            Phase::Checking { epoch, .. } if epoch == world.epoch.seen => {
                "finds its epoch unchanged and serves".into()
            }
            Phase::Checking { .. } => "finds another epoch".into(),
            Phase::Serving { .. } => "serves".into(),
        }
    }

    fn describe_lock(&self, world: &FolderWorld, epoch: u8) -> String {
        if epoch != world.epoch.seen + 1 && self.has(FolderRule::ReadUnderLock) {
            format!("locks epoch {epoch} and finds epoch {}: it stops", world.epoch.seen)
        } else if !self.has(FolderRule::Lock) {
            format!("decides to write epoch {epoch}, without a lock")
        } else if !self.has(FolderRule::EndAfterEpoch) {
            format!("locks epoch {epoch} and reads the end of the log: {}", self.describe_end(world))
        } else {
            format!("locks epoch {epoch}")
        }
    }

    fn describe_end(&self, world: &FolderWorld) -> String {
        let Some(end) = self.read_end(world) else { return "no commit".into() };
        let commits = world.length(end);
        let copy = if end.has_copy { ", the last one to be copied" } else { "" };
        format!("{commits} {}{copy}", if commits == 1 { "commit" } else { "commits" })
    }

    fn describe_acknowledge(&self, world: &FolderWorld, me: usize) -> String {
        let Phase::Serving { epoch, segment, .. } = world.processes[me] else { return "continues".into() };
        let segment = segment + 1;
        if epoch == world.epoch.seen {
            format!("{} finds its epoch unchanged and acknowledges the frame in segment {segment}", name(me))
        } else if self.has(FolderRule::EpochAfterSync) {
            format!("{} finds another epoch and stops", name(me))
        } else {
            format!("{} acknowledges the frame in segment {segment}", name(me))
        }
    }
}

fn describe_power_loss(world: &FolderWorld, survivors: Survivors) -> String {
    let mut lost = Vec::new();
    if survivors.epoch != world.epoch.seen {
        lost.push(format!("the epoch file has epoch {} again", survivors.epoch));
    }
    for (number, segment) in world.segments.iter().enumerate() {
        if !segment.is_header_durable && survivors.headers & 1 << number == 0 {
            lost.push(format!("segment {} is lost", number + 1));
        } else if segment.frames > segment.durable && survivors.frames & 1 << number == 0 {
            lost.push(format!("unsynced frames of segment {} are lost", number + 1));
        }
    }
    let lost = if lost.is_empty() { "nothing is lost".into() } else { lost.join(", ") };
    format!("the power fails: {lost}")
}

fn name(me: usize) -> char {
    ['A', 'B', 'C'][me]
}
