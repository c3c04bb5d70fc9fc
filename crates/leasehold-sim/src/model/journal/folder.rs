//! Model of the journal in a folder: processes of one host that take over from each other, and power loss.
//!
//! Every process sees what another one has written at once; the disk has it only after a sync. A power loss kills every
//! process and keeps what was synced, and any part of the rest. A process may stop between any two steps (SIGSTOP) and
//! continue later, and may be killed at any step. Takeovers need no reason: whether a lock or an expired lease allows
//! one is left out, so what holds here holds for every clock.
//!
//! Snapshots and deletion are left out; the model `bucket` has them. A frame is identified by its segment and its place
//! there. A torn frame fails its checksum: it is a frame that was not written.

mod describe;
mod run;

use super::history::CommitHistory;
use stateright::{Model, Property};

/// Rule of the journal in a folder; each can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::model) enum FolderRule {
    Lock,
    ReadUnderLock,
    EndAfterEpoch,
    EpochAfterSync,
    DurableEpoch,
    CopiedFrame,
    OneFrame,
    FailedSync,
    NewestByEpoch,
    DurableHeader,
    ReadEpoch,
    UnchangedEpoch,
}

impl FolderRule {
    /// Rules without which the checker finds a counterexample.
    pub(in crate::model) const ALL: [FolderRule; 11] = [
        FolderRule::Lock,
        FolderRule::ReadUnderLock,
        FolderRule::EndAfterEpoch,
        FolderRule::EpochAfterSync,
        FolderRule::DurableEpoch,
        FolderRule::CopiedFrame,
        FolderRule::OneFrame,
        FolderRule::FailedSync,
        FolderRule::NewestByEpoch,
        FolderRule::DurableHeader,
        FolderRule::ReadEpoch,
    ];

    /// Rule without which the checker finds none.
    pub(in crate::model) const SPARE: FolderRule = FolderRule::UnchangedEpoch;

    pub(in crate::model) fn description(self) -> &'static str {
        match self {
            FolderRule::Lock => "F1. an epoch is written under its kernel lock",
            FolderRule::ReadUnderLock => "F2. the epoch is read again under the lock",
            FolderRule::EndAfterEpoch => "F3. the end of the log is read after the new epoch was written",
            FolderRule::EpochAfterSync => {
                "F4. a commit is acknowledged only if the epoch, read after the sync, is unchanged"
            }
            FolderRule::DurableEpoch => "F5. the new epoch is durable before the broker serves",
            FolderRule::CopiedFrame => "F6. the header of a new segment contains a copy of the last frame",
            FolderRule::OneFrame => "F7. a frame is appended only after the frame before it was synced",
            FolderRule::FailedSync => "F8. a failed sync poisons the process",
            FolderRule::NewestByEpoch => {
                "F9. the newest segment is the one with the highest epoch, not the one with the highest first commit"
            }
            FolderRule::DurableHeader => {
                "F10. the header of a new segment is durable before the broker serves"
            }
            FolderRule::ReadEpoch => {
                "F11. a refusal, and a read that must be current, is answered only if the epoch is unchanged"
            }
            FolderRule::UnchangedEpoch => {
                "F12. a new broker serves only if the epoch is still its own after its segment was created"
            }
        }
    }
}

/// Bounds of the model: number of processes, epochs, commits and faults.
#[derive(Debug, Clone)]
pub(in crate::model) struct FolderModel {
    pub(in crate::model) processes: u8,
    /// Highest epoch: it is not taken over.
    pub(in crate::model) epoch_max: u8,
    /// Highest number of segments.
    pub(in crate::model) segments: u8,
    /// Highest number of commits in the log.
    pub(in crate::model) commits: u8,
    pub(in crate::model) power_losses: u8,
    pub(in crate::model) failed_syncs: u8,
    pub(in crate::model) without: Option<FolderRule>,
}

