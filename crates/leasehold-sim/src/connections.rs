//! Connections between processes, over which lines of text pass: slow, and they break.
//!
//! A connection is a task of the world, as a request to the bucket is: what a process has sent before it is paused or killed
//! may still arrive. A paused process gets lines, and reads them when it continues; a new connection to it is not answered.
//!
//! | fault | effect |
//! | --- | --- |
//! | slow line | it arrives seconds later, and with it all lines behind it |
//! | break | both ends learn of it at different times; what is in transit is lost |
//! | killed process | some of its last lines arrive; the other end learns of it at once, or minutes later |
//! | partition | nothing passes between two nodes for a while; then their connections go on |
//! | refused connection | nothing listens at a socket of this host: its process has ended |
//! | failed connection | the other node cannot be reached, or does not answer in time |

mod carry;

use futures::FutureExt;
use futures::future::{BoxFuture, Either, select};
use leasehold_core::{Error, HexName, Kind, Result};
use leasehold_queue::{
    AcceptedClient, BrokerAddress, BrokerListener, BrokerTransport, ClientAccess, LineChannel,
    PreparedListener,
};
use leasehold_store::{Client, Host};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

use self::carry::SimConnection;
use crate::executor::{Executor, ProcessId};
use crate::faults::Events;
use crate::host::SimHost;
use crate::network::Network;
use crate::random::SimRandom;
use crate::trace::Trace;

/// Time within which a listener answers a connection.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// Pause between two checks whether a partition has ended.
const PARTED_PAUSE: Duration = Duration::from_millis(100);

/// All connections of a world. Clones share the state.
#[derive(Debug, Clone)]
pub(crate) struct Connections {
    network: Arc<Network>,
    executor: Executor,
    trace: Trace,
    rates: ConnectionFaults,
    state: Arc<Mutex<ConnectionsState>>,
}

/// Rates of the faults of connections, in ten thousandths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionFaults {
    /// Of lines: they are slow.
    slow: u32,
    /// Of lines: the connection breaks.
    broken: u32,
    /// Of new connections and new listeners: they fail.
    failed: u32,
    /// Number of lines in transit before their sender waits.
    lines_max: usize,
    /// True if an address is used again by the next broker of a node, as a port is.
    is_address_reused: bool,
}

#[derive(Debug)]
struct ConnectionsState {
    rng: SimRandom,
    /// Sockets by their address.
    sockets: BTreeMap<String, Socket>,
    /// Pairs of nodes between which nothing passes.
    parted: BTreeSet<(String, String)>,
}

/// Socket at an address. That of a killed process stays, and refuses connections.
#[derive(Debug)]
struct Socket {
    node: SimNode,
    process: ProcessId,
    instance: HexName,
    dials: mpsc::UnboundedSender<Dial>,
}

/// A node, and the host it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SimNode {
    pub(crate) name: String,
    pub(crate) on: usize,
}

/// A new connection, as it arrives at a listener.
#[derive(Debug)]
struct Dial {
    channel: LineChannel,
    /// First line of the listener: the id of its broker.
    hello: oneshot::Sender<HexName>,
}

impl ConnectionFaults {
    /// Draws the rates of a world.
    pub(crate) fn random(rng: &mut SimRandom) -> Self {
        let (slow, broken) = ([0, 100, 400], [0, 50, 300]);
        Self {
            slow: slow[rng.index(slow.len())],
            broken: broken[rng.index(broken.len())],
            failed: 500,
            lines_max: [2, 256][rng.index(2)],
            is_address_reused: rng.happens(5_000),
        }
    }
}

impl Connections {
    pub(crate) fn new(
        network: Arc<Network>,
        executor: Executor,
        trace: Trace,
        rates: ConnectionFaults,
        rng: SimRandom,
    ) -> Self {
        let (sockets, parted) = (BTreeMap::new(), BTreeSet::new());
        let state = ConnectionsState { rng, sockets, parted };
        Self { network, executor, trace, rates, state: Arc::new(Mutex::new(state)) }
    }

