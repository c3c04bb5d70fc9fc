//! Ports for one instance of `weed mini`, which listens on eleven of them.
//!
//! The kernel's free ports are from the ephemeral range, and before the server starts (or between two starts of it)
//! any outgoing connection may take one of them. So the ports come from blocks below that range. The first port of a
//! block is held open as long as the instance lives: it is a lock between test processes that the kernel releases when
//! its holder ends.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Deref;

/// First port, above those that services of the machine commonly use.
const FIRST: u16 = 12_000;
/// Number of blocks: the last one, moved by [`ADMIN_GRPC_OFFSET`], ends below 32,768, where the ephemeral range of
/// Linux begins.
const BLOCKS: u16 = 625;
const BLOCK_PORTS: u16 = 16;
/// Offset of the admin's gRPC port from its HTTP port. The worker inside `weed mini` ignores the flag and uses this
/// offset, so the flag must have the same value.
const ADMIN_GRPC_OFFSET: u16 = 10_000;

/// Ports of one instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    base: u16,
}

/// Ports that stay reserved until this is dropped.
#[derive(Debug)]
pub(super) struct ReservedPorts {
    ports: Ports,
    _lock: TcpListener,
}

impl Deref for ReservedPorts {
    type Target = Ports;

    fn deref(&self) -> &Ports {
        &self.ports
    }
}

impl ReservedPorts {
    /// Reserves a block all of whose ports are free.
    pub(super) fn new() -> io::Result<Self> {
        // With a random start, test processes that begin together do not race for each block.
        let random = RandomState::new().hash_one(()) % u64::from(BLOCKS);
        let start = u16::try_from(random).expect("below the number of blocks");
        (0..BLOCKS)
            .map(|step| FIRST + (start + step) % BLOCKS * BLOCK_PORTS)
            .find_map(Self::take)
            .ok_or_else(|| io::Error::other("no block of free loopback ports is left for weed"))
    }

    fn take(base: u16) -> Option<Self> {
        let lock = bind(base).ok()?;
        let ports = Ports { base };
        let is_free = ports.named().iter().all(|(_, port)| bind(*port).is_ok());
        is_free.then_some(Self { ports, _lock: lock })
    }
}

impl Ports {
    /// Returns the block that begins with this port.
    pub(super) fn at(base: u16) -> Self {
        Self { base }
    }

    /// First port of the block.
    pub(super) fn base(self) -> u16 {
        self.base
    }

    /// Port of S3.
    pub(super) fn s3(self) -> u16 {
        self.base + 1
    }

    /// Port of the filer's HTTP interface.
    pub(super) fn filer(self) -> u16 {
        self.base + 2
    }

    /// Port of the metrics.
    pub(super) fn metrics(self) -> u16 {
        self.base + 11
    }

    /// Every port with the flag that sets it.
    pub(super) fn named(self) -> [(&'static str, u16); 12] {
        let admin = self.base + 9;
        [
            ("s3.port", self.s3()),
            ("filer.port", self.filer()),
            ("s3.port.grpc", self.base + 3),
            ("filer.port.grpc", self.base + 4),
            ("master.port", self.base + 5),
            ("master.port.grpc", self.base + 6),
            ("volume.port", self.base + 7),
            ("volume.port.grpc", self.base + 8),
            ("admin.port", admin),
            ("admin.port.grpc", admin + ADMIN_GRPC_OFFSET),
            // WebDAV is switched off; its port is set in case weed checks that it is free.
            ("webdav.port", self.base + 10),
            ("metricsPort", self.metrics()),
        ]
    }
}

#[expect(clippy::disallowed_methods, reason = "reserves the ports of a test server")]
fn bind(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use super::ReservedPorts;
    use std::collections::BTreeSet;

    #[test]
    fn two_blocks_share_no_port() {
        let blocks: Vec<_> = (0..20).map(|_| ReservedPorts::new().unwrap()).collect();
        let ports: Vec<_> = blocks.iter().flat_map(|block| block.named()).map(|(_, port)| port).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len());
        assert!(ports.iter().all(|port| *port < 32_768));
    }
}
