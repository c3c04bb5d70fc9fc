//! Test support for servers: a host whose time a test advances, and handwritten HTTP.
#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

mod manual_host;
mod raw;

pub use manual_host::ManualHost;
pub use raw::{RawConnection, RawResponse, content_length, exchange, status_of, within_timeout};
