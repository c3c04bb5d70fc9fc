//! Real processes that are killed, stopped and started again: what `./test fast` leaves out.

mod crashes;
mod migrate;
mod sharing;
