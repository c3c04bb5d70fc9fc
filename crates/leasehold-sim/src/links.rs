//! Links between machines and the bucket, which can be cut for a while.

use std::sync::Arc;
use std::time::Duration;

use crate::executor::{Executor, ProcessId};
use crate::faults::Events;
use crate::network::Network;

/// Cuts machines off from the bucket. Clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct Links {
    network: Arc<Network>,
    executor: Executor,
}

impl Links {
    pub(crate) fn new(network: Arc<Network>, executor: Executor) -> Self {
        Self { network, executor }
    }

    /// Cuts the link of a machine for a while, if faults allow. Of two cuts the first to end ends both.
    pub(crate) fn cut(&self, machine: &str, duration: Duration) -> bool {
        let happens = self.network.faults().process_fault_every.is_some()
            && self.network.events(Events::next_is_injected);
        if happens {
            self.network.set_cut(machine, true);
            let (network, executor, machine) =
                (self.network.clone(), self.executor.clone(), machine.to_owned());
            let mend = async move {
                executor.sleep(duration).await;
                network.set_cut(&machine, false);
            };
            self.executor.spawn(ProcessId::WORLD, Box::pin(mend));
        }
        happens
    }
}
