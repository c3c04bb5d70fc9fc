//! Rules that a test breaks on purpose, to check that the violation is detected.
//!
//! Each rule is checked at the one line that implements it, as `!breaks(Rule::…)`. Without the feature `mutants`, which
//! no release has, [`breaks`] is always `false`. Faults that can be injected from outside, by a store that misbehaves,
//! are in `leasehold-sim`.

/// Rule that can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A put without an answer is read back before it counts as a lost race.
    LostAnswerIsLostRace,
    /// A refused put is read back before it counts as lost.
    RefusedIsLost,
    /// A put is also recognised in later states of its object.
    BuiltUponIsLost,
    /// A stale entry is removed only after the required one was written.
    NoCover,
    /// A worker scans twice after the notification object (bell) has changed.
    NoSecondLook,
    /// A claim is trusted until its last confirmed expiry.
    ClaimTrustedForEver,
    /// A lease is trusted until its last confirmed expiry.
    LeaseTrustedForEver,
    /// A claim reads its task once.
    ReadsTwice,
    /// An entry is put into the overflow before it is removed from an inbox.
    RescueRemovesFirst,
    /// The inboxes of dead workers are emptied.
    NoRescue,
    /// All workers scan the overflow.
    OverflowUnread,
    /// An inbox is trusted until the last confirmed expiry of its lease.
    InboxTrustedForEver,
    /// The data of an artifact is written before its manifest.
    ManifestBeforeData,
    /// An artifact past its retention stays for a day, and is removed only if it was not published again.
    PruneDeletesAtOnce,
    /// A publisher of an artifact that is being removed renews its retention.
    LeavingTrusted,
    /// An artifact is not published before a delete of it has surely been carried out.
    ClosingNotAwaited,
    /// A result is in the store before its task is completed.
    ResultNotPublished,
    /// Pieces that a journal marks as verified are verified again after a crash.
    JournalTrusted,
    /// Staging stops when the claim is lost.
    StagingGoesOn,
    /// In a strict queue a handler starts only when the bucket has confirmed its claim.
    ClaimUnconfirmed,
    /// A lease on disk is taken only if its holder no longer sends heartbeats.
    LiveLeaseTaken,
    /// A process that works on a task sends heartbeats.
    NoHeartbeat,
    /// An unfinished change of files is completed by the next process.
    ChangeLeftHalfDone,
    /// An operation is removed from the outbox only after it is in the bucket.
    SentTooEarly,
    /// A result that the bucket does not accept is kept on the node.
    ConflictThrownAway,
}

impl Rule {
    /// All rules.
    pub const ALL: [Rule; 25] = [
        Self::LostAnswerIsLostRace,
        Self::RefusedIsLost,
        Self::BuiltUponIsLost,
        Self::NoCover,
        Self::NoSecondLook,
        Self::ClaimTrustedForEver,
        Self::LeaseTrustedForEver,
        Self::ReadsTwice,
        Self::RescueRemovesFirst,
        Self::NoRescue,
        Self::OverflowUnread,
        Self::InboxTrustedForEver,
        Self::ManifestBeforeData,
        Self::PruneDeletesAtOnce,
        Self::LeavingTrusted,
        Self::ClosingNotAwaited,
        Self::ResultNotPublished,
        Self::JournalTrusted,
        Self::StagingGoesOn,
        Self::ClaimUnconfirmed,
        Self::LiveLeaseTaken,
        Self::NoHeartbeat,
        Self::ChangeLeftHalfDone,
        Self::SentTooEarly,
        Self::ConflictThrownAway,
    ];
}

/// True if this rule is broken in this thread.
#[cfg(not(feature = "mutants"))]
#[inline]
#[must_use]
pub const fn breaks(_: Rule) -> bool {
    false
}

/// True if this rule is broken in this thread.
#[cfg(feature = "mutants")]
#[must_use]
pub fn breaks(rule: Rule) -> bool {
    chosen::BROKEN.get() == Some(rule)
}

#[cfg(feature = "mutants")]
pub use chosen::Broken;

#[cfg(feature = "mutants")]
mod chosen {
    use super::Rule;
    use std::cell::Cell;

    thread_local! {
        /// Per thread: a simulation has one thread, so that concurrent simulations do not share broken rules.
        pub(super) static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Breaks a rule in this thread until it is dropped.
    #[derive(Debug)]
    pub struct Broken(());

    impl Broken {
        /// Breaks the rule from now on.
        #[must_use]
        pub fn new(rule: Rule) -> Self {
            BROKEN.set(Some(rule));
            Self(())
        }
    }

    impl Drop for Broken {
        fn drop(&mut self) {
            BROKEN.set(None);
        }
    }
}
