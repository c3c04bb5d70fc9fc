//! Tests of the journal: every rule as a table, and properties of random histories.

mod archive;
mod broker;
mod changes;
mod claims;
mod evicted;
mod histories;
mod lists;
mod records;
mod tables;
