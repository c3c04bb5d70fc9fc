//! Rules that a test breaks on purpose (mutants), to check that the violation is detected.
//!
//! A rule is broken at the one line that implements it, as `!breaks("no-cover")`. The name stands there and in the list of
//! `leasehold-sim`, which says what the violation is and which check must detect it; a test compares the two. Without the
//! feature `mutants`, which no release has, [`breaks`] is always `false` and compiles to nothing. Faults that can be
//! injected from outside, by a store that misbehaves, are in `leasehold-sim`.

/// True if the rule with this name is broken in this thread.
#[cfg(not(feature = "mutants"))]
#[inline]
#[must_use]
pub const fn breaks(_: &'static str) -> bool {
    false
}

/// True if the rule with this name is broken in this thread.
#[cfg(feature = "mutants")]
#[must_use]
pub fn breaks(rule: &'static str) -> bool {
    chosen::BROKEN.get() == Some(rule)
}

#[cfg(feature = "mutants")]
pub use chosen::Broken;

#[cfg(feature = "mutants")]
mod chosen {
    use std::cell::Cell;

    thread_local! {
        /// Per thread: a simulation has one thread, so that concurrent simulations do not share broken rules.
        pub(super) static BROKEN: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Breaks a rule in this thread until it is dropped.
    #[derive(Debug)]
    pub struct Broken(());

    impl Broken {
        /// Breaks the rule from now on.
        #[must_use]
        pub fn new(rule: &'static str) -> Self {
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
