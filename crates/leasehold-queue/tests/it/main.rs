//! The queue in normal use and under faults: crashes at every request, lost and late answers, objects of other
//! programs. Time moves only when a test moves it.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod checks;
mod connecting;
mod corrupt_objects;
mod crashes;
mod holders;
mod inboxes;
mod inspecting;
mod journal;
mod keys;
mod lease_faults;
mod leases;
mod life;
mod migrating;
mod migrating_crashes;
mod operating;
mod purging;
mod races;
mod submits;
mod support;
mod sweeping;
mod updating;
