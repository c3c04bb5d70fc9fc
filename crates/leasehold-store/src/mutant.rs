//! Rules that a test may break on purpose, to see that its checks notice.
//!
//! Each stands at the one line that is the rule, as `!breaks(Rule::…)`. Without the feature `mutants`, which no release
//! has, [`breaks`] is `false` and the line is what it would be without it. A mistake that can be made from outside, by a
//! store that does not do what it was asked, is not here but in `leasehold-sim`.

/// A rule that can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// A put whose answer was lost is looked for before it counts as a lost race.
    LostAnswerIsLostRace,
    /// A refused put is looked for before it counts as lost.
    RefusedIsLost,
    /// A put is also looked for in what others have built upon it.
    BuiltUponIsLost,
    /// A stale entry is removed only after the called-for one was written.
    NoCover,
    /// Whoever hears the bell looks twice.
    NoSecondLook,
    /// A claim is trusted until its last confirmed expiry.
    ClaimTrustedForEver,
    /// A lease is trusted until its last confirmed expiry.
    LeaseTrustedForEver,
    /// A claim reads its task once.
    ReadsTwice,
    /// A pointer is put into the overflow before it is taken out of an inbox.
    RescueRemovesFirst,
    /// The inboxes of dead workers are emptied.
    NoRescue,
    /// Everyone looks at the overflow.
    OverflowUnread,
    /// An inbox is trusted until the last confirmed expiry of its lease.
    InboxTrustedForEver,
    /// The data of an artifact is there before its manifest.
    ManifestBeforeData,
    /// An artifact whose retention is over stays for a day, and goes only when nobody has published it again.
    PruneDeletesAtOnce,
    /// A publisher that finds an artifact on its way out says anew that it is kept.
    LeavingTrusted,
    /// Nobody publishes an artifact before a delete of it has surely landed.
    ClosingNotAwaited,
    /// A result is in the store before its task is completed.
    ResultNotPublished,
    /// What a journal says is verified is verified again after a crash.
    JournalTrusted,
    /// Staging stops when the claim is lost.
    StagingGoesOn,
    /// In a strict queue a handler starts only when the bucket has confirmed its claim.
    ClaimUnconfirmed,
    /// A lease on disk is taken only from those who are not heard of any more.
    LiveLeaseTaken,
    /// Whoever works on a task is heard of.
    NoHeartbeat,
    /// A change of files that was begun is carried out by whoever comes next.
    ChangeLeftHalfDone,
    /// An operation leaves the outbox when the bucket knows it.
    SentTooEarly,
    /// A result that has no place in the bucket is kept on the node.
    ConflictThrownAway,
}

impl Rule {
    /// Every one.
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

/// Whether this rule is broken in this thread.
#[cfg(not(feature = "mutants"))]
#[inline]
#[must_use]
pub const fn breaks(_: Rule) -> bool {
    false
}

/// Whether this rule is broken in this thread.
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
        /// A simulation has one thread, so that worlds beside each other do not share their mistakes.
        pub(super) static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Breaks a rule in this thread for as long as it lives.
    #[derive(Debug)]
    pub struct Broken(());

    impl Broken {
        /// From now on.
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
