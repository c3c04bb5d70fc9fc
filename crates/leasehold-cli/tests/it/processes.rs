//! Real processes that are killed, stopped and restarted. `./test fast` skips these tests.

mod brokers;
mod crashes;
mod migrate;
mod sharing;

/// Variable for a folder whose queue is to have the layout `objects`: the audits read the objects of tasks.
const OF_OBJECTS: (&str, &str) = ("LEASEHOLD_QUEUE_LAYOUT", "objects");
