//! Links between machines and the bucket that are cut, and mended.

use std::sync::Arc;
use std::time::Duration;

use crate::executor::{Executor, ProcessId};
use crate::faults::Events;
use crate::network::Network;

/// Cuts machines off from the bucket. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Links {
    network: Arc<Network>,
    executor: Executor,
}

impl Links {
    pub(crate) fn new(network: Arc<Network>, executor: Executor) -> Self {
        Self { network, executor }
    }

    /// Cuts the link of a machine for a while, if that is to happen; of two cuts the first that is over ends both.
    pub(crate) fn cut(&self, machine: &str, duration: Duration) -> bool {
        let happens =
            self.network.faults().trouble_every.is_some() && self.network.events(Events::next_happens);
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
