//! The rules of Leasehold, without I/O, without a clock and without chance.
//!
//! Everything here is a value or a pure function, so that workers, the command line, the simulator and the
//! model checker decide by the same code.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`error`] | the one error type and its few kinds |
//! | [`ids`] | random names: of writes, of processes |
//! | [`keys`] | every path in the store, and who may write it |
//! | [`limits`] | every bound, with its reason (promise P10) |
//! | [`time`] | the store's time, and "now" as an interval (promise P6) |

pub mod error;
pub mod ids;
pub mod keys;
pub mod limits;
pub mod time;

pub use error::{Error, Kind, Result};
pub use ids::{HexName, WriteId};
pub use time::{Now, StoreTime};