/// End of the log: a number of frames of one segment, and the frame after them if it was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct LogEnd {
    segment: u8,
    frames: u8,
    has_copy: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Segment {
    epoch: u8,
    /// End of the log before this segment, as its header names it.
    before: Option<LogEnd>,
    is_header_durable: bool,
    /// Frames that every process sees.
    frames: u8,
    /// Frames that survive a power loss.
    durable: u8,
    /// True if a sync failed: what was not durable then never will be.
    has_failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
enum Phase {
    #[default]
    Following,
    /// Has read the epoch before `epoch`.
    Locking {
        epoch: u8,
    },
    /// Holds the lock of `epoch`; has read the end of the log already if rule F3 is left out.
    Locked {
        epoch: u8,
        end: Option<LogEnd>,
    },
    /// The epoch is written, and not synced.
    Written {
        epoch: u8,
        end: Option<LogEnd>,
    },
    /// The epoch is durable.
    Durable {
        epoch: u8,
        end: Option<LogEnd>,
    },
    Ended {
        epoch: u8,
        end: Option<LogEnd>,
    },
    /// The segment is created, and not synced.
    Created {
        epoch: u8,
        segment: u8,
    },
    /// The segment is durable.
    Checking {
        epoch: u8,
        segment: u8,
    },
    /// Serves, with this number of acknowledged frames.
    Serving {
        epoch: u8,
        segment: u8,
        confirmed: u8,
        is_synced: bool,
    },
}

/// Epoch file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct EpochFile {
    seen: u8,
    durable: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::model) struct FolderWorld {
    epoch: EpochFile,
    segments: Vec<Segment>,
    processes: Vec<Phase>,
    power_losses: u8,
    failed_syncs: u8,
    acknowledged: CommitHistory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::model) enum FolderAction {
    /// The next step of a takeover.
    TakeOver(usize),
    Append(usize),
    Sync(usize),
    SyncFails(usize),
    Acknowledge(usize),
    Kill(usize),
    PowerLoss(Survivors),
}

/// Unsynced writes that survive a power loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::model) struct Survivors {
    /// Epoch in the epoch file.
    epoch: u8,
    /// Bit of each segment that survives although its header was not synced.
    headers: u8,
    /// Bit of each segment whose unsynced frames survive.
    frames: u8,
}

impl FolderModel {
    fn has(&self, rule: FolderRule) -> bool {
        self.without != Some(rule)
    }

    fn process_actions(&self, world: &FolderWorld, me: usize, actions: &mut Vec<FolderAction>) {
        let phase = world.processes[me];
        if phase != Phase::Following {
            actions.push(FolderAction::Kill(me));
        }
        let Phase::Serving { segment, confirmed, is_synced, .. } = phase else {
            if self.may_proceed(world, me) {
                actions.push(FolderAction::TakeOver(me));
            }
            return;
        };
        let Segment { frames, .. } = world.segments[usize::from(segment)];
        let in_flight = frames - confirmed;
        let has_room =
            world.history(Some(LogEnd { segment, frames, has_copy: false })).len() < self.commits.into();
        if has_room && (in_flight == 0 || in_flight == 1 && !is_synced && !self.has(FolderRule::OneFrame)) {
            actions.push(FolderAction::Append(me));
        }
        if in_flight > 0 && is_synced {
            actions.push(FolderAction::Acknowledge(me));
        }
        if in_flight > 0 && !is_synced {
            actions.push(FolderAction::Sync(me));
            if world.failed_syncs > 0 {
                actions.push(FolderAction::SyncFails(me));
            }
        }
    }

    /// True if the next step of a takeover is possible.
    fn may_proceed(&self, world: &FolderWorld, me: usize) -> bool {
        match world.processes[me] {
            Phase::Following => world.epoch.seen < self.epoch_max,
            Phase::Locking { epoch } => {
                let is_locked = world.processes.iter().any(|other| other.lock() == Some(epoch));
                !is_locked || !self.has(FolderRule::Lock)
            }
            Phase::Ended { .. } => world.segments.len() < self.segments.into(),
            _ => true,
        }
    }

    /// Adds the power losses that leave different writes.
    fn power_losses(world: &FolderWorld, actions: &mut Vec<FolderAction>) {
        let bits = |is_unsynced: fn(&Segment) -> bool| {
            let segments = world.segments.iter().enumerate().filter(|(_, segment)| is_unsynced(segment));
            segments.fold(0u8, |bits, (number, _)| bits | 1 << number)
        };
        let unsynced_headers = bits(|segment| !segment.is_header_durable);
        let unsynced_frames = bits(|segment| segment.frames > segment.durable);
        for epoch in world.epoch.durable..=world.epoch.seen {
            for headers in (0..=unsynced_headers).filter(|headers| headers & !unsynced_headers == 0) {
                for frames in (0..=unsynced_frames).filter(|frames| frames & !unsynced_frames == 0) {
                    actions.push(FolderAction::PowerLoss(Survivors { epoch, headers, frames }));
                }
            }
        }
    }

