//! First line of either end of a connection.
//!
//! ```text
//! client   {"leasehold_broker":1,"instance":"…"}          the broker that the lease names
//! broker   {"leasehold_broker":1,"instance":"…"}          its own id; the client disconnects if it is another
//! ```

use bytes::Bytes;
use leasehold_core::{Error, HexName, Kind, Result};
use serde::{Deserialize, Serialize};

/// Version of the lines between a broker and its clients.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Hello {
    leasehold_broker: u32,
    instance: HexName,
}

/// Returns the first line, without its end.
pub(crate) fn hello(instance: &HexName) -> Bytes {
    let hello = Hello { leasehold_broker: VERSION, instance: instance.clone() };
    let mut line = serde_json::to_vec(&hello).expect("it has no keys that are not text");
    line.push(b'\n');
    line.into()
}

/// Checks the first line of the other end.
pub(crate) fn check(line: &[u8], instance: &HexName) -> Result<()> {
    let hello: Hello = serde_json::from_slice(line).map_err(|error| {
        Error::new(
            Kind::Unavailable,
            format!("the other end of the connection is not a leasehold process: {error}"),
        )
    })?;
    if hello.leasehold_broker != VERSION {
        let (theirs, ours) = (hello.leasehold_broker, VERSION);
        let message = format!(
            "the other process has version {theirs} of the broker's protocol, this one has {ours}; \
             run the same version of leasehold in all processes of a queue"
        );
        return Err(Error::new(Kind::Unavailable, message));
    }
    if hello.instance != *instance {
        return Err(Error::new(Kind::Unavailable, "the lease names another broker; retry"));
    }
    Ok(())
}
