//! Starts processes on their machines.

use leasehold_store::{Client, Store};
use std::sync::{Arc, MutexGuard, PoisonError};

use super::{Inner, Registry};
use crate::host::{Machine, SimHost};
use crate::random::SimRandom;
use crate::store::SimStore;

impl Inner {
    pub(crate) fn process(&self, name: &str) -> (Arc<SimHost>, Client) {
        let on = machine_of(name);
        let machine = SimRandom::derived(self.seed, &format!("machine {on}"));
        let mut registry = self.registry();
        let starts = registry.starts.entry(name.to_owned()).or_default();
        *starts += 1;
        let label = if *starts == 1 { name.to_owned() } else { format!("{name}.{starts}") };
        let machine = registry
            .machines
            .entry(on.to_owned())
            .or_insert_with(|| Arc::new(Machine::new(&mut machine.clone())))
            .clone();
        drop(registry);
        let rng = SimRandom::derived(self.seed, &format!("process {label}"));
        let process = self.executor.process(&label);
        let host = Arc::new(SimHost::new(process, label, machine, self.executor.clone(), rng));
        let (network, bucket) = (self.network.clone(), self.bucket.clone());
        let store = SimStore::new(host.clone(), network, bucket, self.executor.clone(), self.alarm.clone());
        let wrap = self.wrap.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let store: Arc<dyn Store> = Arc::new(store);
        let store = wrap.map_or_else(|| store.clone(), |wrap| wrap(store.clone(), &host));
        let client = Client::new(store, host.clone());
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.push((host.name().to_owned(), client.clone()));
        (host, client)
    }

    /// Starts an actor's process.
    pub(crate) fn start(&self, name: &str) {
        let Some(start) = self.registry().actors.get(name).map(|actor| actor.start.clone()) else { return };
        let (host, client) = self.process(name);
        self.trace.line(self.executor.now(), host.name(), "starts");
        self.executor.spawn(host.process(), start(host.clone(), client));
        if let Some(actor) = self.registry().actors.get_mut(name) {
            actor.host = Some(host);
        }
    }

    /// Reboots a machine: its boot clock starts again at zero.
    pub(crate) fn reboot(&self, name: &str) {
        let now = self.executor.now();
        if let Some(machine) = self.registry().machines.get_mut(machine_of(name)) {
            *machine = Arc::new(machine.rebooted(now));
        }
    }

    /// Returns the actors on the machine of a process, itself included.
    pub(crate) fn neighbours(&self, name: &str) -> Vec<(String, Arc<SimHost>)> {
        let registry = self.registry();
        let here = registry.actors.iter().filter(|(other, _)| machine_of(other) == machine_of(name));
        here.filter_map(|(other, actor)| Some((other.clone(), actor.host.clone()?))).collect()
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the machine of a process, by its name, which may have the number of its start: `n1/worker.2`, `n1.2`.
pub(crate) fn machine_of(name: &str) -> &str {
    name.split_once(['/', '.']).map_or(name, |(machine, _)| machine)
}