    /// Reads the end of the log from the newest segment.
    fn read_end(&self, world: &FolderWorld) -> Option<LogEnd> {
        let first = |segment: &Segment| world.history(segment.before).len();
        let valid = (0u8..).zip(&world.segments).filter(|(_, segment)| !segment.is_gone());
        let newest = valid.max_by_key(|(number, segment)| {
            let first = if self.has(FolderRule::NewestByEpoch) { 0 } else { first(segment) };
            (first, segment.epoch, *number)
        });
        let (number, segment) = newest?;
        match segment.frames {
            0 => segment.before,
            frames if self.has(FolderRule::CopiedFrame) => {
                Some(LogEnd { segment: number, frames: frames - 1, has_copy: true })
            }
            frames => Some(LogEnd { segment: number, frames, has_copy: false }),
        }
    }
}

impl Phase {
    /// Epoch whose lock the process holds.
    fn lock(self) -> Option<u8> {
        match self {
            Phase::Following | Phase::Locking { .. } => None,
            Phase::Locked { epoch, .. }
            | Phase::Written { epoch, .. }
            | Phase::Durable { epoch, .. }
            | Phase::Ended { epoch, .. }
            | Phase::Created { epoch, .. }
            | Phase::Checking { epoch, .. }
            | Phase::Serving { epoch, .. } => Some(epoch),
        }
    }
}

impl Segment {
    /// Segment that a power loss has removed, or whose header fails its checksum.
    const GONE: Segment =
        Segment { epoch: 0, before: None, is_header_durable: true, frames: 0, durable: 0, has_failed: false };

    fn is_gone(self) -> bool {
        self.epoch == 0
    }
}

impl FolderWorld {
    /// Commits up to an end of the log, or up to the first frame that is missing.
    fn history(&self, end: Option<LogEnd>) -> CommitHistory {
        let Some(LogEnd { segment: number, frames, has_copy }) = end else { return CommitHistory::default() };
        let segment = &self.segments[usize::from(number)];
        let before = self.history(segment.before);
        let named = segment.before.map_or(0, |before| self.length(before));
        if before.len() < named {
            return before;
        }
        let is_whole = segment.frames >= frames;
        let count = if is_whole { frames + u8::from(has_copy) } else { segment.frames };
        (0..count).fold(before, |history, _| history.with(number + 1))
    }

    /// Number of commits that an end names, whether or not they can be read.
    fn length(&self, end: LogEnd) -> usize {
        let before = self.segments[usize::from(end.segment)].before;
        before.map_or(0, |before| self.length(before)) + usize::from(end.frames) + usize::from(end.has_copy)
    }

    /// True if a process that answers, because its epoch is unchanged if it reads it, knows every acknowledged commit.
    fn is_current(&self, phase: Phase, reads_epoch: bool) -> bool {
        let Phase::Serving { epoch, segment, confirmed, .. } = phase else { return true };
        let end = LogEnd { segment, frames: confirmed, has_copy: false };
        reads_epoch && epoch != self.epoch.seen || self.history(Some(end)).starts_with(self.acknowledged)
    }
}

impl Model for FolderModel {
    type State = FolderWorld;
    type Action = FolderAction;

    fn init_states(&self) -> Vec<FolderWorld> {
        vec![FolderWorld {
            epoch: EpochFile::default(),
            segments: Vec::new(),
            processes: vec![Phase::Following; self.processes.into()],
            power_losses: self.power_losses,
            failed_syncs: self.failed_syncs,
            acknowledged: CommitHistory::default(),
        }]
    }

    fn actions(&self, world: &FolderWorld, actions: &mut Vec<FolderAction>) {
        for me in 0..world.processes.len() {
            self.process_actions(world, me, actions);
        }
        if world.power_losses > 0 {
            Self::power_losses(world, actions);
        }
    }

    fn next_state(&self, last: &FolderWorld, action: FolderAction) -> Option<FolderWorld> {
        let mut world = last.clone();
        self.act(&mut world, action);
        // Processes keep their names in a counterexample, which is easier to read.
        if self.without.is_none_or(|rule| rule == FolderRule::SPARE) {
            world.processes.sort();
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "every acknowledged commit is replayed by the next broker, in order",
                |model: &Self, world: &FolderWorld| {
                    let newest = model.read_end(world);
                    world.history(newest).starts_with(world.acknowledged)
                },
            ),
            Property::always(
                "refusals and current reads know every acknowledged commit",
                |model: &Self, world: &FolderWorld| {
                    let reads_epoch = model.has(FolderRule::ReadEpoch);
                    world.processes.iter().all(|phase| world.is_current(*phase, reads_epoch))
                },
            ),
            Property::sometimes("commits of two brokers are acknowledged", |_, world: &FolderWorld| {
                let commits = world.acknowledged.commits();
                commits.clone().min() != commits.max()
            }),
        ]
    }
}
