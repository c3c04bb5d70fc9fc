//! Real processes that are killed, stopped and restarted. `./test fast` skips these tests.

mod brokers;
mod crashes;
mod migrate;
mod sharing;
