//! Connections of a world: some worlds have none, and then only the process that is the broker can change anything.

use leasehold_queue::BrokerTransport;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::actors::{NODES, READER, SECOND, node_name};
use super::checker::JournalChecker;
use crate::connections::{ConnectionFaults, Connections, SimNode};
use crate::executor::ProcessId;
use crate::host::SimHost;
use crate::world::World;

/// Share of the worlds with connections, in ten thousandths.
const CONNECTED_WORLDS: u32 = 6_000;
/// Share of the processes of such a world that have a transport, in ten thousandths.
const CONNECTED_PROCESSES: u32 = 9_000;
/// Maximum time between two partitions, and the longest of them: longer than the lease on the journal.
const PARTED_EVERY_MAX: Duration = Duration::from_mins(1);
const PARTED_MAX: Duration = Duration::from_secs(90);

/// Processes with a transport, and their connections.
#[derive(Debug, Clone, Default)]
pub(super) struct Wiring {
    connections: Option<Connections>,
    /// Number of the host of each process with a transport.
    hosts: BTreeMap<String, usize>,
}

impl Wiring {
    /// Draws the connections of a world, if it has any.
    pub(super) fn random(world: &World) -> Option<Self> {
        let mut rng = world.rng("wiring");
        if !rng.happens(CONNECTED_WORLDS) {
            return None;
        }
        let placements = [[0, 0, 0], [0, 0, 1], [0, 1, 2]];
        let placement = placements[rng.index(placements.len())];
        let nodes = (0..NODES).map(|node| (node_name(node), placement[node]));
        let processes = nodes.chain([(READER.to_owned(), 0)]);
        let hosts = processes.filter(|_| rng.happens(CONNECTED_PROCESSES)).collect();
        let rates = ConnectionFaults::random(&mut rng);
        Some(Self { connections: Some(world.connections(rates, rng)), hosts })
    }

    /// Transport of a process, if it has one.
    pub(super) fn transport(&self, host: &Arc<SimHost>, name: &str) -> Option<Arc<dyn BrokerTransport>> {
        let (connections, on) = (self.connections.as_ref()?, *self.hosts.get(name)?);
        Some(connections.transport(host.clone(), SimNode { name: name.to_owned(), on }))
    }

    /// Parts two nodes now and then: each may reach the bucket, and the third node.
    pub(super) fn part_nodes(&self, world: &World, checker: JournalChecker) {
        let Some(connections) = self.connections.clone() else { return };
        let (executor, mut rng) = (world.executor().clone(), world.rng("partitions"));
        world.spawn(ProcessId::WORLD, async move {
            while !checker.is_calm() {
                executor.sleep(rng.between(Duration::ZERO, PARTED_EVERY_MAX)).await;
                let (one, distance) = (rng.index(NODES), 1 + rng.index(NODES - 1));
                let other = (one + distance) % NODES;
                connections.part(&node_name(one), &node_name(other), rng.between(SECOND, PARTED_MAX));
            }
        });
    }
}