    /// Transport of one process.
    pub(crate) fn transport(&self, host: Arc<SimHost>, node: SimNode) -> Arc<dyn BrokerTransport> {
        Arc::new(SimTransport { connections: self.clone(), host, node })
    }

    /// Lets nothing pass between two nodes for a while, if faults allow. If partitions of the same nodes overlap, the end of the first
    /// one to end is the end of all.
    pub(crate) fn part(&self, one: &str, other: &str, duration: Duration) {
        if !self.is_injected(true) {
            return;
        }
        self.note("world", format_args!("parts {one} and {other} for {duration:?}"));
        let pair = pair(one, other);
        self.state().parted.insert(pair.clone());
        let connections = self.clone();
        let mend = async move {
            connections.executor.sleep(duration).await;
            connections.state().parted.remove(&pair);
        };
        self.executor.spawn(ProcessId::WORLD, Box::pin(mend));
    }

    /// Waits until lines pass between two nodes.
    async fn until_joined(&self, one: &str, other: &str) {
        let pair = pair(one, other);
        while self.state().parted.contains(&pair) {
            self.executor.sleep(PARTED_PAUSE).await;
        }
    }

    /// True if a fault that was drawn happens now.
    fn is_injected(&self, is_drawn: bool) -> bool {
        is_drawn
            && self.network.faults().process_fault_every.is_some()
            && self.network.events(Events::next_is_injected)
    }

    fn note(&self, who: &str, what: impl fmt::Display) {
        self.trace.line(self.executor.now(), who, what);
    }

    fn state(&self) -> MutexGuard<'_, ConnectionsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn pair(one: &str, other: &str) -> (String, String) {
    if one < other { (one.to_owned(), other.to_owned()) } else { (other.to_owned(), one.to_owned()) }
}

/// Connections of one process.
#[derive(Debug, Clone)]
struct SimTransport {
    connections: Connections,
    host: Arc<SimHost>,
    node: SimNode,
}

impl BrokerTransport for SimTransport {
    fn prepare(&self, _: &Client, instance: &HexName) -> Result<PreparedListener> {
        let address = BrokerAddress { socket: Some(self.address_of(instance)), ..BrokerAddress::default() };
        let (transport, instance) = (self.clone(), instance.clone());
        let listen = move || std::future::ready(transport.start_listener(&instance)).boxed();
        Ok(PreparedListener { address, listen: Box::new(listen) })
    }

    fn connect<'a>(
        &'a self,
        _: &'a Client,
        address: &'a BrokerAddress,
        instance: &'a HexName,
    ) -> BoxFuture<'a, Result<LineChannel>> {
        Box::pin(async move {
            let address = address.socket.as_deref().ok_or_else(|| unreachable("has no address"))?;
            let dialled = pin!(self.dial(address, instance));
            let connected = match select(dialled, self.connections.executor.sleep(ANSWERED_WITHIN)).await {
                Either::Left((connected, _)) => connected,
                Either::Right(_) => Err(unreachable("does not answer")),
            };
            let outcome = connected.as_ref().map_or_else(ToString::to_string, |_| "connected".to_owned());
            self.connections.note(self.host.name(), format_args!("dials {address}: {outcome}"));
            connected
        })
    }
}

impl SimTransport {
    fn address_of(&self, instance: &HexName) -> String {
        if self.connections.rates.is_address_reused {
            self.node.name.clone()
        } else {
            format!("{}/{instance}", self.node.name)
        }
    }

    fn start_listener(&self, instance: &HexName) -> Result<BrokerListener> {
        let Self { connections, host, node } = self;
        let is_failed = connections.state().rng.happens(connections.rates.failed);
        if connections.is_injected(is_failed) {
            return Err(unreachable("cannot listen"));
        }
        let (process, address, instance) = (host.process(), self.address_of(instance), instance.clone());
        let (dials, dialled) = mpsc::unbounded_channel();
        let (sender, accepted) = mpsc::channel(1);
        let mut state = connections.state();
        // Sockets of ended processes of this host are removed.
        let executor = &connections.executor;
        state.sockets.retain(|_, socket| socket.node.on != node.on || executor.is_alive(socket.process));
        let socket = Socket { node: node.clone(), process, instance: instance.clone(), dials };
        state.sockets.insert(address.clone(), socket);
        drop(state);
        let listening = ListeningSocket { connections: connections.clone(), address, instance, process };
        let work = host.spawn(Box::pin(listening.accept(dialled, sender)));
        Ok(BrokerListener { accepted, work })
    }

