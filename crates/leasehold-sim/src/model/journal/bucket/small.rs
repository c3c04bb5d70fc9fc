//! A lease and a commit reduced to small numbers, and the decisions of the real [`Lease`].

use super::CommitHistory;
use leasehold_core::lease::Take;
use leasehold_core::{HexName, Holder, Lease, Name, Now, StoreTime};
use serde_json::Map;
use std::time::Duration;

const TTL: Duration = Duration::from_secs(1);

/// Lease of the journal. Its content differs in every write, so it also serves as its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::model) struct ModelLease {
    pub(super) epoch: u8,
    pub(super) instance: u8,
    /// Commits that the snapshot covers. Its length is `floor`.
    pub(super) snapshot: CommitHistory,
}

impl ModelLease {
    /// Lease that `instance` puts over the one it found, which has expired.
    pub(super) fn taken(found: Option<Self>, instance: u8) -> Self {
        let now = Now::exactly(StoreTime::from_millis(10_000));
        let taken = Lease::take(
            found.map(Self::expired),
            &Map::new(),
            &holder(instance),
            now,
            HexName::from_random(1),
        );
        let Take::Write(lease) = taken else { unreachable!("an expired lease is free") };
        let snapshot = found.map_or(CommitHistory::default(), |found| found.snapshot);
        Self { epoch: u8::try_from(lease.epoch).expect("the model is small"), instance, snapshot }
    }

    pub(super) fn is_same_claim(self, other: Self) -> bool {
        self.expired().is_same_claim(&other.expired())
    }

    fn expired(self) -> Lease {
        let Holder { worker_id, instance, .. } = holder(self.instance);
        Lease {
            subject: Map::new(),
            worker_id,
            instance,
            epoch: self.epoch.into(),
            expires_at: StoreTime::from_millis(1_000),
            updated_at: StoreTime::from_millis(0),
            write_id: HexName::from_random(0),
        }
    }
}

fn holder(instance: u8) -> Holder {
    let worker_id = Name::checked("worker id", "w").expect("a letter is a valid name");
    Holder { worker_id, instance: HexName::from_random(instance.into()), ttl: TTL }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum CommitKind {
    Fence,
    Plain,
    /// Other bytes for a slot to which the same broker has sent a commit before.
    OtherBytes,
    /// Applies the mail.
    Mail,
}

/// One commit. Its slot and its epoch identify it, since a broker sends one commit per slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ModelCommit {
    pub(super) epoch: u8,
    pub(super) kind: CommitKind,
}

impl ModelCommit {
    pub(super) fn byte(self) -> u8 {
        self.epoch << 2 | self.kind as u8
    }

    pub(super) fn from_byte(byte: u8) -> Self {
        let kind = [CommitKind::Fence, CommitKind::Plain, CommitKind::OtherBytes, CommitKind::Mail]
            [usize::from(byte % 4)];
        Self { epoch: byte >> 2, kind }
    }
}

/// Number of commits that apply the mail.
pub(super) fn mails(history: CommitHistory) -> usize {
    history.commits().filter(|byte| ModelCommit::from_byte(*byte).kind == CommitKind::Mail).count()
}
