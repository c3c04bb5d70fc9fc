//! The steps of processes, and power loss.

use super::{
    EpochFile, FolderAction, FolderModel, FolderRule, FolderWorld, LogEnd, Phase, Segment, Survivors,
};

impl FolderModel {
    pub(super) fn act(&self, world: &mut FolderWorld, action: FolderAction) {
        match action {
            FolderAction::TakeOver(me) => world.processes[me] = self.take_over(world, me),
            FolderAction::Append(me) => {
                if let Some(segment) = world.segment_of(me) {
                    segment.frames += 1;
                }
            }
            FolderAction::Sync(me) => Self::sync(world, me),
            FolderAction::SyncFails(me) => {
                world.failed_syncs -= 1;
                if let Some(segment) = world.segment_of(me) {
                    segment.has_failed = true;
                }
                if self.has(FolderRule::FailedSync) {
                    world.processes[me] = Phase::Following;
                }
            }
            FolderAction::Acknowledge(me) => world.processes[me] = self.acknowledge(world, me),
            FolderAction::Kill(me) => world.processes[me] = Phase::Following,
            FolderAction::PowerLoss(survivors) => world.lose_power(survivors),
        }
    }

    /// Carries out the next step of a takeover.
    fn take_over(&self, world: &mut FolderWorld, me: usize) -> Phase {
        let is_early = !self.has(FolderRule::EndAfterEpoch);
        match world.processes[me] {
            Phase::Following => Phase::Locking { epoch: world.epoch.seen + 1 },
            Phase::Locking { epoch }
                if epoch == world.epoch.seen + 1 || !self.has(FolderRule::ReadUnderLock) =>
            {
                let end = if is_early { self.read_end(world) } else { None };
                Phase::Locked { epoch, end }
            }
            Phase::Locked { epoch, end } => {
                world.epoch.seen = epoch;
                if self.has(FolderRule::DurableEpoch) {
                    Phase::Written { epoch, end }
                } else {
                    Phase::Durable { epoch, end }
                }
            }
            Phase::Written { epoch, end } => {
                world.epoch.durable = world.epoch.seen;
                Phase::Durable { epoch, end }
            }
            Phase::Durable { epoch, end } => {
                Phase::Ended { epoch, end: if is_early { end } else { self.read_end(world) } }
            }
            Phase::Ended { epoch, end: before } => {
                let segment = u8::try_from(world.segments.len()).expect("the model is small");
                world.segments.push(Segment { epoch, before, is_header_durable: false, ..Segment::GONE });
                if self.has(FolderRule::DurableHeader) {
                    Phase::Created { epoch, segment }
                } else {
                    Phase::Checking { epoch, segment }
                }
            }
            Phase::Created { epoch, segment } => {
                world.segments[usize::from(segment)].is_header_durable = true;
                Phase::Checking { epoch, segment }
            }
            Phase::Checking { epoch, segment }
                if epoch == world.epoch.seen || !self.has(FolderRule::UnchangedEpoch) =>
            {
                Phase::Serving { epoch, segment, confirmed: 0, is_synced: false }
            }
            Phase::Locking { .. } | Phase::Checking { .. } => Phase::Following,
            serving @ Phase::Serving { .. } => serving,
        }
    }

    fn sync(world: &mut FolderWorld, me: usize) {
        if let Some(segment) = world.segment_of(me)
            && !segment.has_failed
        {
            segment.durable = segment.frames;
        }
        if let Phase::Serving { is_synced, .. } = &mut world.processes[me] {
            *is_synced = true;
        }
    }

    /// Reads the epoch, and acknowledges what was synced if it is unchanged.
    fn acknowledge(&self, world: &mut FolderWorld, me: usize) -> Phase {
        let Phase::Serving { epoch, segment, .. } = world.processes[me] else { return Phase::Following };
        let is_unchanged = epoch == world.epoch.seen;
        // Without the rule the epoch was read before the append, when it was unchanged.
        if is_unchanged || !self.has(FolderRule::EpochAfterSync) {
            let frames = world.segments[usize::from(segment)].frames;
            let history = world.history(Some(LogEnd { segment, frames, has_copy: false }));
            if !world.acknowledged.starts_with(history) {
                world.acknowledged = history;
            }
            if is_unchanged {
                return Phase::Serving { epoch, segment, confirmed: frames, is_synced: false };
            }
        }
        Phase::Following
    }
}

impl FolderWorld {
    fn segment_of(&mut self, me: usize) -> Option<&mut Segment> {
        let Phase::Serving { segment, .. } = self.processes[me] else { return None };
        self.segments.get_mut(usize::from(segment))
    }

    fn lose_power(&mut self, survivors: Survivors) {
        self.power_losses -= 1;
        self.processes.fill(Phase::Following);
        self.epoch = EpochFile { seen: survivors.epoch, durable: survivors.epoch };
        for (number, segment) in self.segments.iter_mut().enumerate() {
            if !segment.is_header_durable && survivors.headers & 1 << number == 0 {
                *segment = Segment::GONE;
                continue;
            }
            if survivors.frames & 1 << number == 0 {
                segment.frames = segment.durable;
            }
            let frames = segment.frames;
            *segment = Segment { durable: frames, is_header_durable: true, has_failed: false, ..*segment };
        }
    }
}
