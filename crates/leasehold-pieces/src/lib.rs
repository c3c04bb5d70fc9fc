//! Artifacts: large files, named by their hash, fetched in pieces under leases from a bucket and from each other's caches.

pub mod peer;
pub mod serve;
pub mod sign;