    /// Connects to the socket at an address. Never ends if it does not answer.
    async fn dial(&self, address: &str, instance: &HexName) -> Result<LineChannel> {
        let Self { connections, host, node } = self;
        let (mut rng, is_failed) = {
            let mut state = connections.state();
            (SimRandom::new(state.rng.next()), state.rng.happens(connections.rates.failed))
        };
        let (there, back) = (carry::latency(&mut rng), carry::latency(&mut rng));
        connections.executor.sleep(there).await;
        if connections.is_injected(is_failed) {
            return Err(unreachable("cannot be reached"));
        }
        let found = connections.state().sockets.get(address).map(Socket::parts);
        // A socket that does not exist says nothing: it may be on another host.
        let Some((other, process, dials)) = found else { return Err(unreachable("has no socket")) };
        connections.until_joined(&node.name, &other.name).await;
        let refused = || {
            let is_certain = other.on == node.on && !connections.executor.is_alive(process);
            let kind = if is_certain { Kind::Lost } else { Kind::Unavailable };
            Error::new(kind, format!("the broker at `{address}` refuses connections"))
        };
        let lines_max = connections.rates.lines_max;
        let (channel, client) = carry::channel(lines_max, &node.name, host.process());
        let (accepted, broker) = carry::channel(lines_max, &other.name, process);
        let (hello, greeted) = oneshot::channel();
        dials.send(Dial { channel: accepted, hello }).map_err(|_| refused())?;
        let connection = SimConnection { connections: connections.clone(), client, broker };
        connections.executor.spawn(ProcessId::WORLD, Box::pin(connection.carry(rng)));
        let greeted = greeted.await.map_err(|_| unreachable("has closed the connection"))?;
        connections.executor.sleep(back).await;
        if greeted == *instance { Ok(channel) } else { Err(unreachable("is another one")) }
    }
}

impl Socket {
    fn parts(&self) -> (SimNode, ProcessId, mpsc::UnboundedSender<Dial>) {
        (self.node.clone(), self.process, self.dials.clone())
    }
}

/// Socket of a process that listens.
struct ListeningSocket {
    connections: Connections,
    address: String,
    instance: HexName,
    process: ProcessId,
}

impl ListeningSocket {
    /// Answers new connections, and passes them on until their receiver is dropped.
    async fn accept(
        self,
        mut dialled: mpsc::UnboundedReceiver<Dial>,
        accepted: mpsc::Sender<AcceptedClient>,
    ) {
        let mut waiting = VecDeque::new();
        loop {
            tokio::select! {
                biased;
                () = accepted.closed() => return,
                Ok(room) = accepted.reserve(), if !waiting.is_empty() => {
                    if let Some(channel) = waiting.pop_front() {
                        room.send(AcceptedClient { channel, access: ClientAccess::Full });
                    }
                }
                dial = dialled.recv() => {
                    // Its socket was taken by another broker of this node.
                    let Some(Dial { channel, hello }) = dial else { return };
                    // The other end may have given up.
                    let _ = hello.send(self.instance.clone());
                    waiting.push_back(channel);
                }
            }
        }
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        if !self.connections.executor.is_alive(self.process) {
            return;
        }
        let mut state = self.connections.state();
        if state.sockets.get(&self.address).is_some_and(|socket| socket.instance == self.instance) {
            state.sockets.remove(&self.address);
        }
    }
}

fn unreachable(why: &str) -> Error {
    Error::new(Kind::Unavailable, format!("the broker of this queue {why}; retry"))
}
